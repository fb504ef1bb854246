// Networks on pairs reduced over partners, y_i = reduce_j (W relu(u_i + v_j) + b), without the tensor of all pairs: what is asked of them, and the
// maximum for kernels with different matrix instructions.

struct PairTask {
    const float *own, *partner, *w, *bias;
    float *y, *kept;
    const float* dy;
    float *d_own, *d_partner, *d_kept, *parts;
    // Describes W to the copy engine, 128 outputs by 32 hidden columns at a time, for `pair_max_panels`.
    const void* map;
    // W in half precision, in the order of `wide_pair_halves.cu`, and 64 hidden columns at a time to the copy engine; u and v, rows filled up to a multiple of 64; the largest numbers of
    // all three. None of them where products are not made of halves.
    void* halves;
    const void* halves_map;
    void *own_halves, *partner_halves;
    int* largest;
    // What was won, as `pair_sorted.cu` sums it, and where the wins of each partner begin; bytes of a row of W there, and whether both sides' gradients are summed (2) or those of partners alone (1), without a list for elements.
    int2 *own_wins, *partner_wins;
    int* starts;
    // `vec` where rows of u, v and W can be read sixteen bytes at a time, `vec_y` where those of y and kept can.
    int ld_own, ld_partner, ldy, hidden, outputs, splits, vec, vec_y;
    // Forward: partners that are in shared memory together, a multiple of 16, and how often there is room for as many. Backward (`pair_weights.cu`): rows of both sides that have room there.
    int tile, stages;
    int row_bytes, sides;
    Space space, partners;
};

#define LOWEST -3.4e38f

// Whether halves do for a task: a hidden layer and weights of at least 2⁻¹⁰ and less than 60,000 at most. Halves have as many bits as tf32 down to 2⁻¹⁴, and what is
// lost below is less than what is lost of the largest.
__device__ __forceinline__ bool in_halves(const PairTask& task) {
    if (!task.largest) return false;
    float hidden = __int_as_float(task.largest[0]) + __int_as_float(task.largest[1]), w = __int_as_float(task.largest[2]);
    return hidden >= 0x1p-10f && hidden < 6e4f && w >= 0x1p-10f && w < 6e4f;
}

// Each of a block's warps has one element at a time.
#define PAIR_WARPS 8
#define PAIR_ELEMENTS 32

// The place of a row, in one instruction.
__device__ __forceinline__ size_t row_at(int row, int length) { return (size_t)(u32)row * (u32)length; }

// Four numbers of a row of which `left` are there; all of them are, or may at least be read, where they are read at once.
template <bool VEC> __device__ __forceinline__ float4 four_of(const float* row, int left) {
    __builtin_assume(__isGlobal(row));
    if (VEC) return *(const float4*)row;
    return make_float4(left > 0 ? row[0] : 0.0f, left > 1 ? row[1] : 0.0f, left > 2 ? row[2] : 0.0f, left > 3 ? row[3] : 0.0f);
}

// Reads eight chunks of W a lane, which are on their way together: chunk i has four rows of the N from n0 on by 32 columns.
template <int N>
__device__ __forceinline__ void fetch_weights(float4* w, const PairTask& task, int n0, int first, int total) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < 8; b++) {
        int i = first + b * PAIR_WARPS, row = n0 + i % (N / 4) * 4 + lane / 8, c = i / (N / 4) * 32 + lane % 8 * 4;
        int left = i < total && row < task.outputs ? task.hidden - c : 0;
        const float* from = task.w + (size_t)row * task.hidden + c;
        w[b] = task.vec && left > 0 ? four_of<true>(from, left) : four_of<false>(from, left);
    }
}

// The first of the largest. What is none stays, and its index is that of something that is there.
__device__ __forceinline__ void take_largest(float& top, int& at, float x, int j, bool there) {
    // Selections rather than jumps.
    bool taken = there & !(x <= top);
    at = taken ? j : at;
    top = larger(top, there ? x : LOWEST);
}

// y_i = max_j (W relu(u_i + v_j) + b) with the index of the winner, for N outputs and PAIR_ELEMENTS elements of an example a block.
//
// The second layer stays in shared memory, partners come in tiles. A warp has one element and multiplies 16 partners at a time: its left
// operand is made in registers. Lane 4g + t reads four neighbouring hidden columns from 4t on of rows g and g + 8, and these are t and t + 4 of
// two steps of eight: columns of W are read in the same order. Row lengths are 16 modulo 32, so that eight lanes reading sixteen bytes each meet no
// bank twice. The largest of a column is kept where it is summed, and found among lanes in the end.
//
// `Product` places W in the first `numbers` of shared memory and multiplies: acc += relu(rows + u) Wᵀ over `slabs` of 32 columns.
template <int N, class Product>
__device__ __forceinline__ void pair_max_tiles(const PairTask* tasks, const int* shape) {
    const PairTask task = tasks[blockIdx.z];
    int e = blockIdx.y, across = (task.outputs + N - 1) / N;
    int n0 = blockIdx.x % across * N, first = blockIdx.x / across * PAIR_ELEMENTS;
    if (e >= shape[0]) return;
    int i0 = element(task.space, shape, e), n = element(task.space, shape, e + 1) - i0;
    int j0 = element(task.partners, shape, e), m = element(task.partners, shape, e + 1) - j0;
    if (first >= n) return;
    int hidden = task.hidden, slabs = (hidden + 31) / 32, width = slabs * 32, length = width + 16, rows = task.tile, stages = task.stages;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    bool vec = task.vec;
    float *weights = Product::begin(), *us = weights + Product::numbers(slabs) + warp * 2 * width;
    float* vs = weights + Product::numbers(slabs) + PAIR_WARPS * 2 * width;
    int groups = (min(n - first, PAIR_ELEMENTS) + PAIR_WARPS - 1) / PAIR_WARPS;
    int tiles = max(1, (m + rows - 1) / rows), steps = groups * tiles, loaded = 0;
    bool stay = tiles <= stages;
    auto load_row = [&](float* to, const float* from, bool there) {
        if (vec)
            for (int c = lane * 4; c < width; c += 128) copy16(to + c, there && c < hidden ? from + c : task.own, there && c < hidden);
        else
            for (int c = lane; c < width; c += 32) copy4(to + c, there && c < hidden ? from + c : task.own, there && c < hidden);
    };
    // Tiles follow each other in a ring; where there is room for all they stay.
    auto load_tile = [&]() {
        if (loaded >= (stay ? tiles : steps)) return false;
        int base = loaded % tiles * rows;
        float* to = vs + loaded % stages * rows * length;
        for (int r = warp; r < rows; r += PAIR_WARPS)
            load_row(to + r * length, task.partner + (size_t)(j0 + base + r) * task.ld_partner, base + r < m);
        loaded++;
        return true;
    };
    // A warp's own element of a group, for itself.
    auto load_own = [&](int group) {
        int i = first + group * PAIR_WARPS + warp;
        if (group < groups) load_row(us + group % 2 * width, task.own + (size_t)(i0 + i) * task.ld_own, i < n);
    };
    load_own(0);
    if (stages > 1) load_tile();
    copies_commit();
    Product::place(weights, task, n0, slabs);
    float top[N / 4];
    int at[N / 4];
    for (int step = 0, part = 0, group = 0; step < steps; step++) {
        __syncwarp();
        bool now = load_tile() && stages == 1;
        if (part == 0) load_own(group + 1);
        copies_commit();
        // What this step needs was committed before, unless there is no other place for it.
        if (now) copies_wait<0>();
        else copies_wait<1>();
        if (!stay || step < tiles) __syncthreads();
        else __syncwarp();
        if (part == 0) {
#pragma unroll
            for (int c = 0; c < N / 4; c++) { top[c] = LOWEST; at[c] = 0; }
        }
        const float* u = us + group % 2 * width + 4 * t;
        const float* stage = vs + (stay ? part : step % stages) * rows * length;
        int base = part * rows, here = min(rows, m - base);
        for (int r = 0; r < here; r += 16) {
            float acc[N / 8][4] = {};
            Product::multiply(acc, stage + (r + g) * length + 4 * t, 8 * length, u, weights, slabs);
            bool there[2] = {r + g < here, r + g + 8 < here};
#pragma unroll
            for (int c = 0; c < N / 4; c++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    take_largest(top[c], at[c], acc[c / 2][2 * h + c % 2], base + r + g + 8 * h, there[h]);
        }
        if (++part == tiles) {
            int i = first + group * PAIR_WARPS + warp;
#pragma unroll
            for (int c = 0; c < N / 4; c++) {
#pragma unroll
                for (int k = 4; k < 32; k *= 2) {
                    float x = __shfl_xor_sync(~0u, top[c], k);
                    int j = __shfl_xor_sync(~0u, at[c], k);
                    bool better = (x > top[c]) | ((x == top[c]) & (j < at[c])) | (x != x);
                    top[c] = better ? x : top[c];
                    at[c] = better ? j : at[c];
                }
                int o = n0 + c / 2 * 8 + 2 * t + c % 2;
                if (g == 0 && i < n && o < task.outputs) {
                    task.y[(size_t)(i0 + i) * task.ldy + o] = top[c] + task.bias[o];
                    task.kept[(size_t)(i0 + i) * task.outputs + o] = (float)at[c];
                }
            }
            part = 0;
            group++;
        }
        // What is loaded next takes the place of this step's tile or of the one before.
        if (!stay) __syncthreads();
    }
}
