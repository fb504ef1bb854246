//! Where there are no tile units.

use super::super::attention::{Backward, Forward};
use super::super::gemm::PanelProduct;
use super::super::weight_product::WeightProduct;

const NOBODY: &str = "nobody may ask for tiles here";

pub fn available() -> bool {
    false
}

pub struct InUse;

impl InUse {
    pub fn begin() -> Self {
        unreachable!("{NOBODY}");
    }
}

/// # Safety
/// Never called: there is no AMX here.
pub unsafe fn pack_forward(_: *mut u16, _: *const f32, _: usize, _: usize) {
    unreachable!("{NOBODY}");
}

/// # Safety
/// Never called: there is no AMX here.
pub unsafe fn pack_backward(_: *mut u16, _: *const f32, _: usize, _: usize) {
    unreachable!("{NOBODY}");
}

/// # Safety
/// Never called: there is no AMX here.
pub unsafe fn products(_: &[PanelProduct<f32>], _: *mut f32) {
    unreachable!("{NOBODY}");
}

/// # Safety
/// Never called: there is no AMX here.
pub unsafe fn weight_product(_: &WeightProduct<f32>) {
    unreachable!("{NOBODY}");
}

pub fn attention_scratch(_: usize, _: usize, _: bool) -> usize {
    unreachable!("{NOBODY}");
}

/// # Safety
/// Never called: there is no AMX here.
pub unsafe fn attention_forward(_: &Forward<f32>) {
    unreachable!("{NOBODY}");
}

/// # Safety
/// Never called: there is no AMX here.
pub unsafe fn attention_backward(_: &Backward<f32>) {
    unreachable!("{NOBODY}");
}
