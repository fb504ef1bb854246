//! Drawing operations of SVG and PNG. Lengths are in points of the SVG, and y points down.

/// A position on the canvas.
pub(super) type Point = (f64, f64);

/// Red, green, blue.
pub(super) type Colour = [u8; 3];

/// Colours of text, axes, grid lines and background.
pub(super) const INK: Colour = [0x22, 0x22, 0x22];
pub(super) const AXIS: Colour = [0x55, 0x55, 0x55];
pub(super) const GRID: Colour = [0xe4, 0xe4, 0xe4];
pub(super) const PAPER: Colour = [0xff, 0xff, 0xff];

/// The style of a line. Ends and corners are round.
#[derive(Clone, Copy)]
pub(super) struct Stroke {
    pub colour: Colour,
    pub width: f64,
    pub dashed: bool,
}

/// Lengths of a dash and of the gap between dashes.
pub(super) const DASH: [f64; 2] = [5.0, 4.5];

/// Width of the white edge around filled shapes.
pub(super) const EDGE: f64 = 0.8;

/// Opacities of areas and dots.
pub(super) const AREA_OPACITY: f64 = 0.22;
pub(super) const DOT_OPACITY: f64 = 0.55;

/// The horizontal alignment of text.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// The style of text.
#[derive(Clone, Copy)]
pub(super) struct Font {
    pub size: f64,
    pub bold: bool,
    pub colour: Colour,
}

pub(super) trait Canvas {
    /// A line through points.
    fn polyline(&mut self, points: &[Point], stroke: Stroke);
    /// A filled shape with a white edge.
    fn polygon(&mut self, points: &[Point], fill: Colour);
    /// A filled circle with a white edge.
    fn circle(&mut self, centre: Point, radius: f64, fill: Colour);
    /// A translucent shape without an edge.
    fn area(&mut self, points: &[Point], fill: Colour);
    /// Translucent circles.
    fn dots(&mut self, centres: &[Point], radius: f64, fill: Colour);
    /// Text with its baseline at a point. Text in `^{…}` is raised. With `upwards` the text is rotated about the point.
    fn text(&mut self, at: Point, text: &str, font: Font, anchor: Anchor, upwards: bool);
}

/// A run of text at one height.
#[derive(Debug, PartialEq)]
pub(super) struct Run<'a> {
    pub text: &'a str,
    pub raised: bool,
}

/// Size and rise of raised text, relative to the size of normal text.
pub(super) const RAISED: (f64, f64) = (0.72, 0.42);

/// Splits text at `^{…}`.
pub(super) fn runs(text: &str) -> Vec<Run<'_>> {
    let mut runs = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("^{") {
        let Some((inside, after)) = after.split_once('}') else { break };
        runs.extend([Run { text: before, raised: false }, Run { text: inside, raised: true }]);
        rest = after;
    }
    runs.push(Run { text: rest, raised: false });
    runs.retain(|run| !run.text.is_empty());
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_closed_brace_raises_text() {
        let raised = |text| runs(text).into_iter().map(|r| (r.text, r.raised)).collect::<Vec<_>>();
        assert_eq!(raised("10^{3} s"), [("10", false), ("3", true), (" s", false)]);
        assert_eq!(raised("x^2, y^{2"), [("x^2, y^{2", false)]);
        assert_eq!(raised(""), []);
    }
}
