// The end of a step: loss, length of the gradient, Adam, which leaves matrices of Muon (muon.cu) alone but for their momentum. Every sum has a fixed order.

// What the host sends along with each batch.
struct Controls {
    float rate, root, keep, clip;
    u64 seed;
    // Of matrices that move by Muon.
    float matrices, pad;
};

// What it reads back.
struct Results {
    float loss, norm, scale, ok;
};

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
    // Of a column, where columns differ; otherwise the first counts.
    float parameters[8];
};

// Kinds in the order of the host's list; 4 and 5 are quantiles, of one level and of one per column, 6 is of whole rows, 7 of elements and
// their means.
__device__ __forceinline__ float2 loss_at(int kind, float parameter, float p, float t) {
    float d = p - t;
    if (kind == 0) return make_float2(fabsf(d), d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d);
    if (kind == 1) return make_float2(d * d, 2.0f * d);
    if (kind == 2) {
        if (fabsf(d) <= parameter) return make_float2(0.5f * d * d, d);
        return make_float2(parameter * (fabsf(d) - 0.5f * parameter), d > 0.0f ? parameter : -parameter);
    }
    if (kind == 3) return make_float2(fmaxf(p, 0.0f) - p * t + log1pf(expf(-fabsf(p))), 1.0f / (1.0f + expf(-p)) - t);
    if (kind == 7) return make_float2(parameter * fabsf(d), d > 0.0f ? parameter : d < 0.0f ? -parameter : d);
    if (d < 0.0f) return make_float2(-parameter * d, -parameter);
    return make_float2((1.0f - parameter) * d, d == 0.0f ? 0.0f : 1.0f - parameter);
}

// −log softmax(row)[class] of a row of logits, by one warp; its gradient times `share` goes to `grad`.
__device__ __forceinline__ float cross_entropy(const float* row, int width, int right, float* grad, float share) {
    int lane = threadIdx.x % 32;
    float most = -3.4e38f, sum = 0.0f;
    for (int c = lane; c < width; c += 32) most = fmaxf(most, row[c]);
    for (int i = 16; i > 0; i /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
    for (int c = lane; c < width; c += 32) sum += expf(row[c] - most);
    sum = warp_sum(sum);
    for (int c = lane; c < width; c += 32) grad[c] = (expf(row[c] - most) / sum - (c == right ? 1.0f : 0.0f)) * share;
    return logf(sum) + most - row[right];
}

// |mean p − mean t| of an example's numbers, by one warp; its slope times `share` is added to their gradients.
__device__ __forceinline__ float loss_of_mean(const float* values, const float* targets, float* grads, int count, float share) {
    int lane = threadIdx.x % 32;
    float sum = 0.0f;
    for (int i = lane; i < count; i += 32) sum += values[i] - targets[i];
    float2 l = loss_at(0, 0.0f, warp_sum(sum) / count, 0.0f);
    for (int i = lane; i < count; i += 32) grads[i] += l.y * share / count;
    return l.x;
}

extern "C" __global__ void __launch_bounds__(256) loss(const LossTasks* tasks, const int* shape) {
    in_turn();
    const LossTasks task = *tasks;
    __shared__ double sums[256];
    size_t total = 0;
    // A cross-entropy has one target for a row, every other loss one for a number.
    bool by_rows = task.kind == 6;
    for (int o = 0; o < task.count; o++)
        total += (size_t)rows_of(task.outputs[o].space, shape) * (by_rows ? 1 : task.outputs[o].width);
    double sum = 0.0;
    size_t before = 0;
    for (int o = 0; o < task.count; o++) {
        const LossTask out = task.outputs[o];
        size_t rows = rows_of(out.space, shape), n = by_rows ? rows : rows * out.width;
        for (size_t r = threadIdx.x / 32; by_rows && r < rows; r += 8) {
            size_t at = r * out.width;
            float l = cross_entropy(out.values + at, out.width, (int)out.targets[before + r], out.grads + at, 1.0f / (float)total);
            if (threadIdx.x % 32 == 0) sum += l;
        }
        for (size_t i = threadIdx.x; !by_rows && i < n; i += 256) {
            float parameter = task.parameters[task.kind == 5 ? i % out.width : 0];
            float2 l = loss_at(task.kind, parameter, out.values[i], out.targets[before + i]);
            sum += l.x;
            out.grads[i] = l.y / (float)total;
        }
        before += n;
    }
    if (task.kind == 7) {
        const LossTask out = task.outputs[0];
        int examples = examples_of(shape);
        __syncthreads();
        for (int e = threadIdx.x / 32; e < examples; e += 8) {
            int first = element(out.space, shape, e), count = element(out.space, shape, e + 1) - first;
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

struct UpdateTask {
    float *params, *first, *second;
    const float* grads;
    double* parts;
    const Controls* controls;
    Results* results;
    // Parameters that gradients move, and all: the rest are running averages, which go by the share `fresh` to what stands in their
    // gradient's place.
    size_t len, all;
    // A byte for every parameter, one for those of matrices; none where there are none.
    const unsigned char* matrices;
    float beta1, beta2, epsilon, fresh, momentum, pad;
};

#define NORM_BLOCKS 128

// The sum of COUNT numbers that the threads of a block have just written, into the first; in halves, so that its order is fixed.
template <int COUNT>
__device__ __forceinline__ void add_up(double* sums) {
    __syncthreads();
    for (int s = COUNT / 2; s > 0; s /= 2) {
        if (threadIdx.x < s) sums[threadIdx.x] += sums[threadIdx.x + s];
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(256) square_parts(const UpdateTask* tasks, const int* shape) {
    in_turn();
    const UpdateTask task = *tasks;
    __shared__ double sums[256];
    // Whole chunks of four numbers, four of them on their way; the last block takes what is left.
    size_t chunks = task.len / 4, each = (chunks + NORM_BLOCKS - 1) / NORM_BLOCKS, last = min(chunks, (blockIdx.x + 1) * each);
    const float4* grads = (const float4*)task.grads;
    double sum = 0.0;
    auto square = [](float4 g) { return ((double)g.x * g.x + (double)g.y * g.y) + ((double)g.z * g.z + (double)g.w * g.w); };
    size_t i = blockIdx.x * each + threadIdx.x;
    for (; i + 768 < last; i += 1024) {
        float4 g[4];
#pragma unroll
        for (int k = 0; k < 4; k++) g[k] = grads[i + 256 * k];
#pragma unroll
        for (int k = 0; k < 4; k++) sum += square(g[k]);
    }
    for (; i < last; i += 256) sum += square(grads[i]);
    if (blockIdx.x == NORM_BLOCKS - 1 && threadIdx.x < task.len % 4) sum += (double)task.grads[4 * chunks + threadIdx.x] * task.grads[4 * chunks + threadIdx.x];
    sums[threadIdx.x] = sum;
    add_up<256>(sums);
    if (threadIdx.x == 0) task.parts[blockIdx.x] = sums[0];
}

// Every block finds the length of the gradient from the parts, so no further launch is needed. A loss or gradient that is no
// number changes nothing.
extern "C" __global__ void __launch_bounds__(256) adam(const UpdateTask* tasks, const int* shape) {
    in_turn();
    const UpdateTask task = *tasks;
    __shared__ double sums[NORM_BLOCKS];
    if (threadIdx.x < NORM_BLOCKS) sums[threadIdx.x] = task.parts[threadIdx.x];
    add_up<NORM_BLOCKS>(sums);
    Controls c = *task.controls;
    float norm = (float)sqrt(sums[0]), scale = c.clip > 0.0f && norm > c.clip ? c.clip / norm : 1.0f;
    bool ok = isfinite(norm) && isfinite(task.results->loss);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        task.results->norm = norm;
        task.results->scale = scale;
        task.results->ok = ok ? 1.0f : 0.0f;
    }
    if (!ok) return;
    auto move = [&](float& p, float& m, float& v, float g, bool matrix) {
        g *= scale;
        if (matrix) {
            m = task.momentum * m + g;
            return;
        }
        m = task.beta1 * m + (1.0f - task.beta1) * g;
        v = task.beta2 * v + (1.0f - task.beta2) * g * g;
        p = p * c.keep - c.rate * m / (sqrtf(v) * c.root + task.epsilon);
    };
    size_t chunks = task.len / 4;
    for (size_t i = blockIdx.x * (size_t)256 + threadIdx.x; i < chunks; i += (size_t)gridDim.x * 256) {
        float4 p = ((float4*)task.params)[i], m = ((float4*)task.first)[i], v = ((float4*)task.second)[i], g = ((const float4*)task.grads)[i];
        uchar4 matrix = task.matrices ? ((const uchar4*)task.matrices)[i] : make_uchar4(0, 0, 0, 0);
        move(p.x, m.x, v.x, g.x, matrix.x);
        move(p.y, m.y, v.y, g.y, matrix.y);
        move(p.z, m.z, v.z, g.z, matrix.z);
        move(p.w, m.w, v.w, g.w, matrix.w);
        ((float4*)task.params)[i] = p;
        ((float4*)task.first)[i] = m;
        ((float4*)task.second)[i] = v;
    }
    if (blockIdx.x == 0 && threadIdx.x < task.len % 4) {
        size_t i = 4 * chunks + threadIdx.x;
        move(task.params[i], task.first[i], task.second[i], task.grads[i], task.matrices && task.matrices[i]);
    }
    for (size_t i = task.len + blockIdx.x * (size_t)256 + threadIdx.x; i < task.all; i += (size_t)gridDim.x * 256)
        task.params[i] += (task.grads[i] - task.params[i]) * task.fresh;
}
