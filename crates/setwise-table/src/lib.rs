//! Tables of mixed columns, read from files as they are.
//!
//! | module | holds |
//! | --- | --- |
//! | [`table`] | a [`Table`] of named [`Column`]s of numbers, times or text |
//! | [`read`] | [`Table::read`]: the format of a file by its content, and one reader for each |
//! | [`pairing`] | the columns that two tables share, matched by name |
//! | `stack` | [`Pairing::of_many`]: the columns that several tables share |
//! | [`period`] | the [`Period`] of the calendar that a time lies in |
//! | [`profile`] | a [`Profile`]: a reference table with its types, in one file |
//! | [`types`] | the [`ColumnType`] of a column that two tables share, and its overrides |
//! | [`choice`] | a [`ColumnChoice`] by name, number or range |
//! | [`wording`] | names and values in messages |
//!
//! The readers are [`source`] (bytes, compression, encoding), `delimited` (CSV and TSV), `json`, `numpy` (NPY and NPZ)
//! and `arrow` (Parquet and Arrow IPC). Memory grows with what a file holds, not with what its header claims.
//!
//! ```
//! use setwise_table::{ColumnType, Table};
//!
//! let csv = b"id,age,town\n1,34,Oslo\n2,NA,Rome\n3,51,Oslo\n";
//! let table = Table::parse("people.csv", csv)?;
//! assert_eq!(table.rows, 3);
//! assert_eq!(table.columns[1].missing(), 1);
//! assert_eq!(ColumnType::infer(&[&table.columns[2]])?, ColumnType::Category);
//! # Ok::<(), setwise_table::Error>(())
//! ```

#[cfg(feature = "arrow")]
pub mod arrow;
pub mod choice;
mod delimited;
mod error;
mod json;
pub mod numpy;
pub mod pairing;
pub mod period;
pub mod profile;
pub mod read;
pub mod source;
mod stack;
pub mod table;
pub mod times;
pub mod types;
pub mod wording;
pub mod zip;

pub use choice::ColumnChoice;
pub use error::{Error, Result};
pub use pairing::{PairedColumn, Pairing};
pub use period::Period;
pub use profile::Profile;
pub use table::{Column, Table, Text, Values};
pub use types::{ColumnType, Overrides};
