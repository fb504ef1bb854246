//! Atomic writes of files.

use std::fs::{self, File};
use std::io::{Error, Result, Write};
use std::path::{Path, PathBuf};

/// Writes a file atomically: an old file is replaced after the new one is complete and has been read back.
///
/// A link is followed. Anything but a regular file, such as a device, is written in place.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let path = &resolve_link(path);
    if fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir()) {
        return File::options().write(true).open(path)?.write_all(bytes);
    }
    let partial = write_partial(path, bytes)?;
    fs::rename(&partial, path)?;
    sync_folder(path)
}

/// The target of a link, even if it does not exist; other paths stay as they are.
fn resolve_link(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| match fs::read_link(path) {
        Ok(target) => path.parent().unwrap_or(Path::new("")).join(target),
        Err(_) => path.to_owned(),
    })
}

/// Writes content to the file `PATH.partial`, reads it back, compares it and returns its path. A failure removes the
/// file.
pub fn write_partial(path: &Path, bytes: &[u8]) -> Result<PathBuf> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let write = || -> Result<()> {
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        drop(file);
        if fs::read(&partial)? != bytes {
            return Err(Error::other("the file read back differs from what was written"));
        }
        Ok(())
    };
    match write() {
        Ok(()) => Ok(partial),
        Err(e) => {
            let _ = fs::remove_file(&partial);
            Err(e)
        }
    }
}

/// Syncs the folder of a file, so that renames survive a power failure. Does nothing outside Unix.
pub fn sync_folder(path: &Path) -> Result<()> {
    if cfg!(unix) {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_followed_and_a_device_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        write_atomically(&link, b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "no partial file is left");
        fs::remove_file(&target).unwrap();
        write_atomically(&link, b"again").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"again");
        write_atomically(Path::new("/dev/null"), b"new").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
