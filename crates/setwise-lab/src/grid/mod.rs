//! Grids of runs: experiments × presets × seeds, and the combiners of estimators after them.
//!
//! * [`Grid`]: the choices. [`Grid::plan`] gives every run its experiment and folder.
//! * [`Queue`]: the runs and combiners to train. [`Queue::train`] trains them and reports [`QueueEvent`]s.

mod plan;
mod queue;

pub use plan::Grid;
pub use queue::{CombinerEvent, Queue, QueueEvent};
