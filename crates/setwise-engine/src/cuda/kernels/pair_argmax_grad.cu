// Gradients of pair networks through a max, by gathering. Only the argmax partner w(i, c) of each element i and output
// c has a gradient. Shapes: PairTask. Every number is summed in one thread or in a fixed order. Used where sorted lists
// (`pair_sorted_grad.cu`) do not fit.

// Writes the first `remaining` of four numbers.
template <bool VEC> __device__ __forceinline__ void write_four_masked(float* row, float4 x, int remaining) {
    if (VEC) {
        if (remaining > 0) *(float4*)row = x;
        return;
    }
    if (remaining > 0) row[0] = x.x;
    if (remaining > 1) row[1] = x.y;
    if (remaining > 2) row[2] = x.z;
    if (remaining > 3) row[3] = x.w;
}

// sum += factor · x where u + v > 0.
__device__ __forceinline__ void add_where(float4& sum, float4 u, float4 v, float factor, float4 x) {
    if (u.x + v.x > 0.0f) sum.x += factor * x.x;
    if (u.y + v.y > 0.0f) sum.y += factor * x.y;
    if (u.z + v.z > 0.0f) sum.z += factor * x.z;
    if (u.w + v.w > 0.0f) sum.w += factor * x.w;
}

// du_i = Σ_c dy_i[c] W[c] [u_i + v_w(i, c) > 0]. Grid: (elements / 32, examples, tasks · columns / 32). A warp owns
// four elements and 32 hidden columns, four a lane; its four groups of eight lanes take every fourth output. d_left is
// written.
template <bool VEC>
__device__ __forceinline__ void pair_max_left_grad(const PairTask* tasks, const int* shape) {
    int across = (tasks->hidden + 31) / 32, e = blockIdx.y;
    const PairTask task = tasks[blockIdx.z / across];
    if (e >= shape[0]) return;
    int i0 = element_offset(task.space, shape, e), n = element_offset(task.space, shape, e + 1) - i0, j0 = element_offset(task.right_space, shape, e);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 8, first = blockIdx.x * 32 + warp * 4;
    if (first >= n) return;
    int h = blockIdx.z % across * 32 + lane % 8 * 4, remaining = task.hidden - h, outputs = task.outputs;
    // Lanes without columns read valid ones and discard them.
    int from = VEC && remaining <= 0 ? 0 : h;
    const float *right = task.right + (size_t)j0 * task.ld_right + from, *w = task.w + from;
    float4 u[4], du[4];
#pragma unroll
    for (int b = 0; b < 4; b++) {
        u[b] = read_four_or_zero<VEC>(task.left + (size_t)(i0 + min(first + b, n - 1)) * task.ld_left + from, remaining);
        du[b] = make_float4(0, 0, 0, 0);
    }
    for (int c0 = 0; c0 < outputs; c0 += 32) {
        float d[4];
        int argmax[4];
#pragma unroll
        for (int b = 0; b < 4; b++) {
            bool valid = first + b < n && c0 + lane < outputs;
            d[b] = valid ? task.dy[(size_t)(i0 + first + b) * task.ldy + c0 + lane] : 0.0f;
            argmax[b] = valid ? (int)task.saved[(size_t)(i0 + first + b) * outputs + c0 + lane] : 0;
        }
        int count = min(32, outputs - c0);
        for (int k = 0; k < count; k += 4) {
            int c = c0 + k + group;
            float4 weight = read_four_or_zero<VEC>(w + row_at(min(c, outputs - 1), task.hidden), remaining);
#pragma unroll
            for (int b = 0; b < 4; b++) {
                float factor = __shfl_sync(~0u, d[b], k + group);
                int j = __shfl_sync(~0u, argmax[b], k + group);
                add_where(du[b], u[b], read_four_or_zero<VEC>(right + row_at(j, task.ld_right), remaining), factor, weight);
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
        if (group == 0 && first + b < n) write_four_masked<VEC>(task.d_left + (size_t)(i0 + first + b) * task.ld_left + h, du[b], remaining);
    }
}

extern "C" __global__ void __launch_bounds__(256) pair_max_left_grad(const PairTask* tasks, const int* shape) {
    grid_dependency_sync();
    if (tasks->vec) pair_max_left_grad<true>(tasks, shape);
    else pair_max_left_grad<false>(tasks, shape);
}

// Partners of a block, bytes of argmax indices, rows with a bit mask, and outputs of a round.
#define PAIR_PARTNERS 32
#define ARGMAX_BYTES 24576
#define ARGMAX_ROWS 1024
#define ARGMAX_OUTPUTS 8192
// Index of an argmax that is no partner of the block.
#define OTHER_PARTNER 255

// dv_j = Σ dy_i[c] W[c] [u_i + v_j > 0] over all (i, c) with argmax j. Grid: (partners / 32, examples, tasks · columns
// / (128 V)). A block takes its 32 partners in order: each warp scans every eighth element, and the warps' sums are
// added in order. A lane owns V times four hidden columns. Bit masks say which partners occur in an element,
// bytes say which output; both are rebuilt in as many rounds as shared memory needs. d_right is written.
template <int V, bool VEC>
__device__ __forceinline__ void pair_max_right_grad(const PairTask* tasks, const int* shape, unsigned char* argmax_bytes, u32* present, float* warp_sums) {
    int across = (tasks->hidden + V * 128 - 1) / (V * 128), e = blockIdx.y;
    const PairTask task = tasks[blockIdx.z / across];
    if (e >= shape[0]) return;
    int i0 = element_offset(task.space, shape, e), n = element_offset(task.space, shape, e + 1) - i0;
    int j0 = element_offset(task.right_space, shape, e), m = element_offset(task.right_space, shape, e + 1) - j0;
    int first = blockIdx.x * PAIR_PARTNERS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (first >= m) return;
    int hidden = task.hidden, outputs = task.outputs, h0 = blockIdx.z % across * V * 128, h = h0 + lane * 4;
    // This lane's columns; a lane without any reads valid ones and discards them.
    int from[V], remaining[V];
#pragma unroll
    for (int k = 0; k < V; k++) {
        remaining[k] = hidden - h - k * 128;
        from[k] = VEC && remaining[k] <= 0 ? 0 : h + k * 128;
    }
    bool accumulate = false;
    for (int c0 = 0; c0 < outputs; c0 += ARGMAX_OUTPUTS) {
        int cols = min(outputs - c0, ARGMAX_OUTPUTS), length = (cols + 3) / 4 * 4, rows = min(ARGMAX_BYTES / length, ARGMAX_ROWS);
        for (int r0 = 0; r0 < n; r0 += rows, accumulate = true) {
            int here = min(rows, n - r0);
            __syncthreads();
            for (int r = warp; r < here; r += PAIR_WARPS) {
                u32 bits = 0;
                for (int c = lane; c < length; c += 32) {
                    int j = c < cols ? (int)task.saved[(size_t)(i0 + r0 + r) * outputs + c0 + c] - first : -1;
                    bool in_block = (u32)j < PAIR_PARTNERS;
                    argmax_bytes[r * length + c] = in_block ? j : OTHER_PARTNER;
                    bits |= in_block ? 1u << j : 0;
                }
                bits = __reduce_or_sync(~0u, bits);
                if (lane == 0) present[r] = bits;
            }
            __syncthreads();
            for (int j = 0; j < min(PAIR_PARTNERS, m - first); j++) {
                const float* row = task.right + (size_t)(j0 + first + j) * task.ld_right;
                float4 v[V], sum[V];
#pragma unroll
                for (int k = 0; k < V; k++) {
                    v[k] = read_four_or_zero<VEC>(row + from[k], remaining[k]);
                    sum[k] = make_float4(0, 0, 0, 0);
                }
                // 32 of the warp's elements at a time.
                for (int r1 = warp; r1 < here; r1 += 32 * PAIR_WARPS) {
                    int mine = r1 + lane * PAIR_WARPS;
                    for (u32 todo = __ballot_sync(~0u, mine < here && (present[mine] >> j & 1)); todo; todo &= todo - 1) {
                        int r = r1 + (__ffs(todo) - 1) * PAIR_WARPS;
                        const float *dy = task.dy + row_at(i0 + r0 + r, task.ldy) + c0, *u = task.left + row_at(i0 + r0 + r, task.ld_left);
                        __builtin_assume(__isGlobal(dy));
                        float4 x[V];
#pragma unroll
                        for (int k = 0; k < V; k++) x[k] = make_float4(0, 0, 0, 0);
                        for (int c = 0; c < length; c += 128) {
                            u32 four = c + lane * 4 < length ? *(const u32*)(argmax_bytes + r * length + c + lane * 4) : ~0u;
                            // The highest bit of every byte that equals j.
                            four ^= j * 0x01010101u;
                            four = ~(((four & 0x7f7f7f7fu) + 0x7f7f7f7fu) | four | 0x7f7f7f7fu);
                            for (u32 lanes = __ballot_sync(~0u, four != 0); lanes; lanes &= lanes - 1) {
                                int source_lane = __ffs(lanes) - 1;
                                for (u32 bits = __shfl_sync(~0u, four, source_lane); bits; bits &= bits - 1) {
                                    int at = c + source_lane * 4 + (__ffs(bits) - 1) / 8;
                                    float d = dy[at];
                                    const float* w = task.w + row_at(c0 + at, hidden);
#pragma unroll
                                    for (int k = 0; k < V; k++) x[k] = x[k] + read_four_or_zero<VEC>(w + from[k], remaining[k]) * d;
                                }
                            }
                        }
#pragma unroll
                        for (int k = 0; k < V; k++) add_where(sum[k], read_four_or_zero<VEC>(u + from[k], remaining[k]), v[k], 1.0f, x[k]);
                    }
                }
#pragma unroll
                for (int k = 0; k < V; k++) *(float4*)(warp_sums + (j % 2 * PAIR_WARPS + warp) * V * 128 + k * 128 + lane * 4) = sum[k];
                // Double buffering: the sums of the partner before the last have been added.
                __syncthreads();
                for (int c = threadIdx.x; c < V * 128 && h0 + c < hidden; c += 256) {
                    float* out = task.d_right + (size_t)(j0 + first + j) * task.ld_right + h0 + c;
                    float total = accumulate ? *out : 0.0f;
                    for (int k = 0; k < PAIR_WARPS; k++) total += warp_sums[(j % 2 * PAIR_WARPS + k) * V * 128 + c];
                    *out = total;
                }
            }
        }
    }
}

template <int V>
__device__ __forceinline__ void pair_max_right_grad(const PairTask* tasks, const int* shape) {
    __shared__ __align__(16) unsigned char argmax_bytes[ARGMAX_BYTES];
    __shared__ __align__(16) float warp_sums[2 * PAIR_WARPS * V * 128];
    __shared__ u32 present[ARGMAX_ROWS];
    if (tasks->vec) pair_max_right_grad<V, true>(tasks, shape, argmax_bytes, present, warp_sums);
    else pair_max_right_grad<V, false>(tasks, shape, argmax_bytes, present, warp_sums);
}

extern "C" __global__ void __launch_bounds__(256, 3) pair_max_right_grad_128(const PairTask* tasks, const int* shape) {
    grid_dependency_sync();
    pair_max_right_grad<1>(tasks, shape);
}
extern "C" __global__ void __launch_bounds__(256, 3) pair_max_right_grad_256(const PairTask* tasks, const int* shape) {
    grid_dependency_sync();
    pair_max_right_grad<2>(tasks, shape);
}
