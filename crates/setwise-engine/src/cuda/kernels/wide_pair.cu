// The maximum over partners with the matrix products of `hopper.cu`.

// Four warps of a warpgroup multiply 16 partners of an element each. W lies in tiles of 32 columns, in the order that left operands have.
template <int N>
struct WidePairs {
    __device__ static __forceinline__ float* begin() { return tiles_begin(); }
    __device__ static __forceinline__ int numbers(int slabs) { return N * 32 * slabs; }

    // A lane has four neighbouring columns of a row: two belong to each of two steps, four places apart.
    __device__ static __forceinline__ void place(float* weights, const PairTask& task, int n0, int slabs) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4, half = lane / 4 % 2, total = N / 4 * slabs;
        for (int first = warp; first < total; first += 8 * PAIR_WARPS) {
            float4 w[8];
            fetch_weights<N>(w, task, n0, first, total);
#pragma unroll
            for (int b = 0; b < 8; b++) {
                int i = first + b * PAIR_WARPS, row = i % (N / 4) * 4 + lane / 8;
                if (i >= total) continue;
                float e[4] = {w[b].x, w[b].y, w[b].z, w[b].w};
#pragma unroll
                for (int k = 0; k < 4; k++) weights[i / (N / 4) * N * 32 + chunk_at(row, half * 4 + k) + t] = __uint_as_float(tf32(e[k]));
            }
        }
        tiles_written();
    }

    // The hidden layer of 16 columns, as left operands of two steps. It is never none, so rounding needs no care.
    __device__ static __forceinline__ void hidden(u32 (*a)[4], const float* low, int high, const float* u) {
        float4 x = *(const float4*)low, y = *(const float4*)(low + high), o = *(const float4*)u;
        auto made = [](float v, float w) { return __float_as_uint(fmaxf(v + w, 0.0f)) + 0x1000u; };
        a[0][0] = made(x.x, o.x); a[0][1] = made(y.x, o.x); a[0][2] = made(x.y, o.y); a[0][3] = made(y.y, o.y);
        a[1][0] = made(x.z, o.z); a[1][1] = made(y.z, o.z); a[1][2] = made(x.w, o.w); a[1][3] = made(y.w, o.w);
    }

    // While one half of a slab is multiplied the next operands are made.
    __device__ static __forceinline__ void multiply(float (*acc)[4], const float* low, int high, const float* u, const float* weights, int slabs) {
        u64 b = tile_descriptor(weights);
        u32 even[2][4], odd[2][4];
        for (int s = 0; s < slabs; s++) {
            hidden(even, low, high, u);
            multiply_begin();
            warpgroup_multiply<N>(&acc[0][0], even[0], b);
            warpgroup_multiply<N>(&acc[0][0], even[1], b + 2);
            multiply_commit();
            multiply_wait_but_one();
            hidden(odd, low + 16, high, u + 16);
            multiply_begin();
            warpgroup_multiply<N>(&acc[0][0], odd[0], b + 4);
            warpgroup_multiply<N>(&acc[0][0], odd[1], b + 6);
            multiply_commit();
            multiply_wait_but_one();
            low += 32;
            u += 32;
            b += N * 32 / 4;
        }
        multiply_wait();
    }
};

#define WIDE_PAIRS(N, BLOCKS)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS) pair_max_wide_n##N(const PairTask* t, const int* s) { in_turn();           \
        pair_max_tiles<N, WidePairs<N>>(t, s);                                                                                           \
    }
WIDE_PAIRS(16, 2)
WIDE_PAIRS(32, 2)
WIDE_PAIRS(64, 2)
WIDE_PAIRS(128, 1)
