//! What a figure is drawn with: the few operations that SVG and PNG both have. Lengths are in points of the SVG, with y
//! downwards.

/// A place on the canvas.
pub(super) type Point = (f64, f64);

/// Red, green, blue.
pub(super) type Colour = [u8; 3];

/// Text, axes, the lines behind the data, and what all is drawn on.
pub(super) const INK: Colour = [0x22, 0x22, 0x22];
pub(super) const AXIS: Colour = [0x55, 0x55, 0x55];
pub(super) const GRID: Colour = [0xe4, 0xe4, 0xe4];
pub(super) const PAPER: Colour = [0xff, 0xff, 0xff];

/// How a line is drawn. Ends and corners are round.
#[derive(Clone, Copy)]
pub(super) struct Stroke {
    pub colour: Colour,
    pub width: f64,
    pub dashed: bool,
}

/// Lengths of a dash and of the gap after it.
pub(super) const DASH: [f64; 2] = [5.0, 4.5];

/// The width of the white edge that keeps filled shapes apart from what lies below them.
pub(super) const EDGE: f64 = 0.8;

/// How much of what lies below an area and a dot they cover.
pub(super) const AREA_OPACITY: f64 = 0.22;
pub(super) const DOT_OPACITY: f64 = 0.55;

/// Which point of a text is given.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// How text is drawn.
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
    /// A lightly filled shape without an edge.
    fn area(&mut self, points: &[Point], fill: Colour);
    /// Circles that let others shine through.
    fn dots(&mut self, centres: &[Point], radius: f64, fill: Colour);
    /// Text with its baseline at a point; what stands in `^{…}` is raised. Text may run upwards, turned about the
    /// point.
    fn text(&mut self, at: Point, text: &str, font: Font, anchor: Anchor, upwards: bool);
}

/// A stretch of text at one height.
#[derive(Debug, PartialEq)]
pub(super) struct Run<'a> {
    pub text: &'a str,
    pub raised: bool,
}

/// Size of raised text, and how far it is raised, in sizes of the text around it.
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
