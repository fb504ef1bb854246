// Gradients of weights and biases: dW[n, k] = Σ_m dy[m, n] x[m, k], db[n] = Σ_m dy[m, n], as split-K partial sums in a
// fixed order (WeightGradTask). Grid: (tiles of dW, splits, tasks). A block owns BM by BN of dW over one chunk of rows,
// a warp WM by WN. Partial sums are written; `sum_partials` adds them.

// acc += Aᵀ B for one stage, WM by WN a warp from columns wm and wn on. Operands are [BK, columns] with row strides SA
// and SB, 8 modulo 32 against bank conflicts. The next fragments load while these multiply.
template <int WM, int WN, int SA, int SB>
__device__ __forceinline__ void mma_tn(float (*acc)[WN / 8][4], const float* a, const float* b, int wm, int wn) {
    int g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
    FragA fa[2][WM / 16];
    FragB fb[2][WN / 8];
    auto load_fragments = [&](int k) {
        int into = k / 8 % 2;
#pragma unroll
        for (int i = 0; i < WM / 16; i++) {
            const float* p = a + (k + t) * SA + wm + i * 16 + g;
            fa[into][i].set(p[0], p[8], p[4 * SA], p[4 * SA + 8]);
        }
#pragma unroll
        for (int j = 0; j < WN / 8; j++) {
            const float* p = b + (k + t) * SB + wn + j * 8 + g;
            fb[into][j].set(p[0], p[4 * SB]);
        }
    };
    load_fragments(0);
#pragma unroll
    for (int k = 0; k < BK; k += 8) {
        if (k + 8 < BK) load_fragments(k + 8);
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < WN / 8; j++) mma(acc[i][j], fa[k / 8 % 2][i], fb[k / 8 % 2][j]);
    }
}

// The kernel of the formula above. Blocks of the first columns of dW also own db; a thread sums one column of dy.
template <int BM, int BN, int WM, int WN, int STAGES>
__device__ __forceinline__ void linear_weight_grad(const WeightGradTask* tasks, const int* shape) {
    constexpr int THREADS = (BM / WM) * (BN / WN) * 32, SA = BM + 8, SB = BN + 8, STAGE = BK * (SA + SB);
    const WeightGradTask task = tasks[blockIdx.z];
    int tiles_k = (task.k + BN - 1) / BN, tiles = ((task.n + BM - 1) / BM) * tiles_k;
    int split = blockIdx.y;
    if ((int)blockIdx.x >= tiles || split >= task.splits) return;
    int n0 = blockIdx.x / tiles_k * BM, k0 = blockIdx.x % tiles_k * BN;
    int rows = row_count(task.space, shape);
    int each = ((rows + task.splits - 1) / task.splits + BK - 1) / BK * BK;
    int first = split * each, last = min(rows, first + each);
    extern __shared__ __align__(16) float shared[];
    float acc[WM / 16][WN / 8][4] = {};
    float bias_sum = 0.0f;
    int warp = threadIdx.x / 32, wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
    int steps = first < last ? (last - first + BK - 1) / BK : 0, loaded = 0;
    auto load = [&]() {
        if (loaded < steps) {
            int row = first + loaded * BK;
            float* stage = shared + loaded % STAGES * STAGE;
            load_tile<BK, BM, SA, THREADS>(stage, task.dy, task.ldy, row, last, n0, task.n, task.vec);
            load_tile<BK, BN, SB, THREADS>(stage + BK * SA, task.x, task.ldx, row, last, k0, task.k, task.vec);
            loaded++;
        }
        cp_async_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) load();
    for (int step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        load();
        const float* stage = shared + step % STAGES * STAGE;
        mma_tn<WM, WN, SA, SB>(acc, stage, stage + BK * SA, wm, wn);
        if (k0 == 0 && threadIdx.x < BM)
            for (int r = 0; r < BK; r++) bias_sum += stage[r * SA + threadIdx.x];
    }
    size_t part = (size_t)split * ((size_t)task.n * task.k + task.n);
    float* out = task.partials + part;
    int g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int n = n0 + wm + i * 16 + g + (e / 2) * 8, k = k0 + wn + j * 8 + 2 * t + e % 2;
                if (n < task.n && k < task.k) out[(size_t)n * task.k + k] = acc[i][j][e];
            }
    if (k0 == 0 && threadIdx.x < BM && n0 + threadIdx.x < task.n) task.bias[part + n0 + threadIdx.x] = bias_sum;
}

extern "C" __global__ void __launch_bounds__(64) linear_weight_grad_small(
    const WeightGradTask* tasks, const int* shape) {
    grid_dependency_sync();
    linear_weight_grad<32, 32, 16, 32, 3>(tasks, shape);
}
extern "C" __global__ void __launch_bounds__(128) linear_weight_grad_medium(
    const WeightGradTask* tasks, const int* shape) {
    grid_dependency_sync();
    linear_weight_grad<64, 64, 32, 32, 3>(tasks, shape);
}
extern "C" __global__ void __launch_bounds__(128, 2) linear_weight_grad_large(
    const WeightGradTask* tasks, const int* shape) {
    grid_dependency_sync();
    linear_weight_grad<128, 128, 64, 64, 3>(tasks, shape);
}
