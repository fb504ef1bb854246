// Attention as in `attention.cu` with the matrix products of `hopper.cu`: a warpgroup to 64 queries (or keys), an example, a head and a relation.
//
// Rows of a head lie in tiles of 32 columns; what is summed over elements rather than columns is turned once it is there. Probabilities leave
// one product as sums and enter the next as its left operand: columns 2t and 2t + 1 of a lane stand at t and t + 4 there, so turned tiles have their
// elements in that order.

template <int DEPTH> struct Head {
    static constexpr int SLABS = (DEPTH + 31) / 32;
};

// Starts copying R elements of a head from `start` on, `count` of them there; `width` numbers, a multiple of four, for each input dimension.
// Where the depth allows it a thread has one chunk of every so many elements.
template <int R, int DEPTH>
__device__ __forceinline__ void copy_head(float* tiles, const HeadSlice& h, const int* shape, int start, int count, int head, int width) {
    constexpr int ACROSS = DEPTH / 4, STEP = 128 / ACROSS;
    int dims = dims_of(h.space, shape), depth = dims * width, each = width / 4;
    const float* from = h.data + (size_t)start * dims * h.ld + head * width;
    if constexpr (128 % ACROSS == 0) {
        int r = threadIdx.x / ACROSS, c = threadIdx.x % ACROSS, dim = dims == 1 ? 0 : c / each;
        from += (size_t)(r * dims + dim) * h.ld + (c - dim * each) * 4;
        int stride = STEP * dims * h.ld;
        bool inside = c * 4 < depth;
        float* to = tiles + c / 8 * R * 32;
#pragma unroll
        for (int i = 0; i < R / STEP; i++) {
            copy16(to + chunk_at(r + i * STEP, c % 8), from, inside && r + i * STEP < count);
            from += stride;
        }
    } else {
#pragma unroll
        for (int i = threadIdx.x; i < R * ACROSS; i += 128) {
            int r = i / ACROSS, c = i % ACROSS, dim = dims == 1 ? 0 : c / each;
            const float* at = from + ((size_t)r * dims + dim) * h.ld + (c - dim * each) * 4;
            copy16(tiles + c / 8 * R * 32 + chunk_at(r, c % 8), at, r < count && c * 4 < depth);
        }
    }
}

// Columns become rows: from tiles of R elements to tiles of DEPTH rows, 32 elements each, in the order products leave them.
template <int R, int DEPTH>
__device__ __forceinline__ void turn(float* to, const float* from) {
    int lane = threadIdx.x % 32, place = lane / 8 * 8 + lane % 2 * 4 + lane % 8 / 2;
#pragma unroll
    for (int i = threadIdx.x / 32; i < R / 32 * (DEPTH / 4); i += 4) {
        int slab = i / (DEPTH / 4), c = i % (DEPTH / 4);
        float4 v = *(const float4*)(from + c / 8 * R * 32 + chunk_at(slab * 32 + lane, c % 8));
        float e[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; j++) to[slab * DEPTH * 32 + chunk_at(c * 4 + j, place / 4) + place % 4] = e[j];
    }
}

// Begins c = rows of a times rows of b over DEPTH; a has 64 rows, b has N.
template <int DEPTH, int N>
__device__ __forceinline__ void begin_scores(float (*c)[4], const float* a, const float* b) {
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) c[j][e] = 0.0f;
    multiply_begin();
    u64 da = tile_descriptor(a), db = tile_descriptor(b);
#pragma unroll
    for (int k = 0; k < DEPTH / 8; k++)
        warpgroup_multiply<N>(&c[0][0], da + k / 4 * (64 * 32 / 4) + k % 4 * 2, db + k / 4 * (N * 32 / 4) + k % 4 * 2);
    multiply_commit();
}

// Begins out += p b, b turned, N elements by DEPTH.
template <int DEPTH, int N>
__device__ __forceinline__ void begin_mix(float (*out)[4], const u32 (*p)[4], const float* b) {
    multiply_begin();
    u64 db = tile_descriptor(b);
#pragma unroll
    for (int j = 0; j < N / 8; j++) warpgroup_multiply<DEPTH>(&out[0][0], p[j], db + j / 4 * (DEPTH * 32 / 4) + j % 4 * 2);
    multiply_commit();
}

// Sums of a product as the left operand of another.
template <int N>
__device__ __forceinline__ void to_left(u32 (*p)[4], const float (*s)[4]) {
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        p[j][0] = __float_as_uint(s[j][0]); p[j][1] = __float_as_uint(s[j][2]);
        p[j][2] = __float_as_uint(s[j][1]); p[j][3] = __float_as_uint(s[j][3]);
    }
}

// Writes a warp's 16 rows, two numbers at a time.
template <int DEPTH>
__device__ __forceinline__ void store_rows(const float (*acc)[4], const HeadSlice& h, const int* shape, int start, int count, int head,
                                           int width, const float* factor) {
    int dims = dims_of(h.space, shape), depth = dims * width, g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
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

// Who this block works for.
struct Place {
    int head, q0, queries, k0, keys, first;
};

__device__ __forceinline__ bool find_place(Place& p, const AttentionTask& task, const int* shape, bool over_keys) {
    int example = blockIdx.y / task.heads;
    p.head = blockIdx.y % task.heads;
    if (example >= examples_of(shape)) return false;
    p.q0 = element(task.query.space, shape, example);
    p.queries = element(task.query.space, shape, example + 1) - p.q0;
    p.k0 = element(task.key.space, shape, example);
    p.keys = element(task.key.space, shape, example + 1) - p.k0;
    p.first = blockIdx.x * 64;
    return p.first < (over_keys ? p.keys : p.queries);
}

// Starts copying N keys and values from the `base`th on, if there are any; those before them may still be being mixed.
template <int N, int DEPTH>
__device__ __forceinline__ void fetch_keys(float* ks, float* vs, const AttentionTask& task, const int* shape, const Place& at, int base) {
    if (base < at.keys) {
        copy_head<N, DEPTH>(ks, task.key, shape, at.k0 + base, at.keys - base, at.head, task.width);
        copy_head<N, DEPTH>(vs, task.value, shape, at.k0 + base, at.keys - base, at.head, task.width);
    }
    copies_commit();
}

__device__ __forceinline__ void copies_arrive() {
    copies_wait<0>();
    tiles_written();
    __syncthreads();
}

template <int DEPTH, int N>
__device__ __forceinline__ void attention_forward_wide(const AttentionTask* tasks, const int* shape) {
    const AttentionTask& task = tasks[blockIdx.z];
    Place at;
    if (!find_place(at, task, shape, false)) return;
    constexpr int SLABS = Head<DEPTH>::SLABS;
    float *qs = tiles_begin(), *ks = qs + 64 * SLABS * 32, *vs = ks + N * SLABS * 32, *vt = vs + N * SLABS * 32;
    copy_head<64, DEPTH>(qs, task.query, shape, at.q0 + at.first, at.queries - at.first, at.head, task.width);
    int t = threadIdx.x % 4, g = (threadIdx.x % 32) / 4;
    float out[DEPTH / 8][4] = {}, most[2] = {-1e30f, -1e30f}, sum[2] = {0.0f, 0.0f};
    float scale = task.scale * LOG2E;
    auto fetch = [&](int base) { fetch_keys<N, DEPTH>(ks, vs, task, shape, at, base); };
    fetch(0);
    for (int base = 0; base < at.keys; base += N) {
        copies_arrive();
        float s[N / 8][4];
        begin_scores<DEPTH, N>(s, qs, ks);
        turn<N, DEPTH>(vt, vs);
        tiles_written();
        multiply_wait();
        __syncthreads();
        fetch(base + N);
        take_up<N, DEPTH>(s, out, most, sum, base, at.keys, scale);
        u32 p[N / 8][4];
        to_left<N>(p, s);
        begin_mix<DEPTH, N>(out, p, vt);
        multiply_wait();
    }
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] = lanes_sum<4>(sum[h]);
        factor[h] = 1.0f / sum[h];
        int r = at.first + threadIdx.x / 32 * 16 + g + h * 8;
        if (t == 0 && r < at.queries) task.stats[((size_t)(at.q0 + r) * task.heads + at.head) * 2] = most[h] + log2f(sum[h]);
    }
    store_rows<DEPTH>(out, task.out, shape, at.q0 + at.first, at.queries - at.first, at.head, task.width, factor);
}

template <int DEPTH, int N>
__device__ __forceinline__ void attention_queries_wide(const AttentionTask* tasks, const int* shape) {
    const AttentionTask& task = tasks[blockIdx.z];
    Place at;
    if (!find_place(at, task, shape, false)) return;
    constexpr int SLABS = Head<DEPTH>::SLABS;
    float *qs = tiles_begin(), *ds = qs + 64 * SLABS * 32, *ks = ds + 64 * SLABS * 32, *vs = ks + N * SLABS * 32;
    float* kt = vs + N * SLABS * 32;
    __shared__ float deltas[64], lses[64];
    copy_head<64, DEPTH>(qs, task.out, shape, at.q0 + at.first, at.queries - at.first, at.head, task.width);
    copy_head<64, DEPTH>(ds, task.d_out, shape, at.q0 + at.first, at.queries - at.first, at.head, task.width);
    copies_commit();
    auto fetch = [&](int base) { fetch_keys<N, DEPTH>(ks, vs, task, shape, at, base); };
    copies_arrive();
    {
        // Two lanes to a query.
        int r = threadIdx.x / 2, half = threadIdx.x % 2;
        float sum = 0.0f;
#pragma unroll
        for (int c = 0; c < DEPTH / 8; c++) {
            int chunk = 2 * c + half, place = chunk / 8 * 64 * 32 + chunk_at(r, chunk % 8);
            float4 o = *(const float4*)(qs + place), d = *(const float4*)(ds + place);
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
    copy_head<64, DEPTH>(qs, task.query, shape, at.q0 + at.first, at.queries - at.first, at.head, task.width);
    int row = threadIdx.x / 32 * 16 + (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
    float acc[DEPTH / 8][4] = {};
    float scale = task.scale * LOG2E, lse[2] = {lses[row], lses[row + 8]}, delta[2] = {deltas[row], deltas[row + 8]};
    fetch(0);
    for (int base = 0; base < at.keys; base += N) {
        copies_arrive();
        float s[N / 8][4], d[N / 8][4];
        begin_scores<DEPTH, N>(s, qs, ks);
        begin_scores<DEPTH, N>(d, ds, vs);
        turn<N, DEPTH>(kt, ks);
        tiles_written();
        multiply_wait();
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
        to_left<N>(p, s);
        begin_mix<DEPTH, N>(acc, p, kt);
        multiply_wait();
    }
    float factor[2] = {1.0f, 1.0f};
    store_rows<DEPTH>(acc, task.d_query, shape, at.q0 + at.first, at.queries - at.first, at.head, task.width, factor);
}

template <int DEPTH, int N>
__device__ __forceinline__ void attention_keys_wide(const AttentionTask* tasks, const int* shape) {
    const AttentionTask& task = tasks[blockIdx.z];
    Place at;
    if (!find_place(at, task, shape, true)) return;
    constexpr int SLABS = Head<DEPTH>::SLABS;
    float *ks = tiles_begin(), *vs = ks + 64 * SLABS * 32, *qs = vs + 64 * SLABS * 32, *ds = qs + N * SLABS * 32;
    float *qt = ds + N * SLABS * 32, *dt = qt + N * DEPTH;
    __shared__ float deltas[N], lses[N];
    copy_head<64, DEPTH>(ks, task.key, shape, at.k0 + at.first, at.keys - at.first, at.head, task.width);
    copy_head<64, DEPTH>(vs, task.value, shape, at.k0 + at.first, at.keys - at.first, at.head, task.width);
    int t = threadIdx.x % 4;
    float dk[DEPTH / 8][4] = {}, dv[DEPTH / 8][4] = {};
    float scale = task.scale * LOG2E;
    for (int base = 0; base < at.queries; base += N) {
        __syncthreads();
        copy_head<N, DEPTH>(qs, task.query, shape, at.q0 + base, at.queries - base, at.head, task.width);
        copy_head<N, DEPTH>(ds, task.d_out, shape, at.q0 + base, at.queries - base, at.head, task.width);
        if (threadIdx.x < N) {
            int r = threadIdx.x;
            bool ok = base + r < at.queries;
            const float* stats = task.stats + ((size_t)(at.q0 + base + (ok ? r : 0)) * task.heads + at.head) * 2;
            lses[r] = ok ? stats[0] : 1e30f;
            deltas[r] = ok ? stats[1] : 0.0f;
        }
        copies_commit();
        copies_arrive();
        float s[N / 8][4], d[N / 8][4];
        begin_scores<DEPTH, N>(s, ks, qs);
        begin_scores<DEPTH, N>(d, vs, ds);
        turn<N, DEPTH>(qt, qs);
        turn<N, DEPTH>(dt, ds);
        tiles_written();
        multiply_wait();
        u32 p[N / 8][4], q[N / 8][4];
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[j][e] = exp2f(s[j][e] * scale - lses[j * 8 + 2 * t + e % 2]);
        to_left<N>(p, s);
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[j][e] *= (d[j][e] - deltas[j * 8 + 2 * t + e % 2]) * task.scale;
        to_left<N>(q, s);
        __syncthreads();
        begin_mix<DEPTH, N>(dv, p, dt);
        begin_mix<DEPTH, N>(dk, q, qt);
        multiply_wait();
    }
    float factor[2] = {1.0f, 1.0f};
    store_rows<DEPTH>(dk, task.d_key, shape, at.k0 + at.first, at.keys - at.first, at.head, task.width, factor);
    store_rows<DEPTH>(dv, task.d_value, shape, at.k0 + at.first, at.keys - at.first, at.head, task.width, factor);
}

#define WIDE_ATTENTION(DEPTH, N)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(128) attention_forward_wide_##DEPTH(const AttentionTask* t, const int* s) { in_turn(t + blockIdx.z, s);          \
        attention_forward_wide<DEPTH, N>(t, s);                                                                                        \
    }                                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128) attention_queries_wide_##DEPTH(const AttentionTask* t, const int* s) { in_turn(t + blockIdx.z, s);          \
        attention_queries_wide<DEPTH, N>(t, s);                                                                                        \
    }                                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128) attention_keys_wide_##DEPTH(const AttentionTask* t, const int* s) { in_turn(t + blockIdx.z, s);             \
        attention_keys_wide<DEPTH, N>(t, s);                                                                                           \
    }
