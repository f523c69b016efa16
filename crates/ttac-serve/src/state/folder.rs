//! The folder of a service, and that of each stream in it.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::disk;
use super::snapshot::Snapshot;
use crate::api::{Health, Mode};
use crate::{Error, Result};

/// A state folder that no other process serves from while this value lives.
pub struct StateFolder {
    path: PathBuf,
    _lock: File,
}

impl StateFolder {
    /// Opens a folder, makes it if it is not there, and locks it.
    pub fn open(path: &Path) -> Result<Self> {
        let streams = path.join("streams");
        std::fs::create_dir_all(&streams).map_err(Error::io("create", &streams))?;
        let lock = path.join("LOCK");
        let file = disk::open(&lock).map_err(Error::io("open", &lock))?;
        match file.try_lock() {
            Ok(()) => Ok(Self {
                path: path.to_owned(),
                _lock: file,
            }),
            Err(TryLockError::WouldBlock) => Err(Error::InUse {
                path: path.to_owned(),
            }),
            Err(TryLockError::Error(error)) => Err(Error::io("lock", &lock)(error)),
        }
    }

    /// Returns the folder of a stream, which may not be there yet.
    pub fn stream(&self, model: &str, stream: &str) -> StreamFolder {
        let id = format!("{model}\0{stream}");
        let name = &blake3::hash(id.as_bytes()).to_hex()[..32];
        StreamFolder(self.path.join("streams").join(name))
    }

    /// Lists the folders of all streams with their cards, and removes what is left of streams that were being deleted.
    pub fn streams(&self) -> Result<Vec<(StreamFolder, Card)>> {
        let mut found = Vec::new();
        for folder in stream_folders(&self.path)? {
            match folder.card()? {
                Some(card) => found.push((folder, card)),
                None => folder.delete()?,
            }
        }
        Ok(found)
    }
}

/// Lists the folders of streams in a state folder, in the order of their names.
pub fn stream_folders(state: &Path) -> Result<Vec<StreamFolder>> {
    let path = state.join("streams");
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("read", &path))?;
        if entry.path().is_dir() {
            folders.push(StreamFolder(entry.path()));
        }
    }
    folders.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(folders)
}

/// `stream.json`: which stream a folder holds, and how it was when it was last saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// The version of the files.
    pub format: u32,
    /// The name of the model.
    pub model: String,
    /// The name of the stream.
    pub stream: String,
    /// Its mode.
    pub mode: Mode,
    /// Its health.
    pub health: Health,
    /// The name of the newest snapshot.
    pub snapshot: Option<String>,
}

/// A file in `snapshots`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// The number of the last record that it contains.
    pub sequence: u64,
    /// The version of its weights.
    pub version: u64,
    /// Where it lies.
    pub path: PathBuf,
}

/// The folder of a stream.
#[derive(Clone, Debug)]
pub struct StreamFolder(PathBuf);

impl StreamFolder {
    /// Returns the folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the folder, for its owner alone, if it is not there.
    pub fn create(&self) -> Result<()> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::DirBuilderExt;
            builder.mode(0o700);
        }
        builder
            .create(&self.0)
            .map_err(Error::io("create", &self.0))
    }

    /// Returns the folder of its log.
    pub fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// Reads the card; none if there is none.
    pub fn card(&self) -> Result<Option<Card>> {
        let path = self.0.join("stream.json");
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", &path)(error)),
        };
        let card = serde_json::from_slice(&bytes).map_err(|error| Error::Damaged {
            path,
            at: 0,
            problem: error.to_string(),
        })?;
        Ok(Some(card))
    }

    /// Writes the card, atomically.
    pub fn write_card(&self, card: &Card) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(card).expect("a card is plain JSON");
        text.push(b'\n');
        disk::write(&self.0.join("stream.json"), &text)
    }

    /// Lists the snapshots, the newest first.
    pub fn snapshots(&self) -> Result<Vec<SnapshotFile>> {
        let folder = self.0.join("snapshots");
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("read", &folder)(error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry.map_err(Error::io("read", &folder))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let numbers = name.and_then(|name| name.strip_suffix(".safetensors"));
            let Some((version, sequence)) = numbers.and_then(|name| name.split_once('-')) else {
                continue;
            };
            if let (Ok(version), Ok(sequence)) = (version.parse(), sequence.parse()) {
                found.push(SnapshotFile {
                    sequence,
                    version,
                    path,
                });
            }
        }
        found.sort_by_key(|file| std::cmp::Reverse((file.sequence, file.version)));
        Ok(found)
    }

    /// Returns the path of a snapshot.
    pub fn snapshot_path(&self, version: u64, sequence: u64) -> PathBuf {
        let name = format!("{version}-{sequence}.safetensors");
        self.0.join("snapshots").join(name)
    }

    /// Writes a snapshot, atomically, and returns its digest.
    pub fn save(&self, snapshot: &Snapshot) -> Result<String> {
        snapshot.save(&self.snapshot_path(snapshot.version, snapshot.sequence))
    }

    /// Removes the snapshots that are not among some paths.
    pub fn keep(&self, paths: &[PathBuf]) -> Result<()> {
        for file in self.snapshots()? {
            if !paths.contains(&file.path) {
                disk::remove(&file.path)?;
            }
        }
        Ok(())
    }

    /// Adds a decision to the audit trail.
    pub fn audit(&self, entry: &Value) -> Result<()> {
        let path = self.0.join("audit.jsonl");
        let mut file = disk::open(&path).map_err(Error::io("open", &path))?;
        let line = format!("{entry}\n");
        disk::append(&mut file, &path, line.as_bytes()).map_err(Error::io("write", &path))
    }

    /// Reads the audit trail, as far as its lines are whole.
    pub fn trail(&self) -> Result<Vec<Value>> {
        let path = self.0.join("audit.jsonl");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("read", &path)(error)),
        };
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        Ok(lines.collect())
    }

    /// Puts a log aside that cannot be read to its end, for those who want to look at it.
    pub fn set_aside(&self) -> Result<()> {
        let log = self.log();
        let aside = (1..=u32::MAX)
            .map(|number| self.0.join(format!("log-damaged-{number}")))
            .find(|path| !path.exists())
            .expect("there is always another number");
        std::fs::rename(&log, aside).map_err(Error::io("rename", &log))
    }

    /// Removes the stream. The card goes first, so that what is left of it if the process dies is removed at the next start.
    pub fn delete(&self) -> Result<()> {
        disk::remove(&self.0.join("stream.json"))?;
        std::fs::remove_dir_all(&self.0).map_err(Error::io("remove", &self.0))
    }
}
