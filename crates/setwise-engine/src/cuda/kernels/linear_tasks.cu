// What is asked of linear maps, whichever kernel does it.

struct TensorMap {
    u64 opaque[16];
};

// One term of a product: the rows of a times the rows of b, over k. `vec` where rows can be read sixteen bytes at a time; `maps` describes
// both to the copy engine, for `product_wide`.
struct Term {
    const float *a, *b;
    const TensorMap* maps;
    int lda, ldb, k, vec_a, vec_b, pad;
};

// y = act(Σ a bᵀ + bias) + residuals, added to what is there if `accumulate`, and nothing where `gate` is not positive. With a `gain` the
// LayerNorm of that, kept as in NormTask (only `product_wide` does this).
struct ProductTask {
    const Term* terms;
    float* y;
    const float *bias, *residual, *residual2, *gate, *gain, *shift;
    float *normalised, *inv_std;
    // `pairs` where two numbers of y can be written at once.
    int count, ldy, ldr, ldr2, ldg, n, activation, accumulate, pairs;
    Space space;
    // Of 32 along the sum, and how many of them shared memory holds, for `product_wide`.
    int steps, stages;
};

__device__ __forceinline__ float activate(float x, int activation) {
    if (activation == 1) return x > 0.0f || x != x ? x : 0.0f;
    if (activation == 2) return 1.0f / (1.0f + __expf(-x));
    return x;
}

// What becomes of the sum in row m and column n, a number at a time.
__device__ __forceinline__ float finished(const ProductTask& task, int m, int n, float sum) {
    float v = activate(sum + (task.bias ? task.bias[n] : 0.0f), task.activation);
    if (task.residual) v += task.residual[(size_t)m * task.ldr + n];
    if (task.residual2) v += task.residual2[(size_t)m * task.ldr2 + n];
    if (task.accumulate) v += task.y[(size_t)m * task.ldy + n];
    if (task.gate) v = task.gate[(size_t)m * task.ldg + n] > 0.0f ? v : 0.0f;
    return v;
}

// A part of dW = dyᵀ x and of the bias's gradient: the rows of one use, cut into `splits`, of which those of a cluster are one part. Part p is written to parts + p · (n · k + n), and to
// bias + p · (n · k + n). A part that is the whole goes to the gradients themselves. `maps` describes dy and x to the copy engine, for `weights_flow`.
struct WeightTask {
    const float *dy, *x;
    float *parts, *bias;
    const TensorMap* maps;
    int ldy, ldx, n, k, splits, vec;
    Space space;
};

// Before the wait of `in_turn`, too: the operands' descriptions, which the copy engine reads first.
__device__ __forceinline__ void describe(const TensorMap* maps) {
#if __CUDA_ARCH__ >= 900
    asm volatile("prefetch.tensormap [%0];" ::"l"(maps));
    asm volatile("prefetch.tensormap [%0];" ::"l"(maps + 1));
#endif
}

__device__ __forceinline__ void in_turn(const ProductTask* task, const int* shape) {
    next_may_start();
    if (threadIdx.x == 32) bring_near((const char*)task + 128);
    if (threadIdx.x == 64) bring_near(shape);
    if (threadIdx.x == 0) describe(task->terms->maps);
    wait_for_last();
}

__device__ __forceinline__ void in_turn(const WeightTask* task, const int* shape) {
    next_may_start();
    if (threadIdx.x == 64) bring_near(shape);
    if (threadIdx.x == 0 && task->maps) describe(task->maps);
    wait_for_last();
}
