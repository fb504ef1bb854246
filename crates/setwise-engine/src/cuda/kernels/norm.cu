// Sums of rows and LayerNorm. Rows of a multiple of four numbers are taken by LANES lanes with CHUNKS times four numbers each, which stay in
// registers; others by a warp.

#define MOST_INPUTS 8
#define MOST_COPIES 2

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
template <int LANES, int CHUNKS>
__device__ __forceinline__ void add_norm_rows(const NormTask* tasks, const int* shape) {
    const NormTask& task = tasks[blockIdx.y];
    int rows = rows_of(task.space, shape), lane = threadIdx.x % LANES;
    for (int base = blockIdx.x * (256 / LANES); base < rows; base += gridDim.x * (256 / LANES)) {
        // Lanes without a row take part in the sums.
        int row = base + threadIdx.x / LANES;
        bool ok = row < rows;
        float4 v[CHUNKS];
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            int c = (lane + i * LANES) * 4;
            v[i] = make_float4(0, 0, 0, 0);
            if (ok && c < task.cols)
                for (int k = 0; k < task.count; k++) v[i] = v[i] + *(const float4*)(task.inputs[k] + (size_t)row * task.ld[k] + c);
            sum += total(v[i]);
        }
        float mean = lanes_sum<LANES>(sum) / task.cols, square = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            if ((lane + i * LANES) * 4 < task.cols) { float4 d = v[i] - mean; square += total(d * d); }
        float inv_std = rsqrtf(lanes_sum<LANES>(square) / task.cols + 1e-5f);
        if (!ok) continue;
        if (task.gain && lane == 0) task.inv_std[row] = inv_std;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            int c = (lane + i * LANES) * 4;
            if (c >= task.cols) continue;
            if (task.gain) {
                v[i] = (v[i] - mean) * inv_std;
                *(float4*)(task.normalised + (size_t)row * task.cols + c) = v[i];
                v[i] = v[i] * *(const float4*)(task.gain + c) + *(const float4*)(task.shift + c);
            }
            *(float4*)(task.y + (size_t)row * task.ldy + c) = v[i];
        }
    }
}

// The same for rows of any length: a warp a row.
extern "C" __global__ void __launch_bounds__(256) add_norm(const NormTask* tasks, const int* shape) {
    in_turn();
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
    // Gradients of terms that are as that of the sum, nothing where the gate, if there is one, is not positive.
    float* copies[MOST_COPIES];
    const float* gates[MOST_COPIES];
    int ld_copies[MOST_COPIES];
    int ld, cols;
    Space space;
    // Of a block.
    int rows;
};

// In place: dx = inv_std · (g − mean(g) − x̂ · mean(g · x̂)), g = gain · dy. Each lane owns its columns of the sums.
template <int LANES, int CHUNKS, int COPIES>
__device__ __forceinline__ void norm_backward_rows(const NormBackwardTask* tasks, const int* shape) {
    const NormBackwardTask task = tasks[blockIdx.y];
    int rows = rows_of(task.space, shape), first = blockIdx.x * task.rows, last = min(rows, first + task.rows);
    if (first >= rows) return;
    extern __shared__ __align__(16) float sums[];
    int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    float4 gains[CHUNKS], d_gain[CHUNKS], d_shift[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int c = (lane + i * LANES) * 4;
        gains[i] = c < task.cols ? *(const float4*)(task.gain + c) : make_float4(0, 0, 0, 0);
        d_gain[i] = d_shift[i] = make_float4(0, 0, 0, 0);
    }
    for (int base = first; base < last; base += 256 / LANES) {
        int row = base + group;
        bool ok = row < last;
        float4 d[CHUNKS], hat[CHUNKS], gate[COPIES + 1][CHUNKS];
        float a = 0.0f, b = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            int c = (lane + i * LANES) * 4;
            d[i] = hat[i] = make_float4(0, 0, 0, 0);
            if (ok && c < task.cols) {
                d[i] = *(const float4*)(task.dy + (size_t)row * task.ld + c);
                hat[i] = *(const float4*)(task.normalised + (size_t)row * task.cols + c);
            }
#pragma unroll
            for (int k = 0; k < COPIES; k++) {
                gate[k][i] = make_float4(1, 1, 1, 1);
                if (task.gates[k] && ok && c < task.cols) gate[k][i] = *(const float4*)(task.gates[k] + (size_t)row * task.ld_copies[k] + c);
            }
            d_gain[i] = d_gain[i] + d[i] * hat[i];
            d_shift[i] = d_shift[i] + d[i];
            d[i] = d[i] * gains[i];
            a += total(d[i]);
            b += total(d[i] * hat[i]);
        }
        a = lanes_sum<LANES>(a) / task.cols;
        b = lanes_sum<LANES>(b) / task.cols;
        if (!ok) continue;
        float inv_std = task.inv_std[row];
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            int c = (lane + i * LANES) * 4;
            if (c >= task.cols) continue;
            float4 x = (d[i] - a + hat[i] * -b) * inv_std;
            *(float4*)(task.dy + (size_t)row * task.ld + c) = x;
#pragma unroll
            for (int k = 0; k < COPIES; k++) {
                float4 g = gate[k][i];
                if (task.copies[k])
                    *(float4*)(task.copies[k] + (size_t)row * task.ld_copies[k] + c) =
                        make_float4(g.x > 0.0f ? x.x : 0.0f, g.y > 0.0f ? x.y : 0.0f, g.z > 0.0f ? x.z : 0.0f, g.w > 0.0f ? x.w : 0.0f);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int c = (lane + i * LANES) * 4;
        if (c >= task.cols) continue;
        *(float4*)(sums + group * 2 * task.cols + c) = d_gain[i];
        *(float4*)(sums + (group * 2 + 1) * task.cols + c) = d_shift[i];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < 2 * task.cols; c += 256) {
        float sum = 0.0f;
        for (int w = 0; w < 256 / LANES; w++) sum += sums[w * 2 * task.cols + c];
        task.parts[(size_t)blockIdx.x * 2 * task.cols + c] = sum;
    }
}

#define NORM_ROWS(COLS, LANES, CHUNKS)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(256) add_norm_##COLS(const NormTask* t, const int* s) { in_turn(t + blockIdx.y, s); add_norm_rows<LANES, CHUNKS>(t, s); } \
    extern "C" __global__ void __launch_bounds__(256) norm_backward_##COLS(const NormBackwardTask* t, const int* s) { in_turn(t + blockIdx.y, s);                    \
        norm_backward_rows<LANES, CHUNKS, 0>(t, s);                                                                                      \
    }                                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) norm_copies_##COLS(const NormBackwardTask* t, const int* s) { in_turn(t + blockIdx.y, s);                      \
        norm_backward_rows<LANES, CHUNKS, MOST_COPIES>(t, s);                                                                            \
    }
NORM_ROWS(16, 4, 1)
NORM_ROWS(32, 8, 1)
NORM_ROWS(64, 16, 1)
NORM_ROWS(128, 32, 1)
NORM_ROWS(256, 32, 2)
NORM_ROWS(512, 32, 4)

// As above for rows of any length: a warp a row. In place: dx = inv_std · (g − mean(g) − x̂ · mean(g · x̂)), g = gain · dy. Each lane owns its columns of the sums.
extern "C" __global__ void __launch_bounds__(256) norm_backward(const NormBackwardTask* tasks, const int* shape) {
    in_turn();
    const NormBackwardTask task = tasks[blockIdx.y];
    int rows = rows_of(task.space, shape), first = blockIdx.x * task.rows;
    if (first >= rows) return;
    extern __shared__ __align__(16) float column_sums[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* mine = column_sums + warp * 2 * task.cols;
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
        for (int c = lane; c < task.cols; c += 32) {
            float x = inv_std * (dy[c] * task.gain[c] - a - hat[c] * b);
            dy[c] = x;
            for (int k = 0; k < MOST_COPIES; k++) {
                size_t at = (size_t)row * task.ld_copies[k] + c;
                if (task.copies[k]) task.copies[k][at] = !task.gates[k] || task.gates[k][at] > 0.0f ? x : 0.0f;
            }
        }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < 2 * task.cols; c += 256) {
        float sum = 0.0f;
        for (int w = 0; w < 8; w++) sum += column_sums[w * 2 * task.cols + c];
        task.parts[(size_t)blockIdx.x * 2 * task.cols + c] = sum;
    }
}

struct AddTask {
    const float* inputs[MOST_INPUTS];
    int ld[MOST_INPUTS];
    float* y;
    // `vec` where all rows can be read sixteen bytes at a time.
    int count, ldy, cols, accumulate;
    Space space;
    int vec;
};

// y (+)= Σ inputs, four numbers at a time where rows allow it; the first four inputs are read together.
extern "C" __global__ void __launch_bounds__(256) add_rows(const AddTask* tasks, const int* shape) {
    in_turn();
    const AddTask& task = tasks[blockIdx.y];
    constexpr int TOGETHER = 4;
    const float* inputs[TOGETHER];
    int ld[TOGETHER], count = task.count, ldy = task.ldy;
    bool vec = task.vec, accumulate = task.accumulate;
    float* to = task.y;
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
        inputs[k] = task.inputs[k];
        ld[k] = task.ld[k];
    }
    u32 across = vec ? task.cols / 4 : task.cols, total = (u32)rows_of(task.space, shape) * across;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        u32 row = i / across, c = i - row * across;
        if (vec) {
            float4* y = (float4*)(to + (size_t)row * ldy) + c;
            float4 none = make_float4(0, 0, 0, 0), v = accumulate ? *y : none, x[TOGETHER];
#pragma unroll
            for (int k = 0; k < TOGETHER; k++) x[k] = k < count ? ((const float4*)(inputs[k] + (size_t)row * ld[k]))[c] : none;
#pragma unroll
            for (int k = 0; k < TOGETHER; k++) v = v + x[k];
            for (int k = TOGETHER; k < count; k++) v = v + ((const float4*)(task.inputs[k] + (size_t)row * task.ld[k]))[c];
            *y = v;
        } else {
            float* y = to + (size_t)row * ldy + c;
            float v = accumulate ? *y : 0.0f;
            for (int k = 0; k < count; k++) v += task.inputs[k][(size_t)row * task.ld[k] + c];
            *y = v;
        }
    }
}
