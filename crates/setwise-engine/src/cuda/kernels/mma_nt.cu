// Products A Bᵀ with mma.sync, for all GPUs since sm_80. Operands pass through shared memory in stages of BK columns,
// padded against bank conflicts.

#define BK 32

// acc += A Bᵀ for one stage, WM by WN a warp from row wm and column wn. Both operands have rows of BK + 4 numbers.
template <int WM, int WN>
__device__ __forceinline__ void mma_nt(float (*acc)[WN / 8][4], const float* a, const float* b, int wm, int wn) {
    constexpr int S = BK + 4;
    int lane = threadIdx.x % 32;
    // ldmatrix blocks of A: rows 0 and 8, then columns 4 on. Blocks of B: columns 0 and 4 of eight rows, then of the
    // next eight.
    const float* pa = a + (wm + lane % 16) * S + lane / 16 * 4;
    const float* pb = b + (wn + lane / 16 * 8 + lane % 8) * S + lane / 8 % 2 * 4;
    FragA fa[2][WM / 16];
    FragB fb[2][WN / 8];
    auto load = [&](int k) {
        int into = k / 8 % 2;
        float v[4];
#pragma unroll
        for (int i = 0; i < WM / 16; i++) {
            ldmatrix_x4_f32(v, pa + i * 16 * S + k);
            fa[into][i].set(v[0], v[1], v[2], v[3]);
        }
#pragma unroll
        for (int j = 0; j < WN / 8; j += 2) {
            ldmatrix_x4_f32(v, pb + j * 8 * S + k);
            fb[into][j].set(v[0], v[1]);
            fb[into][j + 1].set(v[2], v[3]);
        }
    };
    load(0);
#pragma unroll
    for (int k = 0; k < BK; k += 8) {
        // Double buffering: the next fragments load while these multiply.
        if (k + 8 < BK) load(k + 8);
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < WN / 8; j++) mma(acc[i][j], fa[k / 8 % 2][i], fb[k / 8 % 2][j]);
    }
}
