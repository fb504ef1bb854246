// Attention of sets that a block holds as a whole: one block per example, head and relation. Forward a warp has 16 queries and goes over the keys. Backward it has 16 keys and goes over the queries, then
// 16 queries and goes over the keys. Probabilities and gradients of scores leave one product as sums and enter the next as its left operand, 32 or 16 columns at a time; the latter also lie in shared memory for
// the second pass, where there is room.
//
// Matrix units get halves, which have as many bits as tf32 and take half the room, reads and products. What they lack is range, so queries, keys, values and gradients of results are multiplied by a power
// of two that belongs to the block: their largest number lies between 8 and 16 then, and a gradient of scores, below 2 · 64 · 16², is a half too. A number 2¹⁷ times smaller than the largest keeps all its bits.
//
// Heads of four numbers are pieces of 16 bytes of each row. Memory is written by 32, and pieces of 16 take several times as long. So blocks of two neighbouring heads can be a cluster: each leaves
// half of its rows to the other, and writes the other half for both heads.

__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Writes four blocks of 8 by 8 halves, as `load_bits` reads them.
__device__ __forceinline__ void store_bits(u32 row, const u32* r) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

// C += A B for 16 by 16 numbers of A.
__device__ __forceinline__ void mma_halves(float* c, const u32* a, const u32* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// C += A B for 16 by 8 numbers of A.
__device__ __forceinline__ void mma_halves(float* c, const u32* a, u32 b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b));
}

__device__ __forceinline__ u32 warp_most(u32 x) {
    u32 y;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
    return y;
}

// Bytes from a row of a tile to the next: eight rows lie in different banks.
__host__ __device__ constexpr int row_bytes(int depth) { return depth == 8 ? 16 : 2 * depth + 16; }

// A warp's 16 rows of a tile on the left of a product, in registers where they are few.
template <int DEPTH> struct OwnRows {
    static constexpr int STEPS = (DEPTH + 15) / 16;
    static constexpr bool KEPT = DEPTH <= 32;
    u32 at, kept[KEPT ? STEPS : 1][4];
    __device__ __forceinline__ OwnRows(u32 tile) : at(tile + (threadIdx.x / 32 * 16 + threadIdx.x % 16) * row_bytes(DEPTH) + (DEPTH == 8 ? 0 : threadIdx.x % 32 / 16 * 16)) {
        if constexpr (KEPT)
#pragma unroll
            for (int k = 0; k < STEPS; k++) load_bits(kept[k], at + k * 32);
    }
    __device__ __forceinline__ void read(u32* a, int k) const {
        if constexpr (KEPT)
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = kept[k][i];
        else
            load_bits(a, at + k * 32);
    }
};

// c += 16 rows on the left times N rows of b.
template <int DEPTH, int N>
__device__ __forceinline__ void scores(float (*c)[4], const OwnRows<DEPTH>& left, u32 b) {
    constexpr int S = row_bytes(DEPTH);
    int lane = threadIdx.x % 32;
    u32 a[4], r[4];
    if constexpr (DEPTH == 8) {
        left.read(a, 0);
#pragma unroll
        for (int j = 0; j < N / 8; j += 4) {
            load_bits(r, b + (j * 8 + lane) * S);
#pragma unroll
            for (int i = 0; i < 4; i++) mma_halves(c[j + i], a, r[i]);
        }
    } else {
        u32 from = b + (lane / 16 * 8 + lane % 8) * S + lane / 8 % 2 * 16;
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) {
            left.read(a, k);
#pragma unroll
            for (int j = 0; j < N / 8; j += 2) {
                load_bits(r, from + j * 8 * S + k * 32);
                mma_halves(c[j], a, r);
                mma_halves(c[j + 1], a, r + 2);
            }
        }
    }
}

// 16 rows of N sums as the left operand of a product.
template <int N> __device__ __forceinline__ void pack(u32 (*a)[4], const float (*x)[4]) {
#pragma unroll
    for (int k = 0; k < N / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) a[k][i] = two_halves(x[2 * k + i / 2][i % 2 * 2], x[2 * k + i / 2][i % 2 * 2 + 1]);
}

// acc += a b, with N rows of b.
template <int DEPTH, int N>
__device__ __forceinline__ void mix(float (*acc)[4], const u32 (*a)[4], u32 b) {
    constexpr int S = row_bytes(DEPTH);
    int lane = threadIdx.x % 32;
    u32 r[4];
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        if constexpr (DEPTH == 8) {
            // Four blocks are 32 rows.
            if (k % 2 == 0) load_turned(r, b + (k * 16 + lane % (N < 32 ? N : 32)) * S);
            mma_halves(acc[0], a[k], r + k % 2 * 2);
        } else {
#pragma unroll
            for (int j = 0; j < DEPTH / 8; j += 2) {
                load_turned(r, b + (k * 16 + lane % 16) * S + lane / 16 * 16 + j * 16);
                mma_halves(acc[j], a[k], r);
                mma_halves(acc[j + 1], a[k], r + 2);
            }
        }
    }
}

// Scores of N keys, of which `left` are there: those of the others become a number.
template <int N> __device__ __forceinline__ void set_missing(float (*s)[4], int left, float number) {
    if (N > left)
        each_number<N>([&](int j, int e) {
            if (j * 8 + threadIdx.x % 4 * 2 + e % 2 >= left) s[j][e] = number;
        });
}

// The power of two that brings numbers of a size between 8 and 16, and its inverse; a size is the exponent of the largest number as it stands in its bits. Nothing brings the infinite there: beside it all
// others would be lost, so it makes everything no number.
struct Unit {
    float to, from;
    __device__ __forceinline__ Unit(u32 size) : to(__uint_as_float(size == 255 ? 0x7fc00000u : (257 - size) << 23)), from(__uint_as_float((size - 3) << 23)) {}
};

// The size of a block's numbers from the bits of its warps' largest: those of nothing but zeros are as good as 8, the smallest as good as none.
template <int WARPS> __device__ __forceinline__ u32 size_of(const u32* largest) {
    int lane = threadIdx.x % 32;
    u32 most = warp_most(lane < WARPS ? largest[lane] : 0);
    return most == 0 ? 130 : max(most >> 23, 4u);
}

// What a block has: an example's queries and keys, one head. Tiles hold R rows of DEPTH halves; a thread has four columns, from `column` on, of every STEPth row from `row` on.
template <int DEPTH, int R> struct WholeSets {
    static constexpr int S = row_bytes(DEPTH), TILE = R * S, ACROSS = DEPTH / 4, COUNT = DEPTH / 8, STEP = 8 * R / DEPTH;
    int heads, head, example, dims, width, row, column, q0, queries, k0, keys;
    u32 inverse;
    __device__ __forceinline__ WholeSets(const AttentionTask& task, const int* shape)
        : heads(task.heads), head(blockIdx.x), example(blockIdx.y), dims(dims_of(task.query.space, shape)), width(task.width), row(threadIdx.x / ACROSS), column(threadIdx.x % ACROSS * 4) {
        q0 = element(task.query.space, shape, example), queries = element(task.query.space, shape, example + 1) - q0;
        k0 = element(task.key.space, shape, example), keys = element(task.key.space, shape, example + 1) - k0;
        inverse = (u32)__fdividef(65536.0f, (float)width) + 1;
    }
    // An element's rows, at the head's columns of the first dimension.
    __device__ __forceinline__ float* element_at(const HeadSlice& h, int element) const {
        float* at = h.data + (size_t)(u32)(element * dims) * (u32)h.ld + head * width;
        __builtin_assume(__isGlobal(at));
        return at;
    }
    // Where one of the head's columns lies from there; those of a dimension lie side by side.
    __device__ __forceinline__ u32 offset(const HeadSlice& h, int column) const { return column + (column * inverse >> 16) * (h.ld - width); }
    // The thread's numbers of `count` elements from `start` on, zeros after them.
    __device__ __forceinline__ void fetch(float4* x, const HeadSlice& h, int start, int count) const {
        const float* from = element_at(h, start + row) + offset(h, column);
        u32 step = STEP * dims * h.ld;
        if (column >= dims * width) count = 0;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            x[i] = make_float4(0, 0, 0, 0);
            if (row + i * STEP < count) x[i] = __ldcg((const float4*)(from + i * step));
        }
    }
    // Starts copying them, as they are, to a place of R · DEPTH numbers that each thread has its own of.
    __device__ __forceinline__ void copy(char* to, const HeadSlice& h, int start, int count) const {
        const float* from = element_at(h, start) + offset(h, column);
        u32 step = dims * h.ld, at = shared_at(to) + threadIdx.x * 16;
        if (column >= dims * width) count = 0;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int r = row + i * STEP;
            copy16(at + i * R * 32, from + (r < count ? r * step : 0), r < count);
        }
    }
    __device__ __forceinline__ void take(float4* x, const char* from) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++) x[i] = *(const float4*)(from + threadIdx.x * 16 + i * R * 32);
    }
    // The bits of the warp's largest number, signs aside.
    __device__ __forceinline__ u32 largest(const float4* x) const {
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < COUNT; i++) most = fmaxf(fmaxf(fmaxf(most, fabsf(x[i].x)), fmaxf(fabsf(x[i].y), fabsf(x[i].z))), fabsf(x[i].w));
        return warp_most(__float_as_uint(most));
    }
    __device__ __forceinline__ void lay(char* tile, const float4* x, float unit) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            float4 y = x[i] * unit;
            *(uint2*)(tile + (row + i * STEP) * S + column * 2) = make_uint2(two_halves(y.x, y.y), two_halves(y.z, y.w));
        }
    }
    // Of what sums of eight columns lie in a lane, the two numbers of one of its rows, the upper or the lower, multiplied by that row's number.
    static __device__ __forceinline__ float2 of_row(const float* x, bool lower, float first, float second) {
        return lower ? make_float2(x[2] * second, x[3] * second) : make_float2(x[0] * first, x[1] * first);
    }
    // Writes a warp's 16 rows, as sums lie, each multiplied by a number.
    __device__ __forceinline__ void write(const HeadSlice& h, int start, int count, const float (*x)[4], float first, float second) const {
        int r = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
        float *to = element_at(h, start + r), *below = to + 8 * dims * h.ld;
#pragma unroll
        for (int j = 0; j < DEPTH / 8; j++) {
            int column = j * 8 + threadIdx.x % 4 * 2;
            if (column >= dims * width) break;
            u32 at = offset(h, column);
            if (r < count) *(float2*)(to + at) = of_row(x[j], false, first, second);
            if (r + 8 < count) *(float2*)(below + at) = of_row(x[j], true, first, second);
        }
    }
    // The same for both heads of a cluster, in two steps with a meeting between them. Of a warp's rows the block of the first head writes the first 8 and leaves the others where the other block finds them, and
    // the block of the second head the other way round.
    static constexpr int LEFT = 2 * R * DEPTH;
    static_assert(LEFT <= TILE, "what is left fits where a tile was");
    __device__ __forceinline__ void leave(char* place, const float (*x)[4], float first, float second) const {
#pragma unroll
        for (int j = 0; j < DEPTH / 8; j++) ((float2*)place)[j * R * 2 + threadIdx.x] = of_row(x[j], head % 2 == 0, first, second);
    }
    // Of eight columns, two dimensions of the head, a lane has half of one dimension, and takes the same half of the other dimension of the other head. So the four lanes of a row have both heads of both
    // dimensions, and write those of one at a time: 32 bytes that lie together.
    __device__ __forceinline__ void write_both(const HeadSlice& h, int start, int count, const char* place, const float (*x)[4], float first, float second) const {
        int own = head % 2, r = threadIdx.x / 32 * 16 + own * 8 + threadIdx.x % 32 / 4;
        bool low = threadIdx.x % 4 < 2;
        if (r >= count) return;
        float* to = element_at(h, start + r) + threadIdx.x % 2 * 2;
        float* others = to + (own ? -4 : 4);
#pragma unroll
        for (int j = 0; j < DEPTH / 8; j++) {
            float2 mine = of_row(x[j], own, first, second);
            float2 theirs = of_block((const float2*)place + j * R * 2 + (threadIdx.x ^ 2), 1 - own);
            if (2 * j < dims) *(float2*)((low ? to : others) + 2 * j * h.ld) = low ? mine : theirs;
            if (2 * j + 1 < dims) *(float2*)((low ? others : to) + (2 * j + 1) * h.ld) = low ? theirs : mine;
        }
    }
    // Both, with a place that can be used again.
    __device__ __forceinline__ void hand_over(const HeadSlice& h, int start, int count, char* place, const float (*x)[4], float first, float second) const {
        leave(place, x, first, second);
        cluster_meet();
        write_both(h, start, count, place, x, first, second);
        cluster_meet();
    }
    // Two numbers to a query: log2 of the sum of exponentials, and for the first of a set the sizes of queries, keys and values.
    __device__ __forceinline__ float* stats(float* of_task, int query) const { return of_task + ((size_t)(u32)(q0 + query) * (u32)heads + head) * 2; }
};

// What sums of products of queries and keys are multiplied by to become powers of two; never so small that what stands for a missing key could count.
__device__ __forceinline__ float score_factor(float scale, Unit query, Unit key) { return fmaxf(scale * LOG2E * query.from * key.from, 1e-36f); }

template <int DEPTH, int WARPS, bool PAIRED>
__device__ __forceinline__ void attention_forward_whole(const AttentionTask* tasks, const int* shape) {
    constexpr int R = 16 * WARPS, C = 32;
    using Sets = WholeSets<DEPTH, R>;
    const AttentionTask& task = tasks[blockIdx.z];
    if (blockIdx.y >= examples_of(shape)) return;
    const Sets sets(task, shape);
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, queries = sets.queries, keys = sets.keys;
    extern __shared__ __align__(16) float shared[];
    char *qs = (char*)shared, *ks = qs + Sets::TILE, *vs = ks + Sets::TILE;
    u32* tops = (u32*)(vs + Sets::TILE);
    float4 q[Sets::COUNT], k[Sets::COUNT], v[Sets::COUNT];
    sets.fetch(q, task.query, sets.q0, queries);
    sets.fetch(k, task.key, sets.k0, keys);
    sets.fetch(v, task.value, sets.k0, keys);
    u32 top[3] = {sets.largest(q), sets.largest(k), sets.largest(v)};
    if (threadIdx.x % 32 < 3) tops[threadIdx.x % 32 * WARPS + warp] = threadIdx.x % 32 == 0 ? top[0] : threadIdx.x % 32 == 1 ? top[1] : top[2];
    __syncthreads();
    u32 sizes[3] = {size_of<WARPS>(tops), size_of<WARPS>(tops + WARPS), size_of<WARPS>(tops + 2 * WARPS)};
    Unit query(sizes[0]), key(sizes[1]), value(sizes[2]);
    sets.lay(qs, q, query.to);
    sets.lay(ks, k, key.to);
    sets.lay(vs, v, value.to);
    __syncthreads();
    if (warp * 16 >= queries) return;
    float out[DEPTH / 8][4] = {}, most[2] = {-1e38f, -1e38f}, sum[2] = {0.0f, 0.0f}, factor = score_factor(task.scale, query, key);
    const OwnRows<DEPTH> own(shared_at(qs));
    u32 key_rows = shared_at(ks), value_rows = shared_at(vs);
    for (int base = 0; base < keys; base += C) {
        float s[C / 8][4] = {};
        scores<DEPTH, C>(s, own, key_rows + base * Sets::S);
        set_missing<C>(s, keys - base, -1e38f);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = most[h];
#pragma unroll
            for (int j = 0; j < C / 8; j++) top = fmaxf(top, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            float shrink = power_of_two((most[h] - top) * factor), offset = top * factor;
            most[h] = top;
            sum[h] *= shrink;
#pragma unroll
            for (int j = 0; j < DEPTH / 8; j++) { out[j][2 * h] *= shrink; out[j][2 * h + 1] *= shrink; }
#pragma unroll
            for (int j = 0; j < C / 8; j++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) { s[j][e] = power_of_two(s[j][e] * factor - offset); sum[h] += s[j][e]; }
        }
        u32 p[C / 16][4];
        pack<C>(p, s);
        mix<DEPTH, C>(out, p, value_rows + base * Sets::S);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] = lanes_sum<4>(sum[h]);
        int q = warp * 16 + g + h * 8;
        if (t == 0 && q < queries) sets.stats(task.stats, q)[0] = most[h] * factor + __log2f(sum[h]);
    }
    if (threadIdx.x == 0) sets.stats(task.stats, 0)[1] = __uint_as_float(sizes[0] | sizes[1] << 8 | sizes[2] << 16);
    float first = __fdividef(value.from, sum[0]), second = __fdividef(value.from, sum[1]);
    if constexpr (PAIRED) {
        __syncthreads();
        sets.hand_over(task.out, sets.q0, queries, qs, out, first, second);
    } else {
        sets.write(task.out, sets.q0, queries, out, first, second);
    }
}

// Whether gradients of scores stay in shared memory from the pass over keys to the one over queries, as two blocks to a processor leave room for them. Otherwise they are made again, with queries as rows.
__host__ __device__ constexpr bool scores_stay(int depth, int warps) { return depth < 64 || warps <= 8; }
// Bytes for them, or for the values that lie there before.
__host__ __device__ constexpr int kept_bytes(int depth, int warps) { return scores_stay(depth, warps) ? max(16 * warps * (32 * warps + 16), 64 * warps * depth) : 0; }

template <int DEPTH, int WARPS, bool PAIRED>
__device__ __forceinline__ void attention_backward_whole(const AttentionTask* tasks, const int* shape) {
    // Fewer queries at a time where registers are few.
    constexpr int R = 16 * WARPS, C = DEPTH == 64 && WARPS > 8 ? 16 : 32;
    using Sets = WholeSets<DEPTH, R>;
    const AttentionTask& task = tasks[blockIdx.z];
    if (blockIdx.y >= examples_of(shape)) return;
    const Sets sets(task, shape);
    int q0 = sets.q0, queries = sets.queries, k0 = sets.k0, keys = sets.keys, warp = threadIdx.x / 32;
    extern __shared__ __align__(16) float shared[];
    char *qs = (char*)shared, *ds = qs + Sets::TILE, *ks = ds + Sets::TILE, *vs = ks + Sets::TILE;
    // Of gradients of scores a row for a key, of halves for queries.
    constexpr bool STAY = scores_stay(DEPTH, WARPS);
    constexpr int T = 2 * R + 16;
    char* ss = vs + Sets::TILE;
    float *lses = (float*)(ss + kept_bytes(DEPTH, WARPS)), *deltas = lses + R;
    u32* tops = (u32*)(deltas + R);
    // For what is left to the other block, where no tile is done with.
    char* place = (char*)(tops + WARPS);
    // All is asked for before anything is waited for: queries and keys go where tiles will be, values where gradients of scores will.
    constexpr int RAW = R * DEPTH * 4;
    sets.copy(qs, task.query, q0, queries);
    sets.copy(qs + RAW, task.key, k0, keys);
    if constexpr (STAY) sets.copy(ss, task.value, k0, keys);
    copies_commit();
    const float* stats = sets.stats(task.stats, 0);
    u32 sizes = __float_as_uint(stats[1]);
    float4 d_out[Sets::COUNT], x[Sets::COUNT], y[Sets::COUNT];
    float task_scale = task.scale, lse[Sets::COUNT], delta[Sets::COUNT];
    sets.fetch(d_out, task.d_out, q0, queries);
    sets.fetch(x, task.out, q0, queries);
#pragma unroll
    for (int i = 0; i < Sets::COUNT; i++) {
        int r = sets.row + i * Sets::STEP;
        lse[i] = 1e30f;
        if (sets.column == 0 && r < queries) lse[i] = stats[2 * r * sets.heads];
    }
#pragma unroll
    for (int i = 0; i < Sets::COUNT; i++) delta[i] = lanes_sum<Sets::ACROSS>(total(x[i] * d_out[i]));
    u32 top = sets.largest(d_out);
    if (threadIdx.x % 32 == 0) tops[warp] = top;
    Unit query(sizes & 255), key(sizes >> 8 & 255), value(sizes >> 16 & 255);
    copies_wait<0>();
    sets.take(x, qs);
    sets.take(y, qs + RAW);
    __syncthreads();
    sets.lay(qs, x, query.to);
    sets.lay(ks, y, key.to);
    if constexpr (STAY) sets.take(x, ss);
    else sets.fetch(x, task.value, k0, keys);
    sets.lay(vs, x, value.to);
    Unit result(size_of<WARPS>(tops));
    sets.lay(ds, d_out, result.to);
#pragma unroll
    for (int i = 0; i < Sets::COUNT; i++)
        if (sets.column == 0) {
            lses[sets.row + i * Sets::STEP] = lse[i];
            deltas[sets.row + i * Sets::STEP] = -delta[i] * result.to * value.to;
        }
    __syncthreads();
    int lane = threadIdx.x % 32, t = lane % 4, row = warp * 16 + lane / 4;
    u32 query_rows = shared_at(qs), result_rows = shared_at(ds), key_rows = shared_at(ks), value_rows = shared_at(vs), stays = shared_at(ss);
    float factor = score_factor(task_scale, query, key), scale = task_scale * result.from * value.from;
    float dk[DEPTH / 8][4] = {}, dv[DEPTH / 8][4] = {};
    if (warp * 16 < keys) {
        const OwnRows<DEPTH> own_keys(key_rows), own_values(value_rows);
        for (int base = 0; base < queries; base += C) {
            float s[C / 8][4] = {}, d[C / 8][4];
            scores<DEPTH, C>(s, own_keys, query_rows + base * Sets::S);
#pragma unroll
            for (int j = 0; j < C / 8; j++) {
                float2 lse = *(const float2*)(lses + base + j * 8 + 2 * t), delta = *(const float2*)(deltas + base + j * 8 + 2 * t);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    s[j][e] = power_of_two(s[j][e] * factor - (e % 2 ? lse.y : lse.x));
                    d[j][e] = e % 2 ? delta.y : delta.x;
                }
            }
            u32 a[C / 16][4];
            pack<C>(a, s);
            mix<DEPTH, C>(dv, a, result_rows + base * Sets::S);
            scores<DEPTH, C>(d, own_values, result_rows + base * Sets::S);
            each_number<C>([&](int j, int e) { s[j][e] *= d[j][e]; });
            pack<C>(a, s);
            mix<DEPTH, C>(dk, a, query_rows + base * Sets::S);
            if constexpr (STAY) {
                // Keys that are none must not count.
                if (warp * 16 + 16 > keys)
#pragma unroll
                    for (int k = 0; k < C / 16; k++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            if (row + i % 2 * 8 >= keys) a[k][i] = 0;
#pragma unroll
                for (int k = 0; k < C / 16; k++) store_bits(stays + (warp * 16 + lane % 16) * T + (base + k * 16 + lane / 16 * 8) * 2, a[k]);
            }
        }
    }
    float of_keys = scale * query.from, of_values = result.from, of_queries = scale * key.from;
    if constexpr (!PAIRED) {
        if (warp * 16 < keys) {
            sets.write(task.d_key, k0, keys, dk, of_keys, of_keys);
            sets.write(task.d_value, k0, keys, dv, of_values, of_values);
        }
    } else if constexpr (!STAY) {
        sets.hand_over(task.d_key, k0, keys, place, dk, of_keys, of_keys);
        sets.hand_over(task.d_value, k0, keys, place, dv, of_values, of_values);
    }
    if constexpr (STAY) __syncthreads();
    if constexpr (PAIRED && STAY) {
        sets.leave(qs, dk, of_keys, of_keys);
        sets.leave(vs, dv, of_values, of_values);
    }
    // Blocks of a pair end together.
    if (!PAIRED && warp * 16 >= queries) return;
    float dq[DEPTH / 8][4] = {};
    if constexpr (STAY) {
        u32 own = stays + (lane % 8 + lane / 16 * 8) * T + (warp * 16 + lane / 8 % 2 * 8) * 2;
#pragma unroll 2
        for (int base = 0; base < keys; base += 16) {
            u32 a[1][4];
            load_turned(a[0], own + base * T);
            mix<DEPTH, 16>(dq, a, key_rows + base * Sets::S);
        }
    } else {
        float lse[2] = {lses[row], lses[row + 8]}, delta[2] = {deltas[row], deltas[row + 8]};
        const OwnRows<DEPTH> own_queries(query_rows), own_results(result_rows);
        for (int base = 0; base < keys; base += C) {
            float s[C / 8][4] = {}, d[C / 8][4];
            u32 a[C / 16][4];
            scores<DEPTH, C>(s, own_queries, key_rows + base * Sets::S);
            each_number<C>([&](int j, int e) { d[j][e] = delta[e / 2]; });
            scores<DEPTH, C>(d, own_results, value_rows + base * Sets::S);
            each_number<C>([&](int j, int e) { s[j][e] = power_of_two(s[j][e] * factor - lse[e / 2]) * d[j][e]; });
            set_missing<C>(s, keys - base, 0.0f);
            pack<C>(a, s);
            mix<DEPTH, C>(dq, a, key_rows + base * Sets::S);
        }
    }
    if constexpr (!PAIRED) {
        sets.write(task.d_query, q0, queries, dq, of_queries, of_queries);
    } else if constexpr (!STAY) {
        sets.hand_over(task.d_query, q0, queries, place, dq, of_queries, of_queries);
    } else {
        sets.leave(ds, dq, of_queries, of_queries);
        cluster_meet();
        sets.write_both(task.d_key, k0, keys, qs, dk, of_keys, of_keys);
        sets.write_both(task.d_value, k0, keys, vs, dv, of_values, of_values);
        sets.write_both(task.d_query, q0, queries, ds, dq, of_queries, of_queries);
        cluster_meet();
    }
}

#define ATTENTION_OF_SETS(NAME, DEPTH, WARPS, BLOCKS, PAIRED)                                                                           \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) attention_backward_##NAME##_##DEPTH##_##WARPS(const AttentionTask* t, const int* s) { in_turn(t + blockIdx.z, s); \
        attention_backward_whole<DEPTH, WARPS, PAIRED>(t, s);                                                                           \
    }                                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) attention_forward_##NAME##_##DEPTH##_##WARPS(const AttentionTask* t, const int* s) { in_turn(t + blockIdx.z, s); \
        attention_forward_whole<DEPTH, WARPS, PAIRED>(t, s);                                                                            \
    }
#define WHOLE_ATTENTION(DEPTH, WARPS, BLOCKS) ATTENTION_OF_SETS(whole, DEPTH, WARPS, BLOCKS, false)
#define PAIRED_ATTENTION(DEPTH, WARPS, BLOCKS) ATTENTION_OF_SETS(paired, DEPTH, WARPS, BLOCKS, true)
