// `pair_max_slabs` with f16 operands: the mantissa of tf32 relative to the batch's largest numbers, at twice the speed.
//
// A register holds two neighbouring hidden columns. Of 32 columns lane 4g + t reads eight neighbours from 8t on, four
// for each of two products. In a product these are columns 2t, 2t + 1, 2t + 8 and 2t + 9; W's columns are stored in
// that order. u and v are rounded to f16 before they are added, since reading them bounds the kernel. Where they nearly
// cancel, the error is that of u and v, small beside the hidden values that decide the max.

// Columns of a slab.
#define F16_SLAB_COLUMNS 64
// Stages of elements and partners, and 32-bit words of one stage (32 columns).
#define F16_SLOTS 4
#define F16_SLOT ((SLAB_ELEMENTS + SLAB_PARTNERS) * 16)

// The column of W stored at position `at` of a row.
__device__ __forceinline__ int f16_column(int at) { return at / 32 * 32 + at % 8 / 2 * 8 + at / 16 % 2 * 4 + at / 8 % 2 * 2 + at % 2; }

__device__ __forceinline__ unsigned short to_f16(float x) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

// Rounds u, v and W to f16, rows zero-padded, and finds the largest absolute value of each. Grid: (3 · blocks, tasks);
// block x handles operand x % 3. The f16 copies are written; max_abs must be zero before and is updated by atomicMax,
// which is exact.
extern "C" __global__ void __launch_bounds__(256) pair_to_f16(const PairTask* tasks, const int* shape) {
    grid_dependency_sync(tasks + blockIdx.y, shape);
    const PairTask task = tasks[blockIdx.y];
    int kind = blockIdx.x % 3, hidden = task.hidden;
    u32 padded = (hidden + F16_SLAB_COLUMNS - 1) / F16_SLAB_COLUMNS * F16_SLAB_COLUMNS;
    u32 at = blockIdx.x / 3 * 256 + threadIdx.x, step = (gridDim.x + 2 - kind) / 3 * 256;
    float max_value = 0.0f;
    if (kind == 2) {
        for (u32 i = at; i < task.outputs * padded; i += step) {
            u32 row = i / padded, c = f16_column(i - row * padded);
            float w = c < hidden ? task.w[row * hidden + c] : 0.0f;
            ((unsigned short*)task.w_f16)[i] = to_f16(w);
            max_value = max_nan(max_value, fabsf(w));
        }
    } else {
        const float* from = kind ? task.right : task.left;
        uint2* to = (uint2*)(kind ? task.right_f16 : task.left_f16);
        u32 across = padded / 4, total = row_count(kind ? task.right_space : task.space, shape) * across, ld = kind ? task.ld_right : task.ld_left;
        for (u32 i = at; i < total; i += step) {
            u32 row = i / across, c = (i - row * across) * 4;
            float4 x = c < hidden ? *(const float4*)(from + (size_t)row * ld + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            to[i] = make_uint2(pack_f16x2(x.x, x.y), pack_f16x2(x.z, x.w));
            max_value = max_nan(max_value, max_nan(max_nan(fabsf(x.x), fabsf(x.y)), max_nan(fabsf(x.z), fabsf(x.w))));
        }
    }
    // Non-negative floats compare like their bits; NaN is largest.
    int bits = __reduce_max_sync(~0u, __float_as_int(max_value));
    if (threadIdx.x % 32 == 0) atomicMax(task.max_abs + kind, bits);
}

// d += A Bᵀ over 16 columns: 64 rows from registers by 128 rows of a tile.
__device__ __forceinline__ void wgmma_f16(float* d, const u32* a, u64 b) {
    asm volatile("{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" REGS_64 "}, {%64,%65,%66,%67}, %68, p, 1, 1, 0;}"
                 : ACC_16(0), ACC_16(16), ACC_16(32), ACC_16(48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// Two f16 ones.
#define F16X2_ONES 0x3c003c00u

// relu(a + b) of two f16 numbers each, as relu(a · 1 + b).
__device__ __forceinline__ u32 add_relu_f16x2(u32 a, u32 b) {
    u32 x;
    asm("fma.rn.relu.f16x2 %0, %1, %2, %3;" : "=r"(x) : "r"(a), "r"(F16X2_ONES), "r"(b));
    return x;
}

// y_i = max_j (W relu(u_i + v_j) + b) and its argmax, written; grid and ownership as `pair_max_slabs`. It runs for
// tasks that `uses_f16` accepts, after `pair_to_f16`. Sixteen slabs of 32 columns are resident, two per load, so W
// stays for up to 512 hidden columns.
extern "C" __global__ void __launch_bounds__(32 * PAIR_WARPS + 128, 1) pair_max_slabs_f16(const PairTask* tasks, const int* shape) {
    grid_dependency_sync(tasks + blockIdx.y, shape);
    const PairTask task = tasks[blockIdx.y];
    if (!uses_f16(task)) return;
    int across = (task.outputs + SLAB_OUTPUTS - 1) / SLAB_OUTPUTS, n0 = blockIdx.x % across * SLAB_OUTPUTS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __shared__ u64 full[SLAB_STAGES], empty[SLAB_STAGES];
    __shared__ int partners[PAIR_WARPS];
    const SlabRange range(task, shape, blockIdx.x / across * PAIR_WARPS, full, empty, partners);
    bool valid = range.valid;
    int first = range.first, i0 = range.i0, n = range.n, j0 = range.j0, m = range.m, max_partners = range.max_partners;
    int hidden = task.hidden, slab_count = (hidden + F16_SLAB_COLUMNS - 1) / F16_SLAB_COLUMNS, chunks = 2 * slab_count, tiles = (max_partners + SLAB_PARTNERS - 1) / SLAB_PARTNERS;
    bool resident = slab_count <= SLAB_STAGES;
    float* slabs = aligned_shared();
    if (warp >= PAIR_WARPS) {
        // Registers go to the consumer warps.
        setmaxnreg_dec<SLAB_PRODUCER_REGISTERS>();
        if (threadIdx.x != 32 * PAIR_WARPS) return;
        load_slabs(slabs, task.w_f16_map, slab_count, F16_SLAB_COLUMNS, resident && tiles ? slab_count : tiles * slab_count, n0, full, empty);
        return;
    }
    setmaxnreg_inc<SLAB_CONSUMER_REGISTERS>();
    int g = lane / 4, t = lane % 4;
    float* slots = slabs + SLAB_STAGES * SLAB + warp * SLAB_SLOTS * SLAB_SLOT;
    float* argmax = slabs + SLAB_STAGES * SLAB + PAIR_WARPS * SLAB_SLOTS * SLAB_SLOT + warp * SLAB_ARGMAX + lane;
    // The next tile and chunk of 32 columns to copy, and its slot. A lane copies eight columns of an element; half of
    // the lanes also copy a partner's.
    int next_tile = 0, next_chunk = 0, next_slot = 0, padded = slab_count * F16_SLAB_COLUMNS;
    const unsigned short *us = (const unsigned short*)task.left_f16 + lane % 4 * 8, *vs = (const unsigned short*)task.right_f16 + lane % 4 * 8;
    // Missing rows are replaced by valid ones; their results are unused or repeat the last partner.
    us += valid ? row_at(i0 + min(first + lane / 4, n - 1), padded) : 0;
    auto copy_next = [&]() {
        if (next_tile < tiles) {
            float* to = slots + next_slot * F16_SLOT + lane * 4;
            cp_async_16(to, (const float*)(us + next_chunk * 32), valid);
            const unsigned short* v = vs + next_chunk * 32 + (valid ? row_at(j0 + min(next_tile * SLAB_PARTNERS + lane / 4, m - 1), padded) : 0);
            if (lane < 4 * SLAB_PARTNERS) cp_async_16(to + SLAB_ELEMENTS * 16, (const float*)v, valid);
        }
        cp_async_commit();
        next_slot = next_slot + 1 == F16_SLOTS ? 0 : next_slot + 1;
        if (++next_chunk == chunks) {
            next_chunk = 0;
            next_tile++;
        }
    };
    // The hidden layer of 32 columns and two partners as A fragments of two products.
    auto hidden_layer = [](u32 (*a)[4], uint4 u, uint4 v, uint4 w) {
        a[0][0] = add_relu_f16x2(u.x, v.x), a[0][1] = add_relu_f16x2(u.x, w.x), a[0][2] = add_relu_f16x2(u.y, v.y), a[0][3] = add_relu_f16x2(u.y, w.y);
        a[1][0] = add_relu_f16x2(u.z, v.z), a[1][1] = add_relu_f16x2(u.z, w.z), a[1][2] = add_relu_f16x2(u.w, v.w), a[1][3] = add_relu_f16x2(u.w, w.w);
    };
    float best[SLAB_OUTPUTS / 4];
    argmax_reset(best, argmax);
    for (int k = 1; k < F16_SLOTS; k++) copy_next();
    int stage = 0, phase = 0, slot = 0;
    for (int tile = 0; tile < tiles; tile++) {
        // Accumulators of the first two partners and of the others.
        float first_two[SLAB_OUTPUTS / 2] = {}, last_two[SLAB_OUTPUTS / 2] = {};
        for (int chunk = 0; chunk < chunks; chunk++) {
            bool begins = chunk % 2 == 0;
            __syncwarp();
            copy_next();
            cp_async_wait<F16_SLOTS - 1>();
            __syncwarp();
            if (begins) mbarrier_wait(full + stage, phase);
            const uint4* step = (const uint4*)(slots + slot * F16_SLOT) + t;
            u64 b = wgmma_descriptor(slabs + stage * SLAB) + (begins ? 0 : 4);
            u32 first_operands[2][4], last_operands[2][4];
            // While the products of two partners run, the operands of the other two are computed.
            uint4 u = step[g * 4], v[SLAB_PARTNERS];
#pragma unroll
            for (int r = 0; r < SLAB_PARTNERS; r++) v[r] = step[(SLAB_ELEMENTS + r) * 4];
            hidden_layer(first_operands, u, v[0], v[1]);
            wgmma_fence();
#pragma unroll
            for (int half = 0; half < 2; half++) wgmma_f16(first_two, first_operands[half], b + 2 * half);
            wgmma_commit();
            wgmma_wait_1();
            // The previous slab has been read.
            mbarrier_arrive_if(empty + (stage + SLAB_STAGES - 1) % SLAB_STAGES, begins && !resident && tile + chunk > 0 && lane == 0);
            hidden_layer(last_operands, u, v[2], v[3]);
            wgmma_fence();
#pragma unroll
            for (int half = 0; half < 2; half++) wgmma_f16(last_two, last_operands[half], b + 2 * half);
            wgmma_commit();
            wgmma_wait_1();
            slot = slot + 1 == F16_SLOTS ? 0 : slot + 1;
            if (!begins && ++stage == (resident ? slab_count : SLAB_STAGES)) {
                stage = 0;
                phase ^= resident ? 0 : 1;
            }
        }
        wgmma_wait();
        argmax_update_partners(best, argmax, first_two, last_two, tile * SLAB_PARTNERS, m - 1);
    }
    if (valid && first + g < n) write_max(task, best, argmax, i0 + first + g, n0);
}
