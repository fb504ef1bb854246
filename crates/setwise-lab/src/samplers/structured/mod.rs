//! Pairs of distributions that differ in structure finer than their moments.
//!
//! * `fine_mixtures`: many small clusters on lattices, curves, sheets or at random, against smoothed versions.
//! * `cells`: piecewise constant densities on random partitions, some of them with nearly empty cells.
//! * `waves`: Gaussian densities that are modulated by cosines.
//! * `shells`: spherical shells with a random radial density.
//! * `graphs`: noisy graphs of rough functions.
//!
//! Shapes, scales and directions are random. Either distribution can be the finer one.

mod cells;
mod fine_mixtures;
mod graphs;
mod shells;
mod waves;

use rand::{Rng, RngExt};

use setwise::random::Generator;

use super::broad::{Density, DensityPair, Precision, Truth, divergence};
use super::normal;

/// A kind of structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// Many small clusters.
    FineMixture,
    /// Constant densities on the cells of a partition.
    Cells,
    /// Densities modulated by cosines.
    Waves,
    /// Spherical shells.
    Shells,
    /// Noisy graphs of functions.
    Graphs,
}

impl Structure {
    /// All kinds.
    pub const ALL: [Structure; 5] =
        [Structure::FineMixture, Structure::Cells, Structure::Waves, Structure::Shells, Structure::Graphs];

    /// A random kind that exists in `dim` dimensions.
    pub fn random(dim: usize, rng: &mut Generator) -> Self {
        loop {
            let kind = match rng.random_range(0..10) {
                0..=3 => Structure::FineMixture,
                4..=5 => Structure::Cells,
                6..=7 => Structure::Waves,
                8 => Structure::Shells,
                _ => Structure::Graphs,
            };
            if dim > 1 || !matches!(kind, Structure::Shells | Structure::Graphs) {
                return kind;
            }
        }
    }

    /// Draws two distributions of this kind with KL(p‖q).
    pub fn draw(
        self,
        dim: usize,
        precision: Precision,
        rng: &mut Generator,
    ) -> (Box<dyn Density>, Box<dyn Density>, Truth) {
        let (p, q) = match self {
            Structure::FineMixture => fine_mixtures::pair(dim, rng),
            Structure::Cells => {
                let (p, q) = cells::pair(dim, rng);
                let truth = Truth::exact(p.kl(&q));
                return (Box::new(p), Box::new(q), truth);
            }
            Structure::Waves => waves::pair(dim, rng),
            Structure::Shells => shells::pair(dim, rng),
            Structure::Graphs => graphs::pair(dim, rng),
        };
        let truth = divergence(&*p, &*q, true, precision, rng);
        (p, q, truth)
    }
}

/// Puts the finer distribution first with this probability, and second otherwise.
fn in_either_order(
    finer: impl Density + 'static,
    other: impl Density + 'static,
    first: f64,
    rng: &mut Generator,
) -> DensityPair {
    match rng.random_bool(first) {
        true => (Box::new(finer), Box::new(other)),
        false => (Box::new(other), Box::new(finer)),
    }
}

/// A random unit vector.
fn unit_vector(dim: usize, rng: &mut impl Rng) -> Vec<f64> {
    loop {
        let v: Vec<f64> = (0..dim).map(|_| normal(rng)).collect();
        let length = v.iter().map(|x| x * x).sum::<f64>().sqrt();
        if length > 1e-6 {
            return v.into_iter().map(|x| x / length).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn densities_are_normalised() {
        // The mean of p / ½(p + q) over points of both is one. The ratio is at most two.
        const POINTS: usize = 20_000;
        let mut rng = Generator::seed_from_u64(2);
        for kind in Structure::ALL {
            for i in 0..40 {
                let dim = if i % 2 == 0 || matches!(kind, Structure::Shells | Structure::Graphs) { 2 } else { 1 };
                let (p, q, _) = kind.draw(dim, Precision::Coarse, &mut rng);
                let mut rows = Vec::new();
                p.sample(POINTS, &mut rng, &mut rows);
                q.sample(POINTS, &mut rng, &mut rows);
                let (log_p, log_q) = (p.log_density(&rows), q.log_density(&rows));
                let share = |(p, q): (&f64, &f64)| 2.0 / (1.0 + (q - p).exp());
                let mean = log_p.iter().zip(&log_q).map(share).sum::<f64>() / (2 * POINTS) as f64;
                assert!((mean - 1.0).abs() < 0.02, "{kind:?}: {mean}");
            }
        }
    }

    #[test]
    fn divergences_of_every_kind_spread_from_small_to_large() {
        let mut rng = Generator::seed_from_u64(4);
        for kind in Structure::ALL {
            for dim in [2, 8] {
                let mut kls: Vec<f64> = (0..200).map(|_| kind.draw(dim, Precision::Coarse, &mut rng).2.value).collect();
                kls.sort_by(f64::total_cmp);
                assert!(kls[20] < 0.6 && kls[180] > 0.4, "{kind:?}, d = {dim}: {kls:?}");
            }
        }
    }
}
