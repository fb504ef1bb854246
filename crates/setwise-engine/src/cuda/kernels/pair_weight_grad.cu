// Gradient of the second layer of pair networks through a max: dW[c, h] = Σ_i dy_i[c] relu(u_i[h] + v_w(i, c)[h]),
// where w(i, c) is the argmax. Partial sums are [splits][outputs · hidden], or [splits][groups][outputs · hidden] with
// rows in shared memory. Shapes: PairTask. Partial sums are written.

// For any sizes. Grid: (warp tiles / 8, splits, tasks). A warp owns 16 outputs by 32 hidden columns over a chunk of
// rows, a lane four by four. Warps of a block share columns where they can, so the L2 cache reads rows once.
template <bool VEC>
__device__ __forceinline__ void pair_max_weight_grad(const PairTask* tasks, const int* shape) {
    const PairTask task = tasks[blockIdx.z];
    int outputs = task.outputs, down = (outputs + 15) / 16, at = blockIdx.x * PAIR_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    int c = at % down * 16 + lane / 8 * 4, h = at / down * 32 + lane % 8 * 4, remaining = task.hidden - h, split = blockIdx.y;
    if (at / down * 32 >= task.hidden || split >= task.splits) return;
    int rows = row_count(task.space, shape), each = (rows + task.splits - 1) / task.splits;
    int first = split * each, last = min(rows, first + each);
    float4 sum[4];
#pragma unroll
    for (int k = 0; k < 4; k++) sum[k] = make_float4(0, 0, 0, 0);
    float4 d, saved, u;
    // The next row loads during the current one. Lanes without outputs or columns read valid ones and discard them.
    int from = VEC && remaining <= 0 ? 0 : h, out = VEC && c >= outputs ? 0 : c;
    const float *dy = task.dy + (size_t)first * task.ldy + out, *argmax = task.saved + (size_t)first * outputs + out;
    const float* u_row = task.left + (size_t)first * task.ld_left + from;
    auto fetch = [&]() {
        d = read_four_or_zero<VEC>(dy, outputs - c);
        saved = read_four_or_zero<VEC>(argmax, outputs - c);
        u = read_four_or_zero<VEC>(u_row, remaining);
    };
    if (first < last) fetch();
    for (int i = first, e = first < last ? example_of(task.space, shape, first) : 0; i < last; e++) {
        int end = min(last, element_offset(task.space, shape, e + 1));
        const float* v_rows = task.right + (size_t)element_offset(task.right_space, shape, e) * task.ld_right + from;
        for (; i < end; i++) {
            float factor[4] = {d.x, d.y, d.z, d.w};
            int index[4] = {(int)saved.x, (int)saved.y, (int)saved.z, (int)saved.w};
            float4 u_current = u, v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) v[k] = read_four_or_zero<VEC>(v_rows + row_at(index[k], task.ld_right), remaining);
            if (i + 1 < last) {
                dy += task.ldy;
                argmax += outputs;
                u_row += task.ld_left;
                fetch();
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float4 x = u_current + v[k];
                sum[k] = sum[k] + make_float4(fmaxf(x.x, 0.0f), fmaxf(x.y, 0.0f), fmaxf(x.z, 0.0f), fmaxf(x.w, 0.0f)) * factor[k];
            }
        }
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (c + k < outputs) write_four_masked<VEC>(task.partials + ((size_t)split * outputs + c + k) * task.hidden + h, sum[k], remaining);
}

extern "C" __global__ void __launch_bounds__(256, 3) pair_max_weight_grad(const PairTask* tasks, const int* shape) {
    grid_dependency_sync();
    if (tasks->vec && tasks->vec_y) pair_max_weight_grad<true>(tasks, shape);
    else pair_max_weight_grad<false>(tasks, shape);
}

// Blocks with rows of u and v in shared memory: hidden columns, warps, bytes of a row, and elements between two
// barriers where du is computed too.
#define CACHED_COLUMNS 64
#define CACHED_WARPS 16
#define CACHED_ROW_BYTES (4 * CACHED_COLUMNS)
#define CACHED_ELEMENTS 8

// For examples whose rows (`tile` of them) fit twice: the next example loads during the current one. Grid: (column
// tiles · output tiles, splits, tasks). A warp owns 16 outputs by 64 columns, a lane four by eight. With few outputs,
// groups of warps take every `groups`th element and have partial sums of their own.
//
// With LEFT_GRAD a block owns all outputs and keeps W in registers: du_i[h] = Σ_c dy_i[c] W[c, h] [u_i[h] + v_w(i,
// c)[h] > 0] uses the same sums u + v. The warps' parts of an element are added in warp order after each barrier;
// d_left is written.
template <bool LEFT_GRAD>
__device__ __forceinline__ void pair_max_weight_grad_cached(const PairTask* tasks, const int* shape) {
    const PairTask task = tasks[blockIdx.z];
    int outputs = task.outputs, hidden = task.hidden, output_tiles = (outputs + 15) / 16, across = (hidden + CACHED_COLUMNS - 1) / CACHED_COLUMNS;
    int groups = max(1, CACHED_WARPS / output_tiles), warp = threadIdx.x / 32, lane = threadIdx.x % 32, lane_column = lane % 8 * 4;
    int output_tile = groups > 1 ? warp % output_tiles : blockIdx.x / across * CACHED_WARPS + warp, group = groups > 1 ? warp / output_tiles : 0;
    int c = output_tile * 16 + lane / 8 * 4, h0 = blockIdx.x % across * CACHED_COLUMNS;
    bool active = output_tile < output_tiles && group < groups;
    float* stages = dynamic_shared();
    auto copy_rows = [&](float* to, const float* from, int ld, int rows) {
        for (int k = threadIdx.x; k < rows * (CACHED_COLUMNS / 4); k += 32 * CACHED_WARPS) {
            int h = h0 + k % (CACHED_COLUMNS / 4) * 4;
            cp_async_16(to + k * 4, from + (h < hidden ? row_at(k / (CACHED_COLUMNS / 4), ld) + h : 0), h < hidden);
        }
    };
    auto copy_example = [&](int e, int stage) {
        if (e < shape[0]) {
            int i0 = element_offset(task.space, shape, e), n = element_offset(task.space, shape, e + 1) - i0;
            int j0 = element_offset(task.right_space, shape, e), m = element_offset(task.right_space, shape, e + 1) - j0;
            float* to = stages + stage * task.tile * CACHED_COLUMNS;
            copy_rows(to, task.left + row_at(i0, task.ld_left), task.ld_left, n);
            copy_rows(to + n * CACHED_COLUMNS, task.right + row_at(j0, task.ld_right), task.ld_right, m);
        }
        cp_async_commit();
    };
    float4 sum[4][2], w[4][2];
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[k][half] = w[k][half] = make_float4(0, 0, 0, 0);
            int h = h0 + lane_column + 32 * half;
            if (LEFT_GRAD && active && c + k < outputs && h < hidden) w[k][half] = *(const float4*)(task.w + row_at(c + k, hidden) + h);
        }
    // The warps' sums of elements, double-buffered.
    float* left_partials = stages + 2 * task.tile * CACHED_COLUMNS;
    // Lanes without outputs read valid ones and discard them.
    int out = c < outputs ? c : 0, stage = 0, phase = 0;
    copy_example(blockIdx.y, 0);
    for (int e = blockIdx.y; e < shape[0]; e += gridDim.y, stage ^= 1) {
        copy_example(e + gridDim.y, stage ^ 1);
        int i0 = element_offset(task.space, shape, e), n = element_offset(task.space, shape, e + 1) - i0;
        const float *dy = task.dy + row_at(i0 + group, task.ldy) + out, *saved = task.saved + row_at(i0 + group, outputs) + out;
        const float* u = stages + stage * task.tile * CACHED_COLUMNS + group * CACHED_COLUMNS + lane_column;
        const char* v = (const char*)(stages + (stage * task.tile + n) * CACHED_COLUMNS + lane_column);
        float4 d, argmax;
        auto fetch = [&]() {
            d = read_four_or_zero<true>(dy, 4);
            argmax = read_four_or_zero<true>(saved, 4);
            dy += row_at(groups, task.ldy);
            saved += row_at(groups, outputs);
        };
        // Adds element i to the sums and prefetches the next; `left_sum` receives its part of du from four outputs.
        auto accumulate_element = [&](int i, float4* left_sum) {
            float factor[4] = {d.x, d.y, d.z, d.w}, index[4] = {argmax.x, argmax.y, argmax.z, argmax.w};
            if (i + groups < n) fetch();
            float4 u_row[2] = {*(const float4*)u, *(const float4*)(u + 32)};
            u += groups * CACHED_COLUMNS;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                // Adding 2²³ puts an integer into the low mantissa bits; the high bits vanish in the product.
                const char* row = v + __float_as_uint(index[k] + 0x1p23f) * CACHED_ROW_BYTES;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float4 x = u_row[half] + *(const float4*)(row + 128 * half);
                    auto add = [&](float x, float& to, float weight, float& to_left) {
                        // Two predicated multiply-adds.
                        if (x > 0.0f) {
                            to += x * factor[k];
                            if constexpr (LEFT_GRAD) to_left += weight * factor[k];
                        }
                    };
                    add(x.x, sum[k][half].x, w[k][half].x, left_sum[half].x);
                    add(x.y, sum[k][half].y, w[k][half].y, left_sum[half].y);
                    add(x.z, sum[k][half].z, w[k][half].z, left_sum[half].z);
                    add(x.w, sum[k][half].w, w[k][half].w, left_sum[half].w);
                }
            }
        };
        if (active && group < n) fetch();
        cp_async_wait<1>();
        __syncthreads();
        if constexpr (!LEFT_GRAD) {
            if (active)
                for (int i = group; i < n; i += groups) {
                    float4 unused[2];
                    accumulate_element(i, unused);
                }
        } else {
            for (int base = 0; base < n; base += CACHED_ELEMENTS * groups, phase ^= 1) {
                float* partials = left_partials + phase * CACHED_ELEMENTS * CACHED_WARPS * CACHED_COLUMNS;
                for (int q = 0; q < CACHED_ELEMENTS; q++) {
                    int i = base + q * groups + group;
                    if (!active || i >= n) break;
                    float4 x[2] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
                    accumulate_element(i, x);
                    // Four lanes share columns: each keeps two of eight.
                    bool right = lane & 16, odd = lane & 8;
                    float4 kept4 = right ? x[1] : x[0], sent = right ? x[0] : x[1];
                    kept4 = kept4 + make_float4(__shfl_xor_sync(~0u, sent.x, 16), __shfl_xor_sync(~0u, sent.y, 16), __shfl_xor_sync(~0u, sent.z, 16), __shfl_xor_sync(~0u, sent.w, 16));
                    float2 two = odd ? make_float2(kept4.z, kept4.w) : make_float2(kept4.x, kept4.y);
                    float2 other = odd ? make_float2(kept4.x, kept4.y) : make_float2(kept4.z, kept4.w);
                    two.x += __shfl_xor_sync(~0u, other.x, 8);
                    two.y += __shfl_xor_sync(~0u, other.y, 8);
                    *(float2*)(partials + (q * CACHED_WARPS + warp) * CACHED_COLUMNS + lane_column + (right ? 32 : 0) + (odd ? 2 : 0)) = two;
                }
                // The sums of the phase before the last have been read.
                __syncthreads();
                for (int k = threadIdx.x; k < CACHED_ELEMENTS * groups * (CACHED_COLUMNS / 2); k += 32 * CACHED_WARPS) {
                    int at = k / (CACHED_COLUMNS / 2), h = k % (CACHED_COLUMNS / 2) * 2;
                    if (base + at >= n || h0 + h >= hidden) continue;
                    const float* from = partials + (at / groups * CACHED_WARPS + at % groups * output_tiles) * CACHED_COLUMNS + h;
                    float2 total = make_float2(0, 0);
                    for (int s = 0; s < output_tiles; s++, from += CACHED_COLUMNS) {
                        float2 x = *(const float2*)from;
                        total.x += x.x;
                        total.y += x.y;
                    }
                    *(float2*)(task.d_left + row_at(i0 + base + at, task.ld_left) + h0 + h) = total;
                }
            }
        }
        __syncthreads();
    }
    if (!active) return;
    float* part = task.partials + ((size_t)(blockIdx.y * groups + group) * outputs + c) * hidden + h0 + lane_column;
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (c + k < outputs) write_four_masked<true>(part + (size_t)k * hidden + 32 * half, sum[k][half], hidden - h0 - lane_column - 32 * half);
}

extern "C" __global__ void __launch_bounds__(32 * CACHED_WARPS, 1) pair_max_weight_grad_cached(
    const PairTask* tasks, const int* shape) {
    grid_dependency_sync(tasks + blockIdx.z, shape);
    pair_max_weight_grad_cached<false>(tasks, shape);
}
extern "C" __global__ void __launch_bounds__(32 * CACHED_WARPS, 1) pair_max_weight_left_grad_cached(
    const PairTask* tasks, const int* shape) {
    grid_dependency_sync(tasks + blockIdx.z, shape);
    pair_max_weight_grad_cached<true>(tasks, shape);
}
