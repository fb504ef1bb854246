//! The native part of `setwise.fit`: single steps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use setwise::data::{Epochs, Examples};
use setwise::models::OutputKind;
use setwise::train::Training;
use setwise::{ModelConfig, train};

use crate::arrays::{Array, SetArgument, sequence};
use crate::errors::{Failure, exception, type_error, value_error};
use crate::estimate::to_u64;
use crate::model::Model;
use crate::options::{settings, with_settings};
use crate::pool::compute;

/// A training in progress. Every step updates the model.
///
/// `training` holds settings of the library's Training. `data` is a list of (sets, target) from which every step takes
/// a batch. Without `data`, every step needs a batch as its argument.
#[pyclass(frozen, module = "setwise._setwise")]
pub struct Fit {
    model: Py<Model>,
    state: Mutex<State>,
    /// Whether the model is reserved for this training.
    reserved: AtomicBool,
}

impl Drop for Fit {
    /// Python may be interrupted before it can call `close`.
    fn drop(&mut self) {
        self.close();
    }
}

struct State {
    fit: train::ScheduledTrainer,
    data: Option<(Examples, Epochs)>,
}

#[pymethods]
impl Fit {
    #[new]
    #[pyo3(signature = (model, training, seed, data=None))]
    fn new(
        py: Python<'_>,
        model: Py<Model>,
        training: &Bound<'_, PyDict>,
        seed: i128,
        data: Option<&Bound<'_, PyList>>,
    ) -> PyResult<Self> {
        let seed = to_u64("seed", seed)?;
        let training = with_settings(&Training::default(), settings(training)?)?;
        let shared = &model.get().shared;
        let data = match data {
            Some(list) if list.is_empty() => return Err(value_error("the data set has no examples")),
            Some(list) => {
                let examples = examples(py, list, shared.config())?;
                let epochs = Epochs::new(examples.len(), seed);
                Some((examples, epochs))
            }
            None => None,
        };
        let fit =
            compute(py, || train::ScheduledTrainer::new(shared.snapshot(), training, seed))?.map_err(exception)?;
        // This is the last call that can fail. `close` releases the model.
        model.get().reserve()?;
        Ok(Fit { model, state: Mutex::new(State { fit, data }), reserved: AtomicBool::new(true) })
    }

    /// Make one step; returns the loss before it, the norm of the gradient, and the learning rate.
    #[pyo3(signature = (batch=None))]
    fn step(&self, py: Python<'_>, batch: Option<&Bound<'_, PyList>>) -> PyResult<(f64, f64, f64)> {
        let shared = &self.model.get().shared;
        let batch = batch.map(|list| examples(py, list, shared.config())).transpose()?;
        compute(py, || {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let State { fit, data } = &mut *state;
            let size = fit.training().batch_size;
            let batch = match (batch, data) {
                (Some(batch), _) => batch,
                (None, Some((all, epochs))) => all.select(&epochs.next_indices(size.min(all.len()))),
                (None, None) => {
                    return Err(Failure::Value("step() needs a batch, because there is no data set".to_owned()));
                }
            };
            let (sets, targets) = batch.into_batch()?;
            let rate = fit.learning_rate();
            let outcome = fit.step(&sets, &targets)?;
            shared.update(fit.model());
            Ok((outcome.loss, outcome.gradient_norm, rate))
        })?
        .map_err(PyErr::from)
    }

    /// Release the model for another training.
    fn close(&self) {
        if self.reserved.swap(false, Ordering::AcqRel) {
            self.model.get().release();
        }
    }
}

/// An example as arrays of Python.
struct Example<'py> {
    sets: Vec<SetArgument<'py>>,
    targets: Vec<Array<'py>>,
}

/// Reads a list of (sets, target).
fn examples(py: Python<'_>, list: &Bound<'_, PyList>, config: &ModelConfig) -> PyResult<Examples> {
    let mut read = Vec::with_capacity(list.len());
    for (i, item) in list.iter().enumerate() {
        read.push(example(&item, config).map_err(|error| with_index(py, i, error))?);
    }
    let views: Vec<_> = read
        .iter()
        .map(|e| {
            let targets: Vec<_> = e.targets.iter().map(Array::view).collect();
            let views = e.sets.iter().flat_map(SetArgument::views).chain(targets.iter().copied()).collect::<Vec<_>>();
            let sets: Vec<_> = e.sets.iter().flat_map(SetArgument::sets).collect();
            (views, sets, targets)
        })
        .collect();
    let fill = || {
        let mut examples = Examples::new(config);
        for (i, (views, sets, targets)) in views.iter().enumerate() {
            let mut push = || -> Result<(), Failure> {
                views.iter().try_for_each(|v| v.check(true))?;
                let sets: Vec<_> = sets.iter().map(|s| (s.numbers.to_f32(), s.width)).collect();
                let targets: Vec<_> = targets.iter().map(|t| t.numbers.to_f32()).collect();
                let sets: Vec<(&[f32], usize)> = sets.iter().map(|(rows, width)| (&**rows, *width)).collect();
                Ok(examples.push(&sets, &targets.iter().map(|t| &**t).collect::<Vec<_>>())?)
            };
            push().map_err(|failure| (i, failure))?;
        }
        Ok(examples)
    };
    compute(py, fill)?.map_err(|(i, failure): (usize, Failure)| with_index(py, i, failure.into()))
}

/// The same exception with the index of the example in its message.
fn with_index(py: Python<'_>, example: usize, error: PyErr) -> PyErr {
    let text = format!("example {example}: {}", error.value(py));
    if !error.is_instance_of::<PyException>(py) {
        return error;
    }
    match error.get_type(py).call1((text,)) {
        Ok(named) => PyErr::from_value(named),
        Err(_) => error,
    }
}

fn example<'py>(item: &Bound<'py, PyAny>, config: &ModelConfig) -> PyResult<Example<'py>> {
    let pair = item.cast::<PyTuple>().ok().filter(|t| t.len() == 2);
    let Some(pair) = pair else {
        return Err(type_error(format!("is of type {}; must be a tuple (sets, target)", item.get_type().name()?)));
    };
    let (sets, target) = (pair.get_item(0)?, pair.get_item(1)?);
    let read = |(k, set): (usize, &Bound<'py, PyAny>)| {
        let argument = SetArgument::read(set, &format!("sets[{k}]"))?;
        match argument.single {
            true => Ok(argument),
            false => Err(value_error(format!("sets[{k}]: is a batch of sets; must be one set [rows, columns]"))),
        }
    };
    let sets = items_per_set(&sets, config.sets, "sets")?;
    let per_element = config.output == OutputKind::Equivariant;
    let targets = if per_element { items_per_set(&target, config.sets, "target")? } else { vec![target] };
    let name = |k: usize| if per_element { format!("target[{k}]") } else { "target".to_owned() };
    Ok(Example {
        sets: sets.iter().enumerate().map(read).collect::<PyResult<_>>()?,
        targets: targets.iter().enumerate().map(|(k, t)| Array::read(t, name(k))).collect::<PyResult<_>>()?,
    })
}

/// The items of a list with an item for each of `count` sets. A single set needs no list.
fn items_per_set<'py>(object: &Bound<'py, PyAny>, count: usize, name: &str) -> PyResult<Vec<Bound<'py, PyAny>>> {
    match sequence(object) {
        Some(items) if items.len() == count => Ok(items),
        Some(items) => Err(value_error(format!("{name}: has {} items, the model takes {count} sets", items.len()))),
        None if count == 1 => Ok(vec![object.clone()]),
        None => Err(type_error(format!(
            "{name}: is of type {}; must be a list or tuple with an array for each of {count} sets",
            object.get_type().name()?
        ))),
    }
}
