//! Files that are either whole or not there.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use atomic_write_file::AtomicWriteFile;

use crate::{Error, Result};

/// Writes a file so that a reader sees the old content or the new, never a part of it. If anything
/// fails, the old file stays. Folders on the way are created.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    write_atomically_with(path, |file| {
        file.write_all(bytes).map_err(Error::io("write", path))
    })
}

/// Writes content that is made piece by piece in the same way: `fill` writes it, and nothing is left if it fails.
pub fn write_atomically_with<T, E: From<Error>>(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    write_file_atomically(path, |file| fill(file))
}

/// Writes content in the same way for which `fill` has to go back in the file.
pub(crate) fn write_file_atomically<T, E: From<Error>>(
    path: &Path,
    fill: impl FnOnce(&mut File) -> Result<T, E>,
) -> Result<T, E> {
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    }
    let mut file = AtomicWriteFile::open(path).map_err(Error::io("write", path))?;
    let result = fill(file.as_file_mut())?;
    file.commit().map_err(Error::io("write", path))?;
    Ok(result)
}
