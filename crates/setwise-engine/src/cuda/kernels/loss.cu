// The loss and its gradient with respect to the outputs. Every sum has a fixed order.

// What the host reads back after a step.
struct Results {
    float loss, grad_norm, clip_scale, finite;
};

// Values of `kind` (`cuda/trainer.rs`). LOSS_CROSS_ENTROPY is by rows. LOSS_ELEMENTS is weighted L1 of elements plus L1
// of the means of examples.
#define LOSS_L1 0
#define LOSS_SQUARED 1
#define LOSS_HUBER 2
#define LOSS_BINARY_CROSS_ENTROPY 3
#define LOSS_PINBALL 4
#define LOSS_QUANTILES 5
#define LOSS_CROSS_ENTROPY 6
#define LOSS_ELEMENTS 7

// One output: values and grads [rows, width].
struct LossTask {
    const float *values, *targets;
    float* grads;
    int width, pad2;
    Space space;
    int pad;
};

struct LossTasks {
    const LossTask* outputs;
    Results* results;
    int count, kind;
    // One parameter per column for quantiles; otherwise the first counts.
    float parameters[8];
};

// Loss and derivative of one prediction p with target t. `parameter` is the threshold of Huber, the level of pinball
// and quantiles, and the weight of elements.
__device__ __forceinline__ float2 loss_at(int kind, float parameter, float p, float t) {
    float d = p - t;
    if (kind == LOSS_L1) return make_float2(fabsf(d), d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d);
    if (kind == LOSS_SQUARED) return make_float2(d * d, 2.0f * d);
    if (kind == LOSS_HUBER) {
        if (fabsf(d) <= parameter) return make_float2(0.5f * d * d, d);
        return make_float2(parameter * (fabsf(d) - 0.5f * parameter), d > 0.0f ? parameter : -parameter);
    }
    if (kind == LOSS_BINARY_CROSS_ENTROPY) return make_float2(fmaxf(p, 0.0f) - p * t + log1pf(expf(-fabsf(p))), 1.0f / (1.0f + expf(-p)) - t);
    if (kind == LOSS_ELEMENTS) return make_float2(parameter * fabsf(d), d > 0.0f ? parameter : d < 0.0f ? -parameter : d);
    if (d < 0.0f) return make_float2(-parameter * d, -parameter);
    return make_float2((1.0f - parameter) * d, d == 0.0f ? 0.0f : 1.0f - parameter);
}

// −log softmax(row)[right] by log-sum-exp, one warp a row. Its gradient times `share` is written to `grad`.
__device__ __forceinline__ float cross_entropy(const float* row, int width, int right, float* grad, float share) {
    int lane = threadIdx.x % 32;
    float row_max = -3.4e38f, sum = 0.0f;
    for (int c = lane; c < width; c += 32) row_max = fmaxf(row_max, row[c]);
    for (int i = 16; i > 0; i /= 2) row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, i));
    for (int c = lane; c < width; c += 32) sum += expf(row[c] - row_max);
    sum = warp_sum(sum);
    for (int c = lane; c < width; c += 32) grad[c] = (expf(row[c] - row_max) / sum - (c == right ? 1.0f : 0.0f)) * share;
    return logf(sum) + row_max - row[right];
}

// |mean(values) − mean(targets)| of an example, by one warp. Its derivative times `share` is added to the gradients.
__device__ __forceinline__ float loss_of_mean(const float* values, const float* targets, float* grads, int count, float share) {
    int lane = threadIdx.x % 32;
    float sum = 0.0f;
    for (int i = lane; i < count; i += 32) sum += values[i] - targets[i];
    float2 l = loss_at(LOSS_L1, 0.0f, warp_sum(sum) / count, 0.0f);
    for (int i = lane; i < count; i += 32) grads[i] += l.y * share / count;
    return l.x;
}

// results->loss = mean loss over all targets; grads = its derivative, written. One block of 256 threads walks over all
// outputs; threads' sums are double and added in thread order.
extern "C" __global__ void __launch_bounds__(256) loss(const LossTasks* tasks, const int* shape) {
    grid_dependency_sync();
    const LossTasks task = *tasks;
    __shared__ double sums[256];
    size_t total = 0;
    // A cross-entropy has one target per row, every other loss one per number.
    bool by_rows = task.kind == LOSS_CROSS_ENTROPY;
    for (int o = 0; o < task.count; o++)
        total += (size_t)row_count(task.outputs[o].space, shape) * (by_rows ? 1 : task.outputs[o].width);
    double sum = 0.0;
    size_t before = 0;
    for (int o = 0; o < task.count; o++) {
        const LossTask out = task.outputs[o];
        size_t rows = row_count(out.space, shape), n = by_rows ? rows : rows * out.width;
        for (size_t r = threadIdx.x / 32; by_rows && r < rows; r += 8) {
            size_t at = r * out.width;
            float l = cross_entropy(out.values + at, out.width, (int)out.targets[before + r], out.grads + at, 1.0f / (float)total);
            if (threadIdx.x % 32 == 0) sum += l;
        }
        for (size_t i = threadIdx.x; !by_rows && i < n; i += 256) {
            float parameter = task.parameters[task.kind == LOSS_QUANTILES ? i % out.width : 0];
            float2 l = loss_at(task.kind, parameter, out.values[i], out.targets[before + i]);
            sum += l.x;
            out.grads[i] = l.y / (float)total;
        }
        before += n;
    }
    if (task.kind == LOSS_ELEMENTS) {
        const LossTask out = task.outputs[0];
        int examples = example_count(shape);
        __syncthreads();
        for (int e = threadIdx.x / 32; e < examples; e += 8) {
            int first = element_offset(out.space, shape, e), count = element_offset(out.space, shape, e + 1) - first;
            if (count == 0) continue;
            size_t at = (size_t)first * out.width;
            float l = loss_of_mean(out.values + at, out.targets + at, out.grads + at, count * out.width, 1.0f / examples);
            if (threadIdx.x % 32 == 0) sum += (double)l / examples * (double)total;
        }
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < 256; i++) sum += sums[i];
        task.results->loss = (float)(sum / (double)total);
    }
}
