// Flash attention over ragged sets, O = softmax(scale · Q Kᵀ) V, without the matrix of scores. Grid: (tiles of 64
// queries or keys, examples · heads, relations); a warp owns 16 rows.
//
// A tile of probabilities leaves the first product as accumulators and enters the second as A fragment. Its columns 2t
// and 2t + 1 take the positions t and t + 4. The B operand is read from rows 2t and 2t + 1, so no lane exchanges data.
// Rows in shared memory are DEPTH + 4 long against bank conflicts.

struct HeadSlice {
    float* data;
    int ld, pad;
    Space space;
    int pad2;
};

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

// Loads elements start..start + R of a head as R rows of DEPTH numbers, `width` numbers for each input dimension; zeros
// after `count`.
template <int R, int DEPTH>
__device__ __forceinline__ void load_head(float* s, const HeadSlice& h, const int* shape, int start, int count, int head, int width) {
    int dims = dim_count(h.space, shape), depth = dims * width;
    if (width % 4 == 0) {
        for (int i = threadIdx.x; i < R * (DEPTH / 4); i += blockDim.x) {
            int r = i / (DEPTH / 4), e = i % (DEPTH / 4) * 4;
            float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (r < count && e < depth)
                v = *(const float4*)(h.data + ((size_t)(start + r) * dims + e / width) * h.ld + head * width + e % width);
            *(float4*)(s + r * (DEPTH + 4) + e) = v;
        }
    } else {
        for (int i = threadIdx.x; i < R * DEPTH; i += blockDim.x) {
            int r = i / DEPTH, e = i % DEPTH;
            float v = 0.0f;
            if (r < count && e < depth) v = h.data[((size_t)(start + r) * dims + e / width) * h.ld + head * width + e % width];
            s[r * (DEPTH + 4) + e] = v;
        }
    }
}

// Writes a warp's 16 rows of DEPTH numbers, scaled by `factor`.
template <int DEPTH>
__device__ __forceinline__ void store_head(const float (*acc)[4], const HeadSlice& h, const int* shape, int start, int count, int head,
                                           int width, int row0, const float* factor) {
    int dims = dim_count(h.space, shape), depth = dims * width, g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < DEPTH / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int r = row0 + g + (e / 2) * 8, d = j * 8 + 2 * t + e % 2;
            if (r < count && d < depth)
                h.data[((size_t)(start + r) * dims + d / width) * h.ld + head * width + d % width] = acc[j][e] * factor[e / 2];
        }
}

// c[16, N] = a[row0.., :] b[0..N, :]ᵀ over DEPTH, such as S = Q Kᵀ.
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

// acc[16, DEPTH] += p[16, N] b[N, DEPTH], such as O += P V.
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

// One step of online softmax for 16 queries a warp and N keys from `base` on. Scores become 2^(s − max); earlier sums
// are rescaled to the new maximum. Keys from `keys` on are masked.
template <int N, int DEPTH>
__device__ __forceinline__ void online_softmax_update(float (*s)[4], float (*out)[4], float* row_max, float* sum, int base, int keys, float scale) {
    int t = threadIdx.x % 4;
    float new_max[2] = {row_max[0], row_max[1]};
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[j][e] = base + j * 8 + 2 * t + e % 2 < keys ? s[j][e] * scale : -1e30f;
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

// O = softmax(scale · Q Kᵀ) V and the log2-sum-exp. A block owns 64 queries of one head and loops over tiles of N keys.
// `out` and stats[0] are written.
template <int DEPTH, int N>
__device__ __forceinline__ void attention_forward(const AttentionTask* tasks, const int* shape) {
    const AttentionTask& task = tasks[blockIdx.z];
    int example = blockIdx.y / task.heads, head = blockIdx.y % task.heads;
    if (example >= example_count(shape)) return;
    int q0 = element_offset(task.query.space, shape, example), queries = element_offset(task.query.space, shape, example + 1) - q0;
    int k0 = element_offset(task.key.space, shape, example), keys = element_offset(task.key.space, shape, example + 1) - k0;
    int first = blockIdx.x * 64;
    if (first >= queries) return;
    extern __shared__ __align__(16) float shared[];
    constexpr int S = DEPTH + 4;
    float *qs = shared, *ks = qs + 64 * S, *vs = ks + N * S;
    load_head<64, DEPTH>(qs, task.query, shape, q0 + first, queries - first, head, task.width);
    int row0 = threadIdx.x / 32 * 16, t = threadIdx.x % 4, g = (threadIdx.x % 32) / 4;
    float out[DEPTH / 8][4] = {}, row_max[2] = {-1e30f, -1e30f}, sum[2] = {0.0f, 0.0f};
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

// dQ = dS K with dS = P ∘ (dO Vᵀ − Δ) · scale and Δ = Σ dO · O. A block owns 64 queries and loops over keys. d_query
// and stats[1] = Δ are written.
template <int DEPTH, int N>
__device__ __forceinline__ void attention_backward_queries(const AttentionTask* tasks, const int* shape) {
    const AttentionTask& task = tasks[blockIdx.z];
    int example = blockIdx.y / task.heads, head = blockIdx.y % task.heads;
    if (example >= example_count(shape)) return;
    int q0 = element_offset(task.query.space, shape, example), queries = element_offset(task.query.space, shape, example + 1) - q0;
    int k0 = element_offset(task.key.space, shape, example), keys = element_offset(task.key.space, shape, example + 1) - k0;
    int first = blockIdx.x * 64;
    if (first >= queries) return;
    extern __shared__ __align__(16) float shared[];
    constexpr int S = DEPTH + 4;
    float *qs = shared, *ds = qs + 64 * S, *ks = ds + 64 * S, *vs = ks + N * S;
    __shared__ float deltas[64], lses[64];
    load_head<64, DEPTH>(qs, task.out, shape, q0 + first, queries - first, head, task.width);
    load_head<64, DEPTH>(ds, task.d_out, shape, q0 + first, queries - first, head, task.width);
    __syncthreads();
    if (threadIdx.x < 64) {
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
    load_head<64, DEPTH>(qs, task.query, shape, q0 + first, queries - first, head, task.width);
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

// dV = Pᵀ dO and dK = dSᵀ Q. A block owns 64 keys and loops over all queries. d_key and d_value are written. It reads Δ
// from `attention_backward_queries`.
template <int DEPTH, int N>
__device__ __forceinline__ void attention_backward_keys(const AttentionTask* tasks, const int* shape) {
    const AttentionTask& task = tasks[blockIdx.z];
    int example = blockIdx.y / task.heads, head = blockIdx.y % task.heads;
    if (example >= example_count(shape)) return;
    int q0 = element_offset(task.query.space, shape, example), queries = element_offset(task.query.space, shape, example + 1) - q0;
    int k0 = element_offset(task.key.space, shape, example), keys = element_offset(task.key.space, shape, example + 1) - k0;
    int first = blockIdx.x * 64;
    if (first >= keys) return;
    extern __shared__ __align__(16) float shared[];
    constexpr int S = DEPTH + 4;
    float *ks = shared, *vs = ks + 64 * S, *qs = vs + 64 * S, *ds = qs + N * S;
    __shared__ float deltas[N], lses[N];
    load_head<64, DEPTH>(ks, task.key, shape, k0 + first, keys - first, head, task.width);
    load_head<64, DEPTH>(vs, task.value, shape, k0 + first, keys - first, head, task.width);
    int row0 = threadIdx.x / 32 * 16, t = threadIdx.x % 4;
    float dk[DEPTH / 8][4] = {}, dv[DEPTH / 8][4] = {};
    float scale = task.scale * LOG2E;
    for (int base = 0; base < queries; base += N) {
        __syncthreads();
        load_head<N, DEPTH>(qs, task.query, shape, q0 + base, queries - base, head, task.width);
        load_head<N, DEPTH>(ds, task.d_out, shape, q0 + base, queries - base, head, task.width);
        for (int r = threadIdx.x; r < N; r += blockDim.x) {
            bool ok = base + r < queries;
            const float* stats = task.stats + ((size_t)(q0 + base + (ok ? r : 0)) * task.heads + head) * 2;
            lses[r] = ok ? stats[0] : 1e30f;
            deltas[r] = ok ? stats[1] : 0.0f;
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

#define ATTENTION(DEPTH, N)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(128) attention_forward_##DEPTH(const AttentionTask* t, const int* s) { grid_dependency_sync(); attention_forward<DEPTH, N>(t, s); } \
    extern "C" __global__ void __launch_bounds__(128) attention_backward_queries_##DEPTH(const AttentionTask* t, const int* s) { grid_dependency_sync(); attention_backward_queries<DEPTH, N>(t, s); } \
    extern "C" __global__ void __launch_bounds__(128) attention_backward_keys_##DEPTH(const AttentionTask* t, const int* s) { grid_dependency_sync(); attention_backward_keys<DEPTH, N>(t, s); }
