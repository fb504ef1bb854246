//! A self-contained HTML page of text, tables and figures, without scripts, network access or other files.
//!
//! Colours follow the reader's light or dark mode.

use std::fmt::Write;
use std::path::Path;

use setwise::files::atomic::write_atomically;
use setwise::{Error, Result};

use super::canvas::{AXIS, Colour, GRID, INK, PAPER};
use super::marks::PALETTE;
use super::svg::{colour, escaped};
use super::{Figure, Table};

/// A page, built from top to bottom. All text is escaped.
///
/// ```
/// use setwise_report::Page;
/// let html = Page::new("a < b").with_paragraph("Nothing else.").to_html();
/// assert!(html.contains("<h1>a &lt; b</h1>") && html.contains("<p>Nothing else.</p>"));
/// ```
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    /// A page with a title and nothing else.
    pub fn new(title: impl Into<String>) -> Page {
        Page { title: title.into(), body: String::new() }
    }

    /// Adds an element, whose text is escaped.
    pub(super) fn push(mut self, element: std::fmt::Arguments) -> Page {
        self.body.write_fmt(element).expect("a write to memory");
        self.body.push('\n');
        self
    }

    /// A heading of what follows.
    pub fn with_heading(self, text: &str) -> Page {
        self.push(format_args!("<h2>{}</h2>", escaped(text)))
    }

    /// A paragraph.
    pub fn with_paragraph(self, text: &str) -> Page {
        self.push(format_args!("<p>{}</p>", escaped(text)))
    }

    /// The main result: a large line and a small one below it.
    pub fn with_answer(self, answer: &str, below: &str) -> Page {
        self.push(format_args!("<p class=\"answer\">{}<small>{}</small></p>", escaped(answer), escaped(below)))
    }

    /// A list of terms and descriptions.
    pub fn with_facts<S: AsRef<str>>(self, facts: &[(&str, S)]) -> Page {
        let item = |(term, text): &(&str, S)| format!("<dt>{}</dt><dd>{}</dd>", escaped(term), escaped(text.as_ref()));
        self.push(format_args!("<dl>{}</dl>", facts.iter().map(item).collect::<String>()))
    }

    /// A list of warnings. An empty list adds nothing.
    pub fn with_notes(self, notes: &[String]) -> Page {
        if notes.is_empty() {
            return self;
        }
        let items: String = notes.iter().map(|note| format!("<li>{}</li>", escaped(note))).collect();
        self.push(format_args!("<ul class=\"notes\">{items}</ul>"))
    }

    /// A table with right-aligned numbers.
    pub fn with_table(self, table: &Table) -> Page {
        let cells = |tag: &str, row: Vec<(String, bool)>| -> String {
            let class = |right: bool| if right { " class=\"number\"" } else { "" };
            row.iter().map(|(text, right)| format!("<{tag}{}>{}</{tag}>", class(*right), escaped(text))).collect()
        };
        let mut rows = table.texts().into_iter();
        let heading = cells("th", rows.next().unwrap_or_default());
        let rows: String = rows.map(|row| format!("<tr>{}</tr>\n", cells("td", row))).collect();
        let caption = match table.title() {
            "" => String::new(),
            title => format!("<caption>{}</caption>", escaped(title)),
        };
        self.push(format_args!(
            "<div class=\"wide\"><table>{caption}<thead><tr>{heading}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
        ))
    }

    /// A figure with a caption below it.
    pub fn with_figure(self, figure: &Figure, caption: &str) -> Page {
        let (svg, caption) = (figure.to_svg(), escaped(caption));
        self.push(format_args!("<figure><div class=\"wide\">{svg}</div><figcaption>{caption}</figcaption></figure>"))
    }

    /// The complete page.
    pub fn to_html(&self) -> String {
        let title = escaped(&self.title);
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n{}</style>\n</head>\n\
             <body class=\"setwise\">\n{}</body>\n</html>\n",
            style(),
            self.main()
        )
    }

    /// The page as an element with its style, for a notebook.
    pub fn to_fragment(&self) -> String {
        format!("<div class=\"setwise\">\n<style>\n{}</style>\n{}</div>\n", style(), self.main())
    }

    fn main(&self) -> String {
        format!("<main>\n<h1>{}</h1>\n{}</main>\n", escaped(&self.title), self.body)
    }

    /// Writes the page atomically.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        Self::check_extension(path)?;
        write_atomically(path, self.to_html().as_bytes()).map_err(Error::io(path))
    }

    /// Checks the extension of a file name, for example before long work.
    pub fn check_extension(path: impl AsRef<Path>) -> Result<()> {
        const KNOWN: &str = ".html and .htm";
        let path = path.as_ref();
        match super::extension(path, KNOWN)?.as_str() {
            "html" | "htm" => Ok(()),
            _ => Err(super::unknown_extension(path, KNOWN)),
        }
    }
}

/// Colours of figures, their CSS variables, and their colours in dark mode.
const THEMED: [(Colour, &str, Colour); 6] = [
    (PAPER, "paper", [0x17, 0x19, 0x1d]),
    (INK, "ink", [0xe2, 0xe4, 0xe8]),
    (AXIS, "axis", [0x9a, 0xa0, 0xa8]),
    (GRID, "grid", [0x33, 0x37, 0x3d]),
    (PALETTE[0], "first", [0x4f, 0xb0, 0xea]),
    (PALETTE[1], "second", [0xff, 0x93, 0x3f]),
];

/// The look of elements inside a page.
const LAYOUT: &str = include_str!("page.css");

/// The style sheet, which holds inside elements of the class `setwise` only.
///
/// Its rules override the colour attributes of figures.
fn style() -> String {
    let variables = |pick: fn(&(Colour, &str, Colour)) -> Colour| -> String {
        THEMED.iter().map(|theme| format!(" --{}: {};", theme.1, colour(pick(theme)))).collect()
    };
    let mut css = format!(
        ".setwise {{\ncolor-scheme: light dark;{}\nmargin: 0; background: var(--paper); color: var(--ink);\n\
         font: 16px/1.5 'Noto Sans', system-ui, 'Segoe UI', Helvetica, Arial, sans-serif;\n",
        variables(|t| t.0)
    );
    css += &format!("@media (prefers-color-scheme: dark) {{{} }}\n", variables(|t| t.2));
    css += &format!("@media print {{{} }}\n", variables(|t| t.0));
    css += LAYOUT;
    for (of_figure, name, _) in THEMED {
        let of_figure = colour(of_figure);
        css += &format!("svg [fill=\"{of_figure}\"] {{ fill: var(--{name}); }}\n");
        css += &format!("svg [stroke=\"{of_figure}\"] {{ stroke: var(--{name}); }}\n");
    }
    css + "}\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Cell, Panel, Series};

    fn page() -> Page {
        let mut table = Table::new("numbers", ["name", "x & y"]);
        table.push(["<script>alert(1)</script>".into(), Cell::number(0.5, 3)]);
        let panel = Panel::new("p", Axis::linear("x"), Axis::linear("y")).with_series(Series::new("s", [(0.0, 1.0)]));
        Page::new("P \"against\" <Q>")
            .with_answer("1 < 2", "surely & truly")
            .with_heading("h")
            .with_facts(&[("rows", "1 & 2")])
            .with_notes(&["<b>careful</b>".to_owned()])
            .with_notes(&[])
            .with_table(&table)
            .with_figure(&Figure::new("f").with_panel(panel), "a caption")
    }

    #[test]
    fn all_text_is_escaped_and_the_page_is_well_formed() {
        let html = page().to_html();
        // Without the doctype and with closed elements the page is XML.
        let xml = html.trim_start_matches("<!DOCTYPE html>\n").replace("<meta ", "<meta x='/' ");
        let xml: String = xml
            .lines()
            .map(|l| if l.starts_with("<meta") { l.replace("\">", "\"/>") } else { l.into() } + "\n")
            .collect();
        let document = roxmltree::Document::parse(&xml).unwrap();
        let text = |tag: &str| {
            let node = document.descendants().find(|n| n.tag_name().name() == tag).unwrap();
            node.descendants().filter(|n| n.is_text()).filter_map(|n| n.text()).collect::<String>()
        };
        assert_eq!(text("h1"), "P \"against\" <Q>");
        assert_eq!(text("td"), "<script>alert(1)</script>");
        assert_eq!(text("li"), "<b>careful</b>");
        assert!(!document.descendants().any(|n| n.tag_name().name() == "script"));
        assert_eq!(document.descendants().filter(|n| n.tag_name().name() == "ul").count(), 1);
    }

    #[test]
    fn the_page_refers_to_no_other_file() {
        let html = page().to_html().replace("http://www.w3.org/2000/svg", "");
        for word in ["http:", "https:", "src=", "href=", "url(", "@import", "<link", "<script"] {
            assert!(!html.contains(word), "{word}");
        }
    }

    #[test]
    fn colours_of_figures_follow_the_readers_mode() {
        let css = style();
        assert!(css.contains("@media (prefers-color-scheme: dark)"));
        assert!(css.contains("svg [fill=\"#ffffff\"] { fill: var(--paper); }"), "{css}");
        assert!(page().to_fragment().starts_with("<div class=\"setwise\">\n<style>\n.setwise {"));
    }

    #[test]
    fn pages_are_written_atomically_and_other_extensions_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.html");
        page().save(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), page().to_html());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let error = page().save(folder.path().join("missing/page.html")).unwrap_err().to_string();
        assert!(error.contains("missing"), "{error}");
        for name in ["page.pdf", "page"] {
            let error = page().save(folder.path().join(name)).unwrap_err().to_string();
            assert!(error.contains(name) && error.ends_with("there are .html and .htm"), "{error}");
        }
    }
}
