//! Colours, lines and markers of series.

use super::canvas::{Canvas, Colour, Point, Stroke};
use super::plot::Style;

/// Colour-blind safe colours: those of Okabe and Ito, then three of Tol's.
pub(super) const PALETTE: [Colour; 10] = [
    [0x00, 0x72, 0xb2],
    [0xd5, 0x5e, 0x00],
    [0x00, 0x9e, 0x73],
    [0xcc, 0x79, 0xa7],
    [0xe6, 0x9f, 0x00],
    [0x56, 0xb4, 0xe9],
    [0x33, 0x22, 0x88],
    [0x99, 0x99, 0x33],
    [0x88, 0x22, 0x55],
    [0x55, 0x55, 0x55],
];

const LINE: f64 = 1.7;
const DOT: f64 = 1.9;

/// Colour and marker of a series.
#[derive(Clone, Copy)]
pub(super) struct Look {
    colour: Colour,
    marker: usize,
}

impl Look {
    /// The look of series `index`. Colours repeat after ten, with other markers.
    pub fn of(index: usize) -> Look {
        let round = index / PALETTE.len();
        Look { colour: PALETTE[index % PALETTE.len()], marker: (index + 3 * round) % PALETTE.len() }
    }
}

/// A line through points, where the style has one.
pub(super) fn draw_line(canvas: &mut impl Canvas, points: &[Point], style: Style, look: Look) {
    match (style, points) {
        (Style::Markers | Style::Dots | Style::Bars, _) => {}
        // A line of one point is drawn as a circle, because it would be invisible.
        (Style::Line | Style::Dashed | Style::Filled, &[point]) => canvas.circle(point, LINE + 0.5, look.colour),
        (_, [_, _, ..]) => {
            if style == Style::Filled {
                canvas.area(points, look.colour);
            }
            let stroke = Stroke { colour: look.colour, width: LINE, dashed: style == Style::Dashed };
            canvas.polyline(points, stroke);
        }
        _ => {}
    }
}

/// A marker at each point, where the style has them.
pub(super) fn draw_markers(canvas: &mut impl Canvas, points: &[Point], style: Style, look: Look) {
    match style {
        Style::Line | Style::Dashed | Style::Filled | Style::Bars => return,
        Style::Dots => return canvas.dots(points, DOT, look.colour),
        Style::Markers | Style::LineMarkers => {}
    }
    for &(x, y) in points {
        match marker(look.marker) {
            None => canvas.circle((x, y), 3.9, look.colour),
            Some(shape) => {
                let corners: Vec<Point> = shape.into_iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
                canvas.polygon(&corners, look.colour);
            }
        }
    }
}

/// A bar between two x coordinates and two y coordinates.
pub(super) fn draw_bar(canvas: &mut impl Canvas, (x0, x1): Point, (y0, y1): Point, look: Look) {
    canvas.polygon(&[(x0, y0), (x1, y0), (x1, y1), (x0, y1)], look.colour);
}

/// The key of a series in the legend: a line of the given length from a point.
pub(super) fn draw_key(canvas: &mut impl Canvas, (x, y): Point, length: f64, style: Style, look: Look) {
    let (left, right, middle) = (x + 0.2 * length, x + 0.8 * length, x + length / 2.0);
    match style {
        Style::Bars => draw_bar(canvas, (left, right), (y - 5.5, y + 5.5), look),
        Style::Filled => {
            let outline = [(left, y + 5.5), (left, y - 5.5), (right, y - 5.5), (right, y + 5.5)];
            draw_line(canvas, &outline, style, look);
        }
        // Larger than in the panel, so that its colour is visible.
        Style::Dots => canvas.dots(&[(middle, y)], 2.0 * DOT, look.colour),
        _ => {
            draw_line(canvas, &[(x, y), (x + length, y)], style, look);
            draw_markers(canvas, &[(middle, y)], style, look);
        }
    }
}

/// Corners of a marker around its centre. None for the circle. Radii give all markers the same visual weight.
fn marker(kind: usize) -> Option<Vec<Point>> {
    // Corners on circles of alternating radii, from an angle clockwise from the top.
    let star = |corners: usize, radii: &[f64], first: f64| -> Vec<Point> {
        let corner = |i: usize| {
            let angle = (first + 360.0 * i as f64 / corners as f64).to_radians();
            let radius = radii[i % radii.len()];
            (radius * angle.sin(), -radius * angle.cos())
        };
        (0..corners).map(corner).collect()
    };
    // A cross, rotated by an angle.
    let cross = |angle: f64| -> Vec<Point> {
        let (long, half) = (4.9, 1.5);
        let quarter = [(-half, -long), (half, -long), (half, -half)];
        let rotated = |(x, y): Point, degrees: f64| {
            let (sin, cos) = degrees.to_radians().sin_cos();
            (x * cos - y * sin, x * sin + y * cos)
        };
        (0..4).flat_map(|q| quarter.map(|p| rotated(p, angle + 90.0 * q as f64))).collect()
    };
    Some(match kind {
        1 => star(4, &[4.9], 45.0),
        2 => star(3, &[5.2], 0.0),
        3 => star(4, &[5.1], 0.0),
        4 => star(3, &[5.2], 180.0),
        5 => cross(0.0),
        6 => cross(45.0),
        7 => star(5, &[4.6], 0.0),
        8 => star(10, &[5.8, 2.5], 0.0),
        9 => star(6, &[4.6], 30.0),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_beyond_the_palette_differ_by_their_markers() {
        let looks: std::collections::HashSet<_> = (0..30).map(|i| (Look::of(i).colour, Look::of(i).marker)).collect();
        assert_eq!(looks.len(), 30);
    }
}
