// Gradients of weights, dW[n, k] = Σ_m dy[m, n] x[m, k], with TMA loads and mma.sync. wgmma needs K-major operands. The
// sum runs over rows here, and transposing them costs more than wgmma gains.
//
// A stage holds 32 rows of BM columns of dy and BN of x, in swizzled tiles of 32 columns (`sm90.cu`). The order of rows
// within a product is free, and so is that of columns. Lane 4g + t takes rows 2t and 2t + 1 of eight, columns 2g and 2g
// + 1 of sixteen of dy, and column g of eight of x. Every number is read where the instruction needs it, without bank
// conflicts.

// dW and db[n] = Σ_m dy[m, n] as partial sums (WeightGradTask), written. Grid: (tiles of dW, splits, tasks); clusters
// along the splits. A block owns BM by BN of dW over one chunk of rows; WM by WN warps own TM times 16 by TN times 8
// each. A producer warp fills the ring. For the largest tiles a producer warpgroup gives its registers to the
// consumers. The blocks of a cluster add their sums through distributed shared memory and write one partial sum.
template <int WM, int WN, int TM, int TN, int STAGES>
__device__ __forceinline__ void linear_weight_grad_sm90(const WeightGradTask* tasks, const int* shape) {
    constexpr int BM = 16 * TM * WM, BN = 8 * TN * WN, WARPS = WM * WN, ROWS = 32, TILE = ROWS * 32, STAGE = ROWS * (BM + BN);
    // Tiles whose consumers need the registers of a producer warpgroup.
    constexpr bool LARGE = TM * TN == 32;
    static_assert((TM == 1 || TM % 2 == 0) && TN % 4 == 0, "a warp's columns of dy lie in half a tile or in full tiles, those of x in full tiles");
    static_assert(WARPS == 8 || WARPS == 4, "full warpgroups multiply");
    const WeightGradTask task = tasks[blockIdx.z];
    int tiles_k = (task.k + BN - 1) / BN, count = ((task.n + BM - 1) / BM) * tiles_k, split = blockIdx.y;
    if ((int)blockIdx.x >= count || split >= task.splits) return;
    int n0 = blockIdx.x / tiles_k * BM, k0 = blockIdx.x % tiles_k * BN;
    int rows = row_count(task.space, shape);
    int each = ((rows + task.splits - 1) / task.splits + ROWS - 1) / ROWS * ROWS;
    int first = split * each, rows_left = min(rows - first, each), steps = rows_left > 0 ? (rows_left + ROWS - 1) / ROWS : 0;
    float* stages = aligned_shared();
    __shared__ u64 full[STAGES], empty[STAGES];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full + i, 1);
            mbarrier_init(empty + i, WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp >= WARPS) {
        if constexpr (LARGE) setmaxnreg_dec<WARPS == 8 ? 40 : 24>();
        // Tiles beyond the last column are not loaded; their products are not written.
        int columns_dy = min(BM, (task.n - n0 + 31) / 32 * 32), columns_x = min(BN, (task.k - k0 + 31) / 32 * 32);
        if (threadIdx.x == WARPS * 32)
            for (int step = 0; step < steps; step++) {
                int s = step % STAGES, row = first + step * ROWS;
                float* stage = stages + s * STAGE;
                if (step >= STAGES) mbarrier_wait(empty + s, (step / STAGES - 1) % 2);
                mbarrier_expect_bytes(full + s, ROWS * (columns_dy + columns_x) * 4);
                for (int c = 0; c < columns_dy / 32; c++) tma_load_2d(stage + c * TILE, task.maps, n0 + c * 32, row, full + s);
                for (int c = 0; c < columns_x / 32; c++) tma_load_2d(stage + (BM / 32 + c) * TILE, task.maps + 1, k0 + c * 32, row, full + s);
            }
    } else {
        if constexpr (LARGE) setmaxnreg_inc<232>();
        int wm = warp / WN, wn = warp % WN, g = lane / 4, t = lane % 4;
        // Only warps of the first column tile sum the bias.
        bool sums_bias = k0 == 0 && wn == 0;
        float acc[TM][TN][4] = {};
        float2 bias[TM] = {};
        // Offsets of a lane's numbers of the first eight rows: both halves of a tile of dy, all quarters of a tile of
        // x.
        int a_at[2][2], b_at[4][2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = 2 * t + h;
#pragma unroll
            for (int i = 0; i < 2; i++) a_at[i][h] = swizzled_chunk(row, 4 * ((wm * TM + i) % 2) + g / 2) + g % 2 * 2;
#pragma unroll
            for (int j = 0; j < 4; j++) b_at[j][h] = swizzled_chunk(row, 2 * j + g / 4) + g % 4;
        }
        for (int step = 0; step < steps; step++) {
            int s = step % STAGES, rows_valid = rows_left - step * ROWS;
            const float *dy = stages + s * STAGE + wm * TM / 2 * TILE, *x = stages + s * STAGE + (BM / 32 + wn * TN / 4) * TILE;
            mbarrier_wait(full + s, step / STAGES % 2);
#pragma unroll
            for (int r = 0; r < ROWS; r += 8) {
                float2 dy_values[TM][2];
                float x_values[TN][2];
#pragma unroll
                for (int h = 0; h < 2; h++) {
#pragma unroll
                    for (int i = 0; i < TM; i++) dy_values[i][h] = *(const float2*)(dy + i / 2 * TILE + r * 32 + a_at[i % 2][h]);
#pragma unroll
                    for (int j = 0; j < TN; j++) x_values[j][h] = x[j / 4 * TILE + r * 32 + b_at[j % 4][h]];
                }
                // Rows beyond the last hold arbitrary numbers.
                if (rows_valid < ROWS) {
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        if (r + 2 * t + h >= rows_valid) {
#pragma unroll
                            for (int i = 0; i < TM; i++) dy_values[i][h] = make_float2(0, 0);
#pragma unroll
                            for (int j = 0; j < TN; j++) x_values[j][h] = 0.0f;
                        }
                }
                if (sums_bias)
#pragma unroll
                    for (int i = 0; i < TM; i++) bias[i] = make_float2(bias[i].x + (dy_values[i][0].x + dy_values[i][1].x), bias[i].y + (dy_values[i][0].y + dy_values[i][1].y));
#pragma unroll
                for (int i = 0; i < TM; i++) {
                    u32 a[4] = {__float_as_uint(dy_values[i][0].x), __float_as_uint(dy_values[i][0].y), __float_as_uint(dy_values[i][1].x), __float_as_uint(dy_values[i][1].y)};
#pragma unroll
                    for (int j = 0; j < TN; j++) {
                        u32 b[2] = {__float_as_uint(x_values[j][0]), __float_as_uint(x_values[j][1])};
                        mma_tf32(acc[i][j], a, b);
                    }
                }
            }
            __syncwarp();
            if (lane == 0) mbarrier_arrive(empty + s);
        }
        int cluster = cluster_size_y();
        size_t part = (size_t)(split / cluster) * ((size_t)task.n * task.k + task.n);
        float* out = task.partials + part;
        int n = n0 + wm * 16 * TM + 2 * g, k = k0 + wn * 8 * TN + 2 * t;
        auto write = [&](int i, int j, float4 v) {
            bool inside = k + 8 * j < task.k;
            float* to = out + (size_t)(n + 16 * i) * task.k + k + 8 * j;
            if (inside && n + 16 * i < task.n) *(float2*)to = make_float2(v.x, v.y);
            if (inside && n + 16 * i + 1 < task.n) *(float2*)(to + task.k) = make_float2(v.z, v.w);
        };
#pragma unroll
        for (int i = 0; i < TM; i++) bias[i] = make_float2(lane_sum<4>(bias[i].x), lane_sum<4>(bias[i].y));
        if (cluster == 1) {
#pragma unroll
            for (int i = 0; i < TM; i++) {
#pragma unroll
                for (int j = 0; j < TN; j++) write(i, j, make_float4(acc[i][j][0], acc[i][j][1], acc[i][j][2], acc[i][j][3]));
                if (sums_bias && t == 0 && n + 16 * i < task.n) *(float2*)(task.bias + part + n + 16 * i) = bias[i];
            }
            return;
        }
        // The sums of all blocks replace the stages, in register layout. Each block adds its share over the cluster, in
        // rank order.
        constexpr int THREADS = WARPS * 32, BLOCKS = 8;
        static_assert((TM * TN * THREADS * 4 + BM) * 4 <= STAGES * STAGE * 4, "the sums of a block fit where its stages were");
        asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
        float4* staged = (float4*)stages + threadIdx.x;
        float* biases = stages + TM * TN * THREADS * 4;
#pragma unroll
        for (int i = 0; i < TM; i++) {
#pragma unroll
            for (int j = 0; j < TN; j++) staged[(i * TN + j) * THREADS] = make_float4(acc[i][j][0], acc[i][j][1], acc[i][j][2], acc[i][j][3]);
            if (sums_bias && t == 0) *(float2*)(biases + (wm * TM + i) * 16 + 2 * g) = bias[i];
        }
        cluster_sync();
        auto cluster_total = [&](const float4* address) {
            float4 x[BLOCKS], sum = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) x[b] = b < cluster ? dsmem_load(address, b) : sum;
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) sum = sum + x[b];
            return sum;
        };
        for (int at = cluster_rank(); at < TM * TN; at += cluster) write(at / TN, at % TN, cluster_total(staged + at * THREADS));
        int column = threadIdx.x * 4;
        if (k0 == 0 && cluster_rank() == 0 && column < BM && n0 + column < task.n)
            *(float4*)(task.bias + part + n0 + column) = cluster_total((const float4*)(biases + column));
        // A block must not exit while others read its shared memory.
        cluster_sync();
    }
}

#define LINEAR_WEIGHT_GRAD_SM90(BM, BN, WM, WN, STAGES, THREADS, BLOCKS)                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) linear_weight_grad_sm90_m##BM##_n##BN(  \
        const WeightGradTask* tasks, const int* shape) {                                                  \
        grid_dependency_sync(tasks + blockIdx.z, shape);                                                  \
        linear_weight_grad_sm90<WM, WN, BM / WM / 16, BN / WN / 8, STAGES>(tasks, shape);                 \
    }
LINEAR_WEIGHT_GRAD_SM90(128, 256, 2, 4, 4, 384, 1)
LINEAR_WEIGHT_GRAD_SM90(256, 128, 4, 2, 4, 384, 1)
LINEAR_WEIGHT_GRAD_SM90(128, 128, 2, 2, 3, 256, 2)
LINEAR_WEIGHT_GRAD_SM90(128, 64, 2, 2, 4, 160, 2)
LINEAR_WEIGHT_GRAD_SM90(128, 32, 4, 1, 4, 160, 2)
LINEAR_WEIGHT_GRAD_SM90(64, 64, 2, 2, 4, 160, 3)
LINEAR_WEIGHT_GRAD_SM90(64, 32, 4, 1, 4, 160, 4)
