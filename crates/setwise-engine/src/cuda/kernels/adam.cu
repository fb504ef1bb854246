// Norm of the gradient and Adam's update. Parameters of Muon's matrices only update their momentum here (`muon.cu`
// moves them). Every sum has a fixed order.

// What the host sends with each batch: learning rate / (1 − β₁ᵗ), 1 / √(1 − β₂ᵗ), 1 − rate · weight decay, the maximal
// gradient norm (0 for none) and the seed of dropout.
struct Controls {
    float rate, inv_sqrt_bias2, decay, clip;
    u64 seed;
    // Learning rate of matrices that Muon moves.
    float muon_rate, pad;
};

struct UpdateTask {
    float *params, *first, *second;
    const float* grads;
    double* partials;
    const Controls* controls;
    Results* results;
    // Parameters that gradients move, and all parameters. The rest are running averages: they move by `average_rate`
    // towards the value stored as their gradient.
    size_t trained, all;
    // One byte per parameter, 1 for those of Muon's matrices; null if there are none.
    const unsigned char* muon_mask;
    float beta1, beta2, epsilon, average_rate, momentum, pad;
};

#define NORM_BLOCKS 128

// Sums COUNT numbers that the block's threads have just written into the first, by tree reduction in a fixed order.
template <int COUNT>
__device__ __forceinline__ void add_up(double* sums) {
    __syncthreads();
    for (int s = COUNT / 2; s > 0; s /= 2) {
        if (threadIdx.x < s) sums[threadIdx.x] += sums[threadIdx.x + s];
        __syncthreads();
    }
}

// partials[b] = Σ g² over block b's chunk of the gradient, in double. Grid: NORM_BLOCKS blocks. Cost: one read of the
// gradient.
extern "C" __global__ void __launch_bounds__(256) grad_norm_partials(const UpdateTask* tasks, const int* shape) {
    grid_dependency_sync();
    const UpdateTask task = *tasks;
    __shared__ double sums[256];
    // Chunks of four numbers, four in flight; the last block takes the remainder.
    size_t chunks = task.trained / 4, each = (chunks + NORM_BLOCKS - 1) / NORM_BLOCKS, last = min(chunks, (blockIdx.x + 1) * each);
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
    if (blockIdx.x == NORM_BLOCKS - 1 && threadIdx.x < task.trained % 4) sum += (double)task.grads[4 * chunks + threadIdx.x] * task.grads[4 * chunks + threadIdx.x];
    sums[threadIdx.x] = sum;
    add_up<256>(sums);
    if (threadIdx.x == 0) task.partials[blockIdx.x] = sums[0];
}

// m = β₁ m + (1 − β₁) g, v = β₂ v + (1 − β₂) g², p = p · decay − rate · m / (√v · inv_sqrt_bias2 + ε), with g scaled to
// the clip norm. Grid-stride over chunks of four parameters. Every block sums the partial norms itself, which saves a
// launch. A loss or norm that is not finite leaves all state unchanged. params, first and second are updated in place;
// results are written.
extern "C" __global__ void __launch_bounds__(256) adam(const UpdateTask* tasks, const int* shape) {
    grid_dependency_sync();
    const UpdateTask task = *tasks;
    __shared__ double sums[NORM_BLOCKS];
    if (threadIdx.x < NORM_BLOCKS) sums[threadIdx.x] = task.partials[threadIdx.x];
    add_up<NORM_BLOCKS>(sums);
    Controls controls = *task.controls;
    float norm = (float)sqrt(sums[0]), scale = controls.clip > 0.0f && norm > controls.clip ? controls.clip / norm : 1.0f;
    bool finite = isfinite(norm) && isfinite(task.results->loss);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        task.results->grad_norm = norm;
        task.results->clip_scale = scale;
        task.results->finite = finite ? 1.0f : 0.0f;
    }
    if (!finite) return;
    auto move = [&](float& p, float& m, float& v, float g, bool matrix) {
        g *= scale;
        if (matrix) {
            m = task.momentum * m + g;
            return;
        }
        m = task.beta1 * m + (1.0f - task.beta1) * g;
        v = task.beta2 * v + (1.0f - task.beta2) * g * g;
        p = p * controls.decay - controls.rate * m / (sqrtf(v) * controls.inv_sqrt_bias2 + task.epsilon);
    };
    size_t chunks = task.trained / 4;
    for (size_t i = blockIdx.x * (size_t)256 + threadIdx.x; i < chunks; i += (size_t)gridDim.x * 256) {
        float4 p = ((float4*)task.params)[i], m = ((float4*)task.first)[i], v = ((float4*)task.second)[i], g = ((const float4*)task.grads)[i];
        uchar4 matrix = task.muon_mask ? ((const uchar4*)task.muon_mask)[i] : make_uchar4(0, 0, 0, 0);
        move(p.x, m.x, v.x, g.x, matrix.x);
        move(p.y, m.y, v.y, g.y, matrix.y);
        move(p.z, m.z, v.z, g.z, matrix.z);
        move(p.w, m.w, v.w, g.w, matrix.w);
        ((float4*)task.params)[i] = p;
        ((float4*)task.first)[i] = m;
        ((float4*)task.second)[i] = v;
    }
    if (blockIdx.x == 0 && threadIdx.x < task.trained % 4) {
        size_t i = 4 * chunks + threadIdx.x;
        move(task.params[i], task.first[i], task.second[i], task.grads[i], task.muon_mask && task.muon_mask[i]);
    }
    for (size_t i = task.trained + blockIdx.x * (size_t)256 + threadIdx.x; i < task.all; i += (size_t)gridDim.x * 256)
        task.params[i] += (task.grads[i] - task.params[i]) * task.average_rate;
}
