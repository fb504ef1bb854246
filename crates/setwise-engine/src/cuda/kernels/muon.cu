// Muon: weight matrices move along the orthogonal matrix nearest to their momentum, found by Newton–Schulz iteration
// (see muon.rs). Matrices are bf16 with the shorter side as rows, both sides zero-padded to multiples of 64. Every
// product keeps the padding zero.

struct MuonTask {
    float* params;
    const float *first, *grads;
    double* partials;
    // X before and after an iteration, A = X Xᵀ, and the polynomial B.
    unsigned short *x, *next, *gram, *polynomial;
    const Controls* controls;
    const Results* results;
    // Sides of the weights and of the padded matrix; `transposed` where rows are the longer side.
    int rows, cols, shorter, longer, transposed;
    float momentum, gain, margin, tiny;
    float a, b, c;
};

// Partial sums of a norm, and side of a tile.
#define MUON_PARTIALS 8
#define MUON_TILE 64
// Row stride of a tile in shared memory; eight rows at one column lie in different banks.
#define MUON_ROW 72

// Nesterov momentum: clipped gradient + momentum · first moment.
__device__ __forceinline__ float nesterov(const MuonTask& task, float clip_scale, size_t i) {
    return clip_scale * task.grads[i] + task.momentum * task.first[i];
}

// partials[b] = Σ u² over chunk b of the Nesterov momentum u, in double. Grid: (MUON_PARTIALS, matrices).
extern "C" __global__ void __launch_bounds__(256) muon_norm_partials(const MuonTask* tasks, const int* shape) {
    grid_dependency_sync();
    const MuonTask task = tasks[blockIdx.y];
    __shared__ double sums[256];
    float clip_scale = task.results->clip_scale;
    size_t len = (size_t)task.rows * task.cols, each = (len + MUON_PARTIALS - 1) / MUON_PARTIALS;
    size_t last = min(len, (blockIdx.x + 1) * each);
    double sum = 0.0;
    for (size_t i = blockIdx.x * each + threadIdx.x; i < last; i += 256) {
        double u = nesterov(task, clip_scale, i);
        sum += u * u;
    }
    sums[threadIdx.x] = sum;
    add_up<256>(sums);
    if (threadIdx.x == 0) task.partials[blockIdx.x] = sums[0];
}

// The block's 64 by 64 tile of the weights.
struct WeightTile {
    int row, col;
    bool exists;
    __device__ __forceinline__ WeightTile(const MuonTask& task) {
        int across = (task.cols + MUON_TILE - 1) / MUON_TILE;
        row = blockIdx.x / across * MUON_TILE, col = blockIdx.x % across * MUON_TILE;
        exists = row < task.rows;
    }
};

// X = u / (margin · ‖u‖ + tiny) in bf16, transposed if rows are the longer side. Grid: (tiles, matrices). x is written.
extern "C" __global__ void __launch_bounds__(256) muon_normalise(const MuonTask* tasks, const int* shape) {
    grid_dependency_sync();
    const MuonTask task = tasks[blockIdx.y];
    __shared__ float tile[MUON_TILE][MUON_TILE + 1];
    WeightTile at(task);
    if (!at.exists) return;
    double square_sum = 0.0;
    for (int i = 0; i < MUON_PARTIALS; i++) square_sum += task.partials[i];
    float clip_scale = task.results->clip_scale, inverse = 1.0f / (task.margin * (float)sqrt(square_sum) + task.tiny);
    int lane = threadIdx.x % MUON_TILE;
    for (int r = threadIdx.x / MUON_TILE; r < MUON_TILE; r += 256 / MUON_TILE) {
        int row = at.row + r, col = at.col + lane;
        bool inside = row < task.rows && col < task.cols;
        float u = inside ? inverse * nesterov(task, clip_scale, (size_t)row * task.cols + col) : 0.0f;
        if (task.transposed) tile[lane][r] = u; else tile[r][lane] = u;
    }
    __syncthreads();
    int down = task.transposed ? at.col : at.row, across = task.transposed ? at.row : at.col;
    for (int r = threadIdx.x / 32; r < MUON_TILE; r += 8) {
        int c = 2 * (threadIdx.x % 32);
        *(u32*)(task.x + (size_t)(down + r) * task.longer + across + c) = bf16x2(tile[r][c], tile[r][c + 1]);
    }
}

// params −= muon_rate · gain · X, unless the step is not finite. Grid: (tiles, matrices); a block owns a tile of
// params, which are updated in place.
extern "C" __global__ void __launch_bounds__(256) muon_update(const MuonTask* tasks, const int* shape) {
    grid_dependency_sync();
    const MuonTask task = tasks[blockIdx.y];
    __shared__ float tile[MUON_TILE][MUON_TILE + 1];
    WeightTile at(task);
    if (!at.exists || task.results->finite == 0.0f) return;
    int down = task.transposed ? at.col : at.row, across = task.transposed ? at.row : at.col;
    for (int r = threadIdx.x / 32; r < MUON_TILE; r += 8) {
        int c = 2 * (threadIdx.x % 32);
        u32 two = *(const u32*)(task.x + (size_t)(down + r) * task.longer + across + c);
        tile[r][c] = __uint_as_float(two << 16);
        tile[r][c + 1] = __uint_as_float(two & 0xffff0000u);
    }
    __syncthreads();
    float rate = task.controls->muon_rate * task.gain;
    int lane = threadIdx.x % MUON_TILE;
    for (int r = threadIdx.x / MUON_TILE; r < MUON_TILE; r += 256 / MUON_TILE) {
        int row = at.row + r, col = at.col + lane;
        if (row < task.rows && col < task.cols)
            task.params[(size_t)row * task.cols + col] -= rate * (task.transposed ? tile[lane][r] : tile[r][lane]);
    }
}

// C += A B with A of 16 by 16 bf16 numbers.
__device__ __forceinline__ void mma_bf16(float* c, const u32* a, const u32* b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Starts copying a 64 by 64 bf16 tile to shared memory, by 128 threads.
__device__ __forceinline__ void load_tile_bf16(unsigned short (*to)[MUON_ROW], const unsigned short* from, int ld) {
    for (int i = threadIdx.x; i < MUON_TILE * MUON_TILE / 8; i += 128) {
        int row = i / 8, col = i % 8 * 8;
        cp_async_16(shared_address(&to[row][col]), from + (size_t)row * ld + col, true);
    }
}

// out = alpha · (left rightᵀ) + beta · plus, or left right without TRANSPOSED. left is [m, k], right is [n, k] or [k,
// n], all dense bf16. A block of four warps owns a 64 by 64 tile of out, which is written; double-buffered over k.
template <bool TRANSPOSED>
__device__ __forceinline__ void muon_product(const unsigned short* left, const unsigned short* right, const unsigned short* plus,
                                             unsigned short* out, int m, int n, int k, float alpha, float beta) {
    __shared__ __align__(16) unsigned short lefts[2][MUON_TILE][MUON_ROW], rights[2][MUON_TILE][MUON_ROW];
    int across = n / MUON_TILE, row = blockIdx.x / across * MUON_TILE, col = blockIdx.x % across * MUON_TILE;
    if (row >= m) return;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, down = warp / 2 * 32, over = warp % 2 * 32;
    auto fetch = [&](int step) {
        load_tile_bf16(lefts[step % 2], left + (size_t)row * k + step * MUON_TILE, k);
        if (TRANSPOSED) load_tile_bf16(rights[step % 2], right + (size_t)col * k + step * MUON_TILE, k);
        else load_tile_bf16(rights[step % 2], right + (size_t)step * MUON_TILE * n + col, n);
        cp_async_commit();
    };
    float sums[2][4][4] = {};
    int steps = k / MUON_TILE;
    fetch(0);
    for (int step = 0; step < steps; step++) {
        if (step + 1 < steps) {
            fetch(step + 1);
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        auto l = lefts[step % 2], r = rights[step % 2];
#pragma unroll
        for (int inner = 0; inner < MUON_TILE; inner += 16) {
            u32 a[2][4], b[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                ldmatrix_x4(a[i], &l[down + 16 * i + lane % 16][inner + lane / 16 * 8]);
                if (TRANSPOSED) ldmatrix_x4(b[i], &r[over + 16 * i + lane % 8 + lane / 16 * 8][inner + lane / 8 % 2 * 8]);
                else ldmatrix_x4_trans(b[i], &r[inner + lane % 8 + lane / 8 % 2 * 8][over + 16 * i + lane / 16 * 8]);
            }
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) mma_bf16(sums[i][j], a[i], &b[j / 2][j % 2 * 2]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                size_t at = (size_t)(row + down + 16 * i + lane / 4 + 8 * half) * n + col + over + 8 * j + lane % 4 * 2;
                u32 two = beta != 0.0f ? *(const u32*)(plus + at) : 0;
                float low = alpha * sums[i][j][2 * half] + beta * __uint_as_float(two << 16);
                float high = alpha * sums[i][j][2 * half + 1] + beta * __uint_as_float(two & 0xffff0000u);
                *(u32*)(out + at) = bf16x2(low, high);
            }
}

// gram = A = X Xᵀ, written. Grid: (tiles, matrices), here and below.
extern "C" __global__ void __launch_bounds__(128) muon_gram(const MuonTask* tasks, const int* shape) {
    grid_dependency_sync();
    const MuonTask task = tasks[blockIdx.y];
    muon_product<true>(task.x, task.x, task.x, task.gram, task.shorter, task.shorter, task.longer, 1.0f, 0.0f);
}

// polynomial = B = b A + c A², written; A is symmetric.
extern "C" __global__ void __launch_bounds__(128) muon_polynomial(const MuonTask* tasks, const int* shape) {
    grid_dependency_sync();
    const MuonTask task = tasks[blockIdx.y];
    muon_product<true>(task.gram, task.gram, task.gram, task.polynomial, task.shorter, task.shorter, task.shorter, task.c, task.b);
}

// next = a X + B X, written.
extern "C" __global__ void __launch_bounds__(128) muon_iterate(const MuonTask* tasks, const int* shape) {
    grid_dependency_sync();
    const MuonTask task = tasks[blockIdx.y];
    muon_product<false>(task.polynomial, task.x, task.x, task.next, task.shorter, task.longer, task.shorter, 1.0f, task.a);
}
