// Batch normalisation of four channels at a time, alone or fused with the 2 by 2 max pooling that follows. Channels are
// a multiple of four, at most 1024. Formulas are those of `batch_norm.cu`. A thread owns four channels and grid-strides
// over pixels (or pooled cells), with several reads in flight. The pooled kernels recompute the normalised images,
// which are never written.

// Calls `use(i, load(i))` for every `step`th i, with AHEAD loads in flight.
template <int AHEAD, typename Load, typename Use>
__device__ __forceinline__ void for_each_prefetched(int i, int end, int step, Load load, Use use) {
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

// A thread's four channels, and its rank among the threads of the same channels; left-over threads have group ≥ groups.
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

    __device__ __forceinline__ Normalised of(const Channels4& x, int e) const { return normalised(x.v[e], mean[e], inv_std[e], gain[e], shift[e]); }
};

// A 2 by 2 cell of a max pooling; pixels of a last odd line or column form incomplete cells.
struct Cell {
    // Offsets of the upper left pixel and of the pooled pixel.
    size_t at, pooled;
    bool right, below;
    __device__ __forceinline__ bool complete() const { return right && below; }
};

// Cell i of images with `lines` by `across` cells.
__device__ __forceinline__ Cell cell_of(const BatchNormTask& task, int i, int lines, int across) {
    int height = task.pixels / task.width, w = task.width / 2;
    PixelPosition p = pixel_position(i, lines, across);
    size_t pixel = (size_t)(p.image * height + p.line * 2) * task.width + p.column * 2;
    size_t pooled = (size_t)(p.image * (height / 2) + p.line) * w + p.column;
    return {pixel * task.channels, pooled * task.channels, p.column * 2 + 1 < task.width, p.line * 2 + 1 < height};
}

// Four channels of the pixels of a cell, line by line; pixels that do not exist are not set.
struct CellPixels {
    Channels4 x[4];
};

__device__ __forceinline__ CellPixels read_cell(const BatchNormTask& task, const Cell& cell, int c) {
    CellPixels v;
    const float* x = task.x + cell.at + c;
    int down = task.width * task.channels;
    v.x[0] = load4(x);
    if (cell.right) v.x[1] = load4(x + task.channels);
    if (cell.below) v.x[2] = load4(x + down);
    if (cell.complete()) v.x[3] = load4(x + down + task.channels);
    return v;
}

// The argmax pixel of channel e, and its values.
struct PooledMax {
    int pixel;
    float hat, y, result;
};

__device__ __forceinline__ PooledMax pooled_max_of(const BatchNormTask& task, const Channels& channels, const CellPixels& v, int e) {
    PooledMax best;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        Normalised n = channels.of(v.x[k], e);
        float y = activated(task, n.y);
        if (k == 0 || y > best.result || y != y) best = {k, n.hat, n.y, y};
    }
    return best;
}

// Two sums of four channels over a thread's pixels.
struct ChannelSums {
    double first[4] = {}, second[4] = {};
    __device__ __forceinline__ void add(int e, float a, float b) {
        first[e] += a;
        second[e] += (double)b * a;
    }
};

// Adds the threads' sums in order and writes the block's partial sum [2, channels], zero if there are no pixels. Sums
// are double, so that a variance loses nothing.
__device__ __forceinline__ void write_partial(const BatchNormTask& task, const ChannelSums& thread_sums) {
    __shared__ double sums[8][256];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        sums[e][threadIdx.x] = thread_sums.first[e];
        sums[4 + e][threadIdx.x] = thread_sums.second[e];
    }
    __syncthreads();
    int across = task.channels / 4, groups = 256 / across;
    for (int i = threadIdx.x; i < 2 * task.channels; i += 256) {
        int c = i % task.channels;
        const double* of = sums[i / task.channels * 4 + c % 4] + c / 4;
        double sum = 0.0;
        for (int group = 0; group < groups; group++) sum += of[group * across];
        task.partials[(size_t)blockIdx.x * 2 * task.channels + i] = sum;
    }
}

// Partial sums of Σ x and Σ x², written. Grid: (blocks, values).
extern "C" __global__ void __launch_bounds__(256) batch_norm_moments_vec(const BatchNormTask* tasks, const int* shape) {
    grid_dependency_sync();
    const BatchNormTask task = tasks[blockIdx.y];
    const BlockRows share(row_count(task.space, shape) * task.pixels);
    Channels channels(task);
    ChannelSums sums;
    if (channels.group < channels.groups)
        for_each_prefetched<8>(
            share.begin + channels.group, share.end, channels.groups, [&](int row) { return load4(task.x + (size_t)row * task.channels + channels.at); },
            [&](int, const Channels4& x) {
#pragma unroll
                for (int e = 0; e < 4; e++) sums.add(e, x.v[e], x.v[e]);
            });
    write_partial(task, sums);
}

struct PixelAndGrad {
    Channels4 x, dy;
};

struct CellAndGrad {
    Cell cell;
    CellPixels pixels;
    Channels4 dy;
};

// Partial sums of Σ g and Σ g x̂, written; g is the gradient before the activation. Grid: (blocks, values).
extern "C" __global__ void __launch_bounds__(256) batch_norm_grad_sums_vec(const BatchNormTask* tasks, const int* shape) {
    grid_dependency_sync();
    const BatchNormTask task = tasks[blockIdx.y];
    const BlockRows share(row_count(task.space, shape) * task.pixels);
    Channels channels(task);
    ChannelSums sums;
    if (channels.group < channels.groups) {
        channels.read(task);
        for_each_prefetched<4>(
            share.begin + channels.group, share.end, channels.groups,
            [&](int row) {
                size_t at = (size_t)row * task.channels + channels.at;
                return PixelAndGrad{load4(task.x + at), load4(task.dy + at)};
            },
            [&](int, const PixelAndGrad& v) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    Normalised n = channels.of(v.x, e);
                    sums.add(e, gated(task, n.y, v.dy.v[e]), n.hat);
                }
            });
    }
    write_partial(task, sums);
}

// The same where a max pooling follows: only the argmax pixel of a cell has a gradient.
extern "C" __global__ void __launch_bounds__(256) batch_norm_grad_sums_pooled(const BatchNormTask* tasks, const int* shape) {
    grid_dependency_sync();
    const BatchNormTask task = tasks[blockIdx.y];
    int lines = task.pixels / task.width / 2, across = task.width / 2;
    const BlockRows share(row_count(task.space, shape) * lines * across);
    Channels channels(task);
    ChannelSums sums;
    if (channels.group < channels.groups) {
        channels.read(task);
        for_each_prefetched<2>(
            share.begin + channels.group, share.end, channels.groups,
            [&](int i) {
                Cell cell = cell_of(task, i, lines, across);
                return CellAndGrad{cell, read_cell(task, cell, channels.at), load4(task.dy + cell.pooled + channels.at)};
            },
            [&](int, const CellAndGrad& v) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    PooledMax best = pooled_max_of(task, channels, v.pixels, e);
                    sums.add(e, gated(task, best.y, v.dy.v[e]), best.hat);
                }
            });
    }
    write_partial(task, sums);
}

// y = act(γ x̂ + β), written. Grid: (blocks, values).
extern "C" __global__ void __launch_bounds__(256) batch_norm_apply_vec(const BatchNormTask* tasks, const int* shape) {
    grid_dependency_sync();
    const BatchNormTask task = tasks[blockIdx.y];
    int rows = row_count(task.space, shape) * task.pixels;
    Channels channels(task);
    if (channels.group >= channels.groups) return;
    channels.read(task);
    for_each_prefetched<4>(
        blockIdx.x * channels.groups + channels.group, rows, gridDim.x * channels.groups,
        [&](int row) { return load4(task.x + (size_t)row * task.channels + channels.at); },
        [&](int row, Channels4 x) {
#pragma unroll
            for (int e = 0; e < 4; e++) x.v[e] = round_operand(activated(task, channels.of(x, e).y));
            store4(task.y + (size_t)row * task.channels + channels.at, x);
        });
}

// y = max over each 2 by 2 cell of act(γ x̂ + β), written. Grid: (blocks, values).
extern "C" __global__ void __launch_bounds__(256) batch_norm_apply_pooled(const BatchNormTask* tasks, const int* shape) {
    grid_dependency_sync();
    const BatchNormTask task = tasks[blockIdx.y];
    int lines = task.pixels / task.width / 2, across = task.width / 2, cells = row_count(task.space, shape) * lines * across;
    Channels channels(task);
    if (channels.group >= channels.groups) return;
    channels.read(task);
    int step = gridDim.x * channels.groups;
    for (int i = blockIdx.x * channels.groups + channels.group; i < cells; i += step) {
        Cell cell = cell_of(task, i, lines, across);
        CellPixels v = read_cell(task, cell, channels.at);
        Channels4 y;
#pragma unroll
        for (int e = 0; e < 4; e++) y.v[e] = round_operand(pooled_max_of(task, channels, v, e).result);
        store4(task.y + cell.pooled + channels.at, y);
    }
}

// Means of dx = γ / σ · (g − mean(g) − x̂ · mean(g x̂)) for a thread's four channels, with the opposite sign.
struct GradMeans {
    float mean[4], mean_hat[4];
    __device__ __forceinline__ GradMeans(const BatchNormTask& task, int at) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            mean[e] = task.neg_grad_means[at + e];
            mean_hat[e] = task.neg_grad_means[task.channels + at + e];
        }
    }
};

// Writes dx of four channels of the pixel at offset `at`, or adds it if `accumulate`.
__device__ __forceinline__ void write_input_grad(const BatchNormTask& task, const Channels& channels, const GradMeans& grad_means, size_t at, const Channels4& x, const Channels4& g) {
    Channels4 d;
#pragma unroll
    for (int e = 0; e < 4; e++)
        d.v[e] = (g.v[e] + grad_means.mean[e] + channels.of(x, e).hat * grad_means.mean_hat[e]) * channels.gain[e] * channels.inv_std[e];
    float* dx = task.dx + at + channels.at;
    if (task.accumulate) {
        Channels4 old = load4(dx);
#pragma unroll
        for (int e = 0; e < 4; e++) d.v[e] += old.v[e];
    }
#pragma unroll
    for (int e = 0; e < 4; e++) d.v[e] = round_operand(d.v[e]);
    store4(dx, d);
}

// dx (written, or added to if `accumulate`) for every pixel. Grid: (blocks, values).
extern "C" __global__ void __launch_bounds__(256) batch_norm_input_grad_vec(const BatchNormTask* tasks, const int* shape) {
    grid_dependency_sync();
    const BatchNormTask task = tasks[blockIdx.y];
    int rows = row_count(task.space, shape) * task.pixels;
    Channels channels(task);
    if (channels.group >= channels.groups) return;
    channels.read(task);
    GradMeans grad_means(task, channels.at);
    for_each_prefetched<4>(
        blockIdx.x * channels.groups + channels.group, rows, gridDim.x * channels.groups,
        [&](int row) {
            size_t at = (size_t)row * task.channels + channels.at;
            return PixelAndGrad{load4(task.x + at), load4(task.dy + at)};
        },
        [&](int row, PixelAndGrad v) {
#pragma unroll
            for (int e = 0; e < 4; e++) v.dy.v[e] = gated(task, channels.of(v.x, e).y, v.dy.v[e]);
            write_input_grad(task, channels, grad_means, (size_t)row * task.channels, v.x, v.dy);
        });
}

// The same with g = dy of the pooled pixel at the argmax and zero elsewhere; incomplete cells get g = 0. A thread owns
// four channels of a cell. Grid: (blocks, values).
extern "C" __global__ void __launch_bounds__(256) batch_norm_input_grad_pooled(const BatchNormTask* tasks, const int* shape) {
    grid_dependency_sync();
    const BatchNormTask task = tasks[blockIdx.y];
    int height = task.pixels / task.width, lines = (height + 1) / 2, across = (task.width + 1) / 2;
    int cells = row_count(task.space, shape) * lines * across, down = task.width * task.channels;
    Channels channels(task);
    if (channels.group >= channels.groups) return;
    channels.read(task);
    GradMeans grad_means(task, channels.at);
    int step = gridDim.x * channels.groups;
    for (int i = blockIdx.x * channels.groups + channels.group; i < cells; i += step) {
        Cell cell = cell_of(task, i, lines, across);
        CellPixels v = read_cell(task, cell, channels.at);
        Channels4 g[4] = {};
        if (cell.complete()) {
            Channels4 dy = load4(task.dy + cell.pooled + channels.at);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                PooledMax best = pooled_max_of(task, channels, v, e);
                float d = gated(task, best.y, dy.v[e]);
#pragma unroll
                for (int k = 0; k < 4; k++) g[k].v[e] = best.pixel == k ? d : 0.0f;
            }
        }
        write_input_grad(task, channels, grad_means, cell.at, v.x[0], g[0]);
        if (cell.right) write_input_grad(task, channels, grad_means, cell.at + task.channels, v.x[1], g[1]);
        if (cell.below) write_input_grad(task, channels, grad_means, cell.at + down, v.x[2], g[2]);
        if (cell.complete()) write_input_grad(task, channels, grad_means, cell.at + down + task.channels, v.x[3], g[3]);
    }
}
