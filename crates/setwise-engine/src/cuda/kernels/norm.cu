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

// y = LayerNorm(Σ inputs); without a gain only the sum. The first inputs are read together.
template <int LANES, int CHUNKS>
__device__ __forceinline__ void add_norm_rows(const NormTask* tasks, const int* shape) {
    constexpr int TOGETHER = 2;
    const NormTask& task = tasks[blockIdx.y];
    int rows = rows_of(task.space, shape), lane = threadIdx.x % LANES, cols = task.cols, count = task.count;
    const float* inputs[TOGETHER];
    int ld[TOGETHER];
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
        inputs[k] = task.inputs[k];
        ld[k] = task.ld[k];
    }
    for (int base = blockIdx.x * (256 / LANES); base < rows; base += gridDim.x * (256 / LANES)) {
        // Lanes without a row take part in the sums.
        int row = base + threadIdx.x / LANES;
        bool ok = row < rows;
        float4 none = make_float4(0, 0, 0, 0), x[TOGETHER][CHUNKS], v[CHUNKS];
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < TOGETHER; k++)
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                int c = (lane + i * LANES) * 4;
                x[k][i] = k < count && ok && c < cols ? *(const float4*)(inputs[k] + (size_t)row * ld[k] + c) : none;
            }
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            int c = (lane + i * LANES) * 4;
            v[i] = none;
#pragma unroll
            for (int k = 0; k < TOGETHER; k++) v[i] = v[i] + x[k][i];
            if (ok && c < cols)
                for (int k = TOGETHER; k < count; k++) v[i] = v[i] + *(const float4*)(task.inputs[k] + (size_t)row * task.ld[k] + c);
            sum += total(v[i]);
        }
        float mean = lanes_sum<LANES>(sum) / cols, square = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            if ((lane + i * LANES) * 4 < cols) { float4 d = v[i] - mean; square += total(d * d); }
        float inv_std = rsqrtf(lanes_sum<LANES>(square) / cols + 1e-5f);
        if (!ok) continue;
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

// In place: dx = inv_std · (g − mean(g) − x̂ · mean(g · x̂)), g = gain · dy. Each lane owns its columns of the sums. Narrow rows are read several together, so that few
// waits are enough for all of a block; a row that is not there reads one that is.
template <int LANES, int CHUNKS, int COPIES>
__device__ __forceinline__ void norm_backward_rows(const NormBackwardTask* tasks, const int* shape) {
    constexpr int TOGETHER = CHUNKS > 1 ? 1 : LANES < 16 ? LANES / 4 : 4, GROUPS = 256 / LANES;
    const NormBackwardTask task = tasks[blockIdx.y];
    int rows = rows_of(task.space, shape), first = blockIdx.x * task.rows, last = min(rows, first + task.rows);
    if (first >= rows) return;
    extern __shared__ __align__(16) float sums[];
    int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    float4 none = make_float4(0, 0, 0, 0), gains[CHUNKS], d_gain[CHUNKS], d_shift[CHUNKS];
    // Where a lane reads, and whether that is there.
    int column[CHUNKS];
    bool inside[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int c = (lane + i * LANES) * 4;
        inside[i] = c < task.cols;
        column[i] = inside[i] ? c : 0;
        gains[i] = inside[i] ? *(const float4*)(task.gain + c) : none;
        d_gain[i] = d_shift[i] = none;
    }
    for (int base = first; base < last; base += GROUPS * TOGETHER) {
        float4 d[TOGETHER][CHUNKS], hat[TOGETHER][CHUNKS], gate[TOGETHER][COPIES + 1][CHUNKS];
        float inv_std[TOGETHER];
        int at[TOGETHER];
#pragma unroll
        for (int t = 0; t < TOGETHER; t++) {
            at[t] = min(base + t * GROUPS + group, last - 1);
            inv_std[t] = task.inv_std[at[t]];
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                d[t][i] = *(const float4*)(task.dy + (size_t)at[t] * task.ld + column[i]);
                hat[t][i] = *(const float4*)(task.normalised + (size_t)at[t] * task.cols + column[i]);
            }
#pragma unroll
            for (int k = 0; k < COPIES; k++)
                if (task.gates[k])
#pragma unroll
                    for (int i = 0; i < CHUNKS; i++) gate[t][k][i] = *(const float4*)(task.gates[k] + (size_t)at[t] * task.ld_copies[k] + column[i]);
        }
#pragma unroll
        for (int t = 0; t < TOGETHER; t++) {
            bool ok = base + t * GROUPS + group < last;
            float a = 0.0f, b = 0.0f;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                if (!ok || !inside[i]) d[t][i] = hat[t][i] = none;
                d_gain[i] = d_gain[i] + d[t][i] * hat[t][i];
                d_shift[i] = d_shift[i] + d[t][i];
                d[t][i] = d[t][i] * gains[i];
                a += total(d[t][i]);
                b += total(d[t][i] * hat[t][i]);
            }
            a = lanes_sum<LANES>(a) / task.cols;
            b = lanes_sum<LANES>(b) / task.cols;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                if (!ok || !inside[i]) continue;
                float4 x = (d[t][i] - a + hat[t][i] * -b) * inv_std[t];
                *(float4*)(task.dy + (size_t)at[t] * task.ld + column[i]) = x;
#pragma unroll
                for (int k = 0; k < COPIES; k++) {
                    if (!task.copies[k]) continue;
                    float4 g = gate[t][k][i], y = x;
                    if (task.gates[k]) y = make_float4(g.x > 0.0f ? x.x : 0.0f, g.y > 0.0f ? x.y : 0.0f, g.z > 0.0f ? x.z : 0.0f, g.w > 0.0f ? x.w : 0.0f);
                    *(float4*)(task.copies[k] + (size_t)at[t] * task.ld_copies[k] + column[i]) = y;
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
