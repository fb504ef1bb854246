// Batch normalisation over all pixels of all images (NHWC), one number at a time; `batch_norm_vec.cu` has four channels
// at a time. All kernels are memory-bound.

// Batch normalisation of one value's images: x̂ = (x − mean) · inv_std, y = act(γ x̂ + β). All values of an operation
// share `stats`. If `width` is not zero, images have that width, and y and dy belong to the max pooling that follows.
//
// Shapes: x, y, dx and dy [images · pixels, channels]; gain (γ) and shift (β) [channels]. stats [2, channels] has mean
// and inv_std, neg_grad_means [2, channels] has −mean(g) and −mean(g x̂).
struct BatchNormTask {
    const float *x, *dy, *gain, *shift, *stats, *neg_grad_means;
    float *y, *dx;
    // [block][2 · channels].
    double* partials;
    int channels, pixels, relu, accumulate, width;
    Space space;
};

struct Normalised {
    // x̂ and γ x̂ + β.
    float hat, y;
};

__device__ __forceinline__ Normalised normalised(float x, float mean, float inv_std, float gain, float shift) {
    float hat = (x - mean) * inv_std;
    return {hat, fmaf(hat, gain, shift)};
}

__device__ __forceinline__ float activated(const BatchNormTask& task, float y) { return task.relu && y <= 0.0f ? 0.0f : y; }

// The gradient before the activation.
__device__ __forceinline__ float gated(const BatchNormTask& task, float y, float dy) { return task.relu && !(y > 0.0f) ? 0.0f : dy; }

// The block's range of `count` pixels.
struct BlockRows {
    int begin, end;
    __device__ __forceinline__ BlockRows(int count) {
        int each = (count + gridDim.x - 1) / gridDim.x;
        begin = min(count, (int)blockIdx.x * each);
        end = min(count, begin + each);
    }
};

// The number of channel c; for channel counts that are no multiple of four.
__device__ __forceinline__ Normalised normalised_at(const BatchNormTask& task, float x, int c) {
    return normalised(x, task.stats[c], task.stats[task.channels + c], task.gain[c], task.shift[c]);
}

// Σ a and Σ a · b of every channel over the block's pixels, written as one partial sum, zero if there are none.
// Neighbouring threads own neighbouring channels; sums are double, so that a variance loses nothing.
template <typename Terms>
__device__ __forceinline__ void channel_sums(const BatchNormTask& task, const int* shape, Terms terms) {
    __shared__ double first_sums[256], second_sums[256];
    const BlockRows share(row_count(task.space, shape) * task.pixels);
    int across = min(task.channels, 256), groups = 256 / across, group = threadIdx.x / across;
    double* out = task.partials + (size_t)blockIdx.x * 2 * task.channels;
    for (int c0 = 0; c0 < task.channels; c0 += across) {
        int c = c0 + threadIdx.x % across;
        bool owns_channel = group < groups && c < task.channels;
        double first_sum = 0.0, second_sum = 0.0;
        if (owns_channel)
            for (int row = share.begin + group; row < share.end; row += groups) {
                float2 v = terms((size_t)row * task.channels + c, c);
                first_sum += v.x;
                second_sum += (double)v.y * v.x;
            }
        first_sums[threadIdx.x] = first_sum;
        second_sums[threadIdx.x] = second_sum;
        __syncthreads();
        if (owns_channel && group == 0) {
            for (int i = 1; i < groups; i++) {
                first_sum += first_sums[i * across + threadIdx.x];
                second_sum += second_sums[i * across + threadIdx.x];
            }
            out[c] = first_sum;
            out[task.channels + c] = second_sum;
        }
        __syncthreads();
    }
}

// Partial sums of Σ x and Σ x². Grid: (blocks, values).
extern "C" __global__ void __launch_bounds__(256) batch_norm_moments(const BatchNormTask* tasks, const int* shape) {
    grid_dependency_sync();
    const BatchNormTask task = tasks[blockIdx.y];
    channel_sums(task, shape, [&](size_t at, int c) { float x = task.x[at]; return make_float2(x, x); });
}

// Partial sums of Σ g and Σ g x̂; g is the gradient before the activation. Grid: (blocks, values).
extern "C" __global__ void __launch_bounds__(256) batch_norm_grad_sums(const BatchNormTask* tasks, const int* shape) {
    grid_dependency_sync();
    const BatchNormTask task = tasks[blockIdx.y];
    channel_sums(task, shape, [&](size_t at, int c) {
        Normalised n = normalised_at(task, task.x[at], c);
        return make_float2(gated(task, n.y, task.dy[at]), n.hat);
    });
}

// Statistics of channels from partial sums. `values` are the tasks summed over. Each has up to `blocks` partial sums:
// one per `pixels` of its pixels, or all of them if that is zero.
struct ChannelStatsTask {
    const BatchNormTask* values;
    const double* partials;
    const float *mean, *variance;
    float *stats, *neg_grad_means, *d_gain, *d_shift, *d_mean, *d_variance;
    int count, blocks, channels, pixels;
};

// Added to a variance before its root.
#define BATCH_NORM_EPSILON 1e-5

// The channel of a thread. A block of 512 threads owns four channels; neighbouring threads read neighbouring channels.
__device__ __forceinline__ int channel_of_thread() { return blockIdx.x * 4 + threadIdx.x % 4; }

// Both sums of the thread's channel over all partial sums, and the number of pixels: per thread, then across lanes,
// then warp by warp.
__device__ __forceinline__ double3 channel_totals(const ChannelStatsTask& task, const int* shape) {
    __shared__ double sums[16][2][4];
    int c = min(channel_of_thread(), task.channels - 1);
    double first_sum = 0.0, second_sum = 0.0, pixel_count = 0.0;
    for (int v = 0; v < task.count; v++) {
        int pixels = row_count(task.values[v].space, shape) * task.values[v].pixels;
        int partials = task.pixels ? (pixels + task.pixels - 1) / task.pixels : task.blocks;
        const double* from = task.partials + (size_t)v * task.blocks * 2 * task.channels + c;
#pragma unroll 8
        for (int p = threadIdx.x / 4; p < partials; p += 128) {
            first_sum += from[(size_t)p * 2 * task.channels];
            second_sum += from[((size_t)p * 2 + 1) * task.channels];
        }
        pixel_count += pixels;
    }
#pragma unroll
    for (int other = 4; other < 32; other *= 2) {
        first_sum += __shfl_xor_sync(~0u, first_sum, other);
        second_sum += __shfl_xor_sync(~0u, second_sum, other);
    }
    if (threadIdx.x % 32 < 4) {
        sums[threadIdx.x / 32][0][threadIdx.x % 4] = first_sum;
        sums[threadIdx.x / 32][1][threadIdx.x % 4] = second_sum;
    }
    __syncthreads();
    first_sum = second_sum = 0.0;
    for (int i = 0; i < 16; i++) {
        first_sum += sums[i][0][threadIdx.x % 4];
        second_sum += sums[i][1][threadIdx.x % 4];
    }
    return make_double3(first_sum, second_sum, pixel_count);
}

// stats = mean and 1 / √(variance + ε) of the batch. Grid: channels / 4 blocks. `stats` is written.
extern "C" __global__ void __launch_bounds__(512) batch_norm_statistics(const ChannelStatsTask* tasks, const int* shape) {
    grid_dependency_sync();
    const ChannelStatsTask task = *tasks;
    int c = channel_of_thread();
    double3 totals = channel_totals(task, shape);
    if (threadIdx.x < 4 && c < task.channels) {
        double mean = totals.x / totals.z, variance = fmax(totals.y / totals.z - mean * mean, 0.0);
        task.stats[c] = (float)mean;
        task.stats[task.channels + c] = (float)(1.0 / sqrt(variance + BATCH_NORM_EPSILON));
    }
}

// The same from the running averages, for inference. Grid-stride over channels.
extern "C" __global__ void batch_norm_running_statistics(const ChannelStatsTask* tasks, const int* shape) {
    grid_dependency_sync();
    const ChannelStatsTask task = *tasks;
    for (int c = blockIdx.x * blockDim.x + threadIdx.x; c < task.channels; c += gridDim.x * blockDim.x) {
        task.stats[c] = task.mean[c];
        task.stats[task.channels + c] = (float)(1.0 / sqrt((double)task.variance[c] + BATCH_NORM_EPSILON));
    }
}

// d_shift += Σ g, d_gain += Σ g x̂; neg_grad_means = −mean(g) and −mean(g x̂) for the input gradient. Grid: channels /
// 4 blocks. d_mean and d_variance are written: the mean and the unbiased variance of the batch, which running averages
// follow.
extern "C" __global__ void __launch_bounds__(512) batch_norm_param_grads(const ChannelStatsTask* tasks, const int* shape) {
    grid_dependency_sync();
    const ChannelStatsTask task = *tasks;
    int c = channel_of_thread();
    double3 totals = channel_totals(task, shape);
    if (threadIdx.x < 4 && c < task.channels) {
        task.d_shift[c] += (float)totals.x;
        task.d_gain[c] += (float)totals.y;
        task.neg_grad_means[c] = (float)(-totals.x / totals.z);
        task.neg_grad_means[task.channels + c] = (float)(-totals.y / totals.z);
        double deviation = 1.0 / task.stats[task.channels + c], variance = fmax(deviation * deviation - BATCH_NORM_EPSILON, 0.0);
        task.d_mean[c] = task.stats[c];
        task.d_variance[c] = (float)(variance * totals.z / fmax(totals.z - 1.0, 1.0));
    }
}

// y = act(γ x̂ + β), written. Grid: (blocks, values), grid-stride over numbers.
extern "C" __global__ void batch_norm_apply(const BatchNormTask* tasks, const int* shape) {
    grid_dependency_sync();
    const BatchNormTask task = tasks[blockIdx.y];
    u32 total = (u32)row_count(task.space, shape) * task.pixels * task.channels;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        task.y[i] = round_operand(activated(task, normalised_at(task, task.x[i], i % task.channels).y));
    }
}

// dx = γ / σ · (g − mean(g) − x̂ · mean(g x̂)), or += if `accumulate`. Grid: (blocks, values), grid-stride over
// numbers.
extern "C" __global__ void batch_norm_input_grad(const BatchNormTask* tasks, const int* shape) {
    grid_dependency_sync();
    const BatchNormTask task = tasks[blockIdx.y];
    u32 total = (u32)row_count(task.space, shape) * task.pixels * task.channels;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int c = i % task.channels;
        Normalised n = normalised_at(task, task.x[i], c);
        float g = gated(task, n.y, task.dy[i]);
        float d = (g + task.neg_grad_means[c] + n.hat * task.neg_grad_means[task.channels + c]) * task.gain[c] * task.stats[task.channels + c];
        task.dx[i] = round_operand(task.accumulate ? task.dx[i] + d : d);
    }
}
