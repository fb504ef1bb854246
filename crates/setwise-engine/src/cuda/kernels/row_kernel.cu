// Device functions of generated row kernels (`lower/row_kernel_source.rs`). A warp takes 16 rows through all
// operations: rows stay in registers, weights in shared memory. Warps never synchronise after the weights have arrived.
//
// Rows are held in accumulator layout: tiles of eight columns, of which lane 4g + t holds two numbers of row g and two
// of row g + 8. Columns are permuted so that two tiles give a lane four neighbours. Of sixteen columns it holds 4t and
// 4t + 1 in the first tile, 4t + 2 and 4t + 3 in the second. One sixteen-byte access reads or writes them. The same
// registers are the A fragment of the next product; weights are read in the matching order.

// Warps of a block.
#define ROW_KERNEL_WARPS 8

struct RowKernelTask {
    // Addresses of operands, in the order in which the generated source numbers them.
    const u64* addresses;
    // Packed weights, as `pack_row_weights` writes them.
    u64 weights;
    Space space;
    int pad;
};

// A lane's two rows. Rows beyond the last are replaced by the last one and marked invalid.
struct WarpRows {
    int row[2], tile;
    bool valid[2];
    __device__ __forceinline__ WarpRows(int tile, int count) : tile(tile) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int at = tile * 16 + h * 8 + threadIdx.x % 32 / 4;
            valid[h] = at < count;
            row[h] = min(at, count - 1);
        }
    }
};

// The start of the packed weights in shared memory.
__device__ __forceinline__ float* packed_weights() {
    extern __shared__ __align__(16) float weights[];
    return weights;
}

// Issues a bulk copy of `bytes` contiguous bytes to shared memory; it completes on the mbarrier.
__device__ __forceinline__ void bulk_load(float* to, u64 from, int bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

// A lane's first number of one of its two rows; rows have LD numbers.
template <int LD> __device__ __forceinline__ float* lane_row(u64 base, const WarpRows& rows, int h) {
    float* row = (float*)base + ((u32)rows.row[h] * LD + threadIdx.x % 4 * 4);
    __builtin_assume(__isGlobal(row));
    return row;
}

// x = columns col..col + N of a lane's rows; rows have LD numbers.
template <int N, int LD> __device__ __forceinline__ void load_rows(float (*x)[4], u64 from, int col, const WarpRows& rows) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float* row = lane_row<LD>(from, rows, h);
#pragma unroll
        for (int j = 0; j < N / 8; j += 2) {
            float4 four = *(const float4*)(row + col + j * 8);
            x[j][2 * h] = four.x, x[j][2 * h + 1] = four.y, x[j + 1][2 * h] = four.z, x[j + 1][2 * h + 1] = four.w;
        }
    }
}

// The same with zeros for invalid rows.
template <int N, int LD> __device__ __forceinline__ void load_rows_or_zero(float (*x)[4], u64 from, int col, const WarpRows& rows) {
    load_rows<N, LD>(x, from, col, rows);
    for_each_element<N>([&](int j, int e) { x[j][e] = rows.valid[e / 2] ? x[j][e] : 0.0f; });
}

// Writes N columns of the valid rows.
template <int N, int LD> __device__ __forceinline__ void store_rows(u64 to, int col, const float (*x)[4], const WarpRows& rows) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float* row = lane_row<LD>(to, rows, h);
        if (rows.valid[h])
#pragma unroll
            for (int j = 0; j < N / 8; j += 2) *(float4*)(row + col + j * 8) = make_float4(x[j][2 * h], x[j][2 * h + 1], x[j + 1][2 * h], x[j + 1][2 * h + 1]);
    }
}

// Calls `apply(v, j, e)` for a lane's columns: the vector's number there, tile j, element e of two.
template <int N, class F> __device__ __forceinline__ void for_each_column(const float* vector, F apply) {
#pragma unroll
    for (int j = 0; j < N / 8; j += 2) {
        float4 four = *(const float4*)(vector + j * 8 + threadIdx.x % 4 * 4);
        apply(four.x, j, 0), apply(four.y, j, 1), apply(four.z, j + 1, 0), apply(four.w, j + 1, 1);
    }
}

// x = vector in every row.
template <int N> __device__ __forceinline__ void broadcast(float (*x)[4], const float* vector) {
    for_each_column<N>(vector, [&](float v, int j, int e) { x[j][e] = x[j][e + 2] = v; });
}

template <int N> __device__ __forceinline__ void add(float (*x)[4], const float (*y)[4]) {
    for_each_element<N>([&](int j, int e) { x[j][e] += y[j][e]; });
}

template <int N> __device__ __forceinline__ void relu(float (*x)[4]) {
    for_each_element<N>([&](int j, int e) { x[j][e] = x[j][e] > 0.0f || x[j][e] != x[j][e] ? x[j][e] : 0.0f; });
}

// d = 0 where y ≤ 0.
template <int N> __device__ __forceinline__ void relu_backward(float (*d)[4], const float (*y)[4]) {
    for_each_element<N>([&](int j, int e) { d[j][e] = y[j][e] > 0.0f ? d[j][e] : 0.0f; });
}

// Eight columns as an A fragment. Tensor cores truncate the last 13 bits; the factor adds between 0.35 and 0.7 of the
// unit that remains, half of it in the middle. That costs one instruction instead of three for exact rounding; NaN
// stays NaN.
__device__ __forceinline__ void to_a_fragment(u32* a, const float* x) {
    constexpr float ROUND_UP = 1.0f + 0.7f / 2048;
    a[0] = __float_as_uint(x[0] * ROUND_UP), a[1] = __float_as_uint(x[2] * ROUND_UP), a[2] = __float_as_uint(x[1] * ROUND_UP), a[3] = __float_as_uint(x[3] * ROUND_UP);
}

// Sixteen columns as two A fragments.
__device__ __forceinline__ void to_a_fragment(u32 (*a)[4], const float (*x)[4]) {
    to_a_fragment(a[0], x[0]);
    to_a_fragment(a[1], x[1]);
}

// y += a[0] b[0] + a[1] b[1], with two numbers of weights for each fragment.
__device__ __forceinline__ void mma_two_steps(float* y, const u32 (*a)[4], const float* w) {
    uint4 four = *(const uint4*)w;
    u32 b[2][2] = {{four.x, four.y}, {four.z, four.w}};
    mma_tf32(y, a[0], b[0]);
    mma_tf32(y, a[1], b[1]);
}

// The permuted column (or row of weights) that lanes with the same g own in a tile. The next tile is two columns
// further, the next pair of tiles sixteen.
__device__ __forceinline__ int lane_column() { return threadIdx.x % 32 / 8 * 4 + threadIdx.x % 8 / 4; }
constexpr __device__ int tile_column(int tile) { return tile / 2 * 16 + tile % 2 * 2; }

// y += x Wᵀ, W [N, K] row-major in shared memory. If K is a multiple of 32, odd rows swap neighbouring groups of
// sixteen columns against bank conflicts.
template <int N, int K> __device__ __forceinline__ void matmul(float (*y)[4], const float (*x)[4], const float* w) {
    w += lane_column() * K + threadIdx.x % 4 * 4;
    int swizzle = K % 32 == 0 && threadIdx.x % 8 / 4 ? 16 : 0;
    const float* from[2] = {w + swizzle, w - swizzle};
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        u32 a[2][4];
        to_a_fragment(a, x + 2 * k);
#pragma unroll
        for (int n = 0; n < N / 8; n++) mma_two_steps(y[n], a, from[k % 2] + tile_column(n) * K + k * 16);
    }
}

// dx += dy W, W [N, K] with four rows interleaved, STRIDE numbers between groups of four.
template <int N, int K, int STRIDE> __device__ __forceinline__ void matmul_transposed(float (*dx)[4], const float (*dy)[4], const float* w) {
    w += threadIdx.x % 4 * STRIDE + lane_column() * 4;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        u32 a[2][4];
        to_a_fragment(a, dy + 2 * n);
#pragma unroll
        for (int k = 0; k < K / 8; k++) mma_two_steps(dx[k], a, w + n * 4 * STRIDE + tile_column(k) * 4);
    }
}

// y = x Wᵀ + b, or its ReLU, written to memory C columns at a time and not held.
template <int N, int K, int LD, int C, bool BIAS, bool RELU>
__device__ __forceinline__ void stream_matmul(u64 to, int col, const float (*x)[4], const float* w, const float* bias, const WarpRows& rows) {
#pragma unroll 1
    for (int n = 0; n < N; n += C) {
        float y[C / 8][4] = {};
        if (BIAS) broadcast<C>(y, bias + n);
        matmul<C, K>(y, x, w + n * K);
        if (RELU) relu<C>(y);
        store_rows<C, LD>(to, col + n, y, rows);
    }
}

// dx += dy W with dy read from memory C columns at a time, one chunk ahead.
template <int N, int K, int STRIDE, int LD, int C>
__device__ __forceinline__ void stream_matmul_transposed(float (*dx)[4], u64 from, int col, const float* w, const WarpRows& rows) {
    float dy[C / 8][4], next[C / 8][4];
    load_rows_or_zero<C, LD>(next, from, col, rows);
#pragma unroll 1
    for (int n = 0; n < N; n += C) {
        for_each_element<C>([&](int j, int e) { dy[j][e] = next[j][e]; });
        if (n + C < N) load_rows_or_zero<C, LD>(next, from, col + n + C, rows);
        matmul_transposed<C, K, STRIDE>(dx, dy, w + n / 4 * STRIDE);
    }
}

// Sum over the four lanes that share a row.
__device__ __forceinline__ float row_sum(float x) { return lane_sum<4>(x); }

// x = LayerNorm(x). With KEEP, x̂ ([rows, N]) and 1/σ ([rows]) are written for the backward pass.
template <int N, bool KEEP>
__device__ __forceinline__ void layer_norm(float (*x)[4], const float* gain, const float* shift, u64 normalised, u64 inv_std, const WarpRows& rows) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = 0.0f, square = 0.0f;
#pragma unroll
        for (int j = 0; j < N / 8; j++) sum += x[j][2 * h] + x[j][2 * h + 1];
        float mean = row_sum(sum) / N;
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++) {
                x[j][e] -= mean;
                square += x[j][e] * x[j][e];
            }
        float row_inv_std = rsqrtf(row_sum(square) / N + LAYER_NORM_EPSILON);
#pragma unroll
        for (int j = 0; j < N / 8; j++) x[j][2 * h] *= row_inv_std, x[j][2 * h + 1] *= row_inv_std;
        if (KEEP && rows.valid[h] && threadIdx.x % 4 == 0) ((float*)inv_std)[(u32)rows.row[h]] = row_inv_std;
    }
    if (KEEP) store_rows<N, N>(normalised, 0, x, rows);
    for_each_column<N>(gain, [&](float g, int j, int e) { x[j][e] *= g, x[j][e + 2] *= g; });
    for_each_column<N>(shift, [&](float s, int j, int e) { x[j][e] += s, x[j][e + 2] += s; });
}

// 1/σ of a lane's two rows.
__device__ __forceinline__ void load_inv_std(float* x, u64 from, const WarpRows& rows) {
#pragma unroll
    for (int h = 0; h < 2; h++) x[h] = ((const float*)from)[(u32)rows.row[h]];
}

// Half of an even count; an odd count stays.
constexpr __device__ int halve_even(int count) { return count % 2 ? count : count / 2; }

// Sums over the eight lanes that share columns, by recursive halving: three times, lanes exchange half of their sums.
// Afterwards a lane owns x[0].. for the sums from `first` on.
template <int COUNT, int STEP> __device__ __forceinline__ void reduce_columns(float* x, int& first) {
    if constexpr (STEP < 32) {
        constexpr int LEFT = halve_even(COUNT);
        bool upper = LEFT < COUNT && threadIdx.x & STEP, lower = LEFT < COUNT && !upper;
#pragma unroll
        for (int i = 0; i < LEFT; i++) {
            int other = LEFT < COUNT ? i + LEFT : i;
            float kept = upper ? x[other] : x[i], sent = lower ? x[other] : x[i];
            x[i] = kept + __shfl_xor_sync(~0u, sent, STEP);
        }
        if (upper) first += LEFT;
        reduce_columns<LEFT, STEP * 2>(x, first);
    }
}

// LayerNorm backward: d = inv_std · (g − mean(g) − x̂ · mean(g · x̂)) with g = gain · d, in place. The gradients of
// gain and shift over the warp's rows are written as partial sum `tile`, [tile][2 · N].
template <int N>
__device__ __forceinline__ void layer_norm_backward(float (*d)[4], const float (*hat)[4], const float* inv_std, const float* gain, u64 partials, const WarpRows& rows) {
    // Gradients of gain, then of shift, for a lane's columns.
    float sums[N / 2], grad_mean[2] = {0.0f, 0.0f}, grad_hat_mean[2] = {0.0f, 0.0f};
    for_each_column<N>(gain, [&](float g, int j, int e) {
        sums[2 * j + e] = d[j][e] * hat[j][e] + d[j][e + 2] * hat[j][e + 2];
        sums[N / 4 + 2 * j + e] = d[j][e] + d[j][e + 2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float& x = d[j][e + 2 * h];
            x *= g;
            grad_mean[h] += x;
            grad_hat_mean[h] += x * hat[j][e + 2 * h];
        }
    });
#pragma unroll
    for (int h = 0; h < 2; h++) {
        grad_mean[h] = row_sum(grad_mean[h]) / N;
        grad_hat_mean[h] = row_sum(grad_hat_mean[h]) / N;
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++) d[j][e] = (d[j][e] - grad_mean[h] - hat[j][e] * grad_hat_mean[h]) * inv_std[h];
    }
    int first = 0;
    reduce_columns<N / 2, 4>(sums, first);
    float* to = (float*)partials + (u32)rows.tile * (2 * N);
#pragma unroll
    for (int i = 0; i < halve_even(halve_even(halve_even(N / 2))); i++) {
        int at = first + i, column = at % (N / 4);
        to[at / (N / 4) * N + column / 4 * 16 + threadIdx.x % 4 * 4 + column % 4] = sums[i];
    }
}
