// Batch normalisation, alone or with the max pooling that follows it, and max pooling alone. What they move is all they cost: numbers go four
// channels at a time where channels are in chunks, several reads ahead of their use.

// Batch normalisation of one value's images; all values of an operation share statistics. Where `width` is not zero, images are so wide and y and
// dy are those of the pooling that follows.
struct BatchNormTask {
    const float *x, *dy, *gain, *shift, *stats, *means;
    float *y, *dx;
    // [block][2 · channels].
    double* parts;
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

// Calls `use(i, load(i))` for every `step`th i, AHEAD loads before the first use.
template <int AHEAD, typename Load, typename Use>
__device__ __forceinline__ void each_ahead(int i, int end, int step, Load load, Use use) {
    for (; i < end; i += AHEAD * step) {
        decltype(load(0)) v[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k * step < end) v[k] = load(i + k * step);
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k * step < end) use(i + k * step, v[k]);
    }
}

// The four channels a thread stays with, and which of the threads with the same it is; `group` is out of reach of `groups` for threads that are left over.
struct Channels {
    int at, group, groups;
    float mean[4], inv_std[4], gain[4], shift[4];

    __device__ __forceinline__ Channels(const BatchNormTask& task) {
        int across = task.channels / 4;
        at = threadIdx.x % across * 4;
        group = threadIdx.x / across;
        groups = 256 / across;
    }

    __device__ __forceinline__ void read(const BatchNormTask& task) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            mean[e] = task.stats[at + e];
            inv_std[e] = task.stats[task.channels + at + e];
            gain[e] = task.gain[at + e];
            shift[e] = task.shift[at + e];
        }
    }

    __device__ __forceinline__ Normalised of(const Four& x, int e) const { return normalised(x.v[e], mean[e], inv_std[e], gain[e], shift[e]); }
};

// Two by two pixels of which a pooling takes the largest; the pixels of lines and columns without a partner stand alone.
struct Cell {
    // Of the upper left pixel and of the pooled one, in numbers.
    size_t at, pooled;
    bool right, below;
    __device__ __forceinline__ bool whole() const { return right && below; }
};

// Cells of images of which `lines` lines and `across` columns of cells count.
__device__ __forceinline__ Cell cell_of(const BatchNormTask& task, int i, int lines, int across) {
    int height = task.pixels / task.width, w = task.width / 2;
    Place p = place_of(i, lines, across);
    size_t pixel = (size_t)(p.image * height + p.line * 2) * task.width + p.column * 2;
    size_t pooled = (size_t)(p.image * (height / 2) + p.line) * w + p.column;
    return {pixel * task.channels, pooled * task.channels, p.column * 2 + 1 < task.width, p.line * 2 + 1 < height};
}

struct CellPixels {
    Four x[4];
};

__device__ __forceinline__ CellPixels read_cell(const BatchNormTask& task, const Cell& cell, int c) {
    CellPixels v;
    const float* x = task.x + cell.at + c;
    int down = task.width * task.channels;
    v.x[0] = read_four(x);
    if (cell.right) v.x[1] = read_four(x + task.channels);
    if (cell.below) v.x[2] = read_four(x + down);
    if (cell.whole()) v.x[3] = read_four(x + down + task.channels);
    return v;
}

// The pixel a pooling takes channel e from, and its result.
struct Winner {
    int pixel;
    float hat, y, result;
};

__device__ __forceinline__ Winner winner_of(const BatchNormTask& task, const Channels& channels, const CellPixels& v, int e) {
    Winner best;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        Normalised n = channels.of(v.x[k], e);
        float y = activated(task, n.y);
        if (k == 0 || y > best.result || y != y) best = {k, n.hat, n.y, y};
    }
    return best;
}

// What a block sums of `count` pixels.
struct Share {
    int begin, end;
    __device__ __forceinline__ Share(int count) {
        int each = (count + gridDim.x - 1) / gridDim.x;
        begin = min(count, (int)blockIdx.x * each);
        end = min(count, begin + each);
    }
};

// Two sums of four channels, of what a thread has seen.
struct ChannelSums {
    double first[4] = {}, second[4] = {};
    __device__ __forceinline__ void add(int e, float a, float b) {
        first[e] += a;
        second[e] += (double)b * a;
    }
};

// Adds what the threads of a block have seen, and leaves a part even where there was nothing. Sums are double, so that a variance loses nothing.
__device__ __forceinline__ void leave_part(const BatchNormTask& task, const ChannelSums& own) {
    __shared__ double sums[8][256];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        sums[e][threadIdx.x] = own.first[e];
        sums[4 + e][threadIdx.x] = own.second[e];
    }
    __syncthreads();
    int across = task.channels / 4, groups = 256 / across;
    for (int i = threadIdx.x; i < 2 * task.channels; i += 256) {
        int c = i % task.channels;
        const double* of = sums[i / task.channels * 4 + c % 4] + c / 4;
        double sum = 0.0;
        for (int group = 0; group < groups; group++) sum += of[group * across];
        task.parts[(size_t)blockIdx.x * 2 * task.channels + i] = sum;
    }
}

// Σ x and Σ x².
extern "C" __global__ void __launch_bounds__(256) image_moments_vec(const BatchNormTask* tasks, const int* shape) {
    in_turn();
    const BatchNormTask task = tasks[blockIdx.y];
    const Share share(rows_of(task.space, shape) * task.pixels);
    Channels channels(task);
    ChannelSums sums;
    if (channels.group < channels.groups)
        each_ahead<8>(
            share.begin + channels.group, share.end, channels.groups, [&](int row) { return read_four(task.x + (size_t)row * task.channels + channels.at); },
            [&](int, const Four& x) {
#pragma unroll
                for (int e = 0; e < 4; e++) sums.add(e, x.v[e], x.v[e]);
            });
    leave_part(task, sums);
}

struct PixelAndSlope {
    Four x, dy;
};

struct CellAndSlope {
    Cell cell;
    CellPixels pixels;
    Four dy;
};

// Σ g and Σ g x̂, g being the gradient before the activation.
extern "C" __global__ void __launch_bounds__(256) image_slopes_vec(const BatchNormTask* tasks, const int* shape) {
    in_turn();
    const BatchNormTask task = tasks[blockIdx.y];
    const Share share(rows_of(task.space, shape) * task.pixels);
    Channels channels(task);
    ChannelSums sums;
    if (channels.group < channels.groups) {
        channels.read(task);
        each_ahead<4>(
            share.begin + channels.group, share.end, channels.groups,
            [&](int row) {
                size_t at = (size_t)row * task.channels + channels.at;
                return PixelAndSlope{read_four(task.x + at), read_four(task.dy + at)};
            },
            [&](int, const PixelAndSlope& v) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    Normalised n = channels.of(v.x, e);
                    sums.add(e, gated(task, n.y, v.dy.v[e]), n.hat);
                }
            });
    }
    leave_part(task, sums);
}

// The same where a pooling follows: pixels that are not the largest have no gradient.
extern "C" __global__ void __launch_bounds__(256) image_slopes_pooled(const BatchNormTask* tasks, const int* shape) {
    in_turn();
    const BatchNormTask task = tasks[blockIdx.y];
    int lines = task.pixels / task.width / 2, across = task.width / 2;
    const Share share(rows_of(task.space, shape) * lines * across);
    Channels channels(task);
    ChannelSums sums;
    if (channels.group < channels.groups) {
        channels.read(task);
        each_ahead<2>(
            share.begin + channels.group, share.end, channels.groups,
            [&](int i) {
                Cell cell = cell_of(task, i, lines, across);
                return CellAndSlope{cell, read_cell(task, cell, channels.at), read_four(task.dy + cell.pooled + channels.at)};
            },
            [&](int, const CellAndSlope& v) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    Winner w = winner_of(task, channels, v.pixels, e);
                    sums.add(e, gated(task, w.y, v.dy.v[e]), w.hat);
                }
            });
    }
    leave_part(task, sums);
}

extern "C" __global__ void __launch_bounds__(256) image_normalise_vec(const BatchNormTask* tasks, const int* shape) {
    in_turn();
    const BatchNormTask task = tasks[blockIdx.y];
    int rows = rows_of(task.space, shape) * task.pixels;
    Channels channels(task);
    if (channels.group >= channels.groups) return;
    channels.read(task);
    each_ahead<4>(
        blockIdx.x * channels.groups + channels.group, rows, gridDim.x * channels.groups,
        [&](int row) { return read_four(task.x + (size_t)row * task.channels + channels.at); },
        [&](int row, Four x) {
#pragma unroll
            for (int e = 0; e < 4; e++) x.v[e] = operand(activated(task, channels.of(x, e).y));
            write_four(task.y + (size_t)row * task.channels + channels.at, x);
        });
}

extern "C" __global__ void __launch_bounds__(256) image_normalise_pooled(const BatchNormTask* tasks, const int* shape) {
    in_turn();
    const BatchNormTask task = tasks[blockIdx.y];
    int lines = task.pixels / task.width / 2, across = task.width / 2, cells = rows_of(task.space, shape) * lines * across;
    Channels channels(task);
    if (channels.group >= channels.groups) return;
    channels.read(task);
    int step = gridDim.x * channels.groups;
    for (int i = blockIdx.x * channels.groups + channels.group; i < cells; i += step) {
        Cell cell = cell_of(task, i, lines, across);
        CellPixels v = read_cell(task, cell, channels.at);
        Four y;
#pragma unroll
        for (int e = 0; e < 4; e++) y.v[e] = operand(winner_of(task, channels, v, e).result);
        write_four(task.y + cell.pooled + channels.at, y);
    }
}

// dx = γ / std · (g − mean(g) − x̂ · mean(g x̂)); `means` are negative.
struct Slopes {
    float mean[4], mean_hat[4];
    __device__ __forceinline__ Slopes(const BatchNormTask& task, int at) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            mean[e] = task.means[at + e];
            mean_hat[e] = task.means[task.channels + at + e];
        }
    }
};

__device__ __forceinline__ void write_slopes(const BatchNormTask& task, const Channels& channels, const Slopes& slopes, size_t at, const Four& x, const Four& g) {
    Four d;
#pragma unroll
    for (int e = 0; e < 4; e++)
        d.v[e] = (g.v[e] + slopes.mean[e] + channels.of(x, e).hat * slopes.mean_hat[e]) * channels.gain[e] * channels.inv_std[e];
    float* dx = task.dx + at + channels.at;
    if (task.accumulate) {
        Four old = read_four(dx);
#pragma unroll
        for (int e = 0; e < 4; e++) d.v[e] += old.v[e];
    }
#pragma unroll
    for (int e = 0; e < 4; e++) d.v[e] = operand(d.v[e]);
    write_four(dx, d);
}

extern "C" __global__ void __launch_bounds__(256) image_normalise_backward_vec(const BatchNormTask* tasks, const int* shape) {
    in_turn();
    const BatchNormTask task = tasks[blockIdx.y];
    int rows = rows_of(task.space, shape) * task.pixels;
    Channels channels(task);
    if (channels.group >= channels.groups) return;
    channels.read(task);
    Slopes slopes(task, channels.at);
    each_ahead<4>(
        blockIdx.x * channels.groups + channels.group, rows, gridDim.x * channels.groups,
        [&](int row) {
            size_t at = (size_t)row * task.channels + channels.at;
            return PixelAndSlope{read_four(task.x + at), read_four(task.dy + at)};
        },
        [&](int row, PixelAndSlope v) {
#pragma unroll
            for (int e = 0; e < 4; e++) v.dy.v[e] = gated(task, channels.of(v.x, e).y, v.dy.v[e]);
            write_slopes(task, channels, slopes, (size_t)row * task.channels, v.x, v.dy);
        });
}

extern "C" __global__ void __launch_bounds__(256) image_normalise_backward_pooled(const BatchNormTask* tasks, const int* shape) {
    in_turn();
    const BatchNormTask task = tasks[blockIdx.y];
    int height = task.pixels / task.width, lines = (height + 1) / 2, across = (task.width + 1) / 2;
    int cells = rows_of(task.space, shape) * lines * across, down = task.width * task.channels;
    Channels channels(task);
    if (channels.group >= channels.groups) return;
    channels.read(task);
    Slopes slopes(task, channels.at);
    int step = gridDim.x * channels.groups;
    for (int i = blockIdx.x * channels.groups + channels.group; i < cells; i += step) {
        Cell cell = cell_of(task, i, lines, across);
        CellPixels v = read_cell(task, cell, channels.at);
        Four g[4] = {};
        if (cell.whole()) {
            Four dy = read_four(task.dy + cell.pooled + channels.at);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                Winner w = winner_of(task, channels, v, e);
                float d = gated(task, w.y, dy.v[e]);
#pragma unroll
                for (int k = 0; k < 4; k++) g[k].v[e] = w.pixel == k ? d : 0.0f;
            }
        }
        write_slopes(task, channels, slopes, cell.at, v.x[0], g[0]);
        if (cell.right) write_slopes(task, channels, slopes, cell.at + task.channels, v.x[1], g[1]);
        if (cell.below) write_slopes(task, channels, slopes, cell.at + down, v.x[2], g[2]);
        if (cell.whole()) write_slopes(task, channels, slopes, cell.at + down + task.channels, v.x[3], g[3]);
    }
}

// Channels that are not in chunks, one number at a time.
__device__ __forceinline__ Normalised normalised_at(const BatchNormTask& task, float x, int c) {
    return normalised(x, task.stats[c], task.stats[task.channels + c], task.gain[c], task.shift[c]);
}

// Two sums of every channel over the pixels of a block, which leaves a part even where it has none. Threads side by side take channels
// side by side; sums are double, so that a variance loses nothing.
template <typename Terms>
__device__ __forceinline__ void channel_sums(const BatchNormTask& task, const int* shape, Terms terms) {
    __shared__ double first_sums[256], second_sums[256];
    const Share share(rows_of(task.space, shape) * task.pixels);
    int across = min(task.channels, 256), groups = 256 / across, group = threadIdx.x / across;
    double* out = task.parts + (size_t)blockIdx.x * 2 * task.channels;
    for (int c0 = 0; c0 < task.channels; c0 += across) {
        int c = c0 + threadIdx.x % across;
        bool mine = group < groups && c < task.channels;
        double a = 0.0, b = 0.0;
        if (mine)
            for (int row = share.begin + group; row < share.end; row += groups) {
                float2 v = terms((size_t)row * task.channels + c, c);
                a += v.x;
                b += (double)v.y * v.x;
            }
        first_sums[threadIdx.x] = a;
        second_sums[threadIdx.x] = b;
        __syncthreads();
        if (mine && group == 0) {
            for (int i = 1; i < groups; i++) {
                a += first_sums[i * across + threadIdx.x];
                b += second_sums[i * across + threadIdx.x];
            }
            out[c] = a;
            out[task.channels + c] = b;
        }
        __syncthreads();
    }
}

// Σ x and Σ x².
extern "C" __global__ void __launch_bounds__(256) image_moments(const BatchNormTask* tasks, const int* shape) {
    in_turn();
    const BatchNormTask task = tasks[blockIdx.y];
    channel_sums(task, shape, [&](size_t at, int c) { float x = task.x[at]; return make_float2(x, x); });
}

// Σ g and Σ g x̂, g being the gradient before the activation.
extern "C" __global__ void __launch_bounds__(256) image_slopes(const BatchNormTask* tasks, const int* shape) {
    in_turn();
    const BatchNormTask task = tasks[blockIdx.y];
    channel_sums(task, shape, [&](size_t at, int c) {
        Normalised n = normalised_at(task, task.x[at], c);
        return make_float2(gated(task, n.y, task.dy[at]), n.hat);
    });
}

// What becomes of the sums; `values` are the tasks they belong to, each with room for `blocks` parts, one for every `pixels` of its pixels or, where that is zero, all of them.
struct ChannelTask {
    const BatchNormTask* values;
    const double* parts;
    const float *mean, *variance;
    float *stats, *means, *d_gain, *d_shift, *d_mean, *d_variance;
    int count, blocks, channels, pixels;
};

#define BATCH_NORM_EPSILON 1e-5

// A block of 512 threads has four channels, and threads side by side read them. Channel of a thread, if it exists.
__device__ __forceinline__ int channel_of_thread() { return blockIdx.x * 4 + threadIdx.x % 4; }

// Sums of that channel over all parts, and the number of pixels, for the first thread of each channel: thread by thread, across warps, then warp by warp.
__device__ __forceinline__ double3 channel_totals(const ChannelTask& task, const int* shape) {
    __shared__ double sums[16][2][4];
    int c = min(channel_of_thread(), task.channels - 1);
    double a = 0.0, b = 0.0, n = 0.0;
    for (int v = 0; v < task.count; v++) {
        int pixels = rows_of(task.values[v].space, shape) * task.values[v].pixels;
        int parts = task.pixels ? (pixels + task.pixels - 1) / task.pixels : task.blocks;
        const double* from = task.parts + (size_t)v * task.blocks * 2 * task.channels + c;
#pragma unroll 8
        for (int p = threadIdx.x / 4; p < parts; p += 128) {
            a += from[(size_t)p * 2 * task.channels];
            b += from[((size_t)p * 2 + 1) * task.channels];
        }
        n += pixels;
    }
#pragma unroll
    for (int other = 4; other < 32; other *= 2) {
        a += __shfl_xor_sync(~0u, a, other);
        b += __shfl_xor_sync(~0u, b, other);
    }
    if (threadIdx.x % 32 < 4) {
        sums[threadIdx.x / 32][0][threadIdx.x % 4] = a;
        sums[threadIdx.x / 32][1][threadIdx.x % 4] = b;
    }
    __syncthreads();
    a = b = 0.0;
    for (int i = 0; i < 16; i++) {
        a += sums[i][0][threadIdx.x % 4];
        b += sums[i][1][threadIdx.x % 4];
    }
    return make_double3(a, b, n);
}

// Mean and one over the standard deviation of the batch.
extern "C" __global__ void __launch_bounds__(512) image_statistics(const ChannelTask* tasks, const int* shape) {
    in_turn();
    const ChannelTask task = *tasks;
    int c = channel_of_thread();
    double3 t = channel_totals(task, shape);
    if (threadIdx.x < 4 && c < task.channels) {
        double mean = t.x / t.z, variance = fmax(t.y / t.z - mean * mean, 0.0);
        task.stats[c] = (float)mean;
        task.stats[task.channels + c] = (float)(1.0 / sqrt(variance + BATCH_NORM_EPSILON));
    }
}

// The same from the running averages.
extern "C" __global__ void image_running(const ChannelTask* tasks, const int* shape) {
    in_turn();
    const ChannelTask task = *tasks;
    for (int c = blockIdx.x * blockDim.x + threadIdx.x; c < task.channels; c += gridDim.x * blockDim.x) {
        task.stats[c] = task.mean[c];
        task.stats[task.channels + c] = (float)(1.0 / sqrt((double)task.variance[c] + BATCH_NORM_EPSILON));
    }
}

// Gradients of gain and shift, minus the means that the gradient of the input takes off, and in the gradients
// of the running averages what they follow.
extern "C" __global__ void __launch_bounds__(512) image_gradients(const ChannelTask* tasks, const int* shape) {
    in_turn();
    const ChannelTask task = *tasks;
    int c = channel_of_thread();
    double3 t = channel_totals(task, shape);
    if (threadIdx.x < 4 && c < task.channels) {
        task.d_shift[c] += (float)t.x;
        task.d_gain[c] += (float)t.y;
        task.means[c] = (float)(-t.x / t.z);
        task.means[task.channels + c] = (float)(-t.y / t.z);
        double deviation = 1.0 / task.stats[task.channels + c], variance = fmax(deviation * deviation - BATCH_NORM_EPSILON, 0.0);
        task.d_mean[c] = task.stats[c];
        task.d_variance[c] = (float)(variance * t.z / fmax(t.z - 1.0, 1.0));
    }
}

extern "C" __global__ void image_normalise(const BatchNormTask* tasks, const int* shape) {
    in_turn();
    const BatchNormTask task = tasks[blockIdx.y];
    u32 total = (u32)rows_of(task.space, shape) * task.pixels * task.channels;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        task.y[i] = operand(activated(task, normalised_at(task, task.x[i], i % task.channels).y));
    }
}

// dx = γ / std · (g − mean(g) − x̂ · mean(g x̂)).
extern "C" __global__ void image_normalise_backward(const BatchNormTask* tasks, const int* shape) {
    in_turn();
    const BatchNormTask task = tasks[blockIdx.y];
    u32 total = (u32)rows_of(task.space, shape) * task.pixels * task.channels;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int c = i % task.channels;
        Normalised n = normalised_at(task, task.x[i], c);
        float g = gated(task, n.y, task.dy[i]);
        float d = (g + task.means[c] + n.hat * task.means[task.channels + c]) * task.gain[c] * task.stats[task.channels + c];
        task.dx[i] = operand(task.accumulate ? task.dx[i] + d : d);
    }
}

// The largest of two by two pixels, and which of them it was; backward `from` is the gradient of the result and `to` that of the images.
struct MaxPoolTask {
    const float* from;
    float *to, *winners;
    int height, width, channels, accumulate;
    Space space;
    int pad;
};

extern "C" __global__ void image_max_pool(const MaxPoolTask* tasks, const int* shape) {
    in_turn();
    const MaxPoolTask task = tasks[blockIdx.y];
    int h = task.height / 2, w = task.width / 2, line = task.width * task.channels;
    u32 each = h * w * task.channels, total = (u32)rows_of(task.space, shape) * each;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int image = i / each, at = i % each, c = at % task.channels, pixel = at / task.channels;
        const float* x = task.from + ((size_t)image * task.height + pixel / w * 2) * line + pixel % w * 2 * task.channels + c;
        float best = x[0], winner = 0.0f;
#pragma unroll
        for (int k = 1; k < 4; k++) {
            float v = x[k / 2 * line + k % 2 * task.channels];
            if (v > best || v != v) { best = v; winner = k; }
        }
        task.to[i] = best;
        task.winners[i] = winner;
    }
}

extern "C" __global__ void image_max_pool_backward(const MaxPoolTask* tasks, const int* shape) {
    in_turn();
    const MaxPoolTask task = tasks[blockIdx.y];
    int h = task.height / 2, w = task.width / 2;
    u32 each = task.height * task.width * task.channels, total = (u32)rows_of(task.space, shape) * each;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int image = i / each, at = i % each, c = at % task.channels, pixel = at / task.channels;
        int y = pixel / task.width, x = pixel % task.width;
        float d = 0.0f;
        if (y / 2 < h && x / 2 < w) {
            size_t from = (((size_t)image * h + y / 2) * w + x / 2) * task.channels + c;
            if (task.winners[from] == y % 2 * 2 + x % 2) d = task.from[from];
        }
        task.to[i] = task.accumulate ? task.to[i] + d : d;
    }
}
