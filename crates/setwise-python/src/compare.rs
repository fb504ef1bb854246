//! `compare`.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use setwise::compare as library;
use setwise::estimate::Progress;
use setwise_table::{ColumnChoice, Overrides, Pairing, Table};

use crate::errors::{exception, value_error};
use crate::estimate::to_u64;
use crate::frames::read_table;
use crate::pool::compute;

/// What changed between two tables, for the class `Comparison` of the package.
#[pyclass(frozen, module = "setwise._setwise")]
pub struct NativeComparison(library::Comparison);

#[pymethods]
impl NativeComparison {
    /// All results as JSON.
    fn json(&self) -> PyResult<String> {
        serde_json::to_string(&self.0).map_err(|e| value_error(e.to_string()))
    }

    /// An HTML page, or an element for a notebook.
    fn html(&self, fragment: bool) -> String {
        let page = setwise_report::compare_page(&self.0);
        if fragment { page.to_fragment() } else { page.to_html() }
    }
}

/// Types of columns from a dict.
pub fn overrides(types: BTreeMap<String, String>) -> PyResult<Overrides> {
    let mut overrides = Overrides::default();
    for (name, of) in types {
        overrides.set(&name, of.parse().map_err(|reason| value_error(format!("types[{name:?}]: {reason}")))?);
    }
    Ok(overrides)
}

/// Compares two tables for the function `compare` of the package.
#[pyfunction]
#[pyo3(signature = (reference, current, names, alpha, min_effect, columns, drop, types, seed))]
#[allow(clippy::too_many_arguments)]
pub fn compare_tables(
    py: Python<'_>,
    reference: &Bound<'_, PyAny>,
    current: &Bound<'_, PyAny>,
    names: [String; 2],
    alpha: f64,
    min_effect: f64,
    columns: Vec<String>,
    drop: Vec<String>,
    types: BTreeMap<String, String>,
    seed: i128,
) -> PyResult<NativeComparison> {
    let overrides = overrides(types)?;
    let compare = library::Compare { alpha, min_effect, seed: to_u64("seed", seed)? };
    let choice = ColumnChoice { keep: columns, drop };
    let tables: [Table; 2] = [read_table(reference, &names[0])?, read_table(current, &names[1])?];
    let run = || -> setwise::Result<library::Comparison> {
        compare.run(Pairing::new(tables, &choice, &overrides)?, &Progress::default())
    };
    Ok(NativeComparison(compute(py, run)?.map_err(exception)?))
}
