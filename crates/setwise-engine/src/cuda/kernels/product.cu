// Linear maps of ragged rows, and gradients of their inputs: a block owns a tile of BM by BN numbers of one product; its warps own WM by WN of it.

template <int BM, int BN, int WM, int WN, int STAGES>
__device__ __forceinline__ void product(const ProductTask* tasks, const int* shape) {
    constexpr int THREADS = (BM / WM) * (BN / WN) * 32, S = BK + 4, STAGE = (BM + BN) * S;
    const ProductTask task = tasks[blockIdx.z];
    int rows = rows_of(task.space, shape), m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;
    if (m0 >= rows || n0 >= task.n) return;
    extern __shared__ __align__(16) float shared[];
    float acc[WM / 16][WN / 8][4] = {};
    int warp = threadIdx.x / 32, wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
    int term = 0, at = 0, loaded = 0;
    auto load = [&]() {
        if (term < task.count) {
            const Term part = task.terms[term];
            float* stage = shared + loaded % STAGES * STAGE;
            load_tile<BM, BK, S, THREADS>(stage, part.a, part.lda, m0, rows, at, part.k, part.vec_a);
            load_tile<BN, BK, S, THREADS>(stage + BM * S, part.b, part.ldb, n0, task.n, at, part.k, part.vec_b);
            loaded++;
            at += BK;
            if (at >= part.k) { at = 0; term++; }
        }
        copies_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) load();
    for (int step = 0; step < loaded; step++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        // The stage that is loaded now was read before the barrier just passed.
        load();
        const float* stage = shared + step % STAGES * STAGE;
        multiply_rows<WM, WN>(acc, stage, stage + BM * S, wm, wn);
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
                    v[e] = finished(task, m, n + e, v[e]);
                }
                if (pairs) *(float2*)y = make_float2(v[0], v[1]);
                else {
                    y[0] = v[0];
                    if (second) y[1] = v[1];
                }
            }
}

// Each is compiled on its own: together they take as long as all other kernels of linear maps.
#define PRODUCT_SMALL extern "C" __global__ void __launch_bounds__(128) product_small(const ProductTask* t, const int* s) { in_turn(); product<64, 32, 16, 32, 2>(t, s); }
#define PRODUCT_MEDIUM extern "C" __global__ void __launch_bounds__(256) product_medium(const ProductTask* t, const int* s) { in_turn(); product<128, 64, 32, 32, 3>(t, s); }
#define PRODUCT_LARGE extern "C" __global__ void __launch_bounds__(256, 2) product_large(const ProductTask* t, const int* s) { in_turn(); product<128, 128, 64, 32, 3>(t, s); }
