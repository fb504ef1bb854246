// Networks on pairs, reduced over partners: y_i = reduce_j (W relu(u_i + v_j) + b), without materialising all pairs. u
// (`left`) has a row per element, v (`right`) a row per partner. This file has the task and the max kernel, generic in
// its matrix instructions.

// Rows of an example are those of `space` (elements) and `right_space` (partners).
struct PairTask {
    // u [elements, hidden] and v [partners, hidden] with row strides ld_left and ld_right, W [outputs, hidden], b.
    const float *left, *right, *w, *bias;
    // y [elements, outputs] with row stride ldy. `saved` is contiguous: for a max the argmax [elements, outputs], an
    // index within the example; for a sum Σ_j relu(u_i + v_j) [elements, hidden].
    float *y, *saved;
    // Gradients, with the layouts of y, u, v and `saved`; `d_saved` is null for a max. `partials` are partial sums of a
    // parameter gradient.
    const float* dy;
    float *d_left, *d_right, *d_saved, *partials;
    // TMA descriptor of W, 128 outputs by 32 hidden columns, for `pair_max_slabs`.
    const void* w_map;
    // For `pair_max_slabs_f16`, null otherwise: W in f16 with permuted columns, and its TMA descriptor (64 columns at a
    // time). Then u and v in f16, rows padded to a multiple of 64. `max_abs` holds the largest absolute values of u, v
    // and W.
    void* w_f16;
    const void* w_f16_map;
    void *left_f16, *right_f16;
    int* max_abs;
    // Argmax entries as `pair_sorted_grad.cu` sums them, and the first entry of each partner. `row_bytes` is the size
    // of a row of W in those kernels. `grad_sides` is 2 for both gradients, 1 for those of v alone.
    int2 *left_entries, *right_entries;
    int* right_starts;
    // `vec`: rows of u, v and W allow sixteen-byte reads; `vec_y`: rows of y and `saved` do.
    int ld_left, ld_right, ldy, hidden, outputs, splits, vec, vec_y;
    // Forward: partners per tile in shared memory, a multiple of 16, and the number of tiles it holds. Backward
    // (`pair_weight_grad.cu`): rows of both sides that fit.
    int tile, stages;
    int row_bytes, grad_sides;
    Space space, right_space;
};

// What a maximum starts from; y has this value, plus the bias, where there are no partners.
#define MIN_FLOAT -3.4e38f

// Whether f16 is accurate for a task: the largest hidden value and weight lie between 2⁻¹⁰ and 60,000. f16 has the
// mantissa of tf32 down to 2⁻¹⁴. The loss below is smaller than the rounding of the largest.
__device__ __forceinline__ bool uses_f16(const PairTask& task) {
    if (!task.max_abs) return false;
    float hidden = __int_as_float(task.max_abs[0]) + __int_as_float(task.max_abs[1]), w = __int_as_float(task.max_abs[2]);
    return hidden >= 0x1p-10f && hidden < 6e4f && w >= 0x1p-10f && w < 6e4f;
}

// Warps of a block; each owns one element at a time. Elements of a block.
#define PAIR_WARPS 8
#define PAIR_ELEMENTS 32

// Offset of a row, in one instruction.
__device__ __forceinline__ size_t row_at(int row, int length) { return (size_t)(u32)row * (u32)length; }

// Four numbers of a row with `remaining` valid ones; zeros after them. VEC reads all four at once, which must be legal.
template <bool VEC> __device__ __forceinline__ float4 read_four_or_zero(const float* row, int remaining) {
    __builtin_assume(__isGlobal(row));
    if (VEC) return *(const float4*)row;
    return make_float4(remaining > 0 ? row[0] : 0.0f, remaining > 1 ? row[1] : 0.0f, remaining > 2 ? row[2] : 0.0f, remaining > 3 ? row[3] : 0.0f);
}

// Reads eight chunks of W a lane, all in flight. Chunk i covers rows 4 (i % (N / 4)).. of the N rows from n0 on, by the
// 32 columns of slab i / (N / 4); lane l has columns 4 (l % 8).. of row l / 8. A warp reads chunks `first` + b ·
// PAIR_WARPS; beyond `total` chunks, and beyond W, the numbers are zero.
template <int N>
__device__ __forceinline__ void load_weight_chunks(float4* w, const PairTask& task, int n0, int first, int total) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < 8; b++) {
        int i = first + b * PAIR_WARPS, row = n0 + i % (N / 4) * 4 + lane / 8, c = i / (N / 4) * 32 + lane % 8 * 4;
        int remaining = i < total && row < task.outputs ? task.hidden - c : 0;
        const float* from = task.w + (size_t)row * task.hidden + c;
        w[b] = task.vec && remaining > 0 ? read_four_or_zero<true>(from, remaining) : read_four_or_zero<false>(from, remaining);
    }
}

// Running argmax: the first of equal maxima is kept, and NaN propagates. The index is that of a partner if there is
// one (sets are never empty); otherwise it stays 0. After a NaN it is that of some later partner.
__device__ __forceinline__ void argmax_update(float& best, int& argmax, float x, int j, bool valid) {
    // Selects instead of branches.
    bool taken = valid & !(x <= best);
    argmax = taken ? j : argmax;
    best = max_nan(best, valid ? x : MIN_FLOAT);
}

// y_i = max_j (W relu(u_i + v_j) + b) and its argmax over the partners of an example. Grid: (output tiles · element
// tiles, examples, tasks); output tiles vary fastest. A block owns N outputs and PAIR_ELEMENTS elements of an example,
// a warp one element at a time. y and `saved` (argmax) are written.
//
// Shared memory: W (`weight_numbers`), two buffers of one element for each warp, `stages` tiles of `tile` partners. W
// stays, partners come in tiles. Rows of partners are 16 modulo 32 words long against bank conflicts. Columns beyond
// `hidden` and missing rows are zero.
//
// A warp multiplies 16 partners at a time; the hidden layer is computed in registers as A fragment. Lane 4g + t reads
// four neighbouring hidden columns from 4t on of rows g and g + 8. They become columns t and t + 4 of two k-steps of
// eight. W's columns are read in the same order. Each accumulator of rows g and g + 8 has a running maximum of its
// column; lanes of equal t are reduced at the end.
//
// `Product` provides `begin` (start of shared memory), `weight_numbers`, `store_weights` and `multiply`. The latter
// adds relu(rows + u) Wᵀ over `slabs` of 32 columns to acc.
//
// Preconditions: 256 threads, `tile` a multiple of 16, `stages` 1 or 2 (`MaxTiling`).
template <int N, class Product>
__device__ __forceinline__ void pair_max_tiles(const PairTask* tasks, const int* shape) {
    const PairTask task = tasks[blockIdx.z];
    int e = blockIdx.y, across = (task.outputs + N - 1) / N;
    int n0 = blockIdx.x % across * N, first = blockIdx.x / across * PAIR_ELEMENTS;
    if (e >= shape[0]) return;
    int i0 = element_offset(task.space, shape, e), n = element_offset(task.space, shape, e + 1) - i0;
    int j0 = element_offset(task.right_space, shape, e), m = element_offset(task.right_space, shape, e + 1) - j0;
    if (first >= n) return;
    int hidden = task.hidden, slabs = (hidden + 31) / 32, width = slabs * 32, length = width + 16, rows = task.tile, stages = task.stages;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    bool vec = task.vec;
    float *weights = Product::begin(), *us = weights + Product::weight_numbers(slabs) + warp * 2 * width;
    float* vs = weights + Product::weight_numbers(slabs) + PAIR_WARPS * 2 * width;
    int groups = (min(n - first, PAIR_ELEMENTS) + PAIR_WARPS - 1) / PAIR_WARPS;
    int tiles = max(1, (m + rows - 1) / rows), steps = groups * tiles, loaded = 0;
    bool resident = tiles <= stages;
    auto load_row = [&](float* to, const float* from, bool valid) {
        if (vec)
            for (int c = lane * 4; c < width; c += 128) cp_async_16(to + c, valid && c < hidden ? from + c : task.left, valid && c < hidden);
        else
            for (int c = lane; c < width; c += 32) cp_async_4(to + c, valid && c < hidden ? from + c : task.left, valid && c < hidden);
    };
    // Tiles use a ring buffer; where all fit they stay resident.
    auto load_tile = [&]() {
        if (loaded >= (resident ? tiles : steps)) return false;
        int base = loaded % tiles * rows;
        float* to = vs + loaded % stages * rows * length;
        for (int r = warp; r < rows; r += PAIR_WARPS)
            load_row(to + r * length, task.right + (size_t)(j0 + base + r) * task.ld_right, base + r < m);
        loaded++;
        return true;
    };
    // The warp's element of a group.
    auto load_left = [&](int group) {
        int i = first + group * PAIR_WARPS + warp;
        if (group < groups) load_row(us + group % 2 * width, task.left + (size_t)(i0 + i) * task.ld_left, i < n);
    };
    load_left(0);
    if (stages > 1) load_tile();
    cp_async_commit();
    Product::store_weights(weights, task, n0, slabs);
    float best[N / 4];
    int argmax[N / 4];
    for (int step = 0, part = 0, group = 0; step < steps; step++) {
        __syncwarp();
        bool loads_this_step = load_tile() && stages == 1;
        if (part == 0) load_left(group + 1);
        cp_async_commit();
        // This step's tile was committed one step earlier, unless there is a single stage.
        if (loads_this_step) cp_async_wait<0>();
        else cp_async_wait<1>();
        if (!resident || step < tiles) __syncthreads();
        else __syncwarp();
        if (part == 0) {
#pragma unroll
            for (int c = 0; c < N / 4; c++) { best[c] = MIN_FLOAT; argmax[c] = 0; }
        }
        const float* u = us + group % 2 * width + 4 * t;
        const float* stage = vs + (resident ? part : step % stages) * rows * length;
        int base = part * rows, here = min(rows, m - base);
        for (int r = 0; r < here; r += 16) {
            float acc[N / 8][4] = {};
            Product::multiply(acc, stage + (r + g) * length + 4 * t, 8 * length, u, weights, slabs);
            bool valid[2] = {r + g < here, r + g + 8 < here};
#pragma unroll
            for (int c = 0; c < N / 4; c++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    argmax_update(best[c], argmax[c], acc[c / 2][2 * h + c % 2], base + r + g + 8 * h, valid[h]);
        }
        if (++part == tiles) {
            int i = first + group * PAIR_WARPS + warp;
#pragma unroll
            for (int c = 0; c < N / 4; c++) {
#pragma unroll
                for (int k = 4; k < 32; k *= 2) {
                    float x = __shfl_xor_sync(~0u, best[c], k);
                    int j = __shfl_xor_sync(~0u, argmax[c], k);
                    bool better = (x > best[c]) | ((x == best[c]) & (j < argmax[c])) | (x != x);
                    best[c] = better ? x : best[c];
                    argmax[c] = better ? j : argmax[c];
                }
                int o = n0 + c / 2 * 8 + 2 * t + c % 2;
                if (g == 0 && i < n && o < task.outputs) {
                    task.y[(size_t)(i0 + i) * task.ldy + o] = best[c] + task.bias[o];
                    task.saved[(size_t)(i0 + i) * task.outputs + o] = (float)argmax[c];
                }
            }
            part = 0;
            group++;
        }
        // The next load overwrites this step's tile, whether there are one or two stages.
        if (!resident) __syncthreads();
    }
}
