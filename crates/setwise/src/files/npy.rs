//! Writing of NPY files.

use std::io::BufWriter;
use std::path::Path;

use npyz::{AutoSerialize, WriterBuilder};

use crate::{Error, Result};

/// Writes a row-major array as a NPY file.
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("x.npy");
/// setwise::files::write_npy(&path, &[2, 2], &[1.0f64, 2.0, 3.0, 4.0])?;
/// assert_eq!(setwise::files::Sample::read(&path)?.width, 2);
/// # Ok::<(), setwise::Error>(())
/// ```
pub fn write_npy<T: AutoSerialize + Copy>(path: impl AsRef<Path>, shape: &[usize], data: &[T]) -> Result<()> {
    let path = path.as_ref();
    let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
    let write = || -> std::io::Result<()> {
        let file = BufWriter::new(std::fs::File::create(path)?);
        let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(file).begin_nd()?;
        writer.extend(data.iter().copied())?;
        writer.finish()
    };
    write().map_err(Error::io(path))
}
