// Convolutions of any window. Images are NHWC: a row of a value is one image, so that all pixels of all images are the
// rows of one matrix [pixels, channels]. Windows with "same" padding are in `convolution_same.cu`, images of few
// channels in `convolution_small_c.cu`.

// Columns along the sum of a stage in shared memory.
#define BK 32

// Rounds to tf32 where operands are tf32. Whoever writes an operand of a convolution rounds it, so readers need not.
__device__ __forceinline__ float round_operand(float x) {
#if PRECISION == 1
    return truncate_tf32(tf32(x));
#else
    return x;
#endif
}

// Accumulators of tensor-core products. Tensor cores truncate when they accumulate, so a long f32 sum drifts towards
// zero: f32 adds partial sums to a second accumulator.
template <int I, int J>
struct Accumulators {
    float partial[I][J][4] = {};
#if PRECISION == 0
    float flushed[I][J][4] = {};
#endif
    __device__ __forceinline__ void flush_partial() {
#if PRECISION == 0
#pragma unroll
        for (int i = 0; i < I; i++)
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) { flushed[i][j][e] += partial[i][j][e]; partial[i][j][e] = 0.0f; }
#endif
    }
    // After the last partial sum.
    __device__ __forceinline__ float at(int i, int j, int e) const {
#if PRECISION == 0
        return flushed[i][j][e];
#else
        return partial[i][j][e];
#endif
    }
};

// Four neighbouring channels of a pixel; reads and writes have sixteen bytes.
struct Channels4 {
    float v[4];
};

__device__ __forceinline__ Channels4 load4(const float* p) {
    float4 v = *(const float4*)p;
    return {v.x, v.y, v.z, v.w};
}

__device__ __forceinline__ void store4(float* p, const Channels4& f) { *(float4*)p = make_float4(f.v[0], f.v[1], f.v[2], f.v[3]); }

// Σ y and Σ y² of a thread's numbers, for the batch norm that follows. Numbers are shifted by one of them, so f32 loses
// nothing where all are alike; the results are double.
struct Moments {
    float origin, offset_sum = 0.0f, offset_squares = 0.0f;
    __device__ __forceinline__ explicit Moments(float first = 0.0f) : origin(first) {}
    __device__ __forceinline__ void add(float y) {
        float offset = y - origin;
        offset_sum += offset;
        offset_squares = fmaf(offset, offset, offset_squares);
    }
    // Of `count` numbers added.
    __device__ __forceinline__ double sum(int count) const { return offset_sum + (double)origin * count; }
    __device__ __forceinline__ double squares(int count) const { return offset_squares + (double)origin * (2.0 * offset_sum + (double)origin * count); }
};

// A pixel among many images of `lines` by `across` pixels.
struct PixelPosition {
    int image, line, column;
};

__device__ __forceinline__ PixelPosition pixel_position(int at, int lines, int across) {
    int in_image = at % (lines * across);
    return {at / (lines * across), in_image / across, in_image % across};
}

// Advances by `step_by`, the position of the pixel that many pixels after the first.
__device__ __forceinline__ void advance(PixelPosition& p, const PixelPosition& step_by, int lines, int across) {
    p.image += step_by.image;
    p.line += step_by.line;
    p.column += step_by.column;
    if (p.column >= across) { p.column -= across; p.line++; }
    if (p.line >= lines) { p.line -= lines; p.image++; }
}

// y[p, n] = Σ_k patch(p, k) · w[n, k] + bias[n], an implicit GEMM. patch(p, k) is channel k % from_c of the input pixel
// under tap k / from_c of the window of output pixel p. Tap line i reads input line (line(p) · stride + i · tap_sign +
// offset) / input_dilation, or zero if that is no integer or outside; columns alike. Convolution: tap_sign = 1, offset
// = −padding, input_dilation = 1. Input gradient: stride = 1, tap_sign = −1, offset = padding, input_dilation = the
// stride, transposed weights.
//
// Shapes: x [images, from_h, from_w, from_c], w [n, kernel, kernel, from_c], bias [n] or null, y [images, to_h, to_w,
// n]. `vec_a` and `vec_b` allow sixteen-byte reads of x and w.
struct ConvolutionTask {
    const float *x, *w, *bias;
    float* y;
    int from_h, from_w, from_c, to_h, to_w, n, kernel, stride, offset, tap_sign, input_dilation, accumulate, vec_a, vec_b;
    Space space;
    int pad;
};

// acc += A Bᵀ for one stage; both operands have rows of BK + 4 numbers.
template <int WM, int WN>
__device__ __forceinline__ void mma_nt(float (*acc)[WN / 8][4], const float* a, const float* b, int wm, int wn) {
    constexpr int S = BK + 4;
    int lane = threadIdx.x % 32;
    const float* pa = a + (wm + lane % 16) * S + lane / 16 * 4;
    const float* pb = b + (wn + lane / 16 * 8 + lane % 8) * S + lane / 8 % 2 * 4;
#pragma unroll
    for (int k = 0; k < BK; k += 8) {
        FragA fa[WM / 16];
        FragB fb[WN / 8];
        float v[4];
#pragma unroll
        for (int i = 0; i < WM / 16; i++) {
            ldmatrix_x4_f32(v, pa + i * 16 * S + k);
            fa[i].set(v[0], v[1], v[2], v[3]);
        }
#pragma unroll
        for (int j = 0; j < WN / 8; j += 2) {
            ldmatrix_x4_f32(v, pb + j * 8 * S + k);
            fb[j].set(v[0], v[1]);
            fb[j + 1].set(v[2], v[3]);
        }
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < WN / 8; j++) mma(acc[i][j], fa[i], fb[j]);
    }
}

// The product of ConvolutionTask. Grid: (pixel tiles, channel tiles, tasks). A block owns BM output pixels by BN
// channels of y, a warp WM by WN of it. y is written, or added to if `accumulate`. STAGES stages of BK columns are in
// flight, rows of BK + 4 numbers. Patches are gathered from global to shared memory: window origins are computed once,
// and a thread copies the same patch column for several pixels.
template <int BM, int BN, int WM, int WN, int STAGES>
__device__ __forceinline__ void convolution(const ConvolutionTask* tasks, const int* shape) {
    constexpr int THREADS = (BM / WM) * (BN / WN) * 32, S = BK + 4, STAGE = (BM + BN) * S;
    const ConvolutionTask task = tasks[blockIdx.z];
    int pixels = task.to_h * task.to_w, rows = row_count(task.space, shape) * pixels, m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;
    if (m0 >= rows || n0 >= task.n) return;
    int depth = task.kernel * task.kernel * task.from_c;
    extern __shared__ __align__(16) float shared[];
    // Window origins: line (far outside for missing pixels), column, and the offset of that pixel or, with dilation,
    // the image.
    constexpr int OUTSIDE = -0x40000000;
    __shared__ int4 windows[BM];
    for (int r = threadIdx.x; r < BM; r += THREADS) {
        int m = m0 + r;
        PixelPosition p = pixel_position(m, task.to_h, task.to_w);
        int line = p.line * task.stride + task.offset, column = p.column * task.stride + task.offset;
        if (task.input_dilation == 1) p.image = ((p.image * task.from_h + line) * task.from_w + column) * task.from_c;
        windows[r] = make_int4(m < rows ? line : OUTSIDE, column, p.image, 0);
    }
    __syncthreads();
    // The input pixel of row r at tap offset (i, j), `tap_offset` numbers from the origin without dilation; or null.
    auto input_pixel = [&](int r, int i, int j, int tap_offset) -> const float* {
        int4 window = windows[r];
        int y = window.x + i, x = window.y + j;
        if (task.input_dilation == 1) return (u32)y < (u32)task.from_h && (u32)x < (u32)task.from_w ? task.x + (window.z + tap_offset) : nullptr;
        if (y < 0 || x < 0 || y % task.input_dilation || x % task.input_dilation) return nullptr;
        y /= task.input_dilation;
        x /= task.input_dilation;
        if (y >= task.from_h || x >= task.from_w) return nullptr;
        return task.x + (((size_t)window.z * task.from_h + y) * task.from_w + x) * task.from_c;
    };
    Accumulators<WM / 16, WN / 8> sums;
    int warp = threadIdx.x / 32, wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
    int at = 0, loaded = 0;
    auto load = [&]() {
        if (at < depth) {
            float* stage = shared + loaded % STAGES * STAGE;
            int each = task.vec_a ? 4 : 1, across = BK / each, offset = threadIdx.x % across * each, k = at + offset;
            int tap = k / task.from_c, c = k % task.from_c, i = tap / task.kernel * task.tap_sign, j = tap % task.kernel * task.tap_sign;
            int tap_offset = (i * task.from_w + j) * task.from_c;
#pragma unroll 4
            for (int r = threadIdx.x / across; r < BM; r += THREADS / across) {
                const float* from = k < depth ? input_pixel(r, i, j, tap_offset) : nullptr;
                float* to = stage + r * S + offset;
                if (task.vec_a) cp_async_16(to, from ? from + c : task.x, from != nullptr);
                else cp_async_4(to, from ? from + c : task.x, from != nullptr);
            }
            load_tile<BN, BK, S, THREADS>(stage + BM * S, task.w, depth, n0, task.n, at, depth, task.vec_b);
            loaded++;
            at += BK;
        }
        cp_async_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) load();
    for (int step = 0; step < loaded; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        // The stage loaded here was last read before this barrier.
        load();
        const float* stage = shared + step % STAGES * STAGE;
        mma_nt<WM, WN>(sums.partial, stage, stage + BM * S, wm, wn);
        sums.flush_partial();
    }
    int g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
    bool pairs = task.n % 2 == 0 && !task.bias && !task.accumulate;
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 8; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int m = m0 + wm + i * 16 + g + h * 8, n = n0 + wn + j * 8 + 2 * t;
                if (m >= rows || n >= task.n) continue;
                float* y = task.y + (size_t)m * task.n + n;
                float v[2] = {sums.at(i, j, 2 * h), sums.at(i, j, 2 * h + 1)};
                if (pairs) {
                    *(float2*)y = make_float2(v[0], v[1]);
                    continue;
                }
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    if (n + e >= task.n) continue;
                    if (task.bias) v[e] += task.bias[n + e];
                    y[e] = task.accumulate ? y[e] + v[e] : v[e];
                }
            }
}

extern "C" __global__ void __launch_bounds__(128) convolution_n32(const ConvolutionTask* tasks, const int* shape) {
    grid_dependency_sync();
    convolution<128, 32, 32, 32, 3>(tasks, shape);
}
extern "C" __global__ void __launch_bounds__(256) convolution_n64(const ConvolutionTask* tasks, const int* shape) {
    grid_dependency_sync();
    convolution<128, 64, 32, 32, 3>(tasks, shape);
}

// to[c, tap, o] = from[o, tap, c], rounded as an operand: the weights of the input gradient.
struct TransposeWeightsTask {
    const float* from;
    float* to;
    int outputs, taps, channels, pad;
};

// Grid: (blocks, tasks), grid-stride over all weights; a thread owns one at a time. `to` is written.
extern "C" __global__ void convolution_transpose_weights(const TransposeWeightsTask* tasks, const int* shape) {
    grid_dependency_sync();
    const TransposeWeightsTask task = tasks[blockIdx.y];
    int total = task.outputs * task.taps * task.channels;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        int o = i % task.outputs, tap = i / task.outputs % task.taps, c = i / (task.outputs * task.taps);
        task.to[i] = round_operand(task.from[((size_t)o * task.taps + tap) * task.channels + c]);
    }
}

// A partial sum of dW = dyᵀ · patches, and of the bias gradient if `bias`, over one of `splits` chunks of pixels.
// Partial sum p is written to partials + p · (n · k + n): dW [n, kernel, kernel, from_c], then the bias gradient [n].
struct ConvolutionWeightGradTask {
    const float *dy, *x;
    float* partials;
    int from_h, from_w, from_c, to_h, to_w, n, kernel, stride, padding, splits, vec_dy, vec_x;
    Space space;
    int bias;
};

// acc += Aᵀ B for one stage, WM by WN a warp from columns wm and wn on. Operands are [BK, columns] with row strides SA
// and SB, 8 modulo 32 against bank conflicts.
template <int WM, int WN, int SA, int SB>
__device__ __forceinline__ void mma_tn(float (*acc)[WN / 8][4], const float* a, const float* b, int wm, int wn) {
    int g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < BK; k += 8) {
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

// dW[n, k] = Σ_p dy[p, n] patch(p, k) and the bias gradient Σ_p dy[p, n]. Grid: (tiles of dW, splits, tasks). A block
// owns BM output channels by BN patch columns over one chunk of pixels; blocks of the first columns own the bias
// gradient too. Partial sums are written.
template <int BM, int BN, int WM, int WN, int STAGES>
__device__ __forceinline__ void convolution_weight_grad(const ConvolutionWeightGradTask* tasks, const int* shape) {
    constexpr int THREADS = (BM / WM) * (BN / WN) * 32, SA = BM + 8, SB = BN + 8, STAGE = BK * (SA + SB);
    const ConvolutionWeightGradTask task = tasks[blockIdx.z];
    int depth = task.kernel * task.kernel * task.from_c;
    int tiles_k = (depth + BN - 1) / BN, tiles = ((task.n + BM - 1) / BM) * tiles_k, split = blockIdx.y;
    if ((int)blockIdx.x >= tiles || split >= task.splits) return;
    int n0 = blockIdx.x / tiles_k * BM, k0 = blockIdx.x % tiles_k * BN;
    int pixels = task.to_h * task.to_w, rows = row_count(task.space, shape) * pixels;
    int each = ((rows + task.splits - 1) / task.splits + BK - 1) / BK * BK;
    int first = min(rows, split * each), last = min(rows, first + each);
    extern __shared__ __align__(16) float shared[];
    Accumulators<WM / 16, WN / 8> sums;
    float bias_sum = 0.0f;
    int warp = threadIdx.x / 32, wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
    int steps = (last - first + BK - 1) / BK, loaded = 0;
    // A thread copies the same patch column for equidistant pixels.
    int vector = task.vec_x ? 4 : 1, across = BN / vector, offset = threadIdx.x % across * vector, k = k0 + offset;
    int apart = THREADS / across;
    PixelPosition position = pixel_position(first + threadIdx.x / across, task.to_h, task.to_w), step_by = pixel_position(apart, task.to_h, task.to_w);
    int tap = k / task.from_c, c = k % task.from_c, i = tap / task.kernel - task.padding, j = tap % task.kernel - task.padding;
    auto load = [&]() {
        if (loaded < steps) {
            int row = first + loaded * BK;
            float* stage = shared + loaded % STAGES * STAGE;
            load_tile<BK, BM, SA, THREADS>(stage, task.dy, task.n, row, last, n0, task.n, task.vec_dy);
            for (int r = threadIdx.x / across; r < BK; r += apart) {
                int y = position.line * task.stride + i, x = position.column * task.stride + j;
                bool inside = row + r < last && k < depth && y >= 0 && x >= 0 && y < task.from_h && x < task.from_w;
                const float* from = inside ? task.x + ((size_t)(position.image * task.from_h + y) * task.from_w + x) * task.from_c + c : task.x;
                advance(position, step_by, task.to_h, task.to_w);
                float* to = stage + BK * SA + r * SB + offset;
                if (task.vec_x) cp_async_16(to, from, inside);
                else cp_async_4(to, from, inside);
            }
            loaded++;
        }
        cp_async_commit();
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) load();
    for (int step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        load();
        const float* stage = shared + step % STAGES * STAGE;
        mma_tn<WM, WN, SA, SB>(sums.partial, stage, stage + BK * SA, wm, wn);
        sums.flush_partial();
        if (task.bias && k0 == 0 && threadIdx.x < BM) {
            float partial = 0.0f;
            for (int r = 0; r < BK; r++) partial += stage[r * SA + threadIdx.x];
            bias_sum += partial;
        }
    }
    float* out = task.partials + (size_t)split * ((size_t)task.n * depth + task.n);
    int g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int a = 0; a < WM / 16; a++)
#pragma unroll
        for (int b = 0; b < WN / 8; b++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int n = n0 + wm + a * 16 + g + e / 2 * 8, column = k0 + wn + b * 8 + 2 * t + e % 2;
                if (n < task.n && column < depth) out[(size_t)n * depth + column] = sums.at(a, b, e);
            }
    if (task.bias && k0 == 0 && threadIdx.x < BM && n0 + threadIdx.x < task.n) out[(size_t)task.n * depth + n0 + threadIdx.x] = bias_sum;
}

extern "C" __global__ void __launch_bounds__(64) convolution_weight_grad_32x32(
    const ConvolutionWeightGradTask* tasks, const int* shape) {
    grid_dependency_sync();
    convolution_weight_grad<32, 32, 16, 32, 3>(tasks, shape);
}
extern "C" __global__ void __launch_bounds__(128) convolution_weight_grad_32x64(
    const ConvolutionWeightGradTask* tasks, const int* shape) {
    grid_dependency_sync();
    convolution_weight_grad<32, 64, 16, 32, 3>(tasks, shape);
}
extern "C" __global__ void __launch_bounds__(128) convolution_weight_grad_64x64(
    const ConvolutionWeightGradTask* tasks, const int* shape) {
    grid_dependency_sync();
    convolution_weight_grad<64, 64, 32, 32, 3>(tasks, shape);
}
