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
// One of the numbers is near π/8.
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

/// Accuracies of the paper's Tables 2, 3 and 4, with the mean absolute errors of Table 2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperScores {
    /// The preset.
    pub model: &'static str,
    /// Counting on Omniglot and MNIST: accuracy and mean absolute error of each.
    pub counting: [[f64; 2]; 2],
    /// Alignment of captions of MS-COCO and of words.
    pub alignment: [f64; 2],
    /// Distinguishing of mixtures and of images of Meta-Dataset.
    pub distinguishing: [f64; 2],
}

/// The paper's Tables 2, 3 and 4.
pub const SCORES: [PaperScores; 9] = [
    PaperScores {
        model: "pine",
        counting: [[0.6618, 0.8237], [0.4682, 1.2438]],
        alignment: [0.4977, 0.4977],
        distinguishing: [0.5012, 0.5048],
    },
    PaperScores {
        model: "single-set-rff",
        counting: [[0.6310, 0.8915], [0.4421, 1.3633]],
        alignment: [0.4964, 0.4974],
        distinguishing: [0.5005, 0.7831],
    },
    PaperScores {
        model: "single-set-rn",
        counting: [[0.6724, 0.8110], [0.5369, 1.0971]],
        alignment: [0.7745, 0.7858],
        distinguishing: [0.4997, 0.7981],
    },
    PaperScores {
        model: "single-set-transformer",
        counting: [[0.7242, 0.7329], [0.9123, 0.4664]],
        alignment: [0.9064, 0.7698],
        distinguishing: [0.6039, 0.8811],
    },
    PaperScores {
        model: "union-transformer",
        counting: [[0.6296, 0.8680], [0.5339, 1.1110]],
        alignment: [0.9285, 0.7319],
        distinguishing: [0.5908, 0.7432],
    },
    PaperScores {
        model: "multi-set-transformer",
        counting: [[0.8538, 0.5431], [0.9746, 0.3136]],
        alignment: [0.9265, 0.8221],
        distinguishing: [0.7289, 0.8922],
    },
    PaperScores {
        model: "multi-set-rn",
        counting: [[0.8699, 0.5166], [0.9782, 0.3184]],
        alignment: [0.9349, 0.7625],
        distinguishing: [0.7350, 0.8679],
    },
    PaperScores {
        model: "cross-only",
        counting: [[0.8189, 0.5929], [0.9723, 0.3128]],
        alignment: [0.9186, 0.8097],
        distinguishing: [0.6353, 0.9043],
    },
    PaperScores {
        model: "sum-merge",
        counting: [[0.8544, 0.5416], [0.9784, 0.2600]],
        alignment: [0.9303, 0.8160],
        distinguishing: [0.6292, 0.8683],
    },
];
