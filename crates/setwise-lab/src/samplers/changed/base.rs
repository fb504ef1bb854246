//! Base distributions: columns of any kind, clusters, shells, curves, heavy tails.

use rand::RngExt;
use rand_distr::{Distribution, Gamma, Poisson};
use setwise::distributions::normal_tail;
use setwise::random::Generator;

use super::super::{log_uniform, normal};

/// The distribution of one column.
#[derive(Clone, Copy, Debug)]
pub(super) enum Marginal {
    Normal,
    Uniform,
    Exponential,
    LogNormal(f64),
    Student(f64),
    Bimodal(f64),
    Counts(f64),
    Rounded(f64),
    ManyZeros(f64),
}

impl Marginal {
    fn draw(rng: &mut Generator) -> Self {
        match rng.random_range(0..12) {
            0..3 => Marginal::Normal,
            3 => Marginal::Uniform,
            4 => Marginal::Exponential,
            5 => Marginal::LogNormal(rng.random_range(0.3..1.5)),
            6 | 7 => Marginal::Student(rng.random_range(1.2..6.0)),
            8 => Marginal::Bimodal(rng.random_range(1.5..5.0)),
            9 => Marginal::Counts(log_uniform(0.5, 8.0, rng)),
            10 => Marginal::Rounded(rng.random_range(0.1..0.6)),
            _ => Marginal::ManyZeros(rng.random_range(0.2..0.8)),
        }
    }

    /// A number; `z` is normal and decides where it lies in its distribution.
    fn of(self, z: f64, rng: &mut Generator) -> f64 {
        let share = || normal_tail(-z);
        match self {
            Marginal::Normal => z,
            Marginal::Uniform => share(),
            Marginal::Exponential => -(1.0 - share()).max(1e-12).ln(),
            Marginal::LogNormal(s) => (s * z).exp(),
            Marginal::Student(degrees) => z * (degrees / (2.0 * gamma(degrees / 2.0, rng))).sqrt(),
            Marginal::Bimodal(apart) => z + if rng.random() { apart } else { -apart },
            Marginal::Counts(mean) => Poisson::new(mean * (0.3 * z).exp()).map_or(0.0, |d| d.sample(rng)),
            Marginal::Rounded(step) => (z / step).round() * step,
            Marginal::ManyZeros(zeros) => {
                if rng.random::<f64>() < zeros {
                    0.0
                } else {
                    z.abs()
                }
            }
        }
    }
}

/// A distribution of rows.
#[derive(Debug)]
pub(super) enum Base {
    /// Columns of any kind, whose normal scores have correlations.
    Columns { marginals: Vec<Marginal>, loadings: Vec<f64> },
    /// Gaussian clusters: centres, deviations and cumulated shares.
    Clusters { centres: Vec<Vec<f64>>, deviations: Vec<f64>, shares: Vec<f64>, loadings: Vec<f64> },
    /// A sphere in some columns, the others normal.
    Shell { dim: usize, of: usize, noise: f64 },
    /// A wave of the first column in the second, the others normal.
    Curve { dim: usize, frequency: f64, noise: f64 },
    /// Student's t with one scale for all columns.
    Student { degrees: f64, loadings: Vec<f64> },
}

impl Base {
    pub fn draw(dim: usize, rng: &mut Generator) -> Self {
        let loadings: Vec<f64> = match rng.random_range(0..3) {
            0 => vec![0.0; dim],
            1 => (0..dim).map(|_| rng.random_range(-0.8..0.8)).collect(),
            _ => (0..dim).map(|_| rng.random_range(0.3..0.95)).collect(),
        };
        match rng.random_range(0..20) {
            0..4 => Base::Columns { marginals: vec![Marginal::Normal; dim], loadings },
            4..6 => Base::Columns { marginals: vec![Marginal::draw(rng); dim], loadings },
            6..11 => Base::Columns { marginals: (0..dim).map(|_| Marginal::draw(rng)).collect(), loadings },
            11..16 => {
                let count = rng.random_range(2..=16);
                let apart = log_uniform(1.0, 25.0, rng);
                let random: Vec<f64> = (0..count).map(|_| log_uniform(0.3, 1.0, rng)).collect();
                let total: f64 = random.iter().sum();
                let equal = rng.random::<bool>();
                Base::Clusters {
                    centres: (0..count).map(|_| normals(dim, rng).iter().map(|x| apart * x).collect()).collect(),
                    deviations: (0..count).map(|_| if equal { 1.0 } else { log_uniform(0.3, 2.0, rng) }).collect(),
                    shares: random.iter().map(|s| if equal { 1.0 / count as f64 } else { s / total }).collect(),
                    loadings,
                }
            }
            16 if dim > 1 => {
                Base::Shell { dim, of: rng.random_range(2..=dim.min(4)), noise: log_uniform(0.02, 0.3, rng) }
            }
            17 if dim > 1 => {
                Base::Curve { dim, frequency: log_uniform(1.0, 6.0, rng), noise: log_uniform(0.1, 1.0, rng) }
            }
            18 | 19 => Base::Student { degrees: rng.random_range(1.5..8.0), loadings },
            _ => Base::Columns { marginals: vec![Marginal::Uniform; dim], loadings: vec![0.0; dim] },
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Base::Columns { .. } => "columns",
            Base::Clusters { .. } => "clusters",
            Base::Shell { .. } => "shell",
            Base::Curve { .. } => "curve",
            Base::Student { .. } => "Student's t",
        }
    }

    pub fn rows(&self, count: usize, rng: &mut Generator) -> Vec<f64> {
        (0..count).flat_map(|_| self.row(rng)).collect()
    }

    pub fn row(&self, rng: &mut Generator) -> Vec<f64> {
        match self {
            Base::Columns { marginals, loadings } => {
                correlated(loadings, rng).into_iter().zip(marginals).map(|(z, m)| m.of(z, rng)).collect()
            }
            Base::Clusters { .. } => self.row_of_cluster(self.cluster(rng), 1.0, rng),
            &Base::Shell { dim, of, noise } => {
                let mut row = normals(dim, rng);
                let norm = row[..of].iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-9);
                let radius = 1.0 + noise * normal(rng);
                row[..of].iter_mut().for_each(|x| *x *= radius / norm);
                row
            }
            &Base::Curve { dim, frequency, noise } => {
                let mut row = normals(dim, rng);
                row[1] = noise * row[1] + (frequency * row[0]).sin();
                row
            }
            Base::Student { degrees, loadings } => {
                let scale = (degrees / (2.0 * gamma(degrees / 2.0, rng))).sqrt();
                correlated(loadings, rng).into_iter().map(|x| scale * x).collect()
            }
        }
    }

    /// A random cluster; zero where there are none.
    pub fn cluster(&self, rng: &mut Generator) -> usize {
        let Base::Clusters { shares, .. } = self else { return 0 };
        let mut rest = rng.random::<f64>();
        let chosen = shares.iter().position(|share| {
            rest -= share;
            rest < 0.0
        });
        chosen.unwrap_or(0)
    }

    /// A row of a cluster with its deviation times `scale`.
    pub fn row_of_cluster(&self, cluster: usize, scale: f64, rng: &mut Generator) -> Vec<f64> {
        let Base::Clusters { centres, deviations, loadings, .. } = self else { return self.row(rng) };
        let deviation = scale * deviations[cluster];
        correlated(loadings, rng).into_iter().zip(&centres[cluster]).map(|(z, centre)| centre + deviation * z).collect()
    }
}

fn normals(count: usize, rng: &mut Generator) -> Vec<f64> {
    (0..count).map(|_| normal(rng)).collect()
}

/// Normal numbers with a common factor.
fn correlated(loadings: &[f64], rng: &mut Generator) -> Vec<f64> {
    let common = normal(rng);
    let of = |l: &f64| l * common + (1.0 - l * l).sqrt() * normal(rng);
    loadings.iter().map(of).collect()
}

/// A number with the gamma distribution of scale one.
pub(super) fn gamma(shape: f64, rng: &mut Generator) -> f64 {
    Gamma::new(shape, 1.0).map_or(1.0, |d| d.sample(rng).max(1e-9))
}
