//! Statistics that are quadratic in the products of columns of X with columns of Y.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use setwise_engine::splitmix64;

use super::super::product::{PANEL, STRIP, product};
use super::columns::Columns;
use crate::random::Generator;

/// Which row of Y belongs to each row of X.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pairing {
    pub rows: usize,
    pub seed: u64,
}

impl Pairing {
    /// The order of the rows of Y in a permutation. Permutation zero is the observed one.
    pub fn order(self, permutation: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.rows as u32).collect();
        if permutation > 0 {
            let seed = splitmix64(splitmix64(self.seed) ^ permutation as u64);
            order.shuffle(&mut Generator::seed_from_u64(seed));
        }
        order
    }
}

/// How products become a statistic. Every column of a side has so many columns of products, side by side.
#[derive(Clone, Debug)]
pub(super) enum Reduction {
    /// The sum of squares.
    Sum,
    /// The weighted sum of squares; weights are of one pair of columns.
    PairSum { columns: [usize; 2], weights: Vec<f64> },
    /// The largest weighted sum of squares of a pair of columns.
    LargestPair { columns: [usize; 2], weights: Vec<f64> },
}

/// Columns of X and of Y that are multiplied.
pub(super) struct Products {
    rows: usize,
    widths: [usize; 2],
    panels: Vec<f32>,
    strips: Vec<f32>,
}

impl Products {
    pub fn new(x: &Columns, y: &Columns) -> Self {
        let (panels, strips) = (x.panels(), y.strips());
        let rows = panels.len() / (x.width.div_ceil(PANEL) * PANEL);
        Products { rows, widths: [x.width, y.width], panels, strips }
    }

    /// A statistic of the products.
    pub fn value(&self, products: &[f32], reduction: &Reduction) -> f64 {
        match reduction {
            // Columns that fill up panels and strips are zero.
            Reduction::Sum => products.iter().map(|x| f64::from(*x).powi(2)).sum(),
            Reduction::PairSum { columns, weights } => self.pairs(products, *columns, weights).map(|(_, v)| v).sum(),
            Reduction::LargestPair { columns, weights } => {
                self.pairs(products, *columns, weights).map(|(_, v)| v).fold(0.0, f64::max)
            }
        }
    }

    /// The columns of X and Y that are the largest pair, of statistics that look for one.
    pub fn largest(&self, products: &[f32], reduction: &Reduction) -> Option<[usize; 2]> {
        let Reduction::LargestPair { columns, weights } = reduction else { return None };
        self.pairs(products, *columns, weights).max_by(|a, b| a.1.total_cmp(&b.1)).map(|(pair, _)| pair)
    }

    /// Columns of X times columns of Y for an order of the rows of Y, `[width of panels, width of strips]`.
    pub fn of(&self, order: &[u32]) -> Vec<f32> {
        let mut strips = vec![0.0; self.strips.len()];
        let of_strips = strips.chunks_exact_mut(STRIP * self.rows).zip(self.strips.chunks_exact(STRIP * self.rows));
        for (permuted, strip) in of_strips {
            for (out, &row) in permuted.chunks_exact_mut(STRIP).zip(order) {
                out.copy_from_slice(&strip[row as usize * STRIP..(row as usize + 1) * STRIP]);
            }
        }
        product(&self.panels, &strips, self.rows, false)
    }

    /// Weighted sums of squares of each pair of columns.
    fn pairs(
        &self,
        products: &[f32],
        [kx, ky]: [usize; 2],
        weights: &[f64],
    ) -> impl Iterator<Item = ([usize; 2], f64)> {
        let stride = self.widths[1].div_ceil(STRIP) * STRIP;
        let value = move |a: usize, b: usize| {
            let row = |k: usize| &products[(a * kx + k) * stride + b * ky..][..ky];
            let squares = |(k, weights): (usize, &[f64])| -> f64 {
                row(k).iter().zip(weights).map(|(x, weight)| weight * f64::from(*x).powi(2)).sum()
            };
            weights.chunks_exact(ky).enumerate().map(squares).sum::<f64>()
        };
        let [dim_x, dim_y] = [self.widths[0] / kx, self.widths[1] / ky];
        (0..dim_x).flat_map(move |a| (0..dim_y).map(move |b| ([a, b], value(a, b))).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::encode::Stored;
    use super::super::columns::Scale;
    use super::*;

    fn columns(rows: usize, width: usize, seed: usize) -> (Columns, Vec<f32>) {
        let values: Vec<f32> = (0..rows * width).map(|i| (((i + seed) * 7919) % 101) as f32 / 50.0).collect();
        let mean = |c: usize| values.iter().skip(c).step_by(width).sum::<f32>() / rows as f32;
        let means: Vec<f32> = (0..width).map(mean).collect();
        let centred = values.iter().enumerate().map(|(i, x)| x - means[i % width]).collect();
        (Columns::new(&Stored { values, width }, rows, Scale::Centred), centred)
    }

    #[test]
    fn statistics_are_squares_of_products() {
        let (rows, kx, ky) = (40, 2, 3);
        let ((x, of_x), (y, of_y)) = (columns(rows, 2 * kx, 1), columns(rows, 2 * ky, 5));
        let order = Pairing { rows, seed: 4 }.order(7);
        let entry = |a: usize, b: usize| -> f64 {
            (0..rows).map(|i| f64::from(of_x[i * 2 * kx + a] * of_y[order[i] as usize * 2 * ky + b])).sum()
        };
        let weights: Vec<f64> = (0..kx * ky).map(|i| 1.0 + i as f64).collect();
        let pair = |a: usize, b: usize| -> f64 {
            (0..kx * ky).map(|i| weights[i] * entry(a * kx + i / ky, b * ky + i % ky).powi(2)).sum()
        };
        let pairs = [pair(0, 0), pair(0, 1), pair(1, 0), pair(1, 1)];
        let close = |x: f64, y: f64| assert!((x / y - 1.0).abs() < 1e-3, "{x} {y}");
        let sum: f64 =
            (0..2 * kx).flat_map(|a| (0..2 * ky).map(move |b| (a, b))).map(|(a, b)| entry(a, b).powi(2)).sum();
        let both = Products::new(&x, &y);
        let products = both.of(&order);
        close(both.value(&products, &Reduction::Sum), sum);
        let columns = [kx, ky];
        let all = Reduction::PairSum { columns, weights: weights.clone() };
        close(both.value(&products, &all), pairs.iter().sum());
        let largest = Reduction::LargestPair { columns, weights };
        let most = pairs.iter().copied().fold(0.0, f64::max);
        close(both.value(&products, &largest), most);
        let [a, b] = both.largest(&products, &largest).unwrap();
        assert_eq!(pairs[2 * a + b], most);
    }

    #[test]
    fn permutation_zero_is_the_observed_pairing() {
        let pairing = Pairing { rows: 50, seed: 1 };
        assert_eq!(pairing.order(0), (0..50).collect::<Vec<u32>>());
        let mut order = pairing.order(3);
        assert_ne!(order, pairing.order(4));
        order.sort_unstable();
        assert_eq!(order, pairing.order(0));
    }
}
