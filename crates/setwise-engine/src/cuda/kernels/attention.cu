// Flash attention over ragged sets, O = softmax(scale · Q Kᵀ) V, without the matrix of scores. Grid: (tiles of
// ATTENTION_ROWS queries or keys, examples · heads, relations). A block has four warps; a warp owns 16 rows.
//
// Q, K, V and O of a head are [elements, dims · width] with dims · width ≤ DEPTH; the remaining columns are zero. Tiles
// in shared memory have rows of DEPTH + 4 numbers.
//
// A tile of probabilities leaves the first product as accumulators and enters the second as A fragment. Its columns 2t
// and 2t + 1 take the positions t and t + 4. The B operand is read from rows 2t and 2t + 1, so no lane exchanges data.
// Rows in shared memory are DEPTH + 4 long against bank conflicts.

// Heads of a value, or of its gradient. Element i has rows i · dims.. with row stride `ld`, one for each input
// dimension; head h owns columns h · width.. of each.
struct HeadSlice {
    float* data;
    int ld, pad;
    Space space;
    int pad2;
};

// One relation. Queries and `out` have the same rows, as have keys and values.
struct AttentionTask {
    HeadSlice query, key, value, out;
    HeadSlice d_query, d_key, d_value, d_out;
    // [queries][heads][2]: log2-sum-exp of the scores, and Δ = Σ dO · O. (`attention_single_block.cu` stores scales in
    // the second.)
    float* stats;
    float scale;
    int heads, width, pad;
};

#define LOG2E 1.4426950408889634f
// Queries or keys of a block.
#define ATTENTION_ROWS 64
// Score of a missing key, and log2-sum-exp of a missing query: the powers of two of both are zero.
#define MASKED_SCORE -1e30f
#define MASKED_LSE 1e30f

// Loads elements start..start + R of a head as R rows of DEPTH numbers, `width` numbers for each input dimension. Rows
// from `count` on and columns from dims · width on are zero. Precondition: if `width` is a
// multiple of 4, so are `ld` and the first column of the slice.
template <int R, int DEPTH>
__device__ __forceinline__ void load_head(float* tile, const HeadSlice& slice, const int* shape, int start, int count, int head, int width) {
    int dims = dim_count(slice.space, shape), depth = dims * width;
    if (width % 4 == 0) {
        for (int i = threadIdx.x; i < R * (DEPTH / 4); i += blockDim.x) {
            int r = i / (DEPTH / 4), column = i % (DEPTH / 4) * 4;
            float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (r < count && column < depth)
                x = *(const float4*)(slice.data + ((size_t)(start + r) * dims + column / width) * slice.ld + head * width + column % width);
            *(float4*)(tile + r * (DEPTH + 4) + column) = x;
        }
    } else {
        for (int i = threadIdx.x; i < R * DEPTH; i += blockDim.x) {
            int r = i / DEPTH, column = i % DEPTH;
            float x = 0.0f;
            if (r < count && column < depth) x = slice.data[((size_t)(start + r) * dims + column / width) * slice.ld + head * width + column % width];
            tile[r * (DEPTH + 4) + column] = x;
        }
    }
}

// Writes a warp's 16 rows from row0 on of a tile at element `start`, DEPTH accumulators each. Rows g and g + 8 of a
// lane are multiplied by factor[0] and factor[1]. Rows from `count` on are not written.
template <int DEPTH>
__device__ __forceinline__ void store_head(const float (*acc)[4], const HeadSlice& slice, const int* shape, int start, int count, int head,
                                           int width, int row0, const float* factor) {
    int dims = dim_count(slice.space, shape), depth = dims * width, g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < DEPTH / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int r = row0 + g + (e / 2) * 8, d = j * 8 + 2 * t + e % 2;
            if (r < count && d < depth)
                slice.data[((size_t)(start + r) * dims + d / width) * slice.ld + head * width + d % width] = acc[j][e] * factor[e / 2];
        }
}

// c[16, N] = a[row0.., :] b[0..N, :]ᵀ over DEPTH, such as S = Q Kᵀ. Both are tiles in shared memory, read by ldmatrix
// as in `mma_nt`.
template <int DEPTH, int N>
__device__ __forceinline__ void mma_qk(float (*c)[4], const float* a, const float* b, int row0) {
    constexpr int S = DEPTH + 4;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) c[j][e] = 0.0f;
    int lane = threadIdx.x % 32;
    const float* pa = a + (row0 + lane % 16) * S + lane / 16 * 4;
    const float* pb = b + (lane / 16 * 8 + lane % 8) * S + lane / 8 % 2 * 4;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 8) {
        FragA fa;
        float v[4];
        ldmatrix_x4_f32(v, pa + k);
        fa.set(v[0], v[1], v[2], v[3]);
#pragma unroll
        for (int j = 0; j < N / 8; j += 2) {
            FragB fb, fc;
            ldmatrix_x4_f32(v, pb + j * 8 * S + k);
            fb.set(v[0], v[1]);
            fc.set(v[2], v[3]);
            mma(c[j], fa, fb);
            mma(c[j + 1], fa, fc);
        }
    }
}

// acc[16, DEPTH] += p[16, N] b[N, DEPTH], such as O += P V. p are accumulators, b is a tile in shared memory.
template <int DEPTH, int N>
__device__ __forceinline__ void mma_pv(float (*acc)[4], const float (*p)[4], const float* b) {
    constexpr int S = DEPTH + 4;
    int g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < N / 8; k++) {
        FragA fa;
        fa.set(p[k][0], p[k][2], p[k][1], p[k][3]);
#pragma unroll
        for (int j = 0; j < DEPTH / 8; j++) {
            FragB fb;
            const float* q = b + (k * 8 + 2 * t) * S + j * 8 + g;
            fb.set(q[0], q[S]);
            mma(acc[j], fa, fb);
        }
    }
}

// One step of online softmax for 16 queries a warp and N keys from `base` on. Scores s become 2^(s · scale − max);
// earlier sums and `out` are rescaled to the new maximum. A lane adds its own columns to `sum`; the caller reduces it.
// Keys from `keys` on are masked.
template <int N, int DEPTH>
__device__ __forceinline__ void online_softmax_update(float (*s)[4], float (*out)[4], float* row_max, float* sum, int base, int keys, float scale) {
    int t = threadIdx.x % 4;
    float new_max[2] = {row_max[0], row_max[1]};
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[j][e] = base + j * 8 + 2 * t + e % 2 < keys ? s[j][e] * scale : MASKED_SCORE;
            new_max[e / 2] = fmaxf(new_max[e / 2], s[j][e]);
        }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        new_max[h] = fmaxf(new_max[h], __shfl_xor_sync(~0u, new_max[h], 1));
        new_max[h] = fmaxf(new_max[h], __shfl_xor_sync(~0u, new_max[h], 2));
        float rescale = exp2f(row_max[h] - new_max[h]);
        sum[h] *= rescale;
        row_max[h] = new_max[h];
#pragma unroll
        for (int j = 0; j < DEPTH / 8; j++) { out[j][2 * h] *= rescale; out[j][2 * h + 1] *= rescale; }
    }
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) { s[j][e] = exp2f(s[j][e] - row_max[e / 2]); sum[e / 2] += s[j][e]; }
}

// O = softmax(scale · Q Kᵀ) V and the log2-sum-exp. A block owns ATTENTION_ROWS queries of one head of an example and
// loops over tiles of N keys. `out` and stats[0] are written.
template <int DEPTH, int N>
__device__ __forceinline__ void attention_forward(const AttentionTask* tasks, const int* shape) {
    const AttentionTask& task = tasks[blockIdx.z];
    int example = blockIdx.y / task.heads, head = blockIdx.y % task.heads;
    if (example >= example_count(shape)) return;
    int q0 = element_offset(task.query.space, shape, example), queries = element_offset(task.query.space, shape, example + 1) - q0;
    int k0 = element_offset(task.key.space, shape, example), keys = element_offset(task.key.space, shape, example + 1) - k0;
    int first = blockIdx.x * ATTENTION_ROWS;
    if (first >= queries) return;
    extern __shared__ __align__(16) float shared[];
    constexpr int S = DEPTH + 4;
    float *qs = shared, *ks = qs + ATTENTION_ROWS * S, *vs = ks + N * S;
    load_head<ATTENTION_ROWS, DEPTH>(qs, task.query, shape, q0 + first, queries - first, head, task.width);
    int row0 = threadIdx.x / 32 * 16, t = threadIdx.x % 4, g = (threadIdx.x % 32) / 4;
    float out[DEPTH / 8][4] = {}, row_max[2] = {MASKED_SCORE, MASKED_SCORE}, sum[2] = {0.0f, 0.0f};
    float scale = task.scale * LOG2E;
    for (int base = 0; base < keys; base += N) {
        __syncthreads();
        load_head<N, DEPTH>(ks, task.key, shape, k0 + base, keys - base, head, task.width);
        load_head<N, DEPTH>(vs, task.value, shape, k0 + base, keys - base, head, task.width);
        __syncthreads();
        float s[N / 8][4];
        mma_qk<DEPTH, N>(s, qs, ks, row0);
        online_softmax_update<N, DEPTH>(s, out, row_max, sum, base, keys, scale);
        mma_pv<DEPTH, N>(out, s, vs);
    }
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
        sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
        factor[h] = 1.0f / sum[h];
        int r = first + row0 + g + h * 8;
        if (t == 0 && r < queries) task.stats[((size_t)(q0 + r) * task.heads + head) * 2] = row_max[h] + log2f(sum[h]);
    }
    store_head<DEPTH>(out, task.out, shape, q0 + first, queries - first, head, task.width, row0, factor);
}

// dQ = dS K with dS = P ∘ (dO Vᵀ − Δ) · scale and Δ = Σ dO · O. A block owns ATTENTION_ROWS queries of one head of an
// example and loops over tiles of N keys. P comes from the scores and stats[0]. d_query and stats[1] = Δ are written.
template <int DEPTH, int N>
__device__ __forceinline__ void attention_backward_queries(const AttentionTask* tasks, const int* shape) {
    const AttentionTask& task = tasks[blockIdx.z];
    int example = blockIdx.y / task.heads, head = blockIdx.y % task.heads;
    if (example >= example_count(shape)) return;
    int q0 = element_offset(task.query.space, shape, example), queries = element_offset(task.query.space, shape, example + 1) - q0;
    int k0 = element_offset(task.key.space, shape, example), keys = element_offset(task.key.space, shape, example + 1) - k0;
    int first = blockIdx.x * ATTENTION_ROWS;
    if (first >= queries) return;
    extern __shared__ __align__(16) float shared[];
    constexpr int S = DEPTH + 4;
    float *qs = shared, *ds = qs + ATTENTION_ROWS * S, *ks = ds + ATTENTION_ROWS * S, *vs = ks + N * S;
    __shared__ float deltas[ATTENTION_ROWS], lses[ATTENTION_ROWS];
    load_head<ATTENTION_ROWS, DEPTH>(qs, task.out, shape, q0 + first, queries - first, head, task.width);
    load_head<ATTENTION_ROWS, DEPTH>(ds, task.d_out, shape, q0 + first, queries - first, head, task.width);
    __syncthreads();
    if (threadIdx.x < ATTENTION_ROWS) {
        int r = threadIdx.x;
        float sum = 0.0f;
        for (int e = 0; e < DEPTH; e++) sum += qs[r * S + e] * ds[r * S + e];
        deltas[r] = sum;
        if (first + r < queries) {
            float* stats = task.stats + ((size_t)(q0 + first + r) * task.heads + head) * 2;
            lses[r] = stats[0];
            stats[1] = sum;
        } else lses[r] = 0.0f;
    }
    __syncthreads();
    load_head<ATTENTION_ROWS, DEPTH>(qs, task.query, shape, q0 + first, queries - first, head, task.width);
    int row0 = threadIdx.x / 32 * 16, t = threadIdx.x % 4, g = (threadIdx.x % 32) / 4;
    float acc[DEPTH / 8][4] = {};
    float scale = task.scale * LOG2E, lse[2] = {lses[row0 + g], lses[row0 + g + 8]}, delta[2] = {deltas[row0 + g], deltas[row0 + g + 8]};
    for (int base = 0; base < keys; base += N) {
        __syncthreads();
        load_head<N, DEPTH>(ks, task.key, shape, k0 + base, keys - base, head, task.width);
        load_head<N, DEPTH>(vs, task.value, shape, k0 + base, keys - base, head, task.width);
        __syncthreads();
        float s[N / 8][4], d[N / 8][4];
        mma_qk<DEPTH, N>(s, qs, ks, row0);
        mma_qk<DEPTH, N>(d, ds, vs, row0);
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float p = base + j * 8 + 2 * t + e % 2 < keys ? exp2f(s[j][e] * scale - lse[e / 2]) : 0.0f;
                s[j][e] = p * (d[j][e] - delta[e / 2]) * task.scale;
            }
        mma_pv<DEPTH, N>(acc, s, ks);
    }
    float factor[2] = {1.0f, 1.0f};
    store_head<DEPTH>(acc, task.d_query, shape, q0 + first, queries - first, head, task.width, row0, factor);
}

// dV = Pᵀ dO and dK = dSᵀ Q. A block owns ATTENTION_ROWS keys of one head of an example and loops over tiles of
// N queries. d_key and d_value are written. Δ comes from `attention_backward_queries`, which runs first.
template <int DEPTH, int N>
__device__ __forceinline__ void attention_backward_keys(const AttentionTask* tasks, const int* shape) {
    const AttentionTask& task = tasks[blockIdx.z];
    int example = blockIdx.y / task.heads, head = blockIdx.y % task.heads;
    if (example >= example_count(shape)) return;
    int q0 = element_offset(task.query.space, shape, example), queries = element_offset(task.query.space, shape, example + 1) - q0;
    int k0 = element_offset(task.key.space, shape, example), keys = element_offset(task.key.space, shape, example + 1) - k0;
    int first = blockIdx.x * ATTENTION_ROWS;
    if (first >= keys) return;
    extern __shared__ __align__(16) float shared[];
    constexpr int S = DEPTH + 4;
    float *ks = shared, *vs = ks + ATTENTION_ROWS * S, *qs = vs + ATTENTION_ROWS * S, *ds = qs + N * S;
    __shared__ float deltas[N], lses[N];
    load_head<ATTENTION_ROWS, DEPTH>(ks, task.key, shape, k0 + first, keys - first, head, task.width);
    load_head<ATTENTION_ROWS, DEPTH>(vs, task.value, shape, k0 + first, keys - first, head, task.width);
    int row0 = threadIdx.x / 32 * 16, t = threadIdx.x % 4;
    float dk[DEPTH / 8][4] = {}, dv[DEPTH / 8][4] = {};
    float scale = task.scale * LOG2E;
    for (int base = 0; base < queries; base += N) {
        __syncthreads();
        load_head<N, DEPTH>(qs, task.query, shape, q0 + base, queries - base, head, task.width);
        load_head<N, DEPTH>(ds, task.d_out, shape, q0 + base, queries - base, head, task.width);
        for (int r = threadIdx.x; r < N; r += blockDim.x) {
            bool exists = base + r < queries;
            const float* stats = task.stats + ((size_t)(q0 + base + (exists ? r : 0)) * task.heads + head) * 2;
            lses[r] = exists ? stats[0] : MASKED_LSE;
            deltas[r] = exists ? stats[1] : 0.0f;
        }
        __syncthreads();
        float s[N / 8][4], d[N / 8][4];
        mma_qk<DEPTH, N>(s, ks, qs, row0);
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[j][e] = exp2f(s[j][e] * scale - lses[j * 8 + 2 * t + e % 2]);
        mma_pv<DEPTH, N>(dv, s, ds);
        mma_qk<DEPTH, N>(d, vs, ds, row0);
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[j][e] *= (d[j][e] - deltas[j * 8 + 2 * t + e % 2]) * task.scale;
        mma_pv<DEPTH, N>(dk, s, qs);
    }
    float factor[2] = {1.0f, 1.0f};
    store_head<DEPTH>(dk, task.d_key, shape, k0 + first, keys - first, head, task.width, row0, factor);
    store_head<DEPTH>(dv, task.d_value, shape, k0 + first, keys - first, head, task.width, row0, factor);
}

// Kernels for heads of up to DEPTH numbers and tiles of N keys or queries.
#define ATTENTION(DEPTH, N)                                                                \
    extern "C" __global__ void __launch_bounds__(128) attention_forward_##DEPTH(           \
        const AttentionTask* tasks, const int* shape) {                                    \
        grid_dependency_sync();                                                            \
        attention_forward<DEPTH, N>(tasks, shape);                                         \
    }                                                                                      \
    extern "C" __global__ void __launch_bounds__(128) attention_backward_queries_##DEPTH(  \
        const AttentionTask* tasks, const int* shape) {                                    \
        grid_dependency_sync();                                                            \
        attention_backward_queries<DEPTH, N>(tasks, shape);                                \
    }                                                                                      \
    extern "C" __global__ void __launch_bounds__(128) attention_backward_keys_##DEPTH(     \
        const AttentionTask* tasks, const int* shape) {                                    \
        grid_dependency_sync();                                                            \
        attention_backward_keys<DEPTH, N>(tasks, shape);                                   \
    }
