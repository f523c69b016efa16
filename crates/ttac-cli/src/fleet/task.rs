//! What a worker is told.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use ttac::checkpoint::Augmentation;
use ttac::data::Split;
use ttac::experiment::{Cell, PROGRAM, Spec};
use ttac_fleet::Store;

use super::worker::patiently;

/// A piece of work as it is submitted.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// The program and its version.
    pub program: String,
    /// What decides the result, in one digest.
    pub digest: String,
    /// The name of the result in the store.
    pub name: String,
    /// What is said about it.
    pub title: String,
    /// The digest of every file that is read, by its path at the submitter.
    pub inputs: BTreeMap<PathBuf, String>,
    pub work: Work,
}

/// The kinds of work.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// A cell of a grid.
    Cell {
        row: String,
        axes: BTreeMap<String, String>,
        spec: Box<Spec>,
    },
    /// The features of a chunk of the images that anchors are made of.
    Anchors(Chunk),
}

/// What decides the features of a chunk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chunk {
    pub model: PathBuf,
    pub data: String,
    pub root: Option<PathBuf>,
    pub split: Split,
    pub subset: Option<NonZeroUsize>,
    pub transform: Augmentation,
    pub batch_size: usize,
    pub seed: u64,
    /// Which chunk, from zero.
    pub index: usize,
}

/// Reads the version first: other fields may be another version's.
#[derive(Deserialize)]
struct Version {
    program: String,
    #[serde(default)]
    title: String,
}

impl Task {
    /// Describes a cell.
    pub fn of_cell(
        cell: &Cell,
        name: &str,
        digest: String,
        inputs: &mut Inputs,
    ) -> anyhow::Result<Self> {
        let files = [Some(&cell.spec.model), cell.spec.anchors.as_ref()];
        let mut digests = BTreeMap::new();
        for file in files.into_iter().flatten() {
            digests.insert(file.clone(), inputs.digest(file)?);
        }
        Ok(Self {
            program: PROGRAM.to_owned(),
            digest,
            name: name.to_owned(),
            title: cell.title(),
            inputs: digests,
            work: Work::Cell {
                row: cell.row.clone(),
                axes: cell.axes.clone(),
                spec: Box::new(cell.spec.clone()),
            },
        })
    }

    /// Describes a chunk of source images.
    pub fn of_chunk(chunk: &Chunk, inputs: &mut Inputs) -> anyhow::Result<Self> {
        let model = inputs.digest(&chunk.model)?;
        // Where the model lies is not what it is.
        let nameless = Chunk {
            model: PathBuf::new(),
            ..chunk.clone()
        };
        let text = format!(
            "{PROGRAM} anchors {model} {}",
            serde_json::to_string(&nameless)?
        );
        let digest = blake3::hash(text.as_bytes()).to_hex().to_string();
        Ok(Self {
            program: PROGRAM.to_owned(),
            name: format!("fleet/chunks/{digest}"),
            title: format!("anchors of {}, chunk {}", chunk.data, chunk.index),
            inputs: BTreeMap::from([(chunk.model.clone(), model)]),
            digest,
            work: Work::Anchors(chunk.clone()),
        })
    }

    /// Reads a task; one of another version of the program is refused.
    pub fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let version: Version = serde_json::from_slice(bytes)
            .context("the queue holds something else than work of ttac")?;
        if version.program != PROGRAM {
            bail!(
                "`{}` was submitted by {}, and this worker is {PROGRAM}: only the same version comes to the same results",
                version.title,
                version.program
            );
        }
        Ok(serde_json::from_slice(bytes)?)
    }
}

/// Files that work reads, by their digests: at the submitter, in the store, at the worker.
#[derive(Default)]
pub struct Inputs {
    digests: HashMap<PathBuf, String>,
}

impl Inputs {
    /// Digests a file, once.
    pub fn digest(&mut self, path: &Path) -> anyhow::Result<String> {
        if let Some(known) = self.digests.get(path) {
            return Ok(known.clone());
        }
        let bytes = std::fs::read(path).map_err(ttac::Error::io("read", path))?;
        let digest = blake3::hash(&bytes).to_hex().to_string();
        self.digests.insert(path.to_owned(), digest.clone());
        Ok(digest)
    }

    /// Finds a file at the worker: where the submitter had it if that is the same file, else from the store.
    pub fn find(&mut self, store: &Store, path: &Path, digest: &str) -> anyhow::Result<PathBuf> {
        let here = |inputs: &mut Self, path: &Path| {
            path.exists() && inputs.digest(path).is_ok_and(|found| found == digest)
        };
        if here(self, path) {
            return Ok(path.to_owned());
        }
        let name = in_store(digest);
        let kept = store.path(&name);
        let kept =
            kept.unwrap_or_else(|| ttac::data::default_root().join("fleet-inputs").join(digest));
        if here(self, &kept) {
            return Ok(kept);
        }
        let bytes = patiently(|| store.get(&name))?.with_context(|| {
            format!(
                "`{}` is neither on this machine nor in the store `{store}`",
                path.display()
            )
        })?;
        if blake3::hash(&bytes).to_hex().as_str() != digest {
            bail!("`{name}` in the store `{store}` is damaged: its digest is another");
        }
        ttac::write_atomically(&kept, &bytes)?;
        self.digests.insert(kept.clone(), digest.to_owned());
        Ok(kept)
    }
}

/// Puts the files of a task into the store, where they are not there yet.
pub fn upload(store: &Store, task: &Task) -> anyhow::Result<()> {
    for (path, digest) in &task.inputs {
        let name = in_store(digest);
        if !store.has(&name)? {
            let bytes = std::fs::read(path).map_err(ttac::Error::io("read", path))?;
            store.create(&name, &bytes)?;
        }
    }
    Ok(())
}

fn in_store(digest: &str) -> String {
    format!("fleet/inputs/{digest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_another_version_is_refused_by_name() {
        let task = Task {
            program: PROGRAM.to_owned(),
            digest: "d".to_owned(),
            name: "bn-0.d.json".to_owned(),
            title: "bn 0".to_owned(),
            inputs: BTreeMap::new(),
            work: Work::Cell {
                row: "bn".to_owned(),
                axes: BTreeMap::new(),
                spec: Box::new(Spec::new("model", "shapes10")),
            },
        };
        let text = serde_json::to_string(&task).unwrap();
        assert_eq!(Task::parse(text.as_bytes()).unwrap().title, "bn 0");
        // Whatever else it says, its version is read first.
        let other = r#"{"program": "ttac 9.0.0", "title": "bn 0", "new": true}"#;
        let error = Task::parse(other.as_bytes()).unwrap_err().to_string();
        assert!(
            error.contains("`bn 0` was submitted by ttac 9.0.0") && error.contains(PROGRAM),
            "{error}"
        );
        let error = Task::parse(b"a poem").unwrap_err().to_string();
        assert!(
            error.contains("something else than work of ttac"),
            "{error}"
        );
    }
}
