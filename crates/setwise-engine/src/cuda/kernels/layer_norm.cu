// Sums of rows with LayerNorm, and its backward pass. Rows of a multiple of four numbers belong to LANES lanes of
// CHUNKS times four numbers in registers; other rows belong to a warp.

// Terms of a sum, and residual gradients of a backward pass.
#define MAX_INPUTS 8
#define MAX_RESIDUALS 2

// `count` inputs [rows, cols] with row strides ld, y [rows, cols] with row stride ldy. gain and shift [cols] or null,
// normalised [rows, cols] contiguous, inv_std [rows].
struct AddNormTask {
    const float* inputs[MAX_INPUTS];
    int ld[MAX_INPUTS];
    float* y;
    const float *gain, *shift;
    float *normalised, *inv_std;
    int count, ldy, cols, pad;
    Space space;
};

// s = Σ inputs; x̂ = (s − mean) · inv_std; y = x̂ · gain + shift. Without `gain`, y = s. Grid: (row groups, tasks),
// grid-stride over rows. y, normalised (x̂, [rows, cols]) and inv_std are written. The first UNROLL inputs are read
// together. Cost: one pass over memory. Preconditions: cols ≤ 4 · LANES · CHUNKS; cols, row strides and addresses allow
// sixteen-byte accesses.
template <int LANES, int CHUNKS>
__device__ __forceinline__ void add_layer_norm_rows(const AddNormTask* tasks, const int* shape) {
    constexpr int UNROLL = 2;
    const AddNormTask& task = tasks[blockIdx.y];
    int rows = row_count(task.space, shape), lane = threadIdx.x % LANES, cols = task.cols, count = task.count;
    const float* inputs[UNROLL];
    int ld[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; k++) {
        inputs[k] = task.inputs[k];
        ld[k] = task.ld[k];
    }
    for (int base = blockIdx.x * (256 / LANES); base < rows; base += gridDim.x * (256 / LANES)) {
        // Lanes without a row still take part in the shuffles.
        int row = base + threadIdx.x / LANES;
        bool valid = row < rows;
        float4 zero = make_float4(0, 0, 0, 0), x[UNROLL][CHUNKS], v[CHUNKS];
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < UNROLL; k++)
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                int c = (lane + i * LANES) * 4;
                x[k][i] = k < count && valid && c < cols ? *(const float4*)(inputs[k] + (size_t)row * ld[k] + c) : zero;
            }
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            int c = (lane + i * LANES) * 4;
            v[i] = zero;
#pragma unroll
            for (int k = 0; k < UNROLL; k++) v[i] = v[i] + x[k][i];
            if (valid && c < cols)
                for (int k = UNROLL; k < count; k++) v[i] = v[i] + *(const float4*)(task.inputs[k] + (size_t)row * task.ld[k] + c);
            sum += horizontal_sum(v[i]);
        }
        float mean = lane_sum<LANES>(sum) / cols, square = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            if ((lane + i * LANES) * 4 < cols) { float4 d = v[i] - mean; square += horizontal_sum(d * d); }
        float inv_std = rsqrtf(lane_sum<LANES>(square) / cols + LAYER_NORM_EPSILON);
        if (!valid) continue;
        if (task.gain && lane == 0) task.inv_std[row] = inv_std;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            int c = (lane + i * LANES) * 4;
            if (c >= cols) continue;
            if (task.gain) {
                v[i] = (v[i] - mean) * inv_std;
                *(float4*)(task.normalised + (size_t)row * cols + c) = v[i];
                v[i] = v[i] * *(const float4*)(task.gain + c) + *(const float4*)(task.shift + c);
            }
            *(float4*)(task.y + (size_t)row * task.ldy + c) = v[i];
        }
    }
}

// The same for rows of any length: a warp owns a row and keeps it in y between the passes. Grid: (rows / 8, tasks),
// grid-stride over rows.
extern "C" __global__ void __launch_bounds__(256) add_layer_norm(const AddNormTask* tasks, const int* shape) {
    grid_dependency_sync();
    const AddNormTask& task = tasks[blockIdx.y];
    int rows = row_count(task.space, shape), lane = threadIdx.x % 32;
    for (int row = blockIdx.x * 8 + threadIdx.x / 32; row < rows; row += gridDim.x * 8) {
        float* y = task.y + (size_t)row * task.ldy;
        float sum = 0.0f;
        for (int c = lane; c < task.cols; c += 32) {
            float v = 0.0f;
            for (int i = 0; i < task.count; i++) v += task.inputs[i][(size_t)row * task.ld[i] + c];
            y[c] = v;
            sum += v;
        }
        if (!task.gain) continue;
        float mean = warp_sum(sum) / task.cols, square = 0.0f;
        for (int c = lane; c < task.cols; c += 32) { float d = y[c] - mean; square += d * d; }
        float inv_std = rsqrtf(warp_sum(square) / task.cols + LAYER_NORM_EPSILON);
        if (lane == 0) task.inv_std[row] = inv_std;
        for (int c = lane; c < task.cols; c += 32) {
            float hat = (y[c] - mean) * inv_std;
            task.normalised[(size_t)row * task.cols + c] = hat;
            y[c] = hat * task.gain[c] + task.shift[c];
        }
    }
}

// dy [rows, cols] with row stride ld; gain, normalised and inv_std as in AddNormTask.
struct NormBackwardTask {
    float* dy;
    const float *gain, *normalised, *inv_std;
    // [blocks][2 · cols]: partial sums of the gradients of gain, then of shift.
    float* partials;
    // Gradients of terms of the sum: copies of dx, zero where the gate is not positive.
    float* residual_grads[MAX_RESIDUALS];
    const float* residual_gates[MAX_RESIDUALS];
    int ld_residual_grads[MAX_RESIDUALS];
    int ld, cols;
    Space space;
    // Rows of a block.
    int rows;
};

// dx = inv_std · (g − mean(g) − x̂ · mean(g · x̂)) with g = gain · dy, in place of dy; d_gain = Σ dy · x̂, d_shift = Σ
// dy as one partial sum a block. Grid: (row blocks, tasks); a block owns `task.rows` rows. With RESIDUALS, dx is also
// written to the residual gradients. Narrow rows are read UNROLL at a time to hide latency; a missing row reads the
// last one. Each lane owns its columns of the sums.
template <int LANES, int CHUNKS, int RESIDUALS>
__device__ __forceinline__ void layer_norm_backward_rows(const NormBackwardTask* tasks, const int* shape) {
    constexpr int UNROLL = CHUNKS > 1 ? 1 : LANES < 16 ? LANES / 4 : 4, GROUPS = 256 / LANES;
    const NormBackwardTask task = tasks[blockIdx.y];
    int rows = row_count(task.space, shape), first = blockIdx.x * task.rows, last = min(rows, first + task.rows);
    if (first >= rows) return;
    extern __shared__ __align__(16) float sums[];
    int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    float4 zero = make_float4(0, 0, 0, 0), gains[CHUNKS], d_gain[CHUNKS], d_shift[CHUNKS];
    // A lane's columns, and whether they exist.
    int column[CHUNKS];
    bool inside[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int c = (lane + i * LANES) * 4;
        inside[i] = c < task.cols;
        column[i] = inside[i] ? c : 0;
        gains[i] = inside[i] ? *(const float4*)(task.gain + c) : zero;
        d_gain[i] = d_shift[i] = zero;
    }
    for (int base = first; base < last; base += GROUPS * UNROLL) {
        float4 d[UNROLL][CHUNKS], hat[UNROLL][CHUNKS], gate[UNROLL][RESIDUALS + 1][CHUNKS];
        float inv_std[UNROLL];
        int source_row[UNROLL];
#pragma unroll
        for (int r = 0; r < UNROLL; r++) {
            source_row[r] = min(base + r * GROUPS + group, last - 1);
            inv_std[r] = task.inv_std[source_row[r]];
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                d[r][i] = *(const float4*)(task.dy + (size_t)source_row[r] * task.ld + column[i]);
                hat[r][i] = *(const float4*)(task.normalised + (size_t)source_row[r] * task.cols + column[i]);
            }
#pragma unroll
            for (int k = 0; k < RESIDUALS; k++)
                if (task.residual_gates[k])
#pragma unroll
                    for (int i = 0; i < CHUNKS; i++) gate[r][k][i] = *(const float4*)(task.residual_gates[k] + (size_t)source_row[r] * task.ld_residual_grads[k] + column[i]);
        }
#pragma unroll
        for (int r = 0; r < UNROLL; r++) {
            bool valid = base + r * GROUPS + group < last;
            float grad_mean = 0.0f, grad_hat_mean = 0.0f;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                if (!valid || !inside[i]) d[r][i] = hat[r][i] = zero;
                d_gain[i] = d_gain[i] + d[r][i] * hat[r][i];
                d_shift[i] = d_shift[i] + d[r][i];
                d[r][i] = d[r][i] * gains[i];
                grad_mean += horizontal_sum(d[r][i]);
                grad_hat_mean += horizontal_sum(d[r][i] * hat[r][i]);
            }
            grad_mean = lane_sum<LANES>(grad_mean) / task.cols;
            grad_hat_mean = lane_sum<LANES>(grad_hat_mean) / task.cols;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                if (!valid || !inside[i]) continue;
                float4 x = (d[r][i] - grad_mean + hat[r][i] * -grad_hat_mean) * inv_std[r];
                *(float4*)(task.dy + (size_t)source_row[r] * task.ld + column[i]) = x;
#pragma unroll
                for (int k = 0; k < RESIDUALS; k++) {
                    if (!task.residual_grads[k]) continue;
                    float4 g = gate[r][k][i], y = x;
                    if (task.residual_gates[k]) y = make_float4(g.x > 0.0f ? x.x : 0.0f, g.y > 0.0f ? x.y : 0.0f, g.z > 0.0f ? x.z : 0.0f, g.w > 0.0f ? x.w : 0.0f);
                    *(float4*)(task.residual_grads[k] + (size_t)source_row[r] * task.ld_residual_grads[k] + column[i]) = y;
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        if (!inside[i]) continue;
        *(float4*)(sums + group * 2 * task.cols + column[i]) = d_gain[i];
        *(float4*)(sums + (group * 2 + 1) * task.cols + column[i]) = d_shift[i];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < 2 * task.cols; c += 256) {
        float sum = 0.0f;
        for (int w = 0; w < GROUPS; w++) sum += sums[w * 2 * task.cols + c];
        task.partials[(size_t)blockIdx.x * 2 * task.cols + c] = sum;
    }
}

#define LAYER_NORM_ROWS(COLS, LANES, CHUNKS)                                                 \
    extern "C" __global__ void __launch_bounds__(256) add_layer_norm_##COLS(                 \
        const AddNormTask* tasks, const int* shape) {                                        \
        grid_dependency_sync(tasks + blockIdx.y, shape);                                     \
        add_layer_norm_rows<LANES, CHUNKS>(tasks, shape);                                    \
    }                                                                                        \
    extern "C" __global__ void __launch_bounds__(256) layer_norm_backward_##COLS(            \
        const NormBackwardTask* tasks, const int* shape) {                                   \
        grid_dependency_sync(tasks + blockIdx.y, shape);                                     \
        layer_norm_backward_rows<LANES, CHUNKS, 0>(tasks, shape);                            \
    }                                                                                        \
    extern "C" __global__ void __launch_bounds__(256) layer_norm_residuals_backward_##COLS(  \
        const NormBackwardTask* tasks, const int* shape) {                                   \
        grid_dependency_sync(tasks + blockIdx.y, shape);                                     \
        layer_norm_backward_rows<LANES, CHUNKS, MAX_RESIDUALS>(tasks, shape);                \
    }
LAYER_NORM_ROWS(16, 4, 1)
LAYER_NORM_ROWS(32, 8, 1)
LAYER_NORM_ROWS(64, 16, 1)
LAYER_NORM_ROWS(128, 32, 1)
LAYER_NORM_ROWS(256, 32, 2)
LAYER_NORM_ROWS(512, 32, 4)

// The same for rows of any length: a warp owns a row, its column sums are in shared memory. Grid: (row blocks, tasks);
// a block owns `task.rows` rows.
extern "C" __global__ void __launch_bounds__(256) layer_norm_backward(const NormBackwardTask* tasks, const int* shape) {
    grid_dependency_sync();
    const NormBackwardTask task = tasks[blockIdx.y];
    int rows = row_count(task.space, shape), first = blockIdx.x * task.rows;
    if (first >= rows) return;
    extern __shared__ __align__(16) float column_sums[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* warp_sums = column_sums + warp * 2 * task.cols;
    for (int c = lane; c < 2 * task.cols; c += 32) warp_sums[c] = 0.0f;
    __syncwarp();
    for (int row = first + warp; row < min(rows, first + task.rows); row += 8) {
        float* dy = task.dy + (size_t)row * task.ld;
        const float* hat = task.normalised + (size_t)row * task.cols;
        float grad_mean = 0.0f, grad_hat_mean = 0.0f;
        for (int c = lane; c < task.cols; c += 32) {
            float d = dy[c], h = hat[c], g = d * task.gain[c];
            warp_sums[c] += d * h;
            warp_sums[task.cols + c] += d;
            grad_mean += g;
            grad_hat_mean += g * h;
        }
        grad_mean = warp_sum(grad_mean) / task.cols;
        grad_hat_mean = warp_sum(grad_hat_mean) / task.cols;
        float inv_std = task.inv_std[row];
        for (int c = lane; c < task.cols; c += 32) {
            float x = inv_std * (dy[c] * task.gain[c] - grad_mean - hat[c] * grad_hat_mean);
            dy[c] = x;
            for (int k = 0; k < MAX_RESIDUALS; k++) {
                size_t at = (size_t)row * task.ld_residual_grads[k] + c;
                if (task.residual_grads[k]) task.residual_grads[k][at] = !task.residual_gates[k] || task.residual_gates[k][at] > 0.0f ? x : 0.0f;
            }
        }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < 2 * task.cols; c += 256) {
        float sum = 0.0f;
        for (int w = 0; w < 8; w++) sum += column_sums[w * 2 * task.cols + c];
        task.partials[(size_t)blockIdx.x * 2 * task.cols + c] = sum;
    }
}

// `count` inputs [rows, cols] with row strides ld, y [rows, cols] with row stride ldy.
struct AddTask {
    const float* inputs[MAX_INPUTS];
    int ld[MAX_INPUTS];
    float* y;
    // `vec`: all rows allow sixteen-byte reads.
    int count, ldy, cols, accumulate;
    Space space;
    int vec;
};

// y = Σ inputs, or y += Σ inputs if `accumulate`. Grid: (blocks, tasks), grid-stride over numbers or chunks of four.
// The first UNROLL inputs are read together.
extern "C" __global__ void __launch_bounds__(256) add_rows(const AddTask* tasks, const int* shape) {
    grid_dependency_sync();
    const AddTask& task = tasks[blockIdx.y];
    constexpr int UNROLL = 4;
    const float* inputs[UNROLL];
    int ld[UNROLL], count = task.count, ldy = task.ldy;
    bool vec = task.vec, accumulate = task.accumulate;
    float* to = task.y;
#pragma unroll
    for (int k = 0; k < UNROLL; k++) {
        inputs[k] = task.inputs[k];
        ld[k] = task.ld[k];
    }
    u32 across = vec ? task.cols / 4 : task.cols, total = (u32)row_count(task.space, shape) * across;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        u32 row = i / across, c = i - row * across;
        if (vec) {
            float4* y = (float4*)(to + (size_t)row * ldy) + c;
            float4 zero = make_float4(0, 0, 0, 0), v = accumulate ? *y : zero, x[UNROLL];
#pragma unroll
            for (int k = 0; k < UNROLL; k++) x[k] = k < count ? ((const float4*)(inputs[k] + (size_t)row * ld[k]))[c] : zero;
#pragma unroll
            for (int k = 0; k < UNROLL; k++) v = v + x[k];
            for (int k = UNROLL; k < count; k++) v = v + ((const float4*)(task.inputs[k] + (size_t)row * task.ld[k]))[c];
            *y = v;
        } else {
            float* y = to + (size_t)row * ldy + c;
            float v = accumulate ? *y : 0.0f;
            for (int k = 0; k < count; k++) v += task.inputs[k][(size_t)row * task.ld[k] + c];
            *y = v;
        }
    }
}
