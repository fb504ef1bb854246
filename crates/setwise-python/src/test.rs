//! `test` and `independence`.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use setwise::Device;
use setwise::estimate::{Points, Progress};
use setwise::permutation_test::{Encoded, PermutationTest, Statistic, TestResult};
use setwise_table::{ColumnChoice, Table};

use crate::arrays::SetArgument;
use crate::compare::overrides;
use crate::errors::{Failure, exception, value_error};
use crate::estimate::to_u64;
use crate::frames::read_table;
use crate::pool::compute;

/// Tests tables for the function `test` of the package. The result is JSON.
#[pyfunction]
#[pyo3(signature = (
    samples, names, method, bandwidth, permutations, alpha, paired, blocks, columns, drop, types, max_rows, seed,
    device
))]
#[allow(clippy::too_many_arguments)]
pub fn test_samples(
    py: Python<'_>,
    samples: Vec<Bound<'_, PyAny>>,
    names: Vec<String>,
    method: &str,
    bandwidth: Option<f64>,
    permutations: i128,
    alpha: f64,
    paired: bool,
    blocks: Option<String>,
    columns: Vec<String>,
    drop: Vec<String>,
    types: BTreeMap<String, String>,
    max_rows: i128,
    seed: i128,
    device: &str,
) -> PyResult<String> {
    let statistic = match (method, bandwidth) {
        ("mmd", bandwidth) => Statistic::Mmd { bandwidth },
        (_, Some(_)) => return Err(value_error("bandwidth is for method=\"mmd\"")),
        ("adaptive", None) => Statistic::Adaptive,
        ("energy", None) => Statistic::Energy,
        (other, None) => {
            return Err(value_error(format!("method: is {other:?}, must be \"adaptive\", \"energy\" or \"mmd\"")));
        }
    };
    if paired && blocks.is_some() {
        return Err(value_error("paired and blocks exclude each other"));
    }
    let permutations = to_u64("permutations", permutations)? as usize;
    let max_rows = to_u64("max_rows", max_rows)? as usize;
    let device = Device::find(device, None).map_err(exception)?;
    let test = PermutationTest { statistic, permutations, alpha, max_rows, seed: to_u64("seed", seed)?, device };
    let types = overrides(types)?;
    let choice = ColumnChoice { keep: columns, drop };
    let tables: Vec<Table> =
        samples.iter().zip(&names).map(|(sample, name)| read_table(sample, name)).collect::<PyResult<_>>()?;
    let run = || -> setwise::Result<TestResult> {
        let samples = Encoded::new(tables, &choice, &types, blocks.as_deref())?;
        samples.test(&test, &names, paired, &Progress::default())
    };
    json(&compute(py, run)?.map_err(exception)?)
}

/// Tests two arrays with paired rows for the function `independence` of the package. The result is JSON.
#[pyfunction]
#[pyo3(signature = (x, y, permutations, alpha, max_rows, seed))]
pub fn test_independence(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    y: &Bound<'_, PyAny>,
    permutations: i128,
    alpha: f64,
    max_rows: i128,
    seed: i128,
) -> PyResult<String> {
    let permutations = to_u64("permutations", permutations)? as usize;
    let max_rows = to_u64("max_rows", max_rows)? as usize;
    let test =
        PermutationTest { permutations, alpha, max_rows, seed: to_u64("seed", seed)?, ..PermutationTest::default() };
    let arguments = [SetArgument::read_single(x, "x")?, SetArgument::read_single(y, "y")?];
    let views: Vec<_> = arguments.iter().flat_map(SetArgument::views).collect();
    let sets: Vec<_> = arguments.iter().flat_map(SetArgument::sets).collect();
    let found = compute(py, || -> Result<TestResult, Failure> {
        views.iter().try_for_each(|v| v.check(false))?;
        let data: Vec<_> = sets.iter().map(|s| s.numbers.to_f64()).collect();
        let points: Vec<Points> = sets.iter().zip(&data).map(|(s, x)| Points::new(x, s.width).named(&s.name)).collect();
        Ok(test.independence(points[0], points[1], &Progress::default())?)
    })??;
    json(&found)
}

fn json(result: &TestResult) -> PyResult<String> {
    serde_json::to_string(result).map_err(|e| value_error(e.to_string()))
}
