// Attention of sets that a block holds as a whole: one block per example, head and relation. Forward a warp has 16 queries and goes over the keys.
// Backward it has 16 keys and goes over the queries, then 16 queries and goes over the keys, 32 at a time: probabilities and gradients of scores leave one product as sums and enter the next as its
// left operand, as in `attention.cu`. Matrix units cut what they are given to tf32.

__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// c = 16 rows on the left, a[k] for eight columns each, times N rows of b.
template <int DEPTH, int N, typename Left>
__device__ __forceinline__ void scores(float (*c)[4], Left left, const float* b) {
    constexpr int S = DEPTH + 4;
    int lane = threadIdx.x % 32;
    const float* from = b + (lane / 16 * 8 + lane % 8) * S + lane / 8 % 2 * 4;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) c[j][e] = 0.0f;
#pragma unroll
    for (int k = 0; k < DEPTH / 8; k++) {
        u32 a[4];
        left(a, k);
#pragma unroll
        for (int j = 0; j < N / 8; j += 2) {
            u32 r[4];
            load_bits(r, from + j * 8 * S + k * 8);
            mma_tf32(c[j], a, r);
            mma_tf32(c[j + 1], a, r + 2);
        }
    }
}

// acc += p b, with N rows of b.
template <int DEPTH, int N>
__device__ __forceinline__ void mix(float (*acc)[4], const float (*p)[4], const float* b) {
    constexpr int S = DEPTH + 4;
    int g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
    const float* from = b + 2 * t * S + g;
#pragma unroll
    for (int k = 0; k < N / 8; k++) {
        u32 a[4] = {__float_as_uint(p[k][0]), __float_as_uint(p[k][2]), __float_as_uint(p[k][1]), __float_as_uint(p[k][3])};
#pragma unroll
        for (int j = 0; j < DEPTH / 8; j++) {
            u32 r[2] = {__float_as_uint(from[k * 8 * S + j * 8]), __float_as_uint(from[(k * 8 + 1) * S + j * 8])};
            mma_tf32(acc[j], a, r);
        }
    }
}

// A column of a head: the dimension that has it, and where it lies in that dimension's rows.
struct HeadColumn {
    int dim, at;
    __device__ __forceinline__ HeadColumn(int dims, int width, int head, int column) {
        dim = dims == 1 ? 0 : column / width;
        at = head * width + column - dim * width;
    }
};

__device__ __forceinline__ float* head_at(const HeadSlice& h, int dims, HeadColumn column, int element) {
    float* place = h.data + (size_t)(u32)(element * dims + column.dim) * (u32)h.ld + column.at;
    __builtin_assume(__isGlobal(place));
    return place;
}

// What a block has: an example's queries and keys, one head. Tiles hold R rows of DEPTH numbers, DEPTH + 4 apart; a thread has four columns, from `column` on, of every STEPth row from `row` on.
template <int DEPTH, int R> struct WholeSets {
    static constexpr int S = DEPTH + 4, TILE = R * S, ACROSS = DEPTH / 4, COUNT = DEPTH / 8, STEP = 8 * R / DEPTH;
    int heads, head, example, q0, queries, k0, keys, dims, width, depth, row, column;
    bool inside;
    HeadColumn place;
    __device__ __forceinline__ WholeSets(const AttentionTask& task, const int* shape)
        : heads(task.heads), head(blockIdx.y % task.heads), example(blockIdx.y / task.heads), dims(dims_of(task.query.space, shape)), width(task.width), depth(dims * width),
          row(threadIdx.x / ACROSS), column(threadIdx.x % ACROSS * 4), inside(column < depth), place(dims, width, head, inside ? column : 0) {
        q0 = element(task.query.space, shape, example), queries = element(task.query.space, shape, example + 1) - q0;
        k0 = element(task.key.space, shape, example), keys = element(task.key.space, shape, example + 1) - k0;
    }
    // Starts copying `count` elements from `start` on, zeros after them.
    __device__ __forceinline__ void copy(float* tile, HeadSlice h, int start, int count) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int r = row + i * STEP;
            bool there = inside && r < count;
            copy16(tile + r * S + column, head_at(h, dims, place, start + (there ? r : 0)), there);
        }
    }
    // Writes a warp's 16 rows, as sums lie, each multiplied by a number.
    __device__ __forceinline__ void write(HeadSlice h, int start, int count, const float (*x)[4], float first, float second) const {
        int r = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int j = 0; j < DEPTH / 8; j++) {
            int column = j * 8 + 2 * t;
            if (column >= depth) break;
            HeadColumn place(dims, width, head, column);
            if (r < count) *(float2*)head_at(h, dims, place, start + r) = make_float2(x[j][0] * first, x[j][1] * first);
            if (r + 8 < count) *(float2*)head_at(h, dims, place, start + r + 8) = make_float2(x[j][2] * second, x[j][3] * second);
        }
    }
};

// A warp's 16 rows of a tile on the left of a product, eight columns at a time.
template <int S> struct OwnRows {
    u32 at;
    __device__ __forceinline__ OwnRows(const float* tile) : at(shared_at(tile + (threadIdx.x / 32 * 16 + threadIdx.x % 16) * S + threadIdx.x % 32 / 16 * 4)) {}
    __device__ __forceinline__ void operator()(u32* a, int k) const { load_bits(a, at + k * 32); }
};

template <int DEPTH, int WARPS>
__device__ __forceinline__ void attention_forward_whole(const AttentionTask* tasks, const int* shape) {
    constexpr int R = 16 * WARPS, S = DEPTH + 4, C = 32;
    const AttentionTask& task = tasks[blockIdx.z];
    if (blockIdx.y / task.heads >= examples_of(shape)) return;
    const WholeSets<DEPTH, R> sets(task, shape);
    extern __shared__ __align__(16) float shared[];
    float *qs = shared, *ks = qs + R * S, *vs = ks + R * S;
    sets.copy(qs, task.query, sets.q0, sets.queries);
    sets.copy(ks, task.key, sets.k0, sets.keys);
    sets.copy(vs, task.value, sets.k0, sets.keys);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, keys = sets.keys;
    if (warp * 16 >= sets.queries) return;
    float out[DEPTH / 8][4] = {}, most[2] = {-1e30f, -1e30f}, sum[2] = {0.0f, 0.0f}, scale = task.scale * LOG2E;
    for (int base = 0; base < keys; base += C) {
        float s[C / 8][4];
        scores<DEPTH, C>(s, OwnRows<S>(qs), ks + base * S);
        take_up<C, DEPTH>(s, out, most, sum, base, keys, scale, [](float x) { return power_of_two(x); });
        mix<DEPTH, C>(out, s, vs + base * S);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] = lanes_sum<4>(sum[h]);
        int q = warp * 16 + g + h * 8;
        if (t == 0 && q < sets.queries) task.stats[((size_t)(sets.q0 + q) * sets.heads + sets.head) * 2] = most[h] + log2f(sum[h]);
    }
    sets.write(task.out, sets.q0, sets.queries, out, 1.0f / sum[0], 1.0f / sum[1]);
}

// Probabilities and gradients of scores are made twice, from the same tiles: with keys as rows for the gradients of keys and values, with queries as rows for those of queries. So no warp needs what
// another has made.
template <int DEPTH, int WARPS>
__device__ __forceinline__ void attention_backward_whole(const AttentionTask* tasks, const int* shape) {
    constexpr int R = 16 * WARPS, S = DEPTH + 4, C = 32;
    using Sets = WholeSets<DEPTH, R>;
    const AttentionTask& task = tasks[blockIdx.z];
    if (blockIdx.y / task.heads >= examples_of(shape)) return;
    const Sets sets(task, shape);
    int q0 = sets.q0, queries = sets.queries, k0 = sets.k0, keys = sets.keys;
    extern __shared__ __align__(16) float shared[];
    float *qs = shared, *ds = qs + R * S, *ks = ds + R * S, *vs = ks + R * S, *lses = vs + R * S, *deltas = lses + R;
    sets.copy(qs, task.query, q0, queries);
    sets.copy(ks, task.key, k0, keys);
    sets.copy(vs, task.value, k0, keys);
    copies_commit();
    const HeadSlice results = task.out, of_results = task.d_out;
    float4 out[Sets::COUNT], d_out[Sets::COUNT];
#pragma unroll
    for (int i = 0; i < Sets::COUNT; i++) {
        int r = sets.row + i * Sets::STEP;
        out[i] = d_out[i] = make_float4(0, 0, 0, 0);
        if (sets.inside && r < queries) {
            out[i] = *(const float4*)head_at(results, sets.dims, sets.place, q0 + r);
            d_out[i] = *(const float4*)head_at(of_results, sets.dims, sets.place, q0 + r);
        }
    }
#pragma unroll
    for (int i = 0; i < Sets::COUNT; i++) {
        int r = sets.row + i * Sets::STEP;
        *(float4*)(ds + r * S + sets.column) = d_out[i];
        float delta = lanes_sum<Sets::ACROSS>(total(out[i] * d_out[i]));
        if (sets.column == 0) {
            lses[r] = r < queries ? task.stats[((size_t)(q0 + r) * sets.heads + sets.head) * 2] : 1e30f;
            deltas[r] = delta;
        }
    }
    copies_wait<0>();
    __syncthreads();
    int warp = threadIdx.x / 32, t = threadIdx.x % 4, row = warp * 16 + threadIdx.x % 32 / 4;
    float scale = task.scale * LOG2E, factor = task.scale;
    if (warp * 16 < keys) {
        float dk[DEPTH / 8][4] = {}, dv[DEPTH / 8][4] = {};
        bool there[2] = {row < keys, row + 8 < keys};
        for (int base = 0; base < queries; base += C) {
            float s[C / 8][4], d[C / 8][4];
            scores<DEPTH, C>(s, OwnRows<S>(ks), qs + base * S);
#pragma unroll
            for (int j = 0; j < C / 8; j++) {
                float2 lse = *(const float2*)(lses + base + j * 8 + 2 * t);
#pragma unroll
                for (int e = 0; e < 4; e++) s[j][e] = there[e / 2] ? power_of_two(s[j][e] * scale - (e % 2 ? lse.y : lse.x)) : 0.0f;
            }
            mix<DEPTH, C>(dv, s, ds + base * S);
            scores<DEPTH, C>(d, OwnRows<S>(vs), ds + base * S);
#pragma unroll
            for (int j = 0; j < C / 8; j++) {
                float2 delta = *(const float2*)(deltas + base + j * 8 + 2 * t);
#pragma unroll
                for (int e = 0; e < 4; e++) s[j][e] *= (d[j][e] - (e % 2 ? delta.y : delta.x)) * factor;
            }
            mix<DEPTH, C>(dk, s, qs + base * S);
        }
        sets.write(task.d_key, k0, keys, dk, 1.0f, 1.0f);
        sets.write(task.d_value, k0, keys, dv, 1.0f, 1.0f);
    }
    if (warp * 16 < queries) {
        float dq[DEPTH / 8][4] = {}, lse[2] = {lses[row], lses[row + 8]}, delta[2] = {deltas[row], deltas[row + 8]};
        for (int base = 0; base < keys; base += C) {
            float s[C / 8][4], d[C / 8][4];
            int left = keys - base - 2 * t;
            scores<DEPTH, C>(s, OwnRows<S>(qs), ks + base * S);
            scores<DEPTH, C>(d, OwnRows<S>(ds), vs + base * S);
#pragma unroll
            for (int j = 0; j < C / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float p = j * 8 + e % 2 < left ? power_of_two(s[j][e] * scale - lse[e / 2]) : 0.0f;
                    s[j][e] = p * ((d[j][e] - delta[e / 2]) * factor);
                }
            mix<DEPTH, C>(dq, s, ks + base * S);
        }
        sets.write(task.d_query, q0, queries, dq, 1.0f, 1.0f);
    }
}

#define WHOLE_ATTENTION(DEPTH, WARPS, BLOCKS)                                                                                           \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) attention_backward_whole_##DEPTH##_##WARPS(const AttentionTask* t, const int* s) { in_turn(t + blockIdx.z, s); \
        attention_backward_whole<DEPTH, WARPS>(t, s);                                                                                            \
    }                                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) attention_forward_whole_##DEPTH##_##WARPS(const AttentionTask* t, const int* s) { in_turn(t + blockIdx.z, s); \
        attention_forward_whole<DEPTH, WARPS>(t, s);                                                                                    \
    }
