//! Frames as tables: anything with `__arrow_c_stream__`, pandas frames, dictionaries of arrays, arrays and files.

use std::path::PathBuf;

use pyo3::exceptions::{PyException, PyImportError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyString};
use setwise_table::arrow::{ArrowStream, read_stream};
use setwise_table::{Column, Table, Text, Values};

use crate::errors::{Failure, exception, type_error, value_error};
use crate::pool::compute;

/// A table from any argument that holds one.
pub fn read_table(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Table> {
    let py = object.py();
    if object.is_instance_of::<PyString>() || object.hasattr(intern!(py, "__fspath__"))? {
        let path: PathBuf = object.extract()?;
        let table = compute(py, || Table::read(&path).map_err(setwise::Error::from))?;
        return table.map_err(exception);
    }
    if let Some(stream) = arrow_stream(object, name)? {
        let table = compute(py, || {
            read_stream(name.into(), stream).map_err(|reason| Failure::Value(format!("{name}: {reason}")))
        })?;
        return Ok(without_index(table?));
    }
    let columns = named_columns(object, name)?;
    Table::of_columns(name.into(), columns, true).map_err(|reason| value_error(format!("{name} {reason}")))
}

/// The stream of a frame's record batches; `None` where it has none or its library cannot make one.
fn arrow_stream(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<ArrowStream>> {
    let py = object.py();
    let Some(method) = object.getattr_opt(intern!(py, "__arrow_c_stream__"))? else { return Ok(None) };
    let capsule = match method.call0() {
        Ok(capsule) => capsule.cast_into::<PyCapsule>()?,
        // pandas needs pyarrow for it, and cannot convert columns of mixed objects.
        Err(error) if error.is_instance_of::<PyImportError>(py) || is_pandas(object)? => return Ok(None),
        Err(error) => return Err(error),
    };
    let pointer = capsule.pointer_checked(Some(c"arrow_array_stream"))?;
    // SAFETY: the capsule has the name of the Arrow C stream interface, so that it holds such a stream, which the
    // reader takes over. The capsule's own structure stays and is marked as released.
    let stream = unsafe { ArrowStream::from_raw(pointer.as_ptr().cast()) };
    stream.map(Some).map_err(|reason| value_error(format!("{name}: {reason}")))
}

fn is_pandas(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(object.get_type().module()?.to_string_lossy().starts_with("pandas"))
}

/// The table without the index that pandas adds as a column.
fn without_index(mut table: Table) -> Table {
    table.columns.retain(|c| !c.name.starts_with("__index_level_"));
    table
}

/// The columns of a frame with `columns`, of a dictionary, or of an array.
fn named_columns(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<Column>> {
    let py = object.py();
    if let Ok(columns) = object.cast::<PyDict>() {
        return columns.iter().map(|(key, values)| column(&key.str()?.to_string(), &values, name)).collect();
    }
    if object.hasattr(intern!(py, "columns"))? && object.hasattr(intern!(py, "__getitem__"))? {
        let columns = object.getattr(intern!(py, "columns"))?;
        let read = |key: PyResult<Bound<'_, PyAny>>| {
            let key = key?;
            column(&key.str()?.to_string(), &object.get_item(&key)?, name)
        };
        return columns.try_iter()?.map(read).collect();
    }
    let array = py.import(intern!(py, "numpy"))?.call_method1(intern!(py, "asarray"), (object,))?;
    let shape: Vec<usize> = array.getattr(intern!(py, "shape"))?.extract()?;
    match *shape {
        [_] => Ok(vec![column("column 1", &array, name)?]),
        [_, width] => {
            let by_column = array.getattr(intern!(py, "T"))?;
            (0..width).map(|c| column(&format!("column {}", c + 1), &by_column.get_item(c)?, name)).collect()
        }
        _ => {
            let kind = object.get_type().name()?;
            let remedy = "give a frame, a dict of columns, an array with two axes or a path";
            Err(type_error(format!("{name}: an object of type {kind} is no table; {remedy}")))
        }
    }
}

/// A column of numbers, times or text, by the type of its array.
fn column(column: &str, values: &Bound<'_, PyAny>, table: &str) -> PyResult<Column> {
    let py = values.py();
    let numpy = py.import(intern!(py, "numpy"))?;
    let array = numpy.call_method1(intern!(py, "asarray"), (values,)).map_err(|error| {
        let raised = type_error(format!("{table}: column {column:?} cannot be read as an array: {}", error.value(py)));
        raised.set_cause(py, Some(error));
        raised
    })?;
    let kind: String = array.getattr(intern!(py, "dtype"))?.getattr(intern!(py, "kind"))?.extract()?;
    let numbers = |array: &Bound<'_, PyAny>| -> PyResult<Vec<f64>> {
        let array = numpy.call_method1(intern!(py, "ascontiguousarray"), (array, "f8"))?;
        Ok(array.extract::<numpy::PyReadonlyArray1<f64>>()?.as_slice()?.to_vec())
    };
    let values = match kind.as_str() {
        "f" | "i" | "u" => Values::Numbers(numbers(&array)?),
        "b" => {
            let truth = numbers(&array)?;
            let mut text = Text::default();
            truth.iter().for_each(|x| text.push(Some(if *x == 0.0 { "false" } else { "true" })));
            Values::Text(text)
        }
        "M" => {
            // NaT is the least integer.
            let seconds = array.call_method1(intern!(py, "astype"), ("datetime64[us]",))?;
            let seconds = numbers(&seconds.call_method1(intern!(py, "astype"), ("i8",))?)?;
            Values::Times(seconds.into_iter().map(|x| if x < -9.2e18 { f64::NAN } else { 1e-6 * x }).collect())
        }
        "O" | "U" | "T" => of_objects(&array).map_err(|error| match error.is_instance_of::<PyException>(py) {
            true => type_error(format!("{table}: column {column:?}: {}", error.value(py))),
            false => error,
        })?,
        _ => return Err(type_error(format!("{table}: column {column:?} holds values of an unsupported dtype"))),
    };
    Ok(Column::new(column, values))
}

/// Numbers if all objects are numbers or missing, otherwise text. None and NaN are missing.
fn of_objects(array: &Bound<'_, PyAny>) -> PyResult<Values> {
    let py = array.py();
    let items: Vec<Bound<'_, PyAny>> = array.call_method0(intern!(py, "tolist"))?.extract()?;
    let is_missing = |item: &Bound<'_, PyAny>| -> PyResult<bool> {
        let kind = item.get_type().name()?;
        let kind = kind.to_string_lossy();
        Ok(item.is_none() || kind == "NAType" || kind == "NaTType" || item.extract::<f64>().is_ok_and(f64::is_nan))
    };
    let missing: Vec<bool> = items.iter().map(is_missing).collect::<PyResult<_>>()?;
    let present = || items.iter().zip(&missing).filter(|(_, missing)| !**missing).map(|(item, _)| item);
    let is_number = |item: &Bound<'_, PyAny>| !item.is_instance_of::<PyString>() && item.extract::<f64>().is_ok();
    if present().all(|item| is_number(item) && !item.is_instance_of::<pyo3::types::PyBool>()) {
        let value = |(item, missing): (&Bound<'_, PyAny>, &bool)| if *missing { Ok(f64::NAN) } else { item.extract() };
        return Ok(Values::Numbers(items.iter().zip(&missing).map(value).collect::<PyResult<_>>()?));
    }
    let mut text = Text::default();
    for (item, missing) in items.iter().zip(&missing) {
        match missing {
            true => text.push(None),
            false => text.push(Some(&item.str()?.to_string_lossy())),
        }
    }
    Ok(Values::Text(text))
}
