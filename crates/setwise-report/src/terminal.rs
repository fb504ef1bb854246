//! Plots for the terminal, in Unicode blocks.

const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Eighths of a character, from the left.
const WIDTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// One block for each value, its height from the lowest to the highest value. Non-finite values are spaces.
///
/// ```
/// assert_eq!(setwise_report::sparkline(&[0.0, 1.0, f64::NAN, 7.0]), "▁▂ █");
/// ```
pub fn sparkline(values: &[f64]) -> String {
    let finite = || values.iter().copied().filter(|v| v.is_finite());
    let (lo, hi) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    let height = |v: f64| {
        // Halved, because the difference of two finite values may overflow.
        let share = (v / 2.0 - lo / 2.0) / (hi / 2.0 - lo / 2.0);
        // 0/0 if all values are equal: the middle.
        let share = if share.is_nan() { 0.5 } else { share };
        HEIGHTS[((share * 7.0).round() as usize).min(7)]
    };
    values.iter().map(|&v| if v.is_finite() { height(v) } else { ' ' }).collect()
}

/// A line for each label: a bar from zero, then the value. The largest value has a bar of `width` characters.
///
/// Negative and non-finite values have no bar.
///
/// ```
/// let text = setwise_report::bars(&[("one", 1.0), ("a half", 0.5)], 4);
/// assert_eq!(text, "one    ████ 1\na half ██   0.5\n");
/// ```
pub fn bars<S: AsRef<str>>(values: &[(S, f64)], width: usize) -> String {
    let labels = values.iter().map(|(label, _)| label.as_ref().chars().count()).max().unwrap_or(0);
    let largest = values.iter().map(|&(_, v)| v).filter(|v| v.is_finite()).fold(0.0, f64::max);
    let mut text = String::new();
    for (label, value) in values {
        text += &format!("{:<labels$} {:<width$} {}\n", label.as_ref(), bar(*value, largest, width), short(*value));
    }
    text
}

/// A number with four decimals, without the sign of a rounded zero.
///
/// ```
/// use setwise_report::decimals;
/// assert_eq!([-0.00004, -0.00006, 2.0].map(decimals), ["0.0000", "-0.0001", "2.0000"]);
/// ```
pub fn decimals(value: f64) -> String {
    let text = format!("{value:.4}");
    if text == "-0.0000" { text[1..].to_owned() } else { text }
}

/// A bar of at most `width` characters, in eighths of a character.
fn bar(value: f64, largest: f64, width: usize) -> String {
    let share = if value.is_finite() && largest > 0.0 { (value / largest).max(0.0) } else { 0.0 };
    let eighths = (share * 8.0 * width as f64).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(WIDTHS[eighths % 8]);
    }
    bar
}

/// Whole characters of a bar.
pub(super) fn filled(value: f64, largest: f64, width: usize) -> usize {
    let share = if value.is_finite() && largest > 0.0 { (value / largest).clamp(0.0, 1.0) } else { 0.0 };
    (share * width as f64).round() as usize
}

/// A number with four significant digits, without trailing zeros.
fn short(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    if !(1e-4..1e7).contains(&value.abs()) {
        return format!("{value:.3e}");
    }
    let decimals = (3 - value.abs().log10().floor() as i32).max(0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparklines_accept_any_values() {
        assert_eq!(sparkline(&[]), "");
        assert_eq!(sparkline(&[3.0; 3]).chars().count(), 3);
        assert_eq!(sparkline(&[f64::NAN, f64::INFINITY]), "  ");
        assert_eq!(sparkline(&[-1e308, 1e308]), "▁█");
    }

    #[test]
    fn the_longest_bar_has_the_given_width() {
        let text = bars(&[("a", 2.0), ("b", 1.0 / 16.0), ("c", -3.0), ("d", f64::NAN)], 8);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "a ████████ 2");
        assert_eq!(lines[1], "b ▎        0.0625");
        assert_eq!(lines[2], "c          -3");
        assert_eq!(lines[3], "d          NaN");
        assert_eq!(bars::<&str>(&[], 8), "");
        assert_eq!(bars(&[("x", 0.0)], 0), "x  0\n");
    }

    #[test]
    fn values_have_four_significant_digits() {
        assert_eq!(short(0.123456), "0.1235");
        assert_eq!(short(12345.6), "12346");
        assert_eq!(short(1e-9), "1.000e-9");
    }
}
