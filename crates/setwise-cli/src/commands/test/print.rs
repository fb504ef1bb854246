//! A test in the terminal.

use std::collections::HashSet;
use std::path::Path;

use setwise::permutation_test::{Finding, PairResult, TestResult};
use setwise_report::p_text;

use super::super::print_line;
use super::super::text::{marked_table, short_name};
use crate::failure::Failure;

/// Findings that are printed.
const MAX_FINDINGS: usize = 3;

/// Prints the verdict of samples with these names, what differs, and what a reader should know.
pub fn samples(test: &TestResult, names: &[String], permutations: usize) -> Result<(), Failure> {
    let conclusion = match (test.significant, names.len()) {
        (true, 2) => "P and Q differ",
        (false, 2) => "no evidence that P and Q differ",
        (true, _) => "the samples differ",
        (false, _) => "no evidence that the samples differ",
    };
    verdict(test, conclusion, permutations)?;
    if let (Some(auc), Some([low, high])) = (test.auc, test.interval) {
        print_line(format!("AUC {auc:.3}, 90 % interval {low:.3} to {high:.3} (0.5: the same, 1: separate)"))?;
    }
    if !test.pairs.is_empty() {
        let names = distinct_names(names);
        let row = |pair: &PairResult| {
            let cells = vec![
                names[pair.samples[0]].clone(),
                names[pair.samples[1]].clone(),
                p_text(pair.p_value),
                p_text(pair.adjusted),
                auc(pair.auc),
                interval(pair.interval),
                strongest(&pair.findings, pair.significant, test.alpha),
            ];
            (pair.significant, cells)
        };
        let heading = ["", "P", "Q", "p", "adjusted", "AUC", "90 % interval", "what differs"];
        print_line(format!("\n{}\n", marked_table(heading, test.pairs.iter().map(row), &[3, 4, 5])))?;
        for pair in &test.pairs {
            let [a, b] = pair.samples.map(|s| &names[s]);
            pair.warnings.iter().try_for_each(|w| print_line(format!("warning: {a} and {b}: {w}")))?;
        }
    }
    statistic(test)?;
    let rows = match test.n.as_slice() {
        [n, m] => format!("{n} and {m}"),
        all => all.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    };
    let setwise::estimate::Dim::One(dim) = test.dim else { return Ok(()) };
    print_line(format!("rows {rows}, columns {dim}"))?;
    test.warnings.iter().try_for_each(|w| print_line(format!("warning: {w}")))
}

/// Names of files without their folders, if these names differ.
fn distinct_names(paths: &[String]) -> Vec<String> {
    let name = |path: &String| Path::new(path).file_name().map_or(path.clone(), |name| name.display().to_string());
    let names: Vec<String> = paths.iter().map(name).map(|name| short_name(&name)).collect();
    match names.iter().collect::<HashSet<_>>().len() == paths.len() {
        true => names,
        false => paths.iter().map(|path| path.replace(char::is_control, "\u{fffd}")).collect(),
    }
}

/// Prints the p-value with its conclusion, and what was found.
pub fn verdict(test: &TestResult, conclusion: &str, permutations: usize) -> Result<(), Failure> {
    // The number of permutations determines the resolution of p.
    let digits = (permutations + 1).ilog10().max(2) as usize;
    print_line(format!("p = {:.digits$}: {conclusion} (permutation test, {})", test.p_value, test.method))?;
    let found = test.findings.iter().filter(|f| test.significant && f.p_value <= test.alpha);
    found.take(MAX_FINDINGS).try_for_each(|f| print_line(format!("  {}, p = {:.digits$}", f.text(), f.p_value)))
}

/// Prints how many permutations reach the statistic.
pub fn statistic(test: &TestResult) -> Result<(), Failure> {
    let (reached, permutations) = (test.as_large, test.permutations);
    print_line(format!("statistic {:.4}, reached by {reached} of {permutations} permutations", test.statistic))
}

/// What was found first, if anything was.
pub fn strongest(findings: &[Finding], different: bool, alpha: f64) -> String {
    let first = findings.iter().find(|f| different && f.p_value <= alpha);
    first.map_or(String::new(), Finding::text)
}

/// An AUC in a table.
pub fn auc(auc: Option<f64>) -> String {
    auc.map_or(String::new(), |auc| format!("{auc:.3}"))
}

/// An interval in a table.
pub fn interval(interval: Option<[f64; 2]>) -> String {
    interval.map_or(String::new(), |[low, high]| format!("{low:.3} to {high:.3}"))
}
