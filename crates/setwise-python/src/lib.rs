//! The native module of the Python package `setwise`: conversions around calls of the library.
//!
//! * `arrays`: array-like objects as slices; `frames`: frames as tables
//! * `errors`: library errors as exceptions
//! * `options`: keyword arguments as settings
//! * `pool`: the threads that compute without the interpreter lock
//! * `compare`, `estimate`, `ratio`, `test`, `model`, `fit`: the functions and classes of the module
//!
//! The folder `python/setwise` holds result classes, the loop of `fit` and its progress line.

mod arrays;
mod compare;
mod errors;
mod estimate;
mod fit;
mod frames;
mod model;
mod options;
mod pool;
mod ratio;
mod test;

use pyo3::prelude::*;

/// The native module of setwise.
#[pymodule]
mod _setwise {
    #[pymodule_export]
    use super::compare::{NativeComparison, compare_tables};
    #[pymodule_export]
    use super::estimate::{divergence, kl, mi};
    #[pymodule_export]
    use super::fit::Fit;
    #[pymodule_export]
    use super::model::{Model, presets};
    #[pymodule_export]
    use super::ratio::ratio;
    #[pymodule_export]
    use super::test::{test_independence, test_samples};

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
