//! What counts as an array, and how it is read.
//!
//! NumPy arrays of f32 and f64 in C order are read where they are. Everything else passes through NumPy once and becomes f64: other
//! number types, strides and byte orders, lists, objects with `__dlpack__` (PyTorch), `__array__` or `to_numpy` (pandas, polars).

use std::borrow::Cow;

use numpy::{
    PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyFloat, PyInt, PyList, PyTuple};

use crate::errors::{Failure, type_error, value_error};

/// Numbers as they lie in memory, row-major.
enum Numbers<'py> {
    Single(PyReadonlyArrayDyn<'py, f32>),
    Double(PyReadonlyArrayDyn<'py, f64>),
    One([f64; 1]),
}

/// Numbers that other threads may look at.
#[derive(Clone, Copy)]
pub enum Slice<'a> {
    Single(&'a [f32]),
    Double(&'a [f64]),
}

impl<'a> Slice<'a> {
    fn len(self) -> usize {
        match self {
            Slice::Single(x) => x.len(),
            Slice::Double(x) => x.len(),
        }
    }

    fn part(self, range: std::ops::Range<usize>) -> Self {
        match self {
            Slice::Single(x) => Slice::Single(&x[range]),
            Slice::Double(x) => Slice::Double(&x[range]),
        }
    }

    /// In double precision.
    pub fn double(self) -> Cow<'a, [f64]> {
        match self {
            Slice::Single(x) => x.iter().map(|&x| f64::from(x)).collect(),
            Slice::Double(x) => Cow::Borrowed(x),
        }
    }

    /// In single precision.
    pub fn single(self) -> Cow<'a, [f32]> {
        match self {
            Slice::Single(x) => Cow::Borrowed(x),
            Slice::Double(x) => x.iter().map(|&x| x as f32).collect(),
        }
    }

    /// The first number that is none, or has none in single precision where that is asked for.
    fn unfit(self, single: bool) -> Option<(usize, f64)> {
        match self {
            Slice::Single(x) => x.iter().position(|x| !x.is_finite()).map(|i| (i, f64::from(x[i]))),
            Slice::Double(x) if single => x.iter().position(|&x| !(x as f32).is_finite()).map(|i| (i, x[i])),
            Slice::Double(x) => x.iter().position(|x| !x.is_finite()).map(|i| (i, x[i])),
        }
    }
}

/// An array that was handed in, under the name messages call it by.
pub struct Array<'py> {
    numbers: Numbers<'py>,
    shape: Vec<usize>,
    name: String,
}

/// The same, for other threads to look at.
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
            return Ok(Array::new(Numbers::One([object.extract()?]), name));
        }
        if let Some(numbers) = in_place(object) {
            return Ok(Array::new(numbers, name));
        }
        let array = converted(object, &name)?;
        let kind: char = array.dtype().kind().into();
        let wrong = match kind {
            'b' | 'i' | 'u' | 'f' => None,
            'O' => {
                Some("holds Python objects (dtype object), numbers are wanted; if they are numbers, use .astype(float)")
            }
            'c' => Some("holds complex numbers, real ones are wanted"),
            'U' | 'S' | 'T' => Some("holds text, numbers are wanted"),
            'M' | 'm' => Some("holds times, numbers are wanted"),
            _ => Some("holds no plain numbers"),
        };
        if let Some(wrong) = wrong {
            return Err(type_error(format!("{name}: {wrong}")));
        }
        let py = object.py();
        let dtype = if array.dtype().is_equiv_to(&numpy::dtype::<f32>(py)) { "f4" } else { "f8" };
        let plain = py
            .import(intern!(py, "numpy"))?
            .call_method1(intern!(py, "require"), (array, dtype, ["C_CONTIGUOUS", "ALIGNED", "ENSUREARRAY"]))?;
        let numbers = in_place(&plain).ok_or_else(|| type_error(format!("{name}: could not be read as numbers")))?;
        Ok(Array::new(numbers, name))
    }

    fn new(numbers: Numbers<'py>, name: String) -> Self {
        let shape = match &numbers {
            Numbers::Single(x) => x.shape().to_vec(),
            Numbers::Double(x) => x.shape().to_vec(),
            Numbers::One(_) => Vec::new(),
        };
        Array { numbers, shape, name }
    }

    /// What other threads may look at.
    pub fn view(&self) -> View<'_> {
        let whole = "an array in C order is a slice";
        let numbers = match &self.numbers {
            Numbers::Single(x) => Slice::Single(x.as_slice().expect(whole)),
            Numbers::Double(x) => Slice::Double(x.as_slice().expect(whole)),
            Numbers::One(x) => Slice::Double(x),
        };
        View { numbers, shape: &self.shape, name: &self.name }
    }
}

impl View<'_> {
    /// Refuses an array without numbers, and numbers that are none, with their place. `single` if they must fit in single precision.
    pub fn check(&self, single: bool) -> Result<(), Failure> {
        if self.numbers.len() == 0 {
            return Err(Failure::Value(format!("{}: is empty, its shape is {}", self.name, shape_text(self.shape))));
        }
        let Some((place, value)) = self.numbers.unfit(single) else { return Ok(()) };
        let mut rest = place;
        let mut index = Vec::with_capacity(self.shape.len());
        for n in self.shape.iter().rev() {
            index.insert(0, rest % n);
            rest /= n;
        }
        let at = index.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        // Indices count from zero; rows and columns, as everywhere in setwise, from one.
        let place = match *index {
            [.., i, j] => format!("{}[{at}] (row {}, column {})", self.name, i + 1, j + 1),
            [i] => format!("{}[{at}] (row {})", self.name, i + 1),
            [] => self.name.to_owned(),
        };
        Err(Failure::Value(match value.is_finite() {
            true => format!("{place} is {value:e}, too large for a model's single precision"),
            false => {
                let value = value.to_string().to_lowercase();
                format!("{place} is {value}; every value must be a finite number")
            }
        }))
    }
}

/// An array that can be read where it is.
fn in_place<'py>(object: &Bound<'py, PyAny>) -> Option<Numbers<'py>> {
    // Not a subclass: masked arrays and matrices mean something else by their data.
    let array = object.cast_exact::<PyUntypedArray>().ok().filter(|a| a.is_c_contiguous() && a.is_aligned())?;
    if let Ok(x) = array.cast::<PyArrayDyn<f64>>() {
        return x.try_readonly().ok().map(Numbers::Double);
    }
    array.cast::<PyArrayDyn<f32>>().ok()?.try_readonly().ok().map(Numbers::Single)
}

/// What NumPy makes of an object.
fn converted<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = object.py();
    let array = through_numpy(object).map_err(|error| {
        if !error.is_instance_of::<PyException>(py) {
            return error;
        }
        let raised = match sequence(object) {
            Some(_) => value_error(format!("{name}: its rows do not make an array: {}", error.value(py))),
            None => type_error(format!("{name}: cannot be read as an array: {}", error.value(py))),
        };
        raised.set_cause(py, Some(error));
        raised
    })?;
    array.cast_into::<PyUntypedArray>().map_err(|_| type_error(format!("{name}: is no array")))
}

fn through_numpy<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let numpy = py.import(intern!(py, "numpy"))?;
    if object.is_instance_of::<PyUntypedArray>() {
        // Masked numbers are none.
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
    // Columns that may lack values come as objects unless asked for as numbers; text, times and missing values stay what they are.
    if frame && array.getattr("dtype")?.getattr("kind")?.eq("O")? && are_numbers(&array)? {
        let options = [("dtype", "f8")].into_py_dict(py)?;
        return match object.call_method("to_numpy", (), Some(&options)) {
            Err(error) if error.is_instance_of::<PyException>(py) => Ok(array),
            converted => converted,
        };
    }
    Ok(array)
}

/// Whether the objects of an array are numbers, or stand for missing ones; text and times are neither, though frames would turn them into some.
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

/// A shape as Python writes it.
fn shape_text(shape: &[usize]) -> String {
    match shape {
        [n] => format!("({n},)"),
        _ => format!("({})", shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// One set of every example: a single one, or a batch.
pub struct Given<'py> {
    arrays: Vec<Array<'py>>,
    /// Examples, rows and columns of each array.
    shapes: Vec<[usize; 3]>,
    /// Whether it is a single set, not a batch of one.
    pub single: bool,
}

/// One set, for other threads to look at.
pub struct Set<'a> {
    /// Row-major.
    pub numbers: Slice<'a>,
    /// Numbers in a row.
    pub width: usize,
    /// What messages call it.
    pub name: Cow<'a, str>,
}

impl<'py> Given<'py> {
    /// Reads a set, an array of one axis (rows of one number) or two (rows are elements), or a batch, an array of three axes or a list
    /// of arrays of two.
    pub fn read(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Self> {
        let wrong = |array: &Array, wanted: &str| {
            value_error(format!("{}: has shape {}; {wanted}", array.name, shape_text(&array.shape)))
        };
        if let Some(items) = batch_items(object)? {
            let read = |(i, item)| Array::read(item, format!("{name}[{i}]"));
            let arrays = items.iter().enumerate().map(read).collect::<PyResult<Vec<_>>>()?;
            let shape = |array: &Array| match *array.shape {
                [n, d] => Ok([1, n, d]),
                _ => Err(wrong(array, "in a batch every set is [rows, columns]")),
            };
            let shapes = arrays.iter().map(shape).collect::<PyResult<_>>()?;
            return Ok(Given { arrays, shapes, single: false });
        }
        let array = Array::read(object, name.to_owned())?;
        let (shape, single) = match *array.shape {
            [n] => ([1, n, 1], true),
            [n, d] => ([1, n, d], true),
            [b, n, d] => ([b, n, d], false),
            _ => {
                return Err(wrong(
                    &array,
                    "a set is [rows, columns], a batch [examples, rows, columns] or a list of sets",
                ));
            }
        };
        Ok(Given { arrays: vec![array], shapes: vec![shape], single })
    }

    /// Number of examples.
    pub fn examples(&self) -> usize {
        self.shapes.iter().map(|s| s[0]).sum()
    }

    /// The arrays as they were given, to be checked.
    pub fn views(&self) -> Vec<View<'_>> {
        self.arrays.iter().map(Array::view).collect()
    }

    /// All sets, where they lie one after another.
    pub fn whole(&self) -> Option<Slice<'_>> {
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
                sets.push(Set { numbers: numbers.part(i * rows * width..(i + 1) * rows * width), width, name });
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

/// The items of a list or tuple of sets; none if the items are rows or numbers.
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

/// Axes of what an object would be as an array, judged by its first items.
fn depth(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    // Nothing sensible is nested deeper; a list may hold itself.
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
