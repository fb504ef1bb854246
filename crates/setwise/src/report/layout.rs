//! Where everything of a figure goes: margins are as wide as the text in them, and the legend stands outside of the
//! panels, to the right of a single one and below several.

use super::canvas::{Anchor, Canvas, Colour, Font, Point, Stroke};
use super::font;
use super::marks::{Look, draw_line, draw_markers};
use super::plot::{Axis, Figure, Panel, Scale, Series};
use super::ticks::{self, LARGEST, Ticks};

const INK: Colour = [0x22, 0x22, 0x22];
const AXIS: Colour = [0x55, 0x55, 0x55];
const GRID: Colour = [0xe4, 0xe4, 0xe4];

const TITLE: Font = Font { size: 15.0, bold: true, colour: INK };
const PANEL_TITLE: Font = Font { size: 12.5, bold: true, colour: INK };
const LABEL: Font = Font { size: 12.0, bold: false, colour: INK };
const TICK: Font = Font { size: 11.0, bold: false, colour: INK };

/// White around everything.
const MARGIN: f64 = 14.0;
/// Between the frame and the ends of the axes, so that markers at the ends are whole.
const INSET: f64 = 8.0;
/// Between panels.
const GAP: f64 = 20.0;
/// Height of a line of the legend, length of the line drawn in it.
const LEGEND: (f64, f64) = (19.0, 28.0);

struct PanelPlan<'a> {
    panel: &'a Panel,
    x: Ticks,
    y: Ticks,
}

impl PanelPlan<'_> {
    /// What the labels of the y axis's ticks need.
    fn tick_room(&self) -> f64 {
        self.y.major.iter().map(|(_, label)| text_width(label, TICK)).fold(0.0, f64::max).ceil() + 8.0
    }
}

/// The label of a neighbour with the same axis would only be repeated.
fn shows_y_label(panels: &[PanelPlan], columns: usize, i: usize) -> bool {
    let label = &panels[i].panel.y.label;
    !label.is_empty() && (i.is_multiple_of(columns) || panels[i - 1].panel.y.label != *label)
}

/// A figure with all lengths known.
pub(super) struct Layout<'a> {
    figure: &'a Figure,
    pub width: f64,
    pub height: f64,
    panels: Vec<PanelPlan<'a>>,
    /// The left end of each column's area; its y labels stand to the left of it.
    lefts: Vec<f64>,
    /// Of a row of panels with their titles and labels.
    row_height: f64,
    /// Of the area between the axes.
    area: (f64, f64),
    /// Of the first row, and from there to its area.
    first_row: f64,
    top: f64,
    columns: usize,
    legend: Vec<(&'a Series, Look)>,
    legend_at: Point,
    legend_columns: usize,
    legend_column: f64,
}

impl<'a> Layout<'a> {
    pub fn new(figure: &'a Figure) -> Layout<'a> {
        let columns = figure.columns.min(figure.panels.len()).max(1);
        let area = figure.panel_size.unwrap_or(match columns {
            1 => (420.0, 300.0),
            2 => (320.0, 250.0),
            _ => (250.0, 215.0),
        });
        let panels: Vec<PanelPlan> = figure.panels.iter().map(|panel| plan(panel, area)).collect();
        let any = |text: fn(&Panel) -> &str| figure.panels.iter().any(|p| !text(p).is_empty());

        // Half of a label may stand out at the end of the x axis.
        let right = panels.iter().filter_map(|p| p.x.major.last()).map(|(_, l)| text_width(l, TICK) / 2.0 - INSET);
        let right = right.fold(0.0, f64::max).ceil();
        let mut lefts = Vec::new();
        let mut end = -GAP;
        for column in 0..columns {
            let inside = (column..panels.len()).step_by(columns);
            let room =
                inside.map(|i| panels[i].tick_room() + if shows_y_label(&panels, columns, i) { 20.0 } else { 0.0 });
            lefts.push(end + GAP + room.fold(0.0, f64::max));
            end = lefts[column] + area.0 + right;
        }
        let top = if any(|p| &p.title) { 24.0 } else { 4.0 };
        let bottom = 20.0 + if any(|p| &p.x.label) { 20.0 } else { 0.0 };
        let row_height = top + area.1 + bottom;
        let rows = figure.panels.len().div_ceil(columns);
        let (panels_width, panels_height) =
            if rows == 0 { (200.0, 100.0) } else { (end, rows as f64 * (row_height + GAP) - GAP) };
        let title = if figure.title.is_empty() { 0.0 } else { 28.0 };

        let legend = legend(figure);
        let longest = legend.iter().map(|(series, _)| text_width(&series.name, LABEL)).fold(0.0, f64::max).ceil();
        let legend_column = LEGEND.1 + 8.0 + longest + 18.0;
        let beside = columns == 1 && rows <= 1;
        // As many columns as fit below the panels, then as few as need no more lines than that.
        let fitting = ((panels_width / legend_column) as usize).clamp(1, legend.len().max(1));
        let legend_columns =
            if beside { 1 } else { legend.len().div_ceil(legend.len().div_ceil(fitting).max(1)).max(1) };
        let legend_width = legend_columns as f64 * legend_column - 18.0;
        let legend_height = legend.len().div_ceil(legend_columns) as f64 * LEGEND.0;

        let mut width = panels_width;
        let mut height = panels_height;
        let first_row = MARGIN + title;
        let mut first_column = MARGIN;
        let mut legend_at = (0.0, 0.0);
        if legend.is_empty() {
        } else if beside {
            legend_at = (MARGIN + panels_width + GAP, first_row + top);
            width += GAP + legend_width;
            height = height.max(top + legend_height);
        } else {
            width = width.max(legend_width);
            height += 14.0 + legend_height;
            first_column += ((width - panels_width) / 2.0).round();
            legend_at = (MARGIN + ((width - legend_width) / 2.0).round(), first_row + panels_height + 14.0);
        }
        let titles = std::iter::once(text_width(&figure.title, TITLE));
        width = titles.fold(width, f64::max);
        Layout {
            figure,
            width: (width + 2.0 * MARGIN).ceil(),
            height: (height + title + 2.0 * MARGIN).ceil(),
            panels,
            lefts: lefts.into_iter().map(|left| left + first_column).collect(),
            row_height,
            area,
            first_row,
            top,
            columns,
            legend,
            legend_at,
            legend_columns,
            legend_column,
        }
    }

    pub fn draw(&self, canvas: &mut impl Canvas) {
        if !self.figure.title.is_empty() {
            canvas.text((self.width / 2.0, MARGIN + 14.0), &self.figure.title, TITLE, Anchor::Middle, false);
        }
        for (i, plan) in self.panels.iter().enumerate() {
            let (column, row) = (i % self.columns, i / self.columns);
            let frame = Frame {
                plan,
                left: self.lefts[column],
                top: self.first_row + row as f64 * (self.row_height + GAP) + self.top,
                width: self.area.0,
                height: self.area.1,
            };
            frame.draw_axes(canvas);
            if shows_y_label(&self.panels, self.columns, i) {
                let at = (frame.left - plan.tick_room() - 9.0, frame.top + frame.height / 2.0);
                canvas.text(at, &plan.panel.y.label, LABEL, Anchor::Middle, true);
            }
            for (j, series) in plan.panel.series.iter().enumerate() {
                frame.draw_series(canvas, series, self.look(series, j));
            }
        }
        for (i, &(series, look)) in self.legend.iter().enumerate() {
            // Down the columns, as one reads a list.
            let rows = self.legend.len().div_ceil(self.legend_columns);
            let x = self.legend_at.0 + (i / rows) as f64 * self.legend_column;
            let y = self.legend_at.1 + (i % rows) as f64 * LEGEND.0 + LEGEND.0 / 2.0;
            draw_line(canvas, &[(x, y), (x + LEGEND.1, y)], series.style, look);
            draw_markers(canvas, &[(x + LEGEND.1 / 2.0, y)], series.style, look);
            canvas.text((x + LEGEND.1 + 8.0, y + 4.2), &series.name, LABEL, Anchor::Start, false);
        }
    }

    /// By name; a series without one by its place in the panel.
    fn look(&self, series: &Series, place: usize) -> Look {
        let named = self.legend.iter().find(|(s, _)| !s.name.is_empty() && s.name == series.name);
        named.map_or(Look::of(place), |(_, look)| *look)
    }
}

/// Every name once, in the order in which they appear.
fn legend(figure: &Figure) -> Vec<(&Series, Look)> {
    let mut legend: Vec<(&Series, Look)> = Vec::new();
    for series in figure.panels.iter().flat_map(|panel| &panel.series) {
        if !series.name.is_empty() && legend.iter().all(|(s, _)| s.name != series.name) {
            legend.push((series, Look::of(legend.len())));
        }
    }
    legend
}

fn text_width(text: &str, font: Font) -> f64 {
    font::width(text, font.size, font.bold)
}

/// Chooses the ticks: as many as fit between the axes with room between their labels.
fn plan(panel: &Panel, area: (f64, f64)) -> PanelPlan<'_> {
    // Logarithmic ticks are uneven and few: they may stand closer.
    let room = if panel.y.scale == Scale::Log { 26.0 } else { 38.0 };
    let y = axis_ticks(panel, &panel.y, |p| p.1, (area.1 / room) as usize);
    let most = (area.0 / 45.0) as usize;
    let fits = |ticks: &Ticks| {
        let place = |v: f64| fraction(v, ticks, panel.x.scale) * (area.0 - 2.0 * INSET);
        ticks.major.windows(2).all(|pair| {
            let room = (text_width(&pair[0].1, TICK) + text_width(&pair[1].1, TICK)) / 2.0 + 8.0;
            place(pair[1].0) - place(pair[0].0) >= room
        })
    };
    let candidates = (1..=most.max(2)).rev().map(|most| axis_ticks(panel, &panel.x, |p| p.0, most));
    let mut last = None;
    let x = candidates.inspect(|ticks| last = Some(ticks.clone())).find(fits);
    let x = x.or(last).unwrap_or_else(|| ticks::linear(0.0, 1.0, 2, false));
    PanelPlan { panel, x, y }
}

fn axis_ticks(panel: &Panel, axis: &Axis, coordinate: fn(&(f64, f64)) -> f64, most: usize) -> Ticks {
    let drawn = |v: f64| can_draw(v, axis.scale);
    let fixed = axis.range.filter(|&(lo, hi)| drawn(lo) && drawn(hi) && lo < hi);
    let points = panel.series.iter().flat_map(|series| &series.points);
    // A point that cannot be drawn does not stretch the axis on which it could be.
    let points = points.filter(|p| can_draw(p.0, panel.x.scale) && can_draw(p.1, panel.y.scale)).map(coordinate);
    let data = points.fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), v| (lo.min(v), hi.max(v)));
    let nothing = if axis.scale == Scale::Log { (1.0, 10.0) } else { (0.0, 1.0) };
    let (lo, hi) = fixed.unwrap_or(if data.0 <= data.1 { data } else { nothing });
    match axis.scale {
        Scale::Linear => ticks::linear(lo, hi, most.max(1), fixed.is_some()),
        Scale::Log => ticks::log(lo, hi, most.max(1), fixed.is_some()),
    }
}

fn can_draw(v: f64, scale: Scale) -> bool {
    v.abs() <= LARGEST && (scale == Scale::Linear || v >= 1.0 / LARGEST)
}

/// Where a value lies on its axis, from 0 to 1; what lies far outside of a fixed range is brought near enough to reckon
/// with.
fn fraction(v: f64, ticks: &Ticks, scale: Scale) -> f64 {
    let fraction = match scale {
        Scale::Linear => (v - ticks.lo) / (ticks.hi - ticks.lo),
        Scale::Log => (v.log10() - ticks.lo.log10()) / (ticks.hi.log10() - ticks.lo.log10()),
    };
    fraction.clamp(-1e6, 1e6)
}

/// A panel in its place.
struct Frame<'a> {
    plan: &'a PanelPlan<'a>,
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Frame<'_> {
    fn x(&self, v: f64) -> f64 {
        self.left + INSET + fraction(v, &self.plan.x, self.plan.panel.x.scale) * (self.width - 2.0 * INSET)
    }

    fn y(&self, v: f64) -> f64 {
        let share = fraction(v, &self.plan.y, self.plan.panel.y.scale);
        self.top + self.height - INSET - share * (self.height - 2.0 * INSET)
    }

    fn draw_axes(&self, canvas: &mut impl Canvas) {
        let PanelPlan { panel, x, y } = self.plan;
        let (right, bottom) = (self.left + self.width, self.top + self.height);
        // Thin lines are sharp where they fill whole pixels.
        let sharp = |v: f64| v.floor() + 0.5;
        let stroke = |colour| Stroke { colour, width: 1.0, dashed: false };
        for (v, _) in &x.major {
            let at = sharp(self.x(*v));
            canvas.polyline(&[(at, self.top), (at, bottom)], stroke(GRID));
        }
        for (v, _) in &y.major {
            let at = sharp(self.y(*v));
            canvas.polyline(&[(self.left, at), (right, at)], stroke(GRID));
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
            canvas.polyline(&[(l - 4.0, sharp(at)), (l, sharp(at))], stroke(AXIS));
            canvas.text((l - 7.0, at + 4.0), label, TICK, Anchor::End, false);
        }
        let middle = self.left + self.width / 2.0;
        canvas.text((middle, self.top - 8.0), &panel.title, PANEL_TITLE, Anchor::Middle, false);
        canvas.text((middle, b + 35.0), &panel.x.label, LABEL, Anchor::Middle, false);
    }

    fn draw_series(&self, canvas: &mut impl Canvas, series: &Series, look: Look) {
        let panel = self.plan.panel;
        let drawn = |&&(x, y): &&(f64, f64)| can_draw(x, panel.x.scale) && can_draw(y, panel.y.scale);
        let place = |&(x, y): &(f64, f64)| (self.x(x), self.y(y));
        for stretch in series.points.split(|p| !drawn(&p)) {
            let points: Vec<Point> = stretch.iter().map(place).collect();
            for line in self.clip(&points) {
                draw_line(canvas, &line, series.style, look);
            }
        }
        let points: Vec<Point> = series.points.iter().filter(drawn).map(place).filter(|&p| self.holds(p)).collect();
        draw_markers(canvas, &points, series.style, look);
    }

    /// Half a point of slack, so that rounding does not lose what lies on the edge.
    fn bounds(&self) -> (f64, f64, f64, f64) {
        (self.left - 0.5, self.left + self.width + 0.5, self.top - 0.5, self.top + self.height + 0.5)
    }

    fn holds(&self, (x, y): Point) -> bool {
        let (left, right, top, bottom) = self.bounds();
        (left..=right).contains(&x) && (top..=bottom).contains(&y)
    }

    /// The parts of a line inside the frame; a line of one point stays a point.
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

    /// The part of a segment inside the frame (Liang and Barsky): each edge cuts the span of t in a + t·(b − a).
    fn clip_segment(&self, a: Point, b: Point) -> Option<(Point, Point)> {
        if self.holds(a) && self.holds(b) {
            return Some((a, b));
        }
        let (left, right, top, bottom) = self.bounds();
        let (dx, dy) = (b.0 - a.0, b.1 - a.1);
        let (mut enter, mut leave) = (0.0f64, 1.0f64);
        for (towards, room) in [(-dx, a.0 - left), (dx, right - a.0), (-dy, a.1 - top), (dy, bottom - a.1)] {
            if towards == 0.0 {
                if room < 0.0 {
                    return None;
                }
            } else if towards < 0.0 {
                enter = enter.max(room / towards);
            } else {
                leave = leave.min(room / towards);
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

    /// A panel with 100 points to the left and above its area, axes from 0 to 10.
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
    fn lines_are_cut_where_they_leave_the_frame() {
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
    fn the_legend_stands_outside_of_the_panels() {
        let panel = || {
            let panel = Panel::new("d", Axis::linear("x"), Axis::linear("y"));
            (0..12).fold(panel, |p, i| p.with_series(Series::new(format!("series {i}"), [(0.0, i as f64)])))
        };
        let one = Figure::new("").with_panel(panel());
        let layout = Layout::new(&one);
        assert!(layout.legend_at.0 > layout.lefts[0] + layout.area.0);
        let three = one.clone().with_panel(panel()).with_panel(panel());
        let layout = Layout::new(&three);
        assert!(layout.legend_at.1 > layout.first_row + layout.top + layout.area.1 + 30.0);
        assert_eq!(layout.legend.len(), 12);
        let rows = layout.legend.len().div_ceil(layout.legend_columns) as f64;
        assert!(layout.legend_at.1 + rows * LEGEND.0 <= layout.height);
    }
}
