// Helpers of the backward pass: transposed weights, sums of partial sums, activations.

// to = fromᵀ, [cols, rows] from [rows, cols], so that input gradients are A Bᵀ products too.
struct TransposeTask {
    const float* from;
    float* to;
    int rows, cols;
};

// Grid: (tiles, tasks), grid-stride over tiles of 64 by 64. `to` is written, four numbers at a time where both sides
// are 16-byte aligned. Cost: one read and one write of the weights.
extern "C" __global__ void __launch_bounds__(256) transpose(const TransposeTask* tasks, const int* shape) {
    grid_dependency_sync(tasks + blockIdx.y, shape);
    const TransposeTask task = tasks[blockIdx.y];
    __shared__ float tile[64][65];
    int rows = task.rows, cols = task.cols, across = (cols + 63) / 64, tiles = (rows + 63) / 64 * across;
    bool vec = rows % 4 == 0 && cols % 4 == 0 && ((size_t)task.from | (size_t)task.to) % 16 == 0;
    for (int at = blockIdx.x; at < tiles; at += gridDim.x) {
        int r0 = at / across * 64, c0 = at % across * 64;
        if (vec) {
            int x = threadIdx.x % 16 * 4, y = threadIdx.x / 16;
            float4 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                bool valid = r0 + y + 16 * i < rows && c0 + x < cols;
                v[i] = valid ? *(const float4*)(task.from + (size_t)(r0 + y + 16 * i) * cols + c0 + x) : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float* to = &tile[y + 16 * i][x];
                to[0] = v[i].x; to[1] = v[i].y; to[2] = v[i].z; to[3] = v[i].w;
            }
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int c = y + 16 * i;
                if (c0 + c < cols && r0 + x < rows)
                    *(float4*)(task.to + (size_t)(c0 + c) * rows + r0 + x) = make_float4(tile[x][c], tile[x + 1][c], tile[x + 2][c], tile[x + 3][c]);
            }
        } else {
            int x = threadIdx.x % 64, y = threadIdx.x / 64;
            for (int i = y; i < 64; i += 4)
                if (r0 + i < rows && c0 + x < cols) tile[i][x] = task.from[(size_t)(r0 + i) * cols + c0 + x];
            __syncthreads();
            for (int i = y; i < 64; i += 4)
                if (c0 + i < cols && r0 + x < rows) task.to[(size_t)(c0 + i) * rows + r0 + x] = tile[x][i];
        }
        __syncthreads();
    }
}

// out[i] (+)= Σ_p partials[p · stride + i], in an order that depends on sizes only. `overwrite` writes instead of
// adding. With `rows_per_partial`, only partial sums of rows that exist count.
struct PartialSumTask {
    const float* partials;
    float* out;
    size_t stride;
    // `vec`: four numbers are read at once.
    int count, len, rows_per_partial, vec;
    Space space;
    int overwrite;
};

// Grid: one block per task. A thread owns four neighbouring outputs; where a task is short, several threads divide the
// partial sums of a chunk and the first adds theirs in order.
extern "C" __global__ void __launch_bounds__(256) sum_partials(const PartialSumTask* tasks, const int* shape) {
    grid_dependency_sync(tasks + blockIdx.x, shape);
    const PartialSumTask task = tasks[blockIdx.x];
    int count = task.count;
    if (task.rows_per_partial) count = min(count, (row_count(task.space, shape) + task.rows_per_partial - 1) / task.rows_per_partial);
    // Four independent sums keep more reads in flight: every `step`th partial sum from `first` on.
    auto of_partials = [&](int i, int first, int step) {
        float4 sums[4] = {};
        const float* part = task.partials + i;
        int p = first;
        for (; p + 3 * step < count; p += 4 * step)
#pragma unroll
            for (int k = 0; k < 4; k++) sums[k] = sums[k] + *(const float4*)(part + (p + k * step) * task.stride);
#pragma unroll
        for (int k = 0; k < 3; k++)
            if (p + k * step < count) sums[k] = sums[k] + *(const float4*)(part + (p + k * step) * task.stride);
        return (sums[0] + sums[1]) + (sums[2] + sums[3]);
    };
    auto write = [&](int i, float4 sum) {
        float4* out = (float4*)(task.out + i);
        *out = task.overwrite ? sum : *out + sum;
    };
    int chunks = task.len / 4;
    if (task.vec && chunks <= 128 && count > 4) {
        // Few outputs of many partial sums: several threads share a chunk.
        __shared__ float4 thread_sums[256];
        int threads_per_chunk = 256 / chunks, thread_of_chunk = threadIdx.x / chunks, i = threadIdx.x % chunks;
        if (thread_of_chunk < threads_per_chunk) thread_sums[threadIdx.x] = of_partials(i * 4, thread_of_chunk, threads_per_chunk);
        __syncthreads();
        if (thread_of_chunk) return;
        float4 sum = thread_sums[i];
        for (int s = 1; s < threads_per_chunk; s++) sum = sum + thread_sums[s * chunks + i];
        write(i * 4, sum);
        return;
    }
    for (int i = threadIdx.x * 4; i < task.len; i += 1024) {
        if (task.vec) write(i, of_partials(i, 0, 1));
        else {
            for (int e = i; e < min(i + 4, task.len); e++) {
                float sum = 0.0f;
                for (int p = 0; p < count; p++) sum += task.partials[p * task.stride + e];
                task.out[e] = task.overwrite ? sum : task.out[e] + sum;
            }
        }
    }
}

// dy[i] *= act'(y[i]) in place: 1 or 0 for ReLU, y (1 − y) for sigmoid.
struct ActivationTask {
    const float* y;
    float* dy;
    int ld, cols, activation, pad;
    Space space;
};

// Grid: (blocks, tasks), grid-stride over rows times cols, one number a thread.
extern "C" __global__ void activation_backward(const ActivationTask* tasks, const int* shape) {
    grid_dependency_sync();
    const ActivationTask task = tasks[blockIdx.y];
    u32 total = (u32)row_count(task.space, shape) * task.cols;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        u32 row = i / task.cols;
        size_t at = (size_t)row * task.ld + (i - row * task.cols);
        float y = task.y[at];
        task.dy[at] *= task.activation == ACTIVATION_RELU ? (y > 0.0f ? 1.0f : 0.0f) : y * (1.0f - y);
    }
}
