//! Options: keyword arguments and dicts as settings of the library, which errors call by their Python names.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::errors::{type_error, value_error};

/// An option's name in Python.
pub fn python_name(key: &str) -> String {
    key.replace('-', "_")
}

/// A dict as settings, by the library's names.
pub fn settings(options: &Bound<'_, PyDict>) -> PyResult<Map<String, Value>> {
    let py = options.py();
    // NumPy's numbers and arrays become Python's.
    let plain = py.import("operator")?.call_method1("methodcaller", ("tolist",))?;
    let how = [("default", plain)].into_py_dict(py)?;
    let dumps = py.import("json")?.getattr("dumps")?;
    let mut settings = Map::new();
    for (key, value) in options {
        let key: String = key.extract()?;
        let text: String = dumps.call((&value,), Some(&how)).and_then(|text| text.extract()).map_err(|error| {
            match error.is_instance_of::<PyException>(py) {
                true => type_error(format!("{key}: is of type {}, which it cannot be", type_name(&value))),
                // An interrupt is none of the value's.
                false => error,
            }
        })?;
        let value = serde_json::from_str(&text).map_err(|_| value_error(format!("{key}: is {text}")))?;
        settings.insert(key.replace('_', "-"), value);
    }
    Ok(settings)
}

fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "unknown".to_owned(), |name| name.to_string())
}

/// What it was, with some settings changed.
pub fn changed<T: Serialize + DeserializeOwned>(base: &T, settings: Map<String, Value>) -> PyResult<T> {
    let plain = |e: serde_json::Error| value_error(e.to_string());
    let Value::Object(mut all) = serde_json::to_value(base).map_err(plain)? else {
        return Err(value_error("settings have names"));
    };
    for (key, value) in settings {
        all.insert(key.clone(), value);
        // One by one, so that the message can say which.
        serde_json::from_value::<T>(Value::Object(all.clone()))
            .map_err(|e| value_error(format!("{}: {e}", python_name(&key))))?;
    }
    serde_json::from_value(Value::Object(all)).map_err(plain)
}
