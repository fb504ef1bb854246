// Convolutions of any window. A row of a value is one image, pixel by pixel, channels side by side, so that all pixels of all images are the
// rows of one matrix. What encoders spend their time on, windows that keep an image's size, is in `same_convolution.cu`.

#define DEPTH 32

// A number as matrix units see it. Who writes operands of convolutions rounds them so that nobody has to who reads them.
__device__ __forceinline__ float operand(float x) {
#if PRECISION == 1
    return cut(tf32(x));
#else
    return x;
#endif
}

// Matrix units cut what they add to a sum rather than round it, so that a long sum drifts towards zero: in f32 it is taken in parts, each
// added to the whole as it ends.
template <int I, int J>
struct Sums {
    float part[I][J][4] = {};
#if PRECISION == 0
    float whole[I][J][4] = {};
#endif
    __device__ __forceinline__ void end_part() {
#if PRECISION == 0
#pragma unroll
        for (int i = 0; i < I; i++)
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) { whole[i][j][e] += part[i][j][e]; part[i][j][e] = 0.0f; }
#endif
    }
    // After the last part.
    __device__ __forceinline__ float at(int i, int j, int e) const {
#if PRECISION == 0
        return whole[i][j][e];
#else
        return part[i][j][e];
#endif
    }
};

struct Four {
    float v[4];
};

__device__ __forceinline__ Four read_four(const float* p) {
    float4 v = *(const float4*)p;
    return {v.x, v.y, v.z, v.w};
}

__device__ __forceinline__ void write_four(float* p, const Four& f) { *(float4*)p = make_float4(f.v[0], f.v[1], f.v[2], f.v[3]); }

// Σ y and Σ y² of what one thread has seen, for the batch norm that follows. Numbers are counted from one of them, so that single precision loses nothing
// where they are all alike; what becomes of these sums is double.
struct Moments {
    float from, away = 0.0f, square = 0.0f;
    __device__ __forceinline__ explicit Moments(float first = 0.0f) : from(first) {}
    __device__ __forceinline__ void add(float y) {
        float d = y - from;
        away += d;
        square = fmaf(d, d, square);
    }
    __device__ __forceinline__ double sum(int count) const { return away + (double)from * count; }
    __device__ __forceinline__ double squares(int count) const { return square + (double)from * (2.0 * away + (double)from * count); }
};

// A pixel of many images, all `lines` by `across`.
struct Place {
    int image, line, column;
};

__device__ __forceinline__ Place place_of(int at, int lines, int across) {
    int in_image = at % (lines * across);
    return {at / (lines * across), in_image / across, in_image % across};
}

// Moves on by as many pixels as lie before place `by`.
__device__ __forceinline__ void advance(Place& p, const Place& by, int lines, int across) {
    p.image += by.image;
    p.line += by.line;
    p.column += by.column;
    if (p.column >= across) { p.column -= across; p.line++; }
    if (p.line >= lines) { p.line -= lines; p.image++; }
}

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
    // Where windows begin: line, column, and the place of that pixel in numbers or, where images are spread, the image.
    __shared__ int4 windows[BM];
    for (int r = threadIdx.x; r < BM; r += THREADS) {
        int m = m0 + r;
        Place p = place_of(m, task.to_h, task.to_w);
        int line = p.line * task.up + task.off, column = p.column * task.up + task.off;
        if (task.down == 1) p.image = ((p.image * task.from_h + line) * task.from_w + column) * task.from_c;
        windows[r] = make_int4(m < rows ? line : -0x40000000, column, p.image, 0);
    }
    __syncthreads();
    // The pixel row r sees i lines below and j columns beside where its window begins, or none.
    auto seen = [&](int r, int i, int j, int away) -> const float* {
        int4 window = windows[r];
        int y = window.x + i, x = window.y + j;
        if (task.down == 1) return (u32)y < (u32)task.from_h && (u32)x < (u32)task.from_w ? task.x + (window.z + away) : nullptr;
        if (y < 0 || x < 0 || y % task.down || x % task.down) return nullptr;
        y /= task.down;
        x /= task.down;
        if (y >= task.from_h || x >= task.from_w) return nullptr;
        return task.x + (((size_t)window.z * task.from_h + y) * task.from_w + x) * task.from_c;
    };
    Sums<WM / 16, WN / 8> sums;
    int warp = threadIdx.x / 32, wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
    int at = 0, loaded = 0;
    auto load = [&]() {
        if (at < depth) {
            float* stage = shared + loaded % STAGES * STAGE;
            int each = task.vec_a ? 4 : 1, across = DEPTH / each, offset = threadIdx.x % across * each, k = at + offset;
            int tap = k / task.from_c, c = k % task.from_c, i = tap / task.kernel * task.turn, j = tap % task.kernel * task.turn;
            int away = (i * task.from_w + j) * task.from_c;
#pragma unroll 4
            for (int r = threadIdx.x / across; r < BM; r += THREADS / across) {
                const float* from = k < depth ? seen(r, i, j, away) : nullptr;
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
        multiply_rows<WM, WN>(sums.part, stage, stage + BM * S, wm, wn);
        sums.end_part();
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
        task.to[i] = operand(task.from[((size_t)o * task.taps + tap) * task.channels + c]);
    }
}

// A part of dW = dyᵀ · patches and, where there is a bias, of its gradient, over one of `splits` stretches of pixels; part p is written to
// parts + p · (n · k + n).
struct PatchTask {
    const float *dy, *x;
    float* parts;
    int from_h, from_w, from_c, to_h, to_w, n, kernel, stride, padding, splits, vec_dy, vec_x;
    Space space;
    int bias;
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
    Sums<WM / 16, WN / 8> sums;
    float sum = 0.0f;
    int warp = threadIdx.x / 32, wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
    int steps = (last - first + DEPTH - 1) / DEPTH, loaded = 0;
    // A thread copies the same column of the patches for pixels that are always as far apart.
    int once = task.vec_x ? 4 : 1, across = BN / once, offset = threadIdx.x % across * once, k = k0 + offset;
    int apart = THREADS / across;
    Place at = place_of(first + threadIdx.x / across, task.to_h, task.to_w), by = place_of(apart, task.to_h, task.to_w);
    int tap = k / task.from_c, c = k % task.from_c, i = tap / task.kernel - task.padding, j = tap % task.kernel - task.padding;
    auto load = [&]() {
        if (loaded < steps) {
            int row = first + loaded * DEPTH;
            float* stage = shared + loaded % STAGES * STAGE;
            load_tile<DEPTH, BM, SA, THREADS>(stage, task.dy, task.n, row, last, n0, task.n, task.vec_dy);
            for (int r = threadIdx.x / across; r < DEPTH; r += apart) {
                int y = at.line * task.stride + i, x = at.column * task.stride + j;
                bool ok = row + r < last && k < depth && y >= 0 && x >= 0 && y < task.from_h && x < task.from_w;
                const float* from = ok ? task.x + ((size_t)(at.image * task.from_h + y) * task.from_w + x) * task.from_c + c : task.x;
                advance(at, by, task.to_h, task.to_w);
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
        multiply_columns<WM, WN, SA, SB>(sums.part, stage, stage + DEPTH * SA, wm, wn);
        sums.end_part();
        if (task.bias && k0 == 0 && threadIdx.x < BM) {
            float part = 0.0f;
            for (int r = 0; r < DEPTH; r++) part += stage[r * SA + threadIdx.x];
            sum += part;
        }
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
                if (n < task.n && kk < depth) out[(size_t)n * depth + kk] = sums.at(a, b, e);
            }
    if (task.bias && k0 == 0 && threadIdx.x < BM && n0 + threadIdx.x < task.n) out[(size_t)task.n * depth + n0 + threadIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(64) image_weights_narrow(const PatchTask* t, const int* s) { in_turn(); patch_weights<32, 32, 16, 32, 3>(t, s); }
extern "C" __global__ void __launch_bounds__(128) image_weights_flat(const PatchTask* t, const int* s) { in_turn(); patch_weights<32, 64, 16, 32, 3>(t, s); }
extern "C" __global__ void __launch_bounds__(128) image_weights_wide(const PatchTask* t, const int* s) { in_turn(); patch_weights<64, 64, 32, 32, 3>(t, s); }
