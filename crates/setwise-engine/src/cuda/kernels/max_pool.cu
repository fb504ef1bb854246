// Max pooling of 2 by 2 pixels; a last odd line or column is left out. Grid: (blocks, values), grid-stride over
// outputs.

// Shapes: images [height, width, channels], pooled images and `argmax` [height / 2, width / 2, channels].
//
// Forward: `from` are images, `to` pooled images, `argmax` which of four pixels. Backward: `from` is the pooled
// gradient, `to` the image gradient.
struct MaxPoolTask {
    const float* from;
    float *to, *argmax;
    int height, width, channels, accumulate;
    Space space;
    int pad;
};

// to = max of each 2 by 2 cell, the first of equals; NaN propagates. `to` and `argmax` are written.
extern "C" __global__ void max_pool(const MaxPoolTask* tasks, const int* shape) {
    grid_dependency_sync();
    const MaxPoolTask task = tasks[blockIdx.y];
    int h = task.height / 2, w = task.width / 2, line = task.width * task.channels;
    u32 each = h * w * task.channels, total = (u32)row_count(task.space, shape) * each;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int image = i / each, at = i % each, c = at % task.channels, pixel = at / task.channels;
        const float* x = task.from + ((size_t)image * task.height + pixel / w * 2) * line + pixel % w * 2 * task.channels + c;
        float best = x[0], max_index = 0.0f;
#pragma unroll
        for (int k = 1; k < 4; k++) {
            float v = x[k / 2 * line + k % 2 * task.channels];
            if (v > best || v != v) { best = v; max_index = k; }
        }
        task.to[i] = best;
        task.argmax[i] = max_index;
    }
}

// to = from at the argmax pixel of each cell, zero elsewhere; += if `accumulate`. A thread owns one input pixel and
// channel.
extern "C" __global__ void max_pool_backward(const MaxPoolTask* tasks, const int* shape) {
    grid_dependency_sync();
    const MaxPoolTask task = tasks[blockIdx.y];
    int h = task.height / 2, w = task.width / 2;
    u32 each = task.height * task.width * task.channels, total = (u32)row_count(task.space, shape) * each;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int image = i / each, at = i % each, c = at % task.channels, pixel = at / task.channels;
        int y = pixel / task.width, x = pixel % task.width;
        float d = 0.0f;
        if (y / 2 < h && x / 2 < w) {
            size_t from = (((size_t)image * h + y / 2) * w + x / 2) * task.channels + c;
            if (task.argmax[from] == y % 2 * 2 + x % 2) d = task.from[from];
        }
        task.to[i] = task.accumulate ? task.to[i] + d : d;
    }
}
