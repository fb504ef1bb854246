//! `setwise test --pairs LIST`

use std::path::Path;

use setwise::Device;
use setwise::estimate::Progress;
use setwise::permutation_test::TestResult;
use setwise_report::{Cell, Table as Results, p_text};

use super::super::pair_line::PairLine;
use super::super::table_pairs::Outcomes;
use super::super::text::marked_table;
use super::super::{print_json, print_line};
use super::{Args, print};
use crate::failure::Failure;

/// Tests every pair of a list.
pub fn run(list: &Path, args: &Args, device: &Device) -> Result<(), Failure> {
    let types = args.tables.overrides()?;
    let outcomes = Outcomes::new(list, args.out.as_deref(), |tables| {
        args.test(Vec::from(tables), &types, device, &Progress::default())
    })?;
    if let Some(path) = &args.out {
        table(&outcomes).save(path)?;
    }
    match args.json {
        true => outcomes.iter().try_for_each(|(pair, outcome)| print_json(&PairLine::of(pair, outcome)))?,
        false => print_outcomes(&outcomes)?,
    }
    outcomes.check("tested")
}

fn print_outcomes(outcomes: &Outcomes<TestResult>) -> Result<(), Failure> {
    let different = outcomes.results().filter(|test| test.significant).count();
    print_line(format!("Different: {different} of {} pairs.\n", outcomes.pairs.len()))?;
    let rows = outcomes.iter().map(|(pair, outcome)| {
        let mut cells = pair.names.to_vec();
        match outcome {
            Ok(test) => cells.extend([
                p_text(test.p_value),
                print::auc(test.auc),
                print::interval(test.interval),
                print::strongest(&test.findings, test.significant, test.alpha),
            ]),
            Err(_) => cells.extend(["–", "", "", ""].map(str::to_owned)),
        }
        (outcome.as_ref().is_ok_and(|test| test.significant), cells)
    });
    print_line(marked_table(["", "P", "Q", "p", "AUC", "90 % interval", "what differs"], rows, &[3, 4]))
}

/// The table that `-o` writes.
fn table(outcomes: &Outcomes<TestResult>) -> Results {
    let heading =
        ["line", "p", "q", "different", "p_value", "auc", "low", "high", "rows_p", "rows_q", "found", "error"];
    let mut table = Results::new("", heading);
    for (pair, outcome) in outcomes.iter() {
        let test = outcome.as_ref().ok();
        let number = |x: Option<f64>| x.map_or(Cell::Empty, |x| Cell::number(x, 4));
        let end = |k: usize| number(test.and_then(|t| t.interval.map(|interval| interval[k])));
        let rows = |k: usize| test.map_or(Cell::Empty, |t| Cell::Count(t.n[k]));
        let text = |text: Option<String>| text.map_or(Cell::Empty, Cell::Text);
        table.push([
            Cell::Count(pair.line),
            pair.names[0].as_str().into(),
            pair.names[1].as_str().into(),
            text(test.map(|t| if t.significant { "yes" } else { "no" }.to_owned())),
            number(test.map(|t| t.p_value)),
            number(test.and_then(|t| t.auc)),
            end(0),
            end(1),
            rows(0),
            rows(1),
            text(test.map(|t| print::strongest(&t.findings, t.significant, t.alpha))),
            text(outcome.as_ref().err().map(ToString::to_string)),
        ]);
    }
    table
}
