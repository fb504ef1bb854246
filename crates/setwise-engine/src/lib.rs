//! The numerical engine of setwise.
//!
//! Four ideas carry it:
//!
//! * **Packed sets** ([`BatchView`]): for each set, a batch stores the rows of all examples one after another, with
//!   offsets. Examples may differ in size; there is no padding and there are no masks.
//! * **One flat buffer** ([`ParamLayout`]) for all parameters, another for gradients and two for the moments of
//!   [`Adam`], with a named view per tensor.
//! * **A program of few, fused operations** ([`Program`], [`Op`]), each with a hand-written backward pass, over an
//!   arena. The lifetime of a buffer decides its offset in the arena.
//! * **Relations are an index**: a block over K sets runs all its relations in one operation each of projection,
//!   attention, feed-forward and merge.
//!
//! [`Cpu`] runs programs on threads with the machine's widest vectors. Programs are independent of the backend.

mod adam;
mod batch;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
mod flow;
#[cfg(any(feature = "cuda", test))]
mod grad_alias;
mod loss;
mod muon;
mod params;
mod plan;
mod program;
mod real;
pub mod simd;
mod splitmix;

pub use adam::Adam;
pub use batch::{BatchView, SetView};
pub use cpu::{Compiled, Cpu, Outputs};
pub use error::Error;
pub use loss::{Loss, MAX_QUANTILE_LEVELS, QuantileLevels};
pub use muon::{Matrix, Muon};
pub use params::{Init, ParamId, ParamLayout, ParamSpec};
pub use program::*;
pub use real::Real;
pub use splitmix::splitmix64;
