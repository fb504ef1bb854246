//! Weight matrices packed for products, once for all operations and all threads.

use rayon::prelude::*;

use super::amx;
use super::buffer::AlignedBuffer;
use super::packed_product::{pack_matrix, packed_len};
use crate::params::ParamId;
use crate::program::{Activation, Op, Program};
use crate::real::Real;

/// Packs of every weight matrix `[outputs, inputs]` of a program: one for the forward product `x Wᵀ`, which sums over
/// inputs, and one for the backward product `dy W`, which sums over outputs.
///
/// A pack is strips of two vectors of columns (see `gemm`). Where AMX is in use, linear maps of supported sizes have
/// bf16 blocks instead (see `amx`).
pub struct PackedWeights<T> {
    /// For each parameter that is a weight.
    weights: Vec<Option<PackedWeight>>,
    uses_amx: bool,
    data: AlignedBuffer<T>,
    forward_len: usize,
    len: usize,
}

/// The size of a weight, and the offsets of its packs.
#[derive(Clone, Copy)]
struct PackedWeight {
    outputs: usize,
    inputs: usize,
    on_amx: bool,
    forward: usize,
    backward: usize,
}

impl PackedWeight {
    /// Elements of one pack, a multiple of 64 bytes. A number in a block is two bf16 parts, each half an element.
    fn len<T: Real>(&self, k: usize, n: usize) -> usize {
        if self.on_amx { amx::blocks_len(k, n) / 2 } else { packed_len::<T>(k, n).next_multiple_of(16) }
    }
}

impl<T: Real> PackedWeights<T> {
    pub fn new(program: &Program, uses_amx: bool) -> Self {
        assert!(!uses_amx || std::any::TypeId::of::<T>() == std::any::TypeId::of::<f32>(), "AMX multiplies f32 alone");
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
                let on_amx = uses_amx && amx::supports(outputs, inputs);
                let weight = PackedWeight { outputs, inputs, on_amx, forward: 0, backward: 0 };
                weights[id.0].get_or_insert(weight).on_amx &= linear;
            }
        }
        let mut len = 0;
        for w in weights.iter_mut().flatten() {
            w.forward = len;
            len += w.len::<T>(w.inputs, w.outputs);
        }
        let forward_len = len;
        for w in weights.iter_mut().flatten() {
            w.backward = len;
            len += w.len::<T>(w.outputs, w.inputs);
        }
        PackedWeights { weights, uses_amx, data: AlignedBuffer::new(), forward_len, len }
    }

    /// Whether weights of supported sizes are multiplied on AMX.
    pub fn uses_amx(&self) -> bool {
        self.uses_amx
    }

    /// Elements of memory held.
    pub fn len(&self) -> usize {
        self.data.allocated()
    }

    /// Packs all weights; for the backward products only where `backward`.
    pub fn pack(&mut self, program: &Program, params: &[T], backward: bool) {
        let required = if backward { self.len } else { self.forward_len };
        if self.data.capacity() < required {
            assert!(self.data.allocate(required), "no memory for {required} packed weights");
        }
        let data = &self.data;
        self.weights.par_iter().enumerate().for_each(|(i, weight)| {
            let Some(PackedWeight { outputs, inputs, on_amx, forward, backward: backward_offset }) = *weight else {
                return;
            };
            let src = params[program.params.spec(ParamId(i)).range()].as_ptr();
            // SAFETY: `new` gives every pack its own `PackedWeight::len` elements, and the buffer holds `required` of
            // them; each weight is packed by one task. `src` has `outputs · inputs` elements. `new` allows AMX for
            // `f32` alone, where it exists, so the casts are to the same type.
            unsafe {
                if on_amx {
                    amx::pack_forward(data.at(forward).0.cast(), src.cast(), inputs, outputs);
                    if backward {
                        amx::pack_backward(data.at(backward_offset).0.cast(), src.cast(), outputs, inputs);
                    }
                    return;
                }
                pack_matrix(data.at(forward).0, src, 1, inputs, inputs, outputs);
                if backward {
                    pack_matrix(data.at(backward_offset).0, src, inputs, 1, outputs, inputs);
                }
            }
        });
    }

    /// The pack for `x Wᵀ`.
    pub fn forward(&self, id: ParamId) -> *const T {
        self.at(self.packed(id).forward)
    }

    /// The pack for `dy W`.
    pub fn backward(&self, id: ParamId) -> *const T {
        self.at(self.packed(id).backward)
    }

    /// Whether the products of a weight run on AMX.
    pub fn on_amx(&self, id: ParamId) -> bool {
        self.packed(id).on_amx
    }

    /// Whether the gradient of a weight is computed on AMX.
    pub fn gradient_on_amx(&self, id: ParamId) -> bool {
        let PackedWeight { outputs, inputs, on_amx, .. } = *self.packed(id);
        on_amx && amx::supports_gradient(outputs, inputs)
    }

    fn packed(&self, id: ParamId) -> &PackedWeight {
        self.weights[id.0].as_ref().expect("a weight of the program")
    }

    fn at(&self, offset: usize) -> *const T {
        self.data.at(offset).0
    }
}
