//! One panel: its ticks, axes and series.

use super::canvas::{AXIS, Anchor, Canvas, Font, GRID, INK, Point, Stroke};
use super::font;
use super::marks::{Look, draw_bar, draw_line, draw_markers};
use super::plot::{Axis, Panel, Scale, Series, Style};
use super::ticks::{self, LARGEST, Ticks};

const PANEL_TITLE: Font = Font { size: 12.5, bold: true, colour: INK };
pub(super) const LABEL: Font = Font { size: 12.0, bold: false, colour: INK };
pub(super) const TICK: Font = Font { size: 11.0, bold: false, colour: INK };

/// Distance between the frame and the ends of the axes, so that markers at the ends are not clipped.
pub(super) const INSET: f64 = 8.0;

/// Largest thickness of a bar.
const MAX_BAR_THICKNESS: f64 = 26.0;

pub(super) fn text_width(text: &str, font: Font) -> f64 {
    font::width(text, font.size, font.bold)
}

/// A panel with its ticks.
pub(super) struct PanelPlan<'a> {
    pub panel: &'a Panel,
    pub x: Ticks,
    y: Ticks,
}

impl PanelPlan<'_> {
    /// Width of the tick labels of the y axis.
    pub fn tick_label_width(&self) -> f64 {
        self.y.major.iter().map(|(_, label)| text_width(label, TICK)).fold(0.0, f64::max).ceil() + 8.0
    }
}

/// Chooses the ticks: as many as fit with space between their labels.
pub(super) fn plan(panel: &Panel, area: (f64, f64)) -> PanelPlan<'_> {
    // Logarithmic ticks are uneven and few, so they may be closer.
    let spacing = if panel.y.scale == Scale::Log { 26.0 } else { 38.0 };
    let y = match &panel.y.names[..] {
        [] => axis_ticks(panel, &panel.y, |p| p.1, false, (area.1 / spacing) as usize),
        names => named_ticks(names),
    };
    let bars = panel.series.iter().any(|series| series.style == Style::Bars);
    let max_ticks = (area.0 / 45.0) as usize;
    let fits = |ticks: &Ticks| {
        let position = |v: f64| fraction(v, ticks, panel.x.scale) * (area.0 - 2.0 * INSET);
        ticks.major.windows(2).all(|pair| {
            let spacing = (text_width(&pair[0].1, TICK) + text_width(&pair[1].1, TICK)) / 2.0 + 8.0;
            position(pair[1].0) - position(pair[0].0) >= spacing
        })
    };
    let candidates =
        (1..=max_ticks.max(2)).rev().map(|max_ticks| axis_ticks(panel, &panel.x, |p| p.0, bars, max_ticks));
    let mut last = None;
    let x = candidates.inspect(|ticks| last = Some(ticks.clone())).find(fits);
    let x = x.or(last).unwrap_or_else(|| ticks::linear(0.0, 1.0, 2, false));
    PanelPlan { panel, x, y }
}

/// Ticks of names, the first at the top.
fn named_ticks(names: &[String]) -> Ticks {
    let major = names.iter().enumerate().map(|(i, name)| (i as f64, name.clone())).collect();
    Ticks { lo: names.len() as f64 - 0.5, hi: -0.5, major, minor: Vec::new() }
}

/// Ticks that cover the data, and zero for bars.
fn axis_ticks(
    panel: &Panel,
    axis: &Axis,
    coordinate: fn(&(f64, f64)) -> f64,
    from_zero: bool,
    max_ticks: usize,
) -> Ticks {
    let drawn = |v: f64| can_draw(v, axis.scale);
    let fixed = axis.range.filter(|&(lo, hi)| drawn(lo) && drawn(hi) && lo < hi);
    let points = panel.series.iter().flat_map(|series| &series.points);
    // A point that cannot be drawn on one axis does not extend the other axis.
    let points = points.filter(|p| can_draw(p.0, panel.x.scale) && can_draw(p.1, panel.y.scale)).map(coordinate);
    let zero = (from_zero && axis.scale == Scale::Linear).then_some(0.0);
    let data = points.chain(zero).fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), v| (lo.min(v), hi.max(v)));
    let nothing = if axis.scale == Scale::Log { (1.0, 10.0) } else { (0.0, 1.0) };
    let (lo, hi) = fixed.unwrap_or(if data.0 <= data.1 { data } else { nothing });
    match axis.scale {
        Scale::Linear => ticks::linear(lo, hi, max_ticks.max(1), fixed.is_some()),
        Scale::Log => ticks::log(lo, hi, max_ticks.max(1), fixed.is_some()),
    }
}

fn can_draw(v: f64, scale: Scale) -> bool {
    v.abs() <= LARGEST && (scale == Scale::Linear || v >= 1.0 / LARGEST)
}

/// Position of a value on its axis, from 0 to 1. Values far outside of a fixed range are clamped.
fn fraction(v: f64, ticks: &Ticks, scale: Scale) -> f64 {
    let fraction = match scale {
        Scale::Linear => (v - ticks.lo) / (ticks.hi - ticks.lo),
        Scale::Log => (v.log10() - ticks.lo.log10()) / (ticks.hi.log10() - ticks.lo.log10()),
    };
    fraction.clamp(-1e6, 1e6)
}

/// A panel and its position in the figure.
pub(super) struct Frame<'a> {
    pub plan: &'a PanelPlan<'a>,
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

impl Frame<'_> {
    fn x(&self, v: f64) -> f64 {
        self.left + INSET + fraction(v, &self.plan.x, self.plan.panel.x.scale) * (self.width - 2.0 * INSET)
    }

    fn y(&self, v: f64) -> f64 {
        let share = fraction(v, &self.plan.y, self.plan.panel.y.scale);
        self.top + self.height - INSET - share * (self.height - 2.0 * INSET)
    }

    pub fn draw_axes(&self, canvas: &mut impl Canvas) {
        let PanelPlan { panel, x, y } = self.plan;
        let (right, bottom) = (self.left + self.width, self.top + self.height);
        // Thin lines are sharp at centres of pixels.
        let sharp = |v: f64| v.floor() + 0.5;
        let stroke = |colour| Stroke { colour, width: 1.0, dashed: false };
        for (v, _) in &x.major {
            let at = sharp(self.x(*v));
            canvas.polyline(&[(at, self.top), (at, bottom)], stroke(GRID));
        }
        // Names need no grid lines, because they are not values.
        let numbers = panel.y.names.is_empty();
        for (v, _) in y.major.iter().filter(|_| numbers) {
            let at = sharp(self.y(*v));
            canvas.polyline(&[(self.left, at), (right, at)], stroke(GRID));
        }
        if x.lo < 0.0 && x.hi > 0.0 && panel.series.iter().any(|series| series.style == Style::Bars) {
            let at = sharp(self.x(0.0));
            canvas.polyline(&[(at, self.top), (at, bottom)], stroke(AXIS));
        }
        let (l, b) = (sharp(self.left), sharp(bottom));
        canvas.polyline(&[(l, self.top), (l, b), (right, b)], stroke(AXIS));
        for v in &x.minor {
            let at = sharp(self.x(*v));
            canvas.polyline(&[(at, b), (at, b + 2.0)], stroke(AXIS));
        }
        for v in &y.minor {
            let at = sharp(self.y(*v));
            canvas.polyline(&[(l - 2.0, at), (l, at)], stroke(AXIS));
        }
        for (v, label) in &x.major {
            let at = self.x(*v);
            canvas.polyline(&[(sharp(at), b), (sharp(at), b + 4.0)], stroke(AXIS));
            canvas.text((at, b + 16.5), label, TICK, Anchor::Middle, false);
        }
        for (v, label) in &y.major {
            let at = self.y(*v);
            if numbers {
                canvas.polyline(&[(l - 4.0, sharp(at)), (l, sharp(at))], stroke(AXIS));
            }
            canvas.text((l - 7.0, at + 4.0), label, TICK, Anchor::End, false);
        }
        let middle = self.left + self.width / 2.0;
        canvas.text((middle, self.top - 8.0), &panel.title, PANEL_TITLE, Anchor::Middle, false);
        canvas.text((middle, b + 35.0), &panel.x.label, LABEL, Anchor::Middle, false);
    }

    pub fn draw_series(&self, canvas: &mut impl Canvas, series: &Series, look: Look) {
        let panel = self.plan.panel;
        let drawn = |&&(x, y): &&(f64, f64)| can_draw(x, panel.x.scale) && can_draw(y, panel.y.scale);
        let position = |&(x, y): &(f64, f64)| (self.x(x), self.y(y));
        if series.style == Style::Bars {
            let (offset, thickness) = self.band(series);
            for (x, y) in series.points.iter().filter(drawn).map(position).filter(|p| self.holds((self.left, p.1))) {
                let (left, right, top, bottom) = self.bounds();
                let across = |x: f64| x.clamp(left, right);
                let base = if panel.x.scale == Scale::Linear { across(self.x(0.0)) } else { left };
                let (y0, y1) = (y + offset - thickness / 2.0, y + offset + thickness / 2.0);
                draw_bar(canvas, (base, across(x)), (y0.clamp(top, bottom), y1.clamp(top, bottom)), look);
            }
            return;
        }
        for stretch in series.points.split(|p| !drawn(&p)) {
            let points: Vec<Point> = stretch.iter().map(position).collect();
            for line in self.clip(&points) {
                draw_line(canvas, &line, series.style, look);
            }
        }
        let points: Vec<Point> = series.points.iter().filter(drawn).map(position).filter(|&p| self.holds(p)).collect();
        draw_markers(canvas, &points, series.style, look);
    }

    /// Offset and thickness of a series' bars. Bars of several series are side by side.
    fn band(&self, series: &Series) -> (f64, f64) {
        let bars = || self.plan.panel.series.iter().filter(|s| s.style == Style::Bars);
        let (count, index) = (bars().count().max(1), bars().position(|s| std::ptr::eq(s, series)).unwrap_or(0));
        let thickness = (0.78 * (self.y(1.0) - self.y(0.0)).abs() / count as f64).clamp(1.0, MAX_BAR_THICKNESS);
        ((index as f64 - (count as f64 - 1.0) / 2.0) * thickness, thickness)
    }

    /// Bounds of the frame, with a tolerance of half a point for rounding.
    fn bounds(&self) -> (f64, f64, f64, f64) {
        (self.left - 0.5, self.left + self.width + 0.5, self.top - 0.5, self.top + self.height + 0.5)
    }

    fn holds(&self, (x, y): Point) -> bool {
        let (left, right, top, bottom) = self.bounds();
        (left..=right).contains(&x) && (top..=bottom).contains(&y)
    }

    /// Clips a line to the frame. A line of one point stays a point.
    fn clip(&self, points: &[Point]) -> Vec<Vec<Point>> {
        if let &[point] = points {
            return if self.holds(point) { vec![vec![point]] } else { Vec::new() };
        }
        let mut lines: Vec<Vec<Point>> = Vec::new();
        for pair in points.windows(2) {
            let Some((a, b)) = self.clip_segment(pair[0], pair[1]) else { continue };
            match lines.last_mut() {
                Some(line) if line.last() == Some(&a) && a == pair[0] => line.push(b),
                _ => lines.push(vec![a, b]),
            }
        }
        lines
    }

    /// Clips a segment to the frame (Liang and Barsky): each edge bounds t in a + t·(b − a).
    fn clip_segment(&self, a: Point, b: Point) -> Option<(Point, Point)> {
        if self.holds(a) && self.holds(b) {
            return Some((a, b));
        }
        let (left, right, top, bottom) = self.bounds();
        let (dx, dy) = (b.0 - a.0, b.1 - a.1);
        let (mut enter, mut leave) = (0.0f64, 1.0f64);
        for (towards, distance) in [(-dx, a.0 - left), (dx, right - a.0), (-dy, a.1 - top), (dy, bottom - a.1)] {
            if towards == 0.0 {
                if distance < 0.0 {
                    return None;
                }
            } else if towards < 0.0 {
                enter = enter.max(distance / towards);
            } else {
                leave = leave.min(distance / towards);
            }
        }
        let inside = |p: Point| (p.0.clamp(left, right), p.1.clamp(top, bottom));
        let at = |t: f64| inside((a.0 + t * dx, a.1 + t * dy));
        if enter < leave {
            Some((if enter == 0.0 { a } else { at(enter) }, if leave == 1.0 { b } else { at(leave) }))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A panel at offset (100, 100) with axes from 0 to 10.
    fn with_frame(check: impl Fn(Frame)) {
        let panel = Panel::new("", Axis::linear("").with_range(0.0, 10.0), Axis::linear("").with_range(0.0, 10.0));
        let plan = plan(&panel, (216.0, 216.0));
        check(Frame { plan: &plan, left: 100.0, top: 100.0, width: 216.0, height: 216.0 });
    }

    #[test]
    fn values_lie_between_the_axes_with_y_upwards() {
        with_frame(|frame| {
            assert_eq!((frame.x(0.0), frame.x(10.0)), (108.0, 308.0));
            assert_eq!((frame.y(0.0), frame.y(10.0)), (308.0, 108.0));
        });
    }

    #[test]
    fn lines_are_clipped_to_the_frame() {
        with_frame(|frame| {
            let (left, right, top, bottom) = frame.bounds();
            let out_and_in = [(200.0, 200.0), (200.0, 0.0), (250.0, 0.0), (250.0, 200.0)];
            let expected = vec![vec![(200.0, 200.0), (200.0, top)], vec![(250.0, top), (250.0, 200.0)]];
            let rounded = |line: Vec<Point>| line.into_iter().map(|(x, y)| (x, (y * 1e6).round() / 1e6)).collect();
            let parts: Vec<Vec<Point>> = frame.clip(&out_and_in).into_iter().map(rounded).collect();
            assert_eq!(parts, expected);
            let across = frame.clip(&[(0.0, 200.0), (1e9, 200.0)]);
            assert_eq!(across, vec![vec![(left, 200.0), (right, 200.0)]]);
            assert!(frame.clip(&[(0.0, 0.0), (0.0, bottom)]).is_empty());
            let inside = [(200.0, 200.0), (210.0, 220.0), (220.0, 200.0)];
            assert_eq!(frame.clip(&inside), vec![inside.to_vec()]);
        });
    }

    #[test]
    fn bars_start_at_zero_and_are_side_by_side_from_the_first_name_down() {
        let names = ["a".to_owned(), "b".to_owned()];
        let bars = |name: &str| Series::new(name, [(4.0, 0.0), (2.0, 1.0)]).with_style(Style::Bars);
        let panel = Panel::new("", Axis::linear(""), Axis::names(names)).with_series(bars("x")).with_series(bars("y"));
        let plan = plan(&panel, (216.0, 100.0));
        let frame = Frame { plan: &plan, left: 0.0, top: 0.0, width: 216.0, height: 100.0 };
        assert_eq!(plan.x.lo, 0.0);
        assert!(frame.y(0.0) < frame.y(1.0));
        let [first, second] = [0, 1].map(|i| frame.band(&panel.series[i]));
        assert!(first.0 + first.1 <= second.0 + 1e-9 && second.0 + second.1 < frame.y(1.0) - frame.y(0.0));
    }
}
