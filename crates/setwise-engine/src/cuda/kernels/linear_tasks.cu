// Tasks of linear maps, shared by all their kernels.

struct TensorMap {
    u64 opaque[16];
};

// One term a bᵀ of a product: a is [rows, k], b is [n, k], row-major. `vec_a` and `vec_b` allow sixteen-byte reads.
// `maps` holds the TMA descriptors of both, for `linear_sm90`.
struct LinearTerm {
    const float *a, *b;
    const TensorMap* maps;
    int lda, ldb, k, vec_a, vec_b, pad;
};

// y = act(Σ a bᵀ + bias) + residual + residual2, plus the old y if `accumulate`, and zero where `gate` ≤ 0. With
// `gain`, y is the LayerNorm of that, and x̂ and 1/σ are saved as in AddNormTask (`linear_sm90` only).
struct LinearTask {
    const LinearTerm* terms;
    float* y;
    const float *bias, *residual, *residual2, *gate, *gain, *shift;
    float *normalised, *inv_std;
    // `pairs`: y is written two numbers at a time.
    int count, ldy, ldr, ldr2, ldg, n, activation, accumulate, pairs;
    Space space;
    // For `linear_sm90`: steps of 32 along the sum, and the stages that shared memory holds.
    int steps, stages;
};

__device__ __forceinline__ float activate(float x, int activation) {
    if (activation == ACTIVATION_RELU) return x > 0.0f || x != x ? x : 0.0f;
    if (activation == ACTIVATION_SIGMOID) return 1.0f / (1.0f + __expf(-x));
    return x;
}

// The epilogue of one accumulator, row m and column n.
__device__ __forceinline__ float epilogue(const LinearTask& task, int m, int n, float sum) {
    float v = activate(sum + (task.bias ? task.bias[n] : 0.0f), task.activation);
    if (task.residual) v += task.residual[(size_t)m * task.ldr + n];
    if (task.residual2) v += task.residual2[(size_t)m * task.ldr2 + n];
    if (task.accumulate) v += task.y[(size_t)m * task.ldy + n];
    if (task.gate) v = task.gate[(size_t)m * task.ldg + n] > 0.0f ? v : 0.0f;
    return v;
}

// A partial sum of dW = dyᵀ x and of the bias gradient. The rows of one use are divided into `splits` chunks; the
// blocks of a cluster share one partial sum. Partial sum p is written to partials + p · (n · k + n) and bias + p · (n ·
// k + n). A single partial sum is written to the gradient itself. `maps` holds the TMA descriptors of dy and x, for
// `linear_weight_grad_sm90`.
struct WeightGradTask {
    const float *dy, *x;
    float *partials, *bias;
    const TensorMap* maps;
    int ldy, ldx, n, k, splits, vec;
    Space space;
};

// Prefetches the TMA descriptors of both operands; constant during a step, so legal before the grid dependency wait.
__device__ __forceinline__ void prefetch_tensor_maps(const TensorMap* maps) {
#if __CUDA_ARCH__ >= 900
    asm volatile("prefetch.tensormap [%0];" ::"l"(maps));
    asm volatile("prefetch.tensormap [%0];" ::"l"(maps + 1));
#endif
}

__device__ __forceinline__ void grid_dependency_sync(const LinearTask* task, const int* shape) {
    launch_dependents();
    if (threadIdx.x == 32) prefetch_line((const char*)task + 128);
    if (threadIdx.x == 64) prefetch_line(shape);
    if (threadIdx.x == 0) prefetch_tensor_maps(task->terms->maps);
    grid_dependency_wait();
}

__device__ __forceinline__ void grid_dependency_sync(const WeightGradTask* task, const int* shape) {
    launch_dependents();
    if (threadIdx.x == 64) prefetch_line(shape);
    if (threadIdx.x == 0 && task->maps) prefetch_tensor_maps(task->maps);
    grid_dependency_wait();
}
