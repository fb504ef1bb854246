// The gradient of the second layer of networks on pairs through a maximum, in parts [splits][outputs · hidden] (with rows in shared memory [splits][groups][outputs · hidden]) of
// dW[c, h] = Σ_i dy_i[c] relu(u_i[h] + v_w(i, c)[h]), where w(i, c) is the partner that won output c from element i.

// For any number of elements and partners, and any rows: a warp has 16 outputs, 32 hidden columns and some rows, a lane
// four by four. Warps of a block have the same columns where they can, so that rows come from the L2 cache once for all of them.
template <bool VEC>
__device__ __forceinline__ void pair_max_weights(const PairTask* tasks, const int* shape) {
    const PairTask task = tasks[blockIdx.z];
    int outputs = task.outputs, down = (outputs + 15) / 16, at = blockIdx.x * PAIR_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    int c = at % down * 16 + lane / 8 * 4, h = at / down * 32 + lane % 8 * 4, left = task.hidden - h, split = blockIdx.y;
    if (at / down * 32 >= task.hidden || split >= task.splits) return;
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

extern "C" __global__ void __launch_bounds__(256, 3) pair_max_weights(const PairTask* t, const int* s) {
    in_turn();
    if (t->vec && t->vec_y) pair_max_weights<true>(t, s);
    else pair_max_weights<false>(t, s);
}

// Hidden columns of a block whose rows of u and v are in shared memory, its warps, and bytes of a row there; elements between two meetings of its warps where they sum gradients of elements too.
#define HELD_COLUMNS 64
#define HELD_WARPS 16
#define HELD_BYTES (4 * HELD_COLUMNS)
#define HELD_EACH 8

// For examples whose rows fit twice, `tile` of them: those of the next example come while one is worked on. A warp has 16 outputs and all columns of the block, a lane four by eight;
// where there are fewer outputs than warps for them, groups of warps take turns with elements and have parts of their own.
//
// With OWN a block has all outputs, and W in its registers: du_i[h] = Σ_c dy_i[c] W[c, h] [u_i[h] + v_w(i, c)[h] > 0] needs the same sums of u and v. What the warps have of an element is added up in their order when they meet.
template <bool OWN>
__device__ __forceinline__ void pair_max_weights_held(const PairTask* tasks, const int* shape) {
    const PairTask task = tasks[blockIdx.z];
    int outputs = task.outputs, hidden = task.hidden, slabs = (outputs + 15) / 16, across = (hidden + HELD_COLUMNS - 1) / HELD_COLUMNS;
    int groups = max(1, HELD_WARPS / slabs), warp = threadIdx.x / 32, lane = threadIdx.x % 32, side = lane % 8 * 4;
    int slab = groups > 1 ? warp % slabs : blockIdx.x / across * HELD_WARPS + warp, group = groups > 1 ? warp / slabs : 0;
    int c = slab * 16 + lane / 8 * 4, h0 = blockIdx.x % across * HELD_COLUMNS;
    bool busy = slab < slabs && group < groups;
    float* stages = block_memory();
    auto copy_rows = [&](float* to, const float* from, int ld, int rows) {
        for (int k = threadIdx.x; k < rows * (HELD_COLUMNS / 4); k += 32 * HELD_WARPS) {
            int h = h0 + k % (HELD_COLUMNS / 4) * 4;
            copy16(to + k * 4, from + (h < hidden ? row_at(k / (HELD_COLUMNS / 4), ld) + h : 0), h < hidden);
        }
    };
    auto copy_example = [&](int e, int stage) {
        if (e < shape[0]) {
            int i0 = element(task.space, shape, e), n = element(task.space, shape, e + 1) - i0;
            int j0 = element(task.partners, shape, e), m = element(task.partners, shape, e + 1) - j0;
            float* to = stages + stage * task.tile * HELD_COLUMNS;
            copy_rows(to, task.own + row_at(i0, task.ld_own), task.ld_own, n);
            copy_rows(to + n * HELD_COLUMNS, task.partner + row_at(j0, task.ld_partner), task.ld_partner, m);
        }
        copies_commit();
    };
    float4 sum[4][2], w[4][2];
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[k][half] = w[k][half] = make_float4(0, 0, 0, 0);
            int h = h0 + side + 32 * half;
            if (OWN && busy && c + k < outputs && h < hidden) w[k][half] = *(const float4*)(task.w + row_at(c + k, hidden) + h);
        }
    // What warps have of elements, for two meetings.
    float* own_parts = stages + 2 * task.tile * HELD_COLUMNS;
    // Lanes without outputs read others in vain.
    int out = c < outputs ? c : 0, stage = 0, meeting = 0;
    copy_example(blockIdx.y, 0);
    for (int e = blockIdx.y; e < shape[0]; e += gridDim.y, stage ^= 1) {
        copy_example(e + gridDim.y, stage ^ 1);
        int i0 = element(task.space, shape, e), n = element(task.space, shape, e + 1) - i0;
        const float *dy = task.dy + row_at(i0 + group, task.ldy) + out, *kept = task.kept + row_at(i0 + group, outputs) + out;
        const float* u = stages + stage * task.tile * HELD_COLUMNS + group * HELD_COLUMNS + side;
        const char* v = (const char*)(stages + (stage * task.tile + n) * HELD_COLUMNS + side);
        float4 d, winners;
        auto fetch = [&]() {
            d = four_of<true>(dy, 4);
            winners = four_of<true>(kept, 4);
            dy += row_at(groups, task.ldy);
            kept += row_at(groups, outputs);
        };
        // Takes up element i, the next one; what its own gradient gets from four outputs.
        auto take = [&](int i, float4* own_sum) {
            float factor[4] = {d.x, d.y, d.z, d.w}, winner[4] = {winners.x, winners.y, winners.z, winners.w};
            if (i + groups < n) fetch();
            float4 own[2] = {*(const float4*)u, *(const float4*)(u + 32)};
            u += groups * HELD_COLUMNS;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                // Added to 2²³ a whole number is in the last bits; the others leave with the product.
                const char* row = v + __float_as_uint(winner[k] + 0x1p23f) * HELD_BYTES;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float4 x = own[half] + *(const float4*)(row + 128 * half);
                    auto add = [&](float x, float& to, float weight, float& to_own) {
                        // Nothing but two products under a condition.
                        if (x > 0.0f) {
                            to += x * factor[k];
                            if constexpr (OWN) to_own += weight * factor[k];
                        }
                    };
                    add(x.x, sum[k][half].x, w[k][half].x, own_sum[half].x);
                    add(x.y, sum[k][half].y, w[k][half].y, own_sum[half].y);
                    add(x.z, sum[k][half].z, w[k][half].z, own_sum[half].z);
                    add(x.w, sum[k][half].w, w[k][half].w, own_sum[half].w);
                }
            }
        };
        if (busy && group < n) fetch();
        copies_wait<1>();
        __syncthreads();
        if constexpr (!OWN) {
            if (busy)
                for (int i = group; i < n; i += groups) {
                    float4 unused[2];
                    take(i, unused);
                }
        } else {
            for (int base = 0; base < n; base += HELD_EACH * groups, meeting ^= 1) {
                float* parts = own_parts + meeting * HELD_EACH * HELD_WARPS * HELD_COLUMNS;
                for (int q = 0; q < HELD_EACH; q++) {
                    int i = base + q * groups + group;
                    if (!busy || i >= n) break;
                    float4 x[2] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
                    take(i, x);
                    // Four lanes have the same columns: each keeps two of eight.
                    bool right = lane & 16, odd = lane & 8;
                    float4 kept4 = right ? x[1] : x[0], sent = right ? x[0] : x[1];
                    kept4 = kept4 + make_float4(__shfl_xor_sync(~0u, sent.x, 16), __shfl_xor_sync(~0u, sent.y, 16), __shfl_xor_sync(~0u, sent.z, 16), __shfl_xor_sync(~0u, sent.w, 16));
                    float2 two = odd ? make_float2(kept4.z, kept4.w) : make_float2(kept4.x, kept4.y);
                    float2 other = odd ? make_float2(kept4.x, kept4.y) : make_float2(kept4.z, kept4.w);
                    two.x += __shfl_xor_sync(~0u, other.x, 8);
                    two.y += __shfl_xor_sync(~0u, other.y, 8);
                    *(float2*)(parts + (q * HELD_WARPS + warp) * HELD_COLUMNS + side + (right ? 32 : 0) + (odd ? 2 : 0)) = two;
                }
                // Those of the meeting before last have been read.
                __syncthreads();
                for (int k = threadIdx.x; k < HELD_EACH * groups * (HELD_COLUMNS / 2); k += 32 * HELD_WARPS) {
                    int at = k / (HELD_COLUMNS / 2), h = k % (HELD_COLUMNS / 2) * 2;
                    if (base + at >= n || h0 + h >= hidden) continue;
                    const float* from = parts + (at / groups * HELD_WARPS + at % groups * slabs) * HELD_COLUMNS + h;
                    float2 total = make_float2(0, 0);
                    for (int s = 0; s < slabs; s++, from += HELD_COLUMNS) {
                        float2 x = *(const float2*)from;
                        total.x += x.x;
                        total.y += x.y;
                    }
                    *(float2*)(task.d_own + row_at(i0 + base + at, task.ld_own) + h0 + h) = total;
                }
            }
        }
        __syncthreads();
    }
    if (!busy) return;
    float* part = task.parts + ((size_t)(blockIdx.y * groups + group) * outputs + c) * hidden + h0 + side;
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (c + k < outputs) put_four<true>(part + (size_t)k * hidden + 32 * half, sum[k][half], hidden - h0 - side - 32 * half);
}

extern "C" __global__ void __launch_bounds__(32 * HELD_WARPS, 1) pair_max_weights_held(const PairTask* t, const int* s) {
    in_turn(t + blockIdx.z, s);
    pair_max_weights_held<false>(t, s);
}
extern "C" __global__ void __launch_bounds__(32 * HELD_WARPS, 1) pair_max_weights_own(const PairTask* t, const int* s) {
    in_turn(t + blockIdx.z, s);
    pair_max_weights_held<true>(t, s);
}
