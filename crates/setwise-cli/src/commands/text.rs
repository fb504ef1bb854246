//! Tables and names in a terminal.

use comfy_table::{CellAlignment, presets};
use setwise_table::wording::truncated;

/// A name of a few characters, without control characters of terminals.
pub fn short_name(text: &str) -> String {
    const MAX: usize = 24;
    truncated(&text.replace(char::is_control, "\u{fffd}"), MAX)
}

/// A table whose marked rows begin with a dot, with some columns aligned right.
pub fn marked_table<const N: usize>(
    heading: [&str; N],
    rows: impl Iterator<Item = (bool, Vec<String>)>,
    right: &[usize],
) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(presets::NOTHING).set_header(heading);
    for (marked, cells) in rows {
        let mark = if marked { "●" } else { "" };
        table.add_row(std::iter::once(mark.to_owned()).chain(cells));
    }
    for &column in right {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}
