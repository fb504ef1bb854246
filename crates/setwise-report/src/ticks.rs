//! The range of an axis and its ticks.

/// Values beyond this are not drawn, because their sums may overflow. Logarithmic axes also omit values below its
/// inverse.
pub(super) const LARGEST: f64 = 1e300;

/// An axis from `lo` to `hi`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ticks {
    pub lo: f64,
    pub hi: f64,
    /// Marked and labelled.
    pub major: Vec<(f64, String)>,
    /// Marked without a label.
    pub minor: Vec<f64>,
}

/// Ticks at steps of 1, 2 or 5 times a power of ten, at most `max_ticks` of them between `lo` and `hi`.
///
/// The axis is extended to multiples of the step, unless it is `fixed`.
pub(super) fn linear(lo: f64, hi: f64, max_ticks: usize, fixed: bool) -> Ticks {
    let (lo, hi) = widened(lo, hi);
    let min_step = (hi - lo) / max_ticks.max(1) as f64;
    let mut exponent = min_step.log10().floor() as i32;
    let digit = [1, 2, 5].into_iter().find(|&digit| decimal(digit, exponent) >= min_step * (1.0 - 1e-9));
    let digit = digit.unwrap_or_else(|| {
        exponent += 1;
        1
    });
    let step = decimal(digit, exponent);
    // A multiple of the step up to rounding counts as one.
    let slack = 1e-6;
    let (first, last) = if fixed {
        ((lo / step - slack).ceil() as i64, (hi / step + slack).floor() as i64)
    } else {
        ((lo / step + slack).floor() as i64, (hi / step - slack).ceil() as i64)
    };
    let marks: Vec<i64> = (first..=last).map(|k| k * digit).collect();
    let values = marks.iter().map(|&mark| decimal(mark, exponent));
    let (lo, hi) = if fixed { (lo, hi) } else { (decimal(first * digit, exponent), decimal(last * digit, exponent)) };
    Ticks { lo, hi, major: values.zip(linear_labels(&marks, exponent)).collect(), minor: Vec::new() }
}

/// A range that is wide enough for ticks.
fn widened(lo: f64, hi: f64) -> (f64, f64) {
    let size = lo.abs().max(hi.abs());
    if hi - lo > size * 1e-10 && hi - lo > 1.0 / LARGEST {
        return (lo, hi);
    }
    let margin = if size > 1.0 / LARGEST { size * 0.5 } else { 1.0 };
    (lo - margin, hi + margin)
}

/// `digits`·10^`exponent`, correctly rounded.
fn decimal(digits: i64, exponent: i32) -> f64 {
    format!("{digits}e{exponent}").parse().expect("a decimal number")
}

/// Labels with as many decimals as the step. Very large and very small labels share a power of ten.
fn linear_labels(marks: &[i64], exponent: i32) -> Vec<String> {
    let largest = marks.iter().map(|mark| mark.abs()).max().unwrap_or(0).max(1);
    let magnitude = largest.ilog10() as i32 + exponent;
    let power = if (-4..6).contains(&magnitude) { 0 } else { magnitude };
    let decimals = (power - exponent).max(0) as usize;
    let label = |&mark: &i64| match (mark, power) {
        (0, _) => format!("{:.*}", if power == 0 { decimals } else { 0 }, 0.0),
        (_, 0) => format!("{:.decimals$}", decimal(mark, exponent)),
        _ => format!("{:.decimals$}×10^{{{power}}}", decimal(mark, exponent - power)),
    };
    marks.iter().map(|mark| label(mark).replace('-', "−")).collect()
}

/// Ticks at powers of ten, and at 2 and 5 times these where there are few.
///
/// The axis is extended to such a number, unless it is `fixed`.
pub(super) fn log(lo: f64, hi: f64, max_ticks: usize, fixed: bool) -> Ticks {
    let (mut first, mut last) = (nice_floor(lo), nice_ceiling(hi));
    if first == last {
        (first, last) = (first - 1, last + 1);
    }
    let (lo, hi) = if fixed && lo * (1.0 + 1e-9) < hi { (lo, hi) } else { (nice(first), nice(last)) };
    let inside = |v: &f64| (lo * (1.0 - 1e-9)..=hi * (1.0 + 1e-9)).contains(v);
    let exponents = lo.log10().floor() as i32..=hi.log10().ceil() as i32;
    let powers: Vec<i32> = exponents.clone().filter(|&e| inside(&decimal(1, e))).collect();
    let one_two_five: Vec<i32> = (first..=last).filter(|&i| inside(&nice(i))).collect();

    let mut major: Vec<(f64, String)> = if powers.len() < 2 || (powers.len() < 4 && one_two_five.len() <= max_ticks) {
        let plain = lo >= 1e-3 && hi <= 1e5;
        one_two_five.into_iter().map(|i| (nice(i), one_two_five_label(i, plain))).collect()
    } else {
        // The first stride with few enough ticks, but at least two.
        let strided = |stride: i32| powers.iter().copied().filter(|e| e % stride == 0).collect::<Vec<i32>>();
        let mut chosen = powers.clone();
        for stride in [2, 5, 10, 20, 50, 100, 200] {
            let fewer = strided(stride);
            if chosen.len() <= max_ticks || fewer.len() < 2 {
                break;
            }
            chosen = fewer;
        }
        chosen.into_iter().map(|e| (decimal(1, e), format!("10^{{{e}}}").replace('-', "−"))).collect()
    };
    // A narrow fixed range may contain no tick of this kind.
    if major.is_empty() {
        major = linear(lo, hi, max_ticks, true).major;
    }
    let minor = if powers.len() <= 8 {
        exponents.flat_map(|e| (1..10).map(move |d| decimal(d, e))).filter(inside).collect()
    } else if powers.len() <= 40 {
        powers.iter().map(|&e| decimal(1, e)).collect()
    } else {
        Vec::new()
    };
    Ticks { lo, hi, minor: minor.into_iter().filter(|v| major.iter().all(|(m, _)| m != v)).collect(), major }
}

/// Nice number i: 1, 2, 5, 10, 20, … from index 0. Negative indices continue below 1.
fn nice(i: i32) -> f64 {
    decimal([1, 2, 5][i.rem_euclid(3) as usize], i.div_euclid(3))
}

/// The index of the largest nice number that is at most `v`.
fn nice_floor(v: f64) -> i32 {
    let start = v.log10().floor() as i32 * 3 - 1;
    (start..start + 6).take_while(|&i| nice(i) <= v * (1.0 + 1e-9)).last().unwrap_or(start)
}

/// The index of the smallest nice number that is at least `v`. Inverses of nice numbers are nice.
fn nice_ceiling(v: f64) -> i32 {
    -nice_floor(1.0 / v)
}

fn one_two_five_label(i: i32, plain: bool) -> String {
    let (digit, exponent) = ([1, 2, 5][i.rem_euclid(3) as usize], i.div_euclid(3));
    let label = match (plain, digit) {
        (true, _) => format!("{:.*}", (-exponent).max(0) as usize, nice(i)),
        (false, 1) => format!("10^{{{exponent}}}"),
        (false, _) => format!("{digit}×10^{{{exponent}}}"),
    };
    label.replace('-', "−")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(ticks: &Ticks) -> Vec<&str> {
        ticks.major.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn linear_steps_are_one_two_or_five() {
        assert_eq!(labels(&linear(-0.93, 0.87, 5, false)), ["−1.0", "−0.5", "0.0", "0.5", "1.0"]);
        assert_eq!(labels(&linear(0.0, 20_000.0, 5, false)), ["0", "5000", "10000", "15000", "20000"]);
        assert_eq!(labels(&linear(0.0, 3e7, 4, false)), ["0", "1×10^{7}", "2×10^{7}", "3×10^{7}"]);
        assert_eq!(labels(&linear(0.0, 0.000_021, 3, false)), ["0", "1×10^{−5}", "2×10^{−5}", "3×10^{−5}"]);
        let fixed = linear(0.1, 2.3, 4, true);
        assert_eq!((fixed.lo, fixed.hi, labels(&fixed)), (0.1, 2.3, vec!["1", "2"]));
    }

    #[test]
    fn logarithmic_ticks_are_decades_with_two_and_five_where_these_are_few() {
        assert_eq!(labels(&log(110.0, 900.0, 8, false)), ["100", "200", "500", "1000"]);
        assert_eq!(labels(&log(3e-9, 8e-9, 8, false)), ["2×10^{−9}", "5×10^{−9}", "10^{−8}"]);
        assert_eq!(labels(&log(0.004, 30.0, 8, false)), ["10^{−2}", "10^{−1}", "10^{0}", "10^{1}"]);
        assert_eq!(labels(&log(1e-20, 1e20, 5, false)), ["10^{−20}", "10^{−10}", "10^{0}", "10^{10}", "10^{20}"]);
        assert_eq!(labels(&log(100.0, 100.0, 5, false)), ["50", "100", "200"]);
    }

    proptest! {
        #[test]
        fn linear_ticks_cover_the_data_evenly(a in -1e6..1e6f64, span in 1e-3..1e6f64, max_ticks in 2usize..12) {
            let ticks = linear(a, a + span, max_ticks, false);
            let step = ticks.major[1].0 - ticks.major[0].0;
            prop_assert!(ticks.lo <= a + 1e-5 * step && ticks.hi >= a + span - 1e-5 * step);
            prop_assert!((2..=max_ticks + 2).contains(&ticks.major.len()));
            let digit = step / 10f64.powf(step.log10().floor() + 1e-12);
            prop_assert!([1.0, 2.0, 5.0, 10.0].iter().any(|d| (digit - d).abs() < 1e-4), "{step}");
            let different: std::collections::HashSet<_> = labels(&ticks).into_iter().collect();
            prop_assert_eq!(different.len(), ticks.major.len());
        }

        #[test]
        fn logarithmic_ticks_cover_the_data(lo in -250.0..250.0f64, decades in 0.0..40.0f64, max_ticks in 2usize..12) {
            let (lo, hi) = (10f64.powf(lo), 10f64.powf(lo + decades));
            let ticks = log(lo, hi, max_ticks, false);
            prop_assert!(ticks.lo <= lo * (1.0 + 1e-8) && ticks.hi >= hi * (1.0 - 1e-8));
            prop_assert!((2..=max_ticks + 6).contains(&ticks.major.len()), "{:?}", ticks);
        }
    }
}
