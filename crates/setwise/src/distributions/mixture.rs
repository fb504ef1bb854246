//! Mixtures of Gaussians or of multivariate t distributions: random mixtures, samples, log densities and divergences.

use rand::{Rng, RngExt};
use rand_distr::{ChiSquared, Distribution, Exp1, LogNormal, StandardNormal};
use serde::{Deserialize, Serialize};
use setwise_engine::simd;

use super::lkj::Lkj;
use super::range::IntRange;
use crate::linalg::solve_lower;

/// A distribution over mixtures: Dirichlet(1, …, 1) weights, means uniform in a cube, covariances diag(s)·C·Cᵀ·diag(s).
/// Scales s are log-normal, and C is an LKJ factor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct MixtureLaw {
    /// Number of components, uniform in this range.
    pub components: IntRange,
    /// The distribution of correlations.
    pub lkj: Lkj,
    /// Concentration ν of that distribution; large values mean weak correlations.
    pub concentration: f64,
    /// Standard deviation of log s.
    pub log_scale_sd: f64,
    /// Side of the cube of the means; large values separate the components.
    #[serde(skip_serializing_if = "is_one")]
    pub spread: f64,
}

/// Whether the spread is the default, which is not serialised.
fn is_one(spread: &f64) -> bool {
    *spread == 1.0
}

impl Default for MixtureLaw {
    fn default() -> Self {
        MixtureLaw {
            components: IntRange::new(1, 10),
            lkj: Lkj::Correct,
            concentration: 5.0,
            log_scale_sd: 0.3,
            spread: 1.0,
        }
    }
}

/// Overrides of single fields of a [`MixtureLaw`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct MixtureLawOverrides {
    /// Overrides [`MixtureLaw::components`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub components: Option<IntRange>,
    /// Overrides [`MixtureLaw::lkj`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lkj: Option<Lkj>,
    /// Overrides [`MixtureLaw::concentration`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concentration: Option<f64>,
    /// Overrides [`MixtureLaw::log_scale_sd`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_scale_sd: Option<f64>,
    /// Overrides [`MixtureLaw::spread`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
}

impl MixtureLawOverrides {
    /// The law with these overrides.
    pub fn apply_to(&self, law: &MixtureLaw) -> MixtureLaw {
        MixtureLaw {
            components: self.components.unwrap_or(law.components),
            lkj: self.lkj.unwrap_or(law.lkj),
            concentration: self.concentration.unwrap_or(law.concentration),
            log_scale_sd: self.log_scale_sd.unwrap_or(law.log_scale_sd),
            spread: self.spread.unwrap_or(law.spread),
        }
    }
}

/// A mixture of Gaussians, or of multivariate t distributions.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    dim: usize,
    components: Vec<Component>,
    /// Degrees of freedom; infinite for Gaussians.
    degrees_of_freedom: f64,
}

/// One component of a mixture.
#[derive(Clone, Debug, PartialEq)]
struct Component {
    /// Cumulative weight, up to this component.
    cumulative: f64,
    /// Log of weight and normalising constant; log weight − ½ log det 2πΣ for Gaussians.
    log_peak: f64,
    weight: f64,
    mean: Vec<f64>,
    /// Lower Cholesky factor of the covariance, row-major.
    factor: Vec<f64>,
    /// The same factor, column-major.
    columns: Vec<f64>,
}

impl Mixture {
    /// A Gaussian mixture with these weights, which are normalised.
    ///
    /// # Shapes
    /// Means are `[components, dim]`. The lower Cholesky factors of the covariances are `[components, dim, dim]`, with
    /// positive diagonals.
    pub fn new(dim: usize, weights: &[f64], means: &[f64], factors: &[f64]) -> Self {
        let total: f64 = weights.iter().sum();
        let mut cumulative = 0.0;
        let components = weights
            .iter()
            .zip(means.chunks_exact(dim).zip(factors.chunks_exact(dim * dim)))
            .map(|(w, (mean, factor))| {
                let weight = w / total;
                cumulative += weight;
                let log_root_det: f64 = (0..dim).map(|i| factor[i * dim + i].ln()).sum();
                let log_peak = weight.ln() - log_root_det - 0.5 * dim as f64 * std::f64::consts::TAU.ln();
                let columns = (0..dim).flat_map(|j| factor[j..].iter().step_by(dim)).copied().collect();
                Component { cumulative, log_peak, weight, mean: mean.to_vec(), factor: factor.to_vec(), columns }
            })
            .collect();
        Mixture { dim, components, degrees_of_freedom: f64::INFINITY }
    }

    /// The mixture with multivariate t components; the factors are those of the scale matrices.
    pub fn with_degrees_of_freedom(mut self, degrees_of_freedom: f64) -> Self {
        let nu = degrees_of_freedom;
        let (d, gaussian) = (self.dim as f64, 0.5 * self.dim as f64 * std::f64::consts::TAU.ln());
        let constant = match nu.is_finite() {
            true => ln_gamma(0.5 * (nu + d)) - ln_gamma(0.5 * nu) - 0.5 * d * (nu * std::f64::consts::PI).ln(),
            false => -gaussian,
        };
        for c in &mut self.components {
            let log_root_det: f64 = (0..self.dim).map(|i| c.factor[i * self.dim + i].ln()).sum();
            c.log_peak = c.weight.ln() - log_root_det + constant;
        }
        self.degrees_of_freedom = degrees_of_freedom;
        self
    }

    /// Draws a random mixture.
    pub fn draw(law: &MixtureLaw, dim: usize, rng: &mut impl Rng) -> Self {
        let count = law.components.draw(rng);
        // Exponential variates divided by their sum are Dirichlet(1, …, 1).
        let weights: Vec<f64> = (0..count).map(|_| Exp1.sample(rng)).collect();
        let means: Vec<f64> = (0..count * dim).map(|_| law.spread * rng.random::<f64>()).collect();
        let scale = LogNormal::new(0.0, law.log_scale_sd).expect("a checked deviation");
        let mut factors = vec![0.0; count * dim * dim];
        for factor in factors.chunks_exact_mut(dim * dim) {
            law.lkj.draw(dim, law.concentration, rng, factor);
            for row in factor.chunks_exact_mut(dim) {
                let s: f64 = scale.sample(rng);
                row.iter_mut().for_each(|x| *x *= s);
            }
        }
        Mixture::new(dim, &weights, &means, &factors)
    }

    /// Appends `n` points drawn from the mixture.
    pub fn sample(&self, n: usize, rng: &mut impl Rng, rows: &mut Vec<f64>) {
        let dim = self.dim;
        let mut point = vec![0.0; dim];
        rows.reserve(n * dim);
        for _ in 0..n {
            let u: f64 = rng.random();
            let last = self.components.len() - 1;
            let c = self.components[..last].iter().find(|c| u < c.cumulative).unwrap_or(&self.components[last]);
            point.fill(0.0);
            let scale = match self.degrees_of_freedom.is_finite() {
                true => (self.degrees_of_freedom
                    / ChiSquared::new(self.degrees_of_freedom).expect("degrees above zero").sample(rng))
                .sqrt(),
                false => 1.0,
            };
            // L·z column by column: all coordinates accumulate in parallel.
            for column in c.columns.chunks_exact(dim) {
                let z: f64 = scale * Distribution::<f64>::sample(&StandardNormal, rng);
                point.iter_mut().zip(column).for_each(|(x, l)| *x += l * z);
            }
            rows.extend(c.mean.iter().zip(&point).map(|(mean, x)| mean + x));
        }
    }

    /// The log density at each row, as a log-sum-exp over components.
    pub fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; rows.len() / self.dim];
        self.log_densities::<false>(rows, &mut out);
        out
    }

    /// Log of weight times density of each component at each row.
    ///
    /// # Shapes
    /// `[rows, dim]` to `[rows, components]`.
    pub fn component_log_densities(&self, rows: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; rows.len() / self.dim * self.components.len()];
        self.log_densities::<true>(rows, &mut out);
        out
    }

    fn log_densities<const PER_COMPONENT: bool>(&self, rows: &[f64], out: &mut [f64]) {
        match simd::isa() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `isa` has found all instructions that this function enables.
            simd::Isa::Avx512 => unsafe { log_density_avx512::<PER_COMPONENT>(self, rows, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `isa` has found all instructions that this function enables.
            simd::Isa::Avx2 => unsafe { log_density_avx2::<PER_COMPONENT>(self, rows, out) },
            _ => log_density_blocks::<PER_COMPONENT>(self, rows, out),
        }
    }

    /// Mean of log p − log q over the rows: an unbiased estimate of KL(p‖q) if p drew them, p being this mixture.
    pub fn mean_log_ratio(&self, q: &Mixture, rows: &[f64]) -> f64 {
        self.log_ratios(q, rows).sum::<f64>() / (rows.len() / self.dim) as f64
    }

    /// log p − log q at each row, p being this mixture.
    pub fn log_ratios(&self, q: &Mixture, rows: &[f64]) -> impl Iterator<Item = f64> {
        let (p, q) = (self.log_density(rows), q.log_density(rows));
        p.into_iter().zip(q).map(|(p, q)| p - q)
    }

    /// KL(self‖q) in closed form, for two single Gaussians or two equal mixtures.
    pub fn exact_kl(&self, q: &Mixture) -> Option<f64> {
        if self == q {
            return Some(0.0);
        }
        if self.degrees_of_freedom.is_finite() || q.degrees_of_freedom.is_finite() {
            return None;
        }
        match (&self.components[..], &q.components[..]) {
            ([p], [q]) => Some(gaussian_kl(self.dim, &p.mean, &p.factor, &q.mean, &q.factor)),
            _ => None,
        }
    }

    /// Dimension of a point.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Mean and row-major lower Cholesky factor of the covariance of each component.
    pub fn gaussians(&self) -> impl Iterator<Item = (&[f64], &[f64])> {
        self.components.iter().map(|c| (&c.mean[..], &c.factor[..]))
    }

    /// Weights of the components.
    pub fn weights(&self) -> impl Iterator<Item = f64> {
        self.components.iter().map(|c| c.weight)
    }
}

/// KL divergence of two Gaussians with these means and lower Cholesky factors of covariances:
/// ½ [tr(Σq⁻¹Σp) + (μq − μp)ᵀΣq⁻¹(μq − μp) − d + log(det Σq / det Σp)].
pub(crate) fn gaussian_kl(dim: usize, mean_p: &[f64], factor_p: &[f64], mean_q: &[f64], factor_q: &[f64]) -> f64 {
    let (trace, shift) = trace_and_shift(dim, mean_p, factor_p, mean_q, factor_q);
    let log_dets = 2.0 * (0..dim).map(|i| (factor_q[i * dim + i] / factor_p[i * dim + i]).ln()).sum::<f64>();
    0.5 * (trace - dim as f64 + shift + log_dets)
}

/// tr(Σq⁻¹Σp) and (μq − μp)ᵀ Σq⁻¹ (μq − μp), from means and lower Cholesky factors.
pub(crate) fn trace_and_shift(
    dim: usize,
    mean_p: &[f64],
    factor_p: &[f64],
    mean_q: &[f64],
    factor_q: &[f64],
) -> (f64, f64) {
    // The trace is the squared Frobenius norm of Lq⁻¹·Lp, summed column by column.
    let mut column = vec![0.0; dim];
    let mut trace = 0.0;
    for j in 0..dim {
        column.iter_mut().enumerate().for_each(|(i, c)| *c = factor_p[i * dim + j]);
        solve_lower(factor_q, dim, &mut column);
        trace += column.iter().map(|c| c * c).sum::<f64>();
    }
    column.iter_mut().zip(mean_q.iter().zip(mean_p)).for_each(|(c, (q, p))| *c = q - p);
    solve_lower(factor_q, dim, &mut column);
    (trace, column.iter().map(|c| c * c).sum())
}

/// log Γ(x) for x > 0: recurrence up to x ≥ 12, then Stirling's series.
pub fn ln_gamma(mut x: f64) -> f64 {
    let mut product = 1.0;
    while x < 12.0 {
        product *= x;
        x += 1.0;
    }
    let r = 1.0 / (x * x);
    let series = (1.0 / 12.0 - r * (1.0 / 360.0 - r * (1.0 / 1260.0 - r * (1.0 / 1680.0 - r / 1188.0)))) / x;
    (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + series - product.ln()
}

/// Points of a block, one per lane.
const BLOCK: usize = 8;

/// # Safety
/// The machine has AVX-512 F, DQ and VL, and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,fma")]
unsafe fn log_density_avx512<const PER_COMPONENT: bool>(mixture: &Mixture, rows: &[f64], out: &mut [f64]) {
    log_density_blocks::<PER_COMPONENT>(mixture, rows, out);
}

/// # Safety
/// The machine has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn log_density_avx2<const PER_COMPONENT: bool>(mixture: &Mixture, rows: &[f64], out: &mut [f64]) {
    log_density_blocks::<PER_COMPONENT>(mixture, rows, out);
}

/// Log densities of blocks of eight points, one per lane.
///
/// Forward substitution L·z = x − μ gives the exponent −½|z|², in d²/2 multiplications per point and component.
/// Components are reduced by log-sum-exp, or written separately if `PER_COMPONENT`.
#[inline(always)]
fn log_density_blocks<const PER_COMPONENT: bool>(mixture: &Mixture, rows: &[f64], out: &mut [f64]) {
    let dim = mixture.dim;
    let nu = mixture.degrees_of_freedom;
    let exponent = 0.5 * (nu + dim as f64);
    let mut x = vec![[0.0; BLOCK]; dim];
    let mut z = vec![[0.0; BLOCK]; dim];
    let mut logs = vec![[0.0; BLOCK]; mixture.components.len()];
    let width = if PER_COMPONENT { mixture.components.len() } else { 1 };
    for (rows, out) in rows.chunks(BLOCK * dim).zip(out.chunks_mut(BLOCK * width)) {
        for (lane, row) in rows.chunks_exact(dim).enumerate() {
            for (x, value) in x.iter_mut().zip(row) {
                x[lane] = *value;
            }
        }
        for (c, log) in mixture.components.iter().zip(&mut logs) {
            let mut square = [0.0; BLOCK];
            for i in 0..dim {
                let row = &c.factor[i * dim..i * dim + i + 1];
                let mut sum: [f64; BLOCK] = std::array::from_fn(|k| x[i][k] - c.mean[i]);
                for (l, z) in row[..i].iter().zip(&z) {
                    for k in 0..BLOCK {
                        sum[k] -= l * z[k];
                    }
                }
                let scale = 1.0 / row[i];
                for k in 0..BLOCK {
                    let value = sum[k] * scale;
                    z[i][k] = value;
                    square[k] += value * value;
                }
            }
            *log = match nu.is_finite() {
                true => std::array::from_fn(|k| c.log_peak - exponent * (1.0 + square[k] / nu).ln()),
                false => std::array::from_fn(|k| c.log_peak - 0.5 * square[k]),
            };
        }
        if PER_COMPONENT {
            for (k, out) in out.chunks_exact_mut(width).enumerate() {
                out.iter_mut().zip(&logs).for_each(|(out, log)| *out = log[k]);
            }
            continue;
        }
        for (k, out) in out.iter_mut().enumerate() {
            let max = logs.iter().fold(f64::NEG_INFINITY, |a, log| a.max(log[k]));
            *out = max + logs.iter().map(|log| (log[k] - max).exp()).sum::<f64>().ln();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Generator;
    use rand::SeedableRng;

    #[test]
    fn the_closed_form_of_gaussians_agrees_with_monte_carlo() {
        let law = MixtureLaw { components: IntRange::new(1, 1), ..Default::default() };
        for dim in [1, 2, 5] {
            let mut rng = Generator::seed_from_u64(dim as u64);
            let (p, q) = (Mixture::draw(&law, dim, &mut rng), Mixture::draw(&law, dim, &mut rng));
            let mut rows = Vec::new();
            p.sample(400_000, &mut rng, &mut rows);
            let (exact, monte_carlo) = (p.exact_kl(&q).unwrap(), p.mean_log_ratio(&q, &rows));
            assert!((exact - monte_carlo).abs() < 0.02 * exact + 0.005, "d = {dim}: {exact} and {monte_carlo}");
            assert_eq!(p.exact_kl(&p), Some(0.0));
        }
    }

    #[test]
    fn densities_of_t_components_integrate_to_one_and_match_the_tails_of_samples() {
        let m = Mixture::new(1, &[1.0, 2.0], &[-1.0, 1.5], &[0.5, 1.0]).with_degrees_of_freedom(3.0);
        let grid: Vec<f64> = (0..400_000).map(|i| (f64::from(i) - 200_000.0) * 1e-3).collect();
        let total: f64 = m.log_density(&grid).iter().map(|l| l.exp() * 1e-3).sum();
        assert!((total - 1.0).abs() < 1e-5, "{total}");
        let mut rows = Vec::new();
        m.sample(200_000, &mut Generator::seed_from_u64(4), &mut rows);
        let far = rows.iter().filter(|x| x.abs() > 8.0).count() as f64 / 2e5;
        let expected: f64 =
            grid.iter().zip(m.log_density(&grid)).filter(|(x, _)| x.abs() > 8.0).map(|(_, l)| l.exp() * 1e-3).sum();
        assert!((far / expected - 1.0).abs() < 0.1, "{far} and {expected}");
        assert_eq!(m.exact_kl(&m), Some(0.0));
    }

    #[test]
    fn log_gamma_is_exact_at_factorials_and_one_half() {
        assert!((ln_gamma(5.0) - 24f64.ln()).abs() < 1e-13);
        assert!((ln_gamma(0.5) - 0.5 * std::f64::consts::PI.ln()).abs() < 1e-13);
    }

    #[test]
    fn log_densities_of_distant_points_stay_finite_and_accurate() {
        let m = Mixture::new(2, &[1.0, 3.0], &[0.0, 0.0, 1.0, 1.0], &[1.0, 0.0, 0.0, 1.0, 1e-3, 0.0, 0.0, 1e-3]);
        let log = m.log_density(&[1e4, 0.0, 1.0, 1.0, -3e5, 2e5]);
        // Far from both means, only the component with the larger variance contributes.
        let broad = |x: f64, y: f64| (0.25f64).ln() - std::f64::consts::TAU.ln() - 0.5 * (x * x + y * y);
        assert!((log[0] - broad(1e4, 0.0)).abs() < 1e-6);
        assert!((log[2] / broad(-3e5, 2e5) - 1.0).abs() < 1e-12);
        let peak = (0.75f64).ln() - std::f64::consts::TAU.ln() + 2.0 * 1e3f64.ln();
        assert!((log[1] - peak).abs() < 1e-6);
    }

    #[test]
    fn a_density_does_not_depend_on_the_other_rows() {
        let mut rng = Generator::seed_from_u64(3);
        let m = Mixture::draw(&MixtureLaw::default(), 3, &mut rng);
        let mut rows = Vec::new();
        m.sample(19, &mut rng, &mut rows);
        let together = m.log_density(&rows);
        let alone: Vec<f64> = rows.chunks_exact(3).flat_map(|r| m.log_density(r)).collect();
        assert_eq!(together, alone);
        let by_component = m.component_log_densities(&rows);
        assert_eq!(by_component.len(), 19 * m.components.len());
        for (total, logs) in together.iter().zip(by_component.chunks_exact(m.components.len())) {
            let sum: f64 = logs.iter().map(|l| l.exp()).sum();
            assert!((sum.ln() - total).abs() < 1e-12, "{total} and {sum}");
        }
    }

    #[test]
    fn samples_have_the_moments_of_the_mixture() {
        let m = Mixture::new(1, &[1.0, 3.0], &[-1.0, 2.0], &[0.5, 1.0]);
        let mut rows = Vec::new();
        m.sample(400_000, &mut Generator::seed_from_u64(9), &mut rows);
        let (mean, cov) = crate::linalg::moments(&rows, 1, 1);
        // Mean ¼·(−1) + ¾·2, variance ¼·¼ + ¾·1 + ¼·¾·3².
        assert!((mean[0] - 1.25).abs() < 0.01);
        assert!((cov[0] - 2.5).abs() < 0.02);
    }
}
