// The max over partners with W streaming through shared memory in slabs, with wgmma.

// Outputs of a block, slabs of 32 hidden columns in shared memory, and stages of elements and partners.
#define SLAB_OUTPUTS 128
#define SLAB_STAGES 8
#define SLAB_SLOTS 3
// Elements and partners that a warp multiplies together.
#define SLAB_ELEMENTS 8
#define SLAB_PARTNERS 4
// Numbers between elements of a stage, against bank conflicts.
#define SLAB_ELEMENT_STRIDE 48
// Numbers of a slab, of one warp's stage, and of its argmax indices.
#define SLAB (SLAB_OUTPUTS * 32)
#define SLAB_SLOT (SLAB_ELEMENTS * SLAB_ELEMENT_STRIDE + SLAB_PARTNERS * 32)
#define SLAB_ARGMAX (SLAB_OUTPUTS * SLAB_ELEMENTS)
// Registers of a consumer thread and of a thread of the producer warpgroup: 256 · 240 + 128 · 24 fit a multiprocessor.
#define SLAB_CONSUMER_REGISTERS 240
#define SLAB_PRODUCER_REGISTERS 24

// Elements of an example form groups of eight. Finds the example and first element of group `at` of the batch; false if
// there is none.
__device__ __forceinline__ bool find_group(Space space, const int* shape, int at, int& example, int& first) {
    int lane = threadIdx.x % 32, examples = shape[0];
    for (int base = 0; base < examples; base += 32) {
        int e = base + lane;
        int count = e < examples ? (element_offset(space, shape, e + 1) - element_offset(space, shape, e) + SLAB_ELEMENTS - 1) / SLAB_ELEMENTS : 0;
        int until = count;
#pragma unroll
        for (int k = 1; k < 32; k *= 2) {
            int before = __shfl_up_sync(~0u, until, k);
            until += lane >= k ? before : 0;
        }
        u32 beyond = __ballot_sync(~0u, until > at);
        if (beyond) {
            int found = __ffs(beyond) - 1;
            example = base + found;
            first = (at - __shfl_sync(~0u, until - count, found)) * SLAB_ELEMENTS;
            return true;
        }
        at -= __shfl_sync(~0u, until, 31);
    }
    return false;
}

// Resets the running argmax. A lane has SLAB_OUTPUTS / 4 columns of one element: best[c] in registers, argmax[c · 32]
// in shared memory.
__device__ __forceinline__ void argmax_reset(float* best, float* argmax) {
#pragma unroll
    for (int c = 0; c < SLAB_OUTPUTS / 4; c++) {
        best[c] = MIN_FLOAT;
        argmax[c * 32] = 0.0f;
    }
}

// Updates the running argmax with four partners from `base` on: `first_two` and `last_two` have two partners each.
// Beyond the last partner the last one repeats.
__device__ __forceinline__ void argmax_update_partners(float* best, float* argmax, const float* first_two, const float* last_two, int base, int last) {
    float index[SLAB_PARTNERS];
#pragma unroll
    for (int r = 0; r < SLAB_PARTNERS; r++) index[r] = (float)min(base + r, last);
#pragma unroll
    for (int c = 0; c < SLAB_OUTPUTS / 4; c++) {
        int at = c / 2 * 4 + c % 2;
        float x[SLAB_PARTNERS] = {first_two[at], first_two[at + 2], last_two[at], last_two[at + 2]}, tile_best = x[0], best_index = index[0];
#pragma unroll
        for (int r = 1; r < SLAB_PARTNERS; r++) {
            best_index = !(x[r] <= tile_best) ? index[r] : best_index;
            tile_best = max_nan(tile_best, x[r]);
        }
        if (!(tile_best <= best[c])) argmax[c * 32] = best_index;
        best[c] = max_nan(best[c], tile_best);
    }
}

// Writes a lane's maxima of one element, plus the bias, and their argmax: columns 8 (c / 2) + 2t + c % 2 of the tile at
// n0.
__device__ __forceinline__ void write_max(const PairTask& task, const float* best, const float* argmax, int row, int n0) {
    float *y = task.y + (size_t)row * task.ldy, *saved = task.saved + (size_t)row * task.outputs;
#pragma unroll
    for (int c = 0; c < SLAB_OUTPUTS / 4; c++) {
        int o = n0 + c / 2 * 8 + 2 * (threadIdx.x % 4) + c % 2;
        if (o >= task.outputs) continue;
        y[o] = best[c] + task.bias[o];
        saved[o] = argmax[c * 32];
    }
}

// Issues TMA loads of `steps` slabs in order, `count` slabs of `columns` columns per pass over W, ahead of the
// consumers.
__device__ __forceinline__ void load_slabs(float* slabs, const void* map, int count, int columns, int steps, int n0, u64* full, u64* empty) {
    for (int step = 0; step < steps; step++) {
        int s = step % SLAB_STAGES;
        if (step >= SLAB_STAGES) mbarrier_wait(empty + s, (step / SLAB_STAGES - 1) % 2);
        mbarrier_expect_bytes(full + s, SLAB * 4);
        tma_load_2d(slabs + s * SLAB, map, step % count * columns, n0, full + s);
    }
}

// The elements and partners of a warp, and the largest number of partners in the block. The constructor also
// initialises the mbarriers.
struct SlabRange {
    bool valid;
    int first, i0, n, j0, m, max_partners;

    __device__ __forceinline__ SlabRange(const PairTask& task, const int* shape, int group, u64* full, u64* empty, int* partners) : first(0), i0(0), n(0), j0(0), m(0), max_partners(0) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, e;
        valid = find_group(task.space, shape, group + warp, e, first);
        if (valid) {
            i0 = element_offset(task.space, shape, e), n = element_offset(task.space, shape, e + 1) - i0;
            j0 = element_offset(task.right_space, shape, e), m = element_offset(task.right_space, shape, e + 1) - j0;
        }
        if (warp < PAIR_WARPS && lane == 0) partners[warp] = m;
        if (threadIdx.x == 0) {
            for (int i = 0; i < SLAB_STAGES; i++) {
                mbarrier_init(full + i, 1);
                mbarrier_init(empty + i, PAIR_WARPS);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();
        for (int w = 0; w < PAIR_WARPS; w++) max_partners = max(max_partners, partners[w]);
    }
};

// y_i = max_j (W relu(u_i + v_j) + b) and its argmax. Grid: (element groups / 8 · output tiles, tasks). A block owns
// 128 outputs and eight groups of eight elements, one a warp, of any examples. y and `saved` are written.
//
// A warp takes four partners at a time over all hidden columns. Rows g and g + 8 of its two A fragments are element g
// with one partner each, so an accumulator's maximum needs no reduction. The argmax lies in shared memory and is
// written only when it changes. Elements and partners load 32 hidden columns at a time, transposed in fours: lane 4g +
// t reads columns t, t + 4, t + 8 and t + 12 of 16 at once. A producer warp streams W by TMA: once if all slabs are
// resident, otherwise once per four partners (16 KB for 256 pairs). Shapes: PairTask. Preconditions: 384 threads,
// `w_map` is set. Tasks that `uses_f16` accepts belong to `pair_max_slabs_f16`.
extern "C" __global__ void __launch_bounds__(32 * PAIR_WARPS + 128, 1) pair_max_slabs(const PairTask* tasks, const int* shape) {
    grid_dependency_sync(tasks + blockIdx.y, shape);
    const PairTask task = tasks[blockIdx.y];
    if (uses_f16(task)) return;
    int across = (task.outputs + SLAB_OUTPUTS - 1) / SLAB_OUTPUTS, n0 = blockIdx.x % across * SLAB_OUTPUTS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __shared__ u64 full[SLAB_STAGES], empty[SLAB_STAGES];
    __shared__ int partners[PAIR_WARPS];
    const SlabRange range(task, shape, blockIdx.x / across * PAIR_WARPS, full, empty, partners);
    bool valid = range.valid;
    int first = range.first, i0 = range.i0, n = range.n, j0 = range.j0, m = range.m, max_partners = range.max_partners;
    int hidden = task.hidden, chunks = (hidden + 31) / 32, tiles = (max_partners + SLAB_PARTNERS - 1) / SLAB_PARTNERS;
    bool resident = chunks <= SLAB_STAGES;
    float* slabs = aligned_shared();
    if (warp >= PAIR_WARPS) {
        // Registers go to the consumer warps.
        setmaxnreg_dec<SLAB_PRODUCER_REGISTERS>();
        if (threadIdx.x != 32 * PAIR_WARPS) return;
        load_slabs(slabs, task.w_map, chunks, 32, resident && tiles ? chunks : tiles * chunks, n0, full, empty);
        return;
    }
    setmaxnreg_inc<SLAB_CONSUMER_REGISTERS>();
    int g = lane / 4, t = lane % 4;
    float* slots = slabs + SLAB_STAGES * SLAB + warp * SLAB_SLOTS * SLAB_SLOT;
    float* argmax = slabs + SLAB_STAGES * SLAB + PAIR_WARPS * SLAB_SLOTS * SLAB_SLOT + warp * SLAB_ARGMAX + lane;
    // The next tile and chunk to copy, and its slot.
    int next_tile = 0, next_chunk = 0, next_slot = 0;
    auto copy_next = [&]() {
        if (next_tile < tiles) {
            // Missing rows are replaced by valid ones; their results are unused or repeat the last partner.
            int c = next_chunk * 32 + lane;
            bool inside = valid && c < hidden;
            float* to = slots + next_slot * SLAB_SLOT + lane / 16 * 16 + lane % 4 * 4 + lane / 4 % 4;
            const float *u = task.left + (size_t)i0 * task.ld_left + c, *v = task.right + (size_t)j0 * task.ld_right + c;
#pragma unroll
            for (int r = 0; r < SLAB_ELEMENTS; r++) cp_async_4(to + r * SLAB_ELEMENT_STRIDE, inside ? u + row_at(min(first + r, n - 1), task.ld_left) : task.left, inside);
            to += SLAB_ELEMENTS * SLAB_ELEMENT_STRIDE;
#pragma unroll
            for (int r = 0; r < SLAB_PARTNERS; r++)
                cp_async_4(to + r * 32, inside ? v + row_at(min(next_tile * SLAB_PARTNERS + r, m - 1), task.ld_right) : task.left, inside);
        }
        cp_async_commit();
        next_slot = next_slot + 1 == SLAB_SLOTS ? 0 : next_slot + 1;
        if (++next_chunk == chunks) {
            next_chunk = 0;
            next_tile++;
        }
    };
    // The hidden layer of 16 columns and two partners as A fragments of two k-steps. fmaxf(NaN, 0) is 0, so rounding
    // needs no test for NaN.
    auto hidden_layer = [](u32 (*a)[4], float4 u, float4 v, float4 w) {
        auto relu_tf32 = [](float x, float y) { return __float_as_uint(fmaxf(x + y, 0.0f)) + HALF_TF32_UNIT; };
        a[0][0] = relu_tf32(u.x, v.x); a[0][1] = relu_tf32(u.x, w.x); a[0][2] = relu_tf32(u.y, v.y); a[0][3] = relu_tf32(u.y, w.y);
        a[1][0] = relu_tf32(u.z, v.z); a[1][1] = relu_tf32(u.z, w.z); a[1][2] = relu_tf32(u.w, v.w); a[1][3] = relu_tf32(u.w, w.w);
    };
    float best[SLAB_OUTPUTS / 4];
    argmax_reset(best, argmax);
    copy_next();
    copy_next();
    int stage = 0, phase = 0, slot = 0;
    for (int tile = 0; tile < tiles; tile++) {
        // Accumulators of the first two partners and of the others.
        float first_two[SLAB_OUTPUTS / 2] = {}, last_two[SLAB_OUTPUTS / 2] = {};
        for (int chunk = 0; chunk < chunks; chunk++) {
            __syncwarp();
            copy_next();
            cp_async_wait<SLAB_SLOTS - 1>();
            __syncwarp();
            mbarrier_wait(full + stage, phase);
            const float *u = slots + slot * SLAB_SLOT + g * SLAB_ELEMENT_STRIDE + 4 * t, *v = slots + slot * SLAB_SLOT + SLAB_ELEMENTS * SLAB_ELEMENT_STRIDE + 4 * t;
            u64 b = wgmma_descriptor(slabs + stage * SLAB);
            u32 first_operands[2][4], last_operands[2][4];
            // While the products of two partners run, the operands of the other two are computed.
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float4 x = *(const float4*)(u + 16 * half), y[SLAB_PARTNERS];
#pragma unroll
                for (int r = 0; r < SLAB_PARTNERS; r++) y[r] = *(const float4*)(v + r * 32 + 16 * half);
                hidden_layer(first_operands, x, y[0], y[1]);
                wgmma_fence();
                wgmma<SLAB_OUTPUTS>(first_two, first_operands[0], b + 4 * half);
                wgmma<SLAB_OUTPUTS>(first_two, first_operands[1], b + 4 * half + 2);
                wgmma_commit();
                wgmma_wait_1();
                // The previous slab has been read.
                if (half == 0) mbarrier_arrive_if(empty + (stage + SLAB_STAGES - 1) % SLAB_STAGES, !resident && tile + chunk > 0 && lane == 0);
                hidden_layer(last_operands, x, y[2], y[3]);
                wgmma_fence();
                wgmma<SLAB_OUTPUTS>(last_two, last_operands[0], b + 4 * half);
                wgmma<SLAB_OUTPUTS>(last_two, last_operands[1], b + 4 * half + 2);
                wgmma_commit();
                wgmma_wait_1();
            }
            slot = slot + 1 == SLAB_SLOTS ? 0 : slot + 1;
            if (++stage == (resident ? chunks : SLAB_STAGES)) {
                stage = 0;
                phase ^= resident ? 0 : 1;
            }
        }
        wgmma_wait();
        argmax_update_partners(best, argmax, first_two, last_two, tile * SLAB_PARTNERS, m - 1);
    }
    if (valid && first + g < n) write_max(task, best, argmax, i0 + first + g, n0);
}
