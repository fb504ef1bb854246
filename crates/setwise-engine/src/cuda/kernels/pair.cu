// Networks on pairs: sums with their gradients, and the max with mma.sync. Shapes and row strides: PairTask. In all
// kernels n elements from row i0 on and m partners from row j0 on belong to example e.

// Elements or partners of a thread in the kernels of sums.
#define SUM_ROWS 8

// saved_i = Σ_j relu(u_i + v_j). Grid: (element groups, examples, tasks), grid-stride. A thread owns one hidden column
// of SUM_ROWS elements. `saved` [elements, hidden] is written; a linear map follows.
extern "C" __global__ void __launch_bounds__(128) pair_relu_sum(const PairTask* tasks, const int* shape) {
    grid_dependency_sync();
    const PairTask& task = tasks[blockIdx.z];
    int e = blockIdx.y;
    if (e >= shape[0]) return;
    int i0 = element_offset(task.space, shape, e), n = element_offset(task.space, shape, e + 1) - i0;
    int j0 = element_offset(task.right_space, shape, e), m = element_offset(task.right_space, shape, e + 1) - j0;
    for (int first = blockIdx.x * SUM_ROWS; first < n; first += gridDim.x * SUM_ROWS)
        for (int h = threadIdx.x; h < task.hidden; h += 128) {
            float u[SUM_ROWS], sum[SUM_ROWS] = {};
#pragma unroll
            for (int b = 0; b < SUM_ROWS; b++) u[b] = first + b < n ? task.left[(size_t)(i0 + first + b) * task.ld_left + h] : 0.0f;
            for (int j = 0; j < m; j++) {
                float v = task.right[(size_t)(j0 + j) * task.ld_right + h];
#pragma unroll
                for (int b = 0; b < SUM_ROWS; b++) sum[b] += fmaxf(u[b] + v, 0.0f);
            }
#pragma unroll
            for (int b = 0; b < SUM_ROWS; b++)
                if (first + b < n) task.saved[(size_t)(i0 + first + b) * task.hidden + h] = sum[b];
        }
}

// y_i += m · b with m partners, after the linear map of the sums. Grid: (blocks, tasks), grid-stride over y. A thread
// owns one number of y, which is added to.
extern "C" __global__ void pair_sum_bias(const PairTask* tasks, const int* shape) {
    grid_dependency_sync();
    const PairTask& task = tasks[blockIdx.y];
    size_t total = (size_t)row_count(task.space, shape) * task.outputs;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        int row = i / task.outputs, c = i % task.outputs, e = example_of(task.space, shape, row);
        int m = element_offset(task.right_space, shape, e + 1) - element_offset(task.right_space, shape, e);
        task.y[(size_t)row * task.ldy + c] += m * task.bias[c];
    }
}

// Partial sums [examples][outputs] of the bias gradient: Σ_i dy_i, times the number of partners for sums (`d_saved` not
// null). Grid: (outputs / threads, examples, tasks). A thread owns one output of an example and adds elements in order;
// `partials` is written.
extern "C" __global__ void pair_bias_grad(const PairTask* tasks, const int* shape) {
    grid_dependency_sync();
    const PairTask& task = tasks[blockIdx.z];
    int e = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= shape[0] || c >= task.outputs) return;
    float sum = 0.0f;
    for (int i = element_offset(task.space, shape, e); i < element_offset(task.space, shape, e + 1); i++) sum += task.dy[(size_t)i * task.ldy + c];
    int m = element_offset(task.right_space, shape, e + 1) - element_offset(task.right_space, shape, e);
    task.partials[(size_t)e * task.outputs + c] = task.d_saved ? sum * m : sum;
}

// du_i = dh_i · #{j : u_i + v_j > 0}, from dh_i, the gradient of the sum. Grid and ownership as in `pair_relu_sum`;
// d_left is written.
extern "C" __global__ void __launch_bounds__(128) pair_sum_left_grad(const PairTask* tasks, const int* shape) {
    grid_dependency_sync();
    const PairTask& task = tasks[blockIdx.z];
    int e = blockIdx.y;
    if (e >= shape[0]) return;
    int i0 = element_offset(task.space, shape, e), n = element_offset(task.space, shape, e + 1) - i0;
    int j0 = element_offset(task.right_space, shape, e), m = element_offset(task.right_space, shape, e + 1) - j0;
    for (int first = blockIdx.x * SUM_ROWS; first < n; first += gridDim.x * SUM_ROWS)
        for (int h = threadIdx.x; h < task.hidden; h += 128) {
            float u[SUM_ROWS], count[SUM_ROWS] = {};
#pragma unroll
            for (int b = 0; b < SUM_ROWS; b++) u[b] = first + b < n ? task.left[(size_t)(i0 + first + b) * task.ld_left + h] : 0.0f;
            for (int j = 0; j < m; j++) {
                float v = task.right[(size_t)(j0 + j) * task.ld_right + h];
#pragma unroll
                for (int b = 0; b < SUM_ROWS; b++) count[b] += u[b] + v > 0.0f ? 1.0f : 0.0f;
            }
#pragma unroll
            for (int b = 0; b < SUM_ROWS; b++)
                if (first + b < n)
                    task.d_left[(size_t)(i0 + first + b) * task.ld_left + h] = count[b] * task.d_saved[(size_t)(i0 + first + b) * task.hidden + h];
        }
}

// dv_j = Σ_i dh_i [u_i + v_j > 0]. Grid: (partner groups, examples, tasks),
// grid-stride. A thread owns one hidden column of SUM_ROWS partners; d_right is written.
extern "C" __global__ void __launch_bounds__(128) pair_sum_right_grad(const PairTask* tasks, const int* shape) {
    grid_dependency_sync();
    const PairTask& task = tasks[blockIdx.z];
    int e = blockIdx.y;
    if (e >= shape[0]) return;
    int i0 = element_offset(task.space, shape, e), n = element_offset(task.space, shape, e + 1) - i0;
    int j0 = element_offset(task.right_space, shape, e), m = element_offset(task.right_space, shape, e + 1) - j0;
    for (int first = blockIdx.x * SUM_ROWS; first < m; first += gridDim.x * SUM_ROWS)
        for (int h = threadIdx.x; h < task.hidden; h += 128) {
            float v[SUM_ROWS], sum[SUM_ROWS] = {};
#pragma unroll
            for (int b = 0; b < SUM_ROWS; b++) v[b] = first + b < m ? task.right[(size_t)(j0 + first + b) * task.ld_right + h] : 0.0f;
            for (int i = 0; i < n; i++) {
                float u = task.left[(size_t)(i0 + i) * task.ld_left + h], d = task.d_saved[(size_t)(i0 + i) * task.hidden + h];
#pragma unroll
                for (int b = 0; b < SUM_ROWS; b++) sum[b] += u + v[b] > 0.0f ? d : 0.0f;
            }
#pragma unroll
            for (int b = 0; b < SUM_ROWS; b++)
                if (first + b < m) task.d_right[(size_t)(j0 + first + b) * task.ld_right + h] = sum[b];
        }
}

// As `pair_max_tiles` where W does not fit shared memory: y_i = max_j (W relu(u_i + v_j) + b) and its argmax. Grid:
// (rows, outputs / 64, tasks). A block owns one element and 64 outputs, its four warps 16 of 64 partners each. The
// hidden layer is computed in shared memory, 64 partners by 32 columns at a time. Both operands have rows of BK + 4
// numbers for `mma_nt`. Column 8 (c / 2) + 2t + c % 2 of lane 4g + t has best[c]. y and `saved` (argmax) are written.
extern "C" __global__ void __launch_bounds__(128) pair_max(const PairTask* tasks, const int* shape) {
    grid_dependency_sync();
    const PairTask& task = tasks[blockIdx.z];
    int row = blockIdx.x, n0 = blockIdx.y * 64;
    if (row >= row_count(task.space, shape) || n0 >= task.outputs) return;
    int e = example_of(task.space, shape, row);
    int j0 = element_offset(task.right_space, shape, e), m = element_offset(task.right_space, shape, e + 1) - j0;
    constexpr int ROW = BK + 4;
    __shared__ __align__(16) float hidden[64 * ROW], weights[64 * ROW];
    __shared__ float warp_best[4][64];
    __shared__ int warp_index[4][64];
    int warp = threadIdx.x / 32, g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
    float best[16];
    int argmax[16];
#pragma unroll
    for (int c = 0; c < 16; c++) { best[c] = MIN_FLOAT; argmax[c] = 0; }
    const float* u = task.left + (size_t)row * task.ld_left;
    for (int base = 0; base < m; base += 64) {
        float acc[1][8][4] = {};
        for (int k0 = 0; k0 < task.hidden; k0 += 32) {
            __syncthreads();
            for (int i = threadIdx.x; i < 64 * 32; i += 128) {
                int r = i / 32, c = i % 32;
                float v = 0.0f, w = 0.0f;
                if (k0 + c < task.hidden) {
                    if (base + r < m) v = fmaxf(u[k0 + c] + task.right[(size_t)(j0 + base + r) * task.ld_right + k0 + c], 0.0f);
                    if (n0 + r < task.outputs) w = task.w[(size_t)(n0 + r) * task.hidden + k0 + c];
                }
                hidden[r * ROW + c] = v;
                weights[r * ROW + c] = w;
            }
            __syncthreads();
            mma_nt<16, 64>(acc, hidden, weights, warp * 16, 0);
        }
#pragma unroll
        for (int c = 0; c < 16; c++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int j = base + warp * 16 + g + 8 * h;
                float x = acc[0][c / 2][2 * h + c % 2];
                if (j < m && (x > best[c] || x != x)) { best[c] = x; argmax[c] = j; }
            }
    }
#pragma unroll
    for (int c = 0; c < 16; c++) {
#pragma unroll
        for (int i = 4; i < 32; i *= 2) {
            float x = __shfl_xor_sync(~0u, best[c], i);
            int j = __shfl_xor_sync(~0u, argmax[c], i);
            if (x > best[c] || (x == best[c] && j < argmax[c]) || (x != x && best[c] == best[c])) { best[c] = x; argmax[c] = j; }
        }
        if (g == 0) { warp_best[warp][c / 2 * 8 + 2 * t + c % 2] = best[c]; warp_index[warp][c / 2 * 8 + 2 * t + c % 2] = argmax[c]; }
    }
    __syncthreads();
    int c = threadIdx.x;
    if (c < 64 && n0 + c < task.outputs) {
        float x = warp_best[0][c];
        int j = warp_index[0][c];
        for (int w = 1; w < 4; w++) {
            float y = warp_best[w][c];
            if (y > x || (y == x && warp_index[w][c] < j) || (y != y && x == x)) { x = y; j = warp_index[w][c]; }
        }
        task.y[(size_t)row * task.ldy + n0 + c] = x + task.bias[n0 + c];
        task.saved[(size_t)row * task.outputs + n0 + c] = (float)j;
    }
}

// acc += relu(v + u) Wᵀ with mma.m16n8k8, the product of `pair_max_tiles`. W lies in shared memory as [N, 32 · slabs]
// with rows 16 numbers longer against bank conflicts, columns in their own order. Lane 4g + t reads columns 4t..4t + 3
// of 16 of output g, as it does of partners: positions t and t + 4 of two k-steps.
template <int N>
struct PairsSm80 {
    __device__ static __forceinline__ float* begin() {
        extern __shared__ __align__(16) float shared[];
        return shared;
    }

    __device__ static __forceinline__ int weight_numbers(int slabs) { return N * (32 * slabs + 16); }

    __device__ static __forceinline__ void store_weights(float* weights, const PairTask& task, int n0, int slabs) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, total = N / 4 * slabs;
        for (int first = warp; first < total; first += 8 * PAIR_WARPS) {
            float4 w[8];
            load_weight_chunks<N>(w, task, n0, first, total);
#pragma unroll
            for (int b = 0; b < 8; b++) {
                int i = first + b * PAIR_WARPS, row = i % (N / 4) * 4 + lane / 8, c = i / (N / 4) * 32 + lane % 8 * 4;
                if (i < total) *(float4*)(weights + row * (32 * slabs + 16) + c) = w[b];
            }
        }
    }

    __device__ static __forceinline__ void multiply(float (*acc)[4], const float* partner_rows, int eight_rows, const float* element, const float* weights, int slabs) {
        int lane = threadIdx.x % 32, length = 32 * slabs + 16;
        const float* w = weights + lane / 4 * length + lane % 4 * 4;
        for (int k = 0; k < 32 * slabs; k += 16) {
            float4 v = *(const float4*)(partner_rows + k), v8 = *(const float4*)(partner_rows + eight_rows + k), u = *(const float4*)(element + k);
            FragA first_step, second_step;
            first_step.set(fmaxf(v.x + u.x, 0.0f), fmaxf(v8.x + u.x, 0.0f), fmaxf(v.y + u.y, 0.0f), fmaxf(v8.y + u.y, 0.0f));
            second_step.set(fmaxf(v.z + u.z, 0.0f), fmaxf(v8.z + u.z, 0.0f), fmaxf(v.w + u.w, 0.0f), fmaxf(v8.w + u.w, 0.0f));
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                float4 b = *(const float4*)(w + j * 8 * length + k);
                FragB b_first, b_second;
                b_first.set(b.x, b.y);
                b_second.set(b.z, b.w);
                mma(acc[j], first_step, b_first);
                mma(acc[j], second_step, b_second);
            }
        }
    }
};

// y_i = max_j (W relu(u_i + v_j) + b) and its argmax, N outputs a block; see `pair_max_tiles`.
#define PAIR_MAX_SM80(N)                                                                                           \
    extern "C" __global__ void __launch_bounds__(256, 2) pair_max_n##N(const PairTask* tasks, const int* shape) {  \
        grid_dependency_sync();                                                                                    \
        pair_max_tiles<N, PairsSm80<N>>(tasks, shape);                                                             \
    }
PAIR_MAX_SM80(16)
PAIR_MAX_SM80(32)
PAIR_MAX_SM80(64)
