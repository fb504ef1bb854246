//! Weights packed for matrix products, once for all operations and all threads.

use rayon::prelude::*;

use super::gemm::{pack_panels, panels_len};
use super::tasks::{Ptr, align_offset};
use crate::params::ParamId;
use crate::program::{Op, Program};
use crate::real::Real;

/// Every weight matrix of a program as panels: as it is used forward (`k` = inputs) and backward (`k` = outputs).
pub struct Panels<T> {
    /// For each parameter that is a weight: outputs, inputs, start of its forward panels, start of its backward panels.
    weights: Vec<Option<[usize; 4]>>,
    data: Vec<T>,
    forward_len: usize,
    len: usize,
}

impl<T: Real> Panels<T> {
    pub fn new(program: &Program) -> Self {
        let mut panels =
            Panels { weights: vec![None; program.params.specs().len()], data: Vec::new(), forward_len: 0, len: 0 };
        let used = program.ops.iter().flat_map(|op| match op {
            Op::Linear(l) => l.maps.iter().map(|m| m.weight).collect(),
            Op::Pairs(p) => p.nets.iter().map(|n| n.weight).collect(),
            Op::Convolution(c) => vec![c.weight],
            _ => Vec::new(),
        });
        for id in used {
            let spec = program.params.spec(id);
            let outputs = spec.shape[0];
            panels.weights[id.0] = Some([outputs, spec.len() / outputs, 0, 0]);
        }
        let mut at = 0;
        for [outputs, inputs, forward, _] in panels.weights.iter_mut().flatten() {
            *forward = at;
            at += panels_len::<T>(*inputs, *outputs).next_multiple_of(16);
        }
        panels.forward_len = at;
        for [outputs, inputs, _, backward] in panels.weights.iter_mut().flatten() {
            *backward = at;
            at += panels_len::<T>(*outputs, *inputs).next_multiple_of(16);
        }
        panels.len = at;
        panels
    }

    /// Numbers held.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Packs all weights; the backward panels only if asked for.
    pub fn pack(&mut self, program: &Program, params: &[T], backward: bool) {
        let wanted = 16 + if backward { self.len } else { self.forward_len };
        if self.data.len() < wanted {
            self.data = vec![T::ZERO; wanted];
        }
        let data = Ptr(self.data.as_mut_ptr());
        let start = align_offset(self.data.as_ptr());
        self.weights.par_iter().enumerate().for_each(|(i, weight)| {
            let Some([outputs, inputs, forward, back]) = *weight else { return };
            let src = params[program.params.spec(ParamId(i)).range()].as_ptr();
            // SAFETY: each weight has its own stretch of the buffer.
            unsafe {
                pack_panels(data.at(start + forward), src, 1, inputs, inputs, outputs);
                if backward {
                    pack_panels(data.at(start + back), src, inputs, 1, outputs, inputs);
                }
            }
        });
    }

    /// Panels of a weight's transpose: for `x Wᵀ`.
    pub fn forward(&self, id: ParamId) -> *const T {
        self.place(id, 2)
    }

    /// Panels of a weight: for `dy W`.
    pub fn backward(&self, id: ParamId) -> *const T {
        self.place(id, 3)
    }

    fn place(&self, id: ParamId, which: usize) -> *const T {
        let place = self.weights[id.0].expect("a weight of the program")[which];
        self.data[align_offset(self.data.as_ptr()) + place..].as_ptr()
    }
}
