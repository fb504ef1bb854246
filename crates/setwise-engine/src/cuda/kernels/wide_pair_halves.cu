// The maximum over partners as in `wide_pair_panels.cu`, with products of halves: of as many bits as those of tf32, measured by the largest numbers of a batch, and twice as fast.
//
// Operands hold two neighbouring hidden columns in a register. Of 32 columns lane 4g + t reads eight neighbours from 8t on, four for each of two products, which are columns 2t, 2t + 1, 2t + 8
// and 2t + 9 there, so W has its columns in that order. Elements and partners are rounded to halves before they meet: what is read of them limits the kernel otherwise. Where they nearly
// cancel, what is left has their errors and not smaller ones; it is then small beside hidden layers that decide.

// Columns of a panel.
#define HALVES 64
// Steps of elements and partners in shared memory, and numbers of four bytes of one step: 32 columns.
#define HALF_SLOTS 4
#define HALF_SLOT ((PANEL_ELEMENTS + PANEL_PARTNERS) * 16)

// The column of W that stands at a place of its halves.
__device__ __forceinline__ int halves_column(int at) { return at / 32 * 32 + at % 8 / 2 * 8 + at / 16 % 2 * 4 + at / 8 % 2 * 2 + at % 2; }

__device__ __forceinline__ unsigned short half_of(float x) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

// The halves of u, v and W, rows filled up with zeros, and the largest of each, which are zero before: blocks by threes have one of them each.
extern "C" __global__ void __launch_bounds__(256) pair_halves(const PairTask* tasks, const int* shape) {
    in_turn(tasks + blockIdx.y, shape);
    const PairTask task = tasks[blockIdx.y];
    int kind = blockIdx.x % 3, hidden = task.hidden;
    u32 padded = (hidden + HALVES - 1) / HALVES * HALVES;
    u32 at = blockIdx.x / 3 * 256 + threadIdx.x, step = (gridDim.x + 2 - kind) / 3 * 256;
    float most = 0.0f;
    if (kind == 2) {
        for (u32 i = at; i < task.outputs * padded; i += step) {
            u32 row = i / padded, c = halves_column(i - row * padded);
            float w = c < hidden ? task.w[row * hidden + c] : 0.0f;
            ((unsigned short*)task.halves)[i] = half_of(w);
            most = larger(most, fabsf(w));
        }
    } else {
        const float* from = kind ? task.partner : task.own;
        uint2* to = (uint2*)(kind ? task.partner_halves : task.own_halves);
        u32 across = padded / 4, total = rows_of(kind ? task.partners : task.space, shape) * across, ld = kind ? task.ld_partner : task.ld_own;
        for (u32 i = at; i < total; i += step) {
            u32 row = i / across, c = (i - row * across) * 4;
            float4 x = c < hidden ? *(const float4*)(from + (size_t)row * ld + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            to[i] = make_uint2(two_halves(x.x, x.y), two_halves(x.z, x.w));
            most = larger(most, larger(larger(fabsf(x.x), fabsf(x.y)), larger(fabsf(x.z), fabsf(x.w))));
        }
    }
    // Numbers that are not negative are in the order of their bits, and what is none comes last.
    int bits = __reduce_max_sync(~0u, __float_as_int(most));
    if (threadIdx.x % 32 == 0) atomicMax(task.largest + kind, bits);
}

// d += A Bᵀ over 16 columns: 64 rows from registers by 128 rows of a tile.
__device__ __forceinline__ void multiply_halves(float* d, const u32* a, u64 b) {
    asm volatile("{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" NAMES_64 "}, {%64,%65,%66,%67}, %68, p, 1, 1, 0;}"
                 : SUMS_16(0), SUMS_16(16), SUMS_16(32), SUMS_16(48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// Two sums, or zero where they are not positive.
__device__ __forceinline__ u32 positive_sums(u32 a, u32 b) {
    u32 x;
    asm("fma.rn.relu.f16x2 %0, %1, %2, %3;" : "=r"(x) : "r"(a), "r"(0x3c003c00u), "r"(b));
    return x;
}

// As `pair_max_panels`. Sixteen panels of 32 columns are in shared memory together, two to a fetch, so W stays there for up to 512 hidden columns.
extern "C" __global__ void __launch_bounds__(32 * PAIR_WARPS + 128, 1) pair_max_halves(const PairTask* tasks, const int* shape) {
    in_turn(tasks + blockIdx.y, shape);
    const PairTask task = tasks[blockIdx.y];
    if (!in_halves(task)) return;
    int across = (task.outputs + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS, n0 = blockIdx.x % across * PANEL_OUTPUTS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __shared__ u64 full[PANEL_STAGES], empty[PANEL_STAGES];
    __shared__ int partners[PAIR_WARPS];
    const PanelPlace place(task, shape, blockIdx.x / across * PAIR_WARPS, full, empty, partners);
    bool there = place.there;
    int first = place.first, i0 = place.i0, n = place.n, j0 = place.j0, m = place.m, most = place.most;
    int hidden = task.hidden, panels_of = (hidden + HALVES - 1) / HALVES, chunks = 2 * panels_of, tiles = (most + PANEL_PARTNERS - 1) / PANEL_PARTNERS;
    bool stay = panels_of <= PANEL_STAGES;
    float* panels = tiles_begin();
    if (warp >= PAIR_WARPS) {
        // Registers go to those that multiply.
        registers_give<24>();
        if (threadIdx.x != 32 * PAIR_WARPS) return;
        fetch_panels(panels, task.halves_map, panels_of, HALVES, stay && tiles ? panels_of : tiles * panels_of, n0, full, empty);
        return;
    }
    registers_take<240>();
    int g = lane / 4, t = lane % 4;
    float* slots = panels + PANEL_STAGES * PANEL + warp * PANEL_SLOTS * PANEL_SLOT;
    float* winners = panels + PANEL_STAGES * PANEL + PAIR_WARPS * PANEL_SLOTS * PANEL_SLOT + warp * PANEL_WINNERS + lane;
    // What is to be copied next: a step's tile and chunk of 32 columns, and the slot it goes to. A lane copies eight columns of an element, and half of them of a partner.
    int next_tile = 0, next_chunk = 0, next_slot = 0, padded = panels_of * HALVES;
    const unsigned short *us = (const unsigned short*)task.own_halves + lane % 4 * 8, *vs = (const unsigned short*)task.partner_halves + lane % 4 * 8;
    // Rows that are not there are others that are; what comes of them is not used, or is that of the last partner once more.
    us += there ? row_at(i0 + min(first + lane / 4, n - 1), padded) : 0;
    auto copy_next = [&]() {
        if (next_tile < tiles) {
            float* to = slots + next_slot * HALF_SLOT + lane * 4;
            copy16(to, (const float*)(us + next_chunk * 32), there);
            const unsigned short* v = vs + next_chunk * 32 + (there ? row_at(j0 + min(next_tile * PANEL_PARTNERS + lane / 4, m - 1), padded) : 0);
            if (lane < 4 * PANEL_PARTNERS) copy16(to + PANEL_ELEMENTS * 16, (const float*)v, there);
        }
        copies_commit();
        next_slot = next_slot + 1 == HALF_SLOTS ? 0 : next_slot + 1;
        if (++next_chunk == chunks) {
            next_chunk = 0;
            next_tile++;
        }
    };
    // The hidden layer of 32 columns and two partners, as left operands of two products.
    auto hidden_layer = [](u32 (*a)[4], uint4 u, uint4 v, uint4 w) {
        a[0][0] = positive_sums(u.x, v.x), a[0][1] = positive_sums(u.x, w.x), a[0][2] = positive_sums(u.y, v.y), a[0][3] = positive_sums(u.y, w.y);
        a[1][0] = positive_sums(u.z, v.z), a[1][1] = positive_sums(u.z, w.z), a[1][2] = positive_sums(u.w, v.w), a[1][3] = positive_sums(u.w, w.w);
    };
    float top[PANEL_OUTPUTS / 4];
    take_nothing(top, winners);
    for (int k = 1; k < HALF_SLOTS; k++) copy_next();
    int stage = 0, phase = 0, slot = 0;
    for (int tile = 0; tile < tiles; tile++) {
        // Of the first two partners and of the others.
        float low[PANEL_OUTPUTS / 2] = {}, high[PANEL_OUTPUTS / 2] = {};
        for (int chunk = 0; chunk < chunks; chunk++) {
            bool begins = chunk % 2 == 0;
            __syncwarp();
            copy_next();
            copies_wait<HALF_SLOTS - 1>();
            __syncwarp();
            if (begins) barrier_wait(full + stage, phase);
            const uint4* step = (const uint4*)(slots + slot * HALF_SLOT) + t;
            u64 b = tile_descriptor(panels + stage * PANEL) + (begins ? 0 : 4);
            u32 even[2][4], odd[2][4];
            // While the products of two partners run the operands of the others are made.
            uint4 u = step[g * 4], v[PANEL_PARTNERS];
#pragma unroll
            for (int r = 0; r < PANEL_PARTNERS; r++) v[r] = step[(PANEL_ELEMENTS + r) * 4];
            hidden_layer(even, u, v[0], v[1]);
            multiply_begin();
#pragma unroll
            for (int half = 0; half < 2; half++) multiply_halves(low, even[half], b + 2 * half);
            multiply_commit();
            multiply_wait_but_one();
            // The panel before is done with, too.
            barrier_arrive_if(empty + (stage + PANEL_STAGES - 1) % PANEL_STAGES, begins && !stay && tile + chunk > 0 && lane == 0);
            hidden_layer(odd, u, v[2], v[3]);
            multiply_begin();
#pragma unroll
            for (int half = 0; half < 2; half++) multiply_halves(high, odd[half], b + 2 * half);
            multiply_commit();
            multiply_wait_but_one();
            slot = slot + 1 == HALF_SLOTS ? 0 : slot + 1;
            if (!begins && ++stage == (stay ? panels_of : PANEL_STAGES)) {
                stage = 0;
                phase ^= stay ? 0 : 1;
            }
        }
        multiply_wait();
        take_partners(top, winners, low, high, tile * PANEL_PARTNERS, m - 1);
    }
    if (there && first + g < n) write_largest(task, top, winners, i0 + first + g, n0);
}
