// Muon: weight matrices move along the orthogonal matrix nearest to their momentum (see muon.rs). Matrices lie here as bf16 numbers with their
// shorter side down and their longer side across, both filled up with zeros to a multiple of 64, which every product keeps zero.

struct MuonTask {
    float* params;
    const float *first, *grads;
    double* parts;
    // What a round reads and what it leaves, X·Xᵀ, and its polynomial.
    unsigned short *x, *next, *gram, *square;
    const Controls* controls;
    const Results* results;
    // Of the weights, and of the padded matrix; `turned` where rows are the longer side.
    int rows, cols, shorter, longer, turned;
    float momentum, gain, margin, tiny;
    float a, b, c;
};

#define MUON_PARTS 8
#define MUON_TILE 64
// Numbers of a row of a tile in shared memory, so that eight rows at one column lie in different banks.
#define MUON_ROW 72

// The gradient and the momentum after it.
__device__ __forceinline__ float ahead(const MuonTask& task, float scale, size_t i) {
    return scale * task.grads[i] + task.momentum * task.first[i];
}

extern "C" __global__ void __launch_bounds__(256) muon_length(const MuonTask* tasks, const int* shape) {
    in_turn();
    const MuonTask task = tasks[blockIdx.y];
    __shared__ double sums[256];
    float scale = task.results->scale;
    size_t len = (size_t)task.rows * task.cols, each = (len + MUON_PARTS - 1) / MUON_PARTS;
    size_t last = min(len, (blockIdx.x + 1) * each);
    double sum = 0.0;
    for (size_t i = blockIdx.x * each + threadIdx.x; i < last; i += 256) {
        double u = ahead(task, scale, i);
        sum += u * u;
    }
    sums[threadIdx.x] = sum;
    add_up<256>(sums);
    if (threadIdx.x == 0) task.parts[blockIdx.x] = sums[0];
}

// A tile of the weights, of which threads take neighbours in a row.
struct WeightTile {
    int row, col;
    bool any;
    __device__ __forceinline__ WeightTile(const MuonTask& task) {
        int across = (task.cols + MUON_TILE - 1) / MUON_TILE;
        row = blockIdx.x / across * MUON_TILE, col = blockIdx.x % across * MUON_TILE;
        any = row < task.rows;
    }
};

// The first X: what is to be made orthogonal, with a length below one.
extern "C" __global__ void __launch_bounds__(256) muon_start(const MuonTask* tasks, const int* shape) {
    in_turn();
    const MuonTask task = tasks[blockIdx.y];
    __shared__ float tile[MUON_TILE][MUON_TILE + 1];
    WeightTile at(task);
    if (!at.any) return;
    double square = 0.0;
    for (int i = 0; i < MUON_PARTS; i++) square += task.parts[i];
    float scale = task.results->scale, inverse = 1.0f / (task.margin * (float)sqrt(square) + task.tiny);
    int lane = threadIdx.x % MUON_TILE;
    for (int r = threadIdx.x / MUON_TILE; r < MUON_TILE; r += 256 / MUON_TILE) {
        int row = at.row + r, col = at.col + lane;
        bool inside = row < task.rows && col < task.cols;
        float u = inside ? inverse * ahead(task, scale, (size_t)row * task.cols + col) : 0.0f;
        if (task.turned) tile[lane][r] = u; else tile[r][lane] = u;
    }
    __syncthreads();
    int down = task.turned ? at.col : at.row, across = task.turned ? at.row : at.col;
    for (int r = threadIdx.x / 32; r < MUON_TILE; r += 8) {
        int c = 2 * (threadIdx.x % 32);
        *(u32*)(task.x + (size_t)(down + r) * task.longer + across + c) = bf16x2(tile[r][c], tile[r][c + 1]);
    }
}

// The parameters, moved along X.
extern "C" __global__ void __launch_bounds__(256) muon_finish(const MuonTask* tasks, const int* shape) {
    in_turn();
    const MuonTask task = tasks[blockIdx.y];
    __shared__ float tile[MUON_TILE][MUON_TILE + 1];
    WeightTile at(task);
    if (!at.any || task.results->ok == 0.0f) return;
    int down = task.turned ? at.col : at.row, across = task.turned ? at.row : at.col;
    for (int r = threadIdx.x / 32; r < MUON_TILE; r += 8) {
        int c = 2 * (threadIdx.x % 32);
        u32 two = *(const u32*)(task.x + (size_t)(down + r) * task.longer + across + c);
        tile[r][c] = __uint_as_float(two << 16);
        tile[r][c + 1] = __uint_as_float(two & 0xffff0000u);
    }
    __syncthreads();
    float rate = task.controls->matrices * task.gain;
    int lane = threadIdx.x % MUON_TILE;
    for (int r = threadIdx.x / MUON_TILE; r < MUON_TILE; r += 256 / MUON_TILE) {
        int row = at.row + r, col = at.col + lane;
        if (row < task.rows && col < task.cols)
            task.params[(size_t)row * task.cols + col] -= rate * (task.turned ? tile[lane][r] : tile[r][lane]);
    }
}

__device__ __forceinline__ void mma_bf16(float* c, const u32* a, const u32* b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// A tile of 64 by 64 numbers on its way to shared memory, by 128 threads.
__device__ __forceinline__ void fetch_tile(unsigned short (*to)[MUON_ROW], const unsigned short* from, int ld) {
    for (int i = threadIdx.x; i < MUON_TILE * MUON_TILE / 8; i += 128) {
        int row = i / 8, col = i % 8 * 8;
        copy16(shared_at(&to[row][col]), from + (size_t)row * ld + col, true);
    }
}

// out = alpha·(left·rightᵀ) + beta·plus, or left·right without TURNED: left is [m, k], right [n, k] or [k, n], all without gaps; a tile of 64 by
// 64 by four warps.
template <bool TURNED>
__device__ __forceinline__ void muon_product(const unsigned short* left, const unsigned short* right, const unsigned short* plus,
                                             unsigned short* out, int m, int n, int k, float alpha, float beta) {
    __shared__ __align__(16) unsigned short lefts[2][MUON_TILE][MUON_ROW], rights[2][MUON_TILE][MUON_ROW];
    int across = n / MUON_TILE, row = blockIdx.x / across * MUON_TILE, col = blockIdx.x % across * MUON_TILE;
    if (row >= m) return;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, down = warp / 2 * 32, over = warp % 2 * 32;
    auto fetch = [&](int step) {
        fetch_tile(lefts[step % 2], left + (size_t)row * k + step * MUON_TILE, k);
        if (TURNED) fetch_tile(rights[step % 2], right + (size_t)col * k + step * MUON_TILE, k);
        else fetch_tile(rights[step % 2], right + (size_t)step * MUON_TILE * n + col, n);
        copies_commit();
    };
    float sums[2][4][4] = {};
    int steps = k / MUON_TILE;
    fetch(0);
    for (int step = 0; step < steps; step++) {
        if (step + 1 < steps) {
            fetch(step + 1);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        auto l = lefts[step % 2], r = rights[step % 2];
#pragma unroll
        for (int inner = 0; inner < MUON_TILE; inner += 16) {
            u32 a[2][4], b[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                load_bits(a[i], &l[down + 16 * i + lane % 16][inner + lane / 16 * 8]);
                if (TURNED) load_bits(b[i], &r[over + 16 * i + lane % 8 + lane / 16 * 8][inner + lane / 8 % 2 * 8]);
                else load_turned(b[i], &r[inner + lane % 8 + lane / 8 % 2 * 8][over + 16 * i + lane / 16 * 8]);
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

// A = X·Xᵀ.
extern "C" __global__ void __launch_bounds__(128) muon_gram(const MuonTask* tasks, const int* shape) {
    in_turn();
    const MuonTask task = tasks[blockIdx.y];
    muon_product<true>(task.x, task.x, task.x, task.gram, task.shorter, task.shorter, task.longer, 1.0f, 0.0f);
}

// B = bA + cA², A being its own transpose.
extern "C" __global__ void __launch_bounds__(128) muon_square(const MuonTask* tasks, const int* shape) {
    in_turn();
    const MuonTask task = tasks[blockIdx.y];
    muon_product<true>(task.gram, task.gram, task.gram, task.square, task.shorter, task.shorter, task.shorter, task.c, task.b);
}

// aX + BX.
extern "C" __global__ void __launch_bounds__(128) muon_round(const MuonTask* tasks, const int* shape) {
    in_turn();
    const MuonTask task = tasks[blockIdx.y];
    muon_product<false>(task.square, task.x, task.x, task.next, task.shorter, task.longer, task.shorter, 1.0f, task.a);
}
