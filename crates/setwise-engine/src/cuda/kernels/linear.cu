// Linear maps of ragged rows: products, gradients of inputs, gradients of weights in parts that are summed in a fixed order.
//
// A block owns a tile of BM by BN numbers of one product; its warps own WM by WN of it. Both operands come through shared
// memory in stages of BK, padded so that no two lanes of a fragment meet in a bank.

#define BK 32

// acc += A Bᵀ for one stage; both operands lie in rows of BK + 4.
template <int WM, int WN>
__device__ __forceinline__ void multiply_rows(float (*acc)[WN / 8][4], const float* a, const float* b, int wm, int wn) {
    constexpr int S = BK + 4;
    int lane = threadIdx.x % 32;
    // Blocks of A: rows 0 and 8, then columns 4 on. Blocks of B: columns 0 and 4 of one group of rows, then of the next.
    const float* pa = a + (wm + lane % 16) * S + lane / 16 * 4;
    const float* pb = b + (wn + lane / 16 * 8 + lane % 8) * S + lane / 8 % 2 * 4;
    FragA fa[2][WM / 16];
    FragB fb[2][WN / 8];
    auto fetch = [&](int k) {
        int into = k / 8 % 2;
        float v[4];
#pragma unroll
        for (int i = 0; i < WM / 16; i++) {
            load_blocks(v, pa + i * 16 * S + k);
            fa[into][i].set(v[0], v[1], v[2], v[3]);
        }
#pragma unroll
        for (int j = 0; j < WN / 8; j += 2) {
            load_blocks(v, pb + j * 8 * S + k);
            fb[into][j].set(v[0], v[1]);
            fb[into][j + 1].set(v[2], v[3]);
        }
    };
    fetch(0);
#pragma unroll
    for (int k = 0; k < BK; k += 8) {
        // The next operands are on their way while these are multiplied.
        if (k + 8 < BK) fetch(k + 8);
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < WN / 8; j++) mma(acc[i][j], fa[k / 8 % 2][i], fb[k / 8 % 2][j]);
    }
}

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

extern "C" __global__ void __launch_bounds__(128) product_small(const ProductTask* t, const int* s) { in_turn(); product<64, 32, 16, 32, 2>(t, s); }
extern "C" __global__ void __launch_bounds__(256) product_medium(const ProductTask* t, const int* s) { in_turn(); product<128, 64, 32, 32, 3>(t, s); }
extern "C" __global__ void __launch_bounds__(256, 2) product_large(const ProductTask* t, const int* s) { in_turn(); product<128, 128, 64, 32, 3>(t, s); }

// Wᵀ beside W, so that gradients of inputs are products of rows too.
struct TransposeTask {
    const float* from;
    float* to;
    int rows, cols;
};

// Tiles of 64 by 64, four numbers at a time where rows of both start at sixteen bytes.
extern "C" __global__ void __launch_bounds__(256) transpose(const TransposeTask* tasks, const int* shape) {
    in_turn(tasks + blockIdx.y, shape);
    const TransposeTask task = tasks[blockIdx.y];
    __shared__ float tile[64][65];
    int rows = task.rows, cols = task.cols, across = (cols + 63) / 64, tiles = (rows + 63) / 64 * across;
    bool vec = rows % 4 == 0 && cols % 4 == 0 && ((size_t)task.from | (size_t)task.to) % 16 == 0;
    for (int at = blockIdx.x; at < tiles; at += gridDim.x) {
        int r0 = at / across * 64, c0 = at % across * 64;
        if (vec) {
            int x = threadIdx.x % 16 * 4, y = threadIdx.x / 16;
            float4 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                bool there = r0 + y + 16 * i < rows && c0 + x < cols;
                v[i] = there ? *(const float4*)(task.from + (size_t)(r0 + y + 16 * i) * cols + c0 + x) : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float* to = &tile[y + 16 * i][x];
                to[0] = v[i].x; to[1] = v[i].y; to[2] = v[i].z; to[3] = v[i].w;
            }
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int c = y + 16 * i;
                if (c0 + c < cols && r0 + x < rows)
                    *(float4*)(task.to + (size_t)(c0 + c) * rows + r0 + x) = make_float4(tile[x][c], tile[x + 1][c], tile[x + 2][c], tile[x + 3][c]);
            }
        } else {
            int x = threadIdx.x % 64, y = threadIdx.x / 64;
            for (int i = y; i < 64; i += 4)
                if (r0 + i < rows && c0 + x < cols) tile[i][x] = task.from[(size_t)(r0 + i) * cols + c0 + x];
            __syncthreads();
            for (int i = y; i < 64; i += 4)
                if (c0 + i < cols && r0 + x < rows) task.to[(size_t)(c0 + i) * rows + r0 + x] = tile[x][i];
        }
        __syncthreads();
    }
}

// acc += Aᵀ B for one stage; both operands lie as [BK][columns].
template <int WM, int WN, int SA, int SB>
__device__ __forceinline__ void multiply_columns(float (*acc)[WN / 8][4], const float* a, const float* b, int wm, int wn) {
    int g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
    FragA fa[2][WM / 16];
    FragB fb[2][WN / 8];
    auto fetch = [&](int k) {
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
    fetch(0);
#pragma unroll
    for (int k = 0; k < BK; k += 8) {
        if (k + 8 < BK) fetch(k + 8);
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < WN / 8; j++) mma(acc[i][j], fa[k / 8 % 2][i], fb[k / 8 % 2][j]);
    }
}

template <int BM, int BN, int WM, int WN, int STAGES>
__device__ __forceinline__ void linear_weights(const WeightTask* tasks, const int* shape) {
    constexpr int THREADS = (BM / WM) * (BN / WN) * 32, SA = BM + 8, SB = BN + 8, STAGE = BK * (SA + SB);
    const WeightTask task = tasks[blockIdx.z];
    int tiles_k = (task.k + BN - 1) / BN, tiles = ((task.n + BM - 1) / BM) * tiles_k;
    int split = blockIdx.y;
    if ((int)blockIdx.x >= tiles || split >= task.splits) return;
    int n0 = blockIdx.x / tiles_k * BM, k0 = blockIdx.x % tiles_k * BN;
    int rows = rows_of(task.space, shape);
    int each = ((rows + task.splits - 1) / task.splits + BK - 1) / BK * BK;
    int first = split * each, last = min(rows, first + each);
    extern __shared__ __align__(16) float shared[];
    float acc[WM / 16][WN / 8][4] = {};
    float sum = 0.0f;
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
        copies_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) load();
    for (int step = 0; step < steps; step++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        load();
        const float* stage = shared + step % STAGES * STAGE;
        multiply_columns<WM, WN, SA, SB>(acc, stage, stage + BK * SA, wm, wn);
        if (k0 == 0 && threadIdx.x < BM)
            for (int r = 0; r < BK; r++) sum += stage[r * SA + threadIdx.x];
    }
    size_t part = (size_t)split * ((size_t)task.n * task.k + task.n);
    float* out = task.parts + part;
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
    if (k0 == 0 && threadIdx.x < BM && n0 + threadIdx.x < task.n) task.bias[part + n0 + threadIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(64) linear_weights_small(const WeightTask* t, const int* s) { in_turn(); linear_weights<32, 32, 16, 32, 3>(t, s); }
extern "C" __global__ void __launch_bounds__(128) linear_weights_medium(const WeightTask* t, const int* s) { in_turn(); linear_weights<64, 64, 32, 32, 3>(t, s); }
extern "C" __global__ void __launch_bounds__(128, 2) linear_weights_large(const WeightTask* t, const int* s) { in_turn(); linear_weights<128, 128, 64, 64, 3>(t, s); }

// Adds parts to a gradient in an order that sizes alone decide, or to nothing if it is `fresh`; a block to each task. Where `rows_per_part` is not zero only the parts of rows that exist count.
struct SumTask {
    const float* parts;
    float* out;
    size_t stride;
    // `vec` where four numbers can be read at once.
    int count, len, rows_per_part, vec;
    Space space;
    int fresh;
};

extern "C" __global__ void __launch_bounds__(256) sum_parts(const SumTask* tasks, const int* shape) {
    in_turn(tasks + blockIdx.x, shape);
    const SumTask task = tasks[blockIdx.x];
    int count = task.count;
    if (task.rows_per_part) count = min(count, (rows_of(task.space, shape) + task.rows_per_part - 1) / task.rows_per_part);
    // Four sums at a time keep more reads on their way: every STEPth part from the first on.
    auto of_parts = [&](int i, int first, int step) {
        float4 sums[4] = {};
        const float* part = task.parts + i;
        int p = first;
        for (; p + 3 * step < count; p += 4 * step)
#pragma unroll
            for (int k = 0; k < 4; k++) sums[k] = sums[k] + *(const float4*)(part + (p + k * step) * task.stride);
#pragma unroll
        for (int k = 0; k < 3; k++)
            if (p + k * step < count) sums[k] = sums[k] + *(const float4*)(part + (p + k * step) * task.stride);
        return (sums[0] + sums[1]) + (sums[2] + sums[3]);
    };
    auto write = [&](int i, float4 sum) {
        float4* out = (float4*)(task.out + i);
        *out = task.fresh ? sum : *out + sum;
    };
    int chunks = task.len / 4;
    if (task.vec && chunks <= 128 && count > 4) {
        // Few numbers of many parts: several threads share the parts of a chunk.
        __shared__ float4 shares[256];
        int sharing = 256 / chunks, share = threadIdx.x / chunks, i = threadIdx.x % chunks;
        if (share < sharing) shares[threadIdx.x] = of_parts(i * 4, share, sharing);
        __syncthreads();
        if (share) return;
        float4 sum = shares[i];
        for (int s = 1; s < sharing; s++) sum = sum + shares[s * chunks + i];
        write(i * 4, sum);
        return;
    }
    for (int i = threadIdx.x * 4; i < task.len; i += 1024) {
        if (task.vec) write(i, of_parts(i, 0, 1));
        else {
            for (int e = i; e < min(i + 4, task.len); e++) {
                float sum = 0.0f;
                for (int p = 0; p < count; p++) sum += task.parts[p * task.stride + e];
                task.out[e] = task.fresh ? sum : task.out[e] + sum;
            }
        }
    }
}

// In place: the gradient before an activation whose result is y.
struct ActivationTask {
    const float* y;
    float* dy;
    int ld, cols, activation, pad;
    Space space;
};

extern "C" __global__ void activation_backward(const ActivationTask* tasks, const int* shape) {
    in_turn();
    const ActivationTask task = tasks[blockIdx.y];
    u32 total = (u32)rows_of(task.space, shape) * task.cols;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        u32 row = i / task.cols;
        size_t at = (size_t)row * task.ld + (i - row * task.cols);
        float y = task.y[at];
        task.dy[at] *= task.activation == 1 ? (y > 0.0f ? 1.0f : 0.0f) : y * (1.0f - y);
    }
}
