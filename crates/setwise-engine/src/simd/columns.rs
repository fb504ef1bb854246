//! Loops over the columns of a row, one vector at a time, with a partial vector at the end.

use super::Vector;
use crate::real::Real;

/// Runs a body with (first column, valid lanes) for each vector of a row.
macro_rules! columns {
    ($V:ty, $cols:expr, |$j:ident, $n:ident| $body:expr) => {{
        let mut $j = 0;
        while $j + <$V>::LANES <= $cols {
            let $n = <$V>::LANES;
            $body;
            $j += <$V>::LANES;
        }
        if $j < $cols {
            let $n = $cols - $j;
            $body;
        }
    }};
}
pub(crate) use columns;

/// Loads `n` lanes, all or the first ones.
///
/// # Safety
/// The caller runs in a kernel; `p` is valid for `n` elements, at most a vector.
#[inline(always)]
pub(crate) unsafe fn load_lanes<T: Real, V: Vector<T>>(p: *const T, n: usize) -> V {
    // SAFETY: the caller's contract.
    unsafe { if n == V::LANES { V::load(p) } else { V::load_first(p, n) } }
}

/// Stores `n` lanes, all or the first ones.
///
/// # Safety
/// The caller runs in a kernel; `p` is valid for `n` elements, at most a vector.
#[inline(always)]
pub(crate) unsafe fn store_lanes<T: Real, V: Vector<T>>(v: V, p: *mut T, n: usize) {
    // SAFETY: the caller's contract.
    unsafe { if n == V::LANES { v.store(p) } else { v.store_first(p, n) } }
}

/// Lanes of the widest vector.
pub(crate) const MAX_LANES: usize = 16;
