//! Products on the tile unit of x86 processors (AMX), of single-precision numbers in two bf16 parts each.
//!
//! A number is its *high* part, the nearest bf16 number, and its *low* part, what is left, likewise rounded: 16 bits of 24 (what PyTorch calls the precision "high"). Of the four products
//! of parts the one of two low parts, 2⁻¹⁶ of the whole or less, is left out. Sums are in single precision, and their order depends on sizes alone. What is no number stays none;
//! what is infinite, or rounds to it, becomes none.
//!
//! A tile is 16 rows of 64 bytes. On the left a row has 32 numbers along the sum; on the right each of 16 rows has two numbers along the sum for each of 16 columns, so that a
//! left tile and a right one of the same numbers are each other's transposes, two numbers at a time. A *block* is two tiles of each part: 32 rows or columns by 32 along the sum. The unit
//! multiplies blocks, which take a third as long to load as to multiply.
//!
//! What multiplies is a `Unit`: the processor's, or in tests one that does the same sums one by one, since most machines have no such unit.

use super::gemm::PanelProduct;
use super::weight_product::WeightProduct;

/// Rows and columns of a block, and its numbers along the sum.
const SIDE: usize = 32;
/// Numbers of a tile, and of a block.
const TILE: usize = 512;
const BLOCK: usize = 4 * TILE;
/// Rows that a gradient of weights takes at a time.
const CHUNK: usize = 128;

/// Rows of a weight that one gradient task owns: many, since each packs all inputs.
pub const WEIGHT_ROWS: usize = 256;

/// Whether a weight of these sizes is multiplied in tiles, forward and backward.
pub fn fits(outputs: usize, inputs: usize) -> bool {
    outputs.is_multiple_of(SIDE) && inputs.is_multiple_of(SIDE) && outputs * inputs > 0
}

/// Length of a weight's blocks, for one direction.
pub fn blocks_len(k: usize, n: usize) -> usize {
    k / SIDE * (n / SIDE) * BLOCK
}

/// Scratch of a product of rows of `k` numbers, in single-precision numbers.
pub fn product_scratch(k: usize) -> usize {
    k / SIDE * BLOCK / 2 + SIDE * SIDE
}

/// Scratch of the gradient of `m` rows of a weight with `n` inputs, likewise.
pub fn weight_scratch(m: usize, n: usize) -> usize {
    (m + n) / SIDE * (CHUNK / SIDE) * BLOCK / 2
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub use x86::{available, pack_backward, pack_forward, product, weight_product};

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub use nowhere::{available, pack_backward, pack_forward, product, weight_product};

/// Where there are no tile units.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod nowhere {
    use super::{PanelProduct, WeightProduct};

    pub fn available() -> bool {
        false
    }

    pub unsafe fn pack_forward(_: *mut u16, _: *const f32, _: usize, _: usize) {
        unreachable!("nobody may ask for tiles here");
    }

    pub unsafe fn pack_backward(_: *mut u16, _: *const f32, _: usize, _: usize) {
        unreachable!("nobody may ask for tiles here");
    }

    pub unsafe fn product(_: &PanelProduct<f32>, _: *const u16, _: *mut f32) {
        unreachable!("nobody may ask for tiles here");
    }

    pub unsafe fn weight_product(_: &WeightProduct<f32>) {
        unreachable!("nobody may ask for tiles here");
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::sync::OnceLock;

    use super::*;
    use crate::program::Activation;

    /// Multiplies blocks.
    trait Unit {
        /// Begins and ends a thread's use of it.
        unsafe fn begin();
        unsafe fn end();
        /// `c = a b`, or `c += a b` where `add`, over `count` blocks on either side, for 32 rows of `c` at this distance.
        unsafe fn multiply(a: *const u16, b: *const u16, count: usize, c: *mut f32, c_row: usize, add: bool);
    }

    /// Whether this machine has the unit and the system lets us use it, which it is asked for.
    pub fn available() -> bool {
        static FOUND: OnceLock<bool> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let vectors = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
            // Bits of tiles and of their bf16 products.
            const UNIT: u32 = 1 << 24 | 1 << 22;
            // SAFETY: every x86-64 processor has the instruction. Newer compilers know that.
            #[allow(unused_unsafe)]
            let unit = unsafe { __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & UNIT == UNIT };
            // ARCH_REQ_XCOMP_PERM, and the number of the state of tiles.
            let [request, state]: [libc::c_long; 2] = [0x1023, 18];
            // SAFETY: asks the kernel for a permission and touches no memory.
            vectors && unit && unsafe { libc::syscall(libc::SYS_arch_prctl, request, state) } == 0
        })
    }

    /// The processor's unit.
    struct Amx;

    /// Eight tiles of 16 rows and 64 bytes.
    #[repr(C, align(64))]
    struct Shapes {
        palette: u8,
        start: u8,
        reserved: [u8; 14],
        bytes: [u16; 16],
        rows: [u8; 16],
    }

    static SHAPES: Shapes = Shapes {
        palette: 1,
        start: 0,
        reserved: [0; 14],
        bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
        rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
    };

    impl Unit for Amx {
        #[inline(always)]
        unsafe fn begin() {
            unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const SHAPES, options(nostack, readonly)) }
        }

        #[inline(always)]
        unsafe fn end() {
            unsafe { asm!("tilerelease", options(nostack, nomem)) }
        }

        #[inline(always)]
        unsafe fn multiply(a: *const u16, b: *const u16, count: usize, c: *mut f32, c_row: usize, add: bool) {
            unsafe {
                asm!(
                    "test {add}, {add}",
                    "jz 2f",
                    "tileloadd tmm0, [{c} + {c_row}*4]",
                    "tileloadd tmm1, [{c} + {c_row}*4 + 64]",
                    "tileloadd tmm2, [{down} + {c_row}*4]",
                    "tileloadd tmm3, [{down} + {c_row}*4 + 64]",
                    "jmp 3f",
                    "2:",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    // Low parts of the left block with high ones of the right, high with high, high with low: each tile is loaded once.
                    "3:",
                    "tileloadd tmm4, [{a} + {row}*1]",
                    "tileloadd tmm6, [{b} + {row}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{b} + {row}*1 + 1024]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloadd tmm5, [{a} + {row}*1 + 1024]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    "tileloadd tmm4, [{a} + {row}*1 + 2048]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloadd tmm5, [{a} + {row}*1 + 3072]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    "tileloadd tmm6, [{b} + {row}*1 + 2048]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tileloadd tmm7, [{b} + {row}*1 + 3072]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    "add {a}, 4096",
                    "add {b}, 4096",
                    "dec {count}",
                    "jnz 3b",
                    "tilestored [{c} + {c_row}*4], tmm0",
                    "tilestored [{c} + {c_row}*4 + 64], tmm1",
                    "tilestored [{down} + {c_row}*4], tmm2",
                    "tilestored [{down} + {c_row}*4 + 64], tmm3",
                    a = inout(reg) a => _,
                    b = inout(reg) b => _,
                    count = inout(reg) count => _,
                    row = in(reg) 64usize,
                    c = in(reg) c,
                    down = in(reg) c.add(16 * c_row),
                    c_row = in(reg) c_row,
                    add = in(reg) usize::from(add),
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    }

    /// Both parts of 16 numbers, in the upper halves of 32 bits.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn parts(x: __m512) -> (__m512i, __m512i) {
        let half = _mm512_set1_epi32(0x8000);
        let high = _mm512_add_epi32(_mm512_castps_si512(x), half);
        // Of what is no number the sum may be one.
        let high = _mm512_mask_mov_epi32(high, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0_0000));
        let nearest = _mm512_castsi512_ps(_mm512_and_si512(high, _mm512_set1_epi32(0xffff_0000_u32 as i32)));
        (high, _mm512_add_epi32(_mm512_castps_si512(_mm512_sub_ps(x, nearest)), half))
    }

    /// Parts of a row of numbers along the sum, `count` times 32, as row `r` of the left tiles of as many blocks; zeros where there is no row.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn split_row(src: Option<*const f32>, count: usize, blocks: *mut u16, parts_at: [usize; 2], r: usize) {
        // The upper halves of one vector, then those of another.
        const UPPER: [i16; 32] = {
            let mut upper = [0; 32];
            let mut i = 0;
            while i < 32 {
                upper[i] = 2 * i as i16 + 1;
                i += 1;
            }
            upper
        };
        unsafe {
            let upper = _mm512_loadu_si512(UPPER.as_ptr().cast());
            for k in 0..count {
                let (mut high, mut low) = (_mm512_setzero_si512(), _mm512_setzero_si512());
                if let Some(src) = src {
                    let from = src.add(k * SIDE);
                    let (first, second) = (parts(_mm512_loadu_ps(from)), parts(_mm512_loadu_ps(from.add(16))));
                    high = _mm512_permutex2var_epi16(first.0, upper, second.0);
                    low = _mm512_permutex2var_epi16(first.1, upper, second.1);
                }
                let tile = blocks.add(k * BLOCK + r / 16 * TILE + r % 16 * 32);
                _mm512_storeu_si512(tile.add(parts_at[0]).cast(), high);
                _mm512_storeu_si512(tile.add(parts_at[1]).cast(), low);
            }
        }
    }

    /// The upper halves of both, side by side: those of `a` first.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn pairs(a: __m512i, b: __m512i) -> __m512i {
        _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32(a, 16), b)
    }

    /// Parts of `count` times 32 rows along which the sum goes, of which `there` are there, by `columns` as right tiles: blocks of the same 32 columns follow each other. Rows are read
    /// from their beginning to their end, as memory likes it.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn split_rows(
        src: *const f32,
        row: usize,
        there: usize,
        count: usize,
        columns: usize,
        blocks: *mut u16,
        parts_at: [usize; 2],
    ) {
        unsafe {
            let nothing = (_mm512_setzero_si512(), _mm512_setzero_si512());
            for k in 0..count * SIDE / 2 {
                let (upper, lower) = (src.wrapping_add(2 * k * row), src.wrapping_add((2 * k + 1) * row));
                let (first_there, second_there) = (2 * k < there, 2 * k + 1 < there);
                let tiles = blocks.add(k / 16 * BLOCK + 32 * (k % 16));
                for column in (0..columns).step_by(16) {
                    let first = if first_there { parts(_mm512_loadu_ps(upper.add(column))) } else { nothing };
                    let second = if second_there { parts(_mm512_loadu_ps(lower.add(column))) } else { nothing };
                    let tile = tiles.add(column / SIDE * count * BLOCK + column % SIDE / 16 * TILE);
                    _mm512_storeu_si512(tile.add(parts_at[0]).cast(), pairs(first.0, second.0));
                    _mm512_storeu_si512(tile.add(parts_at[1]).cast(), pairs(first.1, second.1));
                }
            }
        }
    }

    /// Makes a left tile of a right one of the same numbers, and the other way round.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn transpose(tile: *mut u16) {
        unsafe {
            let zero = _mm512_setzero_si512();
            let (mut r, mut t) = ([zero; 16], [zero; 16]);
            for (i, row) in r.iter_mut().enumerate() {
                *row = _mm512_loadu_si512(tile.add(32 * i).cast());
            }
            for i in (0..16).step_by(2) {
                t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
                t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
            }
            for i in (0..16).step_by(4) {
                r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
                r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
                r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
                r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
            }
            // Of quarters 0 to 3 of rows c, c + 4, c + 8 and c + 12 those with the same number make a row.
            for c in 0..4 {
                let even = _mm512_shuffle_i32x4(r[c], r[c + 4], 0x88);
                let odd = _mm512_shuffle_i32x4(r[c], r[c + 4], 0xdd);
                let even_below = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0x88);
                let odd_below = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0xdd);
                t[c] = _mm512_shuffle_i32x4(even, even_below, 0x88);
                t[c + 4] = _mm512_shuffle_i32x4(odd, odd_below, 0x88);
                t[c + 8] = _mm512_shuffle_i32x4(even, even_below, 0xdd);
                t[c + 12] = _mm512_shuffle_i32x4(odd, odd_below, 0xdd);
            }
            for (i, row) in t.iter().enumerate() {
                _mm512_storeu_si512(tile.add(32 * i).cast(), *row);
            }
        }
    }

    /// Where the high and the low tile of a half of a block are, on the left and on the right.
    const LEFT: [usize; 2] = [2 * TILE, 0];
    const RIGHT: [usize; 2] = [0, 2 * TILE];

    /// Blocks of a weight `[n, k]` on the right, for `x Wᵀ`: those of 32 outputs follow each other.
    ///
    /// # Safety
    /// Sizes that fit, [`blocks_len`] numbers at `dst`, and a machine with the unit or at least its vectors.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub unsafe fn pack_forward(dst: *mut u16, w: *const f32, k: usize, n: usize) {
        let count = k / SIDE;
        unsafe {
            for output in 0..n {
                let blocks = dst.add(output / SIDE * count * BLOCK);
                split_row(Some(w.add(output * k)), count, blocks, RIGHT, output % SIDE);
            }
            for tile in 0..4 * count * (n / SIDE) {
                transpose(dst.add(tile * TILE));
            }
        }
    }

    /// Blocks of a weight `[k, n]` on the right, for `dy W`.
    ///
    /// # Safety
    /// As of [`pack_forward`].
    #[target_feature(enable = "avx512f,avx512bw")]
    pub unsafe fn pack_backward(dst: *mut u16, w: *const f32, k: usize, n: usize) {
        unsafe { split_rows(w, n, k, k / SIDE, n, dst, RIGHT) }
    }

    /// `p`, whose activation is not a sigmoid, with a weight's blocks instead of panels.
    ///
    /// # Safety
    /// Pointers as of [`PanelProduct`], [`product_scratch`] numbers of scratch, [`available`].
    #[target_feature(enable = "avx512f,avx512bw")]
    pub unsafe fn product(p: &PanelProduct<f32>, blocks: *const u16, scratch: *mut f32) {
        unsafe { product_on::<Amx>(p, blocks, scratch) }
    }

    /// The gradient of some rows of a weight, a multiple of 32.
    ///
    /// # Safety
    /// Pointers as of [`WeightProduct`], [`weight_scratch`] numbers of scratch, [`available`].
    #[target_feature(enable = "avx512f,avx512bw")]
    pub unsafe fn weight_product(p: &WeightProduct<f32>) {
        unsafe { weight_product_on::<Amx>(p) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn product_on<U: Unit>(p: &PanelProduct<f32>, blocks: *const u16, scratch: *mut f32) {
        unsafe {
            let (count, result) = (p.k / SIDE, scratch);
            let left: *mut u16 = result.add(SIDE * SIDE).cast();
            U::begin();
            for first in (0..p.m).step_by(SIDE) {
                let rows = SIDE.min(p.m - first);
                for r in 0..SIDE {
                    let row = (r < rows).then(|| p.a.ptr.add((first + r) * p.a.row));
                    split_row(row, count, left, LEFT, r);
                }
                for column in (0..p.n).step_by(SIDE) {
                    // Where results go is brought near while they are made.
                    for r in 0..rows {
                        let out = p.c.add((first + r) * p.c_row + column);
                        _mm_prefetch::<_MM_HINT_ET0>(out.cast());
                        _mm_prefetch::<_MM_HINT_ET0>(out.add(16).cast());
                    }
                    U::multiply(left, blocks.add(column / SIDE * count * BLOCK), count, result, SIDE, false);
                    finish(p, result, first, rows, column);
                }
            }
            U::end();
        }
    }

    /// Bias, activation, what is added and the gate of 32 columns of some rows.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn finish(p: &PanelProduct<f32>, result: *const f32, first: usize, rows: usize, column: usize) {
        unsafe {
            let zero = _mm512_setzero_ps();
            for part in [0, 16] {
                let at = column + part;
                let bias = if p.bias.is_null() { zero } else { _mm512_loadu_ps(p.bias.add(at)) };
                let relu = p.activation == Activation::Relu;
                for r in 0..rows {
                    let out = p.c.add((first + r) * p.c_row + at);
                    let mut x = _mm512_add_ps(_mm512_loadu_ps(result.add(r * SIDE + part)), bias);
                    if relu {
                        x = _mm512_max_ps(x, zero);
                    }
                    if p.accumulate {
                        x = _mm512_add_ps(x, _mm512_loadu_ps(out));
                    }
                    if !p.residual.is_null() {
                        x = _mm512_add_ps(x, _mm512_loadu_ps(p.residual.add((first + r) * p.residual_row + at)));
                    }
                    if !p.gate.is_null() {
                        let gate = _mm512_loadu_ps(p.gate.add((first + r) * p.gate_row + at));
                        x = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(gate, zero, _CMP_GT_OQ), x);
                    }
                    _mm512_storeu_ps(out, x);
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn weight_product_on<U: Unit>(p: &WeightProduct<f32>) {
        unsafe {
            let left: *mut u16 = p.scratch.cast();
            let right = left.add(p.m / SIDE * (CHUNK / SIDE) * BLOCK);
            U::begin();
            for first in (0..p.rows).step_by(CHUNK) {
                let rows = CHUNK.min(p.rows - first);
                let count = rows.div_ceil(SIDE);
                let (a, b) = (p.a.add(first * p.a_row), p.b.add(first * p.b_row));
                split_rows(a, p.a_row, rows, count, p.m, left, LEFT);
                for tile in 0..4 * count * (p.m / SIDE) {
                    transpose(left.add(tile * TILE));
                }
                split_rows(b, p.b_row, rows, count, p.n, right, RIGHT);
                if !p.sums.is_null() {
                    column_sums(p.m, rows, a, p.a_row, p.sums);
                }
                for row in (0..p.m).step_by(SIDE) {
                    for column in (0..p.n).step_by(SIDE) {
                        let (a, b) = (row / SIDE * count * BLOCK, column / SIDE * count * BLOCK);
                        let c = p.c.add(row * p.c_row + column);
                        U::multiply(left.add(a), right.add(b), count, c, p.c_row, true);
                    }
                }
            }
            U::end();
        }
    }

    /// Adds the sums of columns, four rows in turn, since one sum would wait for itself.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn column_sums(columns: usize, rows: usize, a: *const f32, a_row: usize, sums: *mut f32) {
        unsafe {
            for column in (0..columns).step_by(16) {
                let mut sum = [_mm512_setzero_ps(); 4];
                for r in 0..rows {
                    sum[r % 4] = _mm512_add_ps(sum[r % 4], _mm512_loadu_ps(a.add(r * a_row + column)));
                }
                let sum = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
                let out = sums.add(column);
                _mm512_storeu_ps(out, _mm512_add_ps(_mm512_loadu_ps(out), sum));
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::super::super::gemm::tests::numbers;
        use super::*;

        /// The same sums, one after the other.
        struct Plain;

        impl Unit for Plain {
            unsafe fn begin() {}
            unsafe fn end() {}

            unsafe fn multiply(a: *const u16, b: *const u16, count: usize, c: *mut f32, c_row: usize, add: bool) {
                let number = |x: u16| f32::from_bits(u32::from(x) << 16);
                for i in 0..SIDE {
                    for j in 0..SIDE {
                        let mut sum = 0.0;
                        for k in 0..count * SIDE {
                            let (block, k) = (k / SIDE * BLOCK, k % SIDE);
                            let at = |part: usize| block + part + i / 16 * TILE + i % 16 * 32 + k;
                            let left = LEFT.map(|part| number(unsafe { *a.add(at(part)) }));
                            let at = |part: usize| block + part + j / 16 * TILE + k / 2 * 32 + j % 16 * 2 + k % 2;
                            let right = RIGHT.map(|part| number(unsafe { *b.add(at(part)) }));
                            sum += left[1] * right[0] + left[0] * right[0] + left[0] * right[1];
                        }
                        unsafe {
                            let out = c.add(i * c_row + j);
                            *out = sum + if add { *out } else { 0.0 };
                        }
                    }
                }
            }
        }

        fn vectors() -> bool {
            is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
        }

        /// What rounding every factor to 16 bits may do to a sum of `k` products of numbers below a half.
        fn allowed(k: usize) -> f64 {
            (k as f64).sqrt() * 0.25 * 2f64.powi(-15)
        }

        fn check_products<U: Unit>() {
            for (m, k, n) in [(1, 32, 32), (33, 64, 96), (50, 96, 32), (16, 32, 64)] {
                let (a, w, bias) = (numbers(m * (k + 3), 1), numbers(n * k, 2), numbers(n, 3));
                let (residual, gate) = (numbers(m * n, 4), numbers(m * n, 5));
                let mut scratch = vec![f32::NAN; product_scratch(k)];
                let mut blocks = vec![0; blocks_len(k, n)];
                for variant in 0..4 {
                    let mut c = vec![if variant == 2 { 0.5 } else { f32::NAN }; m * n];
                    let mut p = PanelProduct::plain([m, k, n], a.as_ptr(), std::ptr::null(), c.as_mut_ptr());
                    p.a.row = k + 3;
                    let backward = variant == 3;
                    unsafe {
                        match variant {
                            0 => (p.bias, p.activation) = (bias.as_ptr(), Activation::Relu),
                            1 => (p.residual, p.residual_row) = (residual.as_ptr(), n),
                            2 => (p.accumulate, p.gate, p.gate_row) = (true, gate.as_ptr(), n),
                            _ => {}
                        }
                        if backward {
                            pack_backward(blocks.as_mut_ptr(), w.as_ptr(), k, n);
                        } else {
                            pack_forward(blocks.as_mut_ptr(), w.as_ptr(), k, n);
                        }
                        product_on::<U>(&p, blocks.as_ptr(), scratch.as_mut_ptr());
                    }
                    for i in 0..m {
                        for j in 0..n {
                            let weight = |l: usize| f64::from(if backward { w[l * n + j] } else { w[j * k + l] });
                            let sum: f64 = (0..k).map(|l| f64::from(a[i * (k + 3) + l]) * weight(l)).sum();
                            let exact = match variant {
                                0 => (sum + f64::from(bias[j])).max(0.0),
                                1 => sum + f64::from(residual[i * n + j]),
                                2 if gate[i * n + j] > 0.0 => sum + 0.5,
                                2 => 0.0,
                                _ => sum,
                            };
                            let error = (f64::from(c[i * n + j]) - exact).abs();
                            assert!(error < allowed(k), "{m}×{k}×{n}, variant {variant}, ({i}, {j}): {error}");
                        }
                    }
                }
            }
        }

        fn check_weights<U: Unit>() {
            for (rows, m, n) in [(300, 64, 32), (7, 32, 96), (128, 96, 64)] {
                let (a, b) = (numbers(rows * (m + 5), 4), numbers(rows * (n + 2), 5));
                let (mut c, mut sums) = (vec![1.0f32; m * n], vec![2.0f32; m]);
                let mut scratch = vec![f32::NAN; weight_scratch(m, n)];
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
                        sums: sums.as_mut_ptr(),
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
                    assert!((f64::from(sums[i]) - 2.0 - exact).abs() < 1e-4);
                }
            }
        }

        #[test]
        fn blocks_multiply_as_the_textbook_does_with_sixteen_bits() {
            if vectors() {
                check_products::<Plain>();
                check_weights::<Plain>();
            }
        }

        #[test]
        fn the_unit_does_the_same_where_there_is_one() {
            if available() {
                check_products::<Amx>();
                check_weights::<Amx>();
            }
        }

        #[test]
        fn both_parts_together_are_the_number_in_sixteen_bits() {
            if !vectors() {
                return;
            }
            let x: Vec<f32> = numbers(16 * 32, 7).iter().map(|x| x * 1e-3).collect();
            let (mut high, mut low) = ([0; TILE], [0; TILE]);
            let number = |x: u16| f32::from_bits(u32::from(x) << 16);
            let mut block = [0; BLOCK];
            for r in 0..16 {
                unsafe { split_row(Some(x.as_ptr().add(32 * r)), 1, block.as_mut_ptr(), RIGHT, r) };
            }
            high.copy_from_slice(&block[..TILE]);
            low.copy_from_slice(&block[2 * TILE..3 * TILE]);
            for i in 0..TILE {
                assert!((number(high[i]) + number(low[i]) - x[i]).abs() <= x[i].abs() * 2f32.powi(-16));
            }
            let odd =
                [f32::NAN, f32::from_bits(0x7fff_ffff), f32::from_bits(0xffff_8000), -0.0, 0.0, f32::MIN_POSITIVE];
            let mut row = [1.0f32; 32];
            row[..odd.len()].copy_from_slice(&odd);
            let mut odd_block = [0; BLOCK];
            unsafe { split_row(Some(row.as_ptr()), 1, odd_block.as_mut_ptr(), RIGHT, 0) };
            for (i, x) in row.iter().enumerate() {
                let sum = number(odd_block[i]) + number(odd_block[2 * TILE + i]);
                assert!(if x.is_nan() { sum.is_nan() } else { sum == *x }, "{x} became {sum}");
            }
            let before = high;
            unsafe { transpose(high.as_mut_ptr()) };
            for (row, pair) in (0..16).flat_map(|r| (0..16).map(move |p| (r, p))) {
                assert_eq!(high[pair * 32 + 2 * row..][..2], before[row * 32 + 2 * pair..][..2]);
            }
            // The same numbers by rows of 16 columns are a right tile.
            let turned: Vec<f32> = (0..32 * 16).map(|i| x[i % 16 * 32 + i / 16]).collect();
            unsafe { split_rows(turned.as_ptr(), 16, 32, 1, 16, block.as_mut_ptr(), RIGHT) };
            assert_eq!(block[..TILE], high);
        }
    }
}
