// Convolutions of images of few channels, such as the first of an encoder. What they cost is their outputs, so that the images have to be as good as
// free: a block holds those lines of them that its windows see, zeros around them included, and the matrix units' operands are read straight from there,
// every tap a fixed number of places away from where a window begins.

// All images lie one below the other. A block takes `lines` lines of outputs at a time, whichever images they belong to.
struct Windows {
    int from_h, from_w, from_c, to_h, to_w, n, kernel, stride, padding, lines;
    // Numbers of the longest band.
    int held;
    Space space;

    // Lines of an image and numbers of a line that windows see, zeros around the image included.
    __device__ __forceinline__ int tall() const { return (to_h - 1) * stride + kernel; }
    __device__ __forceinline__ int wide() const { return ((to_w - 1) * stride + kernel) * from_c; }
    __device__ __forceinline__ int depth() const { return kernel * kernel * from_c; }
    // The line at which windows of an output line begin.
    __device__ __forceinline__ int above(int line) const { return line / to_h * tall() + line % to_h * stride; }
    // Where the number that column k of the weights belongs to lies, in bytes from where the window begins. Columns that do not exist see the first.
    __device__ __forceinline__ int offset(int k) const {
        int tap = k / from_c;
        return k < depth() ? (tap / kernel * wide() + tap % kernel * from_c + k % from_c) * 4 : 0;
    }
};

__device__ __forceinline__ float seen_from(const char* window, int offset) { return *(const float*)(window + offset); }

// Calls `use(to, from, exists)` for what this thread copies of the lines that output lines `first` on see: a number's place in the band and in the images.
template <typename Use>
__device__ __forceinline__ void each_of_band(const Windows& w, int first, int lines, Use use) {
    int tall = w.tall(), wide = w.wide(), begin = w.above(first), end = w.above(first + lines - 1) + w.kernel;
    int line = w.from_w * w.from_c, edge = w.padding * w.from_c;
    for (int l = begin + threadIdx.x / 32; l < end; l += blockDim.x / 32) {
        int image = l / tall, y = l % tall - w.padding;
        bool inside = y >= 0 && y < w.from_h;
        size_t from = ((size_t)image * w.from_h + (inside ? y : 0)) * line;
#pragma unroll 4
        for (int i = threadIdx.x % 32; i < wide; i += 32) {
            bool ok = inside && i >= edge && i - edge < line;
            use((l - begin) * wide + i, ok ? from + (i - edge) : 0, ok);
        }
    }
}

// Starts copying the lines that output lines `first` on see, and notes where the windows of each of these begin.
__device__ __forceinline__ void load_band(const Windows& w, const float* x, int first, int lines, float* band, int* starts) {
    each_of_band(w, first, lines, [&](int to, size_t from, bool ok) { copy4(band + to, x + from, ok); });
    int begin = w.above(first), wide = w.wide();
    for (int l = threadIdx.x; l < lines; l += blockDim.x) starts[l] = (w.above(first + l) - begin) * wide;
}

// Rounds what this thread copied, after that has arrived and before the barrier that shows it to others.
__device__ __forceinline__ void round_band(const Windows& w, int first, int lines, float* band) {
#if PRECISION == 1
    each_of_band(w, first, lines, [&](int to, size_t, bool) { band[to] = operand(band[to]); });
#endif
}

// The output pixels of a band, line after line.
struct BandPixels {
    const int* starts;
    int across, apart, last;
    float inverse;
    __device__ __forceinline__ BandPixels(const Windows& w, int lines, const int* starts)
        : starts(starts), across(w.to_w), apart(w.stride * w.from_c), last(lines * w.to_w - 1), inverse(1.0f / w.to_w) {}
    // Where a pixel's window begins; beyond the last pixel, that one's. Pixels are so few that the quotient is exact.
    __device__ __forceinline__ int window(int pixel) const {
        int p = min(pixel, last), line = (int)((p + 0.5f) * inverse);
        return starts[line] + (p - line * across) * apart;
    }
};

// y[p, n] = Σ_k patch(p, k) · w[n, k] + bias[n]. Where `moments` are wanted, a block leaves Σ y and Σ y² of every channel over its pixels in its part, [block][2 · n].
struct FewTask {
    const float *x, *w, *bias;
    float* y;
    double* moments;
    Windows windows;
};

// A block owns a band by 32 channels, a warp 32 pixels at a time. Weights lie as lanes read them. The columns of a product are dealt to channels so that a lane
// has four of them side by side: column 2t + e of product j is channel 16 · (j / 2) + 4t + 2 · (j % 2) + e.
__device__ __forceinline__ void convolve_few(const FewTask* tasks, const int* shape) {
    constexpr int WARPS = 4;
    const FewTask task = tasks[blockIdx.z];
    const Windows& w = task.windows;
    int all = rows_of(w.space, shape) * w.to_h, first = blockIdx.x * w.lines, n0 = blockIdx.y * 32;
    if (first >= all) return;
    int lines = min(w.lines, all - first), depth = w.depth(), steps = (depth + 7) / 8;
    extern __shared__ __align__(16) float shared[];
    float* weights = shared;
    int *offsets = (int*)(weights + steps * 256), *starts = offsets + steps * 8;
    float* band = (float*)(starts + w.lines);
    load_band(w, task.x, first, lines, band, starts);
    copies_commit();
    // [step][half of the channels][lane][product, tap].
#pragma unroll 4
    for (int i = threadIdx.x; i < steps * 256; i += WARPS * 32) {
        int half = i / 128 % 2, column = i / 16 % 8, k = i / 256 * 8 + i / 4 % 4 + i % 2 * 4;
        int n = n0 + half * 16 + column / 2 * 4 + i / 2 % 2 * 2 + column % 2;
        weights[i] = k < depth && n < w.n ? operand(task.w[(size_t)n * depth + k]) : 0.0f;
    }
    // [step][lane % 4][tap].
    for (int i = threadIdx.x; i < steps * 8; i += WARPS * 32) offsets[i] = w.offset(i / 8 * 8 + i / 2 % 4 + i % 2 * 4);
    copies_wait<0>();
    round_band(w, first, lines, band);
    __syncthreads();

    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const BandPixels pixels(w, lines, starts);
    bool chunks = w.n % 4 == 0;
    // Of channels 16 · (i / 4) + 4t + i % 4, and over how many pixels.
    Moments moments[8];
    int count = 0;
    for (int m = warp * 32; m <= pixels.last; m += WARPS * 32) {
        const char* a[2][2];
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) a[i][h] = (const char*)(band + pixels.window(m + i * 16 + h * 8 + g));
        Sums<2, 4> sums;
#pragma unroll 2
        for (int step = 0; step < steps; step++) {
            int2 at = ((const int2*)offsets)[step * 4 + t];
            FragA fa[2];
            FragB fb[4];
#pragma unroll
            for (int i = 0; i < 2; i++) take(fa[i], seen_from(a[i][0], at.x), seen_from(a[i][1], at.x), seen_from(a[i][0], at.y), seen_from(a[i][1], at.y));
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float4 v = ((const float4*)weights)[(step * 2 + half) * 32 + lane];
                take(fb[2 * half], v.x, v.y);
                take(fb[2 * half + 1], v.z, v.w);
            }
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) mma(sums.part[i][j], fa[i], fb[j]);
            if (step % 4 == 3) sums.end_part();
        }
        sums.end_part();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int n = n0 + half * 16 + 4 * t;
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int p = m + i * 16 + h * 8 + g;
                    if (p > pixels.last) continue;
                    float v[4];
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        v[e] = sums.at(i, half * 2 + e / 2, 2 * h + e % 2);
                        if (task.bias && n + e < w.n) v[e] += task.bias[n + e];
                        if (i + h == 0 && m == warp * 32) moments[half * 4 + e].from = v[e];
                        moments[half * 4 + e].add(v[e]);
                    }
                    float* y = task.y + ((size_t)first * w.to_w + p) * w.n + n;
                    if (chunks) {
                        if (n < w.n) *(float4*)y = make_float4(v[0], v[1], v[2], v[3]);
                    } else {
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            if (n + e < w.n) y[e] = v[e];
                    }
                }
        }
        count += max(0, min(4, (pixels.last - m - g + 8) / 8));
    }
    if (!task.moments) return;
    __shared__ double seen[WARPS][2][32];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        double sum = moments[i].sum(count), squares = moments[i].squares(count);
#pragma unroll
        for (int other = 4; other < 32; other *= 2) {
            sum += __shfl_xor_sync(~0u, sum, other);
            squares += __shfl_xor_sync(~0u, squares, other);
        }
        if (g == 0) {
            seen[warp][0][i / 4 * 16 + 4 * t + i % 4] = sum;
            seen[warp][1][i / 4 * 16 + 4 * t + i % 4] = squares;
        }
    }
    __syncthreads();
    int kind = threadIdx.x / 32, n = n0 + lane;
    if (kind < 2 && n < w.n) {
        double sum = 0.0;
#pragma unroll
        for (int i = 0; i < WARPS; i++) sum += seen[i][kind][lane];
        task.moments[((size_t)blockIdx.x * 2 + kind) * w.n + n] = sum;
    }
}

// Blocks whose registers have to fit a multiprocessor.
#if PRECISION == 0
#define FEW_BLOCKS 3
#define FEW_WEIGHT_BLOCKS 1
#else
#define FEW_BLOCKS 4
#define FEW_WEIGHT_BLOCKS 2
#endif

extern "C" __global__ void __launch_bounds__(128, FEW_BLOCKS) image_few(const FewTask* t, const int* s) { in_turn(); convolve_few(t, s); }

// A part of the gradient of such weights, over every `splits`th band; part p is written to parts + p · (n · k + n). Channels of dy in whole chunks.
struct FewWeightsTask {
    const float *dy, *x;
    float* parts;
    Windows windows;
    int splits, pad;
};

// A block owns 32 channels of dy and all columns of the weights. Warps come in `groups`, each with the next 8 · COUNT columns, and the warps of a group share the pixels of
// a band, sixteen at a time. A lane reads the gradients it multiplies straight from memory, four channels side by side and sixteen pixels ahead: row g of product i is
// channel 4g + 2i and row g + 8 the next. Of the images, the next band is on its way while this one is multiplied.
template <int COUNT>
__device__ __forceinline__ void few_weights(const FewWeightsTask* tasks, const int* shape) {
    const FewWeightsTask task = tasks[blockIdx.z];
    const Windows& w = task.windows;
    int depth = w.depth(), groups = (depth + 8 * COUNT - 1) / (8 * COUNT), n0 = blockIdx.x * 32, split = blockIdx.y;
    if (n0 >= w.n || split >= task.splits) return;
    int all = rows_of(w.space, shape) * w.to_h, bands = (all + w.lines - 1) / w.lines;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int group = warp % groups, member = warp / groups, members = blockDim.x / 32 / groups;
    extern __shared__ __align__(16) float shared[];
    // The sums of all warps, and two bands after where their lines begin.
    float* sum = shared;
    int* starts = (int*)(sum + 32 * depth);
    float* bands_held = (float*)(starts + 2 * w.lines);
    auto first_of = [&](int band) { return band * w.lines; };
    auto lines_of = [&](int band) { return min(w.lines, all - first_of(band)); };
    auto load = [&](int band, int stage) {
        if (band < bands) load_band(w, task.x, first_of(band), lines_of(band), bands_held + stage * w.held, starts + stage * w.lines);
        copies_commit();
    };
    bool in_n = n0 + 4 * g < w.n;
    int at[COUNT];
#pragma unroll
    for (int j = 0; j < COUNT; j++) at[j] = w.offset((group * COUNT + j) * 8 + g);
    Sums<2, COUNT> sums;
    load(split, 0);
    for (int band = split, stage = 0; band < bands; band += task.splits, stage ^= 1) {
        int first = first_of(band), lines = lines_of(band);
        const BandPixels pixels(w, lines, starts + stage * w.lines);
        // Pixels t, t + 4, t + 8 and t + 12 from p on.
        const float* dy = task.dy + ((size_t)first * w.to_w + t) * w.n + n0 + 4 * g;
        auto read = [&](Four* v, int p) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                bool ok = in_n && p + t + 4 * i <= pixels.last;
                v[i] = ok ? read_four(dy + (size_t)(p + 4 * i) * w.n) : Four{};
            }
        };
        Four next[4];
        read(next, member * 16);
        // The other stage was read before the last barrier.
        load(band + task.splits, stage ^ 1);
        copies_wait<1>();
        float* held = bands_held + stage * w.held;
        round_band(w, first, lines, held);
        __syncthreads();
        for (int p = member * 16; p <= pixels.last; p += members * 16) {
            Four now[4];
#pragma unroll
            for (int i = 0; i < 4; i++) now[i] = next[i];
            read(next, p + members * 16);
#pragma unroll
            for (int step = 0; step < 2; step++) {
                const Four &low = now[2 * step], &high = now[2 * step + 1];
                const char *near = (const char*)(held + pixels.window(p + step * 8 + t)), *far = (const char*)(held + pixels.window(p + step * 8 + t + 4));
                FragA fa[2];
#pragma unroll
                for (int i = 0; i < 2; i++) fa[i].set(low.v[2 * i], low.v[2 * i + 1], high.v[2 * i], high.v[2 * i + 1]);
#pragma unroll
                for (int j = 0; j < COUNT; j++) {
                    FragB fb;
                    take(fb, seen_from(near, at[j]), seen_from(far, at[j]));
#pragma unroll
                    for (int i = 0; i < 2; i++) mma(sums.part[i][j], fa[i], fb);
                }
            }
            sums.end_part();
        }
        __syncthreads();
    }
    // The warps of a group one after the other.
    for (int turn = 0; turn < members; turn++) {
        if (member == turn)
#pragma unroll
            for (int j = 0; j < COUNT; j++)
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int n = 4 * g + 2 * i + e / 2, k = (group * COUNT + j) * 8 + 2 * t + e % 2;
                        if (k >= depth) continue;
                        float* to = sum + n * depth + k;
                        *to = turn ? *to + sums.at(i, j, e) : sums.at(i, j, e);
                    }
        __syncthreads();
    }
    float* out = task.parts + (size_t)split * ((size_t)w.n * depth + w.n) + (size_t)n0 * depth;
    for (int i = threadIdx.x; i < min(32, w.n - n0) * depth; i += blockDim.x) out[i] = sum[i];
}

extern "C" __global__ void __launch_bounds__(256, FEW_WEIGHT_BLOCKS) image_few_weights_2(const FewWeightsTask* t, const int* s) { in_turn(); few_weights<2>(t, s); }
extern "C" __global__ void __launch_bounds__(256, FEW_WEIGHT_BLOCKS) image_few_weights_4(const FewWeightsTask* t, const int* s) { in_turn(); few_weights<4>(t, s); }
extern "C" __global__ void __launch_bounds__(256, FEW_WEIGHT_BLOCKS) image_few_weights_7(const FewWeightsTask* t, const int* s) { in_turn(); few_weights<7>(t, s); }
