// Convolutions of images of few channels, such as an encoder's first. Writing the outputs bounds them. A block holds a
// band of input lines with its zero padding in shared memory. Fragments are read from the band: every tap is a fixed
// offset from the window's origin.

// Geometry of a band: input images [from_h, from_w, from_c], output images [to_h, to_w, n]. All images lie below one
// another; a block takes `lines` output lines at a time, of any images.
struct BandGeometry {
    int from_h, from_w, from_c, to_h, to_w, n, kernel, stride, padding, lines;
    // Numbers of the longest band.
    int band_numbers;
    Space space;

    // Lines of an image and numbers of a line, padding included.
    __device__ __forceinline__ int padded_height() const { return (to_h - 1) * stride + kernel; }
    __device__ __forceinline__ int padded_width() const { return ((to_w - 1) * stride + kernel) * from_c; }
    __device__ __forceinline__ int depth() const { return kernel * kernel * from_c; }
    // The first input line of an output line's windows.
    __device__ __forceinline__ int first_input_line(int line) const { return line / to_h * padded_height() + line % to_h * stride; }
    // Byte offset of weight column k's input from the window's origin. Missing columns read the first.
    __device__ __forceinline__ int offset(int k) const {
        int tap = k / from_c;
        return k < depth() ? (tap / kernel * padded_width() + tap % kernel * from_c + k % from_c) * 4 : 0;
    }
};

// The number `offset` bytes after a window's origin.
__device__ __forceinline__ float load_at(const char* window, int offset) { return *(const float*)(window + offset); }

// Calls `use(to, from, valid)` for the numbers this thread copies of the input lines of output lines `first` on: index
// in the band, index in the images.
template <typename Use>
__device__ __forceinline__ void for_each_band_element(const BandGeometry& w, int first, int lines, Use use) {
    int padded_height = w.padded_height(), padded_width = w.padded_width(), begin = w.first_input_line(first), end = w.first_input_line(first + lines - 1) + w.kernel;
    int line = w.from_w * w.from_c, edge = w.padding * w.from_c;
    for (int l = begin + threadIdx.x / 32; l < end; l += blockDim.x / 32) {
        int image = l / padded_height, y = l % padded_height - w.padding;
        bool inside = y >= 0 && y < w.from_h;
        size_t from = ((size_t)image * w.from_h + (inside ? y : 0)) * line;
#pragma unroll 4
        for (int i = threadIdx.x % 32; i < padded_width; i += 32) {
            bool valid = inside && i >= edge && i - edge < line;
            use((l - begin) * padded_width + i, valid ? from + (i - edge) : 0, valid);
        }
    }
}

// Starts copying the input lines of output lines `first` on, and stores the window origin of each line.
__device__ __forceinline__ void load_band(const BandGeometry& w, const float* x, int first, int lines, float* band, int* starts) {
    for_each_band_element(w, first, lines, [&](int to, size_t from, bool valid) { cp_async_4(band + to, x + from, valid); });
    int begin = w.first_input_line(first), padded_width = w.padded_width();
    for (int l = threadIdx.x; l < lines; l += blockDim.x) starts[l] = (w.first_input_line(first + l) - begin) * padded_width;
}

// Rounds the numbers this thread copied, after their arrival and before the barrier that publishes them.
__device__ __forceinline__ void round_band(const BandGeometry& w, int first, int lines, float* band) {
#if PRECISION == 1
    for_each_band_element(w, first, lines, [&](int to, size_t, bool) { band[to] = round_operand(band[to]); });
#endif
}

// The output pixels of a band, line after line.
struct BandPixels {
    const int* starts;
    // Pixels of a line, numbers between neighbouring windows, the last pixel, and 1 / across.
    int across, apart, last;
    float inverse;
    __device__ __forceinline__ BandPixels(const BandGeometry& w, int lines, const int* starts)
        : starts(starts), across(w.to_w), apart(w.stride * w.from_c), last(lines * w.to_w - 1), inverse(1.0f / w.to_w) {}
    // A pixel's window origin; beyond the last pixel, the last one's. Pixels are few enough for the quotient to be
    // exact.
    __device__ __forceinline__ int window(int pixel) const {
        int p = min(pixel, last), line = (int)((p + 0.5f) * inverse);
        return starts[line] + (p - line * across) * apart;
    }
};

// y[p, n] = Σ_k patch(p, k) · w[n, k] + bias[n]. If `moments` is set, a block writes Σ y and Σ y² of every channel over
// its pixels, [block][2 · n]. Shapes are those of ConvolutionTask.
struct SmallChannelTask {
    const float *x, *w, *bias;
    float* y;
    double* moments;
    BandGeometry geometry;
};

// The product of SmallChannelTask. Grid: (bands, channels / 32, tasks). A block owns a band by 32 channels of y, a warp
// 32 pixels at a time. y and `moments` are written. Shared memory: weights, offsets of their columns, line origins,
// band. Columns of a product are permuted so that a lane owns four neighbouring channels. Column 2t + e of product j is
// channel 16 · (j / 2) + 4t + 2 · (j % 2) + e.
__device__ __forceinline__ void small_c_convolution(const SmallChannelTask* tasks, const int* shape) {
    constexpr int WARPS = 4;
    const SmallChannelTask task = tasks[blockIdx.z];
    const BandGeometry& w = task.geometry;
    int all = row_count(w.space, shape) * w.to_h, first = blockIdx.x * w.lines, n0 = blockIdx.y * 32;
    if (first >= all) return;
    int lines = min(w.lines, all - first), depth = w.depth(), steps = (depth + 7) / 8;
    extern __shared__ __align__(16) float shared[];
    float* weights = shared;
    int *offsets = (int*)(weights + steps * 256), *starts = offsets + steps * 8;
    float* band = (float*)(starts + w.lines);
    load_band(w, task.x, first, lines, band, starts);
    cp_async_commit();
    // Weights: [step][half of the channels][lane][product, tap].
#pragma unroll 4
    for (int i = threadIdx.x; i < steps * 256; i += WARPS * 32) {
        int half = i / 128 % 2, column = i / 16 % 8, k = i / 256 * 8 + i / 4 % 4 + i % 2 * 4;
        int n = n0 + half * 16 + column / 2 * 4 + i / 2 % 2 * 2 + column % 2;
        weights[i] = k < depth && n < w.n ? round_operand(task.w[(size_t)n * depth + k]) : 0.0f;
    }
    // Offsets: [step][lane % 4][tap].
    for (int i = threadIdx.x; i < steps * 8; i += WARPS * 32) offsets[i] = w.offset(i / 8 * 8 + i / 2 % 4 + i % 2 * 4);
    cp_async_wait<0>();
    round_band(w, first, lines, band);
    __syncthreads();

    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const BandPixels pixels(w, lines, starts);
    bool chunks = w.n % 4 == 0;
    // Moments of channels 16 · (i / 4) + 4t + i % 4, and the number of pixels.
    Moments moments[8];
    int count = 0;
    for (int m = warp * 32; m <= pixels.last; m += WARPS * 32) {
        const char* a[2][2];
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) a[i][h] = (const char*)(band + pixels.window(m + i * 16 + h * 8 + g));
        Accumulators<2, 4> sums;
#pragma unroll 2
        for (int step = 0; step < steps; step++) {
            int2 at = ((const int2*)offsets)[step * 4 + t];
            FragA fa[2];
            FragB fb[4];
#pragma unroll
            for (int i = 0; i < 2; i++) set_rounded(fa[i], load_at(a[i][0], at.x), load_at(a[i][1], at.x), load_at(a[i][0], at.y), load_at(a[i][1], at.y));
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float4 v = ((const float4*)weights)[(step * 2 + half) * 32 + lane];
                set_rounded(fb[2 * half], v.x, v.y);
                set_rounded(fb[2 * half + 1], v.z, v.w);
            }
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) mma(sums.partial[i][j], fa[i], fb[j]);
            if (step % 4 == 3) sums.flush_partial();
        }
        sums.flush_partial();
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
                        if (i + h == 0 && m == warp * 32) moments[half * 4 + e].origin = v[e];
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
    __shared__ double warp_moments[WARPS][2][32];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        double sum = moments[i].sum(count), squares = moments[i].squares(count);
#pragma unroll
        for (int other = 4; other < 32; other *= 2) {
            sum += __shfl_xor_sync(~0u, sum, other);
            squares += __shfl_xor_sync(~0u, squares, other);
        }
        if (g == 0) {
            warp_moments[warp][0][i / 4 * 16 + 4 * t + i % 4] = sum;
            warp_moments[warp][1][i / 4 * 16 + 4 * t + i % 4] = squares;
        }
    }
    __syncthreads();
    int kind = threadIdx.x / 32, n = n0 + lane;
    if (kind < 2 && n < w.n) {
        double sum = 0.0;
#pragma unroll
        for (int i = 0; i < WARPS; i++) sum += warp_moments[i][kind][lane];
        task.moments[((size_t)blockIdx.x * 2 + kind) * w.n + n] = sum;
    }
}

// Blocks per multiprocessor, limited by registers.
#if PRECISION == 0
#define SMALL_C_BLOCKS 3
#define SMALL_C_WEIGHT_GRAD_BLOCKS 1
#else
#define SMALL_C_BLOCKS 4
#define SMALL_C_WEIGHT_GRAD_BLOCKS 2
#endif

extern "C" __global__ void __launch_bounds__(128, SMALL_C_BLOCKS) convolution_small_c(
    const SmallChannelTask* tasks, const int* shape) {
    grid_dependency_sync();
    small_c_convolution(tasks, shape);
}

// A partial sum of dW over every `splits`th band; partial sum p is written to partials + p · (n · k + n). n is a
// multiple of four.
struct SmallChannelWeightGradTask {
    const float *dy, *x;
    float* partials;
    BandGeometry geometry;
    int splits, pad;
};

// dW[n, k] = Σ_p dy[p, n] patch(p, k). Grid: (channels / 32, splits, tasks). A block owns 32 channels of dy and all
// columns of W. Warps form `groups` of 8 · COUNT columns each. The warps of a group divide a band's pixels, sixteen at
// a time, and their sums are added in order. Partial sums are written. A lane reads dy directly from global memory,
// four channels at once and sixteen pixels ahead. Row g of product i is channel 4g + 2i, row g + 8 the next. The next
// band loads during the products.
template <int COUNT>
__device__ __forceinline__ void small_c_weight_grad(const SmallChannelWeightGradTask* tasks, const int* shape) {
    const SmallChannelWeightGradTask task = tasks[blockIdx.z];
    const BandGeometry& w = task.geometry;
    int depth = w.depth(), groups = (depth + 8 * COUNT - 1) / (8 * COUNT), n0 = blockIdx.x * 32, split = blockIdx.y;
    if (n0 >= w.n || split >= task.splits) return;
    int all = row_count(w.space, shape) * w.to_h, bands = (all + w.lines - 1) / w.lines;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int group = warp % groups, member = warp / groups, members = blockDim.x / 32 / groups;
    extern __shared__ __align__(16) float shared[];
    // dW of the block's channels [32, depth], then line origins and data of two bands.
    float* block_sums = shared;
    int* starts = (int*)(block_sums + 32 * depth);
    float* bands_held = (float*)(starts + 2 * w.lines);
    auto first_of = [&](int band) { return band * w.lines; };
    auto lines_of = [&](int band) { return min(w.lines, all - first_of(band)); };
    auto load = [&](int band, int stage) {
        if (band < bands) load_band(w, task.x, first_of(band), lines_of(band), bands_held + stage * w.band_numbers, starts + stage * w.lines);
        cp_async_commit();
    };
    bool in_n = n0 + 4 * g < w.n;
    int column_offset[COUNT];
#pragma unroll
    for (int j = 0; j < COUNT; j++) column_offset[j] = w.offset((group * COUNT + j) * 8 + g);
    Accumulators<2, COUNT> sums;
    load(split, 0);
    for (int band = split, stage = 0; band < bands; band += task.splits, stage ^= 1) {
        int first = first_of(band), lines = lines_of(band);
        const BandPixels pixels(w, lines, starts + stage * w.lines);
        // Pixels t, t + 4, t + 8 and t + 12 from p on.
        const float* dy = task.dy + ((size_t)first * w.to_w + t) * w.n + n0 + 4 * g;
        auto read = [&](Channels4* v, int p) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                bool exists = in_n && p + t + 4 * i <= pixels.last;
                v[i] = exists ? load4(dy + (size_t)(p + 4 * i) * w.n) : Channels4{};
            }
        };
        Channels4 next[4];
        read(next, member * 16);
        // The other stage was last read before the barrier.
        load(band + task.splits, stage ^ 1);
        cp_async_wait<1>();
        float* band_numbers = bands_held + stage * w.band_numbers;
        round_band(w, first, lines, band_numbers);
        __syncthreads();
        for (int p = member * 16; p <= pixels.last; p += members * 16) {
            Channels4 current[4];
#pragma unroll
            for (int i = 0; i < 4; i++) current[i] = next[i];
            read(next, p + members * 16);
#pragma unroll
            for (int step = 0; step < 2; step++) {
                const Channels4 &pixel = current[2 * step], &pixel4 = current[2 * step + 1];
                const char *near = (const char*)(band_numbers + pixels.window(p + step * 8 + t)), *far = (const char*)(band_numbers + pixels.window(p + step * 8 + t + 4));
                FragA fa[2];
#pragma unroll
                for (int i = 0; i < 2; i++) fa[i].set(pixel.v[2 * i], pixel.v[2 * i + 1], pixel4.v[2 * i], pixel4.v[2 * i + 1]);
#pragma unroll
                for (int j = 0; j < COUNT; j++) {
                    FragB fb;
                    set_rounded(fb, load_at(near, column_offset[j]), load_at(far, column_offset[j]));
#pragma unroll
                    for (int i = 0; i < 2; i++) mma(sums.partial[i][j], fa[i], fb);
                }
            }
            sums.flush_partial();
        }
        __syncthreads();
    }
    // The warps of a group add in order.
    for (int member_turn = 0; member_turn < members; member_turn++) {
        if (member == member_turn)
#pragma unroll
            for (int j = 0; j < COUNT; j++)
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int n = 4 * g + 2 * i + e / 2, k = (group * COUNT + j) * 8 + 2 * t + e % 2;
                        if (k >= depth) continue;
                        float* to = block_sums + n * depth + k;
                        *to = member_turn ? *to + sums.at(i, j, e) : sums.at(i, j, e);
                    }
        __syncthreads();
    }
    float* out = task.partials + (size_t)split * ((size_t)w.n * depth + w.n) + (size_t)n0 * depth;
    for (int i = threadIdx.x; i < min(32, w.n - n0) * depth; i += blockDim.x) out[i] = block_sums[i];
}

extern "C" __global__ void __launch_bounds__(256, SMALL_C_WEIGHT_GRAD_BLOCKS) convolution_small_c_weight_grad_2(
    const SmallChannelWeightGradTask* tasks, const int* shape) {
    grid_dependency_sync();
    small_c_weight_grad<2>(tasks, shape);
}
extern "C" __global__ void __launch_bounds__(256, SMALL_C_WEIGHT_GRAD_BLOCKS) convolution_small_c_weight_grad_4(
    const SmallChannelWeightGradTask* tasks, const int* shape) {
    grid_dependency_sync();
    small_c_weight_grad<4>(tasks, shape);
}
extern "C" __global__ void __launch_bounds__(256, SMALL_C_WEIGHT_GRAD_BLOCKS) convolution_small_c_weight_grad_7(
    const SmallChannelWeightGradTask* tasks, const int* shape) {
    grid_dependency_sync();
    small_c_weight_grad<7>(tasks, shape);
}
