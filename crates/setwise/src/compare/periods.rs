//! Changes over time: each period of a table against a reference, the first period or the one before.

use std::collections::BTreeMap;

use serde::Serialize;
use setwise_table::{ColumnType, Pairing, Period};

use super::bins::numbers;
use super::{Compare, Comparison};
use crate::estimate::Progress;
use crate::{Error, Result};

/// Most periods of a table.
const MAX_PERIODS: usize = 1000;

/// What a period is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Against {
    /// The first period.
    #[default]
    First,
    /// The period before.
    Previous,
    /// The other table.
    Reference,
}

/// Changes over time.
#[derive(Clone, Debug, Serialize)]
pub struct PeriodComparison {
    /// Whether any period differs.
    pub changed: bool,
    /// The unit of the periods.
    pub by: Period,
    /// The column of times.
    pub time: String,
    /// The level of significance of all periods together.
    pub alpha: f64,
    /// The periods that are compared.
    pub periods: Vec<PeriodChange>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

impl PeriodComparison {
    /// The place of each period on an axis of time, from zero. Periods without rows leave places empty, at most three
    /// between two periods.
    pub fn places(&self) -> Vec<usize> {
        const MAX_EMPTY: i64 = 3;
        let mut place = 0;
        let mut last = self.periods.first().map_or(0, |p| p.number);
        let next = |p: &PeriodChange| {
            place += (p.number - last).min(1 + MAX_EMPTY) as usize;
            last = p.number;
            place
        };
        self.periods.iter().map(next).collect()
    }
}

/// A period and what changed in it.
#[derive(Clone, Debug, Serialize)]
pub struct PeriodChange {
    /// The number of the period in the calendar.
    #[serde(skip)]
    pub number: i64,
    /// The name of the period, such as 2026-05.
    pub period: String,
    /// The name of what it is compared with.
    pub against: String,
    /// What changed.
    #[serde(flatten)]
    pub comparison: Comparison,
}

impl Compare {
    /// Compares the periods of the second table of a pairing; both are the same table unless there is a reference.
    ///
    /// The level of significance is shared by all periods.
    pub fn run_periods(
        &self,
        mut pairing: Pairing,
        by: Period,
        time: Option<&str>,
        against: Against,
        progress: &Progress,
    ) -> Result<PeriodComparison> {
        let time = time_column(&pairing, time).map_err(Error::Sets)?;
        let column = pairing.columns.remove(time);
        let times = numbers(&column.columns[1]);
        let mut rows: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
        for (i, seconds) in times.iter().enumerate().filter(|(_, seconds)| seconds.is_finite()) {
            rows.entry(by.of(*seconds)).or_default().push(i as u32);
        }
        let periods: Vec<(i64, Vec<u32>)> = rows.into_iter().collect();
        let first = usize::from(against != Against::Reference);
        self.check_periods(&periods, first, by, &column.name)?;
        let mut notes = std::mem::take(&mut pairing.notes);
        let missing = times.len() - periods.iter().map(|(_, rows)| rows.len()).sum::<usize>();
        if missing > 0 {
            notes.push(format!("{missing} rows without a time in column {:?} are left out", column.name));
        }
        let gaps = periods.windows(2).filter(|w| w[1].0 > w[0].0 + 1);
        notes.extend(gaps.map(|w| {
            let (last, next) = (by.label(w[0].0), by.label(w[1].0));
            format!("there are no rows in the {by}s between {last} and {next}")
        }));
        let shared = Compare { alpha: self.alpha / (periods.len() - first) as f64, ..*self };
        progress.plan((periods.len() - first) * Self::units(&pairing));
        let mut changes = Vec::with_capacity(periods.len() - first);
        for p in first..periods.len() {
            let (number, rows) = &periods[p];
            let base = match against {
                Against::First => Some(&periods[0]),
                Against::Previous => Some(&periods[p - 1]),
                Against::Reference => None,
            };
            let (period, against) = match base {
                Some((base, _)) => (by.label(*number), by.label(*base)),
                None => (by.label(*number), pairing.tables[0].clone()),
            };
            let mut selected = pairing.select([base.map(|(_, rows)| rows.as_slice()), Some(rows)]);
            selected.tables = [against.clone(), period.clone()];
            let comparison = shared.run_planned(selected, progress)?;
            changes.push(PeriodChange { number: *number, period, against, comparison });
        }
        let changed = changes.iter().any(|p| p.comparison.changed);
        Ok(PeriodComparison { changed, by, time: column.name, alpha: self.alpha, periods: changes, notes })
    }

    fn check_periods(&self, periods: &[(i64, Vec<u32>)], first: usize, by: Period, time: &str) -> Result<()> {
        let reason = match periods {
            [] => format!("column {time:?} holds no times"),
            [(only, _)] if first > 0 => {
                format!("all times of column {time:?} lie in {}: there is no other {by} to compare", by.label(*only))
            }
            all if all.len() > MAX_PERIODS => {
                format!("{} {by}s are too many to compare; choose a longer period than {by}", all.len())
            }
            _ => return Ok(()),
        };
        Err(Error::Sets(reason))
    }
}

/// The place of the column of times: the named one or the only one.
fn time_column(pairing: &Pairing, name: Option<&str>) -> Result<usize, String> {
    const HINT: &str = "--as COLUMN=time reads a column as times";
    let is_time = |c: usize| pairing.columns[c].column_type == ColumnType::Time;
    if let Some(name) = name {
        let found = pairing.columns.iter().position(|c| c.name == name);
        let found = found.ok_or_else(|| format!("no compared column is called {name:?}"))?;
        let kind = pairing.columns[found].column_type;
        return if is_time(found) { Ok(found) } else { Err(format!("column {name:?} is {kind}, not time; {HINT}")) };
    }
    let all: Vec<usize> = (0..pairing.columns.len()).filter(|&c| is_time(c)).collect();
    match all.as_slice() {
        [only] => Ok(*only),
        [] => Err(format!("no column holds times; {HINT}")),
        several => {
            let names: Vec<String> = several.iter().map(|&c| format!("{:?}", pairing.columns[c].name)).collect();
            Err(format!("columns {} hold times; --time chooses one", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use setwise_table::{ColumnChoice, Overrides, Table};

    use super::*;

    /// Three months; from the third on, a quarter of the values is larger.
    fn table(name: &str, times: bool) -> Table {
        let mut text = "day,x\n".to_owned();
        for i in 0..900 {
            let month = 1 + i / 300;
            let x = (i * 7919 % 1009) as f64 / 1009.0 + if month == 3 && i % 4 == 0 { 2.0 } else { 0.0 };
            let day = if times { format!("2026-{month:02}-{:02}", 1 + i % 28) } else { format!("{}", i % 7) };
            text += &format!("{day},{x}\n");
        }
        Table::parse(name, (text + ",0.5\n").as_bytes()).unwrap()
    }

    fn run(tables: [Table; 2], against: Against, time: Option<&str>, by: Period) -> Result<PeriodComparison> {
        let pairing = Pairing::new(tables, &ColumnChoice::default(), &Overrides::default()).unwrap();
        Compare::default().run_periods(pairing, by, time, against, &Progress::default())
    }

    #[test]
    fn each_period_is_compared_with_the_first_the_previous_or_a_reference() {
        for (against, expected) in [
            (Against::First, vec![("2026-02", "2026-01", false), ("2026-03", "2026-01", true)]),
            (Against::Previous, vec![("2026-02", "2026-01", false), ("2026-03", "2026-02", true)]),
            (Against::Reference, vec![("2026-01", "a", true), ("2026-02", "a", true), ("2026-03", "a", true)]),
        ] {
            let found = run([table("a", true), table("b", true)], against, None, Period::Month).unwrap();
            let periods: Vec<(&str, &str, bool)> =
                found.periods.iter().map(|p| (p.period.as_str(), p.against.as_str(), p.comparison.changed)).collect();
            if against != Against::Reference {
                assert_eq!(periods, expected);
            }
            assert_eq!(periods.len(), expected.len());
            assert_eq!(found.notes, ["1 rows without a time in column \"day\" are left out"]);
            assert!(found.periods.iter().all(|p| p.comparison.columns.len() == 1 && p.comparison.alpha < 0.03));
        }
    }

    #[test]
    fn periods_without_rows_leave_places_empty() {
        let mut text = "day,x\n".to_owned();
        for month in ["2026-01", "2026-02", "2026-05", "2027-05", "2027-06"] {
            (1..=28).for_each(|day| text += &format!("{month}-{day:02},{}\n", day as f64 / 3.0));
        }
        let table = || Table::parse("a", text.as_bytes()).unwrap();
        let found = run([table(), table()], Against::First, None, Period::Month).unwrap();
        assert_eq!(found.places(), [0, 3, 7, 8]);
        let gaps = ["between 2026-02 and 2026-05", "between 2026-05 and 2027-05"];
        assert!(found.notes.iter().zip(gaps).all(|(note, gap)| note.ends_with(gap)), "{:?}", found.notes);
    }

    #[test]
    fn tables_without_periods_are_errors() {
        let error = |tables, time, by| run(tables, Against::First, time, by).unwrap_err().to_string();
        let pair = |times| [table("a", times), table("a", times)];
        assert!(error(pair(false), None, Period::Month).starts_with("no column holds times"));
        assert!(error(pair(true), Some("x"), Period::Month).starts_with("column \"x\" is numeric, not time"));
        assert!(error(pair(true), Some("y"), Period::Month).starts_with("no compared column is called \"y\""));
        assert!(error(pair(true), None, Period::Year).contains("lie in 2026: there is no other year"));
    }
}
