// Attention of sets that fit one block, O = softmax(scale · Q Kᵀ) V. Grid: (heads, examples, relations); a block owns
// one head of an example. Layouts are those of `attention.cu`. Preconditions: at most 16 · WARPS queries and keys,
// slices that allow sixteen-byte reads, scale > 0 (the largest dot product then has the largest score).
//
// Forward, a warp owns 16 queries and loops over the keys with online softmax. Backward, it owns 16 keys and loops over
// the queries (dK, dV), then owns 16 queries and loops over the keys (dQ). P and dS leave one product as accumulators
// and enter the next as A fragments. dS also stays in shared memory for the second pass, where it fits.
//
// Tensor cores read f16, which has the mantissa of tf32 at half the memory, reads and products. Its range is smaller,
// so Q, K, V and dO are scaled by a power of two per block: their largest number then lies between 8 and 16. A score
// gradient, below 2 · 64 · 16², fits f16 too. A number 2¹⁷ times smaller than the largest keeps all its bits.
//
// Heads of four numbers are 16-byte segments of each row, while memory is written in 32-byte sectors. So blocks of two
// neighbouring heads can form a cluster: each stages half of its rows for its peer and writes the other half for both
// heads.

// 2^x by the special function unit; denormal results are zero.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Stores four 8 by 8 blocks of f16, the inverse of `ldmatrix_x4`.
__device__ __forceinline__ void stmatrix_x4(u32 row, const u32* r) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

// C += A B with A of 16 by 16 f16 numbers.
__device__ __forceinline__ void mma_f16(float* c, const u32* a, const u32* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// C += A B with A of 16 by 8 f16 numbers.
__device__ __forceinline__ void mma_f16(float* c, const u32* a, u32 b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b));
}

// The maximum over a warp; all lanes receive it.
__device__ __forceinline__ u32 warp_max(u32 x) {
    u32 y;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
    return y;
}

// Bytes between rows of a tile; eight rows lie in different banks.
__host__ __device__ constexpr int row_bytes(int depth) { return depth == 8 ? 16 : 2 * depth + 16; }

// A warp's 16 rows of the A operand, as fragments of k-steps of 16 columns. Up to depth 32 they stay in registers. `at`
// is the shared-memory address that the lane supplies to ldmatrix.
template <int DEPTH> struct LeftRows {
    static constexpr int STEPS = (DEPTH + 15) / 16;
    static constexpr bool IN_REGISTERS = DEPTH <= 32;
    u32 at, registers[IN_REGISTERS ? STEPS : 1][4];
    __device__ __forceinline__ LeftRows(u32 tile) : at(tile + (threadIdx.x / 32 * 16 + threadIdx.x % 16) * row_bytes(DEPTH) + (DEPTH == 8 ? 0 : threadIdx.x % 32 / 16 * 16)) {
        if constexpr (IN_REGISTERS)
#pragma unroll
            for (int k = 0; k < STEPS; k++) ldmatrix_x4(registers[k], at + k * 32);
    }
    __device__ __forceinline__ void read(u32* a, int k) const {
        if constexpr (IN_REGISTERS)
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = registers[k][i];
        else
            ldmatrix_x4(a, at + k * 32);
    }
};

// c += left b[0..N, :]ᵀ: 16 rows by N, such as S = Q Kᵀ. b is the address of a tile in shared memory.
template <int DEPTH, int N>
__device__ __forceinline__ void mma_qk(float (*c)[4], const LeftRows<DEPTH>& left, u32 b) {
    constexpr int S = row_bytes(DEPTH);
    int lane = threadIdx.x % 32;
    u32 a[4], r[4];
    if constexpr (DEPTH == 8) {
        left.read(a, 0);
#pragma unroll
        for (int j = 0; j < N / 8; j += 4) {
            ldmatrix_x4(r, b + (j * 8 + lane) * S);
#pragma unroll
            for (int i = 0; i < 4; i++) mma_f16(c[j + i], a, r[i]);
        }
    } else {
        u32 from = b + (lane / 16 * 8 + lane % 8) * S + lane / 8 % 2 * 16;
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) {
            left.read(a, k);
#pragma unroll
            for (int j = 0; j < N / 8; j += 2) {
                ldmatrix_x4(r, from + j * 8 * S + k * 32);
                mma_f16(c[j], a, r);
                mma_f16(c[j + 1], a, r + 2);
            }
        }
    }
}

// 16 rows of N accumulators as A fragments in f16.
template <int N> __device__ __forceinline__ void pack_a_fragment(u32 (*a)[4], const float (*x)[4]) {
#pragma unroll
    for (int k = 0; k < N / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) a[k][i] = pack_f16x2(x[2 * k + i / 2][i % 2 * 2], x[2 * k + i / 2][i % 2 * 2 + 1]);
}

// acc[16, DEPTH] += a[16, N] b[N, DEPTH], such as O += P V. b is the address of a tile in shared memory.
template <int DEPTH, int N>
__device__ __forceinline__ void mma_pv(float (*acc)[4], const u32 (*a)[4], u32 b) {
    constexpr int S = row_bytes(DEPTH);
    int lane = threadIdx.x % 32;
    u32 r[4];
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        if constexpr (DEPTH == 8) {
            // Four blocks are 32 rows.
            if (k % 2 == 0) ldmatrix_x4_trans(r, b + (k * 16 + lane % (N < 32 ? N : 32)) * S);
            mma_f16(acc[0], a[k], r + k % 2 * 2);
        } else {
#pragma unroll
            for (int j = 0; j < DEPTH / 8; j += 2) {
                ldmatrix_x4_trans(r, b + (k * 16 + lane % 16) * S + lane / 16 * 16 + j * 16);
                mma_f16(acc[j], a[k], r);
                mma_f16(acc[j + 1], a[k], r + 2);
            }
        }
    }
}

// Sets the scores of keys from `left` on to `value`.
template <int N> __device__ __forceinline__ void mask_missing(float (*s)[4], int left, float value) {
    if (N > left)
        for_each_element<N>([&](int j, int e) {
            if (j * 8 + threadIdx.x % 4 * 2 + e % 2 >= left) s[j][e] = value;
        });
}

// The power of two that scales numbers to between 8 and 16, and its inverse. `exponent` is the exponent field of the
// largest number, biased by 127: the factors are 2^(130 − exponent) and 2^(exponent − 130). An infinite number (255)
// turns the results into NaN.
struct F16Scale {
    float scale, unscale;
    __device__ __forceinline__ F16Scale(u32 exponent) : scale(__uint_as_float(exponent == 255 ? 0x7fc00000u : (257 - exponent) << 23)), unscale(__uint_as_float((exponent - 3) << 23)) {}
};

// The exponent field of a block's largest number, from its warps' maxima. All zeros count as 8 (field 130); fields
// below 4 are clamped, so that both factors are normal numbers.
template <int WARPS> __device__ __forceinline__ u32 max_exponent(const u32* warp_max_bits) {
    int lane = threadIdx.x % 32;
    u32 block_max = warp_max(lane < WARPS ? warp_max_bits[lane] : 0);
    return block_max == 0 ? 130 : max(block_max >> 23, 4u);
}

// One head of an example: its queries and keys. Tiles hold R rows of DEPTH f16 numbers, S bytes apart. A thread owns
// four columns from `column` on of every STEPth row from `row` on: COUNT float4. `inverse` is 2¹⁶ / width, rounded up,
// for divisions of columns by width.
template <int DEPTH, int R> struct BlockSets {
    static constexpr int S = row_bytes(DEPTH), TILE = R * S, ACROSS = DEPTH / 4, COUNT = DEPTH / 8, STEP = 8 * R / DEPTH;
    int heads, head, example, dims, width, row, column, q0, queries, k0, keys;
    u32 inverse;
    __device__ __forceinline__ BlockSets(const AttentionTask& task, const int* shape)
        : heads(task.heads), head(blockIdx.x), example(blockIdx.y), dims(dim_count(task.query.space, shape)), width(task.width), row(threadIdx.x / ACROSS), column(threadIdx.x % ACROSS * 4) {
        q0 = element_offset(task.query.space, shape, example), queries = element_offset(task.query.space, shape, example + 1) - q0;
        k0 = element_offset(task.key.space, shape, example), keys = element_offset(task.key.space, shape, example + 1) - k0;
        inverse = (u32)__fdividef(65536.0f, (float)width) + 1;
    }
    // Address of an element's row at the head's first column.
    __device__ __forceinline__ float* element_at(const HeadSlice& h, int element_offset) const {
        float* at = h.data + (size_t)(u32)(element_offset * dims) * (u32)h.ld + head * width;
        __builtin_assume(__isGlobal(at));
        return at;
    }
    // Offset of a head's column; the columns of one input dimension are contiguous.
    __device__ __forceinline__ u32 offset(const HeadSlice& h, int column) const { return column + (column * inverse >> 16) * (h.ld - width); }
    // Loads the thread's numbers of `count` elements from `start` on; zeros after them.
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
    // Starts copying them unconverted, as [COUNT][threads] float4; each thread reads back only its own (`read_raw`).
    __device__ __forceinline__ void copy_raw(char* to, const HeadSlice& h, int start, int count) const {
        const float* from = element_at(h, start) + offset(h, column);
        u32 step = dims * h.ld, at = shared_address(to) + threadIdx.x * 16;
        if (column >= dims * width) count = 0;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int r = row + i * STEP;
            cp_async_16(at + i * R * 32, from + (r < count ? r * step : 0), r < count);
        }
    }
    __device__ __forceinline__ void read_raw(float4* x, const char* from) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++) x[i] = *(const float4*)(from + threadIdx.x * 16 + i * R * 32);
    }
    // Bits of the warp's largest absolute value.
    __device__ __forceinline__ u32 max_bits(const float4* x) const {
        float row_max = 0.0f;
#pragma unroll
        for (int i = 0; i < COUNT; i++) row_max = fmaxf(fmaxf(fmaxf(row_max, fabsf(x[i].x)), fmaxf(fabsf(x[i].y), fabsf(x[i].z))), fabsf(x[i].w));
        return warp_max(__float_as_uint(row_max));
    }
    // Writes the thread's numbers, times `factor`, to a tile.
    __device__ __forceinline__ void store_f16(char* tile, const float4* x, float factor) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            float4 y = x[i] * factor;
            *(uint2*)(tile + (row + i * STEP) * S + column * 2) = make_uint2(pack_f16x2(y.x, y.y), pack_f16x2(y.z, y.w));
        }
    }
    // Two of a lane's accumulators, of its upper or lower row, times that row's factor.
    static __device__ __forceinline__ float2 scaled_row(const float* x, bool lower, float first, float second) {
        return lower ? make_float2(x[2] * second, x[3] * second) : make_float2(x[0] * first, x[1] * first);
    }
    // Writes a warp's 16 rows of accumulators, each times its row's factor.
    __device__ __forceinline__ void write(const HeadSlice& h, int start, int count, const float (*x)[4], float first, float second) const {
        int r = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
        float *to = element_at(h, start + r), *below = to + 8 * dims * h.ld;
#pragma unroll
        for (int j = 0; j < DEPTH / 8; j++) {
            int column = j * 8 + threadIdx.x % 4 * 2;
            if (column >= dims * width) break;
            u32 at = offset(h, column);
            if (r < count) *(float2*)(to + at) = scaled_row(x[j], false, first, second);
            if (r + 8 < count) *(float2*)(below + at) = scaled_row(x[j], true, first, second);
        }
    }
    // The same for both heads of a cluster, in two steps around a cluster barrier. The block of the even head writes
    // the first 8 rows of a warp and stages the others for its peer. The block of the odd head does the reverse.
    static constexpr int PEER_BYTES = 2 * R * DEPTH;
    static_assert(PEER_BYTES <= TILE, "staged rows fit where a tile was");
    __device__ __forceinline__ void stage_for_peer(char* peer_staging, const float (*x)[4], float first, float second) const {
#pragma unroll
        for (int j = 0; j < DEPTH / 8; j++) ((float2*)peer_staging)[j * R * 2 + threadIdx.x] = scaled_row(x[j], head % 2 == 0, first, second);
    }
    // Eight columns are two input dimensions of a head. A lane holds half of one dimension and reads the same half of
    // the other dimension of the peer's head. So four lanes write 32 contiguous bytes, one dimension at a time.
    __device__ __forceinline__ void write_head_pair(const HeadSlice& h, int start, int count, const char* peer_staging, const float (*x)[4], float first, float second) const {
        int parity = head % 2, r = threadIdx.x / 32 * 16 + parity * 8 + threadIdx.x % 32 / 4;
        bool low = threadIdx.x % 4 < 2;
        if (r >= count) return;
        float* to = element_at(h, start + r) + threadIdx.x % 2 * 2;
        float* other_head = to + (parity ? -4 : 4);
#pragma unroll
        for (int j = 0; j < DEPTH / 8; j++) {
            float2 mine = scaled_row(x[j], parity, first, second);
            float2 theirs = dsmem_load((const float2*)peer_staging + j * R * 2 + (threadIdx.x ^ 2), 1 - parity);
            if (2 * j < dims) *(float2*)((low ? to : other_head) + 2 * j * h.ld) = low ? mine : theirs;
            if (2 * j + 1 < dims) *(float2*)((low ? other_head : to) + (2 * j + 1) * h.ld) = low ? theirs : mine;
        }
    }
    // Both steps; the staging memory is free again afterwards.
    __device__ __forceinline__ void exchange_and_write(const HeadSlice& h, int start, int count, char* peer_staging, const float (*x)[4], float first, float second) const {
        stage_for_peer(peer_staging, x, first, second);
        cluster_sync();
        write_head_pair(h, start, count, peer_staging, x, first, second);
        cluster_sync();
    }
    // [queries][heads][2]: log2-sum-exp; for a set's first query also the packed exponents of Q, K and V.
    __device__ __forceinline__ float* stats(float* of_task, int query) const { return of_task + ((size_t)(u32)(q0 + query) * (u32)heads + head) * 2; }
};

// The dot product of a missing key.
#define MASKED_DOT -1e38f

// Factor from dot products of scaled numbers to exponents of two. The lower bound keeps masked keys at zero:
// −1e38 · 1e-36 = −100, and 2^−100 is zero in f16.
__device__ __forceinline__ float score_factor(float scale, F16Scale query, F16Scale key) { return fmaxf(scale * LOG2E * query.unscale * key.unscale, 1e-36f); }

// O = softmax(scale · Q Kᵀ) V. Shared memory: tiles of Q, K and V, and the maxima of the warps. A warp owns 16 queries
// and loops over C keys at a time. `out`, the log2-sum-exp (stats[0]) and the exponents of the scales (stats[1] of the
// first query) are written.
template <int DEPTH, int WARPS, bool HEAD_PAIR>
__device__ __forceinline__ void attention_forward_single_block(const AttentionTask* tasks, const int* shape) {
    constexpr int R = 16 * WARPS, C = 32;
    using Sets = BlockSets<DEPTH, R>;
    const AttentionTask& task = tasks[blockIdx.z];
    if (blockIdx.y >= example_count(shape)) return;
    const Sets sets(task, shape);
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, queries = sets.queries, keys = sets.keys;
    extern __shared__ __align__(16) float shared[];
    char *qs = (char*)shared, *ks = qs + Sets::TILE, *vs = ks + Sets::TILE;
    u32* warp_max_bits = (u32*)(vs + Sets::TILE);
    float4 q[Sets::COUNT], k[Sets::COUNT], v[Sets::COUNT];
    sets.fetch(q, task.query, sets.q0, queries);
    sets.fetch(k, task.key, sets.k0, keys);
    sets.fetch(v, task.value, sets.k0, keys);
    u32 top[3] = {sets.max_bits(q), sets.max_bits(k), sets.max_bits(v)};
    if (threadIdx.x % 32 < 3) warp_max_bits[threadIdx.x % 32 * WARPS + warp] = threadIdx.x % 32 == 0 ? top[0] : threadIdx.x % 32 == 1 ? top[1] : top[2];
    __syncthreads();
    u32 exponents[3] = {max_exponent<WARPS>(warp_max_bits), max_exponent<WARPS>(warp_max_bits + WARPS), max_exponent<WARPS>(warp_max_bits + 2 * WARPS)};
    F16Scale query(exponents[0]), key(exponents[1]), value(exponents[2]);
    sets.store_f16(qs, q, query.scale);
    sets.store_f16(ks, k, key.scale);
    sets.store_f16(vs, v, value.scale);
    __syncthreads();
    if (warp * 16 >= queries) return;
    float out[DEPTH / 8][4] = {}, row_max[2] = {MASKED_DOT, MASKED_DOT}, sum[2] = {0.0f, 0.0f}, factor = score_factor(task.scale, query, key);
    const LeftRows<DEPTH> left(shared_address(qs));
    u32 key_rows = shared_address(ks), value_rows = shared_address(vs);
    for (int base = 0; base < keys; base += C) {
        float s[C / 8][4] = {};
        mma_qk<DEPTH, C>(s, left, key_rows + base * Sets::S);
        mask_missing<C>(s, keys - base, MASKED_DOT);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = row_max[h];
#pragma unroll
            for (int j = 0; j < C / 8; j++) top = fmaxf(top, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            float rescale = exp2_approx((row_max[h] - top) * factor), offset = top * factor;
            row_max[h] = top;
            sum[h] *= rescale;
#pragma unroll
            for (int j = 0; j < DEPTH / 8; j++) { out[j][2 * h] *= rescale; out[j][2 * h + 1] *= rescale; }
#pragma unroll
            for (int j = 0; j < C / 8; j++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) { s[j][e] = exp2_approx(s[j][e] * factor - offset); sum[h] += s[j][e]; }
        }
        u32 p[C / 16][4];
        pack_a_fragment<C>(p, s);
        mma_pv<DEPTH, C>(out, p, value_rows + base * Sets::S);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] = lane_sum<4>(sum[h]);
        int q = warp * 16 + g + h * 8;
        if (t == 0 && q < queries) sets.stats(task.stats, q)[0] = row_max[h] * factor + __log2f(sum[h]);
    }
    if (threadIdx.x == 0) sets.stats(task.stats, 0)[1] = __uint_as_float(exponents[0] | exponents[1] << 8 | exponents[2] << 16);
    float first = __fdividef(value.unscale, sum[0]), second = __fdividef(value.unscale, sum[1]);
    if constexpr (HEAD_PAIR) {
        __syncthreads();
        sets.exchange_and_write(task.out, sets.q0, queries, qs, out, first, second);
    } else {
        sets.write(task.out, sets.q0, queries, out, first, second);
    }
}

// Whether dS stays in shared memory from the pass over keys to the pass over queries, with two blocks per
// multiprocessor. Otherwise it is recomputed.
__host__ __device__ constexpr bool keeps_score_grads(int depth, int warps) { return depth < 64 || warps <= 8; }
// Bytes for dS, or for the raw values that lie there first.
__host__ __device__ constexpr int score_grad_bytes(int depth, int warps) { return keeps_score_grads(depth, warps) ? max(16 * warps * (32 * warps + 16), 64 * warps * depth) : 0; }

// dV = Pᵀ dO, dK = dSᵀ Q, dQ = dS K with dS = P ∘ (dO Vᵀ − Δ) · scale and Δ = Σ dO · O. P comes from the scores and
// stats[0]. Shared memory: tiles of Q, dO, K and V, dS where it stays, log2-sum-exp and Δ of queries, maxima of the
// warps, staging for the peer. A warp owns 16 keys, then 16 queries. d_query, d_key and d_value are written.
//
// `deltas` holds −Δ times the scales of dO and V: product d starts from it and becomes (dO Vᵀ − Δ) in these units.
template <int DEPTH, int WARPS, bool HEAD_PAIR>
__device__ __forceinline__ void attention_backward_single_block(const AttentionTask* tasks, const int* shape) {
    // Fewer queries at a time where registers are scarce.
    constexpr int R = 16 * WARPS, C = DEPTH == 64 && WARPS > 8 ? 16 : 32;
    using Sets = BlockSets<DEPTH, R>;
    const AttentionTask& task = tasks[blockIdx.z];
    if (blockIdx.y >= example_count(shape)) return;
    const Sets sets(task, shape);
    int q0 = sets.q0, queries = sets.queries, k0 = sets.k0, keys = sets.keys, warp = threadIdx.x / 32;
    extern __shared__ __align__(16) float shared[];
    char *qs = (char*)shared, *ds = qs + Sets::TILE, *ks = ds + Sets::TILE, *vs = ks + Sets::TILE;
    // dS: a row of SCORE_GRAD_BYTES per key, f16 numbers for queries.
    constexpr bool KEEP_SCORE_GRADS = keeps_score_grads(DEPTH, WARPS);
    constexpr int SCORE_GRAD_BYTES = 2 * R + 16;
    char* ss = vs + Sets::TILE;
    float *lses = (float*)(ss + score_grad_bytes(DEPTH, WARPS)), *deltas = lses + R;
    u32* warp_max_bits = (u32*)(deltas + R);
    // Staging for the peer block where no tile is free.
    char* peer_staging = (char*)(warp_max_bits + WARPS);
    // All loads are issued before the first wait: queries and keys go where tiles will be, values where dS will be.
    constexpr int RAW_BYTES = R * DEPTH * 4;
    sets.copy_raw(qs, task.query, q0, queries);
    sets.copy_raw(qs + RAW_BYTES, task.key, k0, keys);
    if constexpr (KEEP_SCORE_GRADS) sets.copy_raw(ss, task.value, k0, keys);
    cp_async_commit();
    const float* stats = sets.stats(task.stats, 0);
    u32 exponents = __float_as_uint(stats[1]);
    float4 d_out[Sets::COUNT], x[Sets::COUNT], y[Sets::COUNT];
    float task_scale = task.scale, lse[Sets::COUNT], delta[Sets::COUNT];
    sets.fetch(d_out, task.d_out, q0, queries);
    sets.fetch(x, task.out, q0, queries);
#pragma unroll
    for (int i = 0; i < Sets::COUNT; i++) {
        int r = sets.row + i * Sets::STEP;
        lse[i] = MASKED_LSE;
        if (sets.column == 0 && r < queries) lse[i] = stats[2 * r * sets.heads];
    }
#pragma unroll
    for (int i = 0; i < Sets::COUNT; i++) delta[i] = lane_sum<Sets::ACROSS>(horizontal_sum(x[i] * d_out[i]));
    u32 top = sets.max_bits(d_out);
    if (threadIdx.x % 32 == 0) warp_max_bits[warp] = top;
    F16Scale query(exponents & 255), key(exponents >> 8 & 255), value(exponents >> 16 & 255);
    cp_async_wait<0>();
    sets.read_raw(x, qs);
    sets.read_raw(y, qs + RAW_BYTES);
    __syncthreads();
    sets.store_f16(qs, x, query.scale);
    sets.store_f16(ks, y, key.scale);
    if constexpr (KEEP_SCORE_GRADS) sets.read_raw(x, ss);
    else sets.fetch(x, task.value, k0, keys);
    sets.store_f16(vs, x, value.scale);
    F16Scale d_out_scale(max_exponent<WARPS>(warp_max_bits));
    sets.store_f16(ds, d_out, d_out_scale.scale);
#pragma unroll
    for (int i = 0; i < Sets::COUNT; i++)
        if (sets.column == 0) {
            lses[sets.row + i * Sets::STEP] = lse[i];
            deltas[sets.row + i * Sets::STEP] = -delta[i] * d_out_scale.scale * value.scale;
        }
    __syncthreads();
    int lane = threadIdx.x % 32, t = lane % 4, row = warp * 16 + lane / 4;
    u32 query_rows = shared_address(qs), d_out_rows = shared_address(ds), key_rows = shared_address(ks), value_rows = shared_address(vs), score_grad_rows = shared_address(ss);
    float factor = score_factor(task_scale, query, key), scale = task_scale * d_out_scale.unscale * value.unscale;
    float dk[DEPTH / 8][4] = {}, dv[DEPTH / 8][4] = {};
    if (warp * 16 < keys) {
        const LeftRows<DEPTH> left_keys(key_rows), left_values(value_rows);
        for (int base = 0; base < queries; base += C) {
            float s[C / 8][4] = {}, d[C / 8][4];
            mma_qk<DEPTH, C>(s, left_keys, query_rows + base * Sets::S);
#pragma unroll
            for (int j = 0; j < C / 8; j++) {
                float2 lse = *(const float2*)(lses + base + j * 8 + 2 * t), delta = *(const float2*)(deltas + base + j * 8 + 2 * t);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    s[j][e] = exp2_approx(s[j][e] * factor - (e % 2 ? lse.y : lse.x));
                    d[j][e] = e % 2 ? delta.y : delta.x;
                }
            }
            u32 a[C / 16][4];
            pack_a_fragment<C>(a, s);
            mma_pv<DEPTH, C>(dv, a, d_out_rows + base * Sets::S);
            mma_qk<DEPTH, C>(d, left_values, d_out_rows + base * Sets::S);
            for_each_element<C>([&](int j, int e) { s[j][e] *= d[j][e]; });
            pack_a_fragment<C>(a, s);
            mma_pv<DEPTH, C>(dk, a, query_rows + base * Sets::S);
            if constexpr (KEEP_SCORE_GRADS) {
                // Missing keys must not contribute.
                if (warp * 16 + 16 > keys)
#pragma unroll
                    for (int k = 0; k < C / 16; k++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            if (row + i % 2 * 8 >= keys) a[k][i] = 0;
#pragma unroll
                for (int k = 0; k < C / 16; k++) stmatrix_x4(score_grad_rows + (warp * 16 + lane % 16) * SCORE_GRAD_BYTES + (base + k * 16 + lane / 16 * 8) * 2, a[k]);
            }
        }
    }
    float dk_scale = scale * query.unscale, dv_scale = d_out_scale.unscale, dq_scale = scale * key.unscale;
    if constexpr (!HEAD_PAIR) {
        if (warp * 16 < keys) {
            sets.write(task.d_key, k0, keys, dk, dk_scale, dk_scale);
            sets.write(task.d_value, k0, keys, dv, dv_scale, dv_scale);
        }
    } else if constexpr (!KEEP_SCORE_GRADS) {
        sets.exchange_and_write(task.d_key, k0, keys, peer_staging, dk, dk_scale, dk_scale);
        sets.exchange_and_write(task.d_value, k0, keys, peer_staging, dv, dv_scale, dv_scale);
    }
    if constexpr (KEEP_SCORE_GRADS) __syncthreads();
    if constexpr (HEAD_PAIR && KEEP_SCORE_GRADS) {
        sets.stage_for_peer(qs, dk, dk_scale, dk_scale);
        sets.stage_for_peer(vs, dv, dv_scale, dv_scale);
    }
    // Blocks of a cluster exit together.
    if (!HEAD_PAIR && warp * 16 >= queries) return;
    float dq[DEPTH / 8][4] = {};
    if constexpr (KEEP_SCORE_GRADS) {
        u32 left = score_grad_rows + (lane % 8 + lane / 16 * 8) * SCORE_GRAD_BYTES + (warp * 16 + lane / 8 % 2 * 8) * 2;
#pragma unroll 2
        for (int base = 0; base < keys; base += 16) {
            u32 a[1][4];
            ldmatrix_x4_trans(a[0], left + base * SCORE_GRAD_BYTES);
            mma_pv<DEPTH, 16>(dq, a, key_rows + base * Sets::S);
        }
    } else {
        float lse[2] = {lses[row], lses[row + 8]}, delta[2] = {deltas[row], deltas[row + 8]};
        const LeftRows<DEPTH> left_queries(query_rows), left_d_out(d_out_rows);
        for (int base = 0; base < keys; base += C) {
            float s[C / 8][4] = {}, d[C / 8][4];
            u32 a[C / 16][4];
            mma_qk<DEPTH, C>(s, left_queries, key_rows + base * Sets::S);
            for_each_element<C>([&](int j, int e) { d[j][e] = delta[e / 2]; });
            mma_qk<DEPTH, C>(d, left_d_out, value_rows + base * Sets::S);
            for_each_element<C>([&](int j, int e) { s[j][e] = exp2_approx(s[j][e] * factor - lse[e / 2]) * d[j][e]; });
            mask_missing<C>(s, keys - base, 0.0f);
            pack_a_fragment<C>(a, s);
            mma_pv<DEPTH, C>(dq, a, key_rows + base * Sets::S);
        }
    }
    if constexpr (!HEAD_PAIR) {
        sets.write(task.d_query, q0, queries, dq, dq_scale, dq_scale);
    } else if constexpr (!KEEP_SCORE_GRADS) {
        sets.exchange_and_write(task.d_query, q0, queries, peer_staging, dq, dq_scale, dq_scale);
    } else {
        sets.stage_for_peer(ds, dq, dq_scale, dq_scale);
        cluster_sync();
        sets.write_head_pair(task.d_key, k0, keys, qs, dk, dk_scale, dk_scale);
        sets.write_head_pair(task.d_value, k0, keys, vs, dv, dv_scale, dv_scale);
        sets.write_head_pair(task.d_query, q0, queries, ds, dq, dq_scale, dq_scale);
        cluster_sync();
    }
}

#define ATTENTION_SETS(NAME, DEPTH, WARPS, BLOCKS, HEAD_PAIR)                                                        \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) attention_backward_##NAME##_##DEPTH##_##WARPS(  \
        const AttentionTask* tasks, const int* shape) {                                                              \
        grid_dependency_sync(tasks + blockIdx.z, shape);                                                             \
        attention_backward_single_block<DEPTH, WARPS, HEAD_PAIR>(tasks, shape);                                      \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) attention_forward_##NAME##_##DEPTH##_##WARPS(   \
        const AttentionTask* tasks, const int* shape) {                                                              \
        grid_dependency_sync(tasks + blockIdx.z, shape);                                                             \
        attention_forward_single_block<DEPTH, WARPS, HEAD_PAIR>(tasks, shape);                                       \
    }
#define ATTENTION_SINGLE_BLOCK(DEPTH, WARPS, BLOCKS) ATTENTION_SETS(single_block, DEPTH, WARPS, BLOCKS, false)
#define ATTENTION_HEAD_PAIR(DEPTH, WARPS, BLOCKS) ATTENTION_SETS(head_pair, DEPTH, WARPS, BLOCKS, true)
