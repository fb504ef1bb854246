// Linear maps with wgmma and TMA (`sm90.cu`), for rows aligned to sixteen bytes.

// y[m, n] = epilogue(Σ a[m, k] b[n, k]), see LinearTask. Grid: (tiles, 1, tasks); blocks of the same rows are
// neighbours, so the L2 cache reads rows once. A block owns 128 rows by BN columns; two warpgroups own 64 rows each. A
// ninth warp fills a ring of stages by TMA (producer/consumer with full and empty mbarriers). A stage holds 32 columns
// along the sum: 128 rows of a, then BN of b. If a block holds full rows, the epilogue may include LayerNorm. What is
// written, and the preconditions, are those of `epilogue_rows`.
template <int BN, int STAGES>
__device__ __forceinline__ void linear_sm90(const LinearTask* tasks, const int* shape) {
    constexpr int BM = 128, STAGE = (BM + BN) * 32, S = BN + EPILOGUE_PADDING;
    const LinearTask task = tasks[blockIdx.z];
    int rows = row_count(task.space, shape), across = (task.n + BN - 1) / BN, m0 = blockIdx.x / across * BM, n0 = blockIdx.x % across * BN;
    if (m0 >= rows) return;
    float* tiles = aligned_shared();
    __shared__ u64 full[STAGES], empty[STAGES];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, stages = task.stages;
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++) {
            mbarrier_init(full + i, 1);
            mbarrier_init(empty + i, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    // Current stage of the ring, and the parity of the passes over it.
    int s = 0, phase = 0;
    auto next = [&]() {
        if (++s == stages) { s = 0; phase ^= 1; }
    };
    if (warp == 8) {
        if (lane) return;
        for (int t = 0; t < task.count; t++) {
            const LinearTerm term = task.terms[t];
            for (int at = 0; at < term.k; at += 32, next()) {
                float* left = tiles + s * STAGE;
                mbarrier_wait(empty + s, phase ^ 1);
                mbarrier_expect_bytes(full + s, STAGE * 4);
                tma_load_2d(left, term.maps, at, m0, full + s);
                tma_load_2d(left + BM * 32, term.maps + 1, at, n0, full + s);
            }
        }
        return;
    }
    float acc[BN / 8][4] = {};
    for (int step = 0; step < task.steps; step++, next()) {
        const float* stage = tiles + s * STAGE;
        mbarrier_wait(full + s, phase);
        wgmma_fence();
        wgmma_tiles<BN>(&acc[0][0], stage + warp / 4 * 64 * 32, stage + BM * 32);
        wgmma_commit();
        wgmma_wait();
        if (lane == 0) mbarrier_arrive(empty + s);
    }
    // All tiles have been read once the eight warps meet here. The accumulators reuse their memory, 16 rows a warp.
    asm volatile("bar.sync 1, 256;" ::: "memory");
    float* accumulators = tiles + warp * 16 * S;
    int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < BN / 8; j++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2*)(accumulators + (g + 8 * h) * S + j * 8 + 2 * t) = make_float2(acc[j][2 * h], acc[j][2 * h + 1]);
    __syncwarp();
    epilogue_rows<BN, 16>(task, accumulators, m0 + warp * 16, rows, n0);
}

#define LINEAR_SM90(BN, STAGES, BLOCKS)                                           \
    extern "C" __global__ void __launch_bounds__(288, BLOCKS) linear_sm90_n##BN(  \
        const LinearTask* tasks, const int* shape) {                              \
        grid_dependency_sync(tasks + blockIdx.z, shape);                          \
        linear_sm90<BN, STAGES>(tasks, shape);                                    \
    }
LINEAR_SM90(16, 6, 3)
LINEAR_SM90(32, 6, 3)
LINEAR_SM90(64, 6, 2)
LINEAR_SM90(128, 6, 2)
LINEAR_SM90(256, 4, 1)
