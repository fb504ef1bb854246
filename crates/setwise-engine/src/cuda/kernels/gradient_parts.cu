// What surrounds the products of linear maps on the way back: transposed weights, sums of parts, activations.

// Wᵀ beside W, so that gradients of inputs are products of rows too.
struct TransposeTask {
    const float* from;
    float* to;
    int rows, cols;
};

// Tiles of 64 by 64, four numbers at a time where rows of both start at sixteen bytes.
extern "C" __global__ void __launch_bounds__(256) transpose(const TransposeTask* tasks, const int* shape) {
    in_turn(tasks + blockIdx.y, shape);
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
                bool there = r0 + y + 16 * i < rows && c0 + x < cols;
                v[i] = there ? *(const float4*)(task.from + (size_t)(r0 + y + 16 * i) * cols + c0 + x) : make_float4(0, 0, 0, 0);
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

// Adds parts to a gradient in an order that sizes alone decide, or to nothing if it is `fresh`; a block to each task. Where `rows_per_part` is not zero only the parts of rows that exist count.
struct SumTask {
    const float* parts;
    float* out;
    size_t stride;
    // `vec` where four numbers can be read at once.
    int count, len, rows_per_part, vec;
    Space space;
    int fresh;
};

extern "C" __global__ void __launch_bounds__(256) sum_parts(const SumTask* tasks, const int* shape) {
    in_turn(tasks + blockIdx.x, shape);
    const SumTask task = tasks[blockIdx.x];
    int count = task.count;
    if (task.rows_per_part) count = min(count, (rows_of(task.space, shape) + task.rows_per_part - 1) / task.rows_per_part);
    // Four sums at a time keep more reads on their way: every STEPth part from the first on.
    auto of_parts = [&](int i, int first, int step) {
        float4 sums[4] = {};
        const float* part = task.parts + i;
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
        *out = task.fresh ? sum : *out + sum;
    };
    int chunks = task.len / 4;
    if (task.vec && chunks <= 128 && count > 4) {
        // Few numbers of many parts: several threads share the parts of a chunk.
        __shared__ float4 shares[256];
        int sharing = 256 / chunks, share = threadIdx.x / chunks, i = threadIdx.x % chunks;
        if (share < sharing) shares[threadIdx.x] = of_parts(i * 4, share, sharing);
        __syncthreads();
        if (share) return;
        float4 sum = shares[i];
        for (int s = 1; s < sharing; s++) sum = sum + shares[s * chunks + i];
        write(i * 4, sum);
        return;
    }
    for (int i = threadIdx.x * 4; i < task.len; i += 1024) {
        if (task.vec) write(i, of_parts(i, 0, 1));
        else {
            for (int e = i; e < min(i + 4, task.len); e++) {
                float sum = 0.0f;
                for (int p = 0; p < count; p++) sum += task.parts[p * task.stride + e];
                task.out[e] = task.fresh ? sum : task.out[e] + sum;
            }
        }
    }
}

// In place: the gradient before an activation whose result is y.
struct ActivationTask {
    const float* y;
    float* dy;
    int ld, cols, activation, pad;
    Space space;
};

extern "C" __global__ void activation_backward(const ActivationTask* tasks, const int* shape) {
    in_turn();
    const ActivationTask task = tasks[blockIdx.y];
    u32 total = (u32)rows_of(task.space, shape) * task.cols;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        u32 row = i / task.cols;
        size_t at = (size_t)row * task.ld + (i - row * task.cols);
        float y = task.y[at];
        task.dy[at] *= task.activation == 1 ? (y > 0.0f ? 1.0f : 0.0f) : y * (1.0f - y);
    }
}
