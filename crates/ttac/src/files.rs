//! Files that are either whole or not there.

use std::io::Write;
use std::path::Path;

use atomic_write_file::AtomicWriteFile;

use crate::{Error, Result};

/// Writes a file so that a reader sees the old content or the new, never a part of it. If anything
/// fails, the old file stays. Folders on the way are created.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    }
    let write = || {
        let mut file = AtomicWriteFile::open(path)?;
        file.write_all(bytes)?;
        file.commit()
    };
    write().map_err(Error::io("write", path))
}
