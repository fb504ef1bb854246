// Gradients of pair networks through a max, from sorted lists of argmax entries. With G_ij = Σ_c dy_i[c] W[c] over the
// outputs c whose argmax for element i is j (shapes: PairTask): du_i = Σ_j G_ij [u_i + v_j > 0] and dv_j = Σ_i G_ij
// [u_i + v_j > 0].

// An entry: the byte offset of its output's row of W in the lowest ENTRY_BITS bits with the other side's index above
// them, and dy.
#define ENTRY_BITS 18
// Warps of a block that sorts.
#define SORT_WARPS 16
// Groups of 32 argmax indices in flight.
#define SORT_AHEAD 4

__device__ __forceinline__ float* dynamic_shared() {
    extern __shared__ __align__(16) float shared[];
    return shared;
}

// Exclusive prefix sum over the lanes of a warp.
__device__ __forceinline__ int warp_exclusive_sum(int x, int& total) {
    int lane = threadIdx.x % 32, until = x;
#pragma unroll
    for (int k = 1; k < 32; k *= 2) {
        int before = __shfl_up_sync(~0u, until, k);
        until += lane >= k ? before : 0;
    }
    total = __shfl_sync(~0u, until, 31);
    return until - x;
}

// Sorts the entries of an example by (element, partner, output), if `left_entries` is set, and by (partner, element,
// output): a counting sort. `right_starts` receives the first entry of each partner. Grid: (examples, tasks). Entries
// are counted per pair, counts become offsets, entries are scattered. A warp owns one element at a time, 32 outputs
// together.
extern "C" __global__ void __launch_bounds__(32 * SORT_WARPS) pair_max_sort_argmax(const PairTask* tasks, const int* shape) {
    grid_dependency_sync(tasks + blockIdx.y, shape);
    const PairTask task = tasks[blockIdx.y];
    int e = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, outputs = task.outputs;
    if (e >= shape[0]) return;
    int i0 = element_offset(task.space, shape, e), n = element_offset(task.space, shape, e + 1) - i0;
    int j0 = element_offset(task.right_space, shape, e), m = element_offset(task.right_space, shape, e + 1) - j0;
    int *by_right = (int*)dynamic_shared(), *begin = by_right + n * m;
    unsigned short* by_left = (unsigned short*)(begin + m);
    for (int i = threadIdx.x; i < n * m; i += 32 * SORT_WARPS) by_left[i] = 0;
    __syncthreads();
    // Calls `apply(i, j, c, rank, dy)` for every output c of every element i with argmax j. A warp takes 32 outputs at
    // a time, in order. `rank` counts lower lanes with the same argmax. Then counts of (i, j) advance. Without
    // `gradients`, dy is 0.
    auto for_each_output = [&](bool gradients, auto apply) {
        for (int i = warp; i < n; i += SORT_WARPS)
            for (int first = lane; first - lane < outputs; first += 32 * SORT_AHEAD) {
                const float *saved = task.saved + (size_t)(i0 + i) * outputs, *dy = task.dy + (size_t)(i0 + i) * task.ldy;
                float argmax[SORT_AHEAD], d[SORT_AHEAD];
#pragma unroll
                for (int k = 0; k < SORT_AHEAD; k++) {
                    int c = first + 32 * k;
                    argmax[k] = c < outputs ? saved[c] : -1.0f;
                    d[k] = gradients && c < outputs ? dy[c] : 0.0f;
                }
#pragma unroll
                for (int k = 0; k < SORT_AHEAD; k++) {
                    int c = first + 32 * k, j = (int)argmax[k];
                    if (c - lane >= outputs) break;
                    u32 same = __match_any_sync(~0u, j);
                    __syncwarp();
                    apply(i, j, c, __popc(same & ((1u << lane) - 1)), d[k]);
                    __syncwarp();
                    if (j >= 0 && __ffs(same) - 1 == lane) {
                        by_left[i * m + j] += __popc(same);
                        by_right[i * m + j] += __popc(same);
                    }
                    __syncwarp();
                }
            }
    };
    for_each_output(false, [](int, int, int, int, float) {});
    __syncthreads();
    for (int j = threadIdx.x; j < m; j += 32 * SORT_WARPS) {
        int sum = 0;
        for (int i = 0; i < n; i++) {
            by_right[i * m + j] = sum;
            sum += by_left[i * m + j];
        }
        begin[j] = sum;
    }
    __syncthreads();
    auto exclusive_scan = [&](auto* counts) {
        for (int j = lane, sum = 0, total; j - lane < m; j += 32, sum += total) {
            int before = warp_exclusive_sum(j < m ? counts[j] : 0, total);
            if (j < m) counts[j] = sum + before;
        }
    };
    if (task.left_entries)
        for (int i = warp; i < n; i += SORT_WARPS) exclusive_scan(by_left + i * m);
    if (warp == 0) exclusive_scan(begin);
    __syncthreads();
    for (int j = threadIdx.x; j < m; j += 32 * SORT_WARPS) task.right_starts[j0 + j] = begin[j];
    int2 *left = task.left_entries + (size_t)i0 * outputs, *right = task.right_entries + (size_t)i0 * outputs;
    for_each_output(true, [&](int i, int j, int c, int rank, float d) {
        if (j < 0) return;
        int row_offset = c * task.row_bytes;
        if (task.left_entries) left[(size_t)i * outputs + by_left[i * m + j] + rank] = make_int2(j << ENTRY_BITS | row_offset, __float_as_int(d));
        right[begin[j] + by_right[i * m + j] + rank] = make_int2(i << ENTRY_BITS | row_offset, __float_as_int(d));
    });
}

// Reads or writes V neighbouring columns.
template <int V> __device__ __forceinline__ void read_columns(float* x, const float* from) {
    if constexpr (V == 4) {
        float4 y = *(const float4*)from;
        x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
    } else if constexpr (V == 2) {
        float2 y = *(const float2*)from;
        x[0] = y.x, x[1] = y.y;
    } else
        x[0] = *from;
}

template <int V> __device__ __forceinline__ void write_columns(float* to, const float* x) {
    if constexpr (V == 4) *(float4*)to = make_float4(x[0], x[1], x[2], x[3]);
    else if constexpr (V == 2) *(float2*)to = make_float2(x[0], x[1]);
    else *to = x[0];
}

// The sums over sorted entries. Grid: (columns / 32 V, example splits, tasks · sides). A block owns 32 V hidden
// columns, V a lane, of one side's gradient in some examples; W stays in shared memory. With CACHED the other side's
// rows do too: each is read once per entry, more than the L2 cache delivers. An example's list is divided into equal
// chunks, one a warp. A warp writes the rows that begin in its chunk; if its last row continues, the following warps'
// sums are added in order. d_left or d_right is written.
template <int V, bool CACHED>
__device__ __forceinline__ void pair_max_sorted_grad(const PairTask* tasks, const int* shape) {
    constexpr int WARPS = 32, COLUMNS = 32 * V;
    // Both sides, or partners only.
    int grad_sides = tasks->grad_sides;
    const PairTask task = tasks[blockIdx.z / grad_sides];
    bool left = blockIdx.z % grad_sides + 1 < grad_sides;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, hidden = task.hidden, outputs = task.outputs;
    int h = blockIdx.x * COLUMNS + lane * V;
    bool inside = h < hidden;
    // Lanes without columns read valid ones and discard them.
    int from = inside ? h : 0;
    float* shared = dynamic_shared();
    int2* entries = (int2*)(shared + outputs * COLUMNS) + warp * 32;
    float *carries = shared + outputs * COLUMNS + WARPS * 64 + lane * V, *cached_rows = carries + WARPS * COLUMNS;
    for (int c = warp; c < outputs; c += WARPS) {
        float x[V];
        read_columns<V>(x, task.w + row_at(c, hidden) + from);
        write_columns<V>(shared + c * COLUMNS + lane * V, x);
    }
    __syncthreads();
    const char* weights = (const char*)(shared + lane * V);
    for (int e = blockIdx.y; e < shape[0]; e += gridDim.y) {
        int i0 = element_offset(task.space, shape, e), n = element_offset(task.space, shape, e + 1) - i0;
        int j0 = element_offset(task.right_space, shape, e), m = element_offset(task.right_space, shape, e + 1) - j0;
        int rows = left ? n : m, total = n * outputs, each = (total + WARPS - 1) / WARPS;
        int ld = left ? task.ld_left : task.ld_right, ld_other = left ? task.ld_right : task.ld_left;
        const float* row_values = left ? task.left + row_at(i0, ld) + from : task.right + row_at(j0, ld) + from;
        const float* other_values = left ? task.right + row_at(j0, ld_other) + from : task.left + row_at(i0, ld_other) + from;
        float* gradients = left ? task.d_left + row_at(i0, ld) + h : task.d_right + row_at(j0, ld) + h;
        const int2* list = (left ? task.left_entries : task.right_entries) + (size_t)i0 * outputs;
        const int* starts = task.right_starts + j0;
        if constexpr (CACHED) {
            int count = left ? m : n;
            for (int row = warp; row < count; row += WARPS) {
                float x[V];
                read_columns<V>(x, other_values + row_at(row, ld_other));
                write_columns<V>(cached_rows + row * COLUMNS, x);
            }
            __syncthreads();
        }
        auto start_of = [&](int row) { return row >= rows ? total : left ? row * outputs : starts[row]; };
        // The first row that begins at entry `at` or later.
        auto first_from = [&](int at) {
            if (left) return (at + outputs - 1) / outputs;
            int count = 0;
            for (int row = lane; row - lane < rows; row += 32) count += __popc(__ballot_sync(~0u, row < rows && start_of(row) < at));
            return count;
        };
        int begin = min(warp * each, total), end = min(begin + each, total);
        int first = first_from(begin), last = warp == WARPS - 1 ? rows : first_from(end);
        // sum = the entries at..until of one row.
        auto sum_entries = [&](float* sum, int row, int at, int until) {
            float u[V], v[V], x[V];
#pragma unroll
            for (int k = 0; k < V; k++) sum[k] = x[k] = v[k] = 0.0f;
            if (at >= until) return;
            read_columns<V>(u, row_values + row_at(row, ld));
            // The other side's index of the current pair; x sums its dy · W.
            int other = -1;
            auto add_pair = [&]() {
#pragma unroll
                for (int k = 0; k < V; k++)
                    if (u[k] + v[k] > 0.0f) sum[k] += x[k];
            };
            // Beyond the end the last entry repeats with a factor of zero.
            auto fetch = [&](int at) {
                int2 entry = list[min(at + lane, until - 1)];
                if (at + lane >= until) entry.y = 0;
                return entry;
            };
            int2 next = fetch(at);
            for (; at < until; at += 32) {
                __syncwarp();
                entries[lane] = next;
                __syncwarp();
                next = fetch(at + 32);
                int count = min(32, until - at);
                for (int k = 0; k < count; k += 4) {
                    int4 two = *(const int4*)(entries + k), more = *(const int4*)(entries + k + 2);
                    int offset[4] = {two.x, two.z, more.x, more.z}, factor[4] = {two.y, two.w, more.y, more.w};
                    float w[4][V];
#pragma unroll
                    for (int q = 0; q < 4; q++) read_columns<V>(w[q], (const float*)(weights + (offset[q] & ((1 << ENTRY_BITS) - 1))));
                    auto add = [&](int q) {
#pragma unroll
                        for (int c = 0; c < V; c++) x[c] += __int_as_float(factor[q]) * w[q][c];
                    };
                    // Entries are sorted: if the last belongs to the same pair, all do.
                    if (offset[3] >> ENTRY_BITS == other) {
#pragma unroll
                        for (int q = 0; q < 4; q++) add(q);
                        continue;
                    }
#pragma unroll
                    for (int q = 0; q < 4; q++) {
                        if (offset[q] >> ENTRY_BITS != other) {
                            add_pair();
                            other = offset[q] >> ENTRY_BITS;
                            if constexpr (CACHED) read_columns<V>(v, cached_rows + other * COLUMNS);
                            else read_columns<V>(v, other_values + row_at(other, ld_other));
#pragma unroll
                            for (int c = 0; c < V; c++) x[c] = __int_as_float(factor[q]) * w[q][c];
                        } else
                            add(q);
                    }
                }
            }
            add_pair();
        };
        float sum[V];
        sum_entries(sum, first - 1, begin, min(end, start_of(first)));
        write_columns<V>(carries + warp * COLUMNS, sum);
        bool open = false;
        for (int row = first; row < last; row++) {
            int until = start_of(row + 1);
            sum_entries(sum, row, start_of(row), min(until, end));
            open = until > end;
            if (!open && inside) write_columns<V>(gradients + row_at(row, ld), sum);
        }
        __syncthreads();
        if (open) {
            int until = start_of(last);
            for (int w = warp + 1; w < WARPS && w * each < until; w++) {
                float x[V];
                read_columns<V>(x, carries + w * COLUMNS);
#pragma unroll
                for (int k = 0; k < V; k++) sum[k] += x[k];
            }
            if (inside) write_columns<V>(gradients + row_at(last - 1, ld), sum);
        }
        __syncthreads();
    }
}

#define PAIR_MAX_SORTED_GRAD(NAME, V, CACHED)                                        \
    extern "C" __global__ void __launch_bounds__(1024) pair_max_sorted_grad_##NAME(  \
        const PairTask* tasks, const int* shape) {                                   \
        grid_dependency_sync(tasks + blockIdx.z / tasks->grad_sides, shape);         \
        pair_max_sorted_grad<V, CACHED>(tasks, shape);                               \
    }
PAIR_MAX_SORTED_GRAD(1, 1, false)
PAIR_MAX_SORTED_GRAD(2, 2, false)
PAIR_MAX_SORTED_GRAD(4, 4, false)
PAIR_MAX_SORTED_GRAD(1_cached, 1, true)
PAIR_MAX_SORTED_GRAD(2_cached, 2, true)
PAIR_MAX_SORTED_GRAD(4_cached, 4, true)
