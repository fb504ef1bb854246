// Attention as in `attention.cu` with wgmma: a block of one warpgroup owns ATTENTION_ROWS queries (or keys) of an
// example, head and relation. Grid, layouts and formulas are those of `attention.cu`; it runs for sets that one block
// cannot hold. Precondition: slices allow sixteen-byte reads, and head widths are multiples of four.
//
// Rows of a head lie in swizzled tiles of 32 columns (slabs, `sm90.cu`), SLABS of them one after another. Operands
// summed over elements are transposed in shared memory. Probabilities leave one product as accumulators and enter the
// next as A fragment. A lane's columns 2t and 2t + 1 take positions t and t + 4, and transposed tiles permute their
// elements alike.

// Tiles of 32 columns of a head.
template <int DEPTH> struct Head {
    static constexpr int SLABS = (DEPTH + 31) / 32;
};

// Starts copying R elements of a head from `start` on; elements from `count` on become zero. `width` numbers, a
// multiple of four, belong to each input dimension. Where the depth divides evenly, a thread copies one chunk of every
// STEPth element.
template <int R, int DEPTH>
__device__ __forceinline__ void copy_head(float* tiles, const HeadSlice& h, const int* shape, int start, int count, int head, int width) {
    constexpr int ACROSS = DEPTH / 4, STEP = 128 / ACROSS;
    int dims = dim_count(h.space, shape), depth = dims * width, each = width / 4;
    const float* from = h.data + (size_t)start * dims * h.ld + head * width;
    if constexpr (128 % ACROSS == 0) {
        int r = threadIdx.x / ACROSS, c = threadIdx.x % ACROSS, dim = dims == 1 ? 0 : c / each;
        from += (size_t)(r * dims + dim) * h.ld + (c - dim * each) * 4;
        int stride = STEP * dims * h.ld;
        bool inside = c * 4 < depth;
        float* to = tiles + c / 8 * R * 32;
#pragma unroll
        for (int i = 0; i < R / STEP; i++) {
            cp_async_16(to + swizzled_chunk(r + i * STEP, c % 8), from, inside && r + i * STEP < count);
            from += stride;
        }
    } else {
#pragma unroll
        for (int i = threadIdx.x; i < R * ACROSS; i += 128) {
            int r = i / ACROSS, c = i % ACROSS, dim = dims == 1 ? 0 : c / each;
            const float* at = from + ((size_t)r * dims + dim) * h.ld + (c - dim * each) * 4;
            cp_async_16(tiles + c / 8 * R * 32 + swizzled_chunk(r, c % 8), at, r < count && c * 4 < depth);
        }
    }
}

// Transposes tiles of R elements into tiles of DEPTH rows by 32 elements. Element 8i + 2t + e of a tile lies at
// position 8i + 4e + t, the order in which `to_a_fragment` reads accumulators. A lane moves four columns of one
// element.
template <int R, int DEPTH>
__device__ __forceinline__ void transpose_tile(float* to, const float* from) {
    int lane = threadIdx.x % 32, position = lane / 8 * 8 + lane % 2 * 4 + lane % 8 / 2;
#pragma unroll
    for (int i = threadIdx.x / 32; i < R / 32 * (DEPTH / 4); i += 4) {
        int slab = i / (DEPTH / 4), c = i % (DEPTH / 4);
        float4 v = *(const float4*)(from + c / 8 * R * 32 + swizzled_chunk(slab * 32 + lane, c % 8));
        float numbers[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; j++) to[slab * DEPTH * 32 + swizzled_chunk(c * 4 + j, position / 4) + position % 4] = numbers[j];
    }
}

// Issues c = a bᵀ over DEPTH; a has ATTENTION_ROWS rows, b has N. Descriptors count 16 bytes: 2 is one k-step of eight
// numbers, rows · 32 / 4 one tile.
template <int DEPTH, int N>
__device__ __forceinline__ void issue_qk(float (*c)[4], const float* a, const float* b) {
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) c[j][e] = 0.0f;
    wgmma_fence();
    u64 da = wgmma_descriptor(a), db = wgmma_descriptor(b);
#pragma unroll
    for (int k = 0; k < DEPTH / 8; k++)
        wgmma<N>(&c[0][0], da + k / 4 * (ATTENTION_ROWS * 32 / 4) + k % 4 * 2, db + k / 4 * (N * 32 / 4) + k % 4 * 2);
    wgmma_commit();
}

// Issues out += p b; p is [64, N] in registers, b is transposed: DEPTH rows of N elements.
template <int DEPTH, int N>
__device__ __forceinline__ void issue_pv(float (*out)[4], const u32 (*p)[4], const float* b) {
    wgmma_fence();
    u64 db = wgmma_descriptor(b);
#pragma unroll
    for (int j = 0; j < N / 8; j++) wgmma<DEPTH>(&out[0][0], p[j], db + j / 4 * (DEPTH * 32 / 4) + j % 4 * 2);
    wgmma_commit();
}

// Accumulators as the A fragments of the next product: columns 2t and 2t + 1 become positions t and t + 4.
template <int N>
__device__ __forceinline__ void to_a_fragment(u32 (*p)[4], const float (*s)[4]) {
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        p[j][0] = __float_as_uint(s[j][0]); p[j][1] = __float_as_uint(s[j][2]);
        p[j][2] = __float_as_uint(s[j][1]); p[j][3] = __float_as_uint(s[j][3]);
    }
}

// Writes a warp's 16 rows, two numbers at a time; rows g and g + 8 of a lane are multiplied by factor[0] and factor[1].
// Rows from `count` on are not written.
template <int DEPTH>
__device__ __forceinline__ void store_head_rows(const float (*acc)[4], const HeadSlice& h, const int* shape, int start, int count, int head,
                                           int width, const float* factor) {
    int dims = dim_count(h.space, shape), depth = dims * width, g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
    float* to = h.data + (size_t)start * dims * h.ld + head * width;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int r = threadIdx.x / 32 * 16 + g + half * 8;
        if (r >= count) continue;
#pragma unroll
        for (int j = 0; j < DEPTH / 8; j++) {
            int d = j * 8 + 2 * t, dim = dims == 1 ? 0 : d / width;
            if (d < depth)
                *(float2*)(to + ((size_t)r * dims + dim) * h.ld + d - dim * width) =
                    make_float2(acc[j][2 * half] * factor[half], acc[j][2 * half + 1] * factor[half]);
        }
    }
}

// The head, and the query and key ranges, of this block; `first` is its first query or key within the example.
struct BlockRange {
    int head, q0, queries, k0, keys, first;
};

// Fills `p`; false if the block has no rows.
__device__ __forceinline__ bool find_block_range(BlockRange& p, const AttentionTask& task, const int* shape, bool over_keys) {
    int example = blockIdx.y / task.heads;
    p.head = blockIdx.y % task.heads;
    if (example >= example_count(shape)) return false;
    p.q0 = element_offset(task.query.space, shape, example);
    p.queries = element_offset(task.query.space, shape, example + 1) - p.q0;
    p.k0 = element_offset(task.key.space, shape, example);
    p.keys = element_offset(task.key.space, shape, example + 1) - p.k0;
    p.first = blockIdx.x * ATTENTION_ROWS;
    return p.first < (over_keys ? p.keys : p.queries);
}

// Starts copying N keys and values from `base` on, while the previous tile is still in use.
template <int N, int DEPTH>
__device__ __forceinline__ void fetch_keys(float* ks, float* vs, const AttentionTask& task, const int* shape, const BlockRange& at, int base) {
    if (base < at.keys) {
        copy_head<N, DEPTH>(ks, task.key, shape, at.k0 + base, at.keys - base, at.head, task.width);
        copy_head<N, DEPTH>(vs, task.value, shape, at.k0 + base, at.keys - base, at.head, task.width);
    }
    cp_async_commit();
}

// Waits for this thread's copies and makes those of all threads visible to wgmma.
__device__ __forceinline__ void cp_async_arrive() {
    cp_async_wait<0>();
    fence_async_proxy();
    __syncthreads();
}

// O = softmax(scale · Q Kᵀ) V and the log2-sum-exp. A block owns ATTENTION_ROWS queries and loops over tiles of N keys;
// `out` and stats[0] are written. V is transposed while the scores are multiplied.
template <int DEPTH, int N>
__device__ __forceinline__ void attention_forward_sm90(const AttentionTask* tasks, const int* shape) {
    const AttentionTask& task = tasks[blockIdx.z];
    BlockRange at;
    if (!find_block_range(at, task, shape, false)) return;
    constexpr int SLABS = Head<DEPTH>::SLABS;
    float *qs = aligned_shared(), *ks = qs + ATTENTION_ROWS * SLABS * 32, *vs = ks + N * SLABS * 32, *vt = vs + N * SLABS * 32;
    copy_head<ATTENTION_ROWS, DEPTH>(qs, task.query, shape, at.q0 + at.first, at.queries - at.first, at.head, task.width);
    int t = threadIdx.x % 4, g = (threadIdx.x % 32) / 4;
    float out[DEPTH / 8][4] = {}, row_max[2] = {MASKED_SCORE, MASKED_SCORE}, sum[2] = {0.0f, 0.0f};
    float scale = task.scale * LOG2E;
    auto fetch = [&](int base) { fetch_keys<N, DEPTH>(ks, vs, task, shape, at, base); };
    fetch(0);
    for (int base = 0; base < at.keys; base += N) {
        cp_async_arrive();
        float s[N / 8][4];
        issue_qk<DEPTH, N>(s, qs, ks);
        transpose_tile<N, DEPTH>(vt, vs);
        fence_async_proxy();
        wgmma_wait();
        __syncthreads();
        fetch(base + N);
        online_softmax_update<N, DEPTH>(s, out, row_max, sum, base, at.keys, scale);
        u32 p[N / 8][4];
        to_a_fragment<N>(p, s);
        issue_pv<DEPTH, N>(out, p, vt);
        wgmma_wait();
    }
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] = lane_sum<4>(sum[h]);
        factor[h] = 1.0f / sum[h];
        int r = at.first + threadIdx.x / 32 * 16 + g + h * 8;
        if (t == 0 && r < at.queries) task.stats[((size_t)(at.q0 + r) * task.heads + at.head) * 2] = row_max[h] + log2f(sum[h]);
    }
    store_head_rows<DEPTH>(out, task.out, shape, at.q0 + at.first, at.queries - at.first, at.head, task.width, factor);
}

// dQ = dS K, as `attention_backward_queries`. A block owns ATTENTION_ROWS queries and loops over tiles of N keys;
// d_query and stats[1] = Δ are written.
template <int DEPTH, int N>
__device__ __forceinline__ void attention_backward_queries_sm90(const AttentionTask* tasks, const int* shape) {
    const AttentionTask& task = tasks[blockIdx.z];
    BlockRange at;
    if (!find_block_range(at, task, shape, false)) return;
    constexpr int SLABS = Head<DEPTH>::SLABS;
    float *qs = aligned_shared(), *ds = qs + ATTENTION_ROWS * SLABS * 32, *ks = ds + ATTENTION_ROWS * SLABS * 32, *vs = ks + N * SLABS * 32;
    float* kt = vs + N * SLABS * 32;
    __shared__ float deltas[ATTENTION_ROWS], lses[ATTENTION_ROWS];
    copy_head<ATTENTION_ROWS, DEPTH>(qs, task.out, shape, at.q0 + at.first, at.queries - at.first, at.head, task.width);
    copy_head<ATTENTION_ROWS, DEPTH>(ds, task.d_out, shape, at.q0 + at.first, at.queries - at.first, at.head, task.width);
    cp_async_commit();
    auto fetch = [&](int base) { fetch_keys<N, DEPTH>(ks, vs, task, shape, at, base); };
    cp_async_arrive();
    {
        // Two lanes own a query.
        int r = threadIdx.x / 2, half = threadIdx.x % 2;
        float sum = 0.0f;
#pragma unroll
        for (int c = 0; c < DEPTH / 8; c++) {
            int chunk = 2 * c + half, position = chunk / 8 * ATTENTION_ROWS * 32 + swizzled_chunk(r, chunk % 8);
            float4 o = *(const float4*)(qs + position), d = *(const float4*)(ds + position);
            sum += (o.x * d.x + o.y * d.y) + (o.z * d.z + o.w * d.w);
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        if (half == 0) {
            deltas[r] = sum;
            lses[r] = 0.0f;
            if (at.first + r < at.queries) {
                float* stats = task.stats + ((size_t)(at.q0 + at.first + r) * task.heads + at.head) * 2;
                lses[r] = stats[0];
                stats[1] = sum;
            }
        }
    }
    __syncthreads();
    copy_head<ATTENTION_ROWS, DEPTH>(qs, task.query, shape, at.q0 + at.first, at.queries - at.first, at.head, task.width);
    int row = threadIdx.x / 32 * 16 + (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
    float acc[DEPTH / 8][4] = {};
    float scale = task.scale * LOG2E, lse[2] = {lses[row], lses[row + 8]}, delta[2] = {deltas[row], deltas[row + 8]};
    fetch(0);
    for (int base = 0; base < at.keys; base += N) {
        cp_async_arrive();
        float s[N / 8][4], d[N / 8][4];
        issue_qk<DEPTH, N>(s, qs, ks);
        issue_qk<DEPTH, N>(d, ds, vs);
        transpose_tile<N, DEPTH>(kt, ks);
        fence_async_proxy();
        wgmma_wait();
        __syncthreads();
        fetch(base + N);
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float p = base + j * 8 + 2 * t + e % 2 < at.keys ? exp2f(s[j][e] * scale - lse[e / 2]) : 0.0f;
                s[j][e] = p * (d[j][e] - delta[e / 2]) * task.scale;
            }
        u32 p[N / 8][4];
        to_a_fragment<N>(p, s);
        issue_pv<DEPTH, N>(acc, p, kt);
        wgmma_wait();
    }
    float factor[2] = {1.0f, 1.0f};
    store_head_rows<DEPTH>(acc, task.d_query, shape, at.q0 + at.first, at.queries - at.first, at.head, task.width, factor);
}

// dV = Pᵀ dO and dK = dSᵀ Q, as `attention_backward_keys`. A block owns ATTENTION_ROWS keys and loops over tiles of N
// queries; d_key and d_value are written.
template <int DEPTH, int N>
__device__ __forceinline__ void attention_backward_keys_sm90(const AttentionTask* tasks, const int* shape) {
    const AttentionTask& task = tasks[blockIdx.z];
    BlockRange at;
    if (!find_block_range(at, task, shape, true)) return;
    constexpr int SLABS = Head<DEPTH>::SLABS;
    float *ks = aligned_shared(), *vs = ks + ATTENTION_ROWS * SLABS * 32, *qs = vs + ATTENTION_ROWS * SLABS * 32, *ds = qs + N * SLABS * 32;
    float *qt = ds + N * SLABS * 32, *dt = qt + N * DEPTH;
    __shared__ float deltas[N], lses[N];
    copy_head<ATTENTION_ROWS, DEPTH>(ks, task.key, shape, at.k0 + at.first, at.keys - at.first, at.head, task.width);
    copy_head<ATTENTION_ROWS, DEPTH>(vs, task.value, shape, at.k0 + at.first, at.keys - at.first, at.head, task.width);
    int t = threadIdx.x % 4;
    float dk[DEPTH / 8][4] = {}, dv[DEPTH / 8][4] = {};
    float scale = task.scale * LOG2E;
    for (int base = 0; base < at.queries; base += N) {
        __syncthreads();
        copy_head<N, DEPTH>(qs, task.query, shape, at.q0 + base, at.queries - base, at.head, task.width);
        copy_head<N, DEPTH>(ds, task.d_out, shape, at.q0 + base, at.queries - base, at.head, task.width);
        if (threadIdx.x < N) {
            int r = threadIdx.x;
            bool exists = base + r < at.queries;
            const float* stats = task.stats + ((size_t)(at.q0 + base + (exists ? r : 0)) * task.heads + at.head) * 2;
            lses[r] = exists ? stats[0] : MASKED_LSE;
            deltas[r] = exists ? stats[1] : 0.0f;
        }
        cp_async_commit();
        cp_async_arrive();
        float s[N / 8][4], d[N / 8][4];
        issue_qk<DEPTH, N>(s, ks, qs);
        issue_qk<DEPTH, N>(d, vs, ds);
        transpose_tile<N, DEPTH>(qt, qs);
        transpose_tile<N, DEPTH>(dt, ds);
        fence_async_proxy();
        wgmma_wait();
        u32 p[N / 8][4], score_grads[N / 8][4];
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[j][e] = exp2f(s[j][e] * scale - lses[j * 8 + 2 * t + e % 2]);
        to_a_fragment<N>(p, s);
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[j][e] *= (d[j][e] - deltas[j * 8 + 2 * t + e % 2]) * task.scale;
        to_a_fragment<N>(score_grads, s);
        __syncthreads();
        issue_pv<DEPTH, N>(dv, p, dt);
        issue_pv<DEPTH, N>(dk, score_grads, qt);
        wgmma_wait();
    }
    float factor[2] = {1.0f, 1.0f};
    store_head_rows<DEPTH>(dk, task.d_key, shape, at.k0 + at.first, at.keys - at.first, at.head, task.width, factor);
    store_head_rows<DEPTH>(dv, task.d_value, shape, at.k0 + at.first, at.keys - at.first, at.head, task.width, factor);
}

#define ATTENTION_SM90(DEPTH, N)                                                                \
    extern "C" __global__ void __launch_bounds__(128) attention_forward_sm90_##DEPTH(           \
        const AttentionTask* tasks, const int* shape) {                                         \
        grid_dependency_sync(tasks + blockIdx.z, shape);                                        \
        attention_forward_sm90<DEPTH, N>(tasks, shape);                                         \
    }                                                                                           \
    extern "C" __global__ void __launch_bounds__(128) attention_backward_queries_sm90_##DEPTH(  \
        const AttentionTask* tasks, const int* shape) {                                         \
        grid_dependency_sync(tasks + blockIdx.z, shape);                                        \
        attention_backward_queries_sm90<DEPTH, N>(tasks, shape);                                \
    }                                                                                           \
    extern "C" __global__ void __launch_bounds__(128) attention_backward_keys_sm90_##DEPTH(     \
        const AttentionTask* tasks, const int* shape) {                                         \
        grid_dependency_sync(tasks + blockIdx.z, shape);                                        \
        attention_backward_keys_sm90<DEPTH, N>(tasks, shape);                                   \
    }
