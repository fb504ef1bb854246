//! Files that are replaced as a whole or not at all.

use std::fs::{self, File};
use std::io::{Error, Result, Write};
use std::path::{Path, PathBuf};

/// Writes a file; an old one is replaced only when the new one is complete and has been read back. A link is followed, and what is no plain
/// file, such as a device, is written to and not replaced.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let path = &followed(path);
    if fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir()) {
        return File::options().write(true).open(path)?.write_all(bytes);
    }
    let partial = write_beside(path, bytes)?;
    fs::rename(&partial, path)?;
    sync_folder(path)
}

/// Where a path leads to, also where nothing is there yet.
fn followed(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| match fs::read_link(path) {
        Ok(target) => path.parent().unwrap_or(Path::new("")).join(target),
        Err(_) => path.to_owned(),
    })
}

/// Writes a file's content to a partial file beside it, reads it back and compares; what fails leaves nothing behind.
pub fn write_beside(path: &Path, bytes: &[u8]) -> Result<PathBuf> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let write = || -> Result<()> {
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        drop(file);
        if fs::read(&partial)? != bytes {
            return Err(Error::other("what was read back is not what was written"));
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

/// Makes sure that renames in a file's folder outlive a power failure, where the system can.
pub fn sync_folder(path: &Path) -> Result<()> {
    #[cfg(unix)]
    {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_followed_and_a_device_stays_one() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        write_atomically(&link, b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "something was left behind");
        fs::remove_file(&target).unwrap();
        write_atomically(&link, b"again").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"again");
        write_atomically(Path::new("/dev/null"), b"new").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
