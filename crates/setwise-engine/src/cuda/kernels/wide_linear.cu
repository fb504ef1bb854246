// Linear maps with the matrix products of `hopper.cu`, where rows start at sixteen bytes.

// In the order they stand: reads that were begun together are on their way together.
__device__ __forceinline__ float4 read_chunk(const float* from) {
    float4 x;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from));
    return x;
}

__device__ __forceinline__ void write_chunk(float* to, float4 x) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

// What follows a product, for COUNT rows of a warp that lie in shared memory at a distance of BN + 8: each row by LANES lanes, four numbers at
// a time, several rows together. There are no branches but those all lanes take, so that the reads of all these rows overlap: rows and columns that are not there
// read others that are.
template <int BN, int COUNT>
__device__ __forceinline__ void finish_rows(const ProductTask& task, const float* sums, int m0, int rows, int n0) {
    constexpr int LANES = BN < 128 ? BN / 4 : 32, CHUNKS = (BN + 127) / 128, ROWS = 32 / LANES, TOGETHER = COUNT / ROWS < 4 ? COUNT / ROWS : 4;
    int lane = threadIdx.x % LANES, row = threadIdx.x % 32 / LANES, width = task.n;
    // Where a lane reads and writes, and whether that is there.
    int column[CHUNKS];
    bool inside[CHUNKS];
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        int n = n0 + (lane + k * LANES) * 4;
        inside[k] = n < width;
        column[k] = inside[k] ? n : n0;
    }
    for (int r0 = 0; r0 < COUNT && m0 + r0 < rows; r0 += ROWS * TOGETHER) {
        float4 v[TOGETHER][CHUNKS];
        int at[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            int r = r0 + i * ROWS + row;
            at[i] = min(m0 + r, rows - 1);
#pragma unroll
            for (int k = 0; k < CHUNKS; k++) v[i][k] = *(const float4*)(sums + r * (BN + 8) + (lane + k * LANES) * 4);
        }
        // With the same numbers for all rows, then with those of each row.
        auto with_row = [&](const float* from, auto apply) {
#pragma unroll
            for (int k = 0; k < CHUNKS; k++) {
                float4 x = read_chunk(from + column[k]);
#pragma unroll
                for (int i = 0; i < TOGETHER; i++) v[i][k] = apply(v[i][k], x);
            }
        };
        auto with_rows = [&](const float* from, int ld, auto apply) {
            float4 x[TOGETHER][CHUNKS];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
#pragma unroll
                for (int k = 0; k < CHUNKS; k++) x[i][k] = read_chunk(from + (size_t)at[i] * ld + column[k]);
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
#pragma unroll
                for (int k = 0; k < CHUNKS; k++) v[i][k] = apply(v[i][k], x[i][k]);
        };
        auto each = [&](auto apply) {
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
#pragma unroll
                for (int k = 0; k < CHUNKS; k++) v[i][k] = make_float4(apply(v[i][k].x), apply(v[i][k].y), apply(v[i][k].z), apply(v[i][k].w));
        };
        auto write = [&](float* to, int ld) {
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
#pragma unroll
                for (int k = 0; k < CHUNKS; k++)
                    if (m0 + r0 + i * ROWS + row < rows && inside[k]) write_chunk(to + (size_t)at[i] * ld + column[k], v[i][k]);
        };
        auto plus = [](float4 a, float4 b) { return a + b; };
        auto times = [](float4 a, float4 b) { return a * b; };
        auto where_positive = [](float4 x, float4 g) {
            return make_float4(g.x > 0.0f ? x.x : 0.0f, g.y > 0.0f ? x.y : 0.0f, g.z > 0.0f ? x.z : 0.0f, g.w > 0.0f ? x.w : 0.0f);
        };
        if (task.bias) with_row(task.bias, plus);
        if (task.activation == 1) each([](float x) { return x <= 0.0f ? 0.0f : x; });
        else if (task.activation) each([](float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); });
        if (BN <= 128 && task.residual2 && task.accumulate) {
            // Where all three are there their reads overlap.
            const float* from[3] = {task.residual, task.residual2, task.y};
            int ld[3] = {task.ldr, task.ldr2, task.ldy};
            float4 x[3][TOGETHER][CHUNKS];
#pragma unroll
            for (int s = 0; s < 3; s++)
#pragma unroll
                for (int i = 0; i < TOGETHER; i++)
#pragma unroll
                    for (int k = 0; k < CHUNKS; k++) x[s][i][k] = read_chunk(from[s] + (size_t)at[i] * ld[s] + column[k]);
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
#pragma unroll
                for (int k = 0; k < CHUNKS; k++) v[i][k] = v[i][k] + x[0][i][k] + (x[1][i][k] + x[2][i][k]);
        } else {
            if (task.residual) with_rows(task.residual, task.ldr, plus);
            if (task.residual2) with_rows(task.residual2, task.ldr2, plus);
            if (task.accumulate) with_rows(task.y, task.ldy, plus);
        }
        if (task.gate) with_rows(task.gate, task.ldg, where_positive);
        if (task.gain) {
            float mean[TOGETHER], inv_std[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                float sum = 0.0f;
#pragma unroll
                for (int k = 0; k < CHUNKS; k++) sum += inside[k] ? total(v[i][k]) : 0.0f;
                mean[i] = lanes_sum<LANES>(sum) / width;
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                float square = 0.0f;
#pragma unroll
                for (int k = 0; k < CHUNKS; k++) {
                    v[i][k] = v[i][k] - mean[i];
                    square += inside[k] ? total(v[i][k] * v[i][k]) : 0.0f;
                }
                inv_std[i] = rsqrtf(lanes_sum<LANES>(square) / width + 1e-5f);
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
#pragma unroll
                for (int k = 0; k < CHUNKS; k++) v[i][k] = v[i][k] * inv_std[i];
                if (lane == 0 && m0 + r0 + i * ROWS + row < rows) task.inv_std[at[i]] = inv_std[i];
            }
            write(task.normalised, width);
            with_row(task.gain, times);
            with_row(task.shift, plus);
        }
        write(task.y, task.ldy);
    }
}

// As `product`, 128 rows by BN columns a block, each of two warpgroups 64 rows; a ninth warp has the copy engine fill stages ahead of them. A
// task whose whole rows lie in one block may end in a LayerNorm. Blocks of the same rows follow each other, so that rows come from device memory once.
template <int BN, int STAGES>
__device__ __forceinline__ void product_wide(const ProductTask* tasks, const int* shape) {
    constexpr int BM = 128, STAGE = (BM + BN) * 32, S = BN + 8;
    const ProductTask task = tasks[blockIdx.z];
    int rows = rows_of(task.space, shape), across = (task.n + BN - 1) / BN, m0 = blockIdx.x / across * BM, n0 = blockIdx.x % across * BN;
    if (m0 >= rows) return;
    float* tiles = tiles_begin();
    __shared__ u64 full[STAGES], empty[STAGES];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp == 8) {
        if (lane) return;
        int step = 0;
        for (int t = 0; t < task.count; t++) {
            const Term term = task.terms[t];
            for (int at = 0; at < term.k; at += 32, step++) {
                int s = step % STAGES;
                if (step >= STAGES) barrier_wait(empty + s, (step / STAGES - 1) % 2);
                barrier_expect(full + s, STAGE * 4);
                fetch_tile(tiles + s * STAGE, term.maps, at, m0, full + s);
                fetch_tile(tiles + s * STAGE + BM * 32, term.maps + 1, at, n0, full + s);
            }
        }
        return;
    }
    float acc[BN / 8][4] = {};
    for (int step = 0; step < task.steps; step++) {
        int s = step % STAGES;
        const float* stage = tiles + s * STAGE;
        barrier_wait(full + s, step / STAGES % 2);
        multiply_begin();
        multiply_tiles<BN>(&acc[0][0], stage + warp / 4 * 64 * 32, stage + BM * 32);
        multiply_commit();
        multiply_wait();
        if (lane == 0) barrier_arrive(empty + s);
    }
    // All tiles are done with once all eight warps are here; sums take their place, each warp's 16 rows on its own.
    asm volatile("bar.sync 1, 256;" ::: "memory");
    float* sums = tiles + warp * 16 * S;
    int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < BN / 8; j++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2*)(sums + (g + 8 * h) * S + j * 8 + 2 * t) = make_float2(acc[j][2 * h], acc[j][2 * h + 1]);
    __syncwarp();
    finish_rows<BN, 16>(task, sums, m0 + warp * 16, rows, n0);
}

#define PRODUCT_WIDE(BN, STAGES, BLOCKS)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(288, BLOCKS) product_wide_n##BN(const ProductTask* t, const int* s) { in_turn(t + blockIdx.z, s); \
        product_wide<BN, STAGES>(t, s);                                                                                                  \
    }
PRODUCT_WIDE(16, 3, 3)
PRODUCT_WIDE(32, 3, 3)
PRODUCT_WIDE(64, 3, 2)
PRODUCT_WIDE(128, 3, 2)
PRODUCT_WIDE(256, 4, 1)

// Brings 32 columns of ROWS rows into tiles with the sum along rows, which are the tiles' columns. A warp reads four rows by eight chunks of sixteen
// bytes; lane 4c' + r of chunk c, row r. It writes the numbers of a chunk one by one, beginning with number c / 2 % 4, so that the 32 lanes always
// meet 32 banks: eight different columns modulo 8, four different rows.
template <int ROWS, int COLS, int WARPS>
struct Turned {
    static constexpr int ACROSS = (COLS + 31) / 32, COUNT = ACROSS * (ROWS / 4) / WARPS;
    static_assert(ACROSS * (ROWS / 4) % WARPS == 0 && WARPS % ACROSS == 0, "warps share the work evenly, each in one strip of columns");
    const float* from;
    int stride, row, column;
    bool inside;
    float4 v[COUNT];

    __device__ __forceinline__ Turned(const float* g, int ld, int first, int col0, int cols) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        row = warp / ACROSS * 4 + lane % 4;
        column = warp % ACROSS * 32 + lane / 4 * 4;
        inside = column < COLS && col0 + column < cols;
        from = g + (size_t)(first + row) * ld + col0 + column;
        stride = WARPS / ACROSS * 4 * ld;
    }

    // Reads ROWS rows of which `count` are there, and moves on.
    __device__ __forceinline__ void fetch(int count) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            v[i] = inside && row + i * (WARPS / ACROSS * 4) < count ? *(const float4*)from : make_float4(0, 0, 0, 0);
            from += stride;
        }
    }

    __device__ __forceinline__ void place(float* tiles) const {
        if (COLS < 32 && column >= COLS) return;
        int turn = threadIdx.x % 32 / 8;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            float4 x = v[i];
            if (turn & 1) x = make_float4(x.y, x.z, x.w, x.x);
            if (turn & 2) x = make_float4(x.z, x.w, x.x, x.y);
            float e[4] = {x.x, x.y, x.z, x.w};
            int r = row + i * (WARPS / ACROSS * 4);
            float* tile = tiles + r / 32 * COLS * 32 + r % 4;
#pragma unroll
            for (int j = 0; j < 4; j++) tile[chunk_at(column + (j + turn) % 4, r % 32 / 4)] = e[j];
        }
    }
};

// As `linear_weights`, BM columns of dy by BN of x a block, 64 of dy a warpgroup.
template <int BM, int BN, int ROWS>
__device__ __forceinline__ void weights_wide(const WeightTask* tasks, const int* shape) {
    constexpr int WARPS = BM / 16, SLABS = ROWS / 32, STAGE = (BM + BN) * ROWS, STRIPS = BM / 32;
    const WeightTask task = tasks[blockIdx.z];
    int tiles_k = (task.k + BN - 1) / BN, count = ((task.n + BM - 1) / BM) * tiles_k, split = blockIdx.y;
    if ((int)blockIdx.x >= count || split >= task.splits) return;
    int n0 = blockIdx.x / tiles_k * BM, k0 = blockIdx.x % tiles_k * BN;
    int rows = rows_of(task.space, shape);
    int each = ((rows + task.splits - 1) / task.splits + ROWS - 1) / ROWS * ROWS;
    int first = split * each, left = min(rows - first, each), steps = left > 0 ? (left + ROWS - 1) / ROWS : 0;
    float* tiles = tiles_begin();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float acc[BN / 8][4] = {};
    float4 sum = make_float4(0, 0, 0, 0);
    Turned<ROWS, BM, WARPS> a(task.dy, task.ldy, first, n0, task.n);
    Turned<ROWS, BN, WARPS> b(task.x, task.ldx, first, k0, task.k);
    auto stage_of = [&](int step) { return tiles + step % 2 * STAGE; };
    auto fetch = [&](int step) {
        a.fetch(left - step * ROWS);
        b.fetch(left - step * ROWS);
    };
    auto place = [&](float* stage) {
        a.place(stage);
        b.place(stage + BM * ROWS);
#pragma unroll
        for (int i = 0; i < a.COUNT; i++) sum = sum + a.v[i];
        tiles_written();
    };
    fetch(0);
    place(stage_of(0));
    fetch(1);
    __syncthreads();
    for (int step = 0; step < steps; step++) {
        const float* stage = stage_of(step);
        multiply_begin();
#pragma unroll
        for (int s = 0; s < SLABS; s++)
            multiply_tiles<BN>(&acc[0][0], stage + s * BM * 32 + warp / 4 * 64 * 32, stage + BM * ROWS + s * BN * 32);
        multiply_commit();
        // The other stage was multiplied before the last barrier.
        place(stage_of(step + 1));
        fetch(step + 2);
        multiply_wait();
        __syncthreads();
    }
    float* out = task.parts + (size_t)split * ((size_t)task.n * task.k + task.n);
    int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < BN / 8; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int n = n0 + warp * 16 + g + h * 8, k = k0 + j * 8 + 2 * t;
            if (n < task.n && k < task.k) *(float2*)(out + (size_t)n * task.k + k) = make_float2(acc[j][2 * h], acc[j][2 * h + 1]);
        }
    if (k0) return;
    // The bias: four lanes hold rows of one chunk, and several warps rows of one strip.
    float4* sums = (float4*)tiles;
    sum = make_float4(lanes_sum<4>(sum.x), lanes_sum<4>(sum.y), lanes_sum<4>(sum.z), lanes_sum<4>(sum.w));
    if (t == 0) sums[warp / STRIPS * (BM / 4) + warp % STRIPS * 8 + g] = sum;
    __syncthreads();
    int c = threadIdx.x;
    if (c >= BM / 4 || n0 + c * 4 >= task.n) return;
    sum = sums[c];
#pragma unroll
    for (int w = 1; w < WARPS / STRIPS; w++) sum = sum + sums[w * (BM / 4) + c];
    float* bias = out + (size_t)task.n * task.k + n0 + c * 4;
    bias[0] = sum.x; bias[1] = sum.y; bias[2] = sum.z; bias[3] = sum.w;
}

#define WEIGHTS_WIDE(BM, BN, ROWS, BLOCKS)                                                                                             \
    extern "C" __global__ void __launch_bounds__(BM * 2, BLOCKS) weights_wide_m##BM##_n##BN(const WeightTask* t, const int* s) { in_turn(t + blockIdx.z, s); \
        weights_wide<BM, BN, ROWS>(t, s);                                                                                              \
    }
WEIGHTS_WIDE(64, 16, 64, 4)
WEIGHTS_WIDE(64, 32, 64, 4)
WEIGHTS_WIDE(64, 64, 64, 3)
WEIGHTS_WIDE(128, 16, 64, 2)
WEIGHTS_WIDE(128, 32, 64, 2)
WEIGHTS_WIDE(128, 64, 64, 2)
WEIGHTS_WIDE(128, 128, 32, 2)
