// Networks on pairs with the matrix instructions of all cards, and their gradients.

// kept_i = Σ_j relu(u_i + v_j): a thread owns a hidden column of eight elements.
extern "C" __global__ void __launch_bounds__(128) pair_sums(const PairTask* tasks, const int* shape) {
    in_turn();
    const PairTask& task = tasks[blockIdx.z];
    int e = blockIdx.y;
    if (e >= shape[0]) return;
    int i0 = element(task.space, shape, e), n = element(task.space, shape, e + 1) - i0;
    int j0 = element(task.partners, shape, e), m = element(task.partners, shape, e + 1) - j0;
    for (int first = blockIdx.x * 8; first < n; first += gridDim.x * 8)
        for (int h = threadIdx.x; h < task.hidden; h += 128) {
            float u[8], sum[8] = {};
#pragma unroll
            for (int b = 0; b < 8; b++) u[b] = first + b < n ? task.own[(size_t)(i0 + first + b) * task.ld_own + h] : 0.0f;
            for (int j = 0; j < m; j++) {
                float v = task.partner[(size_t)(j0 + j) * task.ld_partner + h];
#pragma unroll
                for (int b = 0; b < 8; b++) sum[b] += fmaxf(u[b] + v, 0.0f);
            }
#pragma unroll
            for (int b = 0; b < 8; b++)
                if (first + b < n) task.kept[(size_t)(i0 + first + b) * task.hidden + h] = sum[b];
        }
}

// y_i += m b, after the linear map of the sums.
extern "C" __global__ void pair_bias(const PairTask* tasks, const int* shape) {
    in_turn();
    const PairTask& task = tasks[blockIdx.y];
    size_t total = (size_t)rows_of(task.space, shape) * task.outputs;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        int row = i / task.outputs, c = i % task.outputs, e = example_of(task.space, shape, row);
        int m = element(task.partners, shape, e + 1) - element(task.partners, shape, e);
        task.y[(size_t)row * task.ldy + c] += m * task.bias[c];
    }
}

// Parts [examples][outputs] of the bias's gradient: Σ_i dy_i, times the number of partners for sums.
extern "C" __global__ void pair_bias_gradient(const PairTask* tasks, const int* shape) {
    in_turn();
    const PairTask& task = tasks[blockIdx.z];
    int e = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= shape[0] || c >= task.outputs) return;
    float sum = 0.0f;
    for (int i = element(task.space, shape, e); i < element(task.space, shape, e + 1); i++) sum += task.dy[(size_t)i * task.ldy + c];
    int m = element(task.partners, shape, e + 1) - element(task.partners, shape, e);
    task.parts[(size_t)e * task.outputs + c] = task.d_kept ? sum * m : sum;
}

// From the gradient dh_i of the sums: du_i = dh_i · #{j : u_i + v_j > 0}.
extern "C" __global__ void __launch_bounds__(128) pair_sums_own(const PairTask* tasks, const int* shape) {
    in_turn();
    const PairTask& task = tasks[blockIdx.z];
    int e = blockIdx.y;
    if (e >= shape[0]) return;
    int i0 = element(task.space, shape, e), n = element(task.space, shape, e + 1) - i0;
    int j0 = element(task.partners, shape, e), m = element(task.partners, shape, e + 1) - j0;
    for (int first = blockIdx.x * 8; first < n; first += gridDim.x * 8)
        for (int h = threadIdx.x; h < task.hidden; h += 128) {
            float u[8], count[8] = {};
#pragma unroll
            for (int b = 0; b < 8; b++) u[b] = first + b < n ? task.own[(size_t)(i0 + first + b) * task.ld_own + h] : 0.0f;
            for (int j = 0; j < m; j++) {
                float v = task.partner[(size_t)(j0 + j) * task.ld_partner + h];
#pragma unroll
                for (int b = 0; b < 8; b++) count[b] += u[b] + v > 0.0f ? 1.0f : 0.0f;
            }
#pragma unroll
            for (int b = 0; b < 8; b++)
                if (first + b < n)
                    task.d_own[(size_t)(i0 + first + b) * task.ld_own + h] = count[b] * task.d_kept[(size_t)(i0 + first + b) * task.hidden + h];
        }
}

// dv_j = Σ_i dh_i [u_i + v_j > 0].
extern "C" __global__ void __launch_bounds__(128) pair_sums_partner(const PairTask* tasks, const int* shape) {
    in_turn();
    const PairTask& task = tasks[blockIdx.z];
    int e = blockIdx.y;
    if (e >= shape[0]) return;
    int i0 = element(task.space, shape, e), n = element(task.space, shape, e + 1) - i0;
    int j0 = element(task.partners, shape, e), m = element(task.partners, shape, e + 1) - j0;
    for (int first = blockIdx.x * 8; first < m; first += gridDim.x * 8)
        for (int h = threadIdx.x; h < task.hidden; h += 128) {
            float v[8], sum[8] = {};
#pragma unroll
            for (int b = 0; b < 8; b++) v[b] = first + b < m ? task.partner[(size_t)(j0 + first + b) * task.ld_partner + h] : 0.0f;
            for (int i = 0; i < n; i++) {
                float u = task.own[(size_t)(i0 + i) * task.ld_own + h], d = task.d_kept[(size_t)(i0 + i) * task.hidden + h];
#pragma unroll
                for (int b = 0; b < 8; b++) sum[b] += u + v[b] > 0.0f ? d : 0.0f;
            }
#pragma unroll
            for (int b = 0; b < 8; b++)
                if (first + b < m) task.d_partner[(size_t)(j0 + first + b) * task.ld_partner + h] = sum[b];
        }
}

// As `pair_max_tiles` where a second layer is too large for shared memory: a block owns one element and 64 outputs, its four warps 16
// partners each; the hidden layer is made in shared memory, 64 partners by 32 columns at a time.
extern "C" __global__ void __launch_bounds__(128) pair_max(const PairTask* tasks, const int* shape) {
    in_turn();
    const PairTask& task = tasks[blockIdx.z];
    int row = blockIdx.x, n0 = blockIdx.y * 64;
    if (row >= rows_of(task.space, shape) || n0 >= task.outputs) return;
    int e = example_of(task.space, shape, row);
    int j0 = element(task.partners, shape, e), m = element(task.partners, shape, e + 1) - j0;
    __shared__ __align__(16) float as[64 * 36], bs[64 * 36];
    __shared__ float best[4][64];
    __shared__ int winner[4][64];
    int warp = threadIdx.x / 32, g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
    float top[16];
    int at[16];
#pragma unroll
    for (int c = 0; c < 16; c++) { top[c] = LOWEST; at[c] = 0; }
    const float* u = task.own + (size_t)row * task.ld_own;
    for (int base = 0; base < m; base += 64) {
        float acc[1][8][4] = {};
        for (int k0 = 0; k0 < task.hidden; k0 += 32) {
            __syncthreads();
            for (int i = threadIdx.x; i < 64 * 32; i += 128) {
                int r = i / 32, c = i % 32;
                float v = 0.0f, w = 0.0f;
                if (k0 + c < task.hidden) {
                    if (base + r < m) v = fmaxf(u[k0 + c] + task.partner[(size_t)(j0 + base + r) * task.ld_partner + k0 + c], 0.0f);
                    if (n0 + r < task.outputs) w = task.w[(size_t)(n0 + r) * task.hidden + k0 + c];
                }
                as[r * 36 + c] = v;
                bs[r * 36 + c] = w;
            }
            __syncthreads();
            multiply_rows<16, 64>(acc, as, bs, warp * 16, 0);
        }
#pragma unroll
        for (int c = 0; c < 16; c++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int j = base + warp * 16 + g + 8 * h;
                float x = acc[0][c / 2][2 * h + c % 2];
                if (j < m && (x > top[c] || x != x)) { top[c] = x; at[c] = j; }
            }
    }
#pragma unroll
    for (int c = 0; c < 16; c++) {
#pragma unroll
        for (int i = 4; i < 32; i *= 2) {
            float x = __shfl_xor_sync(~0u, top[c], i);
            int j = __shfl_xor_sync(~0u, at[c], i);
            if (x > top[c] || (x == top[c] && j < at[c]) || (x != x && top[c] == top[c])) { top[c] = x; at[c] = j; }
        }
        if (g == 0) { best[warp][c / 2 * 8 + 2 * t + c % 2] = top[c]; winner[warp][c / 2 * 8 + 2 * t + c % 2] = at[c]; }
    }
    __syncthreads();
    int c = threadIdx.x;
    if (c < 64 && n0 + c < task.outputs) {
        float x = best[0][c];
        int j = winner[0][c];
        for (int w = 1; w < 4; w++) {
            float y = best[w][c];
            if (y > x || (y == x && winner[w][c] < j) || (y != y && x == x)) { x = y; j = winner[w][c]; }
        }
        task.y[(size_t)row * task.ldy + n0 + c] = x + task.bias[n0 + c];
        task.kept[(size_t)row * task.outputs + n0 + c] = (float)j;
    }
}

// The maximum with 16 by 8 by 8 products.
template <int N>
struct NarrowPairs {
    __device__ static __forceinline__ float* begin() {
        extern __shared__ __align__(16) float shared[];
        return shared;
    }

    __device__ static __forceinline__ int numbers(int slabs) { return N * (32 * slabs + 16); }

    // Reads are on their way eight at a time.
    __device__ static __forceinline__ void place(float* weights, const PairTask& task, int n0, int slabs) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, total = N / 4 * slabs;
        for (int first = warp; first < total; first += 8 * PAIR_WARPS) {
            float4 w[8];
#pragma unroll
            for (int b = 0; b < 8; b++) {
                int i = first + b * PAIR_WARPS, row = n0 + i % (N / 4) * 4 + lane / 8, c = i / (N / 4) * 32 + lane % 8 * 4;
                int left = i < total && row < task.outputs ? task.hidden - c : 0;
                const float* from = task.w + (size_t)row * task.hidden + c;
                w[b] = task.vec && left > 0 ? four_of<true>(from, left) : four_of<false>(from, left);
            }
#pragma unroll
            for (int b = 0; b < 8; b++) {
                int i = first + b * PAIR_WARPS, row = i % (N / 4) * 4 + lane / 8, c = i / (N / 4) * 32 + lane % 8 * 4;
                if (i < total) *(float4*)(weights + row * (32 * slabs + 16) + c) = w[b];
            }
        }
    }

    __device__ static __forceinline__ void multiply(float (*acc)[4], const float* low, int high, const float* u, const float* weights, int slabs) {
        int lane = threadIdx.x % 32, length = 32 * slabs + 16;
        const float* w = weights + lane / 4 * length + lane % 4 * 4;
        for (int k = 0; k < 32 * slabs; k += 16) {
            float4 x = *(const float4*)(low + k), y = *(const float4*)(low + high + k), o = *(const float4*)(u + k);
            FragA even, odd;
            even.set(fmaxf(x.x + o.x, 0.0f), fmaxf(y.x + o.x, 0.0f), fmaxf(x.y + o.y, 0.0f), fmaxf(y.y + o.y, 0.0f));
            odd.set(fmaxf(x.z + o.z, 0.0f), fmaxf(y.z + o.z, 0.0f), fmaxf(x.w + o.w, 0.0f), fmaxf(y.w + o.w, 0.0f));
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                float4 b = *(const float4*)(w + j * 8 * length + k);
                FragB first, second;
                first.set(b.x, b.y);
                second.set(b.z, b.w);
                mma(acc[j], even, first);
                mma(acc[j], odd, second);
            }
        }
    }
};

#define NARROW_PAIRS(N)                                                                                                                \
    extern "C" __global__ void __launch_bounds__(256, 2) pair_max_n##N(const PairTask* t, const int* s) { in_turn();                    \
        pair_max_tiles<N, NarrowPairs<N>>(t, s);                                                                                       \
    }
NARROW_PAIRS(16)
NARROW_PAIRS(32)
NARROW_PAIRS(64)

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

// The place of a row, in one instruction.
__device__ __forceinline__ size_t row_at(int row, int length) { return (size_t)(u32)row * (u32)length; }

// sum += factor x where the hidden layer is positive.
__device__ __forceinline__ void add_where(float4& sum, float4 u, float4 v, float factor, float4 x) {
    if (u.x + v.x > 0.0f) sum.x += factor * x.x;
    if (u.y + v.y > 0.0f) sum.y += factor * x.y;
    if (u.z + v.z > 0.0f) sum.z += factor * x.z;
    if (u.w + v.w > 0.0f) sum.w += factor * x.w;
}

// Only winners have gradients, one partner for an element and an output: du_i = Σ_c dy_i[c] W[c] [u_i + v_w(i, c) > 0]. A warp has four elements and 32 hidden
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

// Parts [splits][outputs · hidden] of dW[c, h] = Σ_i dy_i[c] relu(u_i[h] + v_w(i, c)[h]): a warp has 16 outputs, 32 hidden columns and some rows, a lane
// four by four.
template <bool VEC>
__device__ __forceinline__ void pair_max_weights(const PairTask* tasks, const int* shape) {
    const PairTask task = tasks[blockIdx.z];
    int across = (task.hidden + 31) / 32, at = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32, split = blockIdx.y;
    int c = at / across * 16 + lane / 8 * 4, h = at % across * 32 + lane % 8 * 4, left = task.hidden - h, outputs = task.outputs;
    if (at / across * 16 >= outputs || split >= task.splits) return;
    int rows = rows_of(task.space, shape), each = (rows + task.splits - 1) / task.splits;
    int first = split * each, last = min(rows, first + each);
    float4 sum[4];
#pragma unroll
    for (int k = 0; k < 4; k++) sum[k] = make_float4(0, 0, 0, 0);
    float4 d, kept, u;
    // Of the next row while the one before is worked on. Lanes without outputs or columns read others in vain.
    int from = VEC && left <= 0 ? 0 : h, out = VEC && c >= outputs ? 0 : c;
    const float *dy = task.dy + (size_t)first * task.ldy + out, *winners = task.kept + (size_t)first * outputs + out;
    const float* own = task.own + (size_t)first * task.ld_own + from;
    auto fetch = [&]() {
        d = four_of<VEC>(dy, outputs - c);
        kept = four_of<VEC>(winners, outputs - c);
        u = four_of<VEC>(own, left);
    };
    if (first < last) fetch();
    for (int i = first, e = first < last ? example_of(task.space, shape, first) : 0; i < last; e++) {
        int end = min(last, element(task.space, shape, e + 1));
        const float* partner = task.partner + (size_t)element(task.partners, shape, e) * task.ld_partner + from;
        for (; i < end; i++) {
            float factor[4] = {d.x, d.y, d.z, d.w};
            int winner[4] = {(int)kept.x, (int)kept.y, (int)kept.z, (int)kept.w};
            float4 o = u, v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) v[k] = four_of<VEC>(partner + row_at(winner[k], task.ld_partner), left);
            if (i + 1 < last) {
                dy += task.ldy;
                winners += outputs;
                own += task.ld_own;
                fetch();
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float4 x = o + v[k];
                sum[k] = sum[k] + make_float4(fmaxf(x.x, 0.0f), fmaxf(x.y, 0.0f), fmaxf(x.z, 0.0f), fmaxf(x.w, 0.0f)) * factor[k];
            }
        }
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (c + k < outputs) put_four<VEC>(task.parts + ((size_t)split * outputs + c + k) * task.hidden + h, sum[k], left);
}

extern "C" __global__ void __launch_bounds__(128) pair_max_weights(const PairTask* t, const int* s) {
    in_turn();
    if (t->vec && t->vec_y) pair_max_weights<true>(t, s);
    else pair_max_weights<false>(t, s);
}
