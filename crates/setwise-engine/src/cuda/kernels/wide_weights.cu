// Gradients of weights. The copy engine fills a ring of stages with rows as they are, rounded to tf32, and eight warps, or four, multiply up to 64 by 64 each with the
// instructions of all cards: those of warpgroups want operands along the sum, which here runs over rows, and turning them costs more than they gain.
//
// A stage is 32 rows of BM columns of dy and BN of x, in tiles of 32 columns: chunk c of row r at c ^ (r % 8), as in `hopper.cu`. The order of rows within a product is free, and so
// is that of columns as long as sums are written where they belong. Lane 4g + t takes rows 2t and 2t + 1 of eight, columns 2g and 2g + 1 of sixteen of dy and column g of
// eight of x: what it reads is where the instruction wants it, and no bank is met twice.

// As `linear_weights`, with WM by WN warps of TM times 16 columns of dy and TN times 8 of x. Warps with the largest tiles take registers from a warpgroup
// that gives up its own; for others a single warp fetches.
template <int WM, int WN, int TM, int TN, int STAGES>
__device__ __forceinline__ void weights_flow(const WeightTask* tasks, const int* shape) {
    constexpr int BM = 16 * TM * WM, BN = 8 * TN * WN, WARPS = WM * WN, ROWS = 32, TILE = ROWS * 32, STAGE = ROWS * (BM + BN);
    constexpr bool LARGE = TM * TN == 32;
    static_assert((TM == 1 || TM % 2 == 0) && TN % 4 == 0, "a warp's columns of dy lie in half a tile or in whole ones, those of x in whole ones");
    static_assert(WARPS == 8 || WARPS == 4, "whole warpgroups multiply");
    const WeightTask task = tasks[blockIdx.z];
    int tiles_k = (task.k + BN - 1) / BN, count = ((task.n + BM - 1) / BM) * tiles_k, split = blockIdx.y;
    if ((int)blockIdx.x >= count || split >= task.splits) return;
    int n0 = blockIdx.x / tiles_k * BM, k0 = blockIdx.x % tiles_k * BN;
    int rows = rows_of(task.space, shape);
    int each = ((rows + task.splits - 1) / task.splits + ROWS - 1) / ROWS * ROWS;
    int first = split * each, left = min(rows - first, each), steps = left > 0 ? (left + ROWS - 1) / ROWS : 0;
    float* stages = tiles_begin();
    __shared__ u64 full[STAGES], empty[STAGES];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp >= WARPS) {
        if constexpr (LARGE) registers_give<WARPS == 8 ? 40 : 24>();
        // Tiles beyond the last column are left as they are: what comes of them is not written.
        int across = min(BM, (task.n - n0 + 31) / 32 * 32), down = min(BN, (task.k - k0 + 31) / 32 * 32);
        if (threadIdx.x == WARPS * 32)
            for (int step = 0; step < steps; step++) {
                int s = step % STAGES, row = first + step * ROWS;
                float* stage = stages + s * STAGE;
                if (step >= STAGES) barrier_wait(empty + s, (step / STAGES - 1) % 2);
                barrier_expect(full + s, ROWS * (across + down) * 4);
                for (int c = 0; c < across / 32; c++) fetch_tile(stage + c * TILE, task.maps, n0 + c * 32, row, full + s);
                for (int c = 0; c < down / 32; c++) fetch_tile(stage + (BM / 32 + c) * TILE, task.maps + 1, k0 + c * 32, row, full + s);
            }
    } else {
        if constexpr (LARGE) registers_take<232>();
        int wm = warp / WN, wn = warp % WN, g = lane / 4, t = lane % 4;
        // The bias is a matter of the warps that see dy first.
        bool sums = k0 == 0 && wn == 0;
        float acc[TM][TN][4] = {};
        float2 bias[TM] = {};
        // Where a lane's numbers of the first eight rows lie: in both halves of a tile of dy, or its own, in all quarters of one of x.
        int a_at[2][2], b_at[4][2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = 2 * t + h;
#pragma unroll
            for (int i = 0; i < 2; i++) a_at[i][h] = chunk_at(row, 4 * ((wm * TM + i) % 2) + g / 2) + g % 2 * 2;
#pragma unroll
            for (int j = 0; j < 4; j++) b_at[j][h] = chunk_at(row, 2 * j + g / 4) + g % 4;
        }
        for (int step = 0; step < steps; step++) {
            int s = step % STAGES, there = left - step * ROWS;
            const float *dy = stages + s * STAGE + wm * TM / 2 * TILE, *in = stages + s * STAGE + (BM / 32 + wn * TN / 4) * TILE;
            barrier_wait(full + s, step / STAGES % 2);
#pragma unroll
            for (int r = 0; r < ROWS; r += 8) {
                float2 x[TM][2];
                float y[TN][2];
#pragma unroll
                for (int h = 0; h < 2; h++) {
#pragma unroll
                    for (int i = 0; i < TM; i++) x[i][h] = *(const float2*)(dy + i / 2 * TILE + r * 32 + a_at[i % 2][h]);
#pragma unroll
                    for (int j = 0; j < TN; j++) y[j][h] = in[j / 4 * TILE + r * 32 + b_at[j % 4][h]];
                }
                // Behind the last row lies anything.
                if (there < ROWS) {
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        if (r + 2 * t + h >= there) {
#pragma unroll
                            for (int i = 0; i < TM; i++) x[i][h] = make_float2(0, 0);
#pragma unroll
                            for (int j = 0; j < TN; j++) y[j][h] = 0.0f;
                        }
                }
                if (sums)
#pragma unroll
                    for (int i = 0; i < TM; i++) bias[i] = make_float2(bias[i].x + (x[i][0].x + x[i][1].x), bias[i].y + (x[i][0].y + x[i][1].y));
#pragma unroll
                for (int i = 0; i < TM; i++) {
                    u32 a[4] = {__float_as_uint(x[i][0].x), __float_as_uint(x[i][0].y), __float_as_uint(x[i][1].x), __float_as_uint(x[i][1].y)};
#pragma unroll
                    for (int j = 0; j < TN; j++) {
                        u32 b[2] = {__float_as_uint(y[j][0]), __float_as_uint(y[j][1])};
                        mma_tf32(acc[i][j], a, b);
                    }
                }
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(empty + s);
        }
        int together = cluster_blocks();
        size_t part = (size_t)(split / together) * ((size_t)task.n * task.k + task.n);
        float* out = task.parts + part;
        int n = n0 + wm * 16 * TM + 2 * g, k = k0 + wn * 8 * TN + 2 * t;
        auto write = [&](int i, int j, float4 v) {
            bool inside = k + 8 * j < task.k;
            float* to = out + (size_t)(n + 16 * i) * task.k + k + 8 * j;
            if (inside && n + 16 * i < task.n) *(float2*)to = make_float2(v.x, v.y);
            if (inside && n + 16 * i + 1 < task.n) *(float2*)(to + task.k) = make_float2(v.z, v.w);
        };
#pragma unroll
        for (int i = 0; i < TM; i++) bias[i] = make_float2(lanes_sum<4>(bias[i].x), lanes_sum<4>(bias[i].y));
        if (together == 1) {
#pragma unroll
            for (int i = 0; i < TM; i++) {
#pragma unroll
                for (int j = 0; j < TN; j++) write(i, j, make_float4(acc[i][j][0], acc[i][j][1], acc[i][j][2], acc[i][j][3]));
                if (sums && t == 0 && n + 16 * i < task.n) *(float2*)(task.bias + part + n + 16 * i) = bias[i];
            }
            return;
        }
        // Where stages were, once all warps are done with them, sums lie as lanes hold them, and each block adds up its share of those of all, in their order.
        constexpr int THREADS = WARPS * 32, BLOCKS = 8;
        static_assert((TM * TN * THREADS * 4 + BM) * 4 <= STAGES * STAGE * 4, "sums fit where stages were");
        asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
        float4* mine = (float4*)stages + threadIdx.x;
        float* biases = stages + TM * TN * THREADS * 4;
#pragma unroll
        for (int i = 0; i < TM; i++) {
#pragma unroll
            for (int j = 0; j < TN; j++) mine[(i * TN + j) * THREADS] = make_float4(acc[i][j][0], acc[i][j][1], acc[i][j][2], acc[i][j][3]);
            if (sums && t == 0) *(float2*)(biases + (wm * TM + i) * 16 + 2 * g) = bias[i];
        }
        cluster_meet();
        auto of_all = [&](const float4* place) {
            float4 x[BLOCKS], sum = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) x[b] = b < together ? of_block(place, b) : sum;
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) sum = sum + x[b];
            return sum;
        };
        for (int at = cluster_rank(); at < TM * TN; at += together) write(at / TN, at % TN, of_all(mine + at * THREADS));
        int column = threadIdx.x * 4;
        if (k0 == 0 && cluster_rank() == 0 && column < BM && n0 + column < task.n)
            *(float4*)(task.bias + part + n0 + column) = of_all((const float4*)(biases + column));
        // Nobody may leave while others read what is here.
        cluster_meet();
    }
}

#define WEIGHTS_FLOW(BM, BN, WM, WN, STAGES, THREADS, BLOCKS)                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) weights_flow_m##BM##_n##BN(const WeightTask* t, const int* s) { in_turn(t + blockIdx.z, s);       \
        weights_flow<WM, WN, BM / WM / 16, BN / WN / 8, STAGES>(t, s);                                                                             \
    }
WEIGHTS_FLOW(128, 256, 2, 4, 4, 384, 1)
WEIGHTS_FLOW(256, 128, 4, 2, 4, 384, 1)
WEIGHTS_FLOW(128, 128, 2, 2, 3, 256, 2)
WEIGHTS_FLOW(128, 64, 2, 2, 4, 160, 2)
WEIGHTS_FLOW(128, 32, 4, 1, 4, 160, 2)
WEIGHTS_FLOW(64, 64, 2, 2, 4, 160, 3)
WEIGHTS_FLOW(64, 32, 4, 1, 4, 160, 4)
