//! Layout of a figure. Margins fit their text. The legend is to the right of a single panel and below several.

use super::canvas::{Anchor, Canvas, Font, INK, Point};
use super::frame::{Frame, INSET, LABEL, PanelPlan, TICK, plan, text_width};
use super::marks::{Look, draw_key};
use super::plot::{Figure, Panel, Series};

const TITLE: Font = Font { size: 15.0, bold: true, colour: INK };

/// Margin of the figure.
const MARGIN: f64 = 14.0;
/// Gap between panels.
const GAP: f64 = 20.0;
/// Height of a line of the legend, length of the line drawn in it.
const LEGEND: (f64, f64) = (19.0, 28.0);

/// Whether panel `i` shows its y label. A neighbour to the left with the same label makes it redundant.
fn shows_y_label(panels: &[PanelPlan], columns: usize, i: usize) -> bool {
    let label = &panels[i].panel.y.label;
    !label.is_empty() && (i.is_multiple_of(columns) || panels[i - 1].panel.y.label != *label)
}

/// A figure with all lengths computed.
pub(super) struct Layout<'a> {
    figure: &'a Figure,
    pub width: f64,
    pub height: f64,
    panels: Vec<PanelPlan<'a>>,
    /// Left end of each column's area. The y labels are to the left of it.
    lefts: Vec<f64>,
    /// Height of a row of panels with titles and labels.
    row_height: f64,
    /// Size of the area between the axes.
    area: (f64, f64),
    /// Top of the first row.
    first_row: f64,
    /// Distance from the top of a row to its areas.
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

        // Half of a label may extend beyond the end of the x axis.
        let right = panels.iter().filter_map(|p| p.x.major.last()).map(|(_, l)| text_width(l, TICK) / 2.0 - INSET);
        let right = right.fold(0.0, f64::max).ceil();
        let mut lefts = Vec::new();
        let mut end = -GAP;
        for column in 0..columns {
            let inside = (column..panels.len()).step_by(columns);
            let label_width = inside
                .map(|i| panels[i].tick_label_width() + if shows_y_label(&panels, columns, i) { 20.0 } else { 0.0 });
            lefts.push(end + GAP + label_width.fold(0.0, f64::max));
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
        // The number of columns that fit below the panels, reduced as long as the number of lines stays the same.
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
                let at = (frame.left - plan.tick_label_width() - 9.0, frame.top + frame.height / 2.0);
                canvas.text(at, &plan.panel.y.label, LABEL, Anchor::Middle, true);
            }
            for (j, series) in plan.panel.series.iter().enumerate() {
                frame.draw_series(canvas, series, self.look(series, j));
            }
        }
        for (i, &(series, look)) in self.legend.iter().enumerate() {
            // Column by column.
            let rows = self.legend.len().div_ceil(self.legend_columns);
            let x = self.legend_at.0 + (i / rows) as f64 * self.legend_column;
            let y = self.legend_at.1 + (i % rows) as f64 * LEGEND.0 + LEGEND.0 / 2.0;
            draw_key(canvas, (x, y), LEGEND.1, series.style, look);
            canvas.text((x + LEGEND.1 + 8.0, y + 4.2), &series.name, LABEL, Anchor::Start, false);
        }
    }

    /// The look of a series by its name, or by its index in the panel if it has no name.
    fn look(&self, series: &Series, index: usize) -> Look {
        let named = self.legend.iter().find(|(s, _)| !s.name.is_empty() && s.name == series.name);
        named.map_or(Look::of(index), |(_, look)| *look)
    }
}

/// Series of the legend: each name once, in order of appearance.
fn legend(figure: &Figure) -> Vec<(&Series, Look)> {
    let mut legend: Vec<(&Series, Look)> = Vec::new();
    for series in figure.panels.iter().flat_map(|panel| &panel.series) {
        if !series.name.is_empty() && legend.iter().all(|(s, _)| s.name != series.name) {
            legend.push((series, Look::of(legend.len())));
        }
    }
    legend
}

#[cfg(test)]
mod tests {
    use super::super::plot::Axis;
    use super::*;

    #[test]
    fn the_legend_is_outside_of_the_panels() {
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
