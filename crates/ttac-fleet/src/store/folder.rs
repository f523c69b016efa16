//! A store in a folder, which may be one that many machines share.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::{Created, join};
use crate::{Error, Result};

/// Files that are being written have this beginning, and are not listed.
const UNFINISHED: &str = ".unfinished-";

pub struct Folder(PathBuf);

impl Folder {
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        let parts = name.split('/').filter(|part| !part.is_empty());
        parts.fold(self.0.clone(), |path, part| path.join(part))
    }

    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path(name);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("read", &path)(error)),
        }
    }

    pub fn create(&self, name: &str, bytes: &[u8]) -> Result<Created> {
        let path = self.path(name);
        match self.unfinished(&path, bytes)?.persist_noclobber(&path) {
            Ok(_) => Ok(Created::Now),
            Err(refused) if refused.error.kind() == ErrorKind::AlreadyExists => Ok(Created::Before),
            Err(refused) => Err(Error::io("create", &path)(refused.error)),
        }
    }

    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path(name);
        let file = self.unfinished(&path, bytes)?;
        let written = file.persist(&path);
        written.map_err(|refused| Error::io("write", &path)(refused.error))?;
        Ok(())
    }

    /// Writes a file that has no name yet that anybody would read.
    fn unfinished(&self, path: &Path, bytes: &[u8]) -> Result<NamedTempFile> {
        let folder = path.parent().unwrap_or(&self.0);
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(UNFINISHED);
        // Temporary files are otherwise their owner's alone, and these are for everybody who may read the folder.
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let mut file = builder
            .tempfile_in(folder)
            .map_err(Error::io("write to", folder))?;
        file.write_all(bytes).map_err(Error::io("write", path))?;
        file.as_file()
            .sync_all()
            .map_err(Error::io("write", path))?;
        Ok(file)
    }

    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    pub fn list(&self, folder: &str) -> Result<Vec<String>> {
        let path = self.path(folder);
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("read", &path)(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(Error::io("read", &path))?;
            let is_file = entry
                .file_type()
                .map_err(Error::io("read", &path))?
                .is_file();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if is_file && !name.starts_with(UNFINISHED) {
                names.push(join(folder, &name));
            }
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Created, Store};

    #[test]
    fn of_many_who_create_a_file_one_succeeds_and_nobody_sees_a_part() {
        let folder = tempfile::tempdir().unwrap();
        let created: Vec<Created> = std::thread::scope(|scope| {
            let one = |number: u8| {
                let store = Store::folder(folder.path());
                scope.spawn(move || store.create("a/b", &vec![number; 100_000]).unwrap())
            };
            let all: Vec<_> = (0..8).map(one).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let now = created.iter().filter(|&&created| created == Created::Now);
        assert_eq!(now.count(), 1);
        let store = Store::folder(folder.path());
        let found = store.get("a/b").unwrap().unwrap();
        assert!(found.len() == 100_000 && found.iter().all(|byte| *byte == found[0]));
        assert_eq!(store.list("a").unwrap(), ["a/b"], "nothing is left over");
    }

    #[test]
    fn files_are_written_listed_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("file://{}/deep", folder.path().display());
        let store = Store::open(&address).unwrap();
        assert_eq!(store.get("x").unwrap(), None);
        assert_eq!(store.list("").unwrap(), [""; 0]);
        store.put("y/z", &[1]).unwrap();
        store.put("x", &[1]).unwrap();
        store.put("x", &[2]).unwrap();
        assert_eq!(store.get("x").unwrap(), Some(vec![2]));
        assert_eq!(store.list("").unwrap(), ["x"]);
        assert_eq!(store.create("x", &[3]).unwrap(), Created::Before);
        store.remove("x").unwrap();
        store.remove("x").unwrap();
        assert!(!store.has("x").unwrap() && store.has("y/z").unwrap());
    }

    #[cfg(not(feature = "s3"))]
    #[test]
    fn a_bucket_needs_a_feature() {
        let Err(error) = Store::open("s3://bucket/prefix") else {
            panic!("this program knows no buckets");
        };
        assert!(
            error.to_string().contains("built with the feature `s3`"),
            "{error}"
        );
    }
}
