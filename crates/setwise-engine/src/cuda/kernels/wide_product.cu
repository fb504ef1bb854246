// Products with the instructions of `hopper.cu`, by as many blocks as fit the card. Each goes from tile to tile: a ninth warp has the copy engine fill a ring
// of stages and runs ahead into the next tiles, while two warpgroups multiply and finish 64 rows each on their own, so that one writes what it has while
// the other multiplies.
//
// A tile is 128 rows by 256 columns. Blocks of a pair take tiles below each other, and each fetches half of the right operand for both: what comes from the cache, not
// the matrix units, is what limits tiles of this size.

// Tiles in the order they are worked on, all columns of some rows after another.
template <int BM, int BN>
struct Tiles {
    const ProductTask* tasks;
    const int* shape;
    int task, at, count, across, rows;

    __device__ __forceinline__ Tiles(const ProductTask* tasks, const int* shape, int first) : tasks(tasks), shape(shape), task(0), at(first) { measure(); }

    __device__ __forceinline__ void measure() {
        rows = rows_of(tasks[task].space, shape);
        across = (tasks[task].n + BN - 1) / BN;
        count = (rows + BM - 1) / BM * across;
    }

    // Goes to the task the tile belongs to; false behind the last.
    __device__ __forceinline__ bool found() {
        while (at >= count) {
            at -= count;
            if (++task >= tasks->tasks) return false;
            measure();
        }
        return true;
    }

    __device__ __forceinline__ int row() const { return at / across * BM; }
    __device__ __forceinline__ int column() const { return at % across * BN; }
};

template <bool PAIR>
__device__ __forceinline__ void flow(const ProductTask* tasks, const int* shape) {
    constexpr int BLOCKS = PAIR ? 2 : 1, BM = 128, BN = 256, STAGES = 4, STAGE = (BM + BN) * 32, S = BN + 8, AHEAD = STAGES - 1;
    float* stages = tiles_begin();
    __shared__ u64 full[STAGES], empty[STAGES];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = PAIR ? cluster_rank() : 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + i, 1);
            // A stage is free for both blocks when the warps of both have read it.
            barrier_init(empty + i, 8 * BLOCKS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (PAIR) cluster_sync();
    int stride = gridDim.x / BLOCKS, step = 0;
    Tiles<BM * BLOCKS, BN> tiles(tasks, shape, blockIdx.x / BLOCKS);
    if (warp >= 8) {
        registers_give<40>();
        if (threadIdx.x == 256)
            for (; tiles.found(); tiles.at += stride) {
                const ProductTask& task = tasks[tiles.task];
                int m0 = tiles.row() + rank * BM, n0 = tiles.column();
                for (int t = 0; t < task.count; t++) {
                    const TensorMap* maps = task.terms[t].maps;
                    for (int at = 0, k = task.terms[t].k; at < k; at += 32, step++) {
                        int s = step % STAGES;
                        float* stage = stages + s * STAGE;
                        if (step >= STAGES) barrier_wait(empty + s, (step / STAGES - 1) % 2);
                        barrier_expect(full + s, STAGE * 4);
                        fetch_tile(stage, maps, at, m0, full + s);
                        if (PAIR) fetch_tile_for_both(stage + (BM + rank * BN / 2) * 32, maps + 1, at, n0 + rank * BN / 2, full + s);
                        else fetch_tile(stage + BM * 32, maps + 1, at, n0, full + s);
                    }
                }
            }
        __syncwarp();
        // The other block may still write into this one's stages and arrive at its barriers.
        if (PAIR) cluster_sync();
    } else {
        registers_take<232>();
        // Four rows of each warp on their way out.
        float* sums = stages + STAGES * STAGE + warp * 4 * S;
        int g = lane / 4, t = lane % 4;
        auto release = [&](int s) {
            if (lane == 0) barrier_arrive(empty + s);
            if (PAIR && lane == 1) barrier_arrive_at(empty + s, rank ^ 1);
        };
        for (; tiles.found(); tiles.at += stride) {
            const ProductTask& task = tasks[tiles.task];
            float acc[BN / 8][4] = {};
            auto multiply = [&]() {
                const float* stage = stages + step % STAGES * STAGE;
                barrier_wait(full + step % STAGES, step / STAGES % 2);
                multiply_begin();
                multiply_tiles<BN>(&acc[0][0], stage + warp / 4 * 64 * 32, stage + BM * 32);
                multiply_commit();
                step++;
            };
            // The first warpgroup is some stages ahead, so that they do not finish their rows at the same time. It gets no further ahead than the ring has stages, so it
            // never arrives twice for once that the other waits.
            int steps = task.steps;
            bool apart = steps > AHEAD;
            if (apart && warp >= 4) asm volatile("bar.sync 1, 256;" ::: "memory");
            multiply();
#pragma unroll 1
            for (int done = 1; done < steps; done++) {
                multiply();
                if (apart && warp < 4 && done + 1 == AHEAD) asm volatile("bar.arrive 1, 256;" ::: "memory");
                // The products of the stage before are done, these run on.
                multiply_wait_but_last();
                release((step - 2) % STAGES);
            }
            multiply_wait();
            release((step - 1) % STAGES);
            int m0 = tiles.row() + rank * BM + warp * 16, n0 = tiles.column();
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll 1
                for (int half = 0; half < 2; half++) {
                    if (g / 4 == half)
#pragma unroll
                        for (int j = 0; j < BN / 8; j++) *(float2*)(sums + g % 4 * S + j * 8 + 2 * t) = make_float2(acc[j][2 * h], acc[j][2 * h + 1]);
                    __syncwarp();
                    finish_rows<BN, 4>(task, sums, m0 + h * 8 + half * 4, tiles.rows, n0);
                    __syncwarp();
                }
        }
        if (PAIR) cluster_sync();
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) product_flow(const ProductTask* t, const int* s) { in_turn(); flow<false>(t, s); }
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1) product_pairs(const ProductTask* t, const int* s) { in_turn(); flow<true>(t, s); }
