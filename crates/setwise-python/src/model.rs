//! `Model`: created, loaded, saved and called.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use numpy::{IntoPyArray, PyArrayMethods};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict, PyList, PyTuple, PyType};
use serde_json::{Map, Value};
use setwise::data::{Preparation, RawSet};
use setwise::models::{PRESETS, SharedModel};
use setwise::sets::{BatchView, SetView};
use setwise::{ModelConfig, Prediction, SetBatch};

use crate::arrays::{Set, SetArgument, Slice};
use crate::errors::{Failure, exception, type_error, value_error};
use crate::estimate::to_u64;
use crate::options::{python_name, settings, with_settings};
use crate::pool::compute;

/// A model of a function of several sets.
///
/// ``Model.create`` and ``Model.load`` make one, ``setwise.fit`` trains it, and a call with one argument per set
/// predicts. Many threads may call one model at once.
///
/// Examples
/// --------
/// >>> import numpy as np, setwise
/// >>> model = setwise.Model.create("multi-set-transformer", dim=3, latent=16, hidden=32, blocks=2)
/// >>> x, y = np.ones((5, 3)), np.zeros((7, 3))
/// >>> answer = model(x, y)                   # one example: a number
/// >>> model([x, y, x], [y, y, x]).shape      # three examples, every set of its own size: an array
/// (3,)
/// >>> np.allclose(model(x[::-1], y), answer) # the order of the rows does not matter
/// True
#[pyclass(frozen, module = "setwise")]
pub struct Model {
    pub shared: SharedModel,
    /// Whether a training has reserved the model.
    reserved: AtomicBool,
}

impl Model {
    fn of(model: setwise::Model) -> Self {
        Model { shared: SharedModel::new(model), reserved: AtomicBool::new(false) }
    }

    /// Reserves the model for one training at a time.
    pub fn reserve(&self) -> PyResult<()> {
        match self.reserved.swap(true, Ordering::AcqRel) {
            true => Err(PyRuntimeError::new_err("the model is in training; run one fit at a time")),
            false => Ok(()),
        }
    }

    /// Releases a reserved model.
    pub fn release(&self) {
        self.reserved.store(false, Ordering::Release);
    }
}

#[pymethods]
impl Model {
    /// Create a model with random parameters.
    ///
    /// Parameters
    /// ----------
    /// preset : str
    ///     An architecture of ``setwise.presets()``.
    /// dim : int, optional
    ///     Columns of the sets. Not needed with ``input_widths``, the columns of each set, or if the architecture takes
    ///     any number of columns.
    /// seed : int
    ///     Seed of the parameters.
    /// **config
    ///     Fields of the config that differ from the preset's, such as ``sets``, ``latent``, ``hidden``, ``blocks``,
    ///     ``heads``, ``pooling``, ``output_width`` or ``output="equivariant"``. ``Model.config`` has all fields.
    ///
    /// Examples
    /// --------
    /// >>> import setwise
    /// >>> model = setwise.Model.create("cross-only", dim=2, sets=3, latent=8, hidden=16)
    /// >>> model.config["input_widths"]
    /// [2, 2, 2]
    #[staticmethod]
    #[pyo3(signature = (preset="multi-set-transformer", dim=None, *, seed=0, **config))]
    fn create(
        py: Python<'_>,
        preset: &str,
        dim: Option<i128>,
        seed: i128,
        config: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let seed = to_u64("seed", seed)?;
        let fields = config.map(settings).transpose()?.unwrap_or_default();
        let max_width = || fields.get("input-widths")?.as_array()?.iter().filter_map(Value::as_u64).max();
        let dim = match dim {
            Some(dim) => Some(to_u64("dim", dim)?),
            None => max_width(),
        };
        let config = ModelConfig::preset(preset, dim.unwrap_or(1).try_into()?).map_err(exception)?;
        if dim.is_none() && !config.dimension_equivariant {
            return Err(type_error("create() needs dim, the number of columns of the sets, or input_widths"));
        }
        let config = with_fields(config, fields)?.validate().map_err(exception)?;
        compute(py, || Model::of(setwise::Model::new(config, seed)))
    }

    /// Read a model file (safetensors) of ``Model.save`` or the command line.
    ///
    /// Examples
    /// --------
    /// >>> import os, setwise, tempfile
    /// >>> model = setwise.Model.create("pine", dim=2)
    /// >>> with tempfile.TemporaryDirectory() as folder:
    /// ...     model.save(os.path.join(folder, "model.safetensors"))
    /// ...     same = setwise.Model.load(os.path.join(folder, "model.safetensors"))
    /// >>> same.config == model.config
    /// True
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| setwise::Model::load(&path)).map(Model::of).map_err(exception)
    }

    /// Write a model file (safetensors). An existing file is replaced only by a complete one.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.shared.snapshot().save(&path)).map_err(exception)
    }

    /// The config of the model as a dict.
    #[getter]
    fn config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let config: &ModelConfig = self.shared.config();
        let value = serde_json::to_value(config).map_err(|e| value_error(e.to_string()))?;
        let fields = value.as_object().into_iter().flatten();
        let named: Map<String, Value> = fields.map(|(k, v)| (python_name(k), v.clone())).collect();
        py.import("json")?.call_method1("loads", (Value::Object(named).to_string(),))
    }

    /// Number of parameters.
    #[getter]
    fn parameters(&self) -> usize {
        self.shared.snapshot().params().len()
    }

    /// Predict for one example or for a batch.
    ///
    /// There is one argument per set. For one example it is an array [rows, columns]. For a batch it is an array
    /// [examples, rows, columns] or a list of arrays [rows, columns].
    ///
    /// A model with one output per example returns a number, or a vector if ``output_width`` is above one. A batch
    /// gives an array of these. A model with outputs per element returns a tuple with an array for each set. A batch
    /// gives a list of these. Numbers are of type float32.
    ///
    /// Sets of a model of ``setwise train`` are prepared as in training, for instance whitened. Its outputs are
    /// transformed to the unit of the labels, as by ``setwise predict``. With ``raw=True`` sets and outputs are those
    /// of the network. A model of ``setwise.fit`` takes sets as in its training.
    #[pyo3(signature = (*sets, raw=false))]
    fn __call__<'py>(&self, py: Python<'py>, sets: &Bound<'py, PyTuple>, raw: bool) -> PyResult<Bound<'py, PyAny>> {
        let expected = self.shared.config().sets;
        if sets.len() != expected {
            return Err(type_error(format!("the model takes {expected} sets, {} given", sets.len())));
        }
        let read = |(k, set): (usize, Bound<'py, PyAny>)| SetArgument::read(&set, &format!("sets[{k}]"));
        let arguments = sets.iter().enumerate().map(read).collect::<PyResult<Vec<SetArgument>>>()?;
        let (single, examples) = (arguments[0].single, arguments[0].examples());
        for (k, other) in arguments.iter().enumerate() {
            if other.single != single {
                return Err(value_error(format!(
                    "sets[0] and sets[{k}]: one is a batch, the other a single set; give batches for all sets or for none"
                )));
            }
            if other.examples() != examples {
                let found = other.examples();
                return Err(value_error(format!("sets[0] has {examples} examples, sets[{k}] has {found}")));
            }
        }
        let views: Vec<_> = arguments.iter().flat_map(SetArgument::views).collect();
        let sets: Vec<Vec<Set>> = arguments.iter().map(SetArgument::sets).collect();
        let slices: Vec<Option<Slice>> = arguments.iter().map(SetArgument::contiguous).collect();
        let preparation = match raw {
            true => Preparation::identity(),
            false => self.shared.with_metadata(Preparation::from_metadata).map_err(|e| {
                value_error(format!("cannot prepare sets as in training: {e}; raw=True predicts without preparation"))
            })?,
        };
        let predictions = compute(py, || -> Result<Prediction, Failure> {
            views.iter().try_for_each(|v| v.check(preparation.is_identity()))?;
            if !preparation.is_identity() {
                let prepared = prepared(&preparation, &sets)?;
                return Ok(preparation.decode(self.shared.predict(&prepared.view())?));
            }
            let pack = |(sets, slice): (&Vec<_>, &Option<_>)| Packed::of(sets, *slice);
            let packed = sets.iter().zip(&slices).map(pack).collect::<Result<Vec<_>, _>>()?;
            let sets = packed.iter().map(|p| SetView { data: &p.data, width: p.width, offsets: &p.offsets }).collect();
            Ok(self.shared.predict(&BatchView { sets })?)
        })??;
        if predictions.per_element() {
            let each = (0..examples).map(|i| per_element(py, &predictions, i, sets.len()));
            let mut each = each.collect::<PyResult<Vec<_>>>()?;
            return match each.pop() {
                Some(only) if single => Ok(only.into_any()),
                last => Ok(PyList::new(py, each.into_iter().chain(last))?.into_any()),
            };
        }
        let shape = if predictions.width() == 1 { vec![examples] } else { vec![examples, predictions.width()] };
        let array = predictions.values().to_vec().into_pyarray(py).reshape(shape)?;
        if single { array.get_item(0) } else { Ok(array.into_any()) }
    }

    fn __repr__(&self) -> String {
        let c = self.shared.config();
        let widths = match c.input_widths.as_slice() {
            [] => "any number of columns".to_owned(),
            [first, rest @ ..] if rest.iter().all(|w| w == first) => format!("{first} columns"),
            all => format!("{} columns", all.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
        };
        let json = |value: Result<Value, _>| value.ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
        format!(
            "<setwise.Model: {} sets of {widths}, {} output of width {}, {} with {} blocks, latent {}, {} parameters>",
            c.sets,
            json(serde_json::to_value(c.output)),
            c.output_width,
            json(serde_json::to_value(c.encoder)),
            c.blocks,
            c.latent,
            self.parameters()
        )
    }

    #[classmethod]
    fn _from_bytes(_class: &Bound<'_, PyType>, py: Python<'_>, bytes: &[u8]) -> PyResult<Self> {
        py.detach(|| setwise::Model::from_bytes("the pickled model", bytes)).map(Model::of).map_err(exception)
    }

    /// A model is pickled as the content of its file.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let bytes = slf.get().shared.snapshot().to_bytes();
        Ok((slf.get_type().getattr("_from_bytes")?, (PyBytes::new(slf.py(), &bytes),)))
    }
}

/// One set of all examples, one after another. One array is not copied.
struct Packed<'a> {
    data: Cow<'a, [f32]>,
    width: usize,
    offsets: Vec<usize>,
}

impl<'a> Packed<'a> {
    fn of(sets: &[Set<'a>], slice: Option<Slice<'a>>) -> Result<Self, Failure> {
        let (width, offsets) = layout(sets)?;
        let concatenate = || sets.iter().flat_map(|s| s.numbers.to_f32().into_owned()).collect();
        Ok(Packed { data: slice.map_or_else(concatenate, Slice::to_f32), width, offsets })
    }
}

/// The columns of one set of all examples, which must be equal, and the offsets of their rows.
fn layout(sets: &[Set]) -> Result<(usize, Vec<usize>), Failure> {
    let width = sets[0].width;
    if let Some(other) = sets.iter().find(|s| s.width != width) {
        return Err(Failure::Value(format!(
            "{} has {} columns, {} has {width}; sets of a batch must have the same columns",
            other.name, other.width, sets[0].name
        )));
    }
    let mut offsets = vec![0];
    for set in sets {
        offsets.push(offsets[offsets.len() - 1] + set.rows());
    }
    Ok((width, offsets))
}

/// The sets of all examples, prepared as in training.
fn prepared(preparation: &Preparation, sets: &[Vec<Set>]) -> Result<SetBatch, Failure> {
    let (mut raw_sets, mut widths) = (Vec::new(), Vec::new());
    for sets in sets {
        let (width, offsets) = layout(sets)?;
        if let Some(empty) = sets.iter().find(|s| s.rows() == 0) {
            return Err(Failure::Value(format!("{}: has no rows", empty.name)));
        }
        raw_sets.push(RawSet { rows: sets.iter().flat_map(|s| s.numbers.to_f64().into_owned()).collect(), offsets });
        widths.push(width);
    }
    let names: Vec<String> = (0..sets.len()).map(|k| format!("sets[{k}]")).collect();
    Ok(preparation.pack(raw_sets, &widths, &names)?)
}

/// The outputs of the elements of one example, as an array for each set.
fn per_element<'py>(
    py: Python<'py>,
    predictions: &Prediction,
    example: usize,
    sets: usize,
) -> PyResult<Bound<'py, PyTuple>> {
    let array = |set: usize| {
        let (values, width) = (predictions.set(example, set), predictions.width());
        let rows = values.len() / width;
        let shape = if width == 1 { vec![rows] } else { vec![rows, width] };
        values.to_vec().into_pyarray(py).reshape(shape)
    };
    PyTuple::new(py, (0..sets).map(array).collect::<PyResult<Vec<_>>>()?)
}

/// A config with some fields replaced.
fn with_fields(mut config: ModelConfig, fields: Map<String, Value>) -> PyResult<ModelConfig> {
    if let Some(sets) = fields.get("sets").and_then(Value::as_u64) {
        config = config.with_sets(sets.try_into()?);
    }
    let all = serde_json::to_value(&config).unwrap_or_default();
    if let Some(other) = fields.keys().find(|key| all.get(key).is_none()) {
        let known =
            all.as_object().into_iter().flat_map(Map::keys).map(|k| python_name(k)).collect::<Vec<_>>().join(", ");
        let other = python_name(other);
        return Err(type_error(format!(
            "create() got {other:?}, which is not a field of a config; the fields are {known}"
        )));
    }
    with_settings(&config, fields)
}

/// Names and summaries of the preset architectures.
///
/// Examples
/// --------
/// >>> import setwise
/// >>> setwise.presets()["cross-only"]
/// 'transformer blocks on pairs of different sets only'
#[pyfunction]
pub fn presets(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    PRESETS.map(|p| (p.name, p.summary)).into_py_dict(py)
}
