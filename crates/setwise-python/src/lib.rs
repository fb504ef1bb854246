//! The native half of the Python package `setwise`: arrays in, the library's answers out.
//!
//! Everything is computed by the library; here are the conversions. `arrays` reads what counts as an array, `errors` says which exception an
//! error is, `options` turns keyword arguments into settings, `pool` has the threads that compute while the interpreter runs on. `estimate`, `model` and `fit` hold what the module
//! offers. The other half, in `python/setwise`, holds result classes, the loop of `fit` and its progress line.

mod arrays;
mod errors;
mod estimate;
mod fit;
mod model;
mod options;
mod pool;

use pyo3::prelude::*;

/// The native half of setwise.
#[pymodule]
mod _setwise {
    #[pymodule_export]
    use super::estimate::{kl, mi};
    #[pymodule_export]
    use super::fit::Fit;
    #[pymodule_export]
    use super::model::{Model, presets};

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
