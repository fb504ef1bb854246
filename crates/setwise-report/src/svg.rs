//! Figures as SVG. Text stays text, so that it can be searched and edited.

use std::fmt::Write;

use super::canvas::{
    AREA_OPACITY, Anchor, Canvas, Colour, DASH, DOT_OPACITY, EDGE, Font, PAPER, Point, RAISED, Stroke, runs,
};

/// The elements of an SVG file.
pub(super) struct Svg(String);

impl Svg {
    /// An empty white image. Screen readers read the title.
    pub fn new(width: f64, height: f64, title: &str) -> Svg {
        let (w, h) = (number(width), number(height));
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" \
             font-family=\"'Noto Sans', Helvetica, Arial, sans-serif\">\n"
        );
        if !title.is_empty() {
            svg += &format!("<title>{}</title>\n", escaped(title));
        }
        svg += &format!("<rect width=\"{w}\" height=\"{h}\" fill=\"{}\"/>\n", colour(PAPER));
        Svg(svg)
    }

    /// The complete file.
    pub fn finish(mut self) -> String {
        self.0 += "</svg>\n";
        self.0
    }

    fn push(&mut self, element: std::fmt::Arguments) {
        self.0.write_fmt(element).expect("a write to memory");
        self.0.push('\n');
    }
}

/// A number with at most two decimals, without trailing zeros.
fn number(x: f64) -> String {
    let text = format!("{x:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

/// A colour as SVG and CSS write it.
pub(super) fn colour([r, g, b]: Colour) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

fn coordinates(points: &[Point]) -> String {
    points.iter().map(|&(x, y)| format!("{},{}", number(x), number(y))).collect::<Vec<_>>().join(" ")
}

/// Escaped text in which a number and its percent sign stay together.
pub(super) fn unbroken(text: &str) -> String {
    escaped(text).replace(" %", "\u{a0}%")
}

/// Escapes text for XML and HTML. Control characters, which XML forbids, become the replacement character.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&apos;",
            '\t' | '\n' | '\r' => escaped.push(' '),
            '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

impl Canvas for Svg {
    fn polyline(&mut self, points: &[Point], stroke: Stroke) {
        let dash = if stroke.dashed { format!(" stroke-dasharray=\"{} {}\"", DASH[0], DASH[1]) } else { String::new() };
        self.push(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linecap=\"round\" \
             stroke-linejoin=\"round\"{dash}/>",
            coordinates(points),
            colour(stroke.colour),
            number(stroke.width),
        ));
    }

    fn polygon(&mut self, points: &[Point], fill: Colour) {
        let (points, fill, paper) = (coordinates(points), colour(fill), colour(PAPER));
        self.push(format_args!(
            "<polygon points=\"{points}\" fill=\"{fill}\" stroke=\"{paper}\" stroke-width=\"{EDGE}\" \
             stroke-linejoin=\"round\"/>"
        ));
    }

    fn circle(&mut self, (x, y): Point, radius: f64, fill: Colour) {
        let (x, y, radius, fill, paper) = (number(x), number(y), number(radius), colour(fill), colour(PAPER));
        self.push(format_args!(
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" fill=\"{fill}\" stroke=\"{paper}\" stroke-width=\"{EDGE}\"/>"
        ));
    }

    fn area(&mut self, points: &[Point], fill: Colour) {
        let (points, fill) = (coordinates(points), colour(fill));
        self.push(format_args!("<polygon points=\"{points}\" fill=\"{fill}\" fill-opacity=\"{AREA_OPACITY}\"/>"));
    }

    fn dots(&mut self, centres: &[Point], radius: f64, fill: Colour) {
        let (radius, fill) = (number(radius), colour(fill));
        self.push(format_args!("<g fill=\"{fill}\" fill-opacity=\"{DOT_OPACITY}\">"));
        for &(x, y) in centres {
            let (x, y) = (number(x), number(y));
            self.push(format_args!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\"/>"));
        }
        self.push(format_args!("</g>"));
    }

    fn text(&mut self, (x, y): Point, text: &str, font: Font, anchor: Anchor, upwards: bool) {
        if text.is_empty() {
            return;
        }
        let (x, y, size) = (number(x), number(y), number(font.size));
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let bold = if font.bold { " font-weight=\"bold\"" } else { "" };
        let rotation = if upwards { format!(" transform=\"rotate(-90 {x} {y})\"") } else { String::new() };
        let mut inside = String::new();
        let mut was_raised = false;
        for run in runs(text) {
            let (small, rise) = (number(font.size * RAISED.0), number(font.size * RAISED.1));
            let text = escaped(run.text);
            inside += &match (run.raised, was_raised) {
                (true, false) => format!("<tspan dy=\"-{rise}\" font-size=\"{small}\">{text}</tspan>"),
                (true, true) => format!("<tspan font-size=\"{small}\">{text}</tspan>"),
                (false, true) => format!("<tspan dy=\"{rise}\">{text}</tspan>"),
                (false, false) => text,
            };
            was_raised = run.raised;
        }
        let fill = colour(font.colour);
        self.push(format_args!(
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" fill=\"{fill}\" text-anchor=\"{anchor}\"{bold}{rotation}>\
             {inside}</text>"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_trailing_zeros() {
        assert_eq!(number(1.0), "1");
        assert_eq!(number(0.125), "0.12");
        assert_eq!(number(-0.001), "0");
        assert_eq!(number(100.0), "100");
    }

    #[test]
    fn text_with_markup_and_control_characters_is_valid_xml() {
        let mut svg = Svg::new(10.0, 10.0, "a < b & \"c\"");
        let font = Font { size: 10.0, bold: true, colour: [0; 3] };
        svg.text((1.0, 2.0), "</text>\u{1}\u{ffff} 10^{<3>} & s^{a}^{b}", font, Anchor::End, true);
        let svg = svg.finish();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let text = document.descendants().find(|n| n.has_tag_name("text")).unwrap();
        let all: String = text.descendants().filter(|n| n.is_text()).filter_map(|n| n.text()).collect();
        assert_eq!(all, "</text>\u{fffd}\u{fffd} 10<3> & sab");
    }
}
