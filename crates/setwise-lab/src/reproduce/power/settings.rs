//! Pairs of distributions on which two-sample tests are measured.

use std::f64::consts::{E, PI, TAU};

use rand::RngExt;
use rand_distr::{Distribution, Gamma, Poisson, StandardNormal};
use setwise::random::Generator;

/// Draws `n` rows of P and `m` of Q, row-major.
type DrawBoth = fn(n: usize, m: usize, rng: &mut Generator) -> [Vec<f64>; 2];
/// Draws `n` rows, row-major.
type DrawOne = fn(n: usize, rng: &mut Generator) -> Vec<f64>;

/// How samples are drawn.
#[derive(Clone, Copy)]
enum Source {
    Pair(DrawBoth),
    Equal(DrawOne),
}

/// A pair of distributions with the sizes it is measured at.
#[derive(Clone, Copy)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// Columns.
    pub dim: usize,
    /// Rows of P and Q.
    pub sizes: &'static [[usize; 2]],
    source: Source,
}

impl Setting {
    /// Draws both samples, row-major.
    pub fn draw(&self, [n, m]: [usize; 2], rng: &mut Generator) -> [Vec<f64>; 2] {
        match self.source {
            Source::Pair(draw) => draw(n, m, rng),
            Source::Equal(draw) => [draw(n, rng), draw(m, rng)],
        }
    }
}

/// Groups of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// Those of published comparisons: a mixture of four Gaussians, perturbed uniform densities (Biggs, Schrab, Gretton
    /// 2023).
    Published,
    /// Shifts, scales, correlations, tails, rotations and new clusters in 2 to 50 columns.
    Classical,
    /// Settings that the statistics of the adaptive test were chosen on.
    Development,
    /// Equal distributions.
    Null,
    /// Random changes of random distributions. The weights of the adaptive test are fitted to others of this kind.
    Random,
}

impl Settings {
    /// The settings of a group.
    pub fn list(self) -> &'static [Setting] {
        match self {
            Settings::Published => &PUBLISHED,
            Settings::Classical => &CLASSICAL,
            Settings::Development => &DEVELOPMENT,
            Settings::Null => &NULL,
            Settings::Random => &[],
        }
    }
}

const PUBLISHED_SIZES: &[[usize; 2]] =
    &[[500, 500], [1000, 1000], [1500, 1500], [2000, 2000], [2500, 2500], [3000, 3000]];

const PUBLISHED: [Setting; 3] = [
    Setting {
        name: "mixture of four",
        dim: 2,
        sizes: PUBLISHED_SIZES,
        source: Source::Pair(|n, m, rng| [blobs(n, &[1.0; 4], 20.0, rng), blobs(m, &[1.3, 1.0, 1.0, 1.0], 20.0, rng)]),
    },
    Setting {
        name: "perturbed uniform",
        dim: 1,
        sizes: PUBLISHED_SIZES,
        source: Source::Pair(|n, m, rng| [uniforms(n, rng), perturbed(m, 1, 0.2, rng)]),
    },
    Setting {
        name: "perturbed uniform",
        dim: 2,
        sizes: PUBLISHED_SIZES,
        source: Source::Pair(|n, m, rng| [uniforms(2 * n, rng), perturbed(m, 2, 0.4, rng)]),
    },
];

const CLASSICAL: [Setting; 14] = [
    pair("shift of all columns", 2, 200, |n, m, rng| [normals(n, 2, rng), map(normals(m, 2, rng), |x| x + 0.2)]),
    pair("shift of all columns", 20, 200, |n, m, rng| [normals(n, 20, rng), map(normals(m, 20, rng), |x| x + 0.11)]),
    pair("shift of one column", 50, 300, |n, m, rng| {
        [normals(n, 50, rng), rows(normals(m, 50, rng), 50, |x| x[0] += 0.35)]
    }),
    pair("scale of all columns", 2, 300, |n, m, rng| [normals(n, 2, rng), map(normals(m, 2, rng), |x| 1.15 * x)]),
    pair("scale of all columns", 20, 200, |n, m, rng| [normals(n, 20, rng), map(normals(m, 20, rng), |x| 1.06 * x)]),
    pair("scale of one column", 20, 500, |n, m, rng| {
        [normals(n, 20, rng), rows(normals(m, 20, rng), 20, |x| x[0] *= 1.25)]
    }),
    pair("correlation", 2, 300, |n, m, rng| [normals(n, 2, rng), rows(normals(m, 2, rng), 2, |x| correlate(x, 0.25))]),
    pair("correlation", 20, 500, |n, m, rng| {
        [normals(n, 20, rng), rows(normals(m, 20, rng), 20, |x| correlate(x, 0.3))]
    }),
    pair("tails, t with 8 degrees", 2, 1000, |n, m, rng| [normals(n, 2, rng), student(m, 2, 8.0, rng)]),
    pair("tails, t with 8 degrees", 20, 200, |n, m, rng| [normals(n, 20, rng), student(m, 20, 8.0, rng)]),
    pair("rotation", 2, 500, |n, m, rng| [boxes(n, 2, 0.0, rng), boxes(m, 2, PI / 8.0, rng)]),
    pair("rotation", 10, 1000, |n, m, rng| [boxes(n, 10, 0.0, rng), boxes(m, 10, PI / 6.0, rng)]),
    pair("new cluster of 3 %", 2, 500, |n, m, rng| [normals(n, 2, rng), cluster(m, 2, 0.03, 0.2, 2.0, rng)]),
    pair("new cluster of 3 %", 10, 500, |n, m, rng| [normals(n, 10, rng), cluster(m, 10, 0.03, 0.3, 2.0, rng)]),
];

const DEVELOPMENT: [Setting; 28] = [
    pair("mixture of nine", 2, 1000, |n, m, rng| {
        let changed = [0.75, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
        [blobs(n, &[1.0; 9], 6.0, rng), blobs(m, &changed, 6.0, rng)]
    }),
    pair("wave", 1, 500, |n, m, rng| [uniforms(n, rng), waves(m, 1, 5.0, 0.3, rng)]),
    pair("wave", 2, 1000, |n, m, rng| [uniforms(2 * n, rng), waves(m, 2, 3.0, 0.5, rng)]),
    pair("slow wave", 1, 1000, |n, m, rng| [uniforms(n, rng), waves(m, 1, 1.5, 0.2, rng)]),
    pair("slow wave", 2, 1000, |n, m, rng| [uniforms(2 * n, rng), waves(m, 2, 1.0, 0.3, rng)]),
    pair("bumps", 2, 1000, |n, m, rng| [normals(n, 2, rng), cluster(m, 2, 0.1, 0.4, 1.0, rng)]),
    pair("shift", 1, 200, |n, m, rng| [normals(n, 1, rng), map(normals(m, 1, rng), |x| x + 0.25)]),
    pair("scale", 1, 300, |n, m, rng| [normals(n, 1, rng), map(normals(m, 1, rng), |x| 1.22 * x)]),
    pair("tails, t with 4 degrees", 1, 500, |n, m, rng| [normals(n, 1, rng), student(m, 1, 4.0, rng)]),
    pair("skewness", 2, 300, |n, m, rng| {
        [normals(n, 2, rng), rows(normals(m, 2, rng), 2, |x| x[0] = (x[0] + 0.2 * (x[0] * x[0] - 1.0)) / 1.04)]
    }),
    pair("lattice", 2, 400, |n, m, rng| [lattice(n, 0.0, rng), lattice(m, 0.5, rng)]),
    pair("tails, t with 5 degrees", 2, 300, |n, m, rng| [normals(n, 2, rng), student(m, 2, 5.0, rng)]),
    pair("correlation", 2, 200, |n, m, rng| [normals(n, 2, rng), rows(normals(m, 2, rng), 2, |x| correlate(x, 0.3))]),
    pair("correlation", 10, 500, |n, m, rng| {
        [normals(n, 10, rng), rows(normals(m, 10, rng), 10, |x| correlate(x, 0.25))]
    }),
    pair("shift of one column", 10, 200, |n, m, rng| {
        [normals(n, 10, rng), rows(normals(m, 10, rng), 10, |x| x[0] += 0.35)]
    }),
    pair("shift of one column", 50, 200, |n, m, rng| {
        [normals(n, 50, rng), rows(normals(m, 50, rng), 50, |x| x[0] += 0.45)]
    }),
    pair("shift of all columns", 10, 200, |n, m, rng| [normals(n, 10, rng), map(normals(m, 10, rng), |x| x + 0.14)]),
    pair("scale of one column", 10, 300, |n, m, rng| {
        [normals(n, 10, rng), rows(normals(m, 10, rng), 10, |x| x[0] *= 1.3)]
    }),
    pair("scale of all columns", 10, 200, |n, m, rng| [normals(n, 10, rng), map(normals(m, 10, rng), |x| 1.08 * x)]),
    pair("new cluster of 3 %", 2, 500, |n, m, rng| [normals(n, 2, rng), cluster(m, 2, 0.03, 0.1, 1.5, rng)]),
    pair("new cluster of 4 %", 10, 500, |n, m, rng| [normals(n, 10, rng), cluster(m, 10, 0.04, 0.3, 1.0, rng)]),
    pair("rotation", 2, 300, |n, m, rng| [boxes(n, 2, 0.0, rng), boxes(m, 2, PI / 10.0, rng)]),
    pair("outliers", 5, 500, |n, m, rng| [normals(n, 5, rng), outliers(m, 5, rng)]),
    pair("counts", 3, 500, |n, m, rng| {
        [counts(n, 3, 3.0, rng), with_first(counts(m, 3, 3.0, rng), 3, 1.0, |rng| counts(1, 1, 3.35, rng)[0], rng)]
    }),
    pair("shift of heavy tails", 4, 300, |n, m, rng| [cauchy(n, 4, rng), rows(cauchy(m, 4, rng), 4, |x| x[0] += 0.5)]),
    pair("one value in 3 %", 5, 500, |n, m, rng| {
        [normals(n, 5, rng), with_first(normals(m, 5, rng), 5, 0.03, |_| 1.0, rng)]
    }),
    pair("ring", 2, 300, |n, m, rng| [ring(n, 0.1, rng), ring(m, 0.13, rng)]),
    pair("sine", 2, 300, |n, m, rng| {
        [normals(n, 2, rng), rows(normals(m, 2, rng), 2, |x| x[1] = (x[1] + 0.6 * (4.0 * x[0]).sin()) / 1.086)]
    }),
];

const NULL: [Setting; 12] = [
    equal("normal", 2, &[[20, 20]], |n, rng| normals(n, 2, rng)),
    equal("normal", 2, &[[200, 200]], |n, rng| normals(n, 2, rng)),
    equal("normal", 5, &[[2000, 2000]], |n, rng| normals(n, 5, rng)),
    equal("normal, unequal sizes", 3, &[[30, 600]], |n, rng| normals(n, 3, rng)),
    equal("Cauchy", 2, &[[100, 150]], |n, rng| cauchy(n, 2, rng)),
    equal("log-normal", 4, &[[60, 60]], |n, rng| map(normals(n, 4, rng), |x| (2.0 * x).exp())),
    equal("counts, small", 1, &[[40, 40]], |n, rng| counts(n, 1, 0.7, rng)),
    equal("counts", 3, &[[200, 100]], |n, rng| counts(n, 3, 3.0, rng)),
    equal("two values", 2, &[[50, 50]], |n, rng| map(uniforms(2 * n, rng), |x| f64::from(u8::from(x < 0.1)))),
    equal("half zeros", 2, &[[150, 150]], |n, rng| map(normals(2 * n, 1, rng), |x| x.max(0.0))),
    equal("four clusters", 2, &[[500, 500]], |n, rng| blobs(n, &[1.0; 4], 20.0, rng)),
    equal("many columns", 100, &[[100, 100]], |n, rng| normals(n, 100, rng)),
];

const fn pair(name: &'static str, dim: usize, n: usize, draw: DrawBoth) -> Setting {
    let sizes: &[[usize; 2]] = match n {
        200 => &[[200, 200]],
        300 => &[[300, 300]],
        400 => &[[400, 400]],
        500 => &[[500, 500]],
        1000 => &[[1000, 1000]],
        _ => panic!("no such size"),
    };
    Setting { name, dim, sizes, source: Source::Pair(draw) }
}

const fn equal(name: &'static str, dim: usize, sizes: &'static [[usize; 2]], draw: DrawOne) -> Setting {
    Setting { name, dim, sizes, source: Source::Equal(draw) }
}

fn normals(rows: usize, dim: usize, rng: &mut Generator) -> Vec<f64> {
    (0..rows * dim).map(|_| rng.sample(StandardNormal)).collect()
}

fn uniforms(count: usize, rng: &mut Generator) -> Vec<f64> {
    (0..count).map(|_| rng.random()).collect()
}

fn map(values: Vec<f64>, f: impl Fn(f64) -> f64) -> Vec<f64> {
    values.into_iter().map(f).collect()
}

/// Changes every row.
fn rows(mut values: Vec<f64>, dim: usize, change: impl Fn(&mut [f64])) -> Vec<f64> {
    values.chunks_exact_mut(dim).for_each(change);
    values
}

/// Sets the first column of a share of the rows.
fn with_first(
    mut values: Vec<f64>,
    dim: usize,
    share: f64,
    draw: fn(&mut Generator) -> f64,
    rng: &mut Generator,
) -> Vec<f64> {
    for row in values.chunks_exact_mut(dim) {
        if rng.random::<f64>() < share {
            row[0] = draw(rng);
        }
    }
    values
}

/// Gives the second number of a row a correlation with the first.
fn correlate(row: &mut [f64], rho: f64) {
    row[1] = rho * row[0] + (1.0 - rho * rho).sqrt() * row[1];
}

/// Gaussians with these standard deviations on a square grid in the plane, twice `spacing` apart.
fn blobs(rows: usize, deviations: &[f64], spacing: f64, rng: &mut Generator) -> Vec<f64> {
    let side = deviations.len().isqrt();
    let draw = |_| {
        let k = rng.random_range(0..deviations.len());
        let centre = |place: usize| spacing * (2.0 * place as f64 - (side - 1) as f64);
        [k % side, k / side].map(|place| centre(place) + deviations[k] * rng.sample::<f64, _>(StandardNormal))
    };
    (0..rows).flat_map(draw).collect()
}

/// Draws from a density on [0, 1]^d that is at most `bound`, by rejection.
fn accepted(rows: usize, dim: usize, bound: f64, rng: &mut Generator, density: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let mut values = Vec::with_capacity(rows * dim);
    let mut point = vec![0.0; dim];
    while values.len() < rows * dim {
        point.iter_mut().for_each(|x| *x = rng.random());
        if rng.random::<f64>() * bound < density(&point) {
            values.extend_from_slice(&point);
        }
    }
    values
}

/// The bump and its negative on (−1, 0) of the perturbed uniform density.
fn perturbation(u: f64) -> f64 {
    let bump = |centre: f64| {
        let t = 4.0 * (u - centre);
        if t.abs() < 1.0 { (-1.0 / (1.0 - t * t)).exp() } else { 0.0 }
    };
    bump(-0.75) - bump(-0.25)
}

/// 1 + scale · e^d · Σ θ_j Π G(2 x_r − j_r) over j in {1, 2}^d, with random signs θ.
fn perturbed(rows: usize, dim: usize, scale: f64, rng: &mut Generator) -> Vec<f64> {
    let signs: Vec<f64> = (0..1 << dim).map(|_| if rng.random() { 1.0 } else { -1.0 }).collect();
    let amplitude = scale * E.powi(dim as i32);
    accepted(rows, dim, 1.0 + scale, rng, |x| {
        let of_cell = |(cell, sign): (usize, &f64)| {
            let factor = |(r, x): (usize, &f64)| perturbation(2.0 * x - (1 + (cell >> r & 1)) as f64);
            sign * x.iter().enumerate().map(factor).product::<f64>()
        };
        1.0 + amplitude * signs.iter().enumerate().map(of_cell).sum::<f64>()
    })
}

/// 1 + amplitude · Π cos(2π · frequency · x + φ) with random phases.
fn waves(rows: usize, dim: usize, frequency: f64, amplitude: f64, rng: &mut Generator) -> Vec<f64> {
    let phases = uniforms(dim, rng);
    accepted(rows, dim, 1.0 + amplitude, rng, |x| {
        let factor = |(x, phase): (&f64, &f64)| (TAU * (frequency * x + phase)).cos();
        1.0 + amplitude * x.iter().zip(&phases).map(factor).product::<f64>()
    })
}

/// Nine correlated Gaussians on a grid.
fn lattice(n: usize, rho: f64, rng: &mut Generator) -> Vec<f64> {
    let mut values = rows(normals(n, 2, rng), 2, |x| correlate(x, rho));
    values.iter_mut().for_each(|x| *x += 5.0 * f64::from(rng.random_range(0..3u8)));
    values
}

/// Student's t with variance one and all columns on one scale.
fn student(n: usize, dim: usize, degrees: f64, rng: &mut Generator) -> Vec<f64> {
    let gamma = Gamma::new(degrees / 2.0, 2.0).expect("positive degrees");
    let mut values = normals(n, dim, rng);
    for row in values.chunks_exact_mut(dim) {
        let scale = ((degrees - 2.0) / gamma.sample(rng)).sqrt();
        row.iter_mut().for_each(|x| *x *= scale);
    }
    values
}

/// Normal columns, the first two a uniform square that is rotated.
fn boxes(n: usize, dim: usize, angle: f64, rng: &mut Generator) -> Vec<f64> {
    let mut values = normals(n, dim, rng);
    for row in values.chunks_exact_mut(dim) {
        let [x, y] = [0, 1].map(|_| (rng.random::<f64>() - 0.5) * 12f64.sqrt());
        (row[0], row[1]) = (x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin());
    }
    values
}

/// Normal rows, a share of them replaced by a cluster on the first axis.
fn cluster(n: usize, dim: usize, share: f64, deviation: f64, centre: f64, rng: &mut Generator) -> Vec<f64> {
    let mut values = normals(n, dim, rng);
    for row in values.chunks_exact_mut(dim) {
        if rng.random::<f64>() < share {
            row.iter_mut().for_each(|x| *x *= deviation);
            row[0] += centre;
        }
    }
    values
}

/// Normal rows, 3 % of them farther out.
fn outliers(n: usize, dim: usize, rng: &mut Generator) -> Vec<f64> {
    let mut values = normals(n, dim, rng);
    for row in values.chunks_exact_mut(dim) {
        let scale = if rng.random::<f64>() < 0.03 { 2.5 } else { 1.0 };
        row.iter_mut().for_each(|x| *x *= scale);
    }
    values
}

fn counts(n: usize, dim: usize, mean: f64, rng: &mut Generator) -> Vec<f64> {
    let poisson = Poisson::new(mean).expect("a positive mean");
    (0..n * dim).map(|_| poisson.sample(rng)).collect()
}

/// Normal numbers over the size of another one of the row.
fn cauchy(n: usize, dim: usize, rng: &mut Generator) -> Vec<f64> {
    let mut values = normals(n, dim, rng);
    for row in values.chunks_exact_mut(dim) {
        let scale = rng.sample::<f64, _>(StandardNormal).abs().max(1e-3);
        row.iter_mut().for_each(|x| *x /= scale);
    }
    values
}

/// A circle with noise across it.
fn ring(n: usize, deviation: f64, rng: &mut Generator) -> Vec<f64> {
    let draw = |_| {
        let (angle, radius) = (TAU * rng.random::<f64>(), 1.0 + deviation * rng.sample::<f64, _>(StandardNormal));
        [radius * angle.cos(), radius * angle.sin()]
    };
    (0..n).flat_map(draw).collect()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn settings_draw_rows_of_their_width() {
        let mut rng = Generator::seed_from_u64(1);
        for settings in [Settings::Published, Settings::Classical, Settings::Development, Settings::Null] {
            for setting in settings.list() {
                let samples = setting.draw([40, 30], &mut rng);
                assert_eq!(samples.map(|s| s.len()), [40 * setting.dim, 30 * setting.dim], "{}", setting.name);
            }
        }
    }

    #[test]
    fn the_perturbed_density_is_the_published_one() {
        // G(u) = exp(−1/(1 − (4u + 3)²)) on (−1, −½), −exp(−1/(1 − (4u + 1)²)) on (−½, 0).
        for u in [-0.9, -0.75, -0.6, -0.3, -0.25, -0.01, 0.2] {
            let bump = |shift: f64| (-1.0 / (1.0 - (4.0 * u + shift).powi(2))).exp();
            let expected = match u {
                u if u > -1.0 && u < -0.5 => bump(3.0),
                u if u > -0.5 && u < 0.0 => -bump(1.0),
                _ => 0.0,
            };
            assert!((perturbation(u) - expected).abs() < 1e-12, "{u}");
        }
    }
}
