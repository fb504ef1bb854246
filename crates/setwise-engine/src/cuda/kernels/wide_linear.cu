// Linear maps with the matrix products of `hopper.cu`, where rows start at sixteen bytes.

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
