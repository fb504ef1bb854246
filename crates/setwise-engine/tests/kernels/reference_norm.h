// LayerNorm of a row and its gradients in double precision.

#include <cmath>
#include <vector>

struct ReferenceNorm {
    std::vector<double> hat;
    double inverse;

    explicit ReferenceNorm(const std::vector<double>& row) : hat(row) {
        double mean = 0.0, variance = 0.0;
        for (double v : row) mean += v / row.size();
        for (double v : row) variance += (v - mean) * (v - mean) / row.size();
        inverse = 1.0 / std::sqrt(variance + 1e-5);
        for (double& h : hat) h = (h - mean) * inverse;
    }

    // The gradient of the row.
    std::vector<double> back(const float* dy, const std::vector<float>& gain) const {
        double a = 0.0, b = 0.0;
        for (size_t c = 0; c < hat.size(); c++) {
            double g = (double)dy[c] * gain[c] / hat.size();
            a += g, b += g * hat[c];
        }
        std::vector<double> dx(hat.size());
        for (size_t c = 0; c < hat.size(); c++) dx[c] = ((double)dy[c] * gain[c] - a - hat[c] * b) * inverse;
        return dx;
    }
};

// Gradients of gain and shift over all rows, compared with the blocks' partial sums: all gains, then all shifts.
struct GainsAndShifts {
    std::vector<double> gain, shift;

    explicit GainsAndShifts(int cols) : gain(cols), shift(cols) {}

    void add(const float* dy, const ReferenceNorm& norm) {
        for (size_t c = 0; c < gain.size(); c++) gain[c] += dy[c] * norm.hat[c], shift[c] += dy[c];
    }

    template <class Compare> void compare(Compare& sums, const std::vector<float>& partials) const {
        size_t cols = gain.size();
        for (size_t c = 0; c < cols; c++) {
            double g = 0.0, s = 0.0;
            for (size_t at = c; at < partials.size(); at += 2 * cols) g += partials[at], s += partials[at + cols];
            sums(g, gain[c]), sums(s, shift[c]);
        }
    }
};
