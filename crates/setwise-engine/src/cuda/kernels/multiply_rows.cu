// Products of rows on the matrix units of all cards since 8.0. Operands come through shared memory in stages of BK, padded so that no two lanes of a fragment meet in a bank.

#define BK 32

// acc += A Bᵀ for one stage; both operands lie in rows of BK + 4.
template <int WM, int WN>
__device__ __forceinline__ void multiply_rows(float (*acc)[WN / 8][4], const float* a, const float* b, int wm, int wn) {
    constexpr int S = BK + 4;
    int lane = threadIdx.x % 32;
    // Blocks of A: rows 0 and 8, then columns 4 on. Blocks of B: columns 0 and 4 of one group of rows, then of the next.
    const float* pa = a + (wm + lane % 16) * S + lane / 16 * 4;
    const float* pb = b + (wn + lane / 16 * 8 + lane % 8) * S + lane / 8 % 2 * 4;
    FragA fa[2][WM / 16];
    FragB fb[2][WN / 8];
    auto fetch = [&](int k) {
        int into = k / 8 % 2;
        float v[4];
#pragma unroll
        for (int i = 0; i < WM / 16; i++) {
            load_blocks(v, pa + i * 16 * S + k);
            fa[into][i].set(v[0], v[1], v[2], v[3]);
        }
#pragma unroll
        for (int j = 0; j < WN / 8; j += 2) {
            load_blocks(v, pb + j * 8 * S + k);
            fb[into][j].set(v[0], v[1]);
            fb[into][j + 1].set(v[2], v[3]);
        }
    };
    fetch(0);
#pragma unroll
    for (int k = 0; k < BK; k += 8) {
        // The next operands are on their way while these are multiplied.
        if (k + 8 < BK) fetch(k + 8);
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < WN / 8; j++) mma(acc[i][j], fa[k / 8 % 2][i], fb[k / 8 % 2][j]);
    }
}
