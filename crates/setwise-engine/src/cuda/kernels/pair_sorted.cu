// Gradients of elements and of partners through a maximum, from lists of what was won in the order in which they are summed:
// with G_ij = Σ_c dy_i[c] W[c] over the outputs c that partner j won from element i, du_i = Σ_j G_ij [u_i + v_j > 0] and dv_j = Σ_i G_ij [u_i + v_j > 0].

// A win: the place of its output's row of W in bytes, with the other side's index above; and dy.
#define WIN_BITS 18
#define SORT_WARPS 16
// Times 32 winners that are fetched together.
#define SORT_AHEAD 4

__device__ __forceinline__ float* block_memory() {
    extern __shared__ __align__(16) float shared[];
    return shared;
}

// Over the lanes of a warp, without this one.
__device__ __forceinline__ int sum_before(int x, int& total) {
    int lane = threadIdx.x % 32, until = x;
#pragma unroll
    for (int k = 1; k < 32; k *= 2) {
        int before = __shfl_up_sync(~0u, until, k);
        until += lane >= k ? before : 0;
    }
    total = __shfl_sync(~0u, until, 31);
    return until - x;
}

// The lists of an example: by element, partner and output, if that is wanted, and by partner, element and output. `starts` says where a partner's wins begin. Wins are counted
// by element and partner, counts become places, and wins are put there; a warp has one element at a time, 32 outputs together.
extern "C" __global__ void __launch_bounds__(32 * SORT_WARPS) pair_max_sort(const PairTask* tasks, const int* shape) {
    in_turn(tasks + blockIdx.y, shape);
    const PairTask task = tasks[blockIdx.y];
    int e = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, outputs = task.outputs;
    if (e >= shape[0]) return;
    int i0 = element(task.space, shape, e), n = element(task.space, shape, e + 1) - i0;
    int j0 = element(task.partners, shape, e), m = element(task.partners, shape, e + 1) - j0;
    int *by_partner = (int*)block_memory(), *begin = by_partner + n * m;
    unsigned short* by_element = (unsigned short*)(begin + m);
    for (int i = threadIdx.x; i < n * m; i += 32 * SORT_WARPS) by_element[i] = 0;
    __syncthreads();
    // Winners of 32 outputs with their gradients, lanes with the same one, and how many of them come before.
    auto each = [&](bool gradients, auto apply) {
        for (int i = warp; i < n; i += SORT_WARPS)
            for (int first = lane; first - lane < outputs; first += 32 * SORT_AHEAD) {
                const float *kept = task.kept + (size_t)(i0 + i) * outputs, *dy = task.dy + (size_t)(i0 + i) * task.ldy;
                float winners[SORT_AHEAD], d[SORT_AHEAD];
#pragma unroll
                for (int k = 0; k < SORT_AHEAD; k++) {
                    int c = first + 32 * k;
                    winners[k] = c < outputs ? kept[c] : -1.0f;
                    d[k] = gradients && c < outputs ? dy[c] : 0.0f;
                }
#pragma unroll
                for (int k = 0; k < SORT_AHEAD; k++) {
                    int c = first + 32 * k, j = (int)winners[k];
                    if (c - lane >= outputs) break;
                    u32 same = __match_any_sync(~0u, j);
                    __syncwarp();
                    apply(i, j, c, __popc(same & ((1u << lane) - 1)), d[k]);
                    __syncwarp();
                    if (j >= 0 && __ffs(same) - 1 == lane) {
                        by_element[i * m + j] += __popc(same);
                        by_partner[i * m + j] += __popc(same);
                    }
                    __syncwarp();
                }
            }
    };
    each(false, [](int, int, int, int, float) {});
    __syncthreads();
    for (int j = threadIdx.x; j < m; j += 32 * SORT_WARPS) {
        int sum = 0;
        for (int i = 0; i < n; i++) {
            by_partner[i * m + j] = sum;
            sum += by_element[i * m + j];
        }
        begin[j] = sum;
    }
    __syncthreads();
    auto places = [&](auto* counts) {
        for (int j = lane, sum = 0, total; j - lane < m; j += 32, sum += total) {
            int before = sum_before(j < m ? counts[j] : 0, total);
            if (j < m) counts[j] = sum + before;
        }
    };
    if (task.own_wins)
        for (int i = warp; i < n; i += SORT_WARPS) places(by_element + i * m);
    if (warp == 0) places(begin);
    __syncthreads();
    for (int j = threadIdx.x; j < m; j += 32 * SORT_WARPS) task.starts[j0 + j] = begin[j];
    int2 *own = task.own_wins + (size_t)i0 * outputs, *partner = task.partner_wins + (size_t)i0 * outputs;
    each(true, [&](int i, int j, int c, int before, float d) {
        if (j < 0) return;
        int at = c * task.row_bytes;
        if (task.own_wins) own[(size_t)i * outputs + by_element[i * m + j] + before] = make_int2(j << WIN_BITS | at, __float_as_int(d));
        partner[begin[j] + by_partner[i * m + j] + before] = make_int2(i << WIN_BITS | at, __float_as_int(d));
    });
}

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

// A block has 32 V hidden columns, V to a lane, of one side's gradients in some examples; W stays in shared memory. With HELD the rows of the other side are there too while
// an example is summed: each is wanted once for every row that it won from, which is more than the L2 cache gives. An example's list is cut into
// pieces as long as each other, one a warp. A warp writes the rows that begin in its piece; where the last of them goes on, what other warps found of it is added in order.
template <int V, bool HELD>
__device__ __forceinline__ void pair_max_sides(const PairTask* tasks, const int* shape) {
    constexpr int WARPS = 32, COLUMNS = 32 * V;
    // Both sides, or partners alone.
    int sides = tasks->sides;
    const PairTask task = tasks[blockIdx.z / sides];
    bool own = blockIdx.z % sides + 1 < sides;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, hidden = task.hidden, outputs = task.outputs;
    int h = blockIdx.x * COLUMNS + lane * V;
    bool inside = h < hidden;
    // Lanes without columns read others in vain.
    int from = inside ? h : 0;
    float* shared = block_memory();
    int2* wins = (int2*)(shared + outputs * COLUMNS) + warp * 32;
    float *heads = shared + outputs * COLUMNS + WARPS * 64 + lane * V, *others = heads + WARPS * COLUMNS;
    for (int c = warp; c < outputs; c += WARPS) {
        float x[V];
        read_columns<V>(x, task.w + row_at(c, hidden) + from);
        write_columns<V>(shared + c * COLUMNS + lane * V, x);
    }
    __syncthreads();
    const char* weights = (const char*)(shared + lane * V);
    for (int e = blockIdx.y; e < shape[0]; e += gridDim.y) {
        int i0 = element(task.space, shape, e), n = element(task.space, shape, e + 1) - i0;
        int j0 = element(task.partners, shape, e), m = element(task.partners, shape, e + 1) - j0;
        int rows = own ? n : m, total = n * outputs, each = (total + WARPS - 1) / WARPS;
        int ld = own ? task.ld_own : task.ld_partner, ld_other = own ? task.ld_partner : task.ld_own;
        const float* row_values = own ? task.own + row_at(i0, ld) + from : task.partner + row_at(j0, ld) + from;
        const float* other_values = own ? task.partner + row_at(j0, ld_other) + from : task.own + row_at(i0, ld_other) + from;
        float* gradients = own ? task.d_own + row_at(i0, ld) + h : task.d_partner + row_at(j0, ld) + h;
        const int2* list = (own ? task.own_wins : task.partner_wins) + (size_t)i0 * outputs;
        const int* starts = task.starts + j0;
        if constexpr (HELD) {
            int count = own ? m : n;
            for (int row = warp; row < count; row += WARPS) {
                float x[V];
                read_columns<V>(x, other_values + row_at(row, ld_other));
                write_columns<V>(others + row * COLUMNS, x);
            }
            __syncthreads();
        }
        auto start_of = [&](int row) { return row >= rows ? total : own ? row * outputs : starts[row]; };
        // The first row that begins at a place or later.
        auto first_from = [&](int at) {
            if (own) return (at + outputs - 1) / outputs;
            int count = 0;
            for (int row = lane; row - lane < rows; row += 32) count += __popc(__ballot_sync(~0u, row < rows && start_of(row) < at));
            return count;
        };
        int begin = min(warp * each, total), end = min(begin + each, total);
        int first = first_from(begin), last = warp == WARPS - 1 ? rows : first_from(end);
        // sum = what is won of a row in a part of the list.
        auto add_up = [&](float* sum, int row, int at, int until) {
            float u[V], v[V], x[V];
#pragma unroll
            for (int k = 0; k < V; k++) sum[k] = x[k] = v[k] = 0.0f;
            if (at >= until) return;
            read_columns<V>(u, row_values + row_at(row, ld));
            int other = -1;
            auto close = [&]() {
#pragma unroll
                for (int k = 0; k < V; k++)
                    if (u[k] + v[k] > 0.0f) sum[k] += x[k];
            };
            // Beyond the end the last one again, with a factor of zero.
            auto fetch = [&](int at) {
                int2 win = list[min(at + lane, until - 1)];
                if (at + lane >= until) win.y = 0;
                return win;
            };
            int2 next = fetch(at);
            for (; at < until; at += 32) {
                __syncwarp();
                wins[lane] = next;
                __syncwarp();
                next = fetch(at + 32);
                int count = min(32, until - at);
                for (int k = 0; k < count; k += 4) {
                    int4 two = *(const int4*)(wins + k), more = *(const int4*)(wins + k + 2);
                    int place[4] = {two.x, two.z, more.x, more.z}, factor[4] = {two.y, two.w, more.y, more.w};
                    float w[4][V];
#pragma unroll
                    for (int q = 0; q < 4; q++) read_columns<V>(w[q], (const float*)(weights + (place[q] & ((1 << WIN_BITS) - 1))));
                    auto add = [&](int q) {
#pragma unroll
                        for (int c = 0; c < V; c++) x[c] += __int_as_float(factor[q]) * w[q][c];
                    };
                    // They are in order: if the last is another win of the same pair, all are.
                    if (place[3] >> WIN_BITS == other) {
#pragma unroll
                        for (int q = 0; q < 4; q++) add(q);
                        continue;
                    }
#pragma unroll
                    for (int q = 0; q < 4; q++) {
                        if (place[q] >> WIN_BITS != other) {
                            close();
                            other = place[q] >> WIN_BITS;
                            if constexpr (HELD) read_columns<V>(v, others + other * COLUMNS);
                            else read_columns<V>(v, other_values + row_at(other, ld_other));
#pragma unroll
                            for (int c = 0; c < V; c++) x[c] = __int_as_float(factor[q]) * w[q][c];
                        } else
                            add(q);
                    }
                }
            }
            close();
        };
        float sum[V];
        add_up(sum, first - 1, begin, min(end, start_of(first)));
        write_columns<V>(heads + warp * COLUMNS, sum);
        bool open = false;
        for (int row = first; row < last; row++) {
            int until = start_of(row + 1);
            add_up(sum, row, start_of(row), min(until, end));
            open = until > end;
            if (!open && inside) write_columns<V>(gradients + row_at(row, ld), sum);
        }
        __syncthreads();
        if (open) {
            int until = start_of(last);
            for (int w = warp + 1; w < WARPS && w * each < until; w++) {
                float x[V];
                read_columns<V>(x, heads + w * COLUMNS);
#pragma unroll
                for (int k = 0; k < V; k++) sum[k] += x[k];
            }
            if (inside) write_columns<V>(gradients + row_at(last - 1, ld), sum);
        }
        __syncthreads();
    }
}

#define PAIR_MAX_SIDES(NAME, V, HELD)                                                                                 \
    extern "C" __global__ void __launch_bounds__(1024) pair_max_sides_##NAME(const PairTask* t, const int* s) {       \
        in_turn(t + blockIdx.z / t->sides, s);                                                                         \
        pair_max_sides<V, HELD>(t, s);                                                                                 \
    }
PAIR_MAX_SIDES(1, 1, false)
PAIR_MAX_SIDES(2, 2, false)
PAIR_MAX_SIDES(4, 4, false)
PAIR_MAX_SIDES(1_held, 1, true)
PAIR_MAX_SIDES(2_held, 2, true)
PAIR_MAX_SIDES(4_held, 4, true)
