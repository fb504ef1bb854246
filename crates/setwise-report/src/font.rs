//! Noto Sans, embedded in this crate: widths of text and outlines of letters.

use std::sync::OnceLock;

use ttf_parser::{Face, OutlineBuilder};

use super::canvas::{RAISED, runs};

fn face(bold: bool) -> &'static Face<'static> {
    static FACES: [OnceLock<Face<'static>>; 2] = [OnceLock::new(), OnceLock::new()];
    FACES[bold as usize].get_or_init(|| {
        let bytes = if bold { notosans::BOLD_TTF } else { notosans::REGULAR_TTF };
        Face::parse(bytes, 0).expect("the font that is part of the program")
    })
}

/// Calls `visit` with each letter, its size and its position. Returns the width of the text.
fn place(text: &str, size: f64, bold: bool, mut visit: impl FnMut(char, f64, (f64, f64))) -> f64 {
    let face = face(bold);
    let mut x = 0.0;
    for run in runs(text) {
        let (size, rise) = if run.raised { (size * RAISED.0, size * RAISED.1) } else { (size, 0.0) };
        for letter in run.text.chars() {
            visit(letter, size, (x, rise));
            let glyph = face.glyph_index(letter).unwrap_or_default();
            let advance = face.glyph_hor_advance(glyph).unwrap_or(0);
            x += f64::from(advance) * size / f64::from(face.units_per_em());
        }
    }
    x
}

/// Width of a text.
pub(super) fn width(text: &str, size: f64, bold: bool) -> f64 {
    place(text, size, bold, |_, _, _| {})
}

/// A builder of outlines. `begin` gets scale and position of each letter, y upwards from the baseline.
pub(super) trait Letters: OutlineBuilder {
    fn begin(&mut self, scale: f64, at: (f64, f64));
}

/// Draws the outlines of a text that begins at the origin.
pub(super) fn outline(text: &str, size: f64, bold: bool, letters: &mut impl Letters) {
    let face = face(bold);
    place(text, size, bold, |letter, size, at| {
        letters.begin(size / f64::from(face.units_per_em()), at);
        face.outline_glyph(face.glyph_index(letter).unwrap_or_default(), letters);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_font_has_the_letters_that_plots_need() {
        for letter in ('!'..='~').chain("ρμσλθαβγδεΔΣ²³±−×·°…–—’éüß√∞≤≥≈".chars())
        {
            for bold in [false, true] {
                assert!(face(bold).glyph_index(letter).is_some(), "{letter}");
            }
        }
    }

    #[test]
    fn text_is_as_wide_as_its_letters_and_raised_ones_are_narrower() {
        assert_eq!(width("", 12.0, false), 0.0);
        assert!((width("aa", 12.0, false) - 2.0 * width("a", 12.0, false)).abs() < 1e-9);
        assert!(width("10^{3}", 12.0, false) < width("103", 12.0, false));
        assert!(width("a", 12.0, true) > width("a", 12.0, false));
    }
}
