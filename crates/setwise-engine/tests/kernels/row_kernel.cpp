// `row_kernel.cu`: products and norms, forward and backward, held and streamed, for row counts that are multiples of
// nothing.

#include "cuda_fibers.h"
#include "reference_norm.h"
//
#include "kernels.inc"

// Numbers that tensor cores do not truncate.
Rows random(size_t count) {
    Rows x = random_rows(count);
    for (auto& v : x) v = truncate_tf32_bits(__float_as_uint(v));
    return x;
}

template <int N, int K> void test(int count) {
    printf("%d by %d weights, %d rows\n", N, K, count);
    constexpr int STRIDE = 4 * K + 8, C = N % 32 == 0 ? 32 : 16;
    int tiles = (count + 15) / 16;
    Rows x = random(count * K), w = random(N * K), dy = random(count * N), bias = random(N), gain = random(N), shift = random(N);
    Rows y(count * N, NAN), streamed = y, normed = y, hat = y, d_normed = y, dx(count * K, NAN), d_streamed = dx, inverse(count, NAN), partials(tiles * 2 * N, NAN);
    // As `pack_row_weights` writes them.
    Rows in_rows(N * K, NAN), in_fours(N / 4 * STRIDE, NAN);
    for (int r = 0; r < N; r++)
        for (int c = 0; c < K; c++) {
            in_rows[r * K + (c ^ (K % 32 == 0 && r % 2 ? 16 : 0))] = w[r * K + c];
            in_fours[r / 4 * STRIDE + c * 4 + r % 4] = w[r * K + c];
        }
    Rows positive = y, gated = y;
    auto at = [](Rows& r) { return (u64)r.data(); };
    auto for_tiles = [&](auto work) {
        auto all = [&] {
            for (int tile = 0; tile < tiles; tile++) work(WarpRows(tile, count));
        };
        run_blocks(all, LANES, {0, 0, 0}, 1);
    };
    for_tiles([&](WarpRows rows) {
        float held[K / 8][4], sums[N / 8][4];
        load_rows<K, K>(held, at(x), 0, rows);
        broadcast<N>(sums, bias.data());
        matmul<N, K>(sums, held, in_rows.data());
        store_rows<N, N>(at(y), 0, sums, rows);
        stream_matmul<N, K, N, C, true, false>(at(streamed), 0, held, in_rows.data(), bias.data(), rows);
        stream_matmul<N, K, N, C, true, true>(at(positive), 0, held, in_rows.data(), bias.data(), rows);
        layer_norm<N, true>(sums, gain.data(), shift.data(), at(hat), at(inverse), rows);
        store_rows<N, N>(at(normed), 0, sums, rows);
    });
    for_tiles([&](WarpRows rows) {
        float d[N / 8][4], open[N / 8][4], results[N / 8][4], back[K / 8][4] = {}, back_streamed[K / 8][4] = {}, hats[N / 8][4], inverses[2];
        load_rows_or_zero<N, N>(d, at(dy), 0, rows);
        matmul_transposed<N, K, STRIDE>(back, d, in_fours.data());
        store_rows<K, K>(at(dx), 0, back, rows);
        stream_matmul_transposed<N, K, STRIDE, N, C>(back_streamed, at(dy), 0, in_fours.data(), rows);
        store_rows<K, K>(at(d_streamed), 0, back_streamed, rows);
        load_rows_or_zero<N, N>(open, at(dy), 0, rows);
        load_rows<N, N>(results, at(positive), 0, rows);
        relu_backward<N>(open, results);
        store_rows<N, N>(at(gated), 0, open, rows);
        load_rows<N, N>(hats, at(hat), 0, rows);
        load_inv_std(inverses, at(inverse), rows);
        layer_norm_backward<N>(d, hats, inverses, gain.data(), at(partials), rows);
        store_rows<N, N>(at(d_normed), 0, d, rows);
    });
    Compared products, gradients, norms, norm_gradients, gains;
    GainsAndShifts expected_gains(N);
    for (int i = 0; i < count; i++) {
        std::vector<double> row(N);
        for (int n = 0; n < N; n++) {
            row[n] = bias[n];
            for (int k = 0; k < K; k++) row[n] += (double)x[i * K + k] * w[n * K + k];
            products(y[i * N + n], row[n]);
            products(streamed[i * N + n], row[n]);
            products(positive[i * N + n], std::max(row[n], 0.0));
            gradients(gated[i * N + n], positive[i * N + n] > 0.0f ? dy[i * N + n] : 0.0f);
        }
        for (int k = 0; k < K; k++) {
            double sum = 0.0;
            for (int n = 0; n < N; n++) sum += (double)dy[i * N + n] * w[n * K + k];
            gradients(dx[i * K + k], sum);
            gradients(d_streamed[i * K + k], sum);
        }
        ReferenceNorm norm(row);
        std::vector<double> back = norm.back(&dy[i * N], gain);
        expected_gains.add(&dy[i * N], norm);
        for (int n = 0; n < N; n++) {
            norms(normed[i * N + n], norm.hat[n] * gain[n] + shift[n]);
            norm_gradients(d_normed[i * N + n], back[n]);
        }
    }
    expected_gains.compare(gains, partials);
    // Operands are exact in tf32, and rounding leaves them unchanged.
    products.check("products", 1e-5);
    gradients.check("backward products", 1e-5);
    norms.check("norms", 1e-5);
    norm_gradients.check("backward norms", 1e-4);
    gains.check("gradients of gains and shifts", 1e-4);
}

int main() {
    test<16, 16>(5);
    test<32, 64>(37);
    test<64, 32>(16);
    test<64, 128>(33);
    test<48, 48>(20);
}
