//! Numbers of the paper.

/// Dimensions of the paper's Table 1.
pub const KL_DIMS: [usize; 4] = [2, 4, 8, 16];

/// A row of the paper's Table 1: mean absolute errors of estimates of KL divergence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperErrors {
    /// The preset or classical method.
    pub model: &'static str,
    /// Errors in [`KL_DIMS`] dimensions.
    pub errors: [f64; 4],
}

/// The paper's Table 1.
// One of its numbers happens to be near π/8.
#[allow(clippy::approx_constant)]
pub const KL_ERRORS: [PaperErrors; 11] = [
    PaperErrors { model: "knn", errors: [0.2047, 0.5662, 4.0584, 28.0382] },
    PaperErrors { model: "pine", errors: [0.1737, 0.4958, 2.0804, 10.534] },
    PaperErrors { model: "single-set-rff", errors: [0.1219, 0.4400, 1.7770, 8.0078] },
    PaperErrors { model: "single-set-rn", errors: [0.1555, 0.5264, 2.1425, 9.5963] },
    PaperErrors { model: "single-set-transformer", errors: [0.0732, 0.2601, 1.6885, 7.5911] },
    PaperErrors { model: "union-transformer", errors: [0.1747, 0.4990, 2.2665, 9.7316] },
    PaperErrors { model: "multi-set-transformer", errors: [0.0731, 0.1903, 0.9212, 11.105] },
    PaperErrors { model: "multi-set-rn", errors: [0.1061, 0.3926, 1.5170, 7.4002] },
    PaperErrors { model: "cross-only", errors: [0.0792, 0.1968, 0.9926, 5.4214] },
    PaperErrors { model: "sum-merge", errors: [0.0699, 0.1953, 0.9320, 10.508] },
    PaperErrors { model: "multi-set-transformer-equi", errors: [0.0726, 0.1917, 0.8002, 4.7000] },
];
