// `attention.cu` and `attention_single_block.cu` against attention and its gradients in double precision.

#include "cuda_fibers.h"
//
#include "kernels.inc"

// Scale of the random numbers of each tensor.
struct Sizes { float query, key, value, gradient; };

struct Numbers {
    std::vector<float> query, key, value, gradient, out, d_query, d_key, d_value, stats;
};

// Runs all launches of both passes, with threads in an order that depends on a seed.
using Launches = std::function<void(const AttentionTask&, const int* shape, int examples, unsigned seed)>;

void test(const Launches& launches, int width, int dims, int heads, std::vector<int> queries, std::vector<int> keys, Sizes sizes) {
    printf("heads of %d, %d dimensions\n", width, dims);
    int examples = queries.size(), ld = heads * width + 4, depth = width * dims;
    // One example more than exists is launched.
    std::vector<int> shape(2 + 2 * (examples + 1));
    int *q_at = &shape[2], *k_at = q_at + examples + 1;
    shape[0] = examples, shape[1] = dims;
    std::partial_sum(queries.begin(), queries.end(), q_at + 1);
    std::partial_sum(keys.begin(), keys.end(), k_at + 1);
    auto random = [&](int elements, float size) {
        std::vector<float> x((size_t)elements * dims * ld);
        for (auto& v : x) v = random_normal() * size;
        return x;
    };
    int q_all = q_at[examples], k_all = k_at[examples];
    std::vector<float> q_none((size_t)q_all * dims * ld, NAN), k_none((size_t)k_all * dims * ld, NAN), stats((size_t)q_all * heads * 2, NAN);
    Numbers n = {random(q_all, sizes.query), random(k_all, sizes.key), random(k_all, sizes.value), random(q_all, sizes.gradient), q_none, q_none, k_none, k_none, stats};
    AttentionTask task = {};
    auto slice = [&](std::vector<float>& x, int offsets) {
        HeadSlice h = {};
        h.data = x.data(), h.ld = ld, h.space = {offsets, 0, dims > 1};
        return h;
    };
    auto run = [&](Numbers& n, unsigned seed) {
        int q = 2, k = 2 + examples + 1;
        task.query = slice(n.query, q), task.key = slice(n.key, k), task.value = slice(n.value, k), task.out = slice(n.out, q);
        task.d_query = slice(n.d_query, q), task.d_key = slice(n.d_key, k), task.d_value = slice(n.d_value, k), task.d_out = slice(n.gradient, q);
        task.stats = n.stats.data(), task.scale = 1.0f / std::sqrt((float)depth), task.heads = heads, task.width = width;
        launches(task, shape.data(), examples + 1, seed);
    };
    Numbers again = n;
    run(n, 1);
    run(again, 2);
    auto same = [](const std::vector<float>& a, const std::vector<float>& b) { return memcmp(a.data(), b.data(), 4 * a.size()) == 0; };
    if (!same(n.out, again.out) || !same(n.d_query, again.d_query) || !same(n.d_key, again.d_key) || !same(n.d_value, again.d_value)) fail("the result depends on the order of threads");
    Compared out, d_query, d_key, d_value;
    for (int e = 0; e < examples; e++)
        for (int h = 0; h < heads; h++) {
            auto at = [&](const std::vector<float>& x, int element_offset, int column) -> double { return x[((size_t)element_offset * dims + column / width) * ld + h * width + column % width]; };
            int q0 = q_at[e], k0 = k_at[e], count = queries[e], others = keys[e];
            std::vector<double> p(count * others), ds(count * others);
            for (int i = 0; i < count; i++) {
                double *row = &p[i * others], row_max = -1e300, sum = 0.0, delta = 0.0;
                for (int j = 0; j < others; j++) {
                    row[j] = 0.0;
                    for (int c = 0; c < depth; c++) row[j] += at(n.query, q0 + i, c) * at(n.key, k0 + j, c) * task.scale;
                    row_max = std::max(row_max, row[j]);
                }
                for (int j = 0; j < others; j++) sum += row[j] = std::exp(row[j] - row_max);
                for (int j = 0; j < others; j++) row[j] /= sum;
                for (int c = 0; c < depth; c++) {
                    double o = 0.0;
                    for (int j = 0; j < others; j++) o += row[j] * at(n.value, k0 + j, c);
                    out(at(n.out, q0 + i, c), o);
                    delta += o * at(n.gradient, q0 + i, c);
                }
                for (int j = 0; j < others; j++) {
                    double dp = 0.0;
                    for (int c = 0; c < depth; c++) dp += at(n.gradient, q0 + i, c) * at(n.value, k0 + j, c);
                    ds[i * others + j] = row[j] * (dp - delta) * task.scale;
                }
                for (int c = 0; c < depth; c++) {
                    double dq = 0.0;
                    for (int j = 0; j < others; j++) dq += ds[i * others + j] * at(n.key, k0 + j, c);
                    d_query(at(n.d_query, q0 + i, c), dq);
                }
            }
            for (int j = 0; j < others; j++)
                for (int c = 0; c < depth; c++) {
                    double dk = 0.0, dv = 0.0;
                    for (int i = 0; i < count; i++) dk += ds[i * others + j] * at(n.query, q0 + i, c), dv += p[i * others + j] * at(n.gradient, q0 + i, c);
                    d_key(at(n.d_key, k0 + j, c), dk);
                    d_value(at(n.d_value, k0 + j, c), dv);
                }
        }
    if (std::isinf(sizes.key)) {
        // An infinite key makes results NaN.
        for (float x : {n.out[0], n.d_query[0], n.d_key[0]})
            if (!std::isnan(x)) fail("an infinite key must give NaN");
        return;
    }
    out.check("results", 2e-3);
    d_query.check("gradients of queries", 5e-3);
    d_key.check("gradients of keys", 8e-3);
    d_value.check("gradients of values", 2e-3);
}

// One block per example and head, or a cluster of two heads.
template <int DEPTH, int WARPS, bool HEAD_PAIR = false> void single_block(const AttentionTask& task, const int* shape, int examples, unsigned seed) {
    int cluster = HEAD_PAIR ? 2 : 1;
    for (auto kernel : {attention_forward_single_block<DEPTH, WARPS, HEAD_PAIR>, attention_backward_single_block<DEPTH, WARPS, HEAD_PAIR>})
        for (int e = 0; e < examples; e++)
            for (int h = 0; h < task.heads; h += cluster) run_blocks([&] { kernel(&task, shape); }, 32 * WARPS, {h, e, 0}, seed, cluster);
}

// Blocks of 64 queries or keys, up to 160 of them.
template <int DEPTH, int N> void tiled(const AttentionTask& task, const int* shape, int examples, unsigned seed) {
    for (auto kernel : {attention_forward<DEPTH, N>, attention_backward_queries<DEPTH, N>, attention_backward_keys<DEPTH, N>})
        for (int y = 0; y < examples * task.heads; y++)
            for (int x = 0; x < 3; x++) run_blocks([&] { kernel(&task, shape); }, 128, {x, y, 0}, seed);
}

int main() {
    test(single_block<16, 8>, 16, 1, 2, {125, 3, 100}, {100, 128, 1}, {1, 1, 1, 1});
    test(single_block<8, 8>, 8, 1, 2, {128, 1, 100}, {100, 128, 1}, {1, 1, 1, 1e-7f});
    test(single_block<32, 8>, 32, 1, 1, {125, 17}, {100, 128}, {1, 1, 1e6f, 1e-9f});
    test(single_block<64, 8>, 64, 1, 1, {125, 128}, {100, 33}, {1e-3f, 1e3f, 1, 1e-3f});
    test(single_block<64, 10>, 16, 4, 2, {150, 1}, {131, 160}, {1, 1, 1, 1e-12f});
    test(single_block<64, 4>, 4, 15, 2, {33, 60}, {64, 2}, {2, 2, 1, 1});
    test(single_block<64, 8, true>, 4, 15, 4, {100, 7}, {128, 33}, {1, 1, 1, 1e-3f});
    test(single_block<64, 10, true>, 4, 16, 2, {131, 160}, {150, 3}, {1, 1, 1, 1});
    test(single_block<32, 4, true>, 4, 8, 2, {3, 64}, {60, 17}, {1, 1, 1, 1});
    test(single_block<16, 10, true>, 4, 3, 2, {160, 20}, {9, 130}, {1, 1, 1, 1});
    test(single_block<16, 8, true>, 4, 4, 4, {125}, {100}, {1, 1, 1, 1});
    test(single_block<32, 10>, 8, 3, 1, {159, 60}, {64, 160}, {2, 2, 0, 1});
    test(single_block<16, 4>, 12, 1, 2, {1, 64, 17}, {64, 2, 31}, {1e-20f, 1e-20f, 1e-20f, 1e20f});
    test(single_block<8, 4>, 4, 1, 1, {5, 60}, {64, 2}, {0, 0, 1, 1});
    test(single_block<16, 4>, 16, 1, 1, {40}, {30}, {1, INFINITY, 1, 1});
    test(tiled<16, 64>, 12, 1, 1, {100, 1}, {65, 130}, {1, 1, 1, 1});
    test(tiled<80, 32>, 5, 15, 1, {66}, {40}, {1, 1, 1, 1e-6f});
}
