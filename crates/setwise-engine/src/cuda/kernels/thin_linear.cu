// Products with few outputs, or of few numbers, and gradients of weights of the latter: rows and results are all there is to move, and sums are of single precision.

#define FEW_OUTPUTS 8
#define FEW_TERMS 4

// A warp to a row, whose lanes share the sums.
extern "C" __global__ void __launch_bounds__(128) product_few_outputs(const ProductTask* tasks, const int* shape) {
    in_turn();
    const ProductTask& task = tasks[blockIdx.y];
    int rows = rows_of(task.space, shape), lane = threadIdx.x % 32, width = task.n;
    for (int m = blockIdx.x * 4 + threadIdx.x / 32; m < rows; m += gridDim.x * 4) {
        float sums[FEW_OUTPUTS] = {};
        for (int t = 0; t < task.count; t++) {
            const Term term = task.terms[t];
            const float* a = term.a + (size_t)m * term.lda;
            if (term.vec_a && term.vec_b) {
                for (int k = lane * 4; k < term.k; k += 128) {
                    float4 x = *(const float4*)(a + k);
#pragma unroll
                    for (int n = 0; n < FEW_OUTPUTS; n++)
                        if (n < width) sums[n] += total(x * *(const float4*)(term.b + (size_t)n * term.ldb + k));
                }
            } else {
                for (int k = lane; k < term.k; k += 32) {
                    float x = a[k];
#pragma unroll
                    for (int n = 0; n < FEW_OUTPUTS; n++)
                        if (n < width) sums[n] += x * term.b[(size_t)n * term.ldb + k];
                }
            }
        }
#pragma unroll
        for (int n = 0; n < FEW_OUTPUTS; n++)
            if (n < width) {
                float sum = warp_sum(sums[n]);
                if (lane == n) task.y[(size_t)m * task.ldy + n] = finished(task, m, n, sum);
            }
    }
}

// A thread to a number.
extern "C" __global__ void __launch_bounds__(256) product_few_terms(const ProductTask* tasks, const int* shape) {
    in_turn();
    const ProductTask& task = tasks[blockIdx.y];
    u32 width = task.n, all = (u32)rows_of(task.space, shape) * width;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += gridDim.x * blockDim.x) {
        u32 m = i / width, n = i - m * width;
        float sum = 0.0f;
        for (int t = 0; t < task.count; t++) {
            const Term& term = task.terms[t];
            const float *a = term.a + (size_t)m * term.lda, *b = term.b + (size_t)n * term.ldb;
            for (int k = 0; k < term.k; k++) sum += a[k] * b[k];
        }
        task.y[(size_t)m * task.ldy + n] = finished(task, m, n, sum);
    }
}

// Gradients of weights with few inputs: a warp to a row, lanes to 32 outputs, all inputs at once. Warps of a block take turns with rows; what they have is added up in their order.
extern "C" __global__ void __launch_bounds__(256) weights_few_terms(const WeightTask* tasks, const int* shape) {
    in_turn();
    const WeightTask& task = tasks[blockIdx.z];
    constexpr int WARPS = 8, AHEAD = 4;
    int split = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = blockIdx.x * 32 + lane, width = task.n, count = task.k;
    if (split >= task.splits || (int)blockIdx.x * 32 >= width) return;
    int rows = rows_of(task.space, shape), each = (rows + task.splits - 1) / task.splits, last = min(rows, (split + 1) * each);
    // Of the inputs, and of the bias.
    float sums[FEW_TERMS + 1] = {};
    for (int first = split * each + warp; first < last; first += WARPS * AHEAD) {
        float d[AHEAD], x[AHEAD][FEW_TERMS];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int row = first + i * WARPS;
            bool there = row < last;
            d[i] = there && n < width ? task.dy[(size_t)row * task.ldy + n] : 0.0f;
#pragma unroll
            for (int k = 0; k < FEW_TERMS; k++) x[i][k] = there && k < count ? task.x[(size_t)row * task.ldx + k] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
#pragma unroll
            for (int k = 0; k < FEW_TERMS; k++) sums[k] += d[i] * x[i][k];
            sums[FEW_TERMS] += d[i];
        }
    }
    __shared__ float parts[WARPS][FEW_TERMS + 1][32];
#pragma unroll
    for (int k = 0; k <= FEW_TERMS; k++) parts[warp][k][lane] = sums[k];
    __syncthreads();
    if (warp > FEW_TERMS || n >= width) return;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += parts[w][warp][lane];
    size_t part = (size_t)split * (width * count + width);
    if (warp == FEW_TERMS) task.bias[part + n] = sum;
    else if (warp < count) task.parts[part + (size_t)n * count + warp] = sum;
}
