//! Weights packed for matrix products, once for all operations and all threads.

use rayon::prelude::*;

use super::buffer::AlignedBuffer;
use super::gemm::{pack_panels, panels_len};
use super::tiles;
use crate::params::ParamId;
use crate::program::{Activation, Op, Program};
use crate::real::Real;

/// Every weight matrix of a program as panels: as it is used forward (`k` = inputs) and backward (`k` = outputs). Those of linear maps whose sizes fit are blocks of tiles instead,
/// if asked for.
pub struct Panels<T> {
    /// For each parameter that is a weight.
    weights: Vec<Option<Packed>>,
    tiles: bool,
    data: AlignedBuffer<T>,
    forward_len: usize,
    len: usize,
}

/// A weight, and where its panels or blocks begin.
#[derive(Clone, Copy)]
struct Packed {
    outputs: usize,
    inputs: usize,
    in_tiles: bool,
    forward: usize,
    backward: usize,
}

impl Packed {
    /// Numbers of one direction. A block's numbers have two parts of half the size.
    fn len<T: Real>(&self, k: usize, n: usize) -> usize {
        if self.in_tiles { tiles::blocks_len(k, n) / 2 } else { panels_len::<T>(k, n).next_multiple_of(16) }
    }
}

impl<T: Real> Panels<T> {
    pub fn new(program: &Program, tiles: bool) -> Self {
        assert!(
            !tiles || std::any::TypeId::of::<T>() == std::any::TypeId::of::<f32>(),
            "tiles are of single numbers alone"
        );
        let mut weights = vec![None; program.params.specs().len()];
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
                let in_tiles = tiles && tiles::fits(outputs, inputs);
                let weight = Packed { outputs, inputs, in_tiles, forward: 0, backward: 0 };
                weights[id.0].get_or_insert(weight).in_tiles &= linear;
            }
        }
        let mut at = 0;
        for w in weights.iter_mut().flatten() {
            w.forward = at;
            at += w.len::<T>(w.inputs, w.outputs);
        }
        let forward_len = at;
        for w in weights.iter_mut().flatten() {
            w.backward = at;
            at += w.len::<T>(w.outputs, w.inputs);
        }
        Panels { weights, tiles, data: AlignedBuffer::new(), forward_len, len: at }
    }

    /// Whether tiles were asked for.
    pub fn tiles(&self) -> bool {
        self.tiles
    }

    /// Numbers held.
    pub fn len(&self) -> usize {
        self.data.allocated()
    }

    /// Packs all weights; the backward panels only if asked for.
    pub fn pack(&mut self, program: &Program, params: &[T], backward: bool) {
        let wanted = if backward { self.len } else { self.forward_len };
        if self.data.capacity() < wanted {
            assert!(self.data.allocate(wanted), "no memory for {wanted} packed weights");
        }
        let data = &self.data;
        self.weights.par_iter().enumerate().for_each(|(i, weight)| {
            let Some(Packed { outputs, inputs, in_tiles, forward, backward: back }) = *weight else { return };
            let src = params[program.params.spec(ParamId(i)).range()].as_ptr();
            // SAFETY: each weight has its own stretch of the buffer, and tiles are of single numbers alone, on machines that have them (`new`).
            unsafe {
                if in_tiles {
                    tiles::pack_forward(data.at(forward).0.cast(), src.cast(), inputs, outputs);
                    if backward {
                        tiles::pack_backward(data.at(back).0.cast(), src.cast(), outputs, inputs);
                    }
                    return;
                }
                pack_panels(data.at(forward).0, src, 1, inputs, inputs, outputs);
                if backward {
                    pack_panels(data.at(back).0, src, inputs, 1, outputs, inputs);
                }
            }
        });
    }

    /// Panels of a weight's transpose: for `x Wᵀ`.
    pub fn forward(&self, id: ParamId) -> *const T {
        self.place(self.packed(id).forward)
    }

    /// Panels of a weight: for `dy W`.
    pub fn backward(&self, id: ParamId) -> *const T {
        self.place(self.packed(id).backward)
    }

    /// Whether a weight is in blocks of tiles.
    pub fn in_tiles(&self, id: ParamId) -> bool {
        self.packed(id).in_tiles
    }

    /// Whether its gradient is made in tiles.
    pub fn gradient_in_tiles(&self, id: ParamId) -> bool {
        let Packed { outputs, inputs, in_tiles, .. } = *self.packed(id);
        in_tiles && tiles::fits_gradient(outputs, inputs)
    }

    fn packed(&self, id: ParamId) -> &Packed {
        self.weights[id.0].as_ref().expect("a weight of the program")
    }

    fn place(&self, at: usize) -> *const T {
        self.data.at(at).0
    }
}
