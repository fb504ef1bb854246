// Convolutions with "same" padding: odd window, stride 1. The pixel under a tap is a fixed number of rows away, so the
// pixels under a tile lie in one range of rows.

// Fragments of tf32 operands that were rounded when written: no rounding here. Weights that were not are truncated.
__device__ __forceinline__ void set_rounded(FragA& f, float a, float b, float c, float d) {
#if PRECISION == 1
    f.v[0] = __float_as_uint(a); f.v[1] = __float_as_uint(b); f.v[2] = __float_as_uint(c); f.v[3] = __float_as_uint(d);
#else
    f.set(a, b, c, d);
#endif
}

__device__ __forceinline__ void set_rounded(FragB& f, float a, float b) {
#if PRECISION == 1
    f.v[0] = __float_as_uint(a); f.v[1] = __float_as_uint(b);
#else
    f.set(a, b);
#endif
}

// y[p, n] = Σ x[p + tap_sign · ((i − radius) · width + j − radius), c] · w[n, i, j, c] over taps (i, j) inside the
// image. tap_sign = 1 is a convolution; −1 with transposed weights is the input gradient. n is a multiple of four,
// from_c of BK. Shapes: x [images, height, width, from_c], w [n, kernel, kernel, from_c], y [images, height, width, n].
//
// If `moments` is set, block b writes Σ y and Σ y² of every channel over its pixels, [block][2 · n].
struct SameConvolutionTask {
    const float *x, *w;
    float* y;
    double* moments;
    int height, width, from_c, n, kernel, tap_sign, accumulate;
    Space space;
};

// How warps divide a block's BM pixels by BN channels with mma.sync: WM by WN each, in fragments of 16 pixels by 8
// channels. Weights have rows of S numbers.
template <int M, int N, int WM, int WN>
struct MmaProducts {
    static constexpr int BM = M, BN = N, THREADS = (M / WM) * (N / WN) * 32, FRAGMENTS = WM / 16, COLUMNS = WN / 8, S = BK + 4;
    // Rows between fragments, warps that share columns, bytes of a stage of weights.
    static constexpr int ROWS = 16, WARPS_M = M / WM;
    static constexpr u32 STAGE = N * S * 4;
    __device__ static __forceinline__ float* begin() {
        extern __shared__ __align__(16) float shared[];
        return shared;
    }
    __device__ static __forceinline__ int first_row(int warp) { return warp % WARPS_M * WM; }
    __device__ static __forceinline__ int first_column(int warp) { return warp / WARPS_M * WN; }
    __device__ static __forceinline__ int warp_m(int warp) { return warp % WARPS_M; }
    // Byte offset of a chunk of weights in a stage.
    __device__ static __forceinline__ u32 weight_offset(int row, int chunk) { return (row * S + chunk * 4) * 4; }
    // Runs before the barrier that publishes weights.
    __device__ static __forceinline__ void weights_arrived() {}

    // sums += pixels at addresses `a` times the weights of a stage, over BK channels.
    __device__ static __forceinline__ void multiply(float (*sums)[COLUMNS][4], const u32* a, u32 stage) {
        int lane = threadIdx.x % 32;
        u32 b = stage + weight_offset(first_column(threadIdx.x / 32) + lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
        for (int k = 0; k < BK; k += 8) {
            FragA fa[FRAGMENTS];
            FragB fb[COLUMNS];
            float v[4];
#pragma unroll
            for (int i = 0; i < FRAGMENTS; i++) {
                ldmatrix_x4_f32(v, a[i] + k * 4);
                set_rounded(fa[i], v[0], v[1], v[2], v[3]);
            }
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 2) {
                ldmatrix_x4_f32(v, b + (j * 8 * S + k) * 4);
                set_rounded(fb[j], v[0], v[1]);
                set_rounded(fb[j + 1], v[2], v[3]);
            }
#pragma unroll
            for (int i = 0; i < FRAGMENTS; i++)
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) mma(sums[i][j], fa[i], fb[j]);
        }
    }
};

// The sum of SameConvolutionTask. Grid: (pixel tiles, channel tiles, tasks). A block owns BM pixels by BN channels of
// y, divided among warps by `Products`. y is written, or added to if `accumulate`; `moments` is written. Shared memory:
// STAGES stages of weights, a row of zeros, two buffers of pixels with rows of BK + 4 numbers. For BK channels at a
// time it loads the rows under its pixels once for all taps and streams the weights tap by tap. Pixels outside their
// image read a row of zeros.
template <typename Products>
__device__ __forceinline__ void convolution_same(const SameConvolutionTask* tasks, const int* shape) {
    constexpr int BM = Products::BM, BN = Products::BN, THREADS = Products::THREADS, FRAGMENTS = Products::FRAGMENTS, COLUMNS = Products::COLUMNS;
    constexpr int ROWS = Products::ROWS, S = BK + 4, STAGES = 3;
    constexpr u32 STAGE = Products::STAGE;
    const SameConvolutionTask task = tasks[blockIdx.z];
    int rows = row_count(task.space, shape) * task.height * task.width, m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;
    if (m0 >= rows) return;
    int radius = task.kernel / 2, halo = radius * (task.width + 1), rows_held = BM + 2 * halo;
    int taps = task.kernel * task.kernel, chunks = task.from_c / BK, steps = taps * chunks;
    float *weights = Products::begin(), *zeros = weights + STAGES * STAGE / 4, *pixels = zeros + S;
    if (threadIdx.x < S) zeros[threadIdx.x] = 0.0f;

    // A thread copies the same four columns of every APARTth row.
    constexpr int APART = THREADS / 8;
    int column = threadIdx.x % 8 * 4, row = threadIdx.x / 8, depth = taps * task.from_c;
    auto load_pixels = [&](int chunk) {
        int m = m0 - halo + row;
        const float* from = task.x + (long long)m * task.from_c + chunk * BK + column;
        float* to = pixels + (chunk % 2 * rows_held + row) * S + column;
#pragma unroll 4
        for (int r = row; r < rows_held; r += APART) {
            bool exists = m >= 0 && m < rows;
            cp_async_16(to, exists ? from : task.x, exists);
            m += APART;
            from += APART * task.from_c;
            to += APART * S;
        }
    };
    // Source and destination of the next step's weights. Missing rows become zero and read the first.
    const float* from = task.w + (size_t)(n0 + row < task.n ? n0 + row : 0) * depth + column;
    int row_offset[BN / APART];
#pragma unroll
    for (int r = 0; r < BN / APART; r++) row_offset[r] = n0 + row + r * APART < task.n ? r * APART * depth : -1;
    u32 stage = shared_address(weights), stages_end = stage + STAGES * STAGE, to = stage + Products::weight_offset(row, column / 4), to_end = to + STAGES * STAGE;
    int next = 0, next_tap = 0;
    auto load_weights = [&]() {
        if (next < steps) {
#pragma unroll
            for (int r = 0; r < BN / APART; r++) cp_async_16(to + Products::weight_offset(r * APART, 0), from + max(row_offset[r], 0), row_offset[r] >= 0);
            to += STAGE;
            if (to == to_end) to -= STAGES * STAGE;
            next++;
            from += task.from_c;
            if (++next_tap == taps) { next_tap = 0; from += BK - depth; }
        }
        cp_async_commit();
    };
    load_pixels(0);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) load_weights();

    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = Products::first_row(warp), wn = Products::first_column(warp);
    // For each row a lane addresses: a bit for each tap inside its image, columns in the low half and lines in the high
    // half. Taps first..last are inside, among them the middle one. A window has at most 15 lines.
    auto valid_taps = [&](int at, int size) {
        int first = task.tap_sign > 0 ? radius - at : radius + at - (size - 1), last = first + size - 1;
        return (2u << min(last, 15)) - (1u << max(first, 0));
    };
    u32 inside[FRAGMENTS];
#pragma unroll
    for (int i = 0; i < FRAGMENTS; i++) {
        int m = m0 + wm + i * ROWS + lane % 16;
        PixelPosition p = pixel_position(m, task.height, task.width);
        inside[i] = m < rows ? valid_taps(p.line, task.height) << 16 | valid_taps(p.column, task.width) : 0;
    }
    Accumulators<FRAGMENTS, COLUMNS> sums;
    int chunk = 0, tap_i = 0, tap_j = 0;
    // Addresses this lane supplies: a row of zeros, or its first pixel.
    u32 zero_row = shared_address(zeros) + lane / 16 * 16, first_pixel = shared_address(pixels) + ((halo + wm + lane % 16) * S + lane / 16 * 4) * 4;
    for (int step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();
        Products::weights_arrived();
        __syncthreads();
        // This load overwrites buffers last read before the barrier. A window has at least nine taps, so rows are
        // awaited long after their copies began.
        if (tap_i + tap_j == 0 && chunk + 1 < chunks) load_pixels(chunk + 1);
        load_weights();
        u32 tap_bits = 1u << (16 + tap_i) | 1u << tap_j, a[FRAGMENTS];
        u32 shifted = first_pixel + (chunk % 2 * rows_held + task.tap_sign * ((tap_i - radius) * task.width + tap_j - radius)) * (S * 4);
#pragma unroll
        for (int i = 0; i < FRAGMENTS; i++) a[i] = (inside[i] & tap_bits) == tap_bits ? shifted + i * ROWS * S * 4 : zero_row;
        Products::multiply(sums.partial, a, stage);
        sums.flush_partial();
        stage += STAGE;
        if (stage == stages_end) stage -= STAGES * STAGE;
        if (++tap_j == task.kernel) { tap_j = 0; tap_i++; }
        if (tap_i == task.kernel) { tap_i = 0; chunk++; }
    }
    int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < FRAGMENTS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int m = m0 + wm + i * ROWS + g + h * 8;
            if (m >= rows) continue;
            float* y = task.y + (size_t)m * task.n + n0 + wn + 2 * t;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                if (n0 + wn + j * 8 + 2 * t >= task.n) continue;
                float2 v = make_float2(sums.at(i, j, 2 * h), sums.at(i, j, 2 * h + 1)), *to = (float2*)(y + j * 8);
                if (task.accumulate) { float2 old = *to; v.x += old.x; v.y += old.y; }
                *to = v;
            }
        }
    if (task.moments) {
        // Lanes' moments reuse the memory of weights and pixels, [sum][channel][lane sharing the channel], padded
        // against bank conflicts.
        constexpr int LANES = Products::WARPS_M * 8, DISTANCE = LANES + 2;
        double *all = (double*)weights, *lane_moments = all + (wn + 2 * t) * DISTANCE + Products::warp_m(warp) * 8 + g;
        int count = 0;
#pragma unroll
        for (int i = 0; i < FRAGMENTS; i++) count += max(0, min(2, (rows - (m0 + wm + i * ROWS + g) + 7) / 8));
        __syncthreads();
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                Moments moments(sums.at(0, j, e));
#pragma unroll
                for (int i = 0; i < FRAGMENTS; i++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        if (m0 + wm + i * ROWS + g + h * 8 < rows) moments.add(sums.at(i, j, 2 * h + e));
                lane_moments[(j * 8 + e) * DISTANCE] = moments.sum(count);
                lane_moments[(BN + j * 8 + e) * DISTANCE] = moments.squares(count);
            }
        __syncthreads();
        int n = n0 + threadIdx.x % BN, kind = threadIdx.x / BN;
        if (kind < 2 && n < task.n) {
            double sum = 0.0;
            const double2* from = (const double2*)(all + threadIdx.x * DISTANCE);
#pragma unroll
            for (int i = 0; i < LANES / 2; i++) sum += from[i].x + from[i].y;
            task.moments[((size_t)blockIdx.x * 2 + kind) * task.n + n] = sum;
        }
    }
}

// Blocks per multiprocessor: limited by shared memory, and by registers where f32 keeps two accumulators.
#if PRECISION == 0
#define SAME_BLOCKS 2
#else
#define SAME_BLOCKS 3
#endif

extern "C" __global__ void __launch_bounds__(128, SAME_BLOCKS) convolution_same_n32(
    const SameConvolutionTask* tasks, const int* shape) {
    grid_dependency_sync();
    convolution_same<MmaProducts<256, 32, 64, 32>>(tasks, shape);
}
extern "C" __global__ void __launch_bounds__(128, SAME_BLOCKS) convolution_same_n64(
    const SameConvolutionTask* tasks, const int* shape) {
    grid_dependency_sync();
    convolution_same<MmaProducts<128, 64, 64, 32>>(tasks, shape);
}

// A partial sum of dW of a 3 by 3 window over one of `splits` chunks; partial sum p is written to partials + p · (9 · n
// · from_c + n).
struct SameWeightGradTask {
    const float *dy, *x;
    float* partials;
    int height, width, from_c, n, splits;
    Space space;
};

// Pixels of a step; also the threads of a block.
#define PIXEL_TILE 128

// dW[n, tap, c] = Σ_p dy[p, n] x[p + tap, c]. Grid: (tiles of 32 by 32 channels, splits, tasks). A block owns 32
// channels of dy by 32 of x and all nine taps, a warp eight of x. Partial sums of dW are written; those of the bias are
// not.
//
// Pixels are numbered with one zero column after each
// line and one zero line after each image. A zero dy removes them from the sum, so a tap is the same row offset for
// every pixel. Column c of row r lies at c ^ (r % 4 · 8): the four rows and eight columns a warp reads cover 32 banks.
// Sums advance by eight rows, so a lane keeps its columns for every tap. Rows g and g + 8 of a product are channels 2g
// and 2g + 1 of sixteen.
__device__ __forceinline__ void same_weight_grad(const SameWeightGradTask* tasks, const int* shape) {
    constexpr int APART = 16;
    const SameWeightGradTask task = tasks[blockIdx.z];
    int across = task.width + 1, lines = task.height + 1, images = row_count(task.space, shape), total = images * lines * across;
    int tiles_c = task.from_c / 32, n0 = blockIdx.x / tiles_c * 32, c0 = blockIdx.x % tiles_c * 32, split = blockIdx.y;
    if (n0 >= task.n || split >= task.splits) return;
    int each = ((total + task.splits - 1) / task.splits + PIXEL_TILE - 1) / PIXEL_TILE * PIXEL_TILE, first = split * each;
    int left = min(total - first, each), steps = left > 0 ? (left + PIXEL_TILE - 1) / PIXEL_TILE : 0;
    int halo = across + 1, rows_held = PIXEL_TILE + 2 * halo;
    extern __shared__ __align__(16) float shared[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;

    // The memory row of each row of a step, or −1: computed once for all columns of x and dy (row r of dy is row halo +
    // r of x). All but the last PIXEL_TILE rows are known from the previous step. They lie in a ring buffer that holds
    // two steps.
    int* row_index = (int*)(shared + 2 * (rows_held + PIXEL_TILE) * 32);
    u32 ring = 1u << (32 - __clz(rows_held + PIXEL_TILE - 1)), recorded = threadIdx.x;
    // Before the first image lies one that does not exist.
    PixelPosition at = pixel_position(first + threadIdx.x + lines * across - halo, lines, across);
    at.image--;
    const PixelPosition tile_step = pixel_position(PIXEL_TILE, lines, across);
    auto record_row = [&]() {
        bool exists = at.image >= 0 && at.image < images && at.line < task.height && at.column < task.width;
        row_index[recorded & (ring - 1)] = exists ? (at.image * task.height + at.line) * task.width + at.column : -1;
        recorded += PIXEL_TILE;
        advance(at, tile_step, lines, across);
    };
    while (recorded < rows_held + PIXEL_TILE) record_row();
    __syncthreads();

    // A thread copies the same four columns of every sixteenth row.
    int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
    u32 to = shared_address(shared) + (row * 32 + (chunk ^ row % 4 * 2) * 4) * 4;
    const float *x = task.x + c0 + chunk * 4, *dy = task.dy + (n0 + chunk * 4 < task.n ? n0 + chunk * 4 : 0);
    bool in_n = n0 + chunk * 4 < task.n;
    u32 x_bytes = task.from_c * 4, dy_bytes = task.n * 4;
    // Starts copying every APARTth of 4 · APART rows from row r of a step on, those below `end`. Their indices, from
    // `first_index` of the ring on, are read before the first copy. Without `valid`, zeros are written.
    auto copy_rows = [&](u32 stage, const float* from, u32 bytes, u32 first_index, int r, int end, bool valid) {
        int rows[4];
#pragma unroll
        for (int i = 0; i < 4; i++) rows[i] = row_index[(first_index + i * APART) & (ring - 1)];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (r + i * APART < end)
                cp_async_16(stage + i * APART * 128, (const float*)((const char*)from + (u64)(u32)max(rows[i], 0) * bytes), valid && rows[i] != -1);
    };
    int loaded = 0;
    auto load = [&]() {
        if (loaded < steps) {
            u32 stage = to + loaded % 2 * (rows_held + PIXEL_TILE) * 128, first_index = loaded * PIXEL_TILE + row;
            for (int r = row; r < rows_held; r += 4 * APART) copy_rows(stage + (r - row) * 128, x, x_bytes, first_index + r - row, r, rows_held, true);
#pragma unroll
            for (int r = 0; r < PIXEL_TILE; r += 4 * APART)
                copy_rows(stage + (rows_held + r) * 128, dy, dy_bytes, first_index + halo + r, r, PIXEL_TILE, in_n);
            loaded++;
        }
        cp_async_commit();
    };
    Accumulators<2, 9> sums;
    load();
    // All threads have read the first step's rows before the ring is overwritten.
    __syncthreads();
    for (int step = 0; step < steps; step++) {
        // The other stage was last read before the barrier.
        load();
        record_row();
        cp_async_wait<1>();
        __syncthreads();
        const float *stage = shared + step % 2 * (rows_held + PIXEL_TILE) * 32, *a[2], *b[9];
#pragma unroll
        for (int i = 0; i < 2; i++) a[i] = stage + (rows_held + t) * 32 + ((i * 16 + 2 * g) ^ t * 8);
#pragma unroll
        for (int tap = 0; tap < 9; tap++) {
            int r = t + tap / 3 * across + tap % 3;
            b[tap] = stage + r * 32 + ((warp * 8 + g) ^ r % 4 * 8);
        }
#pragma unroll 4
        for (int k = 0; k < PIXEL_TILE * 32; k += 8 * 32) {
            FragA fa[2];
            FragB fb;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float2 dy_row = *(const float2*)(a[i] + k), dy_row4 = *(const float2*)(a[i] + k + 4 * 32);
                set_rounded(fa[i], dy_row.x, dy_row.y, dy_row4.x, dy_row4.y);
            }
#pragma unroll
            for (int tap = 0; tap < 9; tap++) {
                set_rounded(fb, b[tap][k], b[tap][k + 4 * 32]);
#pragma unroll
                for (int i = 0; i < 2; i++) mma(sums.partial[i][tap], fa[i], fb);
            }
        }
        sums.flush_partial();
        __syncthreads();
    }
    int depth = 9 * task.from_c;
    float* out = task.partials + (size_t)split * ((size_t)task.n * depth + task.n) + c0 + warp * 8 + 2 * t;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int n = n0 + i * 16 + 2 * g + h;
            if (n >= task.n) continue;
#pragma unroll
            for (int tap = 0; tap < 9; tap++)
                *(float2*)(out + (size_t)n * depth + tap * task.from_c) = make_float2(sums.at(i, tap, 2 * h), sums.at(i, tap, 2 * h + 1));
        }
}

extern "C" __global__ void __launch_bounds__(128, 2) convolution_same_weight_grad(
    const SameWeightGradTask* tasks, const int* shape) {
    grid_dependency_sync();
    same_weight_grad(tasks, shape);
}
