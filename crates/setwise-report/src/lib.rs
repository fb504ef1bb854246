//! Tables and plots of results.
//!
//! * [`Table`]: Markdown for people, CSV and JSON with full precision for programs.
//! * [`Figure`]: charts as SVG or PNG. The font is part of this crate, so figures do not depend on the machine.
//! * [`sparkline`], [`bars`] and [`noise_bar`]: plots for the terminal; [`decimals`]: a number with four decimals.
//! * [`compare_table`]: the columns of a comparison of two tables.
//! * [`Page`]: text, tables and figures as one HTML file; [`kl_page`], [`compare_page`]: pages of a
//!   divergence and of a comparison.
//!
//! ```
//! use setwise_report::{Axis, Cell, Figure, Goal, Panel, Series, Table};
//!
//! let mut table = Table::new("KL divergence", ["method", "error"]).with_best("error", Goal::Lowest);
//! table.push(["nearest neighbours".into(), Cell::estimate(0.213, 0.004, 3)]);
//! table.push(["multi-set transformer".into(), Cell::estimate(0.081, 0.002, 3)]);
//! table.push(["kernel density".into(), Cell::NotRun]);
//! assert!(table.to_markdown().contains("**0.081 ± 0.002**"));
//!
//! let panel = Panel::new("d = 2", Axis::linear("ρ"), Axis::log("absolute error"))
//!     .with_series(Series::new("nearest neighbours", [(0.0, 0.1), (0.5, 0.2), (0.9, 0.8)]));
//! let svg = Figure::new("Mutual information").with_panel(panel).to_svg();
//! assert!(svg.starts_with("<svg"));
//! ```

mod canvas;
mod cell;
mod compare_page;
mod compare_table;
mod font;
mod frame;
mod kl_page;
mod layout;
mod marks;
mod page;
mod periods_page;
mod plot;
mod png;
mod svg;
mod table;
mod terminal;
mod ticks;
mod two_samples;

use std::path::Path;

pub use cell::Cell;
pub use compare_page::compare_page;
pub use compare_table::{
    compare_table, named_p, noise_bar, p_text, period_columns, periods_table, summary_text, values_text,
};
pub use kl_page::kl_page;
pub use page::Page;
pub use periods_page::periods_page;
pub use plot::{Axis, Figure, Panel, Scale, Series, Style};
pub use setwise::compare::{percent, short_number};
pub use table::{Goal, Table};
pub use terminal::{bars, decimals, sparkline};
pub use two_samples::{contributions, histograms, scatters};

/// The extension of a file in lower case. The error names the known extensions.
fn extension(path: &Path, known: &str) -> setwise::Result<String> {
    match path.extension() {
        Some(extension) => Ok(extension.to_string_lossy().to_lowercase()),
        None => Err(unknown_extension(path, known)),
    }
}

fn unknown_extension(path: &Path, known: &str) -> setwise::Error {
    let reason = format!("the extension names no supported format; there are {known}");
    setwise::Error::io(path)(std::io::Error::new(std::io::ErrorKind::InvalidInput, reason))
}
