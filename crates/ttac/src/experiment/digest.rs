//! The identity of a cell: everything that goes into its result.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{PROGRAM, Spec};
use crate::{Error, Result};

/// Digests of files, each read once.
#[derive(Default)]
pub struct FileDigests(BTreeMap<PathBuf, blake3::Hash>);

impl FileDigests {
    /// Digests everything that decides the result of a specification: the program, the specification, the method's
    /// constants, and the contents of model and anchors.
    pub fn of_spec(&mut self, spec: &Spec) -> Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(PROGRAM.as_bytes());
        hasher.update(&serde_json::to_vec(spec).expect("a specification is plain JSON"));
        // A preset may change from program to program. A method that is unknown is named elsewhere.
        if let Ok(method) = spec.method_spec() {
            hasher.update(&serde_json::to_vec(&method).expect("constants are plain JSON"));
        }
        for file in [Some(&spec.model), spec.anchors.as_ref()]
            .into_iter()
            .flatten()
        {
            hasher.update(self.of_file(file)?.as_bytes());
        }
        Ok(hasher.finalize())
    }

    fn of_file(&mut self, path: &Path) -> Result<blake3::Hash> {
        if let Some(digest) = self.0.get(path) {
            return Ok(*digest);
        }
        let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
        let digest = blake3::hash(&bytes);
        self.0.insert(path.to_owned(), digest);
        Ok(digest)
    }
}
