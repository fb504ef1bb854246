//! Random correlation matrices as Cholesky factors: the LKJ distribution (Lewandowski, Kurowicka, Joe, 2009).

use rand::Rng;
use rand_distr::{Beta, Distribution, StandardNormal};
use serde::{Deserialize, Serialize};

/// The distribution of the rows of the factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lkj {
    /// The LKJ distribution, by the onion method.
    Correct,
    /// The paper's distribution, PyTorch's `LKJCholesky`. Its rows beyond the second are too long, so correlations are
    /// larger.
    Paper,
}

impl Lkj {
    /// Parameters (α, β) of the Beta distribution of y, the squared norm of row `i` ≥ 1 left of the diagonal.
    ///
    /// They are (i/2, ν + (d − 1 − i)/2) in the correct law, and α = i − ½ in the paper's.
    pub fn beta_parameters(self, dim: usize, concentration: f64, i: usize) -> (f64, f64) {
        let alpha = match self {
            Lkj::Correct => i as f64 / 2.0,
            Lkj::Paper => i as f64 - 0.5,
        };
        (alpha, concentration + (dim - 1 - i) as f64 / 2.0)
    }

    /// Draws the Cholesky factor C of a `dim` by `dim` correlation matrix C·Cᵀ into `factor`, row-major.
    ///
    /// Row i is √y times a uniform direction left of the diagonal, √(1 − y) on the diagonal and zero right of it. y has
    /// the distribution of [`Lkj::beta_parameters`].
    pub fn draw(self, dim: usize, concentration: f64, rng: &mut impl Rng, factor: &mut [f64]) {
        factor.fill(0.0);
        factor[0] = 1.0;
        for i in 1..dim {
            let (alpha, beta) = self.beta_parameters(dim, concentration, i);
            let y = Beta::new(alpha, beta).expect("parameters above zero").sample(rng);
            let row = &mut factor[i * dim..i * dim + i + 1];
            let mut square = 0.0;
            for x in &mut row[..i] {
                *x = StandardNormal.sample(rng);
                square += *x * *x;
            }
            let scale = (y / square).sqrt();
            row[..i].iter_mut().for_each(|x| *x *= scale);
            row[i] = (1.0 - y).sqrt();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Generator;
    use rand::SeedableRng;

    /// Mean square of entry (i, j) of the correlation matrix, and of the factor's diagonal entry i.
    fn mean_squares(law: Lkj, dim: usize, i: usize, j: usize) -> (f64, f64) {
        let mut rng = Generator::seed_from_u64(5);
        let (mut correlation, mut diagonal) = (0.0, 0.0);
        const DRAWS: usize = 40_000;
        let mut c = vec![0.0; dim * dim];
        for _ in 0..DRAWS {
            law.draw(dim, 5.0, &mut rng, &mut c);
            let r: f64 = (0..dim).map(|k| c[i * dim + k] * c[j * dim + k]).sum();
            correlation += r * r;
            diagonal += c[i * dim + i] * c[i * dim + i];
        }
        (correlation / DRAWS as f64, diagonal / DRAWS as f64)
    }

    #[test]
    fn every_correlation_of_the_correct_law_has_the_variance_of_its_marginal() {
        // The marginals are Beta(ν − 1 + d/2, ν − 1 + d/2) on (−1, 1).
        for (dim, i, j) in [(2, 1, 0), (4, 1, 0), (4, 3, 2), (8, 7, 0), (8, 5, 4)] {
            let expected = 1.0 / (2.0 * 5.0 + dim as f64 - 1.0);
            let (variance, _) = mean_squares(Lkj::Correct, dim, i, j);
            assert!((variance / expected - 1.0).abs() < 0.03, "d = {dim}, ({i}, {j}): {variance} for {expected}");
        }
    }

    #[test]
    fn rows_of_the_papers_law_have_the_mean_square_of_its_beta_distribution() {
        for (dim, i) in [(2, 1), (4, 3), (8, 2), (8, 7)] {
            let (a, b) = (i as f64 - 0.5, 5.0 + (dim - 1 - i) as f64 / 2.0);
            let (_, diagonal) = mean_squares(Lkj::Paper, dim, i, 0);
            assert!((diagonal / (b / (a + b)) - 1.0).abs() < 0.02, "d = {dim}, row {i}: {diagonal}");
        }
    }

    #[test]
    fn both_laws_are_equal_in_two_dimensions() {
        let mut a = [0.0; 4];
        let mut b = [0.0; 4];
        Lkj::Correct.draw(2, 5.0, &mut Generator::seed_from_u64(1), &mut a);
        Lkj::Paper.draw(2, 5.0, &mut Generator::seed_from_u64(1), &mut b);
        assert_eq!(a, b);
    }
}
