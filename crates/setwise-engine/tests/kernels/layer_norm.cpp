// `layer_norm.cu`: sums of rows with LayerNorm and its gradients, against double precision.

#include "cuda_fibers.h"
#include "reference_norm.h"
//
#include "kernels.inc"

// Inputs have rows of `cols` numbers, `cols` + 4 apart. `blocks` blocks run forward; a backward block has `each` rows.
template <int LANES, int CHUNKS> void test(int cols, int rows, int inputs, int blocks, int each, bool gated, unsigned seed) {
    printf("%d rows of %d, %d inputs\n", rows, cols, inputs);
    int ld = cols + 4, parts_count = (rows + each - 1) / each;
    std::vector<Rows> x;
    for (int i = 0; i < inputs; i++) x.push_back(random_rows(rows * ld));
    Rows gain = random_rows(cols), shift = random_rows(cols), y(rows * ld, NAN), hat(rows * cols, NAN), inverse(rows, NAN), partials(parts_count * 2 * cols, NAN);
    Rows dy = random_rows(rows * ld), before = dy, copy(rows * ld, NAN), open(rows * ld, NAN), gate = random_rows(rows * ld);
    int shape[4] = {1, 1, 0, rows};
    AddNormTask task = {};
    for (int i = 0; i < inputs; i++) task.inputs[i] = x[i].data(), task.ld[i] = ld;
    task.y = y.data(), task.gain = gain.data(), task.shift = shift.data(), task.normalised = hat.data(), task.inv_std = inverse.data();
    task.count = inputs, task.ldy = ld, task.cols = cols, task.space = {2, 0, 0};
    gridDim = {blocks, 1, 1};
    for (int b = 0; b < blocks; b++) run_blocks([&] { add_layer_norm_rows<LANES, CHUNKS>(&task, shape); }, 256, {b, 0, 0}, seed);
    NormBackwardTask back = {};
    back.dy = dy.data(), back.gain = gain.data(), back.normalised = hat.data(), back.inv_std = inverse.data(), back.partials = partials.data();
    back.ld = ld, back.cols = cols, back.space = {2, 0, 0}, back.rows = each;
    if (gated) {
        back.residual_grads[0] = copy.data(), back.residual_grads[1] = open.data(), back.residual_gates[1] = gate.data();
        back.ld_residual_grads[0] = back.ld_residual_grads[1] = ld;
    }
    // One block more than the rows need.
    for (int b = 0; b <= parts_count; b++)
        run_blocks([&] {
            if (gated) layer_norm_backward_rows<LANES, CHUNKS, MAX_RESIDUALS>(&back, shape);
            else layer_norm_backward_rows<LANES, CHUNKS, 0>(&back, shape);
        }, 256, {b, 0, 0}, seed);
    Compared results, normalised, gradients, copies, passed, sums;
    GainsAndShifts expected_sums(cols);
    for (int r = 0; r < rows; r++) {
        std::vector<double> v(cols);
        for (int c = 0; c < cols; c++)
            for (auto& input : x) v[c] += input[r * ld + c];
        ReferenceNorm norm(v);
        std::vector<double> expected = norm.back(&before[r * ld], gain);
        expected_sums.add(&before[r * ld], norm);
        for (int c = 0; c < cols; c++) {
            int at = r * ld + c;
            normalised(hat[r * cols + c], norm.hat[c]);
            results(y[at], norm.hat[c] * gain[c] + shift[c]);
            gradients(dy[at], expected[c]);
            if (!gated) continue;
            copies(copy[at], expected[c]);
            passed(open[at], gate[at] > 0.0f ? expected[c] : 0.0);
        }
    }
    expected_sums.compare(sums, partials);
    results.check("results", 1e-5);
    normalised.check("normalised rows", 1e-5);
    gradients.check("gradients", 1e-5);
    copies.check("residual gradients", 1e-5);
    passed.check("gated residual gradients", 1e-5);
    sums.check("gradients of gain and shift", 1e-5);
}

int main() {
    for (unsigned seed : {1, 2}) {
        test<32, 1>(128, 77, 2, 3, 64, true, seed);
        test<32, 1>(100, 40, 1, 9, 8, false, seed);
        test<32, 2>(256, 33, 3, 2, 24, true, seed);
        test<32, 4>(500, 19, 2, 1, 16, true, seed);
        test<4, 1>(16, 333, 2, 2, 64, true, seed);
        test<8, 1>(20, 65, 5, 1, 64, false, seed);
        test<16, 1>(64, 70, 2, 1, 64, true, seed);
    }
}
