// Images: convolution, batch normalisation, max pooling. A row of a value is one image, pixel by pixel, channels side by side, so that
// all pixels of all images are the rows of one matrix.

#define DEPTH 32

// y[p, n] = Σ_k patch(p, k) · w[n, k] + bias[n], where patch(p, k) is channel k % from_c of the pixel that tap k / from_c of the window
// over output pixel p sees: line (line(p) · up + i · turn + off) / down for tap line i, nothing where that is no whole number or lies
// outside, and columns alike. With up = stride, turn = 1, off = −padding, down = 1 it is a convolution; with up = 1, turn = −1, off = padding,
// down = stride and turned weights it is the gradient of one's input.
struct ConvolveTask {
    const float *x, *w, *bias;
    float* y;
    int from_h, from_w, from_c, to_h, to_w, n, kernel, up, off, turn, down, accumulate, vec_a, vec_b;
    Space space;
    int pad;
};

// acc += A Bᵀ for one stage; both operands lie in rows of DEPTH + 4.
template <int WM, int WN>
__device__ __forceinline__ void multiply_rows(float (*acc)[WN / 8][4], const float* a, const float* b, int wm, int wn) {
    constexpr int S = DEPTH + 4;
    int lane = threadIdx.x % 32;
    const float* pa = a + (wm + lane % 16) * S + lane / 16 * 4;
    const float* pb = b + (wn + lane / 16 * 8 + lane % 8) * S + lane / 8 % 2 * 4;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 8) {
        FragA fa[WM / 16];
        FragB fb[WN / 8];
        float v[4];
#pragma unroll
        for (int i = 0; i < WM / 16; i++) {
            load_blocks(v, pa + i * 16 * S + k);
            fa[i].set(v[0], v[1], v[2], v[3]);
        }
#pragma unroll
        for (int j = 0; j < WN / 8; j += 2) {
            load_blocks(v, pb + j * 8 * S + k);
            fb[j].set(v[0], v[1]);
            fb[j + 1].set(v[2], v[3]);
        }
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < WN / 8; j++) mma(acc[i][j], fa[i], fb[j]);
    }
}

// A block owns BM output pixels by BN channels. Patches go straight from the images to shared memory: where the windows of its
// pixels begin is found once, and a thread copies the same column of the patches for several pixels.
template <int BM, int BN, int WM, int WN, int STAGES>
__device__ __forceinline__ void convolve(const ConvolveTask* tasks, const int* shape) {
    constexpr int THREADS = (BM / WM) * (BN / WN) * 32, S = DEPTH + 4, STAGE = (BM + BN) * S;
    const ConvolveTask task = tasks[blockIdx.z];
    int pixels = task.to_h * task.to_w, rows = rows_of(task.space, shape) * pixels, m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;
    if (m0 >= rows || n0 >= task.n) return;
    int depth = task.kernel * task.kernel * task.from_c;
    extern __shared__ __align__(16) float shared[];
    __shared__ int image[BM], line[BM], column[BM];
    for (int r = threadIdx.x; r < BM; r += THREADS) {
        int m = m0 + r, pixel = m % pixels;
        image[r] = m < rows ? m / pixels : -1;
        line[r] = pixel / task.to_w * task.up + task.off;
        column[r] = pixel % task.to_w * task.up + task.off;
    }
    __syncthreads();
    // The pixel row r sees at tap (i, j), or none.
    auto seen = [&](int r, int i, int j) -> const float* {
        int y = line[r] + i * task.turn, x = column[r] + j * task.turn;
        if (image[r] < 0 || y < 0 || x < 0) return nullptr;
        if (task.down > 1) {
            if (y % task.down || x % task.down) return nullptr;
            y /= task.down;
            x /= task.down;
        }
        if (y >= task.from_h || x >= task.from_w) return nullptr;
        return task.x + (((size_t)image[r] * task.from_h + y) * task.from_w + x) * task.from_c;
    };
    float acc[WM / 16][WN / 8][4] = {};
    int warp = threadIdx.x / 32, wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
    int at = 0, loaded = 0;
    auto load = [&]() {
        if (at < depth) {
            float* stage = shared + loaded % STAGES * STAGE;
            int each = task.vec_a ? 4 : 1, across = DEPTH / each, offset = threadIdx.x % across * each, k = at + offset;
            int tap = k / task.from_c, c = k % task.from_c, i = tap / task.kernel, j = tap % task.kernel;
            for (int r = threadIdx.x / across; r < BM; r += THREADS / across) {
                const float* from = k < depth ? seen(r, i, j) : nullptr;
                float* to = stage + r * S + offset;
                if (task.vec_a) copy16(to, from ? from + c : task.x, from != nullptr);
                else copy4(to, from ? from + c : task.x, from != nullptr);
            }
            load_tile<BN, DEPTH, S, THREADS>(stage + BM * S, task.w, depth, n0, task.n, at, depth, task.vec_b);
            loaded++;
            at += DEPTH;
        }
        copies_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) load();
    for (int step = 0; step < loaded; step++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        // The stage that is loaded now was read before the barrier just passed.
        load();
        const float* stage = shared + step % STAGES * STAGE;
        multiply_rows<WM, WN>(acc, stage, stage + BM * S, wm, wn);
    }
    int g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int m = m0 + wm + i * 16 + g + e / 2 * 8, n = n0 + wn + j * 8 + 2 * t + e % 2;
                if (m >= rows || n >= task.n) continue;
                float* y = task.y + (size_t)m * task.n + n;
                float v = acc[i][j][e] + (task.bias ? task.bias[n] : 0.0f);
                *y = task.accumulate ? *y + v : v;
            }
}

extern "C" __global__ void __launch_bounds__(128) image_convolve_narrow(const ConvolveTask* t, const int* s) { in_turn(); convolve<128, 32, 32, 32, 3>(t, s); }
extern "C" __global__ void __launch_bounds__(256) image_convolve_wide(const ConvolveTask* t, const int* s) { in_turn(); convolve<128, 64, 32, 32, 3>(t, s); }

// Weights [outputs, taps, channels] as [channels, taps, outputs].
struct TurnTask {
    const float* from;
    float* to;
    int outputs, taps, channels, pad;
};

extern "C" __global__ void image_turn(const TurnTask* tasks, const int* shape) {
    in_turn();
    const TurnTask task = tasks[blockIdx.y];
    int total = task.outputs * task.taps * task.channels;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int o = i % task.outputs, tap = i / task.outputs % task.taps, c = i / (task.outputs * task.taps);
        task.to[i] = task.from[((size_t)o * task.taps + tap) * task.channels + c];
    }
}

// A part of dW = dyᵀ · patches and of the bias's gradient, over one of `splits` stretches of pixels; part p is written to
// parts + p · (n · k + n).
struct PatchTask {
    const float *dy, *x;
    float* parts;
    int from_h, from_w, from_c, to_h, to_w, n, kernel, stride, padding, splits, vec_dy, vec_x;
    Space space;
    int pad;
};

// acc += Aᵀ B for one stage; both operands lie as [DEPTH][columns].
template <int WM, int WN, int SA, int SB>
__device__ __forceinline__ void multiply_columns(float (*acc)[WN / 8][4], const float* a, const float* b, int wm, int wn) {
    int g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 8) {
        FragA fa[WM / 16];
        FragB fb[WN / 8];
#pragma unroll
        for (int i = 0; i < WM / 16; i++) {
            const float* p = a + (k + t) * SA + wm + i * 16 + g;
            fa[i].set(p[0], p[8], p[4 * SA], p[4 * SA + 8]);
        }
#pragma unroll
        for (int j = 0; j < WN / 8; j++) {
            const float* p = b + (k + t) * SB + wn + j * 8 + g;
            fb[j].set(p[0], p[4 * SB]);
        }
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < WN / 8; j++) mma(acc[i][j], fa[i], fb[j]);
    }
}

template <int BM, int BN, int WM, int WN, int STAGES>
__device__ __forceinline__ void patch_weights(const PatchTask* tasks, const int* shape) {
    constexpr int THREADS = (BM / WM) * (BN / WN) * 32, SA = BM + 8, SB = BN + 8, STAGE = DEPTH * (SA + SB);
    const PatchTask task = tasks[blockIdx.z];
    int depth = task.kernel * task.kernel * task.from_c;
    int tiles_k = (depth + BN - 1) / BN, tiles = ((task.n + BM - 1) / BM) * tiles_k, split = blockIdx.y;
    if ((int)blockIdx.x >= tiles || split >= task.splits) return;
    int n0 = blockIdx.x / tiles_k * BM, k0 = blockIdx.x % tiles_k * BN;
    int pixels = task.to_h * task.to_w, rows = rows_of(task.space, shape) * pixels;
    int each = ((rows + task.splits - 1) / task.splits + DEPTH - 1) / DEPTH * DEPTH;
    int first = min(rows, split * each), last = min(rows, first + each);
    extern __shared__ __align__(16) float shared[];
    float acc[WM / 16][WN / 8][4] = {};
    float sum = 0.0f;
    int warp = threadIdx.x / 32, wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
    int steps = (last - first + DEPTH - 1) / DEPTH, loaded = 0;
    // A thread copies the same column of the patches for several pixels.
    int once = task.vec_x ? 4 : 1, across = BN / once, offset = threadIdx.x % across * once, k = k0 + offset;
    int tap = k / task.from_c, c = k % task.from_c, i = tap / task.kernel - task.padding, j = tap % task.kernel - task.padding;
    auto load = [&]() {
        if (loaded < steps) {
            int row = first + loaded * DEPTH;
            float* stage = shared + loaded % STAGES * STAGE;
            load_tile<DEPTH, BM, SA, THREADS>(stage, task.dy, task.n, row, last, n0, task.n, task.vec_dy);
            for (int r = threadIdx.x / across; r < DEPTH; r += THREADS / across) {
                int m = row + r, pixel = m % pixels;
                int y = pixel / task.to_w * task.stride + i, x = pixel % task.to_w * task.stride + j;
                bool ok = m < last && k < depth && y >= 0 && x >= 0 && y < task.from_h && x < task.from_w;
                const float* from =
                    ok ? task.x + (((size_t)(m / pixels) * task.from_h + y) * task.from_w + x) * task.from_c + c : task.x;
                float* to = stage + DEPTH * SA + r * SB + offset;
                if (task.vec_x) copy16(to, from, ok);
                else copy4(to, from, ok);
            }
            loaded++;
        }
        copies_commit();
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) load();
    for (int step = 0; step < steps; step++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        load();
        const float* stage = shared + step % STAGES * STAGE;
        multiply_columns<WM, WN, SA, SB>(acc, stage, stage + DEPTH * SA, wm, wn);
        if (k0 == 0 && threadIdx.x < BM)
            for (int r = 0; r < DEPTH; r++) sum += stage[r * SA + threadIdx.x];
    }
    float* out = task.parts + (size_t)split * ((size_t)task.n * depth + task.n);
    int g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int a = 0; a < WM / 16; a++)
#pragma unroll
        for (int b = 0; b < WN / 8; b++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int n = n0 + wm + a * 16 + g + e / 2 * 8, kk = k0 + wn + b * 8 + 2 * t + e % 2;
                if (n < task.n && kk < depth) out[(size_t)n * depth + kk] = acc[a][b][e];
            }
    if (k0 == 0 && threadIdx.x < BM && n0 + threadIdx.x < task.n) out[(size_t)task.n * depth + n0 + threadIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(64) image_weights_narrow(const PatchTask* t, const int* s) { in_turn(); patch_weights<32, 32, 16, 32, 3>(t, s); }
extern "C" __global__ void __launch_bounds__(128) image_weights_wide(const PatchTask* t, const int* s) { in_turn(); patch_weights<64, 64, 32, 32, 3>(t, s); }

// Batch normalisation of one value's images; all values of an operation share statistics. `each` pixels go to a block of the sums.
struct BatchNormTask {
    const float *x, *dy, *gain, *shift, *stats, *means;
    float *y, *dx;
    // [block][2 · channels].
    double* parts;
    int channels, pixels, relu, accumulate, each, pad;
    Space space;
    int pad2;
};

struct Normalised {
    // x̂ and γ x̂ + β.
    float hat, y;
};

__device__ __forceinline__ Normalised normalised(const BatchNormTask& task, float x, int c) {
    float hat = (x - task.stats[c]) * task.stats[task.channels + c];
    return {hat, fmaf(hat, task.gain[c], task.shift[c])};
}

// Two sums of every channel over the pixels of a block, which leaves a part even where it has none. Threads side by side take channels
// side by side; sums are double, so that a variance loses nothing.
template <typename Terms>
__device__ __forceinline__ void channel_sums(const BatchNormTask& task, const int* shape, Terms terms) {
    __shared__ double first_sums[256], second_sums[256];
    int rows = rows_of(task.space, shape) * task.pixels;
    int begin = min(rows, (int)blockIdx.x * task.each), end = min(rows, begin + task.each);
    int across = min(task.channels, 256), groups = 256 / across, group = threadIdx.x / across;
    double* out = task.parts + (size_t)blockIdx.x * 2 * task.channels;
    for (int c0 = 0; c0 < task.channels; c0 += across) {
        int c = c0 + threadIdx.x % across;
        bool mine = group < groups && c < task.channels;
        double a = 0.0, b = 0.0;
        if (mine)
            for (int row = begin + group; row < end; row += groups) {
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
        Normalised n = normalised(task, task.x[at], c);
        return make_float2(task.relu && !(n.y > 0.0f) ? 0.0f : task.dy[at], n.hat);
    });
}

// What becomes of the sums; `values` are the tasks that left them, `blocks` parts each.
struct ChannelTask {
    const BatchNormTask* values;
    const double* parts;
    const float *mean, *variance;
    float *stats, *means, *d_gain, *d_shift, *d_mean, *d_variance;
    int count, blocks, channels, pad;
};

#define BATCH_NORM_EPSILON 1e-5

// Sums of a channel over all parts, lane by lane and then across the warp; and the number of pixels.
__device__ __forceinline__ double3 channel_totals(const ChannelTask& task, const int* shape, int c) {
    double a = 0.0, b = 0.0, n = 0.0;
    for (int p = threadIdx.x; p < task.count * task.blocks; p += 32) {
        a += task.parts[(size_t)p * 2 * task.channels + c];
        b += task.parts[((size_t)p * 2 + 1) * task.channels + c];
    }
    for (int i = 16; i > 0; i /= 2) {
        a += __shfl_xor_sync(~0u, a, i);
        b += __shfl_xor_sync(~0u, b, i);
    }
    for (int v = 0; v < task.count; v++) n += (double)rows_of(task.values[v].space, shape) * task.values[v].pixels;
    return make_double3(a, b, n);
}

// One warp per channel: mean and one over the standard deviation of the batch.
extern "C" __global__ void __launch_bounds__(32) image_statistics(const ChannelTask* tasks, const int* shape) {
    in_turn();
    const ChannelTask task = *tasks;
    int c = blockIdx.x;
    double3 t = channel_totals(task, shape, c);
    if (threadIdx.x == 0) {
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

// One warp per channel: gradients of gain and shift, minus the means that the gradient of the input takes off, and in the gradients
// of the running averages what they follow.
extern "C" __global__ void __launch_bounds__(32) image_gradients(const ChannelTask* tasks, const int* shape) {
    in_turn();
    const ChannelTask task = *tasks;
    int c = blockIdx.x;
    double3 t = channel_totals(task, shape, c);
    if (threadIdx.x == 0) {
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
        float y = normalised(task, task.x[i], i % task.channels).y;
        task.y[i] = task.relu && y <= 0.0f ? 0.0f : y;
    }
}

// dx = γ / std · (g − mean(g) − x̂ · mean(g x̂)).
extern "C" __global__ void image_normalise_backward(const BatchNormTask* tasks, const int* shape) {
    in_turn();
    const BatchNormTask task = tasks[blockIdx.y];
    u32 total = (u32)rows_of(task.space, shape) * task.pixels * task.channels;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int c = i % task.channels;
        Normalised n = normalised(task, task.x[i], c);
        float g = task.relu && !(n.y > 0.0f) ? 0.0f : task.dy[i];
        float d = (g + task.means[c] + n.hat * task.means[task.channels + c]) * task.gain[c] * task.stats[task.channels + c];
        task.dx[i] = task.accumulate ? task.dx[i] + d : d;
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
