//! Changes of a base distribution, and the reference sample that their sizes are relative to.

use std::f64::consts::{PI, TAU};

use rand::RngExt;
use setwise::random::Generator;

use super::super::{log_uniform, normal};
use super::base::{Base, gamma};

/// A large sample of the base: its centre and scale, its rows in order by column.
pub(super) struct Reference {
    dim: usize,
    rows: Vec<f64>,
    centre: Vec<f64>,
    scale: Vec<f64>,
    sorted: Vec<Vec<f64>>,
}

impl Reference {
    pub fn new(rows: Vec<f64>, dim: usize) -> Self {
        let sorted: Vec<Vec<f64>> = (0..dim)
            .map(|c| {
                let mut column: Vec<f64> = rows.iter().skip(c).step_by(dim).copied().collect();
                column.sort_unstable_by(f64::total_cmp);
                column
            })
            .collect();
        let at = |column: &[f64], share: f64| column[(share * (column.len() - 1) as f64) as usize];
        let centre = sorted.iter().map(|c| at(c, 0.5)).collect();
        let spread = |c: &Vec<f64>| {
            let middle = (at(c, 0.75) - at(c, 0.25)) / 1.349;
            if middle > 0.0 { middle } else { ((at(c, 0.99) - at(c, 0.01)) / 4.0).max(1e-3) }
        };
        let scale = sorted.iter().map(spread).collect();
        Reference { dim, rows, centre, scale, sorted }
    }

    fn row(&self, rng: &mut Generator) -> &[f64] {
        let i = rng.random_range(0..self.rows.len() / self.dim);
        &self.rows[i * self.dim..(i + 1) * self.dim]
    }

    /// The share of the column's values below a number.
    fn share(&self, column: usize, x: f64) -> f64 {
        self.sorted[column].partition_point(|y| *y < x) as f64 / self.sorted[column].len() as f64
    }

    fn squared_distance(&self, x: &[f64], y: &[f64]) -> f64 {
        x.iter().zip(y).zip(&self.scale).map(|((x, y), s)| ((x - y) / s).powi(2)).sum()
    }
}

/// What differs between P and Q.
pub(super) enum Change {
    /// Columns move by so many scales.
    Shift(Vec<(usize, f64)>),
    /// Columns are stretched about their centre.
    Scale(Vec<(usize, f64)>),
    /// Clusters have other deviations, centres or shares.
    ClusterScale(Vec<usize>, f64),
    ClusterShift(Vec<usize>, f64),
    ClusterShare(usize, f64),
    /// A share of the rows lies near one row.
    NewCluster {
        centre: Vec<f64>,
        width: f64,
        share: f64,
    },
    /// The density is multiplied by 1 + a · Π cos(2πfu + φ) of some columns' ranks u.
    Wave {
        columns: Vec<(usize, f64, f64)>,
        amplitude: f64,
    },
    /// The density is multiplied by 1 + a · Σ ± Gaussian bumps.
    Bumps {
        centres: Vec<(Vec<f64>, f64)>,
        width: f64,
        amplitude: f64,
    },
    /// One column gets a part of another.
    Correlate {
        from: usize,
        to: usize,
        amount: f64,
    },
    /// Columns come from another row for a share of the rows.
    Decouple {
        columns: Vec<usize>,
        share: f64,
    },
    Rotate {
        columns: [usize; 2],
        angle: f64,
    },
    /// Rows are multiplied by a random scale.
    Tails {
        degrees: f64,
        apart: bool,
    },
    Outliers {
        share: f64,
        scale: f64,
    },
    Value {
        column: usize,
        value: f64,
        share: f64,
    },
    Skew {
        column: usize,
        amount: f64,
    },
    Noise {
        columns: Vec<usize>,
        amount: f64,
    },
}

impl Change {
    pub fn draw(base: &Base, reference: &Reference, strength: f64, rng: &mut Generator) -> Self {
        let dim = reference.dim;
        let columns = some_columns(dim, rng);
        let root = (columns.len() as f64).sqrt();
        let sign = |rng: &mut Generator| if rng.random() { 1.0 } else { -1.0 };
        if let Base::Clusters { centres, .. } = base
            && rng.random::<f64>() < 0.6
        {
            let count = rng.random_range(1..=centres.len().div_ceil(2));
            let chosen = rand::seq::index::sample(rng, centres.len(), count).into_vec();
            let clusters = (centres.len() as f64 / count as f64).sqrt();
            let per_dim = (dim as f64).sqrt();
            return match rng.random_range(0..3) {
                0 => Change::ClusterScale(chosen, (sign(rng) * 2.2 * strength * clusters / per_dim).clamp(-0.8, 2.0)),
                1 => Change::ClusterShift(chosen, 2.5 * strength * clusters / per_dim),
                _ => Change::ClusterShare(chosen[0], (2.0 * strength).min(0.5)),
            };
        }
        let kind = rng.random_range(0..if dim > 1 { 17 } else { 12 });
        match kind {
            0 | 1 => Change::Shift(columns.iter().map(|c| (*c, sign(rng) * 1.6 * strength / root)).collect()),
            2 | 3 => {
                let same = rng.random::<bool>();
                let first = sign(rng);
                let mut factor = || 1.0 + if same { first } else { sign(rng) } * (1.6 * strength / root).min(0.7);
                Change::Scale(columns.iter().map(|c| (*c, factor())).collect())
            }
            4 | 5 => {
                let width = log_uniform(0.05, 0.6, rng);
                Change::NewCluster { centre: reference.row(rng).to_vec(), width, share: (1.2 * strength).min(0.5) }
            }
            6 | 7 => {
                let count = rng.random_range(1..=dim.min(3));
                let chosen = rand::seq::index::sample(rng, dim, count).into_vec();
                let mut wave = |c: usize| (c, log_uniform(0.5, 6.0, rng), rng.random::<f64>());
                let columns: Vec<_> = chosen.into_iter().map(&mut wave).collect();
                Change::Wave { amplitude: (3.0 * strength * 1.4f64.powi(count as i32)).min(1.0), columns }
            }
            8 | 9 => {
                let count = rng.random_range(1..=6);
                let width = log_uniform(0.1, 1.0, rng) * (dim as f64).sqrt();
                let centres = (0..count).map(|_| (reference.row(rng).to_vec(), sign(rng))).collect();
                Change::Bumps { centres, width, amplitude: (5.0 * strength).min(1.0) }
            }
            10 => Change::Value {
                column: columns[0],
                value: reference.row(rng)[columns[0]],
                share: (0.5 * strength).min(0.5),
            },
            11 => Change::Skew { column: columns[0], amount: sign(rng) * (1.2 * strength).min(0.4) },
            12 => {
                let pair = rand::seq::index::sample(rng, dim, 2).into_vec();
                Change::Correlate { from: pair[0], to: pair[1], amount: sign(rng) * 2.2 * strength }
            }
            13 => Change::Decouple { columns, share: (3.0 * strength).min(1.0) },
            14 => {
                let pair = rand::seq::index::sample(rng, dim, 2).into_vec();
                Change::Rotate { columns: [pair[0], pair[1]], angle: (3.0 * strength).min(PI / 4.0) }
            }
            15 => match rng.random_range(0..2) {
                0 => Change::Tails { degrees: log_uniform(2.0, 12.0, rng), apart: rng.random() },
                _ => Change::Outliers { share: (0.8 * strength).min(0.3), scale: rng.random_range(1.5..4.0) },
            },
            _ => Change::Noise { amount: (4.0 * strength).min(3.0).sqrt() / root.sqrt(), columns },
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Change::Shift(..) => "shift",
            Change::Scale(..) => "scale",
            Change::ClusterScale(..) => "cluster scale",
            Change::ClusterShift(..) => "cluster shift",
            Change::ClusterShare(..) => "cluster share",
            Change::NewCluster { .. } => "new cluster",
            Change::Wave { .. } => "wave",
            Change::Bumps { .. } => "bumps",
            Change::Correlate { .. } => "correlation",
            Change::Decouple { .. } => "decoupled",
            Change::Rotate { .. } => "rotation",
            Change::Tails { .. } => "tails",
            Change::Outliers { .. } => "outliers",
            Change::Value { .. } => "repeated value",
            Change::Skew { .. } => "skewness",
            Change::Noise { .. } => "noise",
        }
    }

    pub fn rows(&self, base: &Base, reference: &Reference, count: usize, rng: &mut Generator) -> Vec<f64> {
        (0..count).flat_map(|_| self.row(base, reference, rng)).collect()
    }

    fn row(&self, base: &Base, reference: &Reference, rng: &mut Generator) -> Vec<f64> {
        let (centre, scale) = (&reference.centre, &reference.scale);
        match self {
            Change::ClusterScale(clusters, by) | Change::ClusterShift(clusters, by) => {
                let chosen = base.cluster(rng);
                let of = clusters.contains(&chosen);
                match self {
                    Change::ClusterScale(..) => base.row_of_cluster(chosen, if of { 1.0 + by } else { 1.0 }, rng),
                    _ => {
                        let mut row = base.row_of_cluster(chosen, 1.0, rng);
                        if of {
                            row.iter_mut().for_each(|x| *x += by);
                        }
                        row
                    }
                }
            }
            Change::ClusterShare(cluster, share) if rng.random::<f64>() < *share => {
                base.row_of_cluster(*cluster, 1.0, rng)
            }
            Change::NewCluster { centre, width, share } if rng.random::<f64>() < *share => {
                centre.iter().zip(scale).map(|(x, s)| x + width * s * normal(rng)).collect()
            }
            Change::Wave { columns, amplitude } => accepted(base, rng, 1.0 + amplitude, |row| {
                let wave = |(c, f, phase): &(usize, f64, f64)| (TAU * (f * reference.share(*c, row[*c]) + phase)).cos();
                1.0 + amplitude * columns.iter().map(wave).product::<f64>()
            }),
            Change::Bumps { centres, width, amplitude } => accepted(base, rng, 2.0, |row| {
                let bump = |(centre, sign): &(Vec<f64>, f64)| {
                    sign * (-0.5 * reference.squared_distance(row, centre) / (width * width)).exp()
                };
                (1.0 + amplitude * centres.iter().map(bump).sum::<f64>()).clamp(0.1, 2.0)
            }),
            _ => {
                let mut row = base.row(rng);
                match self {
                    Change::Shift(columns) => columns.iter().for_each(|&(c, by)| row[c] += by * scale[c]),
                    Change::Scale(columns) => {
                        columns.iter().for_each(|&(c, by)| row[c] = centre[c] + by * (row[c] - centre[c]));
                    }
                    &Change::Correlate { from, to, amount } => {
                        let z = ((row[from] - centre[from]) / scale[from]).clamp(-5.0, 5.0);
                        let y = (row[to] - centre[to]) / scale[to];
                        row[to] = centre[to] + scale[to] * (y + amount * z) / (1.0 + amount * amount).sqrt();
                    }
                    Change::Decouple { columns, share } if rng.random::<f64>() < *share => {
                        let other = base.row(rng);
                        columns.iter().for_each(|&c| row[c] = other[c]);
                    }
                    &Change::Rotate { columns: [a, b], angle } => {
                        let [x, y] = [a, b].map(|c| (row[c] - centre[c]) / scale[c]);
                        row[a] = centre[a] + scale[a] * (x * angle.cos() + y * angle.sin());
                        row[b] = centre[b] + scale[b] * (y * angle.cos() - x * angle.sin());
                    }
                    &Change::Tails { degrees, apart } => {
                        let mut factor = 1.0;
                        for (c, x) in row.iter_mut().enumerate() {
                            if c == 0 || apart {
                                factor = (degrees / (2.0 * gamma(degrees / 2.0, rng))).sqrt();
                            }
                            *x = centre[c] + factor * (*x - centre[c]);
                        }
                    }
                    Change::Outliers { share, scale } if rng.random::<f64>() < *share => {
                        row.iter_mut().zip(centre).for_each(|(x, c)| *x = c + scale * (*x - c));
                    }
                    Change::Value { column, value, share } if rng.random::<f64>() < *share => row[*column] = *value,
                    &Change::Skew { column: c, amount } => {
                        let z = ((row[c] - centre[c]) / scale[c]).clamp(-4.0, 4.0);
                        row[c] += scale[c] * amount * (z * z - 1.0);
                    }
                    Change::Noise { columns, amount } => {
                        columns.iter().for_each(|&c| row[c] += amount * scale[c] * normal(rng));
                    }
                    _ => {}
                }
                row
            }
        }
    }
}

/// A row of the base that is accepted with a share of `weight` / `bound`.
fn accepted(base: &Base, rng: &mut Generator, bound: f64, weight: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    loop {
        let row = base.row(rng);
        if rng.random::<f64>() * bound < weight(&row) {
            return row;
        }
    }
}

/// One column, all columns, or some.
fn some_columns(dim: usize, rng: &mut Generator) -> Vec<usize> {
    let count = match rng.random_range(0..3) {
        0 => 1,
        1 => dim,
        _ => rng.random_range(1..=dim),
    };
    rand::seq::index::sample(rng, dim, count).into_vec()
}
