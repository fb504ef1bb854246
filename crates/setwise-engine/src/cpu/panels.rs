//! Weights packed for matrix products, once for all operations and all threads.

use rayon::prelude::*;

use super::gemm::{pack_panels, panels_len};
use super::tasks::{Ptr, align_offset};
use super::tiles;
use crate::params::ParamId;
use crate::program::{Activation, Op, Program};
use crate::real::Real;

/// Every weight matrix of a program as panels: as it is used forward (`k` = inputs) and backward (`k` = outputs). Those of linear maps whose sizes fit are blocks of tiles instead, if asked for.
pub struct Panels<T> {
    /// For each parameter that is a weight: outputs, inputs, start of its forward panels, start of its backward panels.
    weights: Vec<Option<[usize; 4]>>,
    data: Vec<T>,
    forward_len: usize,
    len: usize,
    /// Whether a weight is in blocks, whose starts and lengths are in halves of numbers.
    in_tiles: Vec<bool>,
}

impl<T: Real> Panels<T> {
    pub fn new(program: &Program, tiles: bool) -> Self {
        let count = program.params.specs().len();
        let mut panels = Panels {
            weights: vec![None; count],
            data: Vec::new(),
            forward_len: 0,
            len: 0,
            in_tiles: vec![tiles; count],
        };
        for op in &program.ops {
            let (used, linear): (Vec<ParamId>, bool) = match op {
                Op::Linear(l) => (l.maps.iter().map(|m| m.weight).collect(), l.activation != Activation::Sigmoid),
                Op::Pairs(p) => (p.nets.iter().map(|n| n.weight).collect(), false),
                Op::Convolution(c) => (vec![c.weight], false),
                _ => continue,
            };
            for id in used {
                let spec = program.params.spec(id);
                let (outputs, inputs) = (spec.shape[0], spec.len() / spec.shape[0]);
                panels.weights[id.0] = Some([outputs, inputs, 0, 0]);
                panels.in_tiles[id.0] &= linear && tiles::fits(outputs, inputs);
            }
        }
        // Two parts of half the size.
        let len = |in_tiles: bool, k: usize, n: usize| {
            if in_tiles { tiles::blocks_len(k, n) / 2 } else { panels_len::<T>(k, n).next_multiple_of(16) }
        };
        let mut at = 0;
        for (weight, &in_tiles) in panels.weights.iter_mut().zip(&panels.in_tiles) {
            let Some([outputs, inputs, forward, _]) = weight else { continue };
            *forward = at;
            at += len(in_tiles, *inputs, *outputs);
        }
        panels.forward_len = at;
        for (weight, &in_tiles) in panels.weights.iter_mut().zip(&panels.in_tiles) {
            let Some([outputs, inputs, _, backward]) = weight else { continue };
            *backward = at;
            at += len(in_tiles, *outputs, *inputs);
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
            // SAFETY: each weight has its own stretch of the buffer, and tiles are only asked for of single numbers on machines that have them.
            unsafe {
                if self.in_tiles[i] {
                    tiles::pack_forward(data.at(start + forward).cast(), src.cast(), inputs, outputs);
                    if backward {
                        tiles::pack_backward(data.at(start + back).cast(), src.cast(), outputs, inputs);
                    }
                    return;
                }
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

    /// Whether a weight is in blocks of tiles.
    pub fn in_tiles(&self, id: ParamId) -> bool {
        self.in_tiles[id.0]
    }

    fn place(&self, id: ParamId, which: usize) -> *const T {
        let place = self.weights[id.0].expect("a weight of the program")[which];
        self.data[align_offset(self.data.as_ptr()) + place..].as_ptr()
    }
}
