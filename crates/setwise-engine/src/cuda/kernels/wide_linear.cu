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
//
// DOWN by ACROSS blocks are a cluster: those beside each other share their rows of the left operand, those below each other their rows of the right one. Each fetches
// a part of what it shares for all who share it, so that the L2 cache gives every tile of a cluster once. A stage is filled again when all of them are done with it.
template <int BN, int STAGES, int DOWN, int ACROSS>
__device__ __forceinline__ void product_wide(const ProductTask* tasks, const int* shape) {
    constexpr int BM = 128, STAGE = (BM + BN) * 32, S = BN + 8, BLOCKS = DOWN * ACROSS, SHARERS = DOWN + ACROSS - 1;
    static_assert(DOWN <= 2 && ACROSS <= 2, "a block shares with one other each way");
    const ProductTask task = tasks[blockIdx.z];
    int rows = rows_of(task.space, shape), across = (task.n + BN * ACROSS - 1) / (BN * ACROSS), cluster = blockIdx.x / BLOCKS;
    int down = blockIdx.x % BLOCKS / ACROSS, beside = blockIdx.x % ACROSS;
    int first = cluster / across * DOWN * BM, m0 = first + down * BM, n0 = (cluster % across * ACROSS + beside) * BN;
    // Blocks of a cluster end together; one without rows or columns of its own fetches for the others.
    if (first >= rows) return;
    float* tiles = tiles_begin();
    __shared__ u64 full[STAGES], empty[STAGES];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, stages = task.stages;
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, 8 * SHARERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if constexpr (BLOCKS > 1) cluster_sync();
    else __syncthreads();
    // The stage in turn, and how often all have been, odd or even.
    int s = 0, turn = 0;
    auto next = [&]() {
        if (++s == stages) { s = 0; turn ^= 1; }
    };
    if (warp == 8) {
        if (lane) return;
        for (int t = 0; t < task.count; t++) {
            const Term term = task.terms[t];
            for (int at = 0; at < term.k; at += 32, next()) {
                float *left = tiles + s * STAGE, *right = left + BM * 32;
                barrier_wait(empty + s, turn ^ 1);
                barrier_expect(full + s, STAGE * 4);
                if constexpr (ACROSS > 1) {
                    int part = beside * (BM / ACROSS);
                    fetch_tile(left + part * 32, term.maps, at, m0 + part, full + s, ((1 << ACROSS) - 1) << down * ACROSS);
                } else fetch_tile(left, term.maps, at, m0, full + s);
                if constexpr (DOWN > 1) {
                    int part = down * (BN / DOWN);
                    fetch_tile(right + part * 32, term.maps + 1, at, n0 + part, full + s, (1 | 1 << ACROSS) << beside);
                } else fetch_tile(right, term.maps + 1, at, n0, full + s);
            }
        }
        // The others may still tell this block that they are done.
        if constexpr (BLOCKS > 1)
            for (int i = 0; i < stages; i++, next()) barrier_wait(empty + s, turn ^ 1);
        return;
    }
    // Whom a lane tells that a stage is done with: first the blocks beside, itself among them, then those below or above.
    int other = lane - ACROSS, sharer = lane < ACROSS ? down * ACROSS + lane : (other + (other >= down)) * ACROSS + beside;
    float acc[BN / 8][4] = {};
    for (int step = 0; step < task.steps; step++, next()) {
        const float* stage = tiles + s * STAGE;
        barrier_wait(full + s, turn);
        multiply_begin();
        multiply_tiles<BN>(&acc[0][0], stage + warp / 4 * 64 * 32, stage + BM * 32);
        multiply_commit();
        multiply_wait();
        if constexpr (BLOCKS > 1) {
            if (lane < SHARERS) barrier_arrive(empty + s, sharer);
        } else if (lane == 0) barrier_arrive(empty + s);
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
    if (n0 < task.n) finish_rows<BN, 16>(task, sums, m0 + warp * 16, rows, n0);
}

#define PRODUCT_WIDE(BN, STAGES, BLOCKS)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(288, BLOCKS) product_wide_n##BN(const ProductTask* t, const int* s) { in_turn(t + blockIdx.z, s); \
        product_wide<BN, STAGES, 1, 1>(t, s);                                                                                            \
    }
PRODUCT_WIDE(16, 6, 3)
PRODUCT_WIDE(32, 6, 3)
PRODUCT_WIDE(64, 6, 2)
PRODUCT_WIDE(128, 6, 2)
PRODUCT_WIDE(256, 4, 1)

#define PRODUCT_CLUSTER(BN, DOWN, ACROSS, STAGES, BLOCKS)                                                                                \
    extern "C" __global__ void __cluster_dims__(DOWN * ACROSS, 1, 1) __launch_bounds__(288, BLOCKS)                                      \
        product_wide_n##BN##_##DOWN##x##ACROSS(const ProductTask* t, const int* s) { in_turn(t + blockIdx.z, s);                         \
        product_wide<BN, STAGES, DOWN, ACROSS>(t, s);                                                                                    \
    }
PRODUCT_CLUSTER(64, 2, 2, 6, 2)
PRODUCT_CLUSTER(128, 2, 2, 6, 2)
PRODUCT_CLUSTER(128, 2, 1, 6, 2)
PRODUCT_CLUSTER(256, 2, 1, 4, 1)
