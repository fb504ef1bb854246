// Linear maps of ragged rows: products, gradients of inputs, gradients of weights in parts that are summed in a fixed order.
//
// A block owns a tile of BM by BN numbers of one product; its warps own WM by WN of it. Both operands come through shared
// memory in two stages of BK, padded so that no two lanes of a fragment meet in a bank.

#define BK 32

// y = act(x Wᵀ + b) + residual.
struct LinearTask {
    const float *x, *w, *bias;
    float* y;
    const float* residual;
    int ldx, ldy, ldr, k, n, activation, vec;
    Space space;
};

__device__ __forceinline__ float activate(float x, int activation) {
    if (activation == 1) return x > 0.0f ? x : 0.0f;
    if (activation == 2) return 1.0f / (1.0f + __expf(-x));
    return x;
}

// acc += A B for one stage: A is [BM][BK] (row-major) or [BK][BM], B is [BN][BK] or [BK][BN].
template <int WM, int WN, bool A_ROWS, bool B_ROWS, int SA, int SB>
__device__ __forceinline__ void multiply(float (*acc)[WN / 8][4], const float* a, const float* b, int wm, int wn) {
    int g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < BK; k += 8) {
        FragA fa[WM / 16];
        FragB fb[WN / 8];
#pragma unroll
        for (int i = 0; i < WM / 16; i++) {
            int m = wm + i * 16 + g;
            if (A_ROWS) fa[i].set(a[m * SA + k + t], a[(m + 8) * SA + k + t], a[m * SA + k + t + 4], a[(m + 8) * SA + k + t + 4]);
            else fa[i].set(a[(k + t) * SA + m], a[(k + t) * SA + m + 8], a[(k + t + 4) * SA + m], a[(k + t + 4) * SA + m + 8]);
        }
#pragma unroll
        for (int j = 0; j < WN / 8; j++) {
            int n = wn + j * 8 + g;
            if (B_ROWS) fb[j].set(b[n * SB + k + t], b[n * SB + k + t + 4]);
            else fb[j].set(b[(k + t) * SB + n], b[(k + t + 4) * SB + n]);
        }
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < WN / 8; j++) mma(acc[i][j], fa[i], fb[j]);
    }
}

template <int BM, int BN, int WM, int WN>
__device__ __forceinline__ void linear_forward(const LinearTask* tasks, const int* shape) {
    constexpr int THREADS = (BM / WM) * (BN / WN) * 32, S = BK + 4;
    const LinearTask task = tasks[blockIdx.z];
    int rows = rows_of(task.space, shape), m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;
    if (m0 >= rows || n0 >= task.n) return;
    extern __shared__ __align__(16) float shared[];
    float *as[2] = {shared, shared + BM * S}, *bs[2] = {shared + 2 * BM * S, shared + 2 * BM * S + BN * S};
    float acc[WM / 16][WN / 8][4] = {};
    int warp = threadIdx.x / 32, wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
    int steps = (task.k + BK - 1) / BK;
    auto load = [&](int step) {
        load_tile<BM, BK, S, THREADS>(as[step & 1], task.x, task.ldx, m0, rows, step * BK, task.k, task.vec);
        load_tile<BN, BK, S, THREADS>(bs[step & 1], task.w, task.k, n0, task.n, step * BK, task.k, task.vec);
        copies_commit();
    };
    load(0);
    for (int step = 0; step < steps; step++) {
        if (step + 1 < steps) { load(step + 1); copies_wait<1>(); } else copies_wait<0>();
        __syncthreads();
        multiply<WM, WN, true, true, S, S>(acc, as[step & 1], bs[step & 1], wm, wn);
        __syncthreads();
    }
    int g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int m = m0 + wm + i * 16 + g + (e / 2) * 8, n = n0 + wn + j * 8 + 2 * t + e % 2;
                if (m >= rows || n >= task.n) continue;
                float v = acc[i][j][e] + (task.bias ? task.bias[n] : 0.0f);
                v = activate(v, task.activation);
                if (task.residual) v += task.residual[(size_t)m * task.ldr + n];
                task.y[(size_t)m * task.ldy + n] = v;
            }
}

extern "C" __global__ void __launch_bounds__(128) linear_forward_small(const LinearTask* t, const int* s) { linear_forward<64, 32, 16, 32>(t, s); }
extern "C" __global__ void __launch_bounds__(256) linear_forward_large(const LinearTask* t, const int* s) { linear_forward<128, 64, 32, 32>(t, s); }

// One term of an input's gradient: dy W.
struct InputTerm {
    const float *dy, *w;
    // Whether rows of dy, and rows of w, can be read sixteen bytes at a time.
    int ld, n, vec, w_vec;
};

// dx = Σ dy W, over all maps that read x; added to what is there if `accumulate`, and gated by x > 0 where x came out of a ReLU.
struct InputTask {
    float* dx;
    const float* gate;
    const InputTerm* terms;
    int ldx, cols, count, accumulate;
    Space space;
};

template <int BM, int BN, int WM, int WN>
__device__ __forceinline__ void linear_inputs(const InputTask* tasks, const int* shape) {
    constexpr int THREADS = (BM / WM) * (BN / WN) * 32, SA = BK + 4, SB = BN + 8;
    const InputTask task = tasks[blockIdx.z];
    int rows = rows_of(task.space, shape), m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;
    if (m0 >= rows || n0 >= task.cols) return;
    extern __shared__ __align__(16) float shared[];
    float *as[2] = {shared, shared + BM * SA}, *bs[2] = {shared + 2 * BM * SA, shared + 2 * BM * SA + BK * SB};
    float acc[WM / 16][WN / 8][4] = {};
    int warp = threadIdx.x / 32, wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
    int term = 0, at = 0, stage = 0;
    auto load = [&](int into) {
        const InputTerm part = task.terms[term];
        load_tile<BM, BK, SA, THREADS>(as[into], part.dy, part.ld, m0, rows, at, part.n, part.vec);
        load_tile<BK, BN, SB, THREADS>(bs[into], part.w, task.cols, at, part.n, n0, task.cols, part.w_vec);
        copies_commit();
        at += BK;
        if (at >= part.n) { at = 0; term++; }
    };
    load(0);
    while (true) {
        bool more = term < task.count;
        if (more) { load(stage ^ 1); copies_wait<1>(); } else copies_wait<0>();
        __syncthreads();
        multiply<WM, WN, true, false, SA, SB>(acc, as[stage], bs[stage], wm, wn);
        __syncthreads();
        if (!more) break;
        stage ^= 1;
    }
    int g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int m = m0 + wm + i * 16 + g + (e / 2) * 8, n = n0 + wn + j * 8 + 2 * t + e % 2;
                if (m >= rows || n >= task.cols) continue;
                size_t place = (size_t)m * task.ldx + n;
                float v = acc[i][j][e];
                if (task.accumulate) v += task.dx[place];
                if (task.gate) v = task.gate[place] > 0.0f ? v : 0.0f;
                task.dx[place] = v;
            }
}

extern "C" __global__ void __launch_bounds__(128) linear_inputs_small(const InputTask* t, const int* s) { linear_inputs<64, 32, 16, 32>(t, s); }
extern "C" __global__ void __launch_bounds__(256) linear_inputs_large(const InputTask* t, const int* s) { linear_inputs<128, 64, 32, 32>(t, s); }

// A part of dW = dyᵀ x and of the bias's gradient: the rows of one use, cut into `splits`. Part p of use u is written to
// parts + (u · splits + p) · (n · k + n).
struct WeightTask {
    const float *dy, *x;
    float* parts;
    int ldy, ldx, n, k, splits, vec;
    Space space;
};

template <int BM, int BN, int WM, int WN>
__device__ __forceinline__ void linear_weights(const WeightTask* tasks, const int* shape) {
    constexpr int THREADS = (BM / WM) * (BN / WN) * 32, SA = BM + 8, SB = BN + 8;
    const WeightTask task = tasks[blockIdx.z];
    int tiles_k = (task.k + BN - 1) / BN, tiles = ((task.n + BM - 1) / BM) * tiles_k;
    int split = blockIdx.y;
    if ((int)blockIdx.x >= tiles || split >= task.splits) return;
    int n0 = blockIdx.x / tiles_k * BM, k0 = blockIdx.x % tiles_k * BN;
    int rows = rows_of(task.space, shape);
    int each = ((rows + task.splits - 1) / task.splits + BK - 1) / BK * BK;
    int first = split * each, last = min(rows, first + each);
    extern __shared__ __align__(16) float shared[];
    float *as[2] = {shared, shared + BK * SA}, *bs[2] = {shared + 2 * BK * SA, shared + 2 * BK * SA + BK * SB};
    float acc[WM / 16][WN / 8][4] = {};
    float sum = 0.0f;
    int warp = threadIdx.x / 32, wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
    int steps = first < last ? (last - first + BK - 1) / BK : 0;
    auto load = [&](int step) {
        int row = first + step * BK;
        load_tile<BK, BM, SA, THREADS>(as[step & 1], task.dy, task.ldy, row, last, n0, task.n, task.vec);
        load_tile<BK, BN, SB, THREADS>(bs[step & 1], task.x, task.ldx, row, last, k0, task.k, task.vec);
        copies_commit();
    };
    if (steps) load(0);
    for (int step = 0; step < steps; step++) {
        if (step + 1 < steps) { load(step + 1); copies_wait<1>(); } else copies_wait<0>();
        __syncthreads();
        multiply<WM, WN, false, false, SA, SB>(acc, as[step & 1], bs[step & 1], wm, wn);
        if (k0 == 0 && threadIdx.x < BM)
            for (int r = 0; r < BK; r++) sum += as[step & 1][r * SA + threadIdx.x];
        __syncthreads();
    }
    float* out = task.parts + (size_t)split * ((size_t)task.n * task.k + task.n);
    int g = (threadIdx.x % 32) / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int n = n0 + wm + i * 16 + g + (e / 2) * 8, k = k0 + wn + j * 8 + 2 * t + e % 2;
                if (n < task.n && k < task.k) out[(size_t)n * task.k + k] = acc[i][j][e];
            }
    if (k0 == 0 && threadIdx.x < BM && n0 + threadIdx.x < task.n) out[(size_t)task.n * task.k + n0 + threadIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(64) linear_weights_small(const WeightTask* t, const int* s) { linear_weights<32, 32, 16, 32>(t, s); }
extern "C" __global__ void __launch_bounds__(256) linear_weights_large(const WeightTask* t, const int* s) { linear_weights<64, 128, 32, 32>(t, s); }

// Adds parts to a gradient in their order. Where `rows_per_part` is not zero only the parts of rows that exist count.
struct SumTask {
    const float* parts;
    float* out;
    size_t stride;
    int count, len, rows_per_part, pad;
    Space space;
};

extern "C" __global__ void sum_parts(const SumTask* tasks, const int* shape) {
    const SumTask task = tasks[blockIdx.y];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= task.len) return;
    int count = task.count;
    if (task.rows_per_part) count = min(count, (rows_of(task.space, shape) + task.rows_per_part - 1) / task.rows_per_part);
    float sum = 0.0f;
    for (int p = 0; p < count; p++) sum += task.parts[p * task.stride + i];
    task.out[i] += sum;
}

// In place: the gradient before an activation whose result is y.
struct ActivationTask {
    const float* y;
    float* dy;
    int ld, cols, activation, pad;
    Space space;
};

extern "C" __global__ void activation_backward(const ActivationTask* tasks, const int* shape) {
    const ActivationTask task = tasks[blockIdx.y];
    size_t total = (size_t)rows_of(task.space, shape) * task.cols;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        size_t at = i / task.cols * task.ld + i % task.cols;
        float y = task.y[at];
        task.dy[at] *= task.activation == 1 ? (y > 0.0f ? 1.0f : 0.0f) : y * (1.0f - y);
    }
}
