//! The log of a run: one JSON object per line.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use setwise::files::atomic::write_atomically;

use crate::{Error, Result};

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Number of finished steps.
    pub step: u64,
    /// Mean loss of the steps since the last line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Mean gradient norm of these steps, before clipping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient: Option<f64>,
    /// Learning rate of the last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Mean absolute error on held-out examples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_error: Option<f64>,
    /// Its standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_error: Option<f64>,
    /// Fraction of held-out labels between the lowest and highest quantile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<f64>,
    /// Accuracy on held-out examples, for tasks with decisions or counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Seconds since the start of training in this process.
    pub seconds: f64,
}

/// Sums over the steps since the last line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Window {
    pub steps: u64,
    pub loss: f64,
    pub gradient: f64,
}

impl Window {
    /// Text that restores every bit.
    pub fn to_text(self) -> String {
        format!("{} {} {}", self.steps, self.loss.to_bits(), self.gradient.to_bits())
    }

    pub fn from_text(text: &str) -> Option<Self> {
        let mut parts = text.split(' ').map(|p| p.parse::<u64>().ok());
        let mut next = || parts.next().flatten();
        Some(Window { steps: next()?, loss: f64::from_bits(next()?), gradient: f64::from_bits(next()?) })
    }
}

/// The open log of a run.
pub(super) struct Log {
    file: File,
    path: PathBuf,
}

impl Log {
    /// Opens the log and drops lines after `step`, which the resumed run writes again.
    pub fn open(path: PathBuf, step: u64) -> Result<Self> {
        if path.exists() {
            let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
            let kept: String =
                complete_lines(&text).filter(|(_, r)| r.step <= step).flat_map(|(l, _)| [l, "\n"]).collect();
            write_atomically(&path, kept.as_bytes()).map_err(Error::io(&path))?;
        }
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(Error::io(&path))?;
        Ok(Log { file, path })
    }

    /// Appends a line.
    pub fn write(&mut self, record: &Record) -> Result<()> {
        let line = serde_json::to_string(record).expect("plain data") + "\n";
        self.file.write_all(line.as_bytes()).map_err(Error::io(&self.path))
    }
}

/// Reads all complete lines of a log. The last line may be truncated.
pub(super) fn read(path: &Path) -> Result<Vec<Record>> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
    Ok(complete_lines(&text).map(|(_, record)| record).collect())
}

fn complete_lines(text: &str) -> impl Iterator<Item = (&str, Record)> {
    text.lines().filter_map(|line| Some((line, serde_json::from_str(line).ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reopening_drops_later_lines_and_a_truncated_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let record = |step| Record {
            step,
            loss: Some(0.1 + 0.2),
            gradient: None,
            learning_rate: None,
            validation_error: None,
            standard_error: None,
            coverage: None,
            accuracy: None,
            seconds: 0.0,
        };
        let mut log = Log::open(path.clone(), 0).unwrap();
        [5, 10, 15].iter().for_each(|&s| log.write(&record(s)).unwrap());
        log.file.write_all(b"{\"step\": 2").unwrap();
        let mut log = Log::open(path.clone(), 10).unwrap();
        log.write(&record(20)).unwrap();
        assert_eq!(read(&path).unwrap(), [5, 10, 20].map(record));
    }

    #[test]
    fn a_window_is_restored_to_the_last_bit() {
        let w = Window { steps: 3, loss: 0.1 + 0.2, gradient: 1e-300 };
        assert_eq!(Window::from_text(&w.to_text()), Some(w));
        assert_eq!(Window::from_text("3 x"), None);
    }
}
