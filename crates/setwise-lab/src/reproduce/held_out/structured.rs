//! Families whose distributions differ in structure finer than their moments, in tails or in supports.

use rand::{Rng, RngExt};
use rand_distr::{Cauchy, Distribution};

use setwise::distributions::Mixture;
use setwise::random::Generator;

use super::Distributions;
use crate::samplers::{Density, log_sphere_area, log_uniform, normal, normal_log_density};

/// Diagonal Cholesky factors.
pub fn diagonal(scales: &[f64]) -> Vec<f64> {
    let d = scales.len();
    (0..d * d).map(|i| if i % (d + 1) == 0 { scales[i / d] } else { 0.0 }).collect()
}

/// Two clusters on the first axis, against one Gaussian with the same moments.
pub fn two_clusters(dim: usize, rng: &mut Generator) -> Distributions {
    let (separation, width) = (log_uniform(2.0, 6.0, rng), log_uniform(0.3, 1.2, rng));
    let mut means = vec![0.0; 2 * dim];
    (means[0], means[dim]) = (-separation, separation);
    let mut scales = vec![width; dim];
    let narrow = diagonal(&scales).repeat(2);
    scales[0] = (separation * separation + width * width).sqrt();
    let p = Mixture::new(dim, &[1.0; 2], &means, &narrow);
    let q = Mixture::new(dim, &[1.0], &vec![0.0; dim], &diagonal(&scales));
    Distributions::new(p, q)
}

/// A sphere of a normal radius.
struct Sphere {
    dim: usize,
    radius: f64,
    thickness: f64,
}

impl Density for Sphere {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        for _ in 0..n {
            let direction: Vec<f64> = (0..self.dim).map(|_| normal(rng)).collect();
            let length = direction.iter().map(|x| x * x).sum::<f64>().sqrt();
            let r = self.radius + self.thickness * normal(rng);
            rows.extend(direction.iter().map(|x| r * x / length));
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let (k, area) = (self.dim as f64, log_sphere_area(self.dim));
        let one = |row: &[f64]| {
            let r = row.iter().map(|x| x * x).sum::<f64>().sqrt();
            let z = (r - self.radius) / self.thickness;
            normal_log_density(&[z]) - self.thickness.ln() - area - (k - 1.0) * r.ln()
        };
        rows.chunks_exact(self.dim).map(one).collect()
    }
}

/// A ring or sphere, against a Gaussian with the same variance. The radius is many times the thickness.
pub fn ring(dim: usize, rng: &mut Generator) -> Distributions {
    let thickness = log_uniform(0.08, 0.18, rng);
    let scale = (1.0 / dim as f64).sqrt();
    let q = Mixture::new(dim, &[1.0], &vec![0.0; dim], &diagonal(&vec![scale; dim]));
    Distributions::new(Sphere { dim, radius: 1.0, thickness }, q)
}

/// A density on the unit cube that is a function of a few of its coordinates.
pub struct OnCube<F> {
    pub dim: usize,
    pub density: F,
    /// The largest value of the density.
    pub max: f64,
}

impl<F: Fn(&[f64]) -> f64 + Send + Sync> Density for OnCube<F> {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        let mut row = vec![0.0; self.dim];
        for _ in 0..n {
            loop {
                row.iter_mut().for_each(|x| *x = rng.random());
                if rng.random::<f64>() * self.max < (self.density)(&row) {
                    break;
                }
            }
            rows.extend_from_slice(&row);
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let inside = |row: &[f64]| row.iter().all(|x| (0.0..1.0).contains(x));
        let density = |row: &[f64]| if inside(row) { (self.density)(row) } else { 0.0 };
        rows.chunks_exact(self.dim).map(|row| density(row).ln()).collect()
    }
}

/// The uniform distribution on the unit cube.
pub fn uniform_cube(dim: usize) -> impl Density {
    OnCube { dim, density: |_: &[f64]| 1.0, max: 1.0 }
}

/// The fields of one colour of a checkerboard, against all fields: KL is ln 2.
pub fn checkerboard(dim: usize, rng: &mut Generator) -> Distributions {
    let fields = rng.random_range(2..=5) as f64 * 2.0;
    let active = dim.min(2);
    let density = move |row: &[f64]| {
        let parity: f64 = row[..active].iter().map(|x| (x * fields).floor()).sum();
        if parity % 2.0 == 0.0 { 2.0 } else { 0.0 }
    };
    Distributions::with_kl(OnCube { dim, density, max: 2.0 }, uniform_cube(dim), 2f64.ln())
}

/// A density of linear teeth along the first column, against the uniform one: KL is ln 2 − ½.
pub fn sawtooth(dim: usize, rng: &mut Generator) -> Distributions {
    let teeth = rng.random_range(5..=16) as f64;
    let density = move |row: &[f64]| 2.0 * (row[0] * teeth).fract();
    Distributions::with_kl(OnCube { dim, density, max: 2.0 }, uniform_cube(dim), 2f64.ln() - 0.5)
}

/// A uniform cube, against a shifted cube and a little of a wide one.
pub fn overlap(dim: usize, rng: &mut Generator) -> Distributions {
    let (shift, share) = (log_uniform(0.05, 0.4, rng), log_uniform(0.02, 0.2, rng));
    // The wide cube is [−½, 3/2] along the first column, and one wide along the others.
    let q = move |row: &[f64]| {
        let inside = |low: f64, x: f64| x >= low && x < low + 1.0;
        let others = row[1..].iter().all(|x| inside(0.0, *x));
        if !others {
            return 0.0;
        }
        (1.0 - share) * f64::from(u8::from(inside(shift, row[0])))
            + 0.5 * share * f64::from(u8::from(row[0] >= -0.5 && row[0] < 1.5))
    };
    let kl = -shift * (0.5 * share).ln() - (1.0 - shift) * (1.0 - 0.5 * share).ln();
    Distributions::with_kl(uniform_cube(dim), ShiftedCube { dim, shift, share, density: q }, kl)
}

struct ShiftedCube<F> {
    dim: usize,
    shift: f64,
    share: f64,
    density: F,
}

impl<F: Fn(&[f64]) -> f64 + Send + Sync> Density for ShiftedCube<F> {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        for _ in 0..n {
            let wide = rng.random_bool(self.share);
            rows.push(if wide { 2.0 * rng.random::<f64>() - 0.5 } else { self.shift + rng.random::<f64>() });
            rows.extend((1..self.dim).map(|_| rng.random::<f64>()));
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        rows.chunks_exact(self.dim).map(|row| (self.density)(row).ln()).collect()
    }
}

/// A spiral in the first two columns, against a blurred one; further columns are noise.
pub fn spiral(dim: usize, rng: &mut Generator) -> Distributions {
    const COMPONENTS: usize = 80;
    let (noise, blur) = (log_uniform(0.04, 0.1, rng), log_uniform(2.0, 6.0, rng));
    let mut means = Vec::new();
    for i in 0..COMPONENTS {
        let t = 4.0 * std::f64::consts::PI * (0.1 + 0.9 * (i as f64 + 0.5) / COMPONENTS as f64).sqrt();
        let r = t / (4.0 * std::f64::consts::PI);
        means.extend([r * t.cos(), r * t.sin()]);
        means.extend((2..dim).map(|_| 0.0));
    }
    let mixture = |noise: f64| {
        let mut scales = vec![0.3; dim];
        scales[..2].fill(noise);
        Mixture::new(dim, &[1.0; COMPONENTS], &means, &diagonal(&scales).repeat(COMPONENTS))
    };
    Distributions::new(mixture(noise), mixture(blur * noise))
}

/// A folded sheet |x| with Laplace noise, against a thicker one.
struct Fold {
    dim: usize,
    noise: f64,
}

impl Density for Fold {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        for _ in 0..n {
            let first = rows.len();
            rows.extend((1..self.dim).map(|_| 2.0 * rng.random::<f64>() - 1.0));
            let u = rng.random::<f64>() - 0.5;
            rows.push(rows[first].abs() - self.noise * u.signum() * (1.0 - 2.0 * u.abs()).max(1e-300).ln());
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let one = |row: &[f64]| {
            let distance = (row[self.dim - 1] - row[0].abs()).abs();
            -distance / self.noise - (2.0 * self.noise).ln() - (self.dim - 1) as f64 * 2f64.ln()
        };
        rows.chunks_exact(self.dim).map(one).collect()
    }
}

/// A folded sheet with Laplace noise, against a thicker one.
pub fn fold(dim: usize, rng: &mut Generator) -> Distributions {
    let (noise, ratio) = (log_uniform(0.01, 0.05, rng), log_uniform(2.0, 8.0, rng));
    // KL of Laplace distributions of scales b and c with one centre is ln(c/b) + b/c − 1.
    let kl = ratio.ln() + 1.0 / ratio - 1.0;
    Distributions::with_kl(Fold { dim, noise }, Fold { dim, noise: noise * ratio }, kl)
}

/// Clusters at the corners of a cube with an even number of minus signs, against clusters at all corners.
pub fn parity(dim: usize, rng: &mut Generator) -> Distributions {
    let active = dim.min(4);
    let width = log_uniform(0.15, 0.3, rng);
    let corners = |even_only: bool| {
        let kept: Vec<usize> = (0..1usize << active).filter(|c| !even_only || c.count_ones() % 2 == 0).collect();
        let sign = |c: usize, j: usize| match j < active {
            true => {
                if c >> j & 1 == 1 {
                    -1.0
                } else {
                    1.0
                }
            }
            false => 0.0,
        };
        let means: Vec<f64> = kept.iter().flat_map(|&c| (0..dim).map(move |j| sign(c, j))).collect();
        let mut scales = vec![1.0; dim];
        scales[..active].fill(width);
        Mixture::new(dim, &vec![1.0; kept.len()], &means, &diagonal(&scales).repeat(kept.len()))
    };
    Distributions::new(corners(true), corners(false))
}

/// Independent Cauchy columns with these locations.
struct CauchyColumns(Vec<f64>);

impl Density for CauchyColumns {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        let law = Cauchy::new(0.0, 1.0).expect("a scale above zero");
        for _ in 0..n {
            rows.extend(self.0.iter().map(|location| location + law.sample(rng)));
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let one = |(x, l): (&f64, &f64)| -(std::f64::consts::PI * (1.0 + (x - l) * (x - l))).ln();
        rows.chunks_exact(self.0.len()).map(|row| row.iter().zip(&self.0).map(one).sum()).collect()
    }
}

/// Independent Cauchy columns, against shifted ones: KL is Σ ln(1 + δ²/4).
pub fn cauchy(dim: usize, rng: &mut Generator) -> Distributions {
    let size = log_uniform(0.5, 2.5, rng) / (dim as f64).sqrt();
    let shifts: Vec<f64> = (0..dim).map(|_| size * if rng.random_bool(0.5) { 1.0 } else { -1.0 }).collect();
    let kl = shifts.iter().map(|s| (1.0 + 0.25 * s * s).ln()).sum();
    Distributions::with_kl(CauchyColumns(vec![0.0; dim]), CauchyColumns(shifts), kl)
}

/// Two Gaussians, with one row in a hundred of one sample far outside.
pub fn contaminated(dim: usize, rng: &mut Generator) -> Distributions {
    let shift = if rng.random_bool(0.5) { 0.0 } else { log_uniform(0.2, 1.5, rng) / (dim as f64).sqrt() };
    let p = Mixture::new(dim, &[1.0], &vec![0.0; dim], &diagonal(&vec![1.0; dim]));
    let q = Mixture::new(dim, &[1.0], &vec![shift; dim], &diagonal(&vec![1.0; dim]));
    let kl = 0.5 * shift * shift * dim as f64;
    let far = log_uniform(30.0, 30_000.0, rng);
    let of_p = rng.random_bool(0.5);
    Distributions::with_kl(p, q, kl).with_outliers(of_p, far)
}

/// Replaces one value in a hundred rows, at least one, by a value far outside.
pub fn add_outliers(rows: &mut [f64], dim: usize, far: f64, rng: &mut impl Rng) {
    let n = rows.len() / dim;
    for _ in 0..(n / 100).clamp(1, 5) {
        let (row, column) = (rng.random_range(0..n), rng.random_range(0..dim));
        rows[row * dim + column] = far * rng.random_range(0.5..1.5);
    }
}
