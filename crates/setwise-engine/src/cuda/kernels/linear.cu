// Linear maps of ragged rows and gradients of their inputs: y[m, n] = epilogue(Σ a[m, k] b[n, k]), see LinearTask.
// Grid: (row tiles, column tiles, tasks). A block owns a tile of BM by BN outputs, a warp WM by WN of it. y is written,
// or added to if `accumulate`. Operands stream through STAGES buffers of BK columns.

template <int BM, int BN, int WM, int WN, int STAGES>
__device__ __forceinline__ void product(const LinearTask* tasks, const int* shape) {
    constexpr int THREADS = (BM / WM) * (BN / WN) * 32, S = BK + 4, STAGE = (BM + BN) * S;
    const LinearTask task = tasks[blockIdx.z];
    int rows = row_count(task.space, shape), m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;
    if (m0 >= rows || n0 >= task.n) return;
    extern __shared__ __align__(16) float shared[];
    float acc[WM / 16][WN / 8][4] = {};
    int warp = threadIdx.x / 32, wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
    int term = 0, at = 0, loaded = 0;
    auto load = [&]() {
        if (term < task.count) {
            const LinearTerm part = task.terms[term];
            float* stage = shared + loaded % STAGES * STAGE;
            load_tile<BM, BK, S, THREADS>(stage, part.a, part.lda, m0, rows, at, part.k, part.vec_a);
            load_tile<BN, BK, S, THREADS>(stage + BM * S, part.b, part.ldb, n0, task.n, at, part.k, part.vec_b);
            loaded++;
            at += BK;
            if (at >= part.k) { at = 0; term++; }
        }
        cp_async_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) load();
    for (int step = 0; step < loaded; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        // The stage loaded here was last read before this barrier.
        load();
        const float* stage = shared + step % STAGES * STAGE;
        mma_nt<WM, WN>(acc, stage, stage + BM * S, wm, wn);
    }
    int g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
    bool pairs = task.pairs;
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 8; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int m = m0 + wm + i * 16 + g + h * 8, n = n0 + wn + j * 8 + 2 * t;
                if (m >= rows || n >= task.n) continue;
                float* y = task.y + (size_t)m * task.ldy + n;
                float v[2] = {acc[i][j][2 * h], acc[i][j][2 * h + 1]};
                bool second = n + 1 < task.n;
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    if (e && !second) continue;
                    v[e] = epilogue(task, m, n + e, v[e]);
                }
                if (pairs) *(float2*)y = make_float2(v[0], v[1]);
                else {
                    y[0] = v[0];
                    if (second) y[1] = v[1];
                }
            }
}

// Each kernel is a module of its own: together they compile as long as all other linear kernels.
#define LINEAR_SMALL                                                                                             \
    extern "C" __global__ void __launch_bounds__(128) linear_small(const LinearTask* tasks, const int* shape) {  \
        grid_dependency_sync();                                                                                  \
        product<64, 32, 16, 32, 2>(tasks, shape);                                                                \
    }
#define LINEAR_MEDIUM                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) linear_medium(const LinearTask* tasks, const int* shape) {  \
        grid_dependency_sync();                                                                                   \
        product<128, 64, 32, 32, 3>(tasks, shape);                                                                \
    }
#define LINEAR_LARGE                                                                                                \
    extern "C" __global__ void __launch_bounds__(256, 2) linear_large(const LinearTask* tasks, const int* shape) {  \
        grid_dependency_sync();                                                                                     \
        product<128, 128, 64, 32, 3>(tasks, shape);                                                                 \
    }
