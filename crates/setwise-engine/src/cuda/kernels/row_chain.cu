// What chains of row-wise operations are written with (`lower/chain_source.rs`). A warp takes 16 rows through all operations of a chain: rows stay in its registers, weights are in shared memory,
// and warps never meet once those are there.
//
// Rows are held as sums of matrix products lie, in eights, of which lane 4g + t has four numbers: two of row g and two of row g + 8. Columns are dealt so that two eights in a row give a lane four neighbours:
// of sixteen columns it has 4t and 4t + 1 in the first eight, 4t + 2 and 4t + 3 in the second, and reads and writes them at once. The same numbers are the left operand of the next product; rows and columns of
// weights are read in the order that follows from it, sixteen bytes at a time.

#define CHAIN_WARPS 8

struct ChainTask {
    // Addresses, in the order in which the chain's source numbers them.
    const u64* places;
    // All that lies in shared memory, as `chain_weights.cu` leaves it.
    u64 weights;
    Space space;
    int pad;
};

// Of a lane: its two rows, the last row instead of those that are not there, and which of them are.
struct ChainRows {
    int row[2], tile;
    bool there[2];
    __device__ __forceinline__ ChainRows(int tile, int count) : tile(tile) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int at = tile * 16 + h * 8 + threadIdx.x % 32 / 4;
            there[h] = at < count;
            row[h] = min(at, count - 1);
        }
    }
};

__device__ __forceinline__ float* chain_memory() {
    extern __shared__ __align__(16) float weights[];
    return weights;
}

// Has the copy engine fetch `bytes` that follow each other; they count for the barrier.
__device__ __forceinline__ void fetch_weights(float* to, u64 from, int bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_at(to)), "l"(from), "r"(bytes), "r"(shared_at(barrier)) : "memory");
}

// A lane's first number of one of its two rows, of LD numbers each.
template <int LD> __device__ __forceinline__ float* lane_row(u64 base, const ChainRows& rows, int h) {
    float* row = (float*)base + ((u32)rows.row[h] * LD + threadIdx.x % 4 * 4);
    __builtin_assume(__isGlobal(row));
    return row;
}

// x = N columns of rows of LD numbers, from column `col` on.
template <int N, int LD> __device__ __forceinline__ void load_rows(float (*x)[4], u64 from, int col, const ChainRows& rows) {
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

// The same with zeros for rows that are not there.
template <int N, int LD> __device__ __forceinline__ void load_gradients(float (*x)[4], u64 from, int col, const ChainRows& rows) {
    load_rows<N, LD>(x, from, col, rows);
    each_number<N>([&](int j, int e) { x[j][e] = rows.there[e / 2] ? x[j][e] : 0.0f; });
}

template <int N, int LD> __device__ __forceinline__ void store_rows(u64 to, int col, const float (*x)[4], const ChainRows& rows) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float* row = lane_row<LD>(to, rows, h);
        if (rows.there[h])
#pragma unroll
            for (int j = 0; j < N / 8; j += 2) *(float4*)(row + col + j * 8) = make_float4(x[j][2 * h], x[j][2 * h + 1], x[j + 1][2 * h], x[j + 1][2 * h + 1]);
    }
}

// For all of a lane's columns of N: a vector's number there, which eight columns, and which of the two there.
template <int N, class F> __device__ __forceinline__ void each_column(const float* vector, F apply) {
#pragma unroll
    for (int j = 0; j < N / 8; j += 2) {
        float4 four = *(const float4*)(vector + j * 8 + threadIdx.x % 4 * 4);
        apply(four.x, j, 0), apply(four.y, j, 1), apply(four.z, j + 1, 0), apply(four.w, j + 1, 1);
    }
}

// x = a vector in every row.
template <int N> __device__ __forceinline__ void spread(float (*x)[4], const float* vector) {
    each_column<N>(vector, [&](float v, int j, int e) { x[j][e] = x[j][e + 2] = v; });
}

template <int N> __device__ __forceinline__ void add_to(float (*x)[4], const float (*y)[4]) {
    each_number<N>([&](int j, int e) { x[j][e] += y[j][e]; });
}

template <int N> __device__ __forceinline__ void keep_positive(float (*x)[4]) {
    each_number<N>([&](int j, int e) { x[j][e] = x[j][e] > 0.0f || x[j][e] != x[j][e] ? x[j][e] : 0.0f; });
}

// Gradients of a ReLU's results are those of its sums where the results are positive.
template <int N> __device__ __forceinline__ void gate(float (*d)[4], const float (*y)[4]) {
    each_number<N>([&](int j, int e) { d[j][e] = y[j][e] > 0.0f ? d[j][e] : 0.0f; });
}

// Eight columns as a left operand. Matrix units cut the last 13 bits off; what is added before is between 0.35 and 0.7 of the unit that is left, half of it in the middle. That takes one
// instruction where exact rounding takes three, and what is no number stays none.
__device__ __forceinline__ void as_left(u32* a, const float* x) {
    constexpr float UP = 1.0f + 0.7f / 2048;
    a[0] = __float_as_uint(x[0] * UP), a[1] = __float_as_uint(x[2] * UP), a[2] = __float_as_uint(x[1] * UP), a[3] = __float_as_uint(x[3] * UP);
}

// Sixteen columns as two left operands.
__device__ __forceinline__ void as_left(u32 (*a)[4], const float (*x)[4]) {
    as_left(a[0], x[0]);
    as_left(a[1], x[1]);
}

// y += both times four numbers of weights, two for each.
__device__ __forceinline__ void multiply_four(float* y, const u32 (*a)[4], const float* w) {
    uint4 four = *(const uint4*)w;
    u32 b[2][2] = {{four.x, four.y}, {four.z, four.w}};
    mma_tf32(y, a[0], b[0]);
    mma_tf32(y, a[1], b[1]);
}

// The column, or row of weights, that eight lanes with the same t deal with, of those that eight sums have; the next eight have those two further on, and sixteen the next sixteen.
__device__ __forceinline__ int dealt() { return threadIdx.x % 32 / 8 * 4 + threadIdx.x % 8 / 4; }
constexpr __device__ int dealt_from(int eight) { return eight / 2 * 16 + eight % 2 * 2; }

// y += x Wᵀ, W of N rows of K numbers. Where rows begin at the same bank, every second one has each sixteen numbers exchanged with the next sixteen.
template <int N, int K> __device__ __forceinline__ void multiply(float (*y)[4], const float (*x)[4], const float* w) {
    w += dealt() * K + threadIdx.x % 4 * 4;
    int further = K % 32 == 0 && threadIdx.x % 8 / 4 ? 16 : 0;
    const float* from[2] = {w + further, w - further};
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        u32 a[2][4];
        as_left(a, x + 2 * k);
#pragma unroll
        for (int n = 0; n < N / 8; n++) multiply_four(y[n], a, from[k % 2] + dealt_from(n) * K + k * 16);
    }
}

// dx += dy W, W of N rows of K numbers, four rows of which lie together, number by number, STRIDE from one four to the next.
template <int N, int K, int STRIDE> __device__ __forceinline__ void multiply_back(float (*dx)[4], const float (*dy)[4], const float* w) {
    w += threadIdx.x % 4 * STRIDE + dealt() * 4;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        u32 a[2][4];
        as_left(a, dy + 2 * n);
#pragma unroll
        for (int k = 0; k < K / 8; k++) multiply_four(dx[k], a, w + n * 4 * STRIDE + dealt_from(k) * 4);
    }
}

// y = x Wᵀ + b, or max(0, that), written and not held, C columns at a time.
template <int N, int K, int LD, int C, bool BIAS, bool RELU>
__device__ __forceinline__ void stream_product(u64 to, int col, const float (*x)[4], const float* w, const float* bias, const ChainRows& rows) {
#pragma unroll 1
    for (int n = 0; n < N; n += C) {
        float y[C / 8][4] = {};
        if (BIAS) spread<C>(y, bias + n);
        multiply<C, K>(y, x, w + n * K);
        if (RELU) keep_positive<C>(y);
        store_rows<C, LD>(to, col + n, y, rows);
    }
}

// dx += dy W, with dy from memory, C columns at a time.
template <int N, int K, int STRIDE, int LD, int C>
__device__ __forceinline__ void stream_back(float (*dx)[4], u64 from, int col, const float* w, const ChainRows& rows) {
    float dy[C / 8][4], next[C / 8][4];
    load_gradients<C, LD>(next, from, col, rows);
#pragma unroll 1
    for (int n = 0; n < N; n += C) {
        each_number<C>([&](int j, int e) { dy[j][e] = next[j][e]; });
        if (n + C < N) load_gradients<C, LD>(next, from, col + n + C, rows);
        multiply_back<C, K, STRIDE>(dx, dy, w + n / 4 * STRIDE);
    }
}

// Over the four lanes that have a row.
__device__ __forceinline__ float row_sum(float x) { return lanes_sum<4>(x); }

// x = LayerNorm(x); with KEEP what the way back needs is written.
template <int N, bool KEEP>
__device__ __forceinline__ void normalise(float (*x)[4], const float* gain, const float* shift, u64 normalised, u64 inv_std, const ChainRows& rows) {
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
        float inverse = rsqrtf(row_sum(square) / N + 1e-5f);
#pragma unroll
        for (int j = 0; j < N / 8; j++) x[j][2 * h] *= inverse, x[j][2 * h + 1] *= inverse;
        if (KEEP && rows.there[h] && threadIdx.x % 4 == 0) ((float*)inv_std)[(u32)rows.row[h]] = inverse;
    }
    if (KEEP) store_rows<N, N>(normalised, 0, x, rows);
    each_column<N>(gain, [&](float g, int j, int e) { x[j][e] *= g, x[j][e + 2] *= g; });
    each_column<N>(shift, [&](float s, int j, int e) { x[j][e] += s, x[j][e + 2] += s; });
}

__device__ __forceinline__ void load_inverses(float* x, u64 from, const ChainRows& rows) {
#pragma unroll
    for (int h = 0; h < 2; h++) x[h] = ((const float*)from)[(u32)rows.row[h]];
}

// Half of some numbers, or all of them where they cannot be halved.
constexpr __device__ int halved(int count) { return count % 2 ? count : count / 2; }

// Sums over the eight lanes that have the same columns. Lanes hand each other half of what they have left, three times, and so have sums of their own, x[0] and on, from `first` on of those there were.
template <int COUNT, int STEP> __device__ __forceinline__ void sum_columns(float* x, int& first) {
    if constexpr (STEP < 32) {
        constexpr int LEFT = halved(COUNT);
        bool upper = LEFT < COUNT && threadIdx.x & STEP, lower = LEFT < COUNT && !upper;
#pragma unroll
        for (int i = 0; i < LEFT; i++) {
            int other = LEFT < COUNT ? i + LEFT : i;
            float kept = upper ? x[other] : x[i], sent = lower ? x[other] : x[i];
            x[i] = kept + __shfl_xor_sync(~0u, sent, STEP);
        }
        if (upper) first += LEFT;
        sum_columns<LEFT, STEP * 2>(x, first);
    }
}

// d = the gradient before a LayerNorm, from that behind it; what gain and shift get from the warp's rows is a part of its own, [tile][2 · N].
template <int N>
__device__ __forceinline__ void normalise_back(float (*d)[4], const float (*hat)[4], const float* inverse, const float* gain, u64 parts, const ChainRows& rows) {
    // Of gain and of shift, a lane's columns after each other.
    float sums[N / 2], a[2] = {0.0f, 0.0f}, b[2] = {0.0f, 0.0f};
    each_column<N>(gain, [&](float g, int j, int e) {
        sums[2 * j + e] = d[j][e] * hat[j][e] + d[j][e + 2] * hat[j][e + 2];
        sums[N / 4 + 2 * j + e] = d[j][e] + d[j][e + 2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float& x = d[j][e + 2 * h];
            x *= g;
            a[h] += x;
            b[h] += x * hat[j][e + 2 * h];
        }
    });
#pragma unroll
    for (int h = 0; h < 2; h++) {
        a[h] = row_sum(a[h]) / N;
        b[h] = row_sum(b[h]) / N;
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++) d[j][e] = (d[j][e] - a[h] - hat[j][e] * b[h]) * inverse[h];
    }
    int first = 0;
    sum_columns<N / 2, 4>(sums, first);
    float* to = (float*)parts + (u32)rows.tile * (2 * N);
#pragma unroll
    for (int i = 0; i < halved(halved(halved(N / 2))); i++) {
        int at = first + i, column = at % (N / 4);
        to[at / (N / 4) * N + column / 4 * 16 + threadIdx.x % 4 * 4 + column % 4] = sums[i];
    }
}
