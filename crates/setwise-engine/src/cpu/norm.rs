//! LayerNorm of rows, forward and backward, and of sums of rows.

use std::ops::Range;

use super::sums::{SumRows, sum_rows};
use super::tasks::{Ptr, chunk_range, locate};
use super::worker::{Run, Worker};
use crate::program::{AddNorm, Norm};
use crate::real::Real;
use crate::simd::{Kernel, MAX_LANES, Vector, columns, load_lanes, store_lanes};

/// Added to the variance.
pub const EPSILON: f64 = 1e-5;

/// Rows of a task. Column sums are taken per task and then added in order, so this constant fixes their bits.
pub const ROWS: usize = 256;

/// LayerNorm of `rows` rows of `cols` numbers, in place: `y = gain · x̂ + shift` with
/// `x̂ = (x − mean) / sqrt(var + ε)`. x̂ and 1/std are saved where their pointers are not null.
///
/// # Shapes
/// `y [rows, cols]` with row stride `y_row`, `gain` and `shift [cols]`, `normalised [rows, cols]` contiguous,
/// `inv_std [rows]`.
pub struct NormRows<T> {
    pub rows: usize,
    pub cols: usize,
    pub y: *mut T,
    pub y_row: usize,
    pub gain: *const T,
    pub shift: *const T,
    /// Null where the backward pass does not run or recomputes them.
    pub normalised: *mut T,
    pub inv_std: *mut T,
}

impl<T: Real> Kernel<T> for NormRows<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        debug_assert!(self.y.is_aligned() && (self.rows <= 1 || self.y_row >= self.cols), "rows overlap");
        debug_assert!(self.normalised.is_null() == self.inv_std.is_null());
        let full = self.rows / V::LANES * V::LANES;
        // SAFETY: the contract of `Kernel::run`: `rows` rows are valid.
        unsafe {
            for first in (0..full).step_by(V::LANES) {
                self.group::<V>(first, V::LANES);
            }
            self.group::<V>(full, self.rows - full);
        }
    }
}

impl<T: Real> NormRows<T> {
    /// Some rows, at most as many as a vector has lanes.
    ///
    /// # Safety
    /// As for [`Kernel::run`], for rows `first..first + rows`.
    #[inline(always)]
    unsafe fn group<V: Vector<T>>(&self, first: usize, rows: usize) {
        let full = rows == V::LANES && self.cols.is_multiple_of(V::LANES);
        // The compiler knows the common widths.
        // SAFETY: the caller's contract; the specialised widths equal `self.cols`.
        unsafe {
            match self.cols / V::LANES {
                1 if full => self.square::<V>(first),
                2 if full => self.rows_of::<V>(first, V::LANES, 2 * V::LANES),
                4 if full => self.rows_of::<V>(first, V::LANES, 4 * V::LANES),
                8 if full => self.rows_of::<V>(first, V::LANES, 8 * V::LANES),
                _ => self.rows_of::<V>(first, rows, self.cols),
            }
        }
    }

    /// Means and deviations of all rows are computed in one vector.
    ///
    /// # Safety
    /// As for [`Kernel::run`], for rows `first..first + rows`; `cols` equals the kernel's.
    #[inline(always)]
    unsafe fn rows_of<V: Vector<T>>(&self, first: usize, rows: usize, cols: usize) {
        // SAFETY: the caller's contract; arrays hold as many lanes as any vector has.
        unsafe {
            let inv_n = V::splat(T::ONE / T::from_usize(cols));
            let y = |r: usize| self.y.add((first + r) * self.y_row);
            let mut sums = [V::zero(); MAX_LANES];
            for (r, sum) in sums.iter_mut().enumerate().take(rows) {
                columns!(V, cols, |j, n| *sum = sum.add(load_lanes::<T, V>(y(r).add(j), n)));
            }
            let mut means = [T::ZERO; MAX_LANES];
            V::sum_each(&sums[..V::LANES]).mul(inv_n).store(means.as_mut_ptr());
            for (r, square) in sums.iter_mut().enumerate().take(rows) {
                *square = V::zero();
                columns!(V, cols, |j, n| {
                    let mut d = load_lanes::<T, V>(y(r).add(j), n).sub(V::splat(means[r]));
                    if n < V::LANES {
                        // Lanes beyond the row hold −mean.
                        let mut lanes = [T::ZERO; MAX_LANES];
                        d.store(lanes.as_mut_ptr());
                        d = V::load_first(lanes.as_ptr(), n);
                    }
                    *square = d.mul_add(d, *square);
                });
            }
            let variance = V::sum_each(&sums[..V::LANES]).mul(inv_n).add(V::splat(T::from_f64(EPSILON)));
            let mut inv_std = [T::ZERO; MAX_LANES];
            V::splat(T::ONE).div(variance.sqrt()).store(inv_std.as_mut_ptr());
            for r in 0..rows {
                columns!(V, cols, |j, n| {
                    let x = load_lanes::<T, V>(y(r).add(j), n).sub(V::splat(means[r])).mul(V::splat(inv_std[r]));
                    if !self.normalised.is_null() {
                        store_lanes(x, self.normalised.add((first + r) * cols + j), n);
                    }
                    store_lanes(
                        x.mul_add(load_lanes(self.gain.add(j), n), load_lanes(self.shift.add(j), n)),
                        y(r).add(j),
                        n,
                    );
                });
            }
            if !self.normalised.is_null() {
                std::slice::from_raw_parts_mut(self.inv_std.add(first), rows).copy_from_slice(&inv_std[..rows]);
            }
        }
    }
}

impl<T: Real> NormRows<T> {
    /// A square block: as many rows as lanes, one vector a row. The rows stay in registers.
    ///
    /// # Safety
    /// As for [`Kernel::run`]; a row is one vector, and there are `LANES` rows from `first` on.
    #[inline(always)]
    unsafe fn square<V: Vector<T>>(&self, first: usize) {
        // SAFETY: the caller's contract: a row is one vector, and there are as many rows as lanes.
        unsafe {
            let inv_n = V::splat(T::ONE / T::from_usize(self.cols));
            let mut rows = [V::zero(); MAX_LANES];
            for (r, row) in rows.iter_mut().enumerate().take(V::LANES) {
                *row = V::load(self.y.add((first + r) * self.y_row));
            }
            let mut per_row = [T::ZERO; MAX_LANES];
            V::sum_each(&rows[..V::LANES]).mul(inv_n).store(per_row.as_mut_ptr());
            let mut squares = [V::zero(); MAX_LANES];
            for r in 0..V::LANES {
                rows[r] = rows[r].sub(V::splat(per_row[r]));
                squares[r] = rows[r].mul(rows[r]);
            }
            let variance = V::sum_each(&squares[..V::LANES]).mul(inv_n).add(V::splat(T::from_f64(EPSILON)));
            V::splat(T::ONE).div(variance.sqrt()).store(per_row.as_mut_ptr());
            let (gain, shift) = (V::load(self.gain), V::load(self.shift));
            for r in 0..V::LANES {
                rows[r] = rows[r].mul(V::splat(per_row[r]));
                rows[r].mul_add(gain, shift).store(self.y.add((first + r) * self.y_row));
            }
            if !self.normalised.is_null() {
                for (r, row) in rows.iter().enumerate().take(V::LANES) {
                    row.store(self.normalised.add((first + r) * self.cols));
                }
                std::ptr::copy_nonoverlapping(per_row.as_ptr(), self.inv_std.add(first), V::LANES);
            }
        }
    }
}

/// Backward pass of LayerNorm, in place on `dy`: `dx = inv_std · (g − mean(g) − x̂ · mean(g · x̂))` with
/// `g = gain · dy`. Writes the column sums of `dy · x̂` and `dy`, the gradients of gain and shift. Shapes are those of
/// [`NormRows`].
struct NormRowsBackward<T> {
    rows: usize,
    cols: usize,
    dy: *mut T,
    dy_row: usize,
    gain: *const T,
    normalised: *const T,
    inv_std: *const T,
    /// `[2 · cols]`: gradient of the gain, then of the shift.
    sums: *mut T,
}

impl<T: Real> Kernel<T> for NormRowsBackward<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        debug_assert!(self.dy.is_aligned() && (self.rows <= 1 || self.dy_row >= self.cols), "rows overlap");
        let full = self.rows / V::LANES * V::LANES;
        // SAFETY: the contract of `Kernel::run`: `rows` rows and `2 * cols` sums are valid.
        unsafe {
            std::slice::from_raw_parts_mut(self.sums, 2 * self.cols).fill(T::ZERO);
            for first in (0..full).step_by(V::LANES) {
                self.group::<V>(first, V::LANES);
            }
            self.group::<V>(full, self.rows - full);
        }
    }
}

impl<T: Real> NormRowsBackward<T> {
    /// At most as many rows as lanes: their means are computed in one vector.
    ///
    /// # Safety
    /// As for [`Kernel::run`], for rows `first..first + rows`.
    #[inline(always)]
    unsafe fn group<V: Vector<T>>(&self, first: usize, rows: usize) {
        // SAFETY: the caller's contract; arrays hold as many lanes as any vector has.
        unsafe {
            let dy = |r: usize| self.dy.add((first + r) * self.dy_row);
            let hat = |r: usize| self.normalised.add((first + r) * self.cols);
            let (mut sums, mut dots) = ([V::zero(); MAX_LANES], [V::zero(); MAX_LANES]);
            columns!(V, self.cols, |j, n| {
                let gain = load_lanes::<T, V>(self.gain.add(j), n);
                let (at_gain, at_shift) = (self.sums.add(j), self.sums.add(self.cols + j));
                let (mut d_gain, mut d_shift) = (load_lanes::<T, V>(at_gain, n), load_lanes::<T, V>(at_shift, n));
                for r in 0..rows {
                    let (d, x) = (load_lanes::<T, V>(dy(r).add(j), n), load_lanes::<T, V>(hat(r).add(j), n));
                    d_gain = d.mul_add(x, d_gain);
                    d_shift = d.add(d_shift);
                    let g = d.mul(gain);
                    sums[r] = sums[r].add(g);
                    dots[r] = g.mul_add(x, dots[r]);
                }
                store_lanes(d_gain, at_gain, n);
                store_lanes(d_shift, at_shift, n);
            });
            // Minus the means of `g` and of `g · x̂`.
            let neg_inv_n = V::splat(T::ZERO - T::ONE / T::from_usize(self.cols));
            let (mut neg_grad_means, mut neg_grad_hat_means) = ([T::ZERO; MAX_LANES], [T::ZERO; MAX_LANES]);
            V::sum_each(&sums[..V::LANES]).mul(neg_inv_n).store(neg_grad_means.as_mut_ptr());
            V::sum_each(&dots[..V::LANES]).mul(neg_inv_n).store(neg_grad_hat_means.as_mut_ptr());
            for r in 0..rows {
                let (neg_grad_mean, neg_grad_hat_mean) = (V::splat(neg_grad_means[r]), V::splat(neg_grad_hat_means[r]));
                let inv_std = V::splat(*self.inv_std.add(first + r));
                columns!(V, self.cols, |j, n| {
                    let g = load_lanes::<T, V>(dy(r).add(j), n).mul(load_lanes(self.gain.add(j), n));
                    let x = load_lanes::<T, V>(hat(r).add(j), n);
                    store_lanes(x.mul_add(neg_grad_hat_mean, g.add(neg_grad_mean)).mul(inv_std), dy(r).add(j), n);
                });
            }
        }
    }
}

/// A LayerNorm whose output gradient becomes its input gradient.
#[derive(Clone)]
pub struct NormBackward<T> {
    pub norm: Norm,
    pub dy: Ptr<T>,
    pub dy_row: usize,
    pub rows: Range<usize>,
    pub cols: usize,
}

impl<T: Real> Worker<T> {
    /// Backward through several LayerNorms, in place; the gradients of gains and shifts are added to `run.grads`.
    pub(super) fn norms_backward(&mut self, run: &mut Run<T>, norms: &[NormBackward<T>]) {
        let counts = || norms.iter().map(|n| n.rows.len().div_ceil(ROWS));
        let tasks: usize = counts().sum();
        let width = norms.iter().map(|n| 2 * n.cols).max().unwrap_or(0);
        let partials = Ptr(self.partials(tasks * width));
        let this = &*self;
        let params = run.params;
        self.threads.run(tasks, |t| {
            let (g, chunk) = locate(t, counts());
            let NormBackward { norm, dy, dy_row, ref rows, cols } = norms[g];
            let Range { start: first, end } = chunk_range(rows.clone(), chunk, ROWS);
            // SAFETY: `locate` gives each chunk of each norm to one task, and norms have disjoint outputs: rows
            // `first..end` of `dy` belong to this task alone. So does slot `t` of `tasks` slots of `width ≥ 2 · cols`
            // sums, which are not resized while tasks run.
            unsafe {
                T::dispatch(NormRowsBackward {
                    rows: end - first,
                    cols,
                    dy: dy.at(first * dy_row),
                    dy_row,
                    gain: this.param(params, norm.gain),
                    normalised: this.value(norm.normalised).at(first * cols),
                    inv_std: this.value(norm.inv_std).at(first),
                    sums: partials.at(t * width),
                });
            }
        });
        let mut t = 0;
        for n in norms {
            for _ in 0..n.rows.len().div_ceil(ROWS) {
                // SAFETY: all tasks are done; slot `t` holds 2 · cols sums.
                let sums = unsafe { std::slice::from_raw_parts(partials.at(t * width), 2 * n.cols) };
                for (param, sums) in [(n.norm.gain, &sums[..n.cols]), (n.norm.shift, &sums[n.cols..])] {
                    let range = self.program.params.spec(param).range();
                    for (g, s) in run.grads[range].iter_mut().zip(sums) {
                        *g += *s;
                    }
                }
                t += 1;
            }
        }
    }

    pub(super) fn add_norm_forward(&mut self, params: &[T], op: &AddNorm) {
        let rows = self.rows(op.y.value);
        let (y, y_row) = self.slice(op.y);
        let mut inputs = std::mem::take(&mut self.sources);
        inputs.extend(op.inputs.iter().map(|&s| self.slice(s)));
        let cols = op.y.cols;
        let this = &*self;
        self.threads.run(rows.len().div_ceil(ROWS), |t| {
            let Range { start: first, end } = chunk_range(rows.clone(), t, ROWS);
            let rows = end - first;
            // SAFETY: chunks are disjoint, so this task alone writes rows `first..end` of `y`. Inputs have the rows and
            // columns of `y`.
            unsafe {
                T::dispatch(SumRows {
                    rows,
                    cols,
                    dst: y.at(0),
                    dst_row: y_row,
                    accumulate: false,
                    sources: &inputs,
                    first,
                });
                if let Some(norm) = &op.norm {
                    this.norm_rows(params, norm, y.at(first * y_row), y_row, first, rows, cols);
                }
            }
        });
        inputs.clear();
        self.sources = inputs;
    }

    /// LayerNorm of rows `first..first + rows`, whose input is at `y`.
    ///
    /// # Safety
    /// `y` is valid for `rows` rows of `cols` columns, the norm's statistics have rows `first..first + rows`, and no
    /// other task accesses either.
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe fn norm_rows(
        &self,
        params: &[T],
        norm: &Norm,
        y: *mut T,
        y_row: usize,
        first: usize,
        rows: usize,
        cols: usize,
    ) {
        let saved = self.program.training() && self.saves_norms;
        // SAFETY: the caller's contract; statistics have the rows of `y`'s value.
        unsafe {
            T::dispatch(NormRows {
                rows,
                cols,
                y,
                y_row,
                gain: self.param(params, norm.gain),
                shift: self.param(params, norm.shift),
                normalised: if saved { self.value(norm.normalised).at(first * cols) } else { std::ptr::null_mut() },
                inv_std: if saved { self.value(norm.inv_std).at(first) } else { std::ptr::null_mut() },
            });
        }
    }

    pub(super) fn add_norm_backward(&mut self, run: &mut Run<T>, op: &AddNorm) {
        let rows = self.rows(op.y.value);
        let (dy, dy_row) = self.grad_slice(op.y);
        if let Some(norm) = op.norm {
            self.norms_backward(run, &[NormBackward { norm, dy, dy_row, rows: rows.clone(), cols: op.y.cols }]);
        }
        for (i, &input) in op.inputs.iter().enumerate() {
            if self.wants_grad(input.value) {
                let accumulate = self.grad_written(input.value) || op.inputs[..i].contains(&input);
                let dx = self.grad_slice(input);
                // SAFETY: `rows` are those of the sum and of each input; gradients of different values do not overlap.
                unsafe { sum_rows(self.threads, rows.clone(), input.cols, dx, accumulate, &[(dy, dy_row)]) };
            }
        }
        op.inputs.iter().for_each(|s| self.mark_written(s.value));
    }
}

#[cfg(test)]
mod tests {
    use super::super::gemm::tests::numbers;
    use super::*;

    /// Outputs, normalised rows and inverse deviations.
    fn normalised(x: &[f32], cols: usize, gain: &[f32], shift: &[f32]) -> [Vec<f32>; 3] {
        let rows = x.len() / cols;
        let (mut y, mut hats, mut inv_std) = (x.to_vec(), vec![f32::NAN; x.len()], vec![f32::NAN; rows]);
        let kernel = NormRows {
            rows,
            cols,
            y: y.as_mut_ptr(),
            y_row: cols,
            gain: gain.as_ptr(),
            shift: shift.as_ptr(),
            normalised: hats.as_mut_ptr(),
            inv_std: inv_std.as_mut_ptr(),
        };
        // SAFETY: `y` and `hats` have `rows` rows of `cols` numbers, `inv_std` one number a row.
        unsafe { f32::dispatch(kernel) };
        [y, hats, inv_std]
    }

    #[test]
    fn rows_of_every_width_have_the_same_norm_at_every_position() {
        for cols in [3, 8, 16, 20, 32, 48, 64, 128, 130] {
            let (x, gain, shift) = (numbers(37 * cols, 1), numbers(cols, 2), numbers(cols, 3));
            let [y, hats, inv_std] = normalised(&x, cols, &gain, &shift);
            for (r, row) in x.chunks(cols).enumerate() {
                let double = |x: &f32| f64::from(*x);
                let mean = row.iter().map(double).sum::<f64>() / cols as f64;
                let variance = row.iter().map(|x| (double(x) - mean).powi(2)).sum::<f64>() / cols as f64;
                let deviation = (variance + EPSILON).sqrt();
                assert!((f64::from(inv_std[r]) * deviation - 1.0).abs() < 1e-5, "row {r} of {cols}");
                for c in 0..cols {
                    let hat = (double(&row[c]) - mean) / deviation;
                    let exact = hat * double(&gain[c]) + double(&shift[c]);
                    assert!((f64::from(hats[r * cols + c]) - hat).abs() < 1e-5, "row {r} of {cols}");
                    assert!((f64::from(y[r * cols + c]) - exact).abs() < 1e-5, "row {r} of {cols}");
                }
                let alone = normalised(row, cols, &gain, &shift);
                let range = r * cols..(r + 1) * cols;
                assert_eq!(
                    alone,
                    [y[range.clone()].to_vec(), hats[range].to_vec(), vec![inv_std[r]]],
                    "row {r} of {cols}"
                );
            }
        }
    }
}
