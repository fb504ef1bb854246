// The maximum over partners as in `wide_pair_panels.cu`, with products of halves: of as many bits as those of tf32, measured by the largest numbers of a batch, and twice as fast.
//
// Operands hold two neighbouring hidden columns in a register. Of 16 columns lane 4g + t reads four neighbours from 4t on, which are columns 2t, 2t + 1, 2t + 8 and 2t + 9 of a product,
// so W has its columns in that order.

// Columns of a panel.
#define HALVES 64

// The column of W that stands at a place of its halves.
__device__ __forceinline__ int halves_column(int at) { return at / 16 * 16 + at % 8 / 2 * 4 + at / 8 % 2 * 2 + at % 2; }

__device__ __forceinline__ unsigned short half_of(float x) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

// The halves of W, and the largest of u, v and W, which are zero before: blocks by threes have one of them each.
extern "C" __global__ void __launch_bounds__(256) pair_halves(const PairTask* tasks, const int* shape) {
    in_turn(tasks + blockIdx.y, shape);
    const PairTask task = tasks[blockIdx.y];
    int kind = blockIdx.x % 3, hidden = task.hidden;
    u32 at = blockIdx.x / 3 * 256 + threadIdx.x, step = (gridDim.x + 2 - kind) / 3 * 256;
    float most = 0.0f;
    if (kind == 2) {
        u32 padded = (hidden + HALVES - 1) / HALVES * HALVES;
        for (u32 i = at; i < task.outputs * padded; i += step) {
            u32 row = i / padded, c = halves_column(i - row * padded);
            float w = c < hidden ? task.w[row * hidden + c] : 0.0f;
            ((unsigned short*)task.halves)[i] = half_of(w);
            most = larger(most, fabsf(w));
        }
    } else {
        const float* from = kind ? task.partner : task.own;
        u32 across = hidden / 4, total = rows_of(kind ? task.partners : task.space, shape) * across, ld = kind ? task.ld_partner : task.ld_own;
        for (u32 i = at; i < total; i += step) {
            u32 row = i / across;
            float4 x = *(const float4*)(from + (size_t)row * ld + (i - row * across) * 4);
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

// Numbers that are not positive become zero.
__device__ __forceinline__ u32 positive_halves(float low, float high) {
    u32 x;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
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
    // What is to be copied next: a step's tile and chunk of 32 columns, and the slot it goes to. A lane copies four columns of every fourth row.
    int next_tile = 0, next_chunk = 0, next_slot = 0;
    auto copy_next = [&]() {
        if (next_tile < tiles) {
            // Rows that are not there are others that are; what comes of them is not used, or is that of the last partner once more.
            int c = next_chunk * 32 + lane % 8 * 4, r = lane / 8;
            bool inside = there && c < hidden;
            float* to = slots + next_slot * PANEL_SLOT + lane % 8 * 4;
            const float *u = task.own + (size_t)i0 * task.ld_own + c, *v = task.partner + (size_t)j0 * task.ld_partner + c;
#pragma unroll
            for (int k = 0; k < PANEL_ELEMENTS; k += 4)
                copy16(to + (r + k) * 48, inside ? u + row_at(min(first + r + k, n - 1), task.ld_own) : task.own, inside);
            copy16(to + PANEL_ELEMENTS * 48 + r * 32, inside ? v + row_at(min(next_tile * PANEL_PARTNERS + r, m - 1), task.ld_partner) : task.own, inside);
        }
        copies_commit();
        next_slot = next_slot + 1 == PANEL_SLOTS ? 0 : next_slot + 1;
        if (++next_chunk == chunks) {
            next_chunk = 0;
            next_tile++;
        }
    };
    // The hidden layer of 16 columns and two partners, as a left operand.
    auto hidden_layer = [](u32* a, float4 u, float4 v, float4 w) {
        a[0] = positive_halves(u.x + v.x, u.y + v.y);
        a[1] = positive_halves(u.x + w.x, u.y + w.y);
        a[2] = positive_halves(u.z + v.z, u.w + v.w);
        a[3] = positive_halves(u.z + w.z, u.w + w.w);
    };
    float top[PANEL_OUTPUTS / 4];
    take_nothing(top, winners);
    copy_next();
    copy_next();
    int stage = 0, phase = 0, slot = 0;
    for (int tile = 0; tile < tiles; tile++) {
        // Of the first two partners and of the others.
        float low[PANEL_OUTPUTS / 2] = {}, high[PANEL_OUTPUTS / 2] = {};
        for (int chunk = 0; chunk < chunks; chunk++) {
            bool begins = chunk % 2 == 0;
            __syncwarp();
            copy_next();
            copies_wait<PANEL_SLOTS - 1>();
            __syncwarp();
            if (begins) barrier_wait(full + stage, phase);
            const float *u = slots + slot * PANEL_SLOT + g * 48 + 4 * t, *v = slots + slot * PANEL_SLOT + PANEL_ELEMENTS * 48 + 4 * t;
            u64 b = tile_descriptor(panels + stage * PANEL) + (begins ? 0 : 4);
            u32 even[2][4], odd[2][4];
            // While the products of two partners run the operands of the others are made.
            float4 x[2], y[2][PANEL_PARTNERS];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                x[half] = *(const float4*)(u + 16 * half);
#pragma unroll
                for (int r = 0; r < PANEL_PARTNERS; r++) y[half][r] = *(const float4*)(v + r * 32 + 16 * half);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) hidden_layer(even[half], x[half], y[half][0], y[half][1]);
            multiply_begin();
#pragma unroll
            for (int half = 0; half < 2; half++) multiply_halves(low, even[half], b + 2 * half);
            multiply_commit();
            multiply_wait_but_one();
            // The panel before is done with, too.
            barrier_arrive_if(empty + (stage + PANEL_STAGES - 1) % PANEL_STAGES, begins && !stay && tile + chunk > 0 && lane == 0);
#pragma unroll
            for (int half = 0; half < 2; half++) hidden_layer(odd[half], x[half], y[half][2], y[half][3]);
            multiply_begin();
#pragma unroll
            for (int half = 0; half < 2; half++) multiply_halves(high, odd[half], b + 2 * half);
            multiply_commit();
            multiply_wait_but_one();
            slot = slot + 1 == PANEL_SLOTS ? 0 : slot + 1;
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
