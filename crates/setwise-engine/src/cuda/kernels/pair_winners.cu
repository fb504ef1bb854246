// Gradients of networks on pairs through a maximum. Only winners have them, one partner for an element and an output, so rows are gathered; every
// number is summed in one place and in a fixed order.

template <bool VEC> __device__ __forceinline__ void put_four(float* row, float4 x, int left) {
    if (VEC) {
        if (left > 0) *(float4*)row = x;
        return;
    }
    if (left > 0) row[0] = x.x;
    if (left > 1) row[1] = x.y;
    if (left > 2) row[2] = x.z;
    if (left > 3) row[3] = x.w;
}

// sum += factor x where the hidden layer is positive.
__device__ __forceinline__ void add_where(float4& sum, float4 u, float4 v, float factor, float4 x) {
    if (u.x + v.x > 0.0f) sum.x += factor * x.x;
    if (u.y + v.y > 0.0f) sum.y += factor * x.y;
    if (u.z + v.z > 0.0f) sum.z += factor * x.z;
    if (u.w + v.w > 0.0f) sum.w += factor * x.w;
}

// du_i = Σ_c dy_i[c] W[c] [u_i + v_w(i, c) > 0]. A warp has four elements and 32 hidden
// columns, four to a lane; its four groups of eight lanes have every fourth output each.
template <bool VEC>
__device__ __forceinline__ void pair_max_own(const PairTask* tasks, const int* shape) {
    int across = (tasks->hidden + 31) / 32, e = blockIdx.y;
    const PairTask task = tasks[blockIdx.z / across];
    if (e >= shape[0]) return;
    int i0 = element(task.space, shape, e), n = element(task.space, shape, e + 1) - i0, j0 = element(task.partners, shape, e);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 8, first = blockIdx.x * 32 + warp * 4;
    if (first >= n) return;
    int h = blockIdx.z % across * 32 + lane % 8 * 4, left = task.hidden - h, outputs = task.outputs;
    // Lanes without columns read others in vain.
    int from = VEC && left <= 0 ? 0 : h;
    const float *partner = task.partner + (size_t)j0 * task.ld_partner + from, *w = task.w + from;
    float4 u[4], du[4];
#pragma unroll
    for (int b = 0; b < 4; b++) {
        u[b] = four_of<VEC>(task.own + (size_t)(i0 + min(first + b, n - 1)) * task.ld_own + from, left);
        du[b] = make_float4(0, 0, 0, 0);
    }
    for (int c0 = 0; c0 < outputs; c0 += 32) {
        float d[4];
        int winner[4];
#pragma unroll
        for (int b = 0; b < 4; b++) {
            bool there = first + b < n && c0 + lane < outputs;
            d[b] = there ? task.dy[(size_t)(i0 + first + b) * task.ldy + c0 + lane] : 0.0f;
            winner[b] = there ? (int)task.kept[(size_t)(i0 + first + b) * outputs + c0 + lane] : 0;
        }
        int count = min(32, outputs - c0);
        for (int k = 0; k < count; k += 4) {
            int c = c0 + k + group;
            float4 weight = four_of<VEC>(w + row_at(min(c, outputs - 1), task.hidden), left);
#pragma unroll
            for (int b = 0; b < 4; b++) {
                float factor = __shfl_sync(~0u, d[b], k + group);
                int j = __shfl_sync(~0u, winner[b], k + group);
                add_where(du[b], u[b], four_of<VEC>(partner + row_at(j, task.ld_partner), left), factor, weight);
            }
        }
    }
#pragma unroll
    for (int b = 0; b < 4; b++) {
#pragma unroll
        for (int k = 8; k < 32; k *= 2) {
            float4 x = make_float4(__shfl_xor_sync(~0u, du[b].x, k), __shfl_xor_sync(~0u, du[b].y, k), __shfl_xor_sync(~0u, du[b].z, k),
                                   __shfl_xor_sync(~0u, du[b].w, k));
            du[b] = du[b] + x;
        }
        if (group == 0 && first + b < n) put_four<VEC>(task.d_own + (size_t)(i0 + first + b) * task.ld_own + h, du[b], left);
    }
}

extern "C" __global__ void __launch_bounds__(256) pair_max_own(const PairTask* t, const int* s) {
    in_turn();
    if (t->vec) pair_max_own<true>(t, s);
    else pair_max_own<false>(t, s);
}

// Partners of a block, bytes that say which of them won, and rows that have a bit for each.
#define PAIR_PARTNERS 32
#define PAIR_WINNERS 24576
#define PAIR_ROWS 1024

// dv_j = Σ dy_i[c] W[c] [u_i + v_j > 0] over the elements and outputs that j won. Of its 32 partners a block takes one after the other: each of
// its warps goes through every eighth element, and what they found is added in order. A lane has V times four of V · 128 hidden columns. Who won anything from an
// element is kept in bits, who won an output in bytes, in as many rounds as that takes.
template <int V, bool VEC>
__device__ __forceinline__ void pair_max_partner(const PairTask* tasks, const int* shape, unsigned char* winners, u32* some, float* found) {
    int across = (tasks->hidden + V * 128 - 1) / (V * 128), e = blockIdx.y;
    const PairTask task = tasks[blockIdx.z / across];
    if (e >= shape[0]) return;
    int i0 = element(task.space, shape, e), n = element(task.space, shape, e + 1) - i0;
    int j0 = element(task.partners, shape, e), m = element(task.partners, shape, e + 1) - j0;
    int first = blockIdx.x * PAIR_PARTNERS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (first >= m) return;
    int hidden = task.hidden, outputs = task.outputs, h0 = blockIdx.z % across * V * 128, h = h0 + lane * 4;
    // Of this lane's columns; where there are none it reads others in vain.
    int from[V], left[V];
#pragma unroll
    for (int k = 0; k < V; k++) {
        left[k] = hidden - h - k * 128;
        from[k] = VEC && left[k] <= 0 ? 0 : h + k * 128;
    }
    bool again = false;
    for (int c0 = 0; c0 < outputs; c0 += 8192) {
        int cols = min(outputs - c0, 8192), length = (cols + 3) / 4 * 4, rows = min(PAIR_WINNERS / length, PAIR_ROWS);
        for (int r0 = 0; r0 < n; r0 += rows, again = true) {
            int here = min(rows, n - r0);
            __syncthreads();
            for (int r = warp; r < here; r += PAIR_WARPS) {
                u32 bits = 0;
                for (int c = lane; c < length; c += 32) {
                    int j = c < cols ? (int)task.kept[(size_t)(i0 + r0 + r) * outputs + c0 + c] - first : -1;
                    bool ours = (u32)j < PAIR_PARTNERS;
                    winners[r * length + c] = ours ? j : 255;
                    bits |= ours ? 1u << j : 0;
                }
                bits = __reduce_or_sync(~0u, bits);
                if (lane == 0) some[r] = bits;
            }
            __syncthreads();
            for (int j = 0; j < min(PAIR_PARTNERS, m - first); j++) {
                const float* row = task.partner + (size_t)(j0 + first + j) * task.ld_partner;
                float4 v[V], sum[V];
#pragma unroll
                for (int k = 0; k < V; k++) {
                    v[k] = four_of<VEC>(row + from[k], left[k]);
                    sum[k] = make_float4(0, 0, 0, 0);
                }
                // Of the warp's own elements 32 at a time.
                for (int r1 = warp; r1 < here; r1 += 32 * PAIR_WARPS) {
                    int mine = r1 + lane * PAIR_WARPS;
                    for (u32 todo = __ballot_sync(~0u, mine < here && (some[mine] >> j & 1)); todo; todo &= todo - 1) {
                        int r = r1 + (__ffs(todo) - 1) * PAIR_WARPS;
                        const float *dy = task.dy + row_at(i0 + r0 + r, task.ldy) + c0, *u = task.own + row_at(i0 + r0 + r, task.ld_own);
                        __builtin_assume(__isGlobal(dy));
                        float4 x[V];
#pragma unroll
                        for (int k = 0; k < V; k++) x[k] = make_float4(0, 0, 0, 0);
                        for (int c = 0; c < length; c += 128) {
                            u32 four = c + lane * 4 < length ? *(const u32*)(winners + r * length + c + lane * 4) : ~0u;
                            // The highest bit of every byte that is j.
                            four ^= j * 0x01010101u;
                            four = ~(((four & 0x7f7f7f7fu) + 0x7f7f7f7fu) | four | 0x7f7f7f7fu);
                            for (u32 lanes = __ballot_sync(~0u, four != 0); lanes; lanes &= lanes - 1) {
                                int there = __ffs(lanes) - 1;
                                for (u32 bits = __shfl_sync(~0u, four, there); bits; bits &= bits - 1) {
                                    int at = c + there * 4 + (__ffs(bits) - 1) / 8;
                                    float d = dy[at];
                                    const float* w = task.w + row_at(c0 + at, hidden);
#pragma unroll
                                    for (int k = 0; k < V; k++) x[k] = x[k] + four_of<VEC>(w + from[k], left[k]) * d;
                                }
                            }
                        }
#pragma unroll
                        for (int k = 0; k < V; k++) add_where(sum[k], four_of<VEC>(u + from[k], left[k]), v[k], 1.0f, x[k]);
                    }
                }
#pragma unroll
                for (int k = 0; k < V; k++) *(float4*)(found + (j % 2 * PAIR_WARPS + warp) * V * 128 + k * 128 + lane * 4) = sum[k];
                // Whoever is here has added what the partner before the last one found.
                __syncthreads();
                for (int c = threadIdx.x; c < V * 128 && h0 + c < hidden; c += 256) {
                    float* out = task.d_partner + (size_t)(j0 + first + j) * task.ld_partner + h0 + c;
                    float total = again ? *out : 0.0f;
                    for (int k = 0; k < PAIR_WARPS; k++) total += found[(j % 2 * PAIR_WARPS + k) * V * 128 + c];
                    *out = total;
                }
            }
        }
    }
}

template <int V>
__device__ __forceinline__ void pair_max_partner(const PairTask* tasks, const int* shape) {
    __shared__ __align__(16) unsigned char winners[PAIR_WINNERS];
    __shared__ __align__(16) float found[2 * PAIR_WARPS * V * 128];
    __shared__ u32 some[PAIR_ROWS];
    if (tasks->vec) pair_max_partner<V, true>(tasks, shape, winners, some, found);
    else pair_max_partner<V, false>(tasks, shape, winners, some, found);
}

extern "C" __global__ void __launch_bounds__(256, 3) pair_max_partner_1(const PairTask* t, const int* s) { in_turn(); pair_max_partner<1>(t, s); }
extern "C" __global__ void __launch_bounds__(256, 3) pair_max_partner_2(const PairTask* t, const int* s) { in_turn(); pair_max_partner<2>(t, s); }
