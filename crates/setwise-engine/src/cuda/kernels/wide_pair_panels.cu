// The maximum over partners where the second layer passes through shared memory in panels, with the matrix products of `hopper.cu`.

// Outputs of a block, panels of 32 hidden columns that are in shared memory together, and steps of elements and partners that are.
#define PANEL_OUTPUTS 128
#define PANEL_STAGES 8
#define PANEL_SLOTS 3
// Elements and partners that a warp multiplies together.
#define PANEL_ELEMENTS 8
#define PANEL_PARTNERS 4
// Numbers of a panel; of a step of one warp, elements at a distance of 48 so that eight lanes reading sixteen bytes each meet no bank twice; of its winners.
#define PANEL (PANEL_OUTPUTS * 32)
#define PANEL_SLOT (PANEL_ELEMENTS * 48 + PANEL_PARTNERS * 32)
#define PANEL_WINNERS (PANEL_OUTPUTS * PANEL_ELEMENTS)

// Elements of an example come in groups of eight; the group at a place in the batch: its example and first element. False where there is none.
__device__ __forceinline__ bool group_at(Space space, const int* shape, int at, int& example, int& first) {
    int lane = threadIdx.x % 32, examples = shape[0];
    for (int base = 0; base < examples; base += 32) {
        int e = base + lane;
        int count = e < examples ? (element(space, shape, e + 1) - element(space, shape, e) + PANEL_ELEMENTS - 1) / PANEL_ELEMENTS : 0;
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
            first = (at - __shfl_sync(~0u, until - count, found)) * PANEL_ELEMENTS;
            return true;
        }
        at -= __shfl_sync(~0u, until, 31);
    }
    return false;
}

// Nothing has been taken up yet.
__device__ __forceinline__ void take_nothing(float* top, float* winners) {
#pragma unroll
    for (int c = 0; c < PANEL_OUTPUTS / 4; c++) {
        top[c] = LOWEST;
        winners[c * 32] = 0.0f;
    }
}

// Takes up the sums of four partners from `base` on, those of the first two and of the others; what lies beyond the last is that of the last once more.
__device__ __forceinline__ void take_partners(float* top, float* winners, const float* low, const float* high, int base, int last) {
    float who[PANEL_PARTNERS];
#pragma unroll
    for (int r = 0; r < PANEL_PARTNERS; r++) who[r] = (float)min(base + r, last);
#pragma unroll
    for (int c = 0; c < PANEL_OUTPUTS / 4; c++) {
        int at = c / 2 * 4 + c % 2;
        float x[PANEL_PARTNERS] = {low[at], low[at + 2], high[at], high[at + 2]}, best = x[0], winner = who[0];
#pragma unroll
        for (int r = 1; r < PANEL_PARTNERS; r++) {
            winner = !(x[r] <= best) ? who[r] : winner;
            best = larger(best, x[r]);
        }
        if (!(best <= top[c])) winners[c * 32] = winner;
        top[c] = larger(top[c], best);
    }
}

// Writes the largest of an element and who it is from.
__device__ __forceinline__ void write_largest(const PairTask& task, const float* top, const float* winners, int row, int n0) {
    float *y = task.y + (size_t)row * task.ldy, *kept = task.kept + (size_t)row * task.outputs;
#pragma unroll
    for (int c = 0; c < PANEL_OUTPUTS / 4; c++) {
        int o = n0 + c / 2 * 8 + 2 * (threadIdx.x % 4) + c % 2;
        if (o >= task.outputs) continue;
        y[o] = top[c] + task.bias[o];
        kept[o] = winners[c * 32];
    }
}

// Has the copy engine fetch `steps` panels in turn, of `count` that W has of some columns each, ahead of those that multiply.
__device__ __forceinline__ void fetch_panels(float* panels, const void* map, int count, int columns, int steps, int n0, u64* full, u64* empty) {
    for (int step = 0; step < steps; step++) {
        int s = step % PANEL_STAGES;
        if (step >= PANEL_STAGES) barrier_wait(empty + s, (step / PANEL_STAGES - 1) % 2);
        barrier_expect(full + s, PANEL * 4);
        fetch_tile(panels + s * PANEL, map, step % count * columns, n0, full + s);
    }
}

// The elements and partners of a warp, and the most partners of any; barriers are ready when it returns.
struct PanelPlace {
    bool there;
    int first, i0, n, j0, m, most;

    __device__ __forceinline__ PanelPlace(const PairTask& task, const int* shape, int group, u64* full, u64* empty, int* partners) : first(0), i0(0), n(0), j0(0), m(0), most(0) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, e;
        there = group_at(task.space, shape, group + warp, e, first);
        if (there) {
            i0 = element(task.space, shape, e), n = element(task.space, shape, e + 1) - i0;
            j0 = element(task.partners, shape, e), m = element(task.partners, shape, e + 1) - j0;
        }
        if (warp < PAIR_WARPS && lane == 0) partners[warp] = m;
        if (threadIdx.x == 0) {
            for (int i = 0; i < PANEL_STAGES; i++) {
                barrier_init(full + i, 1);
                barrier_init(empty + i, PAIR_WARPS);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();
        for (int w = 0; w < PAIR_WARPS; w++) most = max(most, partners[w]);
    }
};

// y_i = max_j (W relu(u_i + v_j) + b) with the index of the winner, for 128 outputs and eight groups of elements a block, one a warp, of whichever examples.
//
// A warp takes four partners at a time over all hidden columns. Rows g and g + 8 of its two left operands are element g with one of the partners each, so that
// the largest of an element and an output is found where it is summed; the winner's index lies in shared memory and is written only when it changes. Elements and partners
// come 32 hidden columns at a time, each warp copying its own with columns turned in fours: lane 4g + t reads columns t, t + 4, t + 8 and t + 12 of 16 at once. W comes in panels of 32 hidden
// columns that the copy engine fetches ahead of all, once where all of them have a place, and once for every four partners otherwise: 16 KB for 256 pairs.
extern "C" __global__ void __launch_bounds__(32 * PAIR_WARPS + 128, 1) pair_max_panels(const PairTask* tasks, const int* shape) {
    in_turn(tasks + blockIdx.y, shape);
    const PairTask task = tasks[blockIdx.y];
    if (in_halves(task)) return;
    int across = (task.outputs + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS, n0 = blockIdx.x % across * PANEL_OUTPUTS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __shared__ u64 full[PANEL_STAGES], empty[PANEL_STAGES];
    __shared__ int partners[PAIR_WARPS];
    const PanelPlace place(task, shape, blockIdx.x / across * PAIR_WARPS, full, empty, partners);
    bool there = place.there;
    int first = place.first, i0 = place.i0, n = place.n, j0 = place.j0, m = place.m, most = place.most;
    int hidden = task.hidden, chunks = (hidden + 31) / 32, tiles = (most + PANEL_PARTNERS - 1) / PANEL_PARTNERS;
    bool stay = chunks <= PANEL_STAGES;
    float* panels = tiles_begin();
    if (warp >= PAIR_WARPS) {
        // Registers go to those that multiply.
        registers_give<24>();
        if (threadIdx.x != 32 * PAIR_WARPS) return;
        fetch_panels(panels, task.map, chunks, 32, stay && tiles ? chunks : tiles * chunks, n0, full, empty);
        return;
    }
    registers_take<240>();
    int g = lane / 4, t = lane % 4;
    float* slots = panels + PANEL_STAGES * PANEL + warp * PANEL_SLOTS * PANEL_SLOT;
    float* winners = panels + PANEL_STAGES * PANEL + PAIR_WARPS * PANEL_SLOTS * PANEL_SLOT + warp * PANEL_WINNERS + lane;
    // What is to be copied next: a step's tile and chunk, and the slot it goes to.
    int next_tile = 0, next_chunk = 0, next_slot = 0;
    auto copy_next = [&]() {
        if (next_tile < tiles) {
            // Rows that are not there are others that are; what comes of them is not used, or is that of the last partner once more.
            int c = next_chunk * 32 + lane;
            bool inside = there && c < hidden;
            float* to = slots + next_slot * PANEL_SLOT + lane / 16 * 16 + lane % 4 * 4 + lane / 4 % 4;
            const float *u = task.own + (size_t)i0 * task.ld_own + c, *v = task.partner + (size_t)j0 * task.ld_partner + c;
#pragma unroll
            for (int r = 0; r < PANEL_ELEMENTS; r++) copy4(to + r * 48, inside ? u + row_at(min(first + r, n - 1), task.ld_own) : task.own, inside);
            to += PANEL_ELEMENTS * 48;
#pragma unroll
            for (int r = 0; r < PANEL_PARTNERS; r++)
                copy4(to + r * 32, inside ? v + row_at(min(next_tile * PANEL_PARTNERS + r, m - 1), task.ld_partner) : task.own, inside);
        }
        copies_commit();
        next_slot = next_slot + 1 == PANEL_SLOTS ? 0 : next_slot + 1;
        if (++next_chunk == chunks) {
            next_chunk = 0;
            next_tile++;
        }
    };
    // The hidden layer of 16 columns and two partners, as left operands of two steps. It is never none, so rounding needs no care.
    auto hidden_layer = [](u32 (*a)[4], float4 u, float4 v, float4 w) {
        auto made = [](float x, float y) { return __float_as_uint(fmaxf(x + y, 0.0f)) + 0x1000u; };
        a[0][0] = made(u.x, v.x); a[0][1] = made(u.x, w.x); a[0][2] = made(u.y, v.y); a[0][3] = made(u.y, w.y);
        a[1][0] = made(u.z, v.z); a[1][1] = made(u.z, w.z); a[1][2] = made(u.w, v.w); a[1][3] = made(u.w, w.w);
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
            __syncwarp();
            copy_next();
            copies_wait<PANEL_SLOTS - 1>();
            __syncwarp();
            barrier_wait(full + stage, phase);
            const float *u = slots + slot * PANEL_SLOT + g * 48 + 4 * t, *v = slots + slot * PANEL_SLOT + PANEL_ELEMENTS * 48 + 4 * t;
            u64 b = tile_descriptor(panels + stage * PANEL);
            u32 even[2][4], odd[2][4];
            // While the products of two partners run the operands of the others are made.
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float4 x = *(const float4*)(u + 16 * half), y[PANEL_PARTNERS];
#pragma unroll
                for (int r = 0; r < PANEL_PARTNERS; r++) y[r] = *(const float4*)(v + r * 32 + 16 * half);
                hidden_layer(even, x, y[0], y[1]);
                multiply_begin();
                warpgroup_multiply<PANEL_OUTPUTS>(low, even[0], b + 4 * half);
                warpgroup_multiply<PANEL_OUTPUTS>(low, even[1], b + 4 * half + 2);
                multiply_commit();
                multiply_wait_but_one();
                // The panel before is done with, too.
                if (half == 0) barrier_arrive_if(empty + (stage + PANEL_STAGES - 1) % PANEL_STAGES, !stay && tile + chunk > 0 && lane == 0);
                hidden_layer(odd, x, y[2], y[3]);
                multiply_begin();
                warpgroup_multiply<PANEL_OUTPUTS>(high, odd[0], b + 4 * half);
                warpgroup_multiply<PANEL_OUTPUTS>(high, odd[1], b + 4 * half + 2);
                multiply_commit();
                multiply_wait_but_one();
            }
            slot = slot + 1 == PANEL_SLOTS ? 0 : slot + 1;
            if (++stage == (stay ? chunks : PANEL_STAGES)) {
                stage = 0;
                phase ^= stay ? 0 : 1;
            }
        }
        multiply_wait();
        take_partners(top, winners, low, high, tile * PANEL_PARTNERS, m - 1);
    }
    if (there && first + g < n) write_largest(task, top, winners, i0 + first + g, n0);
}
