//! Products with weights, and gradients of weights.

use std::arch::x86_64::*;

use super::super::packed_product::PackedProduct;
use super::super::sums::ColumnSums;
use super::super::weight_product::WeightProduct;
use super::blocks::{LEFT, RIGHT, Source, SplitTo, split, split_narrow, store_narrow_row, transpose_tiles};
use super::emulated::Emulated;
use super::multiply::{Amx, BlockMultiply, InitialSum, on_amx};
use super::{BLOCK_LEN, BLOCK_SIDE, CHUNK, TILE_LEN, TILE_SIDE, narrow};
use crate::program::Activation;
use crate::real::Real;

/// Packs a weight `[n, k]` as right blocks for `x Wᵀ`: the blocks of 32 outputs follow each other.
///
/// # Safety
/// Supported sizes, [`blocks_len`] elements at `dst`, and AVX-512.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub unsafe fn pack_forward(dst: *mut u16, w: *const f32, k: usize, n: usize) {
    if narrow(k, n) {
        // SAFETY: the caller's contract.
        return unsafe { pack_narrow(dst, w, [1, k], k, n) };
    }
    let count = k / BLOCK_SIDE;
    // SAFETY: the caller's contract: `n` and `k` are multiples of 32. Outputs `output..output + 32` of `k` numbers are
    // read, and `k / 32` blocks at `output / 32 · k / 32` are written, which `blocks_len` counts.
    unsafe {
        for output in (0..n).step_by(BLOCK_SIDE) {
            let (src, blocks) =
                (Source { ptr: w.add(output * k), row: k, width: k }, dst.add(output * count * BLOCK_LEN / BLOCK_SIDE));
            split(src, BLOCK_SIDE, SplitTo::rows(blocks, RIGHT));
            transpose_tiles(blocks, count, 1);
        }
    }
}

/// Packs a weight `[k, n]` as right blocks for `dy W`.
///
/// # Safety
/// As of [`pack_forward`].
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub unsafe fn pack_backward(dst: *mut u16, w: *const f32, k: usize, n: usize) {
    if narrow(k, n) {
        // SAFETY: the caller's contract.
        return unsafe { pack_narrow(dst, w, [n, 1], k, n) };
    }
    // SAFETY: the caller's contract.
    unsafe { split_columns(Source { ptr: w, row: n, width: n }, k, dst, RIGHT) }
}

/// Packs a narrow right operand `[k, n]`, element `(i, j)` at `w[i * apart[0] + j * apart[1]]`: the tiles of 16
/// columns follow each other.
///
/// # Safety
/// As of [`pack_forward`].
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn pack_narrow(dst: *mut u16, w: *const f32, apart: [usize; 2], k: usize, n: usize) {
    for (column, i) in (0..n).step_by(TILE_SIDE).flat_map(|c| (0..k).map(move |i| (c, i))) {
        // SAFETY: the caller's contract: `n` is a multiple of 16, so columns `column..column + 16` of row `i < k`
        // exist. The two tiles of 16 rows and columns lie below `blocks_len`.
        unsafe {
            let first = w.add(i * apart[0] + column * apart[1]);
            let numbers: [f32; TILE_SIDE] = std::array::from_fn(|j| *first.add(j * apart[1]));
            let tiles = dst.add((column / TILE_SIDE * (k / TILE_SIDE) + i / TILE_SIDE) * 2 * TILE_LEN);
            store_narrow_row(_mm512_loadu_ps(numbers.as_ptr()), tiles, i % TILE_SIDE);
        }
    }
}

/// Splits rows over which the sum runs: the blocks of the same 32 columns follow each other.
///
/// # Safety
/// As of [`split`].
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn split_columns(src: Source, rows: usize, blocks: *mut u16, parts_at: [usize; 2]) {
    let count = rows.div_ceil(BLOCK_SIDE);
    for i in 0..count {
        // SAFETY: the caller's contract: rows from `32 * i` on.
        unsafe {
            let src = Source { ptr: src.ptr.add(i * BLOCK_SIDE * src.row), ..src };
            split(src, rows - i * BLOCK_SIDE, SplitTo::columns(blocks.add(i * BLOCK_LEN), parts_at, count));
        }
    }
}

/// Products of the same rows with several weights of equal sizes, packed as blocks. Activations are none or ReLU. Some
/// rows may be computed twice, so results must not overlap operands.
///
/// # Safety
/// Pointers as of [`PackedProduct`], [`product_scratch`] elements of scratch, and AMX is [`available`].
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub unsafe fn products(ps: &[PackedProduct<f32>], scratch: *mut f32) {
    // SAFETY: the caller's contract; `on_amx` configures the tiles.
    unsafe {
        if narrow(ps[0].k, ps[0].n) {
            on_amx!(narrow_products_on(ps, scratch))
        } else {
            on_amx!(products_on(ps, scratch))
        }
    }
}

/// The gradient of some rows of a weight, a multiple of 32.
///
/// # Safety
/// Pointers as of [`WeightProduct`], [`weight_scratch`] elements of scratch, and AMX is [`available`].
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub unsafe fn weight_product(p: &WeightProduct<f32>) {
    // SAFETY: the caller's contract; `on_amx` configures the tiles.
    unsafe { on_amx!(weight_product_on(p)) }
}

/// `c = epilogue(a · packed)` for each product, 32 rows × 32 columns at a time; `a` is split once for all products.
///
/// # Safety
/// As of [`products`], with tiles configured for `U`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn products_on<U: BlockMultiply>(ps: &[PackedProduct<f32>], scratch: *mut f32) {
    // SAFETY: the caller's contract. `product_scratch` counts 32 × 32 results and the blocks of 32 rows of `k` numbers.
    // `n` and `k` are multiples of 32, so columns `column..column + 32` exist and `k / 32` blocks are full. Rows
    // `first..first + rows` lie below `m`; where only some of 32 exist, results go through the scratch.
    unsafe {
        let PackedProduct { m, k, a, .. } = ps[0];
        debug_assert!(ps.iter().all(|p| (p.m, p.k) == (m, k) && p.n.is_multiple_of(BLOCK_SIDE) && p.c_row >= p.n));
        let (count, result) = (k / BLOCK_SIDE, scratch);
        let left: *mut u16 = result.add(BLOCK_SIDE * BLOCK_SIDE).cast();
        // The last block of rows overlaps the one before it, so that it needs no copy through scratch. Products that
        // accumulate must not add rows twice.
        let twice = m >= BLOCK_SIDE && ps.iter().all(|p| needs_no_epilogue(p) && !p.accumulate);
        for first in (0..m).step_by(BLOCK_SIDE) {
            let first = if twice { first.min(m - BLOCK_SIDE) } else { first };
            let rows = BLOCK_SIDE.min(m - first);
            split(Source { ptr: a.ptr.add(first * a.row), row: a.row, width: k }, rows, SplitTo::rows(left, LEFT));
            for p in ps {
                let no_epilogue = needs_no_epilogue(p);
                for column in (0..p.n).step_by(BLOCK_SIDE) {
                    let right = p.packed.cast::<u16>().add(column / BLOCK_SIDE * count * BLOCK_LEN);
                    if !no_epilogue {
                        U::multiply(left, right, count, result, BLOCK_SIDE, InitialSum::Zero);
                        epilogue(p, result, first, rows, column);
                        epilogue(p, result.add(TILE_SIDE), first, rows, column + TILE_SIDE);
                        continue;
                    }
                    let out = p.c.add(first * p.c_row + column);
                    let start = match (p.accumulate, p.bias.is_null()) {
                        (true, _) => InitialSum::Output,
                        (false, false) => InitialSum::Broadcast(p.bias.add(column)),
                        (false, true) => InitialSum::Zero,
                    };
                    if rows == BLOCK_SIDE {
                        U::multiply(left, right, count, out, p.c_row, start);
                    } else {
                        // The order of sums is the same, so a row has the same bits in any block.
                        if p.accumulate {
                            copy_rows(out, p.c_row, result, BLOCK_SIDE, rows);
                        }
                        U::multiply(left, right, count, result, BLOCK_SIDE, start);
                        copy_rows(result, BLOCK_SIDE, out, p.c_row, rows);
                    }
                }
            }
        }
    }
}

/// Copies 32 columns of some rows.
///
/// # Safety
/// 32 columns of these rows, and AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn copy_rows(from: *const f32, from_row: usize, to: *mut f32, to_row: usize, rows: usize) {
    for r in 0..rows {
        // SAFETY: the caller's contract.
        unsafe {
            let (from, to) = (from.add(r * from_row), to.add(r * to_row));
            _mm512_storeu_ps(to, _mm512_loadu_ps(from));
            _mm512_storeu_ps(to.add(TILE_SIDE), _mm512_loadu_ps(from.add(TILE_SIDE)));
        }
    }
}

/// Whether a product needs no epilogue beyond what its sums start from.
fn needs_no_epilogue(p: &PackedProduct<f32>) -> bool {
    p.activation == Activation::None && p.residual.is_null() && p.gate.is_null() && (p.bias.is_null() || !p.accumulate)
}

/// The same with narrow tiles. The next rows are split before the results of these are finished, while AMX works.
///
/// # Safety
/// As of [`products_on`].
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn narrow_products_on<U: BlockMultiply>(ps: &[PackedProduct<f32>], scratch: *mut f32) {
    // SAFETY: as in `products_on`, with multiples of 16; `product_scratch` counts 32 × 32 results and the tiles of two
    // times 32 rows. `split_narrow` and `epilogue` access only the rows that exist.
    unsafe {
        let PackedProduct { m, k, a, .. } = ps[0];
        debug_assert!(ps.iter().all(|p| (p.m, p.k) == (m, k) && p.n.is_multiple_of(TILE_SIDE) && p.c_row >= p.n));
        let count = k / TILE_SIDE;
        let left = |first: usize| -> *mut u16 {
            scratch.add(BLOCK_SIDE * BLOCK_SIDE + first / BLOCK_SIDE % 2 * count * TILE_LEN).cast()
        };
        let rows = |first: usize| BLOCK_SIDE.min(m - first);
        let src = |first: usize| Source { ptr: a.ptr.add(first * a.row), row: a.row, width: k };
        split_narrow(src(0), rows(0), left(0));
        for first in (0..m).step_by(BLOCK_SIDE) {
            for (i, p) in ps.iter().enumerate() {
                for column in (0..p.n).step_by(BLOCK_SIDE) {
                    let both = column + TILE_SIDE < p.n;
                    let tiles = p.packed.cast::<u16>().add(column / TILE_SIDE * count * 2 * TILE_LEN);
                    U::multiply_narrow(left(first), tiles, count, scratch);
                    if both {
                        U::multiply_narrow(left(first), tiles.add(count * 2 * TILE_LEN), count, scratch.add(TILE_SIDE));
                    }
                    if i + 1 == ps.len() && column + BLOCK_SIDE >= p.n && first + BLOCK_SIDE < m {
                        split_narrow(src(first + BLOCK_SIDE), rows(first + BLOCK_SIDE), left(first + BLOCK_SIDE));
                    }
                    epilogue(p, scratch, first, rows(first), column);
                    if both {
                        epilogue(p, scratch.add(TILE_SIDE), first, rows(first), column + TILE_SIDE);
                    }
                }
            }
        }
    }
}

/// The epilogue of 16 columns of some rows: bias, activation, accumulation, residual and gate.
///
/// # Safety
/// Rows `first..first + rows` of the product, results of 16 columns of them, and AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn epilogue(p: &PackedProduct<f32>, result: *const f32, first: usize, rows: usize, column: usize) {
    let relu = p.activation == Activation::Relu;
    // SAFETY: the caller's contract.
    unsafe {
        // The common combinations have no branches in the loop over rows.
        match (relu, p.accumulate, p.residual.is_null(), p.gate.is_null()) {
            (false, false, true, true) => epilogue_rows::<false, false, false, false>(p, result, first, rows, column),
            (true, false, true, true) => epilogue_rows::<true, false, false, false>(p, result, first, rows, column),
            (false, true, true, true) => epilogue_rows::<false, true, false, false>(p, result, first, rows, column),
            (false, false, false, true) => epilogue_rows::<false, false, true, false>(p, result, first, rows, column),
            (false, false, true, false) => epilogue_rows::<false, false, false, true>(p, result, first, rows, column),
            _ => epilogue_rows::<true, true, true, true>(p, result, first, rows, column),
        }
    }
}

/// The same; flags that are off are not tested at run time.
///
/// # Safety
/// As of [`epilogue`].
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn epilogue_rows<const RELU: bool, const ADD: bool, const RESIDUAL: bool, const GATE: bool>(
    p: &PackedProduct<f32>,
    result: *const f32,
    first: usize,
    rows: usize,
    column: usize,
) {
    // SAFETY: the caller's contract: rows `first..first + rows` and columns `column..column + 16` exist in `c` and in
    // every operand that is not null. Operands are tested for null. `result` has rows of 32 numbers.
    unsafe {
        let zero = _mm512_setzero_ps();
        let bias = if p.bias.is_null() { zero } else { _mm512_loadu_ps(p.bias.add(column)) };
        for r in 0..rows {
            let out = p.c.add((first + r) * p.c_row + column);
            let mut x = _mm512_add_ps(_mm512_loadu_ps(result.add(r * BLOCK_SIDE)), bias);
            if RELU && p.activation == Activation::Relu {
                x = _mm512_max_ps(x, zero);
            }
            if ADD && p.accumulate {
                x = _mm512_add_ps(x, _mm512_loadu_ps(out));
            }
            if RESIDUAL && !p.residual.is_null() {
                x = _mm512_add_ps(x, _mm512_loadu_ps(p.residual.add((first + r) * p.residual_row + column)));
            }
            if GATE && !p.gate.is_null() {
                let gate = _mm512_loadu_ps(p.gate.add((first + r) * p.gate_row + column));
                x = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(gate, zero, _CMP_GT_OQ), x);
            }
            _mm512_storeu_ps(out, x);
        }
    }
}

/// `c += aᵀ · b` and `bias_grad += Σ_rows a`, one chunk of CHUNK rows at a time, as [`WeightProduct`].
///
/// # Safety
/// As of [`weight_product`], with tiles configured for `U`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn weight_product_on<U: BlockMultiply>(p: &WeightProduct<f32>) {
    // SAFETY: the caller's contract: `m` and `n` are multiples of 32, so all blocks of `c` are full. `weight_scratch`
    // counts the blocks of `m` columns of `a` and of `n` columns of `b` over CHUNK rows. Rows `first..first + rows`
    // exist.
    unsafe {
        debug_assert!(p.m.is_multiple_of(BLOCK_SIDE) && p.n.is_multiple_of(BLOCK_SIDE) && p.c_row >= p.n);
        let left: *mut u16 = p.scratch.cast();
        let right = left.add(p.m / BLOCK_SIDE * (CHUNK / BLOCK_SIDE) * BLOCK_LEN);
        for first in (0..p.rows).step_by(CHUNK) {
            let rows = CHUNK.min(p.rows - first);
            let count = rows.div_ceil(BLOCK_SIDE);
            let (a, b) = (p.a.add(first * p.a_row), p.b.add(first * p.b_row));
            split_columns(Source { ptr: a, row: p.a_row, width: p.m }, rows, left, LEFT);
            transpose_tiles(left, count * (p.m / BLOCK_SIDE), 1);
            split_columns(Source { ptr: b, row: p.b_row, width: p.n }, rows, right, RIGHT);
            if !p.bias_grad.is_null() {
                f32::dispatch(ColumnSums { rows, cols: p.m, x: a, x_row: p.a_row, sums: p.bias_grad, weight: 1.0 });
            }
            for row in (0..p.m).step_by(BLOCK_SIDE) {
                for column in (0..p.n).step_by(BLOCK_SIDE) {
                    let (a, b) = (row / BLOCK_SIDE * count * BLOCK_LEN, column / BLOCK_SIDE * count * BLOCK_LEN);
                    let c = p.c.add(row * p.c_row + column);
                    U::multiply(left.add(a), right.add(b), count, c, p.c_row, InitialSum::Output);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::gemm::tests::numbers;
    use super::super::multiply::{TileConfig, available, emulated, has_avx512};
    use super::super::{blocks_len, product_scratch, weight_scratch};
    use super::*;

    /// The error that rounding every factor to 16 bits may cause in a sum of `k` products of numbers below one half.
    fn allowed(k: usize) -> f64 {
        (k as f64).sqrt() * 0.25 * 2f64.powi(-15)
    }

    /// Guard value beside and behind results.
    const GUARD: f32 = 7.0;

    fn check_products<U: BlockMultiply>() {
        for (m, k, n) in [
            (1, 32, 32),
            (33, 64, 96),
            (64, 32, 32),
            (32, 64, 32),
            (50, 96, 32),
            (16, 32, 64),
            (33, 16, 16),
            (70, 48, 16),
            (1, 16, 32),
            (64, 32, 48),
        ] {
            let a = numbers(m * (k + 3), 1);
            // Two products at once.
            let weights = [(numbers(n * k, 2), numbers(n, 3)), (numbers(n * k, 6), numbers(n, 7))];
            let (residual, gate) = (numbers(m * n, 4), numbers(m * n, 5));
            let mut scratch = vec![f32::NAN; product_scratch(k)];
            let mut blocks = [(); 2].map(|()| vec![0; blocks_len(k, n)]);
            // SAFETY: operands, results and scratch have the lengths of the products; `U` runs on this machine.
            let run = |products: &[PackedProduct<f32>], scratch: &mut [f32]| unsafe {
                match narrow(k, n) {
                    true => narrow_products_on::<U>(products, scratch.as_mut_ptr()),
                    false => products_on::<U>(products, scratch.as_mut_ptr()),
                }
            };
            for variant in 0..6 {
                let backward = variant == 3;
                for ((w, _), blocks) in weights.iter().zip(&mut blocks) {
                    // SAFETY: packed weights and their source have `k × n` elements.
                    unsafe {
                        match backward {
                            true => pack_backward(blocks.as_mut_ptr(), w.as_ptr(), k, n),
                            false => pack_forward(blocks.as_mut_ptr(), w.as_ptr(), k, n),
                        }
                    }
                }
                // Some rows of one product, with guard values between and behind their results.
                let before = if matches!(variant, 2 | 5) { 0.5 } else { f32::NAN };
                let output = |rows: usize| -> Vec<f32> {
                    (0..(rows + BLOCK_SIDE) * (n + 5))
                        .map(|i| if i / (n + 5) < rows && i % (n + 5) < n { before } else { GUARD })
                        .collect()
                };
                let product = |which: usize, first: usize, rows: usize, c: &mut [f32]| {
                    let (bias, blocks) = (&weights[which].1, &blocks[which]);
                    let rows_from = a[first * (k + 3)..].as_ptr();
                    let mut p = PackedProduct::plain([rows, k, n], rows_from, blocks.as_ptr().cast(), c.as_mut_ptr());
                    (p.a.row, p.c_row) = (k + 3, n + 5);
                    match variant {
                        0 => (p.bias, p.activation) = (bias.as_ptr(), Activation::Relu),
                        1 => (p.residual, p.residual_row) = (residual[first * n..].as_ptr(), n),
                        2 => (p.accumulate, p.gate, p.gate_row) = (true, gate[first * n..].as_ptr(), n),
                        4 => p.bias = bias.as_ptr(),
                        5 => p.accumulate = true,
                        _ => {}
                    }
                    p
                };
                let mut results = [output(m), output(m)];
                let [c, d] = &mut results;
                run(&[product(0, 0, m, c), product(1, 0, m, d)], &mut scratch);
                for (which, (c, (w, bias))) in results.iter().zip(&weights).enumerate() {
                    for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                        let weight = |l: usize| f64::from(if backward { w[l * n + j] } else { w[j * k + l] });
                        let sum: f64 = (0..k).map(|l| f64::from(a[i * (k + 3) + l]) * weight(l)).sum();
                        let exact = match variant {
                            0 => (sum + f64::from(bias[j])).max(0.0),
                            1 => sum + f64::from(residual[i * n + j]),
                            2 if gate[i * n + j] > 0.0 => sum + 0.5,
                            2 => 0.0,
                            4 => sum + f64::from(bias[j]),
                            5 => sum + 0.5,
                            _ => sum,
                        };
                        let error = (f64::from(c[i * (n + 5) + j]) - exact).abs();
                        assert!(error < allowed(k), "{m}×{k}×{n}, variant {variant}, ({i}, {j}): {error}");
                    }
                    for (i, row) in c.chunks(n + 5).enumerate() {
                        let beside = if i < m { &row[n..] } else { row };
                        assert!(beside.iter().all(|&x| x == GUARD), "{m}×{k}×{n}, variant {variant}: beside row {i}");
                    }
                    // A row has the same bits alone as among others.
                    for i in 0..m {
                        let mut alone = output(1);
                        run(&[product(which, i, 1, &mut alone)], &mut scratch);
                        assert_eq!(alone[..n], c[i * (n + 5)..][..n], "{m}×{k}×{n}, variant {variant}, row {i}");
                    }
                }
            }
        }
    }

    fn check_weights<U: BlockMultiply>() {
        for (rows, m, n) in [(300, 64, 32), (7, 32, 96), (128, 96, 64)] {
            let (a, b) = (numbers(rows * (m + 5), 4), numbers(rows * (n + 2), 5));
            let (mut c, mut bias_grad) = (vec![1.0f32; m * n], vec![2.0f32; m]);
            let mut scratch = vec![f32::NAN; weight_scratch(m, n)];
            // SAFETY: operands, results and scratch have their documented lengths.
            unsafe {
                weight_product_on::<U>(&WeightProduct {
                    m,
                    n,
                    rows,
                    a: a.as_ptr(),
                    a_row: m + 5,
                    b: b.as_ptr(),
                    b_row: n + 2,
                    c: c.as_mut_ptr(),
                    c_row: n,
                    bias_grad: bias_grad.as_mut_ptr(),
                    scratch: scratch.as_mut_ptr(),
                });
            }
            for i in 0..m {
                let left = |r: usize| f64::from(a[r * (m + 5) + i]);
                for j in 0..n {
                    let exact: f64 = (0..rows).map(|r| left(r) * f64::from(b[r * (n + 2) + j])).sum();
                    let error = (f64::from(c[i * n + j]) - 1.0 - exact).abs();
                    assert!(error < allowed(rows), "{rows} rows, {m}×{n}, ({i}, {j}): {error}");
                }
                let exact: f64 = (0..rows).map(left).sum();
                assert!((f64::from(bias_grad[i]) - 2.0 - exact).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn emulated_products_match_the_textbook_with_sixteen_bits() {
        if has_avx512() {
            check_products::<Emulated>();
            check_weights::<Emulated>();
        }
    }

    #[test]
    fn amx_matches_the_textbook_where_available() {
        if available() && !emulated() {
            let _in_use = TileConfig::load();
            check_products::<Amx>();
            check_weights::<Amx>();
        }
    }
}
