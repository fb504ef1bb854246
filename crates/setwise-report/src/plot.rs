//! Charts: figures of panels, panels of series.

use std::path::Path;

use setwise::files::atomic::write_atomically;
use setwise::{Error, Result};

use super::layout::Layout;
use super::png::Png;
use super::svg::Svg;

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences have equal length.
    Linear,
    /// Equal ratios have equal length. Non-positive values are not drawn.
    Log,
}

/// One axis of a panel. `^{…}` raises text in labels, as in all text of a figure.
#[derive(Clone, Debug)]
pub struct Axis {
    pub(super) label: String,
    pub(super) scale: Scale,
    pub(super) range: Option<(f64, f64)>,
    pub(super) names: Vec<String>,
}

impl Axis {
    /// An axis that fits its data.
    pub fn new(label: impl Into<String>, scale: Scale) -> Axis {
        Axis { label: label.into(), scale, range: None, names: Vec::new() }
    }

    /// A linear axis.
    pub fn linear(label: impl Into<String>) -> Axis {
        Axis::new(label, Scale::Linear)
    }

    /// A logarithmic axis.
    pub fn log(label: impl Into<String>) -> Axis {
        Axis::new(label, Scale::Log)
    }

    /// A y axis of names. Name i is at coordinate i, the first one at the top.
    pub fn names(names: impl IntoIterator<Item = String>) -> Axis {
        Axis { names: names.into_iter().collect(), ..Axis::linear("") }
    }

    /// Sets the range of the axis. Lines are clipped to it. A range that is empty or invalid for the scale is ignored.
    pub fn with_range(mut self, lo: f64, hi: f64) -> Axis {
        self.range = Some((lo, hi));
        self
    }
}

/// The style of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// A line through the points.
    Line,
    /// The points.
    Markers,
    /// Both.
    #[default]
    LineMarkers,
    /// A dashed line, for baselines.
    Dashed,
    /// A line, and a translucent area between it and the segment from its end to its start.
    Filled,
    /// Small translucent points, for samples.
    Dots,
    /// A horizontal bar from zero to each point's x at its y. Bars of several series are side by side.
    Bars,
}

/// A series of points. Points that are not finite, or beyond ±10^300, are omitted and interrupt the line.
#[derive(Clone, Debug)]
pub struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    pub(super) style: Style,
}

impl Series {
    /// A series with lines and markers. Series of the same name share colour, marker and legend entry. A series without
    /// a name is not in the legend.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        Series { name: name.into(), points: points.into_iter().collect(), style: Style::default() }
    }

    /// Sets the style.
    pub fn with_style(mut self, style: Style) -> Series {
        self.style = style;
        self
    }
}

/// A pair of axes with series.
#[derive(Clone, Debug)]
pub struct Panel {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
}

impl Panel {
    /// A panel without data.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Panel {
        Panel { title: title.into(), x, y, series: Vec::new() }
    }

    /// Adds a series, drawn over the earlier ones.
    pub fn with_series(mut self, series: Series) -> Panel {
        self.series.push(series);
        self
    }
}

/// Panels side by side, with one legend for all.
#[derive(Clone, Debug)]
pub struct Figure {
    pub(super) title: String,
    pub(super) panels: Vec<Panel>,
    pub(super) columns: usize,
    pub(super) panel_size: Option<(f64, f64)>,
}

impl Figure {
    /// A figure without panels.
    pub fn new(title: impl Into<String>) -> Figure {
        Figure { title: title.into(), panels: Vec::new(), columns: 3, panel_size: None }
    }

    /// Adds a panel to the right of the last one.
    pub fn with_panel(mut self, panel: Panel) -> Figure {
        self.panels.push(panel);
        self
    }

    /// Sets the number of panels in a row; default 3.
    pub fn with_columns(mut self, columns: usize) -> Figure {
        self.columns = columns.max(1);
        self
    }

    /// The size of the area between the axes of each panel, in points, from 80 to 4000.
    pub fn with_panel_size(mut self, width: f64, height: f64) -> Figure {
        let sensible = |length: f64| if length.is_nan() { 80.0 } else { length.clamp(80.0, 4000.0).round() };
        self.panel_size = Some((sensible(width), sensible(height)));
        self
    }

    /// The figure as the text of an SVG file.
    pub fn to_svg(&self) -> String {
        let layout = Layout::new(self);
        let mut svg = Svg::new(layout.width, layout.height, &self.title);
        layout.draw(&mut svg);
        svg.finish()
    }

    /// The figure as the bytes of a PNG file, two pixels to a point.
    pub fn to_png(&self) -> std::io::Result<Vec<u8>> {
        let layout = Layout::new(self);
        let mut png = Png::new(layout.width, layout.height)?;
        layout.draw(&mut png);
        png.finish()
    }

    /// Writes the figure atomically in the format that the file's extension names: `svg` or `png`.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        const KNOWN: &str = ".svg and .png";
        let path = path.as_ref();
        let bytes = match super::extension(path, KNOWN)?.as_str() {
            "svg" => self.to_svg().into_bytes(),
            "png" => self.to_png().map_err(Error::io(path))?,
            _ => return Err(super::unknown_extension(path, KNOWN)),
        };
        write_atomically(path, &bytes).map_err(Error::io(path))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn figure() -> Figure {
        let panel = |title: &str| {
            Panel::new(title, Axis::linear("ρ & <co>"), Axis::log("error"))
                .with_series(Series::new("a < b", [(-0.9, 0.1), (0.0, 0.0001), (0.9, 0.3)]))
                .with_series(Series::new("truth", [(-0.9, 0.2), (0.9, 0.2)]).with_style(Style::Dashed))
        };
        Figure::new("Tom & \"Jerry\"").with_panel(panel("d = 2")).with_panel(panel("d = 10"))
    }

    fn texts(svg: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(svg).unwrap();
        let texts = document.descendants().filter(|n| n.has_tag_name("text"));
        texts.map(|t| t.descendants().filter(|n| n.is_text()).filter_map(|n| n.text()).collect()).collect()
    }

    #[test]
    fn svg_is_well_formed_and_says_what_was_asked() {
        let texts = texts(&figure().to_svg());
        for expected in ["Tom & \"Jerry\"", "d = 2", "d = 10", "ρ & <co>", "a < b", "truth", "10−1"] {
            assert!(texts.iter().any(|t| t == expected), "{expected} in {texts:?}");
        }
        // One legend, however many panels.
        assert_eq!(texts.iter().filter(|t| *t == "truth").count(), 1);
    }

    #[test]
    fn png_has_twice_the_size_of_the_svg_and_is_not_blank() {
        let svg = figure().to_svg();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let size = |name| document.root_element().attribute(name).unwrap().parse::<f64>().unwrap();
        let pixmap = tiny_skia::Pixmap::decode_png(&figure().to_png().unwrap()).unwrap();
        assert_eq!((pixmap.width() as f64, pixmap.height() as f64), (size("width") * 2.0, size("height") * 2.0));
        let ink = pixmap.pixels().iter().filter(|p| (p.red(), p.green(), p.blue()) != (255, 255, 255)).count();
        let share = ink as f64 / pixmap.pixels().len() as f64;
        assert!((0.005..0.5).contains(&share), "{share}");
        // The edge of the figure stays white.
        assert!(pixmap.pixels()[..pixmap.width() as usize].iter().all(|p| p.red() == 255));
    }

    #[test]
    fn saving_follows_the_extension_and_names_the_known_ones() {
        let folder = tempfile::tempdir().unwrap();
        figure().save(folder.path().join("a.svg")).unwrap();
        figure().save(folder.path().join("a.PNG")).unwrap();
        assert!(std::fs::read(folder.path().join("a.PNG")).unwrap().starts_with(b"\x89PNG"));
        for name in ["a.gif", "a"] {
            let error = figure().save(folder.path().join(name)).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(".svg and .png"), "{error}");
        }
        let error = figure().save(folder.path().join("missing/a.svg")).unwrap_err().to_string();
        assert!(error.contains("missing"), "{error}");
    }

    #[test]
    fn a_figure_without_data_is_valid() {
        let empty = Figure::new("");
        assert!(texts(&empty.to_svg()).is_empty());
        assert!(empty.to_png().is_ok());
        let axes = Figure::new("").with_panel(Panel::new("", Axis::linear(""), Axis::log("")));
        assert!(!texts(&axes.to_svg()).is_empty());
        let empty_series = axes.clone().panels.remove(0).with_series(Series::new("none", []));
        assert!(texts(&Figure::new("").with_panel(empty_series).to_svg()).contains(&"none".into()));
    }

    #[test]
    fn a_figure_too_large_for_pixels_is_an_error() {
        let panel = || Panel::new("", Axis::linear(""), Axis::linear(""));
        let figure = Figure::new("").with_panel_size(4000.0, 4000.0);
        let error = (0..20).fold(figure, |figure, _| figure.with_panel(panel())).to_png().unwrap_err().to_string();
        assert!(error.contains("too large"), "{error}");
    }

    fn any_number() -> impl Strategy<Value = f64> {
        let extremes = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, f64::MAX, f64::MIN, 5e-324];
        prop_oneof![
            4 => -10.0..10.0f64,
            2 => (-320.0..309.0f64).prop_map(|e| 10f64.powf(e)),
            1 => prop::sample::select(extremes.to_vec()),
        ]
    }

    fn any_axis() -> impl Strategy<Value = Axis> {
        let scale = prop::sample::select(vec![Scale::Linear, Scale::Log]);
        (scale, prop::option::of((any_number(), any_number()))).prop_map(|(scale, range)| {
            let axis = Axis::new("x", scale);
            range.map_or(axis.clone(), |(lo, hi)| axis.with_range(lo, hi))
        })
    }

    fn any_y_axis() -> impl Strategy<Value = Axis> {
        let names = prop::collection::vec("[a-c<]{0,3}", 1..5).prop_map(Axis::names);
        prop_oneof![3 => any_axis(), 1 => names]
    }

    fn any_series() -> impl Strategy<Value = Series> {
        let style = prop::sample::select(vec![
            Style::Line,
            Style::Markers,
            Style::LineMarkers,
            Style::Dashed,
            Style::Filled,
            Style::Dots,
            Style::Bars,
        ]);
        (prop::collection::vec((any_number(), any_number()), 0..8), style, "[a-c^{}<&]{0,3}")
            .prop_map(|(points, style, name)| Series::new(name, points).with_style(style))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn any_data_is_drawn_inside_the_figure(
            (x, y) in (any_axis(), any_y_axis()),
            series in prop::collection::vec(any_series(), 0..4),
        ) {
            let panel = series.into_iter().fold(Panel::new("p", x, y), Panel::with_series);
            let figure = Figure::new("t").with_panel(panel).with_panel_size(80.0, 80.0);
            let svg = figure.to_svg();
            let document = roxmltree::Document::parse(&svg).unwrap();
            let size = |name| document.root_element().attribute(name).unwrap().parse::<f64>().unwrap();
            let (width, height) = (size("width"), size("height"));
            for points in document.descendants().filter_map(|n| n.attribute("points")) {
                for point in points.split(' ') {
                    let (x, y) = point.split_once(',').unwrap();
                    let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                    prop_assert!((0.0..=width).contains(&x) && (0.0..=height).contains(&y), "{point}");
                }
            }
            prop_assert!(figure.to_png().is_ok());
        }
    }
}
