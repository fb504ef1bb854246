//! Columns that have the same distribution in both samples and hide the others.

use rand::RngExt;
use rand::seq::SliceRandom;
use rand_distr::{Distribution, StudentT};

use setwise::random::Generator;

use crate::samplers::{log_uniform, normal};

/// The probability that padded columns are mixed with the others.
const MIXED_FRACTION: f64 = 0.25;

/// The distribution of a further column, which is independent of all others.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Noise {
    Normal,
    Uniform,
    StudentT,
}

/// Further columns at random places. The divergence of two distributions with such columns is unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct Padding {
    /// Columns in all.
    dim: usize,
    /// Places of the columns that differ.
    places: Vec<usize>,
    /// Distribution, scale and place of the other columns.
    noise: Vec<(Noise, f64, usize)>,
    /// Multiples of one column that are added to another: from, to, factor.
    shears: Vec<(usize, usize, f64)>,
}

impl Padding {
    /// Draws columns that fill up `differing` columns to `dim`.
    pub fn draw(differing: usize, dim: usize, rng: &mut Generator) -> Self {
        let mut order: Vec<usize> = (0..dim).collect();
        order.shuffle(rng);
        let (places, others) = order.split_at(differing);
        let kind = [Noise::Normal, Noise::Normal, Noise::Uniform, Noise::StudentT][rng.random_range(0..4)];
        let noise = others.iter().map(|&place| (kind, log_uniform(0.3, 3.0, rng), place)).collect();
        let mixed = rng.random_bool(MIXED_FRACTION);
        let count = if mixed { dim } else { 0 };
        let mut shear = || {
            let from = rng.random_range(0..dim);
            let to = (from + rng.random_range(1..dim)) % dim;
            (from, to, normal(rng))
        };
        let shears = (0..count).map(|_| shear()).collect();
        Padding { dim, places: places.to_vec(), noise, shears }
    }

    /// Rows with all columns, from rows of those that differ.
    pub fn apply(&self, rows: &[f64], rng: &mut Generator) -> Vec<f64> {
        let differing = self.places.len();
        let mut out = vec![0.0; rows.len() / differing * self.dim];
        let heavy = StudentT::new(3.0).expect("three degrees of freedom");
        for (row, out) in rows.chunks_exact(differing).zip(out.chunks_exact_mut(self.dim)) {
            self.places.iter().zip(row).for_each(|(&place, x)| out[place] = *x);
            for &(noise, scale, place) in &self.noise {
                out[place] = scale
                    * match noise {
                        Noise::Normal => normal(rng),
                        Noise::Uniform => 2.0 * rng.random::<f64>() - 1.0,
                        Noise::StudentT => heavy.sample(rng),
                    };
            }
            for &(from, to, factor) in &self.shears {
                out[to] += factor * out[from];
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn rows_keep_their_columns_among_others() {
        let rows: Vec<f64> = (0..20).map(|i| 100.0 + f64::from(i)).collect();
        let mut kept = 0;
        for seed in 0..8 {
            let mut rng = Generator::seed_from_u64(seed);
            let padding = Padding::draw(2, 5, &mut rng);
            let padded = padding.apply(&rows, &mut rng);
            assert_eq!(padded.len(), 50);
            if padding.shears.is_empty() {
                kept += 1;
                for (row, out) in rows.chunks(2).zip(padded.chunks(5)) {
                    assert!(row.iter().all(|x| out.contains(x)) && out.iter().filter(|x| **x < 90.0).count() == 3);
                }
            }
        }
        assert!(kept > 2);
    }
}
