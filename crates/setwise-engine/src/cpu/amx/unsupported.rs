//! The stub for targets without AMX: it is never available, so nothing else here is called.

use super::super::attention::{Backward, Forward};
use super::super::packed_product::PackedProduct;
use super::super::weight_product::WeightProduct;

const UNSUPPORTED: &str = "AMX is not available on this target";

pub fn available() -> bool {
    false
}

pub struct TileConfig;

impl TileConfig {
    pub fn load() -> Self {
        unreachable!("{UNSUPPORTED}");
    }
}

/// # Safety
/// Never called.
pub unsafe fn pack_forward(_: *mut u16, _: *const f32, _: usize, _: usize) {
    unreachable!("{UNSUPPORTED}");
}

/// # Safety
/// Never called.
pub unsafe fn pack_backward(_: *mut u16, _: *const f32, _: usize, _: usize) {
    unreachable!("{UNSUPPORTED}");
}

/// # Safety
/// Never called.
pub unsafe fn products(_: &[PackedProduct<f32>], _: *mut f32) {
    unreachable!("{UNSUPPORTED}");
}

/// # Safety
/// Never called.
pub unsafe fn weight_product(_: &WeightProduct<f32>) {
    unreachable!("{UNSUPPORTED}");
}

pub fn attention_scratch(_: usize, _: usize, _: bool) -> usize {
    unreachable!("{UNSUPPORTED}");
}

/// # Safety
/// Never called.
pub unsafe fn attention_forward(_: &Forward<f32>) {
    unreachable!("{UNSUPPORTED}");
}

/// # Safety
/// Never called.
pub unsafe fn attention_backward(_: &Backward<f32>) {
    unreachable!("{UNSUPPORTED}");
}
