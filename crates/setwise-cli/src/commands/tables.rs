//! Pairs of tables of mixed columns, as arguments name them.

use std::path::{Path, PathBuf};

use setwise_table::{ColumnChoice, Error as TableError, Overrides, Pairing, Table};

use super::{ColumnArgs, reading};
use crate::failure::Failure;

/// The columns of tables and their types.
#[derive(clap::Args)]
pub struct TableArgs {
    #[command(flatten)]
    columns: ColumnArgs,
    /// Type of a column: numeric, count, boolean, category, time, identifier, constant or text; repeatable.
    #[arg(long = "as", value_name = "COLUMN=TYPE")]
    types: Vec<String>,
    /// TOML file with a line `column = "type"` for each column.
    #[arg(long = "types", value_name = "FILE", hide_short_help = true)]
    pub types_file: Option<PathBuf>,
}

impl TableArgs {
    /// The choice of columns.
    pub fn choice(&self) -> ColumnChoice {
        self.columns.choice()
    }

    /// The types that are set.
    pub fn overrides(&self) -> Result<Overrides, Failure> {
        let mut overrides = self.types_file.as_ref().map(Overrides::read).transpose()?.unwrap_or_default();
        for item in &self.types {
            overrides.add(item).map_err(|e| Failure::usage(format!("--as {e}")))?;
        }
        Ok(overrides)
    }

    /// The columns that two tables share.
    pub fn pairing(&self, tables: [Table; 2], types: &Overrides) -> Result<Pairing, Failure> {
        Pairing::new(tables, &self.choice(), types).map_err(with_hint)
    }

    /// Reads two tables, at the same time. The error names ragged rows together with the problems of columns.
    pub fn read(&self, paths: [&Path; 2], types: &Overrides) -> Result<[Table; 2], Failure> {
        reading(&paths, || self.read_both(paths, types))
    }

    fn read_both(&self, paths: [&Path; 2], types: &Overrides) -> Result<[Table; 2], Failure> {
        let read = rayon::join(|| Table::read_until_ragged(paths[0]), || Table::read_until_ragged(paths[1]));
        let ((a, ragged_a), (b, ragged_b)) = match read {
            (Ok(a), Ok(b)) => (a, b),
            (Err(a), Err(b)) if paths[0] != paths[1] => return Err(Failure::usage(format!("{a}\nsetwise: {b}"))),
            (Err(e), _) | (_, Err(e)) => return Err(e.into()),
        };
        let in_file =
            |(table, ragged): (&Table, Option<String>)| Some(format!("{}: {}", table.path.display(), ragged?));
        let mut problems: Vec<String> = [(&a, ragged_a), (&b, ragged_b)].into_iter().filter_map(in_file).collect();
        if problems.is_empty() {
            return Ok([a, b]);
        }
        problems.dedup();
        problems.extend(self.pairing([a, b], types).err().map(|e| e.to_string()));
        Err(Failure::usage(problems.join("\nsetwise: ")))
    }
}

/// An error about columns, with the options that help.
fn with_hint(error: TableError) -> Failure {
    match error {
        TableError::Columns(reason) if reason.contains("column \"") => Failure::usage(format!(
            "{reason}\n--as COLUMN=TYPE sets a type, such as category or numeric; --drop leaves columns out"
        )),
        error => error.into(),
    }
}
