// The max over partners with wgmma: `pair_max_tiles` (pair_common.cu) with `PairsSm90` as its product, in tf32.

// acc += relu(v + u) Wᵀ for a warp's element u and 16 of its partners v. Formula, grid, tiles and what is written:
// `pair_max_tiles`.
//
// Rows 16w..16w + 15 of a 64-row product are 16 partners of the element of warp w of the warpgroup. All four warps make
// the same number of steps, as wgmma requires: `here` and `groups` are block-uniform. Missing elements are zeros.
//
// W lies in shared memory as `slabs` tiles of N outputs by 32 hidden columns, swizzled as `sm90.cu` describes. Columns
// within a tile have the order in which `hidden` builds A fragments.
template <int N>
struct PairsSm90 {
    __device__ static __forceinline__ float* begin() { return aligned_shared(); }
    __device__ static __forceinline__ int weight_numbers(int slabs) { return N * 32 * slabs; }

    // Writes W, rounded to tf32. A lane reads columns 4c..4c + 3 of a row, c = lane % 8. Number k of these goes to
    // chunk 4 · (c / 4) + k, position c % 4. That is k-step 2 · (c / 4) + k / 2, position t (k even) or t + 4 (k odd),
    // with t = c % 4. The fence orders the writes before wgmma; the first `__syncthreads` of the loop of
    // `pair_max_tiles` makes those of all threads visible.
    __device__ static __forceinline__ void store_weights(float* weights, const PairTask& task, int n0, int slabs) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4, half = lane / 4 % 2, total = N / 4 * slabs;
        for (int first = warp; first < total; first += 8 * PAIR_WARPS) {
            float4 w[8];
            load_weight_chunks<N>(w, task, n0, first, total);
#pragma unroll
            for (int b = 0; b < 8; b++) {
                int i = first + b * PAIR_WARPS, row = i % (N / 4) * 4 + lane / 8;
                if (i >= total) continue;
                float numbers[4] = {w[b].x, w[b].y, w[b].z, w[b].w};
#pragma unroll
                for (int k = 0; k < 4; k++)
                    weights[i / (N / 4) * N * 32 + swizzled_chunk(row, half * 4 + k) + t] = __uint_as_float(tf32(numbers[k]));
            }
        }
        fence_async_proxy();
    }

    // The hidden layer of 16 columns as A fragments of two k-steps. A lane reads four columns of the element and of two
    // partners, rows g and g + 8 of the fragment, `eight_rows` numbers apart.
    //
    // fmaxf(NaN, 0) is 0: NaN in u or v becomes 0, unlike in the ReLU of `epilogue.cu`, so rounding needs no test for
    // NaN. Infinity stays infinite, because tensor cores drop the bits below a tf32 unit.
    __device__ static __forceinline__ void hidden(u32 (*a)[4], const float* partner_rows, int eight_rows, const float* element) {
        float4 v = *(const float4*)partner_rows, v8 = *(const float4*)(partner_rows + eight_rows), u = *(const float4*)element;
        auto relu_tf32 = [](float x, float y) { return __float_as_uint(fmaxf(x + y, 0.0f)) + HALF_TF32_UNIT; };
        a[0][0] = relu_tf32(v.x, u.x); a[0][1] = relu_tf32(v8.x, u.x); a[0][2] = relu_tf32(v.y, u.y); a[0][3] = relu_tf32(v8.y, u.y);
        a[1][0] = relu_tf32(v.z, u.z); a[1][1] = relu_tf32(v8.z, u.z); a[1][2] = relu_tf32(v.w, u.w); a[1][3] = relu_tf32(v8.w, u.w);
    }

    // The next operands are computed while half a slab is multiplied. `wgmma_wait_1` leaves the group just issued
    // running and frees the registers of the other half. Descriptors count 16 bytes: 2 is one k-step of 8 numbers,
    // N · 32 / 4 one tile.
    __device__ static __forceinline__ void multiply(float (*acc)[4], const float* partner_rows, int eight_rows, const float* element, const float* weights, int slabs) {
        u64 b = wgmma_descriptor(weights);
        u32 first_half[2][4], second_half[2][4];
        for (int slab = 0; slab < slabs; slab++) {
            hidden(first_half, partner_rows, eight_rows, element);
            wgmma_fence();
            wgmma<N>(&acc[0][0], first_half[0], b);
            wgmma<N>(&acc[0][0], first_half[1], b + 2);
            wgmma_commit();
            wgmma_wait_1();
            hidden(second_half, partner_rows + 16, eight_rows, element + 16);
            wgmma_fence();
            wgmma<N>(&acc[0][0], second_half[0], b + 4);
            wgmma<N>(&acc[0][0], second_half[1], b + 6);
            wgmma_commit();
            wgmma_wait_1();
            partner_rows += 32;
            element += 32;
            b += N * 32 / 4;
        }
        wgmma_wait();
    }
};

// y_i = max_j (W relu(u_i + v_j) + b) and its argmax, N outputs a block; see `pair_max_tiles`. BLOCKS per
// multiprocessor follow from registers: with N = 128, accumulators, maxima and their indices alone take 128.
#define PAIR_MAX_SM90(N, BLOCKS)                                                                              \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS) pair_max_sm90_n##N(const PairTask* tasks, const int* shape) { \
        grid_dependency_sync();                                                                               \
        pair_max_tiles<N, PairsSm90<N>>(tasks, shape);                                                        \
    }
PAIR_MAX_SM90(16, 2)
PAIR_MAX_SM90(32, 2)
PAIR_MAX_SM90(64, 2)
PAIR_MAX_SM90(128, 1)
