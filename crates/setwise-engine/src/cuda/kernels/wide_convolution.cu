// Convolutions that keep an image's size with the matrix products of `hopper.cu`.

// A warpgroup multiplies 64 pixels at a time with all channels of the block: weights straight from shared memory, pixels from the registers that taps are gathered into.
template <int TILES, int N>
struct GroupProducts {
    static constexpr int BM = TILES * 64, BN = N, THREADS = 128, FRAGMENTS = TILES, COLUMNS = N / 8, ROWS = 64, SHARING = 4;
    static constexpr u32 STAGE = N * DEPTH * 4;
    __device__ static __forceinline__ float* begin() { return tiles_begin(); }
    __device__ static __forceinline__ int first_row(int warp) { return warp * 16; }
    __device__ static __forceinline__ int first_column(int) { return 0; }
    __device__ static __forceinline__ int among_sharing(int warp) { return warp; }
    __device__ static __forceinline__ u32 place(int row, int chunk) { return chunk_at(row, chunk) * 4; }
    __device__ static __forceinline__ void arrived() { tiles_written(); }

    // While one tile is multiplied the next is gathered, in turn into two sets of registers. All products end here: other weights will take the place of these.
    __device__ static __forceinline__ void multiply(float (*sums)[COLUMNS][4], const u32* a, u32 stage) {
        u64 b = tile_descriptor(stage);
        u32 left[2][DEPTH / 8][4];
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            if (i > 1) multiply_wait_but_one();
#pragma unroll
            for (int k = 0; k < DEPTH / 8; k++) {
                float v[4];
                load_blocks(v, a[i] + k * 32);
#pragma unroll
                for (int e = 0; e < 4; e++) left[i % 2][k][e] = __float_as_uint(v[e]);
            }
            multiply_begin();
#pragma unroll
            for (int k = 0; k < DEPTH / 8; k++) warpgroup_multiply<N>(&sums[i][0][0], left[i % 2][k], b + 2 * k);
            multiply_commit();
        }
        multiply_wait();
    }
};

extern "C" __global__ void __launch_bounds__(128, 3) image_same_group_32(const SameTask* t, const int* s) { in_turn(); convolve_same<GroupProducts<4, 32>>(t, s); }
extern "C" __global__ void __launch_bounds__(128, 3) image_same_group_64(const SameTask* t, const int* s) { in_turn(); convolve_same<GroupProducts<2, 64>>(t, s); }
