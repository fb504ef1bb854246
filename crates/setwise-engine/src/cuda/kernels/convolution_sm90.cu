// Convolutions with "same" padding with wgmma: `convolution_same` with `WgmmaProducts` as its products. Formula, grid
// and what is written are in `convolution_same.cu`.

// A block of one warpgroup owns TILES · 64 pixels by N channels. It multiplies 64 pixels at a time by all channels:
// weights from swizzled tiles in shared memory (`sm90.cu`), gathered pixels from registers. Warp w owns pixels 16w.. of
// each 64.
template <int TILES, int N>
struct WgmmaProducts {
    static constexpr int BM = TILES * 64, BN = N, THREADS = 128, FRAGMENTS = TILES, COLUMNS = N / 8, ROWS = 64, WARPS_M = 4;
    static constexpr u32 STAGE = N * BK * 4;
    __device__ static __forceinline__ float* begin() { return aligned_shared(); }
    __device__ static __forceinline__ int first_row(int warp) { return warp * 16; }
    __device__ static __forceinline__ int first_column(int) { return 0; }
    __device__ static __forceinline__ int warp_m(int warp) { return warp; }
    __device__ static __forceinline__ u32 weight_offset(int row, int chunk) { return swizzled_chunk(row, chunk) * 4; }
    __device__ static __forceinline__ void weights_arrived() { fence_async_proxy(); }

    // sums += pixels at addresses `a` times the weights of a stage, over BK channels. Descriptors count 16 bytes: 2 is
    // one k-step of 8 channels.
    //
    // The next tile is gathered into the other set of registers during the products. All products end here, before the
    // weights are overwritten.
    __device__ static __forceinline__ void multiply(float (*sums)[COLUMNS][4], const u32* a, u32 stage) {
        u64 b = wgmma_descriptor(stage);
        u32 pixels[2][BK / 8][4];
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            if (i > 1) wgmma_wait_1();
#pragma unroll
            for (int k = 0; k < BK / 8; k++) {
                float v[4];
                ldmatrix_x4_f32(v, a[i] + k * 32);
#pragma unroll
                for (int e = 0; e < 4; e++) pixels[i % 2][k][e] = __float_as_uint(v[e]);
            }
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < BK / 8; k++) wgmma<N>(&sums[i][0][0], pixels[i % 2][k], b + 2 * k);
            wgmma_commit();
        }
        wgmma_wait();
    }
};

extern "C" __global__ void __launch_bounds__(128, 3) convolution_same_sm90_n32(
    const SameConvolutionTask* tasks, const int* shape) {
    grid_dependency_sync();
    convolution_same<WgmmaProducts<4, 32>>(tasks, shape);
}
extern "C" __global__ void __launch_bounds__(128, 3) convolution_same_sm90_n64(
    const SameConvolutionTask* tasks, const int* shape) {
    grid_dependency_sync();
    convolution_same<WgmmaProducts<2, 64>>(tasks, shape);
}
