//! `kl`, `divergence` and `mi`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple, PyType};
use setwise::Device;
use setwise::estimate::{
    Dim, Estimate, KlMethod, KlOptions, MiMethod, MiOptions, Points, Pretrained, Quantity, Variant, kl_batch, mi_batch,
};

use crate::arrays::{Set, SetArgument};
use crate::errors::{Failure, exception, value_error};
use crate::pool::compute;

/// Estimate the KL divergence of two samples, in nats.
///
/// Parameters
/// ----------
/// p, q : array-like
///     Samples of P and of Q with the same number of columns. Rows are elements, columns are dimensions.
///     An array with one axis is a sample with one column. A list of arrays with two axes is a batch, and so is an
///     array with three axes. A list of arrays with one axis is a sample; the arrays are its rows.
/// method : {"pretrained", "knn", "gaussian", "logistic"}, optional
///     "pretrained": the trained estimator, the default unless k is given. "knn": nearest neighbours (Wang, Kulkarni,
///     Verdú). "gaussian": closed form for Gaussians with the samples' moments. "logistic": logistic regression of P
///     against Q.
/// k : int, optional
///     Rank of the neighbour that "knn" measures the distance to, 3 by default.
/// seed : int
///     Seed of the interval.
/// device : str
///     "cpu", "cuda" or "cuda:N"; a GPU needs a package built with the feature cuda. Only "pretrained" runs on a GPU.
///
/// Returns
/// -------
/// Estimate, or a list with one Estimate per pair of a batch
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
#[pyo3(signature = (p, q, *, method=None, k=None, seed=0, device="cpu"))]
pub fn kl<'py>(
    py: Python<'py>,
    p: &Bound<'py, PyAny>,
    q: &Bound<'py, PyAny>,
    method: Option<&str>,
    k: Option<i128>,
    seed: i128,
    device: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let method = method.map(str::parse::<KlMethod>).transpose().map_err(exception)?;
    let k = k.map(|k| to_u64("k", k)).transpose()?.map(|k| k as usize);
    let device = Device::find(device, None).map_err(exception)?;
    let options = KlOptions::of(method, k, to_u64("seed", seed)?).with_device(device);
    estimates(py, [(p, "p"), (q, "q")], |pairs| kl_batch(pairs, &options))
}

/// Estimate a divergence of two samples.
///
/// Parameters
/// ----------
/// p, q : array-like
///     Samples of P and of Q with the same number of columns, or two batches, as for `kl`.
/// measure : {"kl", "reverse-kl", "js", "tv", "hellinger"}
///     "kl": KL(P‖Q). "reverse-kl": KL(Q‖P). "js": Jensen–Shannon divergence, at most ln 2. "tv": total variation
///     distance, at most 1. "hellinger": Hellinger distance, at most 1.
/// seed : int
///     Seed of the interval of a fallback estimate.
///
/// Returns
/// -------
/// Estimate, or a list with one Estimate per pair of a batch
///
/// Examples
/// --------
/// >>> import numpy as np, setwise
/// >>> rng = np.random.default_rng(0)
/// >>> p, q = rng.normal(size=2000), rng.normal(size=2000) + 1.0  # total variation is 0.383
/// >>> abs(float(setwise.divergence(p, q, "tv")) - 0.383) < 0.05
/// True
#[pyfunction]
#[pyo3(signature = (p, q, measure, *, seed=0))]
pub fn divergence<'py>(
    py: Python<'py>,
    p: &Bound<'py, PyAny>,
    q: &Bound<'py, PyAny>,
    measure: &str,
    seed: i128,
) -> PyResult<Bound<'py, PyAny>> {
    let measure = Quantity::divergence(measure).map_err(exception)?;
    let seed = to_u64("seed", seed)?;
    estimates(py, [(p, "p"), (q, "q")], |pairs| {
        let estimator = Pretrained::shared()?;
        let one = |&(p, q): &(Points, Points)| Ok(estimator.divergences(p, q, &[measure], seed)?.remove(0));
        pairs.iter().map(one).collect()
    })
}

/// Estimate the mutual information of paired rows, in nats.
///
/// Parameters
/// ----------
/// x, y : array-like
///     Samples with the same number of rows; row i of one belongs to row i of the other. An array with one axis is a
///     sample with one column. A list of arrays is a batch, and so is an array with three axes.
/// method : {"ksg", "gaussian", "copula", "mine"}, optional
///     "ksg", the default: nearest neighbours (Kraskov, Stögbauer, Grassberger). "gaussian": closed form for a Gaussian
///     with the pairs' moments. "copula": the same for normal scores, so that outliers hardly matter. "mine": lower
///     bound from trained networks (Belghazi et al.).
/// variant : {1, 2}
///     Kraskov's first or second estimator, for "ksg".
/// k : int
///     Rank of the neighbour that "ksg" measures the distance to.
/// seed : int
///     Seed of the interval, and of the networks of "mine".
///
/// Returns
/// -------
/// Estimate, or a list with one Estimate per pair of a batch
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
    let method = method.map(str::parse::<MiMethod>).transpose().map_err(exception)?.unwrap_or_default();
    let variant = match variant {
        1 => Variant::One,
        2 => Variant::Two,
        other => return Err(value_error(format!("variant: is {other}, must be 1 or 2"))),
    };
    let options = MiOptions { method, variant, k: to_u64("k", k)? as usize, seed: to_u64("seed", seed)? };
    estimates(py, [(x, "x"), (y, "y")], |pairs| mi_batch(pairs, &options))
}

/// An integer argument that must not be negative.
pub fn to_u64(name: &str, value: i128) -> PyResult<u64> {
    u64::try_from(value).map_err(|_| value_error(format!("{name}: is {value}, must be between 0 and {}", u64::MAX)))
}

/// Reads two samples or two batches, and estimates.
fn estimates<'py>(
    py: Python<'py>,
    [(first, first_name), (second, second_name)]: [(&Bound<'py, PyAny>, &str); 2],
    estimate: impl Fn(&[(Points, Points)]) -> setwise::Result<Vec<Estimate>> + Send + Sync,
) -> PyResult<Bound<'py, PyAny>> {
    let (a, b) = (SetArgument::read(first, first_name)?, SetArgument::read(second, second_name)?);
    if a.single != b.single {
        let (batch, sample) = if a.single { (second_name, first_name) } else { (first_name, second_name) };
        return Err(value_error(format!(
            "{batch} is a batch of samples and {sample} is a single one; give two samples or two batches"
        )));
    }
    if a.examples() != b.examples() {
        let (n, m) = (a.examples(), b.examples());
        return Err(value_error(format!("{first_name} has {n} samples, {second_name} has {m}; give equal numbers")));
    }
    let views = [a.views(), b.views()].concat();
    let (of_a, of_b) = (a.sets(), b.sets());
    let estimates = compute(py, || -> Result<Vec<Estimate>, Failure> {
        views.iter().try_for_each(|v| v.check(false))?;
        let (data_a, data_b) = (to_f64(&of_a), to_f64(&of_b));
        let pairs: Vec<(Points, Points)> = of_a
            .iter()
            .zip(&data_a)
            .zip(of_b.iter().zip(&data_b))
            .map(|((a, x), (b, y))| (Points::new(x, a.width).named(&a.name), Points::new(y, b.width).named(&b.name)))
            .collect();
        Ok(estimate(&pairs)?)
    })??;
    let mut objects = estimates.iter().map(|e| to_object(py, e)).collect::<PyResult<Vec<_>>>()?;
    match objects.pop() {
        Some(only) if a.single => Ok(only),
        last => {
            objects.extend(last);
            Ok(PyList::new(py, objects)?.into_any())
        }
    }
}

fn to_f64<'a>(sets: &[Set<'a>]) -> Vec<std::borrow::Cow<'a, [f64]>> {
    sets.iter().map(|s| s.numbers.to_f64()).collect()
}

/// An estimate as a `setwise.Estimate`.
fn to_object<'py>(py: Python<'py>, e: &Estimate) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static FALLBACK: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let dim = match e.dim {
        Dim::One(d) => vec![d],
        Dim::Two(d) => d.to_vec(),
    };
    let pair = |interval: Option<[f64; 2]>| interval.map(|[low, high]| (low, high));
    let interval = pair(e.interval);
    let fallback = e.fallback.as_ref().map(|f| {
        let parts = (&f.method, f.value, pair(f.interval));
        FALLBACK.import(py, "setwise._results", "Fallback")?.call1(parts)
    });
    let fallback = fallback.transpose()?;
    let (n, dim, warnings) = (PyTuple::new(py, &e.n)?, PyTuple::new(py, dim)?, PyTuple::new(py, &e.warnings)?);
    let parts = (
        e.quantity.name(),
        e.value,
        interval,
        e.level,
        e.unit,
        n,
        dim,
        &e.method,
        e.interval_method,
        warnings,
        fallback,
    );
    CLASS.import(py, "setwise._results", "Estimate")?.call1(parts)
}
