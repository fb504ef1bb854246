//! Compiles the passes once for each number type, in this crate and not in every crate that runs a program.
//!
//! Everything that runs programs is generic over [`Real`], and generic code is compiled where its type is known. Calls
//! to the passes of a [`Worker`], and to the products of an optimiser, go through [`Compiled`]. Its methods are not
//! generic, so other crates only call them.
//!
//! Double precision is for checks of gradients. The feature `f64` compiles it.
//!
//! The engine's unit tests run single kernels, so they do not compile the passes. The tests in `tests` and other
//! crates run programs.

use std::ops::Range;

use super::packed_weights::PackedWeights;
use super::worker::{Run, Worker};
use crate::batch::BatchView;
use crate::error::Error;
use crate::program::Program;
use crate::real::Real;

/// A number type that programs run in: `f32`, and `f64` with the feature `f64`.
///
/// No other crate can implement the trait, since its methods take private types.
pub trait Compiled: Real {
    #[doc(hidden)]
    fn forward(
        worker: &mut Worker<Self>,
        params: &[Self],
        packed: &PackedWeights<Self>,
        batch: &BatchView<Self>,
        examples: Range<usize>,
    ) -> Result<(), Error>;

    #[doc(hidden)]
    fn backward(worker: &mut Worker<Self>, run: &mut Run<Self>, output_grads: &[Vec<Self>]);

    #[doc(hidden)]
    fn pack(packed: &mut PackedWeights<Self>, program: &Program, params: &[Self], backward: bool);

    #[doc(hidden)]
    fn orthogonalise(matrix: &mut [Self], rows: usize, cols: usize);
}

macro_rules! compiled {
    ($t:ty) => {
        impl Compiled for $t {
            #[inline(never)]
            fn forward(
                worker: &mut Worker<Self>,
                params: &[Self],
                packed: &PackedWeights<Self>,
                batch: &BatchView<Self>,
                examples: Range<usize>,
            ) -> Result<(), Error> {
                if cfg!(test) {
                    unreachable!("unit tests run no programs");
                }
                worker.forward(params, packed, batch, examples)
            }

            #[inline(never)]
            fn backward(worker: &mut Worker<Self>, run: &mut Run<Self>, output_grads: &[Vec<Self>]) {
                if cfg!(test) {
                    unreachable!("unit tests run no programs");
                }
                worker.backward(run, output_grads);
            }

            #[inline(never)]
            fn pack(packed: &mut PackedWeights<Self>, program: &Program, params: &[Self], backward: bool) {
                if cfg!(test) {
                    unreachable!("unit tests run no programs");
                }
                packed.pack(program, params, backward);
            }

            #[inline(never)]
            fn orthogonalise(matrix: &mut [Self], rows: usize, cols: usize) {
                crate::muon::orthogonalise(matrix, rows, cols);
            }
        }
    };
}

compiled!(f32);
#[cfg(any(feature = "f64", test))]
compiled!(f64);
