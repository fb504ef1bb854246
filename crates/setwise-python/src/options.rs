//! Keyword arguments and dicts as settings of the library. Errors name them as in Python.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::errors::{type_error, value_error};

/// The Python name of a setting.
pub fn python_name(key: &str) -> String {
    key.replace('-', "_")
}

/// A dict as settings with the library's names.
pub fn settings(options: &Bound<'_, PyDict>) -> PyResult<Map<String, Value>> {
    let py = options.py();
    // `tolist` converts NumPy numbers and arrays.
    let default = py.import("operator")?.call_method1("methodcaller", ("tolist",))?;
    let dump_options = [("default", default)].into_py_dict(py)?;
    let dumps = py.import("json")?.getattr("dumps")?;
    let mut settings = Map::new();
    for (key, value) in options {
        let key: String = key.extract()?;
        let text: String =
            dumps.call((&value,), Some(&dump_options)).and_then(|text| text.extract()).map_err(|error| {
                match error.is_instance_of::<PyException>(py) {
                    true => type_error(format!(
                        "{key}: is of type {}; use numbers, text, lists or dicts",
                        type_name(&value)
                    )),
                    // Interrupts pass unchanged.
                    false => error,
                }
            })?;
        let value = serde_json::from_str(&text)
            .map_err(|_| value_error(format!("{key}: is {text}; numbers must be finite")))?;
        settings.insert(key.replace('_', "-"), value);
    }
    Ok(settings)
}

fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "unknown".to_owned(), |name| name.to_string())
}

/// `base` with some settings replaced.
pub fn with_settings<T: Serialize + DeserializeOwned>(base: &T, settings: Map<String, Value>) -> PyResult<T> {
    let to_value_error = |e: serde_json::Error| value_error(e.to_string());
    let Value::Object(mut all) = serde_json::to_value(base).map_err(to_value_error)? else {
        return Err(value_error("settings must be a dict"));
    };
    for (key, value) in settings {
        all.insert(key.clone(), value);
        // Each setting is checked alone, so that the message names it.
        serde_json::from_value::<T>(Value::Object(all.clone()))
            .map_err(|e| value_error(format!("{}: {e}", python_name(&key))))?;
    }
    serde_json::from_value(Value::Object(all)).map_err(to_value_error)
}
