// `epilogue.cu` against the same epilogue in double precision.

#include "cuda_fibers.h"
#include "reference_norm.h"
//
#include "kernels.inc"

enum Ends { BIAS = 1, POSITIVE = 2, RESIDUAL = 4, RESIDUALS = 8, ADDED = 16, GATE = 32, NORM = 64, SIGMOID = 128 };

// Products of `rows` by `n` numbers, in blocks of 128 by BN.
template <int BN> void test(int rows, int n, int ends, unsigned seed) {
    printf("%d rows of %d, ends %d\n", rows, n, ends);
    int ld = n + 4, across = (n + BN - 1) / BN;
    Rows sums = random_rows(rows * n), y = random_rows(rows * ld), before = y, bias = random_rows(n), one = random_rows(rows * ld), two = random_rows(rows * ld), gate = random_rows(rows * ld);
    Rows gain = random_rows(n), shift = random_rows(n), hat(rows * n, NAN), inverse(rows, NAN);
    // Far from zero, so that a norm that sums raw squares would fail.
    if (ends & NORM)
        for (auto& v : sums) v += 100.0f;
    LinearTask task = {};
    task.y = y.data(), task.ldy = task.ldr = task.ldr2 = task.ldg = ld, task.n = n;
    if (ends & BIAS) task.bias = bias.data();
    task.activation = ends & POSITIVE ? 1 : ends & SIGMOID ? 2 : 0;
    if (ends & (RESIDUAL | RESIDUALS)) task.residual = one.data();
    if (ends & RESIDUALS) task.residual2 = two.data();
    if (ends & ADDED) task.accumulate = 1;
    if (ends & GATE) task.gate = gate.data();
    if (ends & NORM) task.gain = gain.data(), task.shift = shift.data(), task.normalised = hat.data(), task.inv_std = inverse.data();
    auto kernel = [&] {
        int m0 = blockIdx.x / across * 128, n0 = blockIdx.x % across * BN, warp = threadIdx.x / 32;
        float* tile = shared + warp * 16 * (BN + EPILOGUE_PADDING);
        for (int i = threadIdx.x % 32; i < 16 * BN; i += 32) {
            int r = i / BN, c = i % BN, m = m0 + warp * 16 + r;
            tile[r * (BN + EPILOGUE_PADDING) + c] = m < rows && n0 + c < n ? sums[m * n + n0 + c] : NAN;
        }
        __syncwarp();
        epilogue_rows<BN, 16>(task, tile, m0 + warp * 16, rows, n0);
    };
    for (int b = 0; b < (rows + 127) / 128 * across; b++) run_blocks(kernel, 256, {b, 0, 0}, seed);
    Compared results, normalised, inverses;
    for (int m = 0; m < rows; m++) {
        std::vector<double> v(n);
        for (int c = 0; c < n; c++) {
            int at = m * ld + c;
            v[c] = sums[m * n + c] + (ends & BIAS ? bias[c] : 0.0);
            if (ends & POSITIVE) v[c] = std::max(v[c], 0.0);
            if (ends & SIGMOID) v[c] = 1.0 / (1.0 + std::exp(-v[c]));
            if (ends & (RESIDUAL | RESIDUALS)) v[c] += one[at];
            if (ends & RESIDUALS) v[c] += two[at];
            if (ends & ADDED) v[c] += before[at];
            if (ends & GATE && !(gate[at] > 0.0f)) v[c] = 0.0;
        }
        ReferenceNorm norm(v);
        if (ends & NORM) inverses(inverse[m], norm.inverse);
        for (int c = 0; c < n; c++) {
            if (ends & NORM) {
                normalised(hat[m * n + c], norm.hat[c]);
                v[c] = norm.hat[c] * gain[c] + shift[c];
            }
            results(y[m * ld + c], v[c]);
        }
    }
    results.check("results", 2e-5);
    normalised.check("normalised rows", 2e-5);
    inverses.check("inverse standard deviations", 2e-5);
}

int main() {
    for (unsigned seed : {1, 2}) {
        test<128>(150, 128, BIAS | RESIDUAL | NORM, seed);
        test<256>(3, 200, BIAS | RESIDUAL | NORM, seed);
        test<128>(130, 300, POSITIVE | RESIDUALS | ADDED, seed);
        test<64>(130, 100, SIGMOID | RESIDUALS | ADDED, seed);
        test<16>(20, 12, GATE | NORM, seed);
        test<32>(129, 32, RESIDUAL | POSITIVE | GATE, seed);
    }
}
