//! The number of decimals of a column's values, which rounding and changes of precision alter.

use setwise_table::Text;

use super::bins::Binned;

/// Most decimals that are told apart.
const MAX_DECIMALS: i32 = 6;
/// Most trailing zeros of whole numbers that are told apart.
const MAX_ZEROS: i32 = 3;

/// The values of two columns by their number of decimals; `None` where all values have as many.
pub(super) fn decimal_classes(values: [&[f64]; 2]) -> Option<Binned> {
    let classes = values.map(|v| v.iter().map(|x| class(*x)).collect::<Vec<Option<i32>>>());
    let mut present = classes.iter().flatten().flatten();
    let first = present.next()?;
    if present.all(|class| class == first) {
        return None;
    }
    let text = |classes: &Vec<Option<i32>>| {
        let mut text = Text::default();
        // Missing values are compared elsewhere.
        classes.iter().flatten().for_each(|class| text.push(Some(&name(*class))));
        text
    };
    let [a, b] = classes.each_ref().map(text);
    Some(Binned::levels([&a, &b]))
}

/// The number of decimals, or that of trailing zeros with a minus sign.
fn class(x: f64) -> Option<i32> {
    if !x.is_finite() {
        return None;
    }
    if x.fract() != 0.0 {
        let is_whole = |y: f64| (y - y.round()).abs() <= 1e-9 * y.abs().max(1.0);
        return Some((1..MAX_DECIMALS).find(|d| is_whole(x * 10f64.powi(*d))).unwrap_or(MAX_DECIMALS));
    }
    let zeros = (1..=MAX_ZEROS).take_while(|z| x % 10f64.powi(*z) == 0.0).count() as i32;
    Some(if x == 0.0 { 0 } else { -zeros })
}

fn name(class: i32) -> String {
    match class {
        MAX_DECIMALS => format!("values with {MAX_DECIMALS} or more decimals"),
        0 => "whole numbers".to_owned(),
        1 => "values with 1 decimal".to_owned(),
        d if d > 0 => format!("values with {d} decimals"),
        d => format!("multiples of {}", 10i64.pow(d.unsigned_abs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_and_trailing_zeros_are_counted() {
        for (x, expected) in [
            (0.25, Some(2)),
            (-0.1, Some(1)),
            (1234.567, Some(3)),
            (std::f64::consts::PI, Some(6)),
            (7.0, Some(0)),
            (0.0, Some(0)),
            (120.0, Some(-1)),
            (-5e6, Some(-3)),
            (f64::NAN, None),
            (f64::INFINITY, None),
        ] {
            assert_eq!(class(x), expected, "{x}");
        }
        assert!(decimal_classes([&[0.25, f64::NAN], &[1.75]]).is_none());
        let binned = decimal_classes([&[0.25, 0.5], &[1.0]]).unwrap();
        assert_eq!((binned.bins.len(), binned.present()), (3, [2, 1]));
    }
}
