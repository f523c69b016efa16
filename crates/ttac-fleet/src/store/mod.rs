//! Files by name, in a folder or in a bucket.

mod folder;

#[cfg(feature = "s3")]
mod bucket;

use std::fmt;
use std::path::{Path, PathBuf};

use crate::{Error, Result};
use folder::Folder;

/// What came of a file that was to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// It was written.
    Now,
    /// Somebody else had written it, and it is as they left it.
    Before,
}

/// Files by name. A name is a relative path with `/` between its parts. A reader never sees a part of a file.
pub struct Store(Kind);

enum Kind {
    Folder(Folder),
    #[cfg(feature = "s3")]
    Bucket(bucket::Bucket),
}

/// What addresses of stores look like.
const ADDRESSES: &str = "`s3://BUCKET/PREFIX` or `file:///FOLDER`";

impl Store {
    /// Opens a store by its address, `file:///FOLDER` or `s3://BUCKET/PREFIX`. Of a bucket it is made sure that it is there and can be
    /// read; endpoint, region and credentials come from the variables that other programs for S3 read, such as `AWS_ENDPOINT`.
    pub fn open(address: &str) -> Result<Self> {
        let wrong = || Error::Address {
            what: "store",
            address: address.to_owned(),
            expected: ADDRESSES,
        };
        if let Some(path) = address.strip_prefix("file://") {
            let path = Path::new(path);
            return if path.is_absolute() {
                Ok(Self::folder(path))
            } else {
                Err(wrong())
            };
        }
        let rest = address.strip_prefix("s3://").ok_or_else(wrong)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(wrong());
        }
        Self::bucket(address, bucket, prefix.trim_matches('/'))
    }

    /// Opens a store in a folder, which is made when something is written.
    pub fn folder(path: &Path) -> Self {
        Self(Kind::Folder(Folder::new(path)))
    }

    #[cfg(feature = "s3")]
    fn bucket(_: &str, bucket: &str, prefix: &str) -> Result<Self> {
        Ok(Self(Kind::Bucket(bucket::Bucket::open(bucket, prefix)?)))
    }

    #[cfg(not(feature = "s3"))]
    fn bucket(address: &str, _: &str, _: &str) -> Result<Self> {
        Err(Error::NotBuilt {
            address: address.to_owned(),
            feature: "s3",
        })
    }

    /// Returns the path of a file, if the store is a folder.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        match &self.0 {
            Kind::Folder(folder) => Some(folder.path(name)),
            #[cfg(feature = "s3")]
            Kind::Bucket(_) => None,
        }
    }

    /// Reads a file; none if it is not there.
    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match &self.0 {
            Kind::Folder(folder) => folder.get(name),
            #[cfg(feature = "s3")]
            Kind::Bucket(bucket) => bucket.get(name),
        }
    }

    /// Whether a file is there.
    pub fn has(&self, name: &str) -> Result<bool> {
        match &self.0 {
            Kind::Folder(folder) => Ok(folder.path(name).exists()),
            #[cfg(feature = "s3")]
            Kind::Bucket(bucket) => bucket.has(name),
        }
    }

    /// Writes a file that is not there yet. Of several who try at once, one succeeds.
    pub fn create(&self, name: &str, bytes: &[u8]) -> Result<Created> {
        match &self.0 {
            Kind::Folder(folder) => folder.create(name, bytes),
            #[cfg(feature = "s3")]
            Kind::Bucket(bucket) => bucket.create(name, bytes),
        }
    }

    /// Writes a file in place of what was there.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        match &self.0 {
            Kind::Folder(folder) => folder.put(name, bytes),
            #[cfg(feature = "s3")]
            Kind::Bucket(bucket) => bucket.put(name, bytes),
        }
    }

    /// Removes a file, which need not be there.
    pub fn remove(&self, name: &str) -> Result<()> {
        match &self.0 {
            Kind::Folder(folder) => folder.remove(name),
            #[cfg(feature = "s3")]
            Kind::Bucket(bucket) => bucket.remove(name),
        }
    }

    /// Lists the files directly in a folder of the store, `""` for its uppermost, by their whole names in the order of the alphabet.
    pub fn list(&self, folder: &str) -> Result<Vec<String>> {
        let mut names = match &self.0 {
            Kind::Folder(root) => root.list(folder)?,
            #[cfg(feature = "s3")]
            Kind::Bucket(bucket) => bucket.list(folder)?,
        };
        names.sort();
        Ok(names)
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Folder(folder) => write!(f, "{}", folder.path("").display()),
            #[cfg(feature = "s3")]
            Kind::Bucket(bucket) => write!(f, "{bucket}"),
        }
    }
}

/// Puts the name of a file behind that of its folder.
fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() {
        name.to_owned()
    } else {
        format!("{folder}/{name}")
    }
}
