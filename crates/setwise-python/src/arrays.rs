//! Array-like objects as slices.
//!
//! NumPy arrays of f32 and f64 in C order are read in place. NumPy converts everything else: other number types,
//! strides and byte orders, lists, objects with `__dlpack__` (PyTorch), `__array__` or `to_numpy` (pandas, polars).
//! Other number types become f64.

use std::borrow::Cow;

use numpy::{
    PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyFloat, PyInt, PyList, PyTuple};

use crate::errors::{Failure, type_error, value_error};

/// An array of Python or a scalar, row-major.
enum Numbers<'py> {
    F32(PyReadonlyArrayDyn<'py, f32>),
    F64(PyReadonlyArrayDyn<'py, f64>),
    Scalar([f64; 1]),
}

/// Numbers that other threads may read.
#[derive(Clone, Copy)]
pub enum Slice<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
}

impl<'a> Slice<'a> {
    fn len(self) -> usize {
        match self {
            Slice::F32(x) => x.len(),
            Slice::F64(x) => x.len(),
        }
    }

    fn slice(self, range: std::ops::Range<usize>) -> Self {
        match self {
            Slice::F32(x) => Slice::F32(&x[range]),
            Slice::F64(x) => Slice::F64(&x[range]),
        }
    }

    /// The numbers as f64.
    pub fn to_f64(self) -> Cow<'a, [f64]> {
        match self {
            Slice::F32(x) => x.iter().map(|&x| f64::from(x)).collect(),
            Slice::F64(x) => Cow::Borrowed(x),
        }
    }

    /// The numbers as f32.
    pub fn to_f32(self) -> Cow<'a, [f32]> {
        match self {
            Slice::F32(x) => Cow::Borrowed(x),
            Slice::F64(x) => x.iter().map(|&x| x as f32).collect(),
        }
    }

    /// Index and value of the first number that is not finite; with `as_f32`, that is not finite as f32.
    fn first_non_finite(self, as_f32: bool) -> Option<(usize, f64)> {
        match self {
            Slice::F32(x) => x.iter().position(|x| !x.is_finite()).map(|i| (i, f64::from(x[i]))),
            Slice::F64(x) if as_f32 => x.iter().position(|&x| !(x as f32).is_finite()).map(|i| (i, x[i])),
            Slice::F64(x) => x.iter().position(|x| !x.is_finite()).map(|i| (i, x[i])),
        }
    }
}

/// An array argument with its name in messages.
pub struct Array<'py> {
    numbers: Numbers<'py>,
    shape: Vec<usize>,
    name: String,
}

/// An array argument that other threads may read.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// All numbers, row-major.
    pub numbers: Slice<'a>,
    shape: &'a [usize],
    name: &'a str,
}

impl<'py> Array<'py> {
    /// Reads anything array-like.
    pub fn read(object: &Bound<'py, PyAny>, name: String) -> PyResult<Self> {
        if object.is_instance_of::<PyFloat>() || object.is_instance_of::<PyInt>() {
            return Ok(Array::new(Numbers::Scalar([object.extract()?]), name));
        }
        if let Some(numbers) = in_place(object) {
            return Ok(Array::new(numbers, name));
        }
        let array = to_array(object, &name)?;
        let kind: char = array.dtype().kind().into();
        let reason = match kind {
            'b' | 'i' | 'u' | 'f' => None,
            'O' => Some("holds Python objects (dtype object); convert numbers with .astype(float)"),
            'c' => Some("holds complex numbers; must hold real numbers"),
            'U' | 'S' | 'T' => Some("holds text; must hold numbers"),
            'M' | 'm' => Some("holds times; must hold numbers"),
            _ => Some("has an unsupported dtype; must hold numbers"),
        };
        if let Some(reason) = reason {
            return Err(type_error(format!("{name}: {reason}")));
        }
        let py = object.py();
        let dtype = if array.dtype().is_equiv_to(&numpy::dtype::<f32>(py)) { "f4" } else { "f8" };
        let contiguous = py
            .import(intern!(py, "numpy"))?
            .call_method1(intern!(py, "require"), (array, dtype, ["C_CONTIGUOUS", "ALIGNED", "ENSUREARRAY"]))?;
        let numbers = in_place(&contiguous).ok_or_else(|| type_error(format!("{name}: cannot be read as numbers")))?;
        Ok(Array::new(numbers, name))
    }

    fn new(numbers: Numbers<'py>, name: String) -> Self {
        let shape = match &numbers {
            Numbers::F32(x) => x.shape().to_vec(),
            Numbers::F64(x) => x.shape().to_vec(),
            Numbers::Scalar(_) => Vec::new(),
        };
        Array { numbers, shape, name }
    }

    /// The array for other threads to read.
    pub fn view(&self) -> View<'_> {
        let contiguous = "an array in C order is a slice";
        let numbers = match &self.numbers {
            Numbers::F32(x) => Slice::F32(x.as_slice().expect(contiguous)),
            Numbers::F64(x) => Slice::F64(x.as_slice().expect(contiguous)),
            Numbers::Scalar(x) => Slice::F64(x),
        };
        View { numbers, shape: &self.shape, name: &self.name }
    }
}

impl View<'_> {
    /// Refuses an empty array, and numbers that are not finite, with their indices.
    ///
    /// With `as_f32`, numbers must be finite as f32.
    pub fn check(&self, as_f32: bool) -> Result<(), Failure> {
        if self.numbers.len() == 0 {
            return Err(Failure::Value(format!("{}: is empty, its shape is {}", self.name, shape_text(self.shape))));
        }
        let Some((position, value)) = self.numbers.first_non_finite(as_f32) else { return Ok(()) };
        let mut rest = position;
        let mut index = Vec::with_capacity(self.shape.len());
        for n in self.shape.iter().rev() {
            index.insert(0, rest % n);
            rest /= n;
        }
        let indices = index.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        // Python indices count from 0. Rows and columns of messages count from 1.
        let entry = match *index {
            [.., i, j] => format!("{}[{indices}] (row {}, column {})", self.name, i + 1, j + 1),
            [i] => format!("{}[{indices}] (row {})", self.name, i + 1),
            [] => self.name.to_owned(),
        };
        Err(Failure::Value(match value.is_finite() {
            true => format!("{entry} is {value:e}, too large for float32"),
            false => {
                let value = value.to_string().to_lowercase();
                format!("{entry} is {value}; every value must be a finite number")
            }
        }))
    }
}

/// An array that can be read without a copy.
fn in_place<'py>(object: &Bound<'py, PyAny>) -> Option<Numbers<'py>> {
    // Subclasses are excluded: masked arrays and matrices interpret their data differently.
    let array = object.cast_exact::<PyUntypedArray>().ok().filter(|a| a.is_c_contiguous() && a.is_aligned())?;
    if let Ok(x) = array.cast::<PyArrayDyn<f64>>() {
        return x.try_readonly().ok().map(Numbers::F64);
    }
    array.cast::<PyArrayDyn<f32>>().ok()?.try_readonly().ok().map(Numbers::F32)
}

/// An object as a NumPy array.
fn to_array<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = object.py();
    let array = through_numpy(object).map_err(|error| {
        if !error.is_instance_of::<PyException>(py) {
            return error;
        }
        let raised = match sequence(object) {
            Some(_) => value_error(format!("{name}: its rows do not form an array: {}", error.value(py))),
            None => type_error(format!("{name}: cannot be read as an array: {}", error.value(py))),
        };
        raised.set_cause(py, Some(error));
        raised
    })?;
    array.cast_into::<PyUntypedArray>().map_err(|_| type_error(format!("{name}: is not an array")))
}

fn through_numpy<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let numpy = py.import(intern!(py, "numpy"))?;
    if object.is_instance_of::<PyUntypedArray>() {
        // Masked numbers become NaN, which `check` refuses.
        if object.hasattr(intern!(py, "mask"))? {
            return object.call_method1("astype", ("f8",))?.call_method1("filled", (f64::NAN,));
        }
        return Ok(object.clone());
    }
    let frame = object.hasattr(intern!(py, "to_numpy"))?;
    if !frame && object.hasattr(intern!(py, "__dlpack__"))? {
        return numpy.call_method1(intern!(py, "from_dlpack"), (object,));
    }
    // A list of masked rows is masked.
    let masked =
        |item: &Bound<'py, PyAny>| item.is_instance_of::<PyUntypedArray>() && item.hasattr("mask").unwrap_or(false);
    if sequence(object).is_some_and(|items| items.iter().any(masked)) {
        return through_numpy(&numpy.getattr("ma")?.call_method1("stack", (object,))?);
    }
    let array = numpy.call_method1(intern!(py, "asarray"), (object,))?;
    // Nullable columns become objects unless `to_numpy` gets a dtype. Text and times stay objects.
    if frame && array.getattr("dtype")?.getattr("kind")?.eq("O")? && are_numbers(&array)? {
        let options = [("dtype", "f8")].into_py_dict(py)?;
        return match object.call_method("to_numpy", (), Some(&options)) {
            Err(error) if error.is_instance_of::<PyException>(py) => Ok(array),
            converted => converted,
        };
    }
    Ok(array)
}

/// Whether the objects of an array are numbers or missing values.
///
/// Text and times are neither, although frames would convert them to numbers.
fn are_numbers(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    for item in array.getattr("flat")?.try_iter()? {
        let item = item?;
        let missing = item.is_none() || item.get_type().name()?.to_string_lossy() == "NAType";
        if !missing && !item.hasattr(intern!(array.py(), "__float__"))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A shape in Python's notation.
fn shape_text(shape: &[usize]) -> String {
    match shape {
        [n] => format!("({n},)"),
        _ => format!("({})", shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// A set argument: one set, or a batch with one set per example.
pub struct SetArgument<'py> {
    arrays: Vec<Array<'py>>,
    /// Examples, rows and columns of each array.
    shapes: Vec<[usize; 3]>,
    /// Whether the argument is one set. A batch may have a single example.
    pub single: bool,
}

/// One set that other threads may read.
pub struct Set<'a> {
    /// Row-major.
    pub numbers: Slice<'a>,
    /// Numbers in a row.
    pub width: usize,
    /// Its name in messages.
    pub name: Cow<'a, str>,
}

impl<'py> SetArgument<'py> {
    /// Reads a set; fails for a batch.
    pub fn read_single(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Self> {
        let set = Self::read(object, name)?;
        match set.single {
            true => Ok(set),
            false => Err(value_error(format!("{name} is a batch of samples; give a single one"))),
        }
    }

    /// Reads a set or a batch.
    ///
    /// A set is an array with one axis (one column) or two axes. A batch is an array with three axes, or a list of
    /// arrays with two axes.
    pub fn read(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Self> {
        let wrong_shape = |array: &Array, expected: &str| {
            value_error(format!("{}: has shape {}; {expected}", array.name, shape_text(&array.shape)))
        };
        if let Some(items) = batch_items(object)? {
            let read = |(i, item)| Array::read(item, format!("{name}[{i}]"));
            let arrays = items.iter().enumerate().map(read).collect::<PyResult<Vec<_>>>()?;
            let shape = |array: &Array| match *array.shape {
                [n, d] => Ok([1, n, d]),
                _ => Err(wrong_shape(array, "in a batch every set is [rows, columns]")),
            };
            let shapes = arrays.iter().map(shape).collect::<PyResult<_>>()?;
            return Ok(SetArgument { arrays, shapes, single: false });
        }
        let array = Array::read(object, name.to_owned())?;
        let (shape, single) = match *array.shape {
            [n] => ([1, n, 1], true),
            [n, d] => ([1, n, d], true),
            [b, n, d] => ([b, n, d], false),
            _ => {
                return Err(wrong_shape(
                    &array,
                    "a set is [rows, columns], a batch [examples, rows, columns] or a list of sets",
                ));
            }
        };
        Ok(SetArgument { arrays: vec![array], shapes: vec![shape], single })
    }

    /// Number of examples.
    pub fn examples(&self) -> usize {
        self.shapes.iter().map(|s| s[0]).sum()
    }

    /// The arrays of the argument.
    pub fn views(&self) -> Vec<View<'_>> {
        self.arrays.iter().map(Array::view).collect()
    }

    /// All sets as one slice, if the argument is one array.
    pub fn contiguous(&self) -> Option<Slice<'_>> {
        match &self.arrays[..] {
            [only] => Some(only.view().numbers),
            _ => None,
        }
    }

    /// The set of each example.
    pub fn sets(&self) -> Vec<Set<'_>> {
        let mut sets = Vec::with_capacity(self.examples());
        for (array, &[examples, rows, width]) in self.arrays.iter().zip(&self.shapes) {
            let numbers = array.view().numbers;
            for i in 0..examples {
                let stacked = array.shape.len() == 3;
                let name = if stacked { format!("{}[{i}]", array.name).into() } else { Cow::from(&array.name) };
                sets.push(Set { numbers: numbers.slice(i * rows * width..(i + 1) * rows * width), width, name });
            }
        }
        sets
    }
}

impl Set<'_> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.numbers.len().checked_div(self.width).unwrap_or(0)
    }
}

/// The items of a list or tuple of sets. None if the items are rows or numbers.
fn batch_items<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
    let Some(items) = sequence(object) else { return Ok(None) };
    match items.first() {
        Some(first) if depth(first)? >= 2 => Ok(Some(items)),
        _ => Ok(None),
    }
}

/// The items of a list or tuple.
pub fn sequence<'py>(object: &Bound<'py, PyAny>) -> Option<Vec<Bound<'py, PyAny>>> {
    if let Ok(list) = object.cast::<PyList>() {
        return Some(list.iter().collect());
    }
    object.cast::<PyTuple>().ok().map(|tuple| tuple.iter().collect())
}

/// Number of axes of an object as an array, by its first items.
fn depth(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    // The limit ends the loop if a list holds itself.
    let (mut object, mut lists) = (object.clone(), 0);
    while lists < 8
        && let Some(first) = sequence(&object).and_then(|items| items.into_iter().next())
    {
        (object, lists) = (first, lists + 1);
    }
    match object.getattr_opt(intern!(object.py(), "shape"))? {
        Some(shape) => Ok(lists + shape.len()?),
        None => Ok(lists),
    }
}
