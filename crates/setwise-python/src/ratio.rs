//! `ratio`.

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};
use setwise::estimate::{Points, log_ratio};

use crate::arrays::SetArgument;
use crate::errors::Failure;
use crate::pool::compute;

/// Estimate the log density ratio log p/q of two samples at every row.
///
/// The estimates that are combined at a row of p or q do not use that row. Rows of at are taken for new ones.
///
/// Parameters
/// ----------
/// p, q : array-like
///     Samples of P and of Q with the same number of columns. Rows are elements, columns are dimensions.
///     An array with one axis is a sample with one column.
/// at : array-like, optional
///     Rows at which the ratio is evaluated, the rows of q by default.
///
/// Returns
/// -------
/// Ratio
///
/// Examples
/// --------
/// >>> import numpy as np, setwise
/// >>> rng = np.random.default_rng(0)
/// >>> p, q = rng.normal(size=1000), rng.normal(size=1000) + 1.0  # log p/q is 0.5 - x
/// >>> ratio = setwise.ratio(p, q)
/// >>> bool(np.mean((ratio.log_ratio - (0.5 - q)) ** 2) < 0.05)
/// True
/// >>> bool(abs(np.average(q, weights=ratio.weights)) < 0.2)  # the mean of P is 0
/// True
/// >>> setwise.ratio(p, q, at=[0.0, 1.0]).log_ratio.shape
/// (2,)
#[pyfunction]
#[pyo3(signature = (p, q, *, at=None))]
pub fn ratio<'py>(
    py: Python<'py>,
    p: &Bound<'py, PyAny>,
    q: &Bound<'py, PyAny>,
    at: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let arguments = [Some((p, "p")), Some((q, "q")), at.map(|at| (at, "at"))];
    let read = |(object, name): (&Bound<'py, PyAny>, &str)| SetArgument::read_single(object, name);
    let arguments = arguments.into_iter().flatten().map(read).collect::<PyResult<Vec<_>>>()?;
    let views: Vec<_> = arguments.iter().flat_map(SetArgument::views).collect();
    let sets: Vec<_> = arguments.iter().flat_map(SetArgument::sets).collect();
    let found = compute(py, || -> Result<_, Failure> {
        views.iter().try_for_each(|v| v.check(false))?;
        let data: Vec<_> = sets.iter().map(|s| s.numbers.to_f64()).collect();
        let points: Vec<Points> = sets.iter().zip(&data).map(|(s, x)| Points::new(x, s.width).named(&s.name)).collect();
        let ratio = log_ratio(points[0], points[1], points.get(2).copied())?;
        Ok((ratio, [points[0].len(), points[1].len()]))
    })??;
    let (ratio, rows) = found;
    let at = if at.is_some() { &ratio.other } else { &ratio.q };
    let array = |values: &[f64]| PyArray1::from_slice(py, values);
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let parts = (
        array(at),
        array(&ratio.weights(at)),
        array(&ratio.p),
        array(&ratio.q),
        ratio.effective_sample_size,
        (rows[0], rows[1]),
        PyTuple::new(py, &ratio.warnings)?,
    );
    CLASS.import(py, "setwise._results", "Ratio")?.call1(parts)
}
