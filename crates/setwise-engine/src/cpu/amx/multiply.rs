//! Block products on AMX: detection, tile configuration and the instructions. `emulated` is the alternative.

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

use crate::simd::{Isa, isa};

/// Multiplies blocks. [`Amx`] needs a [`TileConfig`].
pub trait BlockMultiply {
    /// Loads the two left tiles of the products that [`BlockMultiply::issue`] issues next.
    ///
    /// # Safety
    /// Tiles are configured; both tiles stay valid until the products that use them are stored.
    unsafe fn load_left(pending: &mut Pending, left: [*const u16; 2]);
    /// Issues product `J` of four, and stores the pending result of the previous product `J`. The left operand is the
    /// first left tile for `J` = 0 and 1, the second for `J` = 2 and 3.
    ///
    /// The result goes to a quarter of the 32 × 32 square at `to`: the upper rows for the first left tile, the left
    /// columns for even `J`. All tiles of a product stay unchanged until its result is stored.
    ///
    /// # Safety
    /// Tiles are configured; `right` is a tile and `to` a square of 32 × 32 numbers.
    unsafe fn issue<const J: usize>(pending: &mut Pending, right: *const u16, to: *mut f32);
    /// `c = start + a b` over `count` blocks on either side, at least one. `c` has 32 rows of 32 numbers, `c_row`
    /// apart, which overlap neither operand.
    ///
    /// # Safety
    /// Tiles are configured; `count` blocks at `a` and at `b`, and 32 rows of 32 numbers at `c`, are valid.
    unsafe fn multiply(a: *const u16, b: *const u16, count: usize, c: *mut f32, c_row: usize, start: InitialSum);
    /// `c = a b` over `count` pairs of narrow tiles. `c` has 32 rows of 16 numbers, 32 apart. A left pair is the upper
    /// and the lower 16 rows; a right pair is the high and the low parts.
    ///
    /// # Safety
    /// Tiles are configured; `2 * count` tiles at `a` and at `b`, and 32 rows of 16 numbers at `c`, are valid.
    unsafe fn multiply_narrow(a: *const u16, b: *const u16, count: usize, c: *mut f32);
}

/// What the sums of a product start from.
#[derive(Clone, Copy)]
pub enum InitialSum {
    Zero,
    /// The elements at the output.
    Output,
    /// 32 numbers, the same for all rows.
    Broadcast(*const f32),
}

impl InitialSum {
    /// The output, or zero.
    pub fn output_if(add: bool) -> Self {
        if add { InitialSum::Output } else { InitialSum::Zero }
    }

    /// Address and row stride of the initial sums of a product that goes to `c`; null for zero.
    #[inline(always)]
    pub fn rows(self, c: *const f32, c_row: usize) -> (*const f32, usize) {
        match self {
            InitialSum::Zero => (std::ptr::null(), 0),
            InitialSum::Output => (c, c_row),
            InitialSum::Broadcast(row) => (row, 0),
        }
    }
}

/// The issued products whose results are not stored. The emulation computes them when it stores them.
#[derive(Default)]
pub struct Pending {
    pub left: Option<[*const u16; 2]>,
    pub products: [Option<[*const u16; 2]>; 4],
}

/// The environment variable that selects the emulation (`emulated`).
const VARIABLE: &str = "SETWISE_AMX";

/// Whether AMX is emulated.
pub fn emulated() -> bool {
    static EMULATED: OnceLock<bool> = OnceLock::new();
    *EMULATED.get_or_init(|| std::env::var(VARIABLE).as_deref() == Ok("emulated"))
}

/// Runs a function that is generic over [`BlockMultiply`], on AMX or emulated.
macro_rules! on_amx {
    ($run:ident($($argument:expr),*)) => {{
        let _tile_config = $crate::cpu::amx::TileConfig::load();
        if $crate::cpu::amx::multiply::emulated() {
            $run::<Emulated>($($argument),*)
        } else {
            $run::<Amx>($($argument),*)
        }
    }};
}
pub(super) use on_amx;

/// Whether the processor has AMX and the system grants permission, which this function requests. For the emulation,
/// whether the machine has AVX-512.
pub fn available() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // The feature bits AMX-TILE and AMX-BF16.
        const FEATURES: u32 = 1 << 24 | 1 << 22;
        // SAFETY: every x86-64 processor has the instruction. Newer compilers know that.
        #[allow(unused_unsafe)]
        let supported = unsafe { __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & FEATURES == FEATURES };
        // ARCH_REQ_XCOMP_PERM, and the number of the tile data state.
        let [request, state]: [libc::c_long; 2] = [0x1023, 18];
        // SAFETY: requests a permission from the kernel and accesses no memory.
        has_avx512() && (emulated() || supported && unsafe { libc::syscall(libc::SYS_arch_prctl, request, state) } == 0)
    })
}

/// Keeps the thread's tiles configured while it lives. A nested one costs next to nothing.
///
/// The holder must not yield its thread to code that configures tiles differently.
pub struct TileConfig(PhantomData<*mut ()>);

thread_local! {
    /// Nesting depth on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

impl TileConfig {
    /// Loads the configuration. AMX must be [`available`].
    pub fn load() -> Self {
        let depth = DEPTH.get();
        if depth == 0 && !emulated() {
            assert!(available(), "AMX is not available");
            // SAFETY: AMX exists, and the system grants its use.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const TILE_CONFIG, options(nostack, readonly)) }
        }
        DEPTH.set(depth + 1);
        TileConfig(PhantomData)
    }
}

impl Drop for TileConfig {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        if depth == 0 && !emulated() {
            // SAFETY: as for `load`.
            unsafe { asm!("tilerelease", options(nostack, nomem)) }
        }
    }
}

/// The processor's AMX unit.
pub struct Amx;

/// Eight tiles of 16 rows and 64 bytes.
#[repr(C, align(64))]
struct TileShapes {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

static TILE_CONFIG: TileShapes = TileShapes {
    palette: 1,
    start: 0,
    reserved: [0; 14],
    bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

impl BlockMultiply for Amx {
    #[inline(always)]
    unsafe fn load_left(_: &mut Pending, left: [*const u16; 2]) {
        // SAFETY: the caller's contract: tiles are configured, and both left tiles are valid.
        unsafe {
            asm!(
                "tileloadd tmm4, [{a} + {row}*1]",
                "tileloadd tmm5, [{b} + {row}*1]",
                a = in(reg) left[0],
                b = in(reg) left[1],
                row = in(reg) 64usize,
                out("tmm4") _, out("tmm5") _,
                options(nostack, readonly),
            );
        }
    }

    #[inline(always)]
    unsafe fn issue<const J: usize>(_: &mut Pending, right: *const u16, to: *mut f32) {
        macro_rules! product {
            ($sum:tt, $left:tt, $right:tt, $offset:tt) => {
                asm!(
                    concat!("tilestored [{to} + {row}*2 + ", $offset, "], ", $sum),
                    concat!("tileloadd ", $right, ", [{right} + {row}*1]"),
                    concat!("tilezero ", $sum),
                    concat!("tdpbf16ps ", $sum, ", ", $left, ", ", $right),
                    to = in(reg) to,
                    right = in(reg) right,
                    row = in(reg) 64usize,
                    out($sum) _, out($right) _,
                    options(nostack),
                )
            };
        }
        // SAFETY: the caller's contract: tiles are configured, `right` is a tile and `to` a square.
        unsafe {
            match J {
                0 => product!("tmm0", "tmm4", "tmm6", 0),
                1 => product!("tmm1", "tmm4", "tmm7", 64),
                2 => product!("tmm2", "tmm5", "tmm6", 2048),
                _ => product!("tmm3", "tmm5", "tmm7", 2112),
            }
        }
    }

    /// All four results at once, so that consecutive products do not depend on each other. A tile is loaded again
    /// right after its last use.
    #[inline(always)]
    unsafe fn multiply(a: *const u16, b: *const u16, count: usize, c: *mut f32, c_row: usize, start: InitialSum) {
        let (start, start_row) = start.rows(c, c_row);
        // SAFETY: the caller's contract: tiles are configured, `count` blocks on either side and 32 rows of `c` are
        // valid.
        unsafe {
            asm!(
                // Low parts of the left block, high ones of the right.
                "tileloadd tmm4, [{a} + {row}*1]",
                "tileloadd tmm6, [{b} + {row}*1]",
                "tileloadd tmm5, [{a} + {row}*1 + 1024]",
                "tileloadd tmm7, [{b} + {row}*1 + 1024]",
                "test {start}, {start}",
                "jz 2f",
                "tileloadd tmm0, [{start} + {start_row}*4]",
                "tileloadd tmm1, [{start_down} + {start_row}*4]",
                "tileloadd tmm2, [{start} + {start_row}*4 + 64]",
                "tileloadd tmm3, [{start_down} + {start_row}*4 + 64]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm5, tmm6",
                "tdpbf16ps tmm2, tmm4, tmm7",
                // High parts of the left.
                "tileloadd tmm4, [{a} + {row}*1 + 2048]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm5, [{a} + {row}*1 + 3072]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm5, tmm6",
                // Low parts of the right.
                "tileloadd tmm6, [{b} + {row}*1 + 2048]",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm7, [{b} + {row}*1 + 3072]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm5, tmm6",
                "dec {count}",
                "jz 4f",
                "add {a}, 4096",
                "add {b}, 4096",
                // The next block.
                "tileloadd tmm6, [{b} + {row}*1]",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tileloadd tmm4, [{a} + {row}*1]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm5, [{a} + {row}*1 + 1024]",
                "tileloadd tmm7, [{b} + {row}*1 + 1024]",
                "jmp 3b",
                "4:",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tilestored [{c} + {c_row}*4], tmm0",
                "tilestored [{down} + {c_row}*4], tmm1",
                "tilestored [{c} + {c_row}*4 + 64], tmm2",
                "tilestored [{down} + {c_row}*4 + 64], tmm3",
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                count = inout(reg) count => _,
                row = in(reg) 64usize,
                c = in(reg) c,
                down = in(reg) c.add(16 * c_row),
                c_row = in(reg) c_row,
                start = in(reg) start,
                start_down = in(reg) start.wrapping_add(16 * start_row),
                start_row = in(reg) start_row,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    #[inline(always)]
    unsafe fn multiply_narrow(a: *const u16, b: *const u16, count: usize, c: *mut f32) {
        // SAFETY: the caller's contract: tiles are configured, `count` pairs of tiles on either side and 32 rows of
        // `c` are valid.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "2:",
                "tileloadd tmm4, [{a} + {row}*1]",
                "tileloadd tmm6, [{b} + {row}*1]",
                "tileloadd tmm5, [{a} + {row}*1 + 1024]",
                "tileloadd tmm7, [{b} + {row}*1 + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm5, tmm6",
                "tdpbf16ps tmm0, tmm4, tmm7",
                "tdpbf16ps tmm1, tmm5, tmm7",
                "add {a}, 2048",
                "add {b}, 2048",
                "dec {count}",
                "jnz 2b",
                "tilestored [{c} + {row}*2], tmm0",
                "tilestored [{c} + {row}*2 + 2048], tmm1",
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                count = inout(reg) count => _,
                row = in(reg) 64usize,
                c = in(reg) c,
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

/// Whether the machine has AVX-512, which all code around AMX uses.
pub fn has_avx512() -> bool {
    isa() == Isa::Avx512
}
