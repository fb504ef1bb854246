//! Changes in words.

use setwise_table::ColumnType;
use setwise_table::times::format_time;
use setwise_table::wording::truncated;

use super::bins::{Bin, Binned};
use super::effect::Event;
use super::marginal_test::Span;

/// Most characters of a category.
const MAX_LEVEL: usize = 30;

/// What happened to the rows of an event, such as `values above 30 rose from 1 % to 4 %`.
pub(super) fn sentence(binned: &Binned, event: Event, column_type: ColumnType, subject: &str) -> String {
    match event {
        Event::Missing => {
            let shares = std::array::from_fn(|t| {
                binned.missing[t] as f64 / (binned.missing[t] + binned.present()[t]).max(1) as f64
            });
            moved("missing values", shares)
        }
        Event::Span(span) => of_span(binned, span, column_type, subject),
        Event::Categories(bin) => {
            let shares = shares(binned, Span { from: bin, to: bin + 1 });
            let name = match &binned.bins[bin] {
                Bin::Level(level) => format!("“{}”", truncated(level, MAX_LEVEL)),
                Bin::Rare(count) => format!("{count} rare categories"),
                Bin::Range(..) => subject.to_owned(),
            };
            moved(&name, shares)
        }
    }
}

fn of_span(binned: &Binned, span: Span, column_type: ColumnType, subject: &str) -> String {
    let shares = shares(binned, span);
    let edge = |bin: usize| match &binned.bins[bin] {
        Bin::Range(low, high) => (*low, *high),
        _ => (f64::NAN, f64::NAN),
    };
    let number = |x: f64| match column_type {
        ColumnType::Time => format_time(x),
        _ => short_number(x),
    };
    let (low, high) = (edge(span.from).0, edge(span.to - 1).1);
    let range = |low: f64, high: f64| match low == high {
        true => format!("the value {}", number(low)),
        false => format!("{subject} from {} to {}", number(low), number(high)),
    };
    if span.from > 0 || low == high {
        return moved(&range(low, high), shares);
    }
    // Of a half-line and its complement the smaller one is told.
    if shares[0] + shares[1] <= 1.0 {
        return moved(&format!("{subject} up to {}", number(high)), shares);
    }
    let rest = shares.map(|s| 1.0 - s);
    let (next, last) = (edge(span.to).0, edge(binned.bins.len() - 1).1);
    match next == last {
        true => moved(&range(next, last), rest),
        false => moved(&format!("{subject} above {}", number(high)), rest),
    }
}

fn shares(binned: &Binned, span: Span) -> [f64; 2] {
    let present = binned.present();
    std::array::from_fn(|t| binned.counts[t][span.from..span.to].iter().sum::<u64>() as f64 / present[t].max(1) as f64)
}

/// How a share changed.
pub(super) fn moved(what: &str, [before, after]: [f64; 2]) -> String {
    match (before, after) {
        (0.0, after) => format!("{what}: new, {}", percent(after)),
        (before, 0.0) => format!("{what}: gone, {} before", percent(before)),
        _ if after > before => format!("{what} rose from {} to {}", percent(before), percent(after)),
        _ => format!("{what} fell from {} to {}", percent(before), percent(after)),
    }
}

/// A share in percent, with two digits that count.
pub fn percent(share: f64) -> String {
    let x = 100.0 * share;
    let digits = if x == 0.0 || x >= 9.95 {
        0
    } else if x >= 0.095 {
        1
    } else {
        2
    };
    format!("{x:.digits$} %")
}

/// A number with four digits that count.
pub fn short_number(x: f64) -> String {
    if x == 0.0 || !x.is_finite() {
        return x.to_string();
    }
    let exponent = x.abs().log10().floor() as i32;
    if !(-4..=9).contains(&exponent) {
        return format!("{x:.3e}");
    }
    let text = format!("{x:.digits$}", digits = (3 - exponent).max(0) as usize);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        for (x, text) in [
            (0.0, "0"),
            (30.0, "30"),
            (1234.567, "1235"),
            (0.012_345_6, "0.01235"),
            (-2.5, "-2.5"),
            (123_456_789.0, "123456789"),
            (1.5e12, "1.500e12"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(short_number(x), text);
        }
        assert_eq!([0.0, 0.0004, 0.012, 0.5].map(percent), ["0 %", "0.04 %", "1.2 %", "50 %"]);
    }

    #[test]
    fn the_smaller_side_of_a_half_line_is_told() {
        let a: Vec<f64> = (0..100).map(f64::from).collect();
        let b: Vec<f64> = a.iter().map(|x| if *x >= 80.0 { 20.0 } else { *x }).collect();
        let binned = Binned::ordered([&a, &b]);
        let to = binned.bins.iter().position(|bin| matches!(bin, Bin::Range(_, high) if *high >= 79.0)).unwrap() + 1;
        let text = of_span(&binned, Span { from: 0, to }, ColumnType::Numeric, "values");
        assert!(text.starts_with("values above 79: gone") || text.starts_with("values above 8"), "{text}");
        assert_eq!(moved("“x”", [0.0, 0.05]), "“x”: new, 5.0 %");
    }
}
