// Linear maps of few outputs or few inputs, and weight gradients of the latter. Memory traffic bounds them, so they use
// f32 multiply-adds instead of tensor cores.

#define MAX_FEW_OUTPUTS 8
#define MAX_FEW_INPUTS 4

// y[m, n] = epilogue(Σ_k a[m, k] b[n, k]) for n < MAX_FEW_OUTPUTS. A warp owns a row; its lanes divide the sum over k.
// Grid: (rows / 4, tasks), grid-stride over rows. y is written, or added to if `accumulate`.
extern "C" __global__ void __launch_bounds__(128) linear_few_outputs(const LinearTask* tasks, const int* shape) {
    grid_dependency_sync();
    const LinearTask& task = tasks[blockIdx.y];
    int rows = row_count(task.space, shape), lane = threadIdx.x % 32, outputs = task.n;
    for (int m = blockIdx.x * 4 + threadIdx.x / 32; m < rows; m += gridDim.x * 4) {
        float sums[MAX_FEW_OUTPUTS] = {};
        for (int t = 0; t < task.count; t++) {
            const LinearTerm term = task.terms[t];
            const float* a = term.a + (size_t)m * term.lda;
            if (term.vec_a && term.vec_b) {
                for (int k = lane * 4; k < term.k; k += 128) {
                    float4 x = *(const float4*)(a + k);
#pragma unroll
                    for (int n = 0; n < MAX_FEW_OUTPUTS; n++)
                        if (n < outputs) sums[n] += horizontal_sum(x * *(const float4*)(term.b + (size_t)n * term.ldb + k));
                }
            } else {
                for (int k = lane; k < term.k; k += 32) {
                    float x = a[k];
#pragma unroll
                    for (int n = 0; n < MAX_FEW_OUTPUTS; n++)
                        if (n < outputs) sums[n] += x * term.b[(size_t)n * term.ldb + k];
                }
            }
        }
#pragma unroll
        for (int n = 0; n < MAX_FEW_OUTPUTS; n++)
            if (n < outputs) {
                float sum = warp_sum(sums[n]);
                if (lane == n) task.y[(size_t)m * task.ldy + n] = epilogue(task, m, n, sum);
            }
    }
}

// The same for sums of at most MAX_FEW_INPUTS terms. Grid: (blocks, tasks), grid-stride over rows times n; a thread
// owns one output. y is written, or added to if `accumulate`.
extern "C" __global__ void __launch_bounds__(256) linear_few_inputs(const LinearTask* tasks, const int* shape) {
    grid_dependency_sync();
    const LinearTask& task = tasks[blockIdx.y];
    u32 outputs = task.n, all = (u32)row_count(task.space, shape) * outputs;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += gridDim.x * blockDim.x) {
        u32 m = i / outputs, n = i - m * outputs;
        float sum = 0.0f;
        for (int t = 0; t < task.count; t++) {
            const LinearTerm& term = task.terms[t];
            const float *a = term.a + (size_t)m * term.lda, *b = term.b + (size_t)n * term.ldb;
            for (int k = 0; k < term.k; k++) sum += a[k] * b[k];
        }
        task.y[(size_t)m * task.ldy + n] = epilogue(task, m, n, sum);
    }
}

// dW[n, k] = Σ_m dy[m, n] x[m, k] for k ≤ MAX_FEW_INPUTS, and db[n] = Σ_m dy[m, n], as partial sums. Grid: (n / 32,
// splits, tasks). A lane owns one output n and all k. The eight warps take every eighth row; their sums are added in
// warp order and written to partial sum `split`.
extern "C" __global__ void __launch_bounds__(256) linear_weight_grad_few_inputs(const WeightGradTask* tasks, const int* shape) {
    grid_dependency_sync();
    const WeightGradTask& task = tasks[blockIdx.z];
    constexpr int WARPS = 8, UNROLL = 4;
    int split = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = blockIdx.x * 32 + lane, outputs = task.n, inputs = task.k;
    if (split >= task.splits || (int)blockIdx.x * 32 >= outputs) return;
    int rows = row_count(task.space, shape), each = (rows + task.splits - 1) / task.splits, last = min(rows, (split + 1) * each);
    // One sum per input, and the bias.
    float sums[MAX_FEW_INPUTS + 1] = {};
    for (int first = split * each + warp; first < last; first += WARPS * UNROLL) {
        float d[UNROLL], x[UNROLL][MAX_FEW_INPUTS];
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            int row = first + i * WARPS;
            bool valid = row < last;
            d[i] = valid && n < outputs ? task.dy[(size_t)row * task.ldy + n] : 0.0f;
#pragma unroll
            for (int k = 0; k < MAX_FEW_INPUTS; k++) x[i][k] = valid && k < inputs ? task.x[(size_t)row * task.ldx + k] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
#pragma unroll
            for (int k = 0; k < MAX_FEW_INPUTS; k++) sums[k] += d[i] * x[i][k];
            sums[MAX_FEW_INPUTS] += d[i];
        }
    }
    __shared__ float partials[WARPS][MAX_FEW_INPUTS + 1][32];
#pragma unroll
    for (int k = 0; k <= MAX_FEW_INPUTS; k++) partials[warp][k][lane] = sums[k];
    __syncthreads();
    if (warp > MAX_FEW_INPUTS || n >= outputs) return;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += partials[w][warp][lane];
    size_t part = (size_t)split * (outputs * inputs + outputs);
    if (warp == MAX_FEW_INPUTS) task.bias[part + n] = sum;
    else if (warp < inputs) task.partials[part + (size_t)n * inputs + warp] = sum;
}
