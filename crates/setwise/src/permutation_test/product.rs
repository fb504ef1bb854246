//! Products of many columns of the same rows: out[a, b] = Σ_i x[i, a] · y[i, b].
//!
//! The left columns are stored in *panels* of [`PANEL`], `[panel][row][PANEL]`, the right ones in *strips* of
//! [`STRIP`], `[strip][row][STRIP]`, so that both are read in memory order. A register tile is a panel, or half of one,
//! by two vectors of a strip. A task owns [`PANELS_PER_TASK`] panels and all strips; it walks through the rows in chunks
//! that stay in the cache. Sums over a chunk are f32 in a fixed order, whatever the number of threads.

use rayon::prelude::*;
use setwise_engine::Real;
use setwise_engine::simd::{Kernel, Vector};

/// Columns of a panel.
pub(super) const PANEL: usize = 12;
/// Columns of a strip.
pub(super) const STRIP: usize = 32;
/// Panels of a task: strips are read once for all of them.
const PANELS_PER_TASK: usize = 4;
/// Rows of a chunk: 64 KiB of a strip.
const CHUNK: usize = 512;

/// The product of panels with strips, `[panels · PANEL, strips · STRIP]`. Where `triangle` is set, both hold the same
/// columns, and only the entries with b < a + PANEL are computed; the others are zero.
pub(super) fn product(panels: &[f32], strips: &[f32], rows: usize, triangle: bool) -> Vec<f32> {
    let width = strips.len() / rows;
    let mut out = vec![0.0; panels.len() / rows * width];
    let tasks = out.par_chunks_mut(PANELS_PER_TASK * PANEL * width);
    tasks.zip(panels.par_chunks(PANELS_PER_TASK * PANEL * rows)).enumerate().for_each(|(task, (out, panels))| {
        let first = task * PANELS_PER_TASK;
        for from in (0..rows).step_by(CHUNK) {
            let to = (from + CHUNK).min(rows);
            for (s, strip) in strips.chunks_exact(STRIP * rows).enumerate() {
                let panels = panels.chunks_exact(PANEL * rows).zip(out.chunks_exact_mut(PANEL * width));
                for (p, (panel, out)) in panels.enumerate() {
                    if triangle && s * STRIP >= (first + p + 1) * PANEL {
                        continue;
                    }
                    let tile = Tile {
                        panel: &panel[from * PANEL..to * PANEL],
                        strip: &strip[from * STRIP..to * STRIP],
                        out: &mut out[s * STRIP..],
                        width,
                    };
                    // SAFETY: the slices hold the same rows, and `out` the rows and columns of the tile.
                    unsafe { f32::dispatch(tile) };
                }
            }
        }
    });
    out
}

/// Adds the product of rows of a panel and a strip to `out`, `[PANEL, STRIP]` with rows `width` apart.
struct Tile<'a> {
    panel: &'a [f32],
    strip: &'a [f32],
    out: &'a mut [f32],
    width: usize,
}

impl Kernel<f32> for Tile<'_> {
    type Out = ();

    /// # Safety
    /// The machine has the instructions of `V`; the slices are as long as the fields say.
    #[inline(always)]
    unsafe fn run<V: Vector<f32>>(mut self) {
        for column in (0..STRIP).step_by(2 * V::LANES) {
            // SAFETY: the caller's contract; `STRIP` is a multiple of two vectors of any machine.
            unsafe {
                if V::REGISTERS_32 {
                    self.sums::<V, 12>(0, column);
                } else {
                    self.sums::<V, 6>(0, column);
                    self.sums::<V, 6>(6, column);
                }
            }
        }
    }
}

impl Tile<'_> {
    /// Columns `first..first + R` of the panel by two vectors of the strip from `column` on.
    ///
    /// # Safety
    /// As for `run`.
    #[inline(always)]
    unsafe fn sums<V: Vector<f32>, const R: usize>(&mut self, first: usize, column: usize) {
        let at = |r: usize| (first + r) * self.width + column;
        assert!(first + R <= PANEL && column + 2 * V::LANES <= STRIP && self.out.len() >= at(R - 1) + 2 * V::LANES);
        // SAFETY: the caller's contract on instructions, and the assertion.
        unsafe {
            let mut acc = [[V::zero(); 2]; R];
            for (x, y) in self.panel.chunks_exact(PANEL).zip(self.strip.chunks_exact(STRIP)) {
                let y = y.as_ptr().add(column);
                let y = [V::load(y), V::load(y.add(V::LANES))];
                for (r, acc) in acc.iter_mut().enumerate() {
                    let x = V::splat(*x.as_ptr().add(first + r));
                    *acc = [x.mul_add(y[0], acc[0]), x.mul_add(y[1], acc[1])];
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                let to = self.out.as_mut_ptr().add(at(r));
                V::load(to).add(acc[0]).store(to);
                V::load(to.add(V::LANES)).add(acc[1]).store(to.add(V::LANES));
            }
        }
    }
}

/// Columns `[panel][row][PANEL]` as strips.
pub(super) fn strips_of_panels(panels: &[f32], rows: usize) -> Vec<f32> {
    let columns = panels.len() / rows;
    let mut strips = vec![0.0; columns.div_ceil(STRIP) * STRIP * rows];
    strips.par_chunks_mut(STRIP * rows).enumerate().for_each(|(s, strip)| {
        for c in 0..STRIP.min(columns - s * STRIP) {
            let column = s * STRIP + c;
            let panel = &panels[column / PANEL * PANEL * rows..];
            for (i, row) in strip.chunks_exact_mut(STRIP).enumerate() {
                row[c] = panel[i * PANEL + column % PANEL];
            }
        }
    });
    strips
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small whole numbers, whose sums are exact.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed) % 13) as f32 - 6.0).collect()
    }

    #[test]
    fn products_equal_sums_over_rows() {
        let rows = 700;
        let (panels, strips) = (numbers(5 * PANEL * rows, 1), numbers(2 * STRIP * rows, 2));
        let out = product(&panels, &strips, rows, false);
        let (x, y) = (
            |i: usize, a: usize| panels[a / PANEL * PANEL * rows + i * PANEL + a % PANEL],
            |i: usize, b: usize| strips[b / STRIP * STRIP * rows + i * STRIP + b % STRIP],
        );
        for (a, b) in [(0, 0), (11, 31), (12, 32), (59, 63), (30, 5)] {
            let expected: f32 = (0..rows).map(|i| x(i, a) * y(i, b)).sum();
            assert_eq!(out[a * 2 * STRIP + b], expected, "{a} {b}");
        }
    }

    #[test]
    fn the_triangle_of_a_square_is_that_of_the_full_product() {
        let rows = 30;
        let panels = numbers(6 * PANEL * rows, 3);
        let strips = strips_of_panels(&panels, rows);
        let width = strips.len() / rows;
        let (full, half) = (product(&panels, &strips, rows, false), product(&panels, &strips, rows, true));
        for a in 0..6 * PANEL {
            for b in 0..=a {
                assert_eq!(half[a * width + b], full[a * width + b]);
                assert_eq!(full[a * width + b], full[b * width + a]);
            }
        }
    }

    #[test]
    fn products_agree_on_narrower_vectors() {
        setwise_engine::simd::test_with_narrower_vectors("products_equal_sums");
    }
}
