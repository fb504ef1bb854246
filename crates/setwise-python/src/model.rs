//! `Model`: made, loaded, saved and asked.

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

use crate::arrays::{Given, Set, Slice};
use crate::errors::{Failure, raised, type_error, value_error};
use crate::estimate::whole;
use crate::options::{changed, python_name, settings};
use crate::pool::compute;

/// A function of several sets: fresh, learnt or loaded.
///
/// Make one with ``Model.create`` or ``Model.load``, let it learn with ``setwise.fit``, and call it with one argument
/// per set. Many threads may call one model at once.
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
    learning: AtomicBool,
}

impl Model {
    fn of(model: setwise::Model) -> Self {
        Model { shared: SharedModel::new(model), learning: AtomicBool::new(false) }
    }

    /// Reserves the model for one training at a time.
    pub fn begin_learning(&self) -> PyResult<()> {
        match self.learning.swap(true, Ordering::AcqRel) {
            true => Err(PyRuntimeError::new_err("the model is learning already; one fit at a time")),
            false => Ok(()),
        }
    }

    /// Ends what [`Model::begin_learning`] began.
    pub fn end_learning(&self) {
        self.learning.store(false, Ordering::Release);
    }
}

#[pymethods]
impl Model {
    /// Make a model with fresh parameters.
    ///
    /// Parameters
    /// ----------
    /// preset : str
    ///     An architecture of ``setwise.presets()``.
    /// dim : int, optional
    ///     Columns of the sets. Not needed where ``input_widths`` gives those of each set, or the architecture takes any.
    /// seed : int
    ///     Seed of the parameters.
    /// **config
    ///     Fields of the config that are to differ from the preset's, such as ``sets``, ``latent``, ``hidden``, ``blocks``,
    ///     ``heads``, ``pooling``, ``output_width`` or ``output="equivariant"``; ``Model.config`` shows all.
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
        let seed = whole("seed", seed)?;
        let fields = config.map(settings).transpose()?.unwrap_or_default();
        let widest = || fields.get("input-widths")?.as_array()?.iter().filter_map(Value::as_u64).max();
        let dim = match dim {
            Some(dim) => Some(whole("dim", dim)?),
            None => widest(),
        };
        let config = ModelConfig::preset(preset, dim.unwrap_or(1).try_into()?).map_err(raised)?;
        if dim.is_none() && !config.dimension_equivariant {
            return Err(type_error("create() needs dim, the number of columns of the sets, or input_widths"));
        }
        let config = overlaid(config, fields)?.validate().map_err(raised)?;
        compute(py, || Model::of(setwise::Model::new(config, seed)))
    }

    /// Read a model file (safetensors), as ``Model.save`` and the command line write it.
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
        py.detach(|| setwise::Model::load(&path)).map(Model::of).map_err(raised)
    }

    /// Write a model file (safetensors); an old file is replaced only when the new one is complete.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.shared.snapshot().save(&path)).map_err(raised)
    }

    /// Everything the model is made of but its parameters, as a dict.
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

    /// Answer for one example, or for a batch of them.
    ///
    /// One argument per set: an array [rows, columns] each for one example, an array [examples, rows, columns] or a list of
    /// arrays [rows, columns] each for a batch. A model that answers per example gives a number, or a vector where its
    /// ``output_width`` is above one; a batch an array of these. A model that answers per element gives a tuple with an
    /// array for each set; a batch a list of these. Numbers are of type float32.
    ///
    /// For a model of ``setwise train`` sets are prepared as they were in training (whitened together, for instance), and its
    /// answers are told in the unit of the labels, as ``setwise predict`` does; with ``raw=True`` sets and answers are the
    /// network's own. A model that has learnt by ``setwise.fit`` takes sets as it was given them there.
    #[pyo3(signature = (*sets, raw=false))]
    fn __call__<'py>(&self, py: Python<'py>, sets: &Bound<'py, PyTuple>, raw: bool) -> PyResult<Bound<'py, PyAny>> {
        let wanted = self.shared.config().sets;
        if sets.len() != wanted {
            return Err(type_error(format!("the model takes {wanted} sets, {} given", sets.len())));
        }
        let read = |(k, set): (usize, Bound<'py, PyAny>)| Given::read(&set, &format!("sets[{k}]"));
        let given = sets.iter().enumerate().map(read).collect::<PyResult<Vec<Given>>>()?;
        let (single, examples) = (given[0].single, given[0].examples());
        for (k, other) in given.iter().enumerate() {
            if other.single != single {
                return Err(value_error(format!(
                    "sets[0] and sets[{k}]: one is a batch, the other a single set; all must be one or the other"
                )));
            }
            if other.examples() != examples {
                let found = other.examples();
                return Err(value_error(format!("sets[0] has {examples} examples, sets[{k}] has {found}")));
            }
        }
        let views: Vec<_> = given.iter().flat_map(Given::views).collect();
        let sets: Vec<Vec<Set>> = given.iter().map(Given::sets).collect();
        let wholes: Vec<Option<Slice>> = given.iter().map(Given::whole).collect();
        let preparation = match raw {
            true => Preparation::identity(),
            false => self.shared.with_metadata(Preparation::from_metadata).map_err(|e| {
                value_error(format!(
                    "the model's experiment cannot be followed: {e}; raw=True takes sets and answers as they are"
                ))
            })?,
        };
        let answers = compute(py, || -> Result<Prediction, Failure> {
            views.iter().try_for_each(|v| v.check(preparation.is_identity()))?;
            if !preparation.is_identity() {
                let prepared = prepared(&preparation, &sets)?;
                return Ok(preparation.decode(self.shared.predict(&prepared.view())?));
            }
            let pack = |(sets, whole): (&Vec<_>, &Option<_>)| Packed::of(sets, *whole);
            let packed = sets.iter().zip(&wholes).map(pack).collect::<Result<Vec<_>, _>>()?;
            let sets = packed.iter().map(|p| SetView { data: &p.data, width: p.width, offsets: &p.offsets }).collect();
            Ok(self.shared.predict(&BatchView { sets })?)
        })??;
        if answers.per_element() {
            let counts = |example: usize| sets.iter().map(move |s| s[example].rows()).collect::<Vec<_>>();
            let each = (0..examples).map(|i| per_element(py, &answers, i, &counts(i)));
            let mut each = each.collect::<PyResult<Vec<_>>>()?;
            return match each.pop() {
                Some(only) if single => Ok(only.into_any()),
                last => Ok(PyList::new(py, each.into_iter().chain(last))?.into_any()),
            };
        }
        let shape = if answers.width() == 1 { vec![examples] } else { vec![examples, answers.width()] };
        let array = answers.values().to_vec().into_pyarray(py).reshape(shape)?;
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
        py.detach(|| setwise::Model::from_bytes("the pickled model", bytes)).map(Model::of).map_err(raised)
    }

    /// Models travel between processes as their file's content.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let bytes = slf.get().shared.snapshot().to_bytes();
        Ok((slf.get_type().getattr("_from_bytes")?, (PyBytes::new(slf.py(), &bytes),)))
    }
}

/// One set of all examples, one after another; not copied where they lie so already.
struct Packed<'a> {
    data: Cow<'a, [f32]>,
    width: usize,
    offsets: Vec<usize>,
}

impl<'a> Packed<'a> {
    fn of(sets: &[Set<'a>], whole: Option<Slice<'a>>) -> Result<Self, Failure> {
        let (width, offsets) = layout(sets)?;
        let joined = || sets.iter().flat_map(|s| s.numbers.single().into_owned()).collect();
        Ok(Packed { data: whole.map_or_else(joined, Slice::single), width, offsets })
    }
}

/// Columns of one set of all examples, which must be the same, and where the rows of each begin.
fn layout(sets: &[Set]) -> Result<(usize, Vec<usize>), Failure> {
    let width = sets[0].width;
    if let Some(other) = sets.iter().find(|s| s.width != width) {
        return Err(Failure::Value(format!(
            "{} has {} columns, {} has {width}: in a batch all must have the same",
            other.name, other.width, sets[0].name
        )));
    }
    let mut offsets = vec![0];
    for set in sets {
        offsets.push(offsets[offsets.len() - 1] + set.rows());
    }
    Ok((width, offsets))
}

/// The sets of all examples as a trained model expects them.
fn prepared(preparation: &Preparation, sets: &[Vec<Set>]) -> Result<SetBatch, Failure> {
    let (mut drawn, mut widths) = (Vec::new(), Vec::new());
    for sets in sets {
        let (width, offsets) = layout(sets)?;
        if let Some(empty) = sets.iter().find(|s| s.rows() == 0) {
            return Err(Failure::Value(format!("{}: has no rows", empty.name)));
        }
        drawn.push(RawSet { rows: sets.iter().flat_map(|s| s.numbers.double().into_owned()).collect(), offsets });
        widths.push(width);
    }
    let names: Vec<String> = (0..sets.len()).map(|k| format!("sets[{k}]")).collect();
    Ok(preparation.pack(drawn, &widths, &names)?)
}

/// The answers for the elements of one example, set by set.
fn per_element<'py>(
    py: Python<'py>,
    answers: &Prediction,
    example: usize,
    counts: &[usize],
) -> PyResult<Bound<'py, PyTuple>> {
    let (mut rest, width) = (answers.example(example), answers.width());
    let mut arrays = Vec::with_capacity(counts.len());
    for &rows in counts {
        let (part, after) = rest.split_at(rows * width);
        rest = after;
        let shape = if width == 1 { vec![rows] } else { vec![rows, width] };
        arrays.push(part.to_vec().into_pyarray(py).reshape(shape)?);
    }
    PyTuple::new(py, arrays)
}

/// A preset with some fields changed.
fn overlaid(mut config: ModelConfig, fields: Map<String, Value>) -> PyResult<ModelConfig> {
    if let Some(sets) = fields.get("sets").and_then(Value::as_u64) {
        config = config.with_sets(sets.try_into()?);
    }
    let all = serde_json::to_value(&config).unwrap_or_default();
    if let Some(other) = fields.keys().find(|key| all.get(key).is_none()) {
        let known =
            all.as_object().into_iter().flat_map(Map::keys).map(|k| python_name(k)).collect::<Vec<_>>().join(", ");
        let other = python_name(other);
        return Err(type_error(format!("create() got {other:?}, which is no field of a config; there are {known}")));
    }
    changed(&config, fields)
}

/// The names of the architectures a model can be created from, each with a line on what it is.
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
