// Convolutions that keep an image's size: an odd window, stride 1, half a window of zeros around the image. The pixel that a tap of the window
// sees is then a fixed number of rows away, so that what a stretch of pixels sees lies in one stretch of rows.

// Operands are rounded where they are written; only weights are cut.
__device__ __forceinline__ void take(FragA& f, float a, float b, float c, float d) {
#if PRECISION == 1
    f.v[0] = __float_as_uint(a); f.v[1] = __float_as_uint(b); f.v[2] = __float_as_uint(c); f.v[3] = __float_as_uint(d);
#else
    f.set(a, b, c, d);
#endif
}

__device__ __forceinline__ void take(FragB& f, float a, float b) {
#if PRECISION == 1
    f.v[0] = __float_as_uint(a); f.v[1] = __float_as_uint(b);
#else
    f.set(a, b);
#endif
}

// y[p, n] = Σ x[p + turn · ((i − half) · width + j − half), c] · w[n, i, j, c] over taps (i, j) within the image: a convolution for turn = 1, the
// gradient of one's input for turn = −1 and turned weights. Channels on both sides in whole chunks, those of x in multiples of DEPTH. Where
// `moments` are wanted, the blocks of some pixels leave Σ y and Σ y² of every channel over them in their part, [block][2 · n].
struct SameTask {
    const float *x, *w;
    float* y;
    double* moments;
    int height, width, from_c, n, kernel, turn, accumulate;
    Space space;
};

// How warps share the products of a block of BM pixels by BN channels: each has WM by WN, in fragments of 16 pixels by 8 channels. Weights lie in rows of S numbers.
template <int M, int N, int WM, int WN>
struct WarpProducts {
    static constexpr int BM = M, BN = N, THREADS = (M / WM) * (N / WN) * 32, FRAGMENTS = WM / 16, COLUMNS = WN / 8, S = DEPTH + 4;
    // Rows between fragments, warps with the same columns, bytes of a stage of weights.
    static constexpr int ROWS = 16, SHARING = M / WM;
    static constexpr u32 STAGE = N * S * 4;
    __device__ static __forceinline__ float* begin() {
        extern __shared__ __align__(16) float shared[];
        return shared;
    }
    __device__ static __forceinline__ int first_row(int warp) { return warp % SHARING * WM; }
    __device__ static __forceinline__ int first_column(int warp) { return warp / SHARING * WN; }
    __device__ static __forceinline__ int among_sharing(int warp) { return warp % SHARING; }
    // Where a chunk of weights lies in a stage.
    __device__ static __forceinline__ u32 place(int row, int chunk) { return (row * S + chunk * 4) * 4; }
    // Before the barrier that shows weights to all.
    __device__ static __forceinline__ void arrived() {}

    // Of the pixels whose addresses are `a` with the weights of a stage, over DEPTH channels.
    __device__ static __forceinline__ void multiply(float (*sums)[COLUMNS][4], const u32* a, u32 stage) {
        int lane = threadIdx.x % 32;
        u32 b = stage + place(first_column(threadIdx.x / 32) + lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
        for (int k = 0; k < DEPTH; k += 8) {
            FragA fa[FRAGMENTS];
            FragB fb[COLUMNS];
            float v[4];
#pragma unroll
            for (int i = 0; i < FRAGMENTS; i++) {
                load_blocks(v, a[i] + k * 4);
                take(fa[i], v[0], v[1], v[2], v[3]);
            }
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 2) {
                load_blocks(v, b + (j * 8 * S + k) * 4);
                take(fb[j], v[0], v[1]);
                take(fb[j + 1], v[2], v[3]);
            }
#pragma unroll
            for (int i = 0; i < FRAGMENTS; i++)
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) mma(sums[i][j], fa[i], fb[j]);
        }
    }
};

// A block owns BM pixels by BN channels. For DEPTH channels at a time it holds the rows its pixels see, once for all taps, and takes the weights
// tap by tap; pixels outside their image are read from a row of zeros.
template <typename Products>
__device__ __forceinline__ void convolve_same(const SameTask* tasks, const int* shape) {
    constexpr int BM = Products::BM, BN = Products::BN, THREADS = Products::THREADS, FRAGMENTS = Products::FRAGMENTS, COLUMNS = Products::COLUMNS;
    constexpr int ROWS = Products::ROWS, S = DEPTH + 4, STAGES = 3;
    constexpr u32 STAGE = Products::STAGE;
    const SameTask task = tasks[blockIdx.z];
    int rows = rows_of(task.space, shape) * task.height * task.width, m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;
    if (m0 >= rows) return;
    int half = task.kernel / 2, reach = half * (task.width + 1), held = BM + 2 * reach;
    int taps = task.kernel * task.kernel, chunks = task.from_c / DEPTH, steps = taps * chunks;
    float *weights = Products::begin(), *zeros = weights + STAGES * STAGE / 4, *seen = zeros + S;
    if (threadIdx.x < S) zeros[threadIdx.x] = 0.0f;

    // A thread copies the same four columns of every APARTth row.
    constexpr int APART = THREADS / 8;
    int column = threadIdx.x % 8 * 4, row = threadIdx.x / 8, depth = taps * task.from_c;
    auto load_seen = [&](int chunk) {
        int m = m0 - reach + row;
        const float* from = task.x + (long long)m * task.from_c + chunk * DEPTH + column;
        float* to = seen + (chunk % 2 * held + row) * S + column;
#pragma unroll 4
        for (int r = row; r < held; r += APART) {
            bool ok = m >= 0 && m < rows;
            copy16(to, ok ? from : task.x, ok);
            m += APART;
            from += APART * task.from_c;
            to += APART * S;
        }
    };
    // Where the weights of the next step come from and go to. Rows that do not exist are zeros, and read as if they were the first.
    const float* from = task.w + (size_t)(n0 + row < task.n ? n0 + row : 0) * depth + column;
    int beyond[BN / APART];
#pragma unroll
    for (int r = 0; r < BN / APART; r++) beyond[r] = n0 + row + r * APART < task.n ? r * APART * depth : -1;
    u32 stage = shared_at(weights), stages_end = stage + STAGES * STAGE, to = stage + Products::place(row, column / 4), to_end = to + STAGES * STAGE;
    int next = 0, next_tap = 0;
    auto load_weights = [&]() {
        if (next < steps) {
#pragma unroll
            for (int r = 0; r < BN / APART; r++) copy16(to + Products::place(r * APART, 0), from + max(beyond[r], 0), beyond[r] >= 0);
            to += STAGE;
            if (to == to_end) to -= STAGES * STAGE;
            next++;
            from += task.from_c;
            if (++next_tap == taps) { next_tap = 0; from += DEPTH - depth; }
        }
        copies_commit();
    };
    load_seen(0);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) load_weights();

    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = Products::first_row(warp), wn = Products::first_column(warp);
    // For each row whose address this lane names: the taps within its image, columns in the lower half and lines in the upper. They follow each
    // other and the middle one is always among them.
    auto within = [&](int at, int size) {
        int low = task.turn > 0 ? half - at : half + at - (size - 1), high = low + size - 1;
        return (2u << min(high, 15)) - (1u << max(low, 0));
    };
    u32 inside[FRAGMENTS];
#pragma unroll
    for (int i = 0; i < FRAGMENTS; i++) {
        int m = m0 + wm + i * ROWS + lane % 16;
        Place p = place_of(m, task.height, task.width);
        inside[i] = m < rows ? within(p.line, task.height) << 16 | within(p.column, task.width) : 0;
    }
    Sums<FRAGMENTS, COLUMNS> sums;
    int chunk = 0, tap_i = 0, tap_j = 0;
    // What this lane names: a row of zeros, or its first pixel.
    u32 nothing = shared_at(zeros) + lane / 16 * 16, own = shared_at(seen) + ((reach + wm + lane % 16) * S + lane / 16 * 4) * 4;
    for (int step = 0; step < steps; step++) {
        copies_wait<STAGES - 2>();
        Products::arrived();
        __syncthreads();
        // What is loaded now takes the place of what was read before the barrier just passed. A window has at least nine taps, so that rows
        // are waited for long after their copies began.
        if (tap_i + tap_j == 0 && chunk + 1 < chunks) load_seen(chunk + 1);
        load_weights();
        u32 wanted = 1u << (16 + tap_i) | 1u << tap_j, a[FRAGMENTS];
        u32 shifted = own + (chunk % 2 * held + task.turn * ((tap_i - half) * task.width + tap_j - half)) * (S * 4);
#pragma unroll
        for (int i = 0; i < FRAGMENTS; i++) a[i] = (inside[i] & wanted) == wanted ? shifted + i * ROWS * S * 4 : nothing;
        Products::multiply(sums.part, a, stage);
        sums.end_part();
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
        // What lanes have seen takes the place of weights and pixels, [sum][channel][lane of those with the same channels], at a distance that keeps writes
        // and reads free of bank conflicts.
        constexpr int LANES = Products::SHARING * 8, DISTANCE = LANES + 2;
        double *all = (double*)weights, *own = all + (wn + 2 * t) * DISTANCE + Products::among_sharing(warp) * 8 + g;
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
                own[(j * 8 + e) * DISTANCE] = moments.sum(count);
                own[(BN + j * 8 + e) * DISTANCE] = moments.squares(count);
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

// Blocks whose registers have to fit a multiprocessor: as many as shared memory lets in, fewer where every sum is held twice.
#if PRECISION == 0
#define SAME_BLOCKS 2
#else
#define SAME_BLOCKS 3
#endif

extern "C" __global__ void __launch_bounds__(128, SAME_BLOCKS) image_same_narrow(const SameTask* t, const int* s) { in_turn(); convolve_same<WarpProducts<256, 32, 64, 32>>(t, s); }
extern "C" __global__ void __launch_bounds__(128, SAME_BLOCKS) image_same_wide(const SameTask* t, const int* s) { in_turn(); convolve_same<WarpProducts<128, 64, 64, 32>>(t, s); }

// A part of the gradient of a 3 by 3 window's weights, over one of `splits` stretches; part p is written to parts + p · (9 · n · from_c + n).
struct SameWeightsTask {
    const float *dy, *x;
    float* parts;
    int height, width, from_c, n, splits;
    Space space;
};

#define STRETCH 128

// A block owns 32 channels of dy by 32 of x and all nine taps, a warp eight of x. Pixels are counted with one column of zeros after each line and one
// line of zeros after each image: those are all the zeros that windows see, and a dy of zero there takes them out of the sum, so that a
// tap is the same number of rows for every pixel. Column c of row r lies at c ^ (r % 4 · 8): the four rows and eight columns that a warp reads
// together are 32 banks, and since sums advance by eight rows a lane keeps its columns for every tap. Rows g and g + 8 of a product are channels 2g and 2g + 1 of sixteen.
__device__ __forceinline__ void same_weights(const SameWeightsTask* tasks, const int* shape) {
    constexpr int APART = 16;
    const SameWeightsTask task = tasks[blockIdx.z];
    int across = task.width + 1, lines = task.height + 1, images = rows_of(task.space, shape), total = images * lines * across;
    int tiles_c = task.from_c / 32, n0 = blockIdx.x / tiles_c * 32, c0 = blockIdx.x % tiles_c * 32, split = blockIdx.y;
    if (n0 >= task.n || split >= task.splits) return;
    int each = ((total + task.splits - 1) / task.splits + STRETCH - 1) / STRETCH * STRETCH, first = split * each;
    int left = min(total - first, each), steps = left > 0 ? (left + STRETCH - 1) / STRETCH : 0;
    int reach = across + 1, held = STRETCH + 2 * reach;
    extern __shared__ __align__(16) float shared[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;

    // Which row of memory each row of a step is, or none: found once for all columns and for both x and dy, row r of dy being row reach + r of x. Of a step's rows
    // all but the last STRETCH are known from the step before, and they lie in a ring that holds those of two steps.
    int* places = (int*)(shared + 2 * (held + STRETCH) * 32);
    u32 ring = 1u << (32 - __clz(held + STRETCH - 1)), noted = threadIdx.x;
    // Before the first image lies one that does not exist.
    Place at = place_of(first + threadIdx.x + lines * across - reach, lines, across);
    at.image--;
    const Place stretch = place_of(STRETCH, lines, across);
    auto note = [&]() {
        bool exists = at.image >= 0 && at.image < images && at.line < task.height && at.column < task.width;
        places[noted & (ring - 1)] = exists ? (at.image * task.height + at.line) * task.width + at.column : -1;
        noted += STRETCH;
        advance(at, stretch, lines, across);
    };
    while (noted < held + STRETCH) note();
    __syncthreads();

    // A thread copies the same four columns of every sixteenth row.
    int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
    u32 to = shared_at(shared) + (row * 32 + (chunk ^ row % 4 * 2) * 4) * 4;
    const float *x = task.x + c0 + chunk * 4, *dy = task.dy + (n0 + chunk * 4 < task.n ? n0 + chunk * 4 : 0);
    bool in_n = n0 + chunk * 4 < task.n;
    u32 x_bytes = task.from_c * 4, dy_bytes = task.n * 4;
    // Four rows from row r of a step on, of `end`: where they lie is read before the first of them is copied.
    auto copy_rows = [&](u32 stage, const float* from, u32 bytes, u32 place, int r, int end, bool wanted) {
        int rows[4];
#pragma unroll
        for (int i = 0; i < 4; i++) rows[i] = places[(place + i * APART) & (ring - 1)];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (r + i * APART < end)
                copy16(stage + i * APART * 128, (const float*)((const char*)from + (u64)(u32)max(rows[i], 0) * bytes), wanted && rows[i] != -1);
    };
    int loaded = 0;
    auto load = [&]() {
        if (loaded < steps) {
            u32 stage = to + loaded % 2 * (held + STRETCH) * 128, place = loaded * STRETCH + row;
            for (int r = row; r < held; r += 4 * APART) copy_rows(stage + (r - row) * 128, x, x_bytes, place + r - row, r, held, true);
#pragma unroll
            for (int r = 0; r < STRETCH; r += 4 * APART)
                copy_rows(stage + (held + r) * 128, dy, dy_bytes, place + reach + r, r, STRETCH, in_n);
            loaded++;
        }
        copies_commit();
    };
    Sums<2, 9> sums;
    load();
    // All have read the rows of the first step before others take their place in the ring.
    __syncthreads();
    for (int step = 0; step < steps; step++) {
        // The other stage was read before the last barrier; the rows of the stage after that are new beyond those of this one.
        load();
        note();
        copies_wait<1>();
        __syncthreads();
        const float *stage = shared + step % 2 * (held + STRETCH) * 32, *a[2], *b[9];
#pragma unroll
        for (int i = 0; i < 2; i++) a[i] = stage + (held + t) * 32 + ((i * 16 + 2 * g) ^ t * 8);
#pragma unroll
        for (int tap = 0; tap < 9; tap++) {
            int r = t + tap / 3 * across + tap % 3;
            b[tap] = stage + r * 32 + ((warp * 8 + g) ^ r % 4 * 8);
        }
#pragma unroll 4
        for (int k = 0; k < STRETCH * 32; k += 8 * 32) {
            FragA fa[2];
            FragB fb;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float2 low = *(const float2*)(a[i] + k), high = *(const float2*)(a[i] + k + 128);
                take(fa[i], low.x, low.y, high.x, high.y);
            }
#pragma unroll
            for (int tap = 0; tap < 9; tap++) {
                take(fb, b[tap][k], b[tap][k + 128]);
#pragma unroll
                for (int i = 0; i < 2; i++) mma(sums.part[i][tap], fa[i], fb);
            }
        }
        sums.end_part();
        __syncthreads();
    }
    int depth = 9 * task.from_c;
    float* out = task.parts + (size_t)split * ((size_t)task.n * depth + task.n) + c0 + warp * 8 + 2 * t;
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

extern "C" __global__ void __launch_bounds__(128, 2) image_same_weights(const SameWeightsTask* t, const int* s) { in_turn(); same_weights(t, s); }
