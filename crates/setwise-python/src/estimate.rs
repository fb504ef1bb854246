//! `kl` and `mi`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple, PyType};
use setwise::estimate::{
    Dim, Estimate, KlMethod, KlOptions, MiMethod, MiOptions, Points, Quantity, Variant, kl_batch, mi_batch,
};

use crate::arrays::{Given, Set};
use crate::errors::{Failure, raised, value_error};
use crate::pool::compute;

/// Estimate the KL divergence of two samples, in nats.
///
/// Parameters
/// ----------
/// p, q : array-like
///     Samples of P and of Q, with as many columns: rows are elements, columns dimensions, of any number and stride.
///     An array of one axis is a sample of single numbers. Lists of arrays of two axes (or arrays of three) are a batch;
///     a list of arrays of one axis is a sample whose rows they are.
/// method : {"pretrained", "knn", "gaussian", "logistic"}, optional
///     The trained estimator (the default, unless k is given), nearest neighbours (Wang, Kulkarni, Verdú), the closed
///     form for Gaussians with the samples' moments, or a logistic regression of P against Q.
/// k : int, optional
///     Which neighbour "knn" measures the distance to; 3 if not given.
/// seed : int
///     Seed of the interval.
///
/// Returns
/// -------
/// Estimate, or for a batch a list of one Estimate per pair
///
/// Examples
/// --------
/// >>> import numpy as np, setwise
/// >>> rng = np.random.default_rng(0)
/// >>> p = rng.normal(size=(500, 2))
/// >>> q = rng.normal(size=(400, 2)) + [1.0, 0.0]  # KL(P‖Q) is 0.5
/// >>> estimate = setwise.kl(p, q)
/// >>> abs(float(estimate) - 0.5) < 0.2
/// True
/// >>> low, high = estimate.interval
/// >>> low < estimate.value < high
/// True
/// >>> [e.method for e in setwise.kl([p, q], [q, p], method="gaussian")]
/// ['gaussian', 'gaussian']
#[pyfunction]
#[pyo3(signature = (p, q, *, method=None, k=None, seed=0))]
pub fn kl<'py>(
    py: Python<'py>,
    p: &Bound<'py, PyAny>,
    q: &Bound<'py, PyAny>,
    method: Option<&str>,
    k: Option<i128>,
    seed: i128,
) -> PyResult<Bound<'py, PyAny>> {
    let method = method.map(str::parse::<KlMethod>).transpose().map_err(raised)?;
    let k = k.map(|k| whole("k", k)).transpose()?.map(|k| k as usize);
    let options = KlOptions::of(method, k, whole("seed", seed)?);
    estimates(py, [(p, "p"), (q, "q")], |pairs| kl_batch(pairs, &options))
}

/// Estimate the mutual information of paired rows, in nats.
///
/// Parameters
/// ----------
/// x, y : array-like
///     Samples with as many rows; row i of one belongs to row i of the other. An array of one axis is a sample of
///     single numbers. Lists of arrays (or arrays of three axes) are a batch.
/// method : {"ksg", "gaussian", "mine"}, optional
///     Nearest neighbours (Kraskov, Stögbauer, Grassberger), the closed form for a Gaussian with the pairs' moments, or
///     a lower bound from trained networks (Belghazi et al.). The default is that of the command ``setwise mi``.
/// variant : {1, 2}
///     Which of Kraskov's two estimators "ksg" is.
/// k : int
///     Which neighbour "ksg" measures the distance to.
/// seed : int
///     Seed of the interval, and of the networks of "mine".
///
/// Returns
/// -------
/// Estimate, or for a batch a list of one Estimate per pair
///
/// Examples
/// --------
/// >>> import numpy as np, setwise
/// >>> rng = np.random.default_rng(0)
/// >>> x = rng.normal(size=1000)
/// >>> y = 0.6 * x + 0.8 * rng.normal(size=1000)  # I(X; Y) is 0.223
/// >>> abs(float(setwise.mi(x, y)) - 0.223) < 0.1
/// True
#[pyfunction]
#[pyo3(signature = (x, y, *, method=None, variant=1, k=3, seed=0))]
pub fn mi<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    y: &Bound<'py, PyAny>,
    method: Option<&str>,
    variant: i64,
    k: i128,
    seed: i128,
) -> PyResult<Bound<'py, PyAny>> {
    let method = method.map(str::parse::<MiMethod>).transpose().map_err(raised)?.unwrap_or_default();
    let variant = match variant {
        1 => Variant::One,
        2 => Variant::Two,
        other => return Err(value_error(format!("variant: is {other}, must be 1 or 2"))),
    };
    let options = MiOptions { method, variant, k: whole("k", k)? as usize, seed: whole("seed", seed)? };
    estimates(py, [(x, "x"), (y, "y")], |pairs| mi_batch(pairs, &options))
}

/// A number that counts something.
pub fn whole(name: &str, value: i128) -> PyResult<u64> {
    u64::try_from(value).map_err(|_| value_error(format!("{name}: is {value}, must be between 0 and {}", u64::MAX)))
}

/// Reads both samples, or both lists of samples, and estimates.
fn estimates<'py>(
    py: Python<'py>,
    [(first, first_name), (second, second_name)]: [(&Bound<'py, PyAny>, &str); 2],
    estimate: impl Fn(&[(Points, Points)]) -> setwise::Result<Vec<Estimate>> + Send + Sync,
) -> PyResult<Bound<'py, PyAny>> {
    let (a, b) = (Given::read(first, first_name)?, Given::read(second, second_name)?);
    if a.single != b.single {
        let (list, one) = if a.single { (second_name, first_name) } else { (first_name, second_name) };
        return Err(value_error(format!(
            "{list} is a batch of samples and {one} is a single one; both must be one or the other"
        )));
    }
    if a.examples() != b.examples() {
        let (n, m) = (a.examples(), b.examples());
        return Err(value_error(format!("{first_name} has {n} samples, {second_name} has {m}; they go in pairs")));
    }
    let views = [a.views(), b.views()].concat();
    let (of_a, of_b) = (a.sets(), b.sets());
    let found = compute(py, || -> Result<Vec<Estimate>, Failure> {
        views.iter().try_for_each(|v| v.check(false))?;
        let (data_a, data_b) = (doubles(&of_a), doubles(&of_b));
        let pairs: Vec<(Points, Points)> = of_a
            .iter()
            .zip(&data_a)
            .zip(of_b.iter().zip(&data_b))
            .map(|((a, x), (b, y))| (Points::new(x, a.width).named(&a.name), Points::new(y, b.width).named(&b.name)))
            .collect();
        Ok(estimate(&pairs)?)
    })??;
    let mut objects = found.iter().map(|e| object(py, e)).collect::<PyResult<Vec<_>>>()?;
    match objects.pop() {
        Some(only) if a.single => Ok(only),
        last => {
            objects.extend(last);
            Ok(PyList::new(py, objects)?.into_any())
        }
    }
}

fn doubles<'a>(sets: &[Set<'a>]) -> Vec<std::borrow::Cow<'a, [f64]>> {
    sets.iter().map(|s| s.numbers.double()).collect()
}

/// An estimate as Python sees it: `setwise.Estimate`.
fn object<'py>(py: Python<'py>, e: &Estimate) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static FALLBACK: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let quantity = match e.quantity {
        Quantity::Kl => "kl",
        Quantity::Mi => "mi",
    };
    let dim = match e.dim {
        Dim::One(d) => vec![d],
        Dim::Two(d) => d.to_vec(),
    };
    let pair = |interval: Option<[f64; 2]>| interval.map(|[low, high]| (low, high));
    let interval = pair(e.interval);
    let fallback = e.fallback.as_ref().map(|other| {
        let parts = (&other.method, other.value, pair(other.interval));
        FALLBACK.import(py, "setwise._results", "Fallback")?.call1(parts)
    });
    let fallback = fallback.transpose()?;
    let (n, dim, warnings) = (PyTuple::new(py, &e.n)?, PyTuple::new(py, dim)?, PyTuple::new(py, &e.warnings)?);
    let parts =
        (quantity, e.value, interval, e.level, "nats", n, dim, &e.method, e.interval_method, warnings, fallback);
    CLASS.import(py, "setwise._results", "Estimate")?.call1(parts)
}
