//! Tables of mixed columns, as arguments name them.

use std::path::{Path, PathBuf};

use rayon::prelude::*;
use setwise::permutation_test::Encoded;
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

    /// Two or more tables as rows of numbers, with the columns they share.
    pub fn encoded(&self, tables: Vec<Table>, types: &Overrides, blocks: Option<&str>) -> Result<Encoded, Failure> {
        Encoded::new(tables, &self.choice(), types, blocks).map_err(|error| match error {
            setwise::Error::Sets(reason) if reason.contains("column \"") => Failure::usage(format!("{reason}\n{HINT}")),
            error => error.into(),
        })
    }

    /// Reads tables, at the same time. The error names ragged rows together with the problems of columns.
    pub fn read(&self, paths: &[&Path], types: &Overrides) -> Result<Vec<Table>, Failure> {
        reading(paths, || self.read_all(paths, types))
    }

    fn read_all(&self, paths: &[&Path], types: &Overrides) -> Result<Vec<Table>, Failure> {
        let read: Vec<_> = paths.par_iter().map(Table::read_until_ragged).collect();
        let mut failed: Vec<String> = read.iter().filter_map(|read| Some(read.as_ref().err()?.to_string())).collect();
        failed.dedup();
        if failed.len() > 1 {
            return Err(Failure::usage(failed.join("\nsetwise: ")));
        }
        let (mut tables, mut problems) = (Vec::new(), Vec::new());
        for read in read {
            let (table, ragged) = read?;
            problems.extend(ragged.map(|ragged| format!("{}: {ragged}", table.path.display())));
            tables.push(table);
        }
        if problems.is_empty() {
            return Ok(tables);
        }
        problems.dedup();
        problems.extend(Pairing::of_many(tables, &self.choice(), types).err().map(|e| with_hint(e).to_string()));
        Err(Failure::usage(problems.join("\nsetwise: ")))
    }
}

/// Options that help with columns.
const HINT: &str = "--as COLUMN=TYPE sets a type, such as category or numeric; --drop leaves columns out";

/// An error about columns, with the options that help.
fn with_hint(error: TableError) -> Failure {
    match error {
        TableError::Columns(reason) if reason.contains("column \"") => Failure::usage(format!("{reason}\n{HINT}")),
        error => error.into(),
    }
}
