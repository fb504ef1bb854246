// Attention of sets that a block holds as a whole: one block per example, head and relation. Forward a warp has 16 queries and goes over the keys.
//
// Backward it has 16 keys, and one pass is enough. It goes over the queries, 32 at a time: probabilities and gradients of scores leave one product as sums and enter the next as its left operand, as in `attention.cu`, for the
// gradients of its keys and values. Those of scores also go to shared memory, from where some warps multiply them with all keys for the gradients of the queries. There are two places
// for them, so that a barrier for each 32 queries is enough. Matrix units cut what they are given to tf32.

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

// Where number `column` of an element's head lies, columns of one chunk being together.
__device__ __forceinline__ float* head_at(const HeadSlice& h, int dims, int width, int head, int element, int column) {
    int dim = dims == 1 ? 0 : column / width;
    return h.data + ((size_t)element * dims + dim) * h.ld + head * width + column - dim * width;
}

// Numbers of 16 elements of a warp, `count` of them there, as they stand on the left of a product.
template <int DEPTH>
__device__ __forceinline__ void load_left(u32 (*to)[4], const HeadSlice& h, int dims, int width, int head, int start, int count) {
    int first = threadIdx.x / 32 * 16 + (threadIdx.x % 32) / 4, t = threadIdx.x % 4, depth = dims * width;
#pragma unroll
    for (int k = 0; k < DEPTH / 8; k++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int r = first + e % 2 * 8, column = k * 8 + e / 2 * 4;
            to[k][e] = r < count && column < depth ? __float_as_uint(head_at(h, dims, width, head, start + r, column)[t]) : 0;
        }
}

template <int DEPTH, int WARPS>
__device__ __forceinline__ void attention_forward_whole(const AttentionTask* tasks, const int* shape) {
    constexpr int R = 16 * WARPS, S = DEPTH + 4, C = 32, ACROSS = DEPTH / 4, COUNT = DEPTH / 8, STEP = 8 * R / DEPTH;
    const AttentionTask& task = tasks[blockIdx.z];
    int heads = task.heads, width = task.width, example = blockIdx.y / heads, head = blockIdx.y % heads;
    if (example >= examples_of(shape)) return;
    int q0 = element(task.query.space, shape, example), queries = element(task.query.space, shape, example + 1) - q0;
    int k0 = element(task.key.space, shape, example), keys = element(task.key.space, shape, example + 1) - k0;
    int dims = dims_of(task.query.space, shape), depth = dims * width;
    extern __shared__ __align__(16) float shared[];
    float *ks = shared, *vs = ks + R * S;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    {
        int row = threadIdx.x / ACROSS, c = threadIdx.x % ACROSS * 4;
        bool inside = c < depth;
        int column = inside ? c : 0;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int r = row + i * STEP, at = k0 + (r < keys ? r : 0);
            copy16(ks + r * S + c, head_at(task.key, dims, width, head, at, column), inside && r < keys);
            copy16(vs + r * S + c, head_at(task.value, dims, width, head, at, column), inside && r < keys);
        }
        copies_commit();
    }
    u32 left[DEPTH / 8][4];
    load_left<DEPTH>(left, task.query, dims, width, head, q0, queries);
    copies_wait<0>();
    __syncthreads();
    if (warp * 16 >= queries) return;
    float out[DEPTH / 8][4] = {}, most[2] = {-1e30f, -1e30f}, sum[2] = {0.0f, 0.0f}, scale = task.scale * LOG2E;
    for (int base = 0; base < keys; base += C) {
        float s[C / 8][4];
        scores<DEPTH, C>(s, [&](u32* a, int k) {
#pragma unroll
            for (int e = 0; e < 4; e++) a[e] = left[k][e];
        }, ks + base * S);
        take_up<C, DEPTH>(s, out, most, sum, base, keys, scale, [](float x) { return power_of_two(x); });
        mix<DEPTH, C>(out, s, vs + base * S);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] = lanes_sum<4>(sum[h]);
        int q = warp * 16 + g + h * 8;
        if (q >= queries) continue;
        float factor = 1.0f / sum[h];
        if (t == 0) task.stats[((size_t)(q0 + q) * heads + head) * 2] = most[h] + log2f(sum[h]);
#pragma unroll
        for (int j = 0; j < DEPTH / 8; j++)
            if (j * 8 + 2 * t < depth)
                *(float2*)head_at(task.out, dims, width, head, q0 + q, j * 8 + 2 * t) = make_float2(out[j][2 * h] * factor, out[j][2 * h + 1] * factor);
    }
}

template <int DEPTH, int WARPS>
__device__ __forceinline__ void attention_backward_whole(const AttentionTask* tasks, const int* shape) {
    constexpr int R = 16 * WARPS, S = DEPTH + 4, C = 32, T = R + 4, ACROSS = DEPTH / 4, COUNT = DEPTH / 8, STEP = 8 * R / DEPTH;
    // Values are wanted by the warp of their element only, on the left: they stay in registers where there are enough.
    constexpr bool KEPT = DEPTH <= 32;
    const AttentionTask& task = tasks[blockIdx.z];
    int heads = task.heads, width = task.width, example = blockIdx.y / heads, head = blockIdx.y % heads;
    if (example >= examples_of(shape)) return;
    int q0 = element(task.query.space, shape, example), queries = element(task.query.space, shape, example + 1) - q0;
    int k0 = element(task.key.space, shape, example), keys = element(task.key.space, shape, example + 1) - k0;
    int dims = dims_of(task.query.space, shape), depth = dims * width;
    extern __shared__ __align__(16) float shared[];
    float *qs = shared, *ks = qs + R * S, *ds = ks + R * S, *gradients = ds + R * S, *lses = gradients + 2 * C * T, *deltas = lses + R, *vs = deltas + R;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    {
        // A thread has one chunk of every so many elements.
        int row = threadIdx.x / ACROSS, c = threadIdx.x % ACROSS * 4;
        bool inside = c < depth;
        int column = inside ? c : 0;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int r = row + i * STEP;
            bool is_query = inside && r < queries, is_key = inside && r < keys;
            copy16(qs + r * S + c, head_at(task.query, dims, width, head, q0 + (is_query ? r : 0), column), is_query);
            copy16(ks + r * S + c, head_at(task.key, dims, width, head, k0 + (is_key ? r : 0), column), is_key);
            if constexpr (!KEPT) copy16(vs + r * S + c, head_at(task.value, dims, width, head, k0 + (is_key ? r : 0), column), is_key);
        }
        copies_commit();
        float4 out[COUNT], d_out[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int r = row + i * STEP;
            out[i] = d_out[i] = make_float4(0, 0, 0, 0);
            if (inside && r < queries) {
                out[i] = *(const float4*)head_at(task.out, dims, width, head, q0 + r, column);
                d_out[i] = *(const float4*)head_at(task.d_out, dims, width, head, q0 + r, column);
            }
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int r = row + i * STEP;
            *(float4*)(ds + r * S + c) = d_out[i];
            float delta = lanes_sum<ACROSS>(total(out[i] * d_out[i]));
            if (c == 0) {
                lses[r] = r < queries ? task.stats[((size_t)(q0 + r) * heads + head) * 2] : 1e30f;
                deltas[r] = delta;
            }
        }
    }
    u32 values[KEPT ? DEPTH / 8 : 1][4];
    if constexpr (KEPT) load_left<DEPTH>(values, task.value, dims, width, head, k0, keys);
    copies_wait<0>();
    __syncthreads();
    float dk[DEPTH / 8][4] = {}, dv[DEPTH / 8][4] = {};
    float scale = task.scale * LOG2E, factor = task.scale;
    bool active = warp * 16 < keys, there[2] = {warp * 16 + g < keys, warp * 16 + g + 8 < keys};
    const float* own = ks + (warp * 16 + lane % 16) * S + lane / 16 * 4;
    for (int base = 0, turn = 0; base < queries; base += C, turn ^= 1) {
        float* here = gradients + turn * C * T;
        if (active) {
            float s[C / 8][4], d[C / 8][4];
            scores<DEPTH, C>(s, [&](u32* a, int k) { load_bits(a, own + k * 8); }, qs + base * S);
#pragma unroll
            for (int j = 0; j < C / 8; j++) {
                float2 lse = *(const float2*)(lses + base + j * 8 + 2 * t);
#pragma unroll
                for (int e = 0; e < 4; e++) s[j][e] = there[e / 2] ? power_of_two(s[j][e] * scale - (e % 2 ? lse.y : lse.x)) : 0.0f;
            }
            mix<DEPTH, C>(dv, s, ds + base * S);
            scores<DEPTH, C>(d, [&](u32* a, int k) {
                if constexpr (KEPT) {
#pragma unroll
                    for (int e = 0; e < 4; e++) a[e] = values[k][e];
                } else load_bits(a, own + (vs - ks) + k * 8);
            }, ds + base * S);
#pragma unroll
            for (int j = 0; j < C / 8; j++) {
                float2 delta = *(const float2*)(deltas + base + j * 8 + 2 * t);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    s[j][e] *= (d[j][e] - (e % 2 ? delta.y : delta.x)) * factor;
                    here[(j * 8 + 2 * t + e % 2) * T + warp * 16 + g + e / 2 * 8] = s[j][e];
                }
            }
            mix<DEPTH, C>(dk, s, qs + base * S);
        }
        __syncthreads();
        // 16 queries by 8 numbers a warp, over all keys; the other place is written meanwhile.
        for (int job = warp; job < C / 16 * (DEPTH / 8); job += WARPS) {
            int row = job / (DEPTH / 8) * 16, column = job % (DEPTH / 8) * 8;
            if (base + row >= queries) continue;
            float sums[2][4] = {};
            const float *left = here + (row + lane % 16) * T + lane / 16 * 4, *right = ks + t * S + column + g;
            for (int k = 0; k < keys; k += 16)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    u32 a[4], b[2] = {__float_as_uint(right[(k + h * 8) * S]), __float_as_uint(right[(k + h * 8 + 4) * S])};
                    load_bits(a, left + k + h * 8);
                    mma_tf32(sums[h], a, b);
                }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int q = base + row + g + h * 8;
                if (q < queries && column + 2 * t < depth)
                    *(float2*)head_at(task.d_query, dims, width, head, q0 + q, column + 2 * t) =
                        make_float2(sums[0][2 * h] + sums[1][2 * h], sums[0][2 * h + 1] + sums[1][2 * h + 1]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (!there[h]) continue;
        int k = k0 + warp * 16 + g + h * 8;
#pragma unroll
        for (int j = 0; j < DEPTH / 8; j++) {
            int column = j * 8 + 2 * t;
            if (column >= depth) continue;
            *(float2*)head_at(task.d_key, dims, width, head, k, column) = make_float2(dk[j][2 * h], dk[j][2 * h + 1]);
            *(float2*)head_at(task.d_value, dims, width, head, k, column) = make_float2(dv[j][2 * h], dv[j][2 * h + 1]);
        }
    }
}

#define WHOLE_ATTENTION(DEPTH, WARPS, BLOCKS)                                                                                           \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) attention_backward_whole_##DEPTH##_##WARPS(const AttentionTask* t, const int* s) { in_turn(t + blockIdx.z, s); \
        attention_backward_whole<DEPTH, WARPS>(t, s);                                                                                            \
    }                                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) attention_forward_whole_##DEPTH##_##WARPS(const AttentionTask* t, const int* s) { in_turn(t + blockIdx.z, s); \
        attention_forward_whole<DEPTH, WARPS>(t, s);                                                                                    \
    }
