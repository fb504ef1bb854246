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
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, stages = task.stages;
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
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
                float* left = tiles + s * STAGE;
                barrier_wait(empty + s, turn ^ 1);
                barrier_expect(full + s, STAGE * 4);
                fetch_tile(left, term.maps, at, m0, full + s);
                fetch_tile(left + BM * 32, term.maps + 1, at, n0, full + s);
            }
        }
        return;
    }
    float acc[BN / 8][4] = {};
    for (int step = 0; step < task.steps; step++, next()) {
        const float* stage = tiles + s * STAGE;
        barrier_wait(full + s, turn);
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
PRODUCT_WIDE(16, 6, 3)
PRODUCT_WIDE(32, 6, 3)
PRODUCT_WIDE(64, 6, 2)
PRODUCT_WIDE(128, 6, 2)
PRODUCT_WIDE(256, 4, 1)
