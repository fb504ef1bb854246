//! Figures as PNG, two pixels to a point of the SVG.

use std::io;

use tiny_skia::{
    Color, FillRule, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, Stroke as SkiaStroke, StrokeDash, Transform,
};

use super::canvas::{AREA_OPACITY, Anchor, Canvas, Colour, DASH, DOT_OPACITY, EDGE, Font, PAPER, Point, Stroke};
use super::font;

/// Pixels to a point.
pub(super) const SCALE: f32 = 2.0;

/// Largest number of pixels. Each takes four bytes.
const MAX_PIXELS: u64 = 100_000_000;

/// An image in memory.
pub(super) struct Png(Pixmap);

impl Png {
    /// An empty white image.
    pub fn new(width: f64, height: f64) -> io::Result<Png> {
        let pixels = |length: f64| (length as f32 * SCALE).ceil() as u32;
        let (columns, rows) = (pixels(width), pixels(height));
        let small_enough = u64::from(columns) * u64::from(rows) <= MAX_PIXELS;
        let mut pixmap = small_enough.then(|| Pixmap::new(columns, rows)).flatten().ok_or_else(|| {
            let reason =
                format!("a figure of {width:.0} by {height:.0} points is too large for a PNG; SVG has no such limit");
            io::Error::new(io::ErrorKind::InvalidInput, reason)
        })?;
        pixmap.fill(Color::WHITE);
        Ok(Png(pixmap))
    }

    /// The bytes of the file.
    pub fn finish(self) -> io::Result<Vec<u8>> {
        self.0.encode_png().map_err(io::Error::other)
    }

    fn fill(&mut self, path: Option<Path>, colour: Colour, opacity: f64, transform: Transform) {
        if let Some(path) = path {
            self.0.fill_path(&path, &paint(colour, opacity), FillRule::Winding, transform, None);
        }
    }

    fn stroke(&mut self, path: Option<Path>, stroke: Stroke) {
        let Some(path) = path else { return };
        let dash = if stroke.dashed { StrokeDash::new(DASH.map(|x| x as f32).to_vec(), 0.0) } else { None };
        let style = SkiaStroke {
            width: stroke.width as f32,
            line_cap: LineCap::Round,
            line_join: LineJoin::Round,
            dash,
            ..SkiaStroke::default()
        };
        self.0.stroke_path(&path, &paint(stroke.colour, 1.0), &style, Transform::from_scale(SCALE, SCALE), None);
    }

    fn shape(&mut self, path: Option<Path>, fill: Colour) {
        self.fill(path.clone(), fill, 1.0, Transform::from_scale(SCALE, SCALE));
        self.stroke(path, Stroke { colour: PAPER, width: EDGE, dashed: false });
    }
}

fn paint([r, g, b]: Colour, opacity: f64) -> Paint<'static> {
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color_rgba8(r, g, b, (255.0 * opacity).round() as u8);
    paint
}

fn path(points: &[Point], closed: bool) -> Option<Path> {
    let mut builder = PathBuilder::new();
    for (i, &(x, y)) in points.iter().enumerate() {
        let (x, y) = (x as f32, y as f32);
        if i == 0 { builder.move_to(x, y) } else { builder.line_to(x, y) }
    }
    if closed {
        builder.close();
    }
    builder.finish()
}

impl Canvas for Png {
    fn polyline(&mut self, points: &[Point], stroke: Stroke) {
        self.stroke(path(points, false), stroke);
    }

    fn polygon(&mut self, points: &[Point], fill: Colour) {
        self.shape(path(points, true), fill);
    }

    fn circle(&mut self, (x, y): Point, radius: f64, fill: Colour) {
        self.shape(PathBuilder::from_circle(x as f32, y as f32, radius as f32), fill);
    }

    fn area(&mut self, points: &[Point], fill: Colour) {
        self.fill(path(points, true), fill, AREA_OPACITY, Transform::from_scale(SCALE, SCALE));
    }

    fn dots(&mut self, centres: &[Point], radius: f64, fill: Colour) {
        for &(x, y) in centres {
            let circle = PathBuilder::from_circle(x as f32, y as f32, radius as f32);
            self.fill(circle, fill, DOT_OPACITY, Transform::from_scale(SCALE, SCALE));
        }
    }

    fn text(&mut self, (x, y): Point, text: &str, font: Font, anchor: Anchor, upwards: bool) {
        let width = font::width(text, font.size, font.bold);
        let start = match anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => -width / 2.0,
            Anchor::End => -width,
        };
        let mut letters = Outlines { builder: PathBuilder::new(), scale: 1.0, at: (0.0, 0.0) };
        font::outline(text, font.size, font.bold, &mut letters);
        let angle = if upwards { -90.0 } else { 0.0 };
        let transform = Transform::from_translate(start as f32, 0.0)
            .post_concat(Transform::from_rotate(angle))
            .post_translate(x as f32, y as f32)
            .post_scale(SCALE, SCALE);
        self.fill(letters.builder.finish(), font.colour, 1.0, transform);
    }
}

/// Letters as one path. The y axis points up in fonts and down in images.
struct Outlines {
    builder: PathBuilder,
    scale: f32,
    at: (f32, f32),
}

impl Outlines {
    fn map(&self, x: f32, y: f32) -> (f32, f32) {
        (self.at.0 + x * self.scale, -(self.at.1 + y * self.scale))
    }
}

impl font::Letters for Outlines {
    fn begin(&mut self, scale: f64, at: (f64, f64)) {
        self.scale = scale as f32;
        self.at = (at.0 as f32, at.1 as f32);
    }
}

impl ttf_parser::OutlineBuilder for Outlines {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.map(x, y);
        self.builder.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.map(x, y);
        self.builder.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.map(x1, y1), self.map(x, y));
        self.builder.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.map(x1, y1), self.map(x2, y2), self.map(x, y));
        self.builder.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.builder.close();
    }
}
