// Sums of rows and LayerNorm: one warp per row.

#define MOST_INPUTS 8

struct NormTask {
    const float* inputs[MOST_INPUTS];
    int ld[MOST_INPUTS];
    float* y;
    const float *gain, *shift;
    float *normalised, *inv_std;
    int count, ldy, cols, pad;
    Space space;
};

// y = LayerNorm(Σ inputs); without a gain only the sum.
extern "C" __global__ void __launch_bounds__(256) add_norm(const NormTask* tasks, const int* shape) {
    const NormTask& task = tasks[blockIdx.y];
    int rows = rows_of(task.space, shape), lane = threadIdx.x % 32;
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
        float inv_std = rsqrtf(warp_sum(square) / task.cols + 1e-5f);
        if (lane == 0) task.inv_std[row] = inv_std;
        for (int c = lane; c < task.cols; c += 32) {
            float hat = (y[c] - mean) * inv_std;
            task.normalised[(size_t)row * task.cols + c] = hat;
            y[c] = hat * task.gain[c] + task.shift[c];
        }
    }
}

struct NormBackwardTask {
    float* dy;
    const float *gain, *normalised, *inv_std;
    // [blocks][2 · cols]: gradients of gain and shift.
    float* parts;
    int ld, cols;
    Space space;
    // Of a block.
    int rows;
};

// In place: dx = inv_std · (g − mean(g) − x̂ · mean(g · x̂)), g = gain · dy. Each lane owns its columns of the sums.
extern "C" __global__ void __launch_bounds__(256) norm_backward(const NormBackwardTask* tasks, const int* shape) {
    const NormBackwardTask task = tasks[blockIdx.y];
    int rows = rows_of(task.space, shape), first = blockIdx.x * task.rows;
    if (first >= rows) return;
    extern __shared__ float sums[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* mine = sums + warp * 2 * task.cols;
    for (int c = lane; c < 2 * task.cols; c += 32) mine[c] = 0.0f;
    __syncwarp();
    for (int row = first + warp; row < min(rows, first + task.rows); row += 8) {
        float* dy = task.dy + (size_t)row * task.ld;
        const float* hat = task.normalised + (size_t)row * task.cols;
        float a = 0.0f, b = 0.0f;
        for (int c = lane; c < task.cols; c += 32) {
            float d = dy[c], h = hat[c], g = d * task.gain[c];
            mine[c] += d * h;
            mine[task.cols + c] += d;
            a += g;
            b += g * h;
        }
        a = warp_sum(a) / task.cols;
        b = warp_sum(b) / task.cols;
        float inv_std = task.inv_std[row];
        for (int c = lane; c < task.cols; c += 32) dy[c] = inv_std * (dy[c] * task.gain[c] - a - hat[c] * b);
    }
    __syncthreads();
    for (int c = threadIdx.x; c < 2 * task.cols; c += 256) {
        float sum = 0.0f;
        for (int w = 0; w < 8; w++) sum += sums[w * 2 * task.cols + c];
        task.parts[(size_t)blockIdx.x * 2 * task.cols + c] = sum;
    }
}

struct AddTask {
    const float* inputs[MOST_INPUTS];
    int ld[MOST_INPUTS];
    float* y;
    int count, ldy, cols, accumulate;
    Space space;
};

// y (+)= Σ inputs.
extern "C" __global__ void add_rows(const AddTask* tasks, const int* shape) {
    const AddTask& task = tasks[blockIdx.y];
    size_t total = (size_t)rows_of(task.space, shape) * task.cols;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        size_t row = i / task.cols, c = i % task.cols, at = row * task.ldy + c;
        float v = task.accumulate ? task.y[at] : 0.0f;
        for (int k = 0; k < task.count; k++) v += task.inputs[k][row * task.ld[k] + c];
        task.y[at] = v;
    }
}
