//! Small samples in files.

use std::path::{Path, PathBuf};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use tempfile::TempDir;

/// A folder with small samples in it.
pub struct Samples(pub TempDir);

impl Samples {
    pub fn new() -> Self {
        Samples(tempfile::tempdir().unwrap())
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Writes a header and `rows` rows; column c of row i is `f(i, c)`.
    pub fn table(&self, name: &str, rows: usize, columns: usize, f: impl Fn(usize, usize) -> f64) -> PathBuf {
        let line = |items: Vec<String>| items.join(",") + "\n";
        let mut text = line((0..columns).map(|c| format!("c{c}")).collect());
        for i in 0..rows {
            text += &line((0..columns).map(|c| f(i, c).to_string()).collect());
        }
        self.write(name, text)
    }
}

/// Uniform in (0, 1), the same on every run.
pub fn noise(i: usize, stream: usize) -> f64 {
    Pcg64Mcg::seed_from_u64((stream * 100_000 + i) as u64).random()
}

/// Approximately standard normal.
pub fn normal(i: usize, stream: usize) -> f64 {
    (0..12).map(|s| noise(i, stream * 12 + s)).sum::<f64>() - 6.0
}

/// A text argument as a path, for lists of arguments that hold paths.
pub fn path(text: &str) -> &Path {
    Path::new(text)
}
