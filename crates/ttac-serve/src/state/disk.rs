//! Every write of a stored stream goes through here, so that tests can let each of them fail.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::{Error, Result};

/// Writes bytes at the end of a file.
pub fn append(file: &mut File, path: &Path, bytes: &[u8]) -> io::Result<()> {
    #[cfg(test)]
    if let Some(part) = fault::part_of(path, bytes) {
        file.write_all(part)?;
        return Err(io::Error::other("a fail point"));
    }
    let _ = path;
    file.write_all(bytes)
}

/// Writes a file that is either whole or not there, for its owner alone.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    #[cfg(test)]
    fault::pass(path).map_err(Error::io("write", path))?;
    ttac::write_atomically(path, bytes)?;
    private(path).map_err(Error::io("write", path))
}

/// Removes a file; it may be gone already.
pub fn remove(path: &Path) -> Result<()> {
    #[cfg(test)]
    fault::pass(path).map_err(Error::io("remove", path))?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Opens a file for its owner alone, and writes at its end.
pub fn open(path: &Path) -> io::Result<File> {
    #[cfg(test)]
    fault::pass(path)?;
    let mut options = File::options();
    options.create(true).append(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options.open(path)
}

/// Images are nobody's business but the owner's.
fn private(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    }
    let _ = path;
    Ok(())
}

/// Writes that fail on purpose: after some of them, nothing in a folder can be written any more, as if the process had died there.
#[cfg(test)]
pub mod fault {
    use std::collections::BTreeMap;
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// How many writes below a folder succeed yet.
    static LEFT: Mutex<BTreeMap<PathBuf, usize>> = Mutex::new(BTreeMap::new());

    fn left() -> MutexGuard<'static, BTreeMap<PathBuf, usize>> {
        LEFT.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the writes below a folder fail after some, for good.
    pub fn after(folder: &Path, writes: usize) {
        left().insert(folder.to_owned(), writes);
    }

    /// Lets them succeed again; tells whether any had failed.
    pub fn clear(folder: &Path) -> bool {
        left().remove(folder) == Some(0)
    }

    /// Counts a write.
    pub fn pass(path: &Path) -> io::Result<()> {
        let mut left = left();
        let Some((_, left)) = left.iter_mut().find(|(folder, _)| path.starts_with(folder)) else {
            return Ok(());
        };
        if *left == 0 {
            return Err(io::Error::other("a fail point"));
        }
        *left -= 1;
        if *left == 0 {
            return Err(io::Error::other("a fail point"));
        }
        Ok(())
    }

    /// Counts a write; the one that fails first leaves a half of its bytes, those after it nothing.
    pub fn part_of<'a>(path: &Path, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let first = left()
            .iter()
            .any(|(folder, left)| path.starts_with(folder) && *left == 1);
        let length = if first { bytes.len() / 2 } else { 0 };
        pass(path).err().map(|_| &bytes[..length])
    }
}
