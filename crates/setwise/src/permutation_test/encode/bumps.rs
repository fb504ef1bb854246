//! Kernels around random rows, of several widths.

use rand::SeedableRng;
use rand::seq::index::sample;
use rayon::prelude::*;
use setwise_engine::Real;
use setwise_engine::simd::{Kernel, Vector};

use super::Encode;
use crate::random::Generator;

/// The shape of a kernel of width h.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// exp(−‖x − y‖² / 2h²)
    Gaussian,
    /// exp(−‖x − y‖ / h)
    Laplace,
    /// (‖x‖ + ‖y‖ − ‖x − y‖) / 2h, whose maximum mean discrepancy is the energy distance.
    Distance,
}

/// Bumps around random rows: for each shape and width, a column for each of the first centres.
pub struct Bumps<'a> {
    points: &'a [f32],
    dim: usize,
    /// The rows of the centres.
    pub rows: Vec<usize>,
    /// Centres by coordinate: `[dim, centres]`.
    centres: Vec<f32>,
    /// The norms of the centres.
    norms: Vec<f32>,
    count: usize,
    /// Shape, width and number of centres.
    kinds: Vec<(Shape, f32, usize)>,
}

impl<'a> Bumps<'a> {
    /// Bumps around random rows. Each kind has a shape, a width and a number of centres. Centres are drawn from
    /// `order`, all rows in an order that labels do not determine.
    pub fn new(points: &'a [f32], dim: usize, order: &[u32], kinds: &[(Shape, f32, usize)], seed: u64) -> Self {
        let most = points.len() / dim;
        let kinds: Vec<_> = kinds.iter().map(|&(shape, h, centres)| (shape, h, centres.min(most))).collect();
        let count = kinds.iter().map(|k| k.2).max().unwrap_or(0);
        let rows = drawn(order, count, seed);
        let centres = (0..dim).flat_map(|c| rows.iter().map(move |&i| points[i * dim + c])).collect();
        let norms = rows.iter().map(|&i| norm(&points[i * dim..(i + 1) * dim])).collect();
        Bumps { points, dim, rows, centres, norms, count, kinds }
    }

    /// The kernel matrix of the centres of a kind, `[centres, centres]`.
    pub fn kernel_matrix(&self, kind: usize) -> Vec<f64> {
        let columns = self.columns(kind);
        let mut out = vec![0.0; self.width()];
        let mut matrix = Vec::with_capacity(columns.len() * columns.len());
        for &row in &self.rows[..columns.len()] {
            self.encode(row, &mut out);
            matrix.extend(out[columns.clone()].iter().map(|x| f64::from(*x)));
        }
        matrix
    }

    /// The columns of a kind.
    pub fn columns(&self, kind: usize) -> std::ops::Range<usize> {
        let first = self.kinds[..kind].iter().map(|k| k.2).sum();
        first..first + self.kinds[kind].2
    }
}

impl Encode for Bumps<'_> {
    fn width(&self) -> usize {
        self.kinds.iter().map(|k| k.2).sum()
    }

    fn encode(&self, row: usize, out: &mut [f32]) {
        let mut squares = vec![0.0f32; self.count];
        for (x, centres) in self.points[row * self.dim..].iter().take(self.dim).zip(self.centres.chunks(self.count)) {
            squares.iter_mut().zip(centres).for_each(|(s, y)| *s += (x - y) * (x - y));
        }
        let mut rest = out;
        for &(shape, h, centres) in &self.kinds {
            let (columns, others) = rest.split_at_mut(centres);
            columns.copy_from_slice(&squares[..centres]);
            // SAFETY: the kernel accesses its slice alone.
            unsafe { f32::dispatch(Bump { squares: columns, shape, width: h }) };
            if shape == Shape::Distance {
                let of_row = norm(&self.points[row * self.dim..(row + 1) * self.dim]);
                let scale = 0.5 / h;
                columns.iter_mut().zip(&self.norms).for_each(|(x, of_centre)| *x = scale * (of_row + of_centre - *x));
            }
            rest = others;
        }
    }
}

fn norm(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum::<f32>().sqrt()
}

/// Replaces squared distances by values of a kernel; by distances for [`Shape::Distance`].
struct Bump<'a> {
    squares: &'a mut [f32],
    shape: Shape,
    width: f32,
}

impl Kernel<f32> for Bump<'_> {
    type Out = ();

    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn run<V: Vector<f32>>(self) {
        let rate = match self.shape {
            Shape::Gaussian => -0.5 / (self.width * self.width),
            Shape::Laplace => -1.0 / self.width,
            Shape::Distance => 1.0,
        };
        for chunk in self.squares.chunks_mut(V::LANES) {
            // SAFETY: the caller's contract on instructions; the lanes lie in the chunk.
            unsafe {
                let mut x = V::load_first(chunk.as_ptr(), chunk.len());
                if self.shape != Shape::Gaussian {
                    x = x.sqrt();
                }
                if self.shape != Shape::Distance {
                    x = x.mul(V::splat(rate)).exp();
                }
                x.store_first(chunk.as_mut_ptr(), chunk.len());
            }
        }
    }
}

/// Rows that are drawn from an order of all rows.
fn drawn(order: &[u32], count: usize, seed: u64) -> Vec<usize> {
    let places = sample(&mut Generator::seed_from_u64(seed), order.len(), count);
    places.into_iter().map(|place| order[place] as usize).collect()
}

/// Widths from the scale of near neighbours to the median distance of rows drawn from `order`, in equal ratios.
pub fn bandwidths<const N: usize>(points: &[f32], dim: usize, order: &[u32], seed: u64) -> [f32; N] {
    /// Rows whose distances are computed.
    const SAMPLED: usize = 600;
    /// Near neighbours are those of this share of the rows.
    const NEAR: f64 = 0.01;
    /// The least width as a share of the median distance.
    const LEAST: f32 = 0.01;
    let chosen = drawn(order, order.len().min(SAMPLED), seed);
    let row = |i: usize| &points[chosen[i] * dim..(chosen[i] + 1) * dim];
    let distance = |a: usize, b: usize| row(a).iter().zip(row(b)).map(|(x, y)| (x - y) * (x - y)).sum::<f32>().sqrt();
    let count = chosen.len();
    let near = ((NEAR * count as f64) as usize).clamp(1, count.saturating_sub(1).max(1));
    let of_row = |a: usize| {
        let mut distances: Vec<f32> =
            (0..count).filter(|&b| b != a).map(|b| distance(a, b)).filter(|d| *d > 0.0).collect();
        distances.sort_unstable_by(f32::total_cmp);
        (distances.get(near - 1).copied(), distances)
    };
    let found: Vec<(Option<f32>, Vec<f32>)> = (0..count).into_par_iter().map(of_row).collect();
    let mut nearest: Vec<f32> = found.iter().filter_map(|f| f.0).collect();
    let mut all: Vec<f32> = found.into_iter().flat_map(|f| f.1).collect();
    if all.is_empty() || nearest.is_empty() {
        return [1.0; N];
    }
    let median = |v: &mut Vec<f32>| {
        let middle = v.len() / 2;
        *v.select_nth_unstable_by(middle, f32::total_cmp).1
    };
    let most = median(&mut all);
    let least = median(&mut nearest).clamp(LEAST * most, most);
    // Squares of smaller widths are zero.
    std::array::from_fn(|i| (least * (most / least).powf(i as f32 / (N - 1).max(1) as f32)).max(1e-15))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bumps_are_kernels_of_the_distance_to_their_centres() {
        let points: Vec<f32> = (0..60).map(|i| (i * 37 % 61) as f32 / 20.0).collect();
        let kinds = [(Shape::Gaussian, 0.7, 5), (Shape::Laplace, 1.3, 3)];
        let bumps = Bumps::new(&points, 2, &(0..30).collect::<Vec<u32>>(), &kinds, 4);
        let mut out = vec![0.0; bumps.width()];
        bumps.encode(8, &mut out);
        assert_eq!((out.len(), bumps.columns(1)), (8, 5..8));
        for c in 0..3 {
            let (x, y) = (points[16] - bumps.centres[c], points[17] - bumps.centres[5 + c]);
            let d = (x * x + y * y).sqrt();
            assert!((out[c] - (-d * d / (2.0 * 0.7 * 0.7)).exp()).abs() < 1e-5);
            assert!((out[5 + c] - (-d / 1.3).exp()).abs() < 1e-5);
        }
    }

    #[test]
    fn widths_rise_from_near_neighbours_to_the_median_distance() {
        let points: Vec<f32> = (0..1000).map(|i| (i * 7919 % 1009) as f32 / 1009.0).collect();
        let widths = bandwidths::<4>(&points, 1, &(0..1000).collect::<Vec<u32>>(), 1);
        assert!(widths.windows(2).all(|w| w[0] < w[1]) && (0.002..0.03).contains(&widths[0]), "{widths:?}");
        assert!((0.2..0.4).contains(&widths[3]), "{widths:?}");
        assert_eq!(bandwidths::<3>(&[2.0; 30], 1, &(0..30).collect::<Vec<u32>>(), 1), [1.0; 3]);
    }
}
