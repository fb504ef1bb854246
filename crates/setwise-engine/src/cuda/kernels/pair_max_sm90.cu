// The max over partners with wgmma.

// The four warps of a warpgroup multiply 16 partners of an element each. W lies in swizzled tiles of 32 columns, in the
// order of the A fragments.
template <int N>
struct PairsSm90 {
    __device__ static __forceinline__ float* begin() { return aligned_shared(); }
    __device__ static __forceinline__ int weight_numbers(int slabs) { return N * 32 * slabs; }

    // A lane owns four neighbouring columns of a row: two belong to each of two steps, four positions apart.
    __device__ static __forceinline__ void store_weights(float* weights, const PairTask& task, int n0, int slabs) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4, half = lane / 4 % 2, total = N / 4 * slabs;
        for (int first = warp; first < total; first += 8 * PAIR_WARPS) {
            float4 w[8];
            load_weight_chunks<N>(w, task, n0, first, total);
#pragma unroll
            for (int b = 0; b < 8; b++) {
                int i = first + b * PAIR_WARPS, row = i % (N / 4) * 4 + lane / 8;
                if (i >= total) continue;
                float e[4] = {w[b].x, w[b].y, w[b].z, w[b].w};
#pragma unroll
                for (int k = 0; k < 4; k++) weights[i / (N / 4) * N * 32 + swizzled_chunk(row, half * 4 + k) + t] = __uint_as_float(tf32(e[k]));
            }
        }
        fence_async_proxy();
    }

    // The hidden layer of 16 columns as A fragments of two steps. It is never NaN, so rounding needs no test.
    __device__ static __forceinline__ void hidden(u32 (*a)[4], const float* low, int high, const float* u) {
        float4 x = *(const float4*)low, y = *(const float4*)(low + high), o = *(const float4*)u;
        auto made = [](float v, float w) { return __float_as_uint(fmaxf(v + w, 0.0f)) + 0x1000u; };
        a[0][0] = made(x.x, o.x); a[0][1] = made(y.x, o.x); a[0][2] = made(x.y, o.y); a[0][3] = made(y.y, o.y);
        a[1][0] = made(x.z, o.z); a[1][1] = made(y.z, o.z); a[1][2] = made(x.w, o.w); a[1][3] = made(y.w, o.w);
    }

    // The next operands are computed while half a slab is multiplied.
    __device__ static __forceinline__ void multiply(float (*acc)[4], const float* low, int high, const float* u, const float* weights, int slabs) {
        u64 b = wgmma_descriptor(weights);
        u32 even[2][4], odd[2][4];
        for (int s = 0; s < slabs; s++) {
            hidden(even, low, high, u);
            wgmma_fence();
            wgmma<N>(&acc[0][0], even[0], b);
            wgmma<N>(&acc[0][0], even[1], b + 2);
            wgmma_commit();
            wgmma_wait_1();
            hidden(odd, low + 16, high, u + 16);
            wgmma_fence();
            wgmma<N>(&acc[0][0], odd[0], b + 4);
            wgmma<N>(&acc[0][0], odd[1], b + 6);
            wgmma_commit();
            wgmma_wait_1();
            low += 32;
            u += 32;
            b += N * 32 / 4;
        }
        wgmma_wait();
    }
};

#define PAIR_MAX_SM90(N, BLOCKS)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS) pair_max_sm90_n##N(const PairTask* t, const int* s) { grid_dependency_sync();           \
        pair_max_tiles<N, PairsSm90<N>>(t, s);                                                                                           \
    }
PAIR_MAX_SM90(16, 2)
PAIR_MAX_SM90(32, 2)
PAIR_MAX_SM90(64, 2)
PAIR_MAX_SM90(128, 1)
