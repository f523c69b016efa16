//! Looking at stored streams without serving them.

use std::path::Path;

use super::folder::{Card, SnapshotFile, StreamFolder, stream_folders};
use super::log::Survey;
use super::snapshot::Snapshot;
use crate::Result;
use crate::error::in_full;

/// What lies in the folder of a stream.
#[derive(Debug)]
pub struct Stored {
    /// Its folder.
    pub folder: StreamFolder,
    /// Its card.
    pub card: Card,
    /// Its snapshots, the newest first.
    pub snapshots: Vec<SnapshotFile>,
    /// What was found of its log.
    pub log: Survey,
}

impl Stored {
    /// Returns how long the log is, in bytes.
    pub fn log_bytes(&self) -> u64 {
        self.log.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Returns how many records come after the newest snapshot.
    pub fn left(&self) -> u64 {
        let last = self.snapshots.first().map_or(0, |newest| newest.sequence);
        let next = self.log.next().unwrap_or(last + 1);
        next.saturating_sub(last + 1)
    }
}

/// Reads what lies in a stream's folder; none if no stream does.
pub fn read(folder: StreamFolder) -> Result<Option<Stored>> {
    let Some(card) = folder.card()? else {
        return Ok(None);
    };
    Ok(Some(Stored {
        card,
        snapshots: folder.snapshots()?,
        log: Survey::of(&folder.log())?,
        folder,
    }))
}

/// Lists the streams of a state folder. It may be in use.
pub fn list(state: &Path) -> Result<Vec<Stored>> {
    let mut found = Vec::new();
    for folder in stream_folders(state)? {
        found.extend(read(folder)?);
    }
    found.sort_by(|a, b| (&a.card.model, &a.card.stream).cmp(&(&b.card.model, &b.card.stream)));
    Ok(found)
}

/// Lists everything that is wrong with a stored stream.
pub fn verify(stored: &Stored) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut newest = None;
    for file in &stored.snapshots {
        match Snapshot::load(&file.path) {
            Ok(snapshot) => {
                let same = (snapshot.sequence, snapshot.version) == (file.sequence, file.version);
                if !same {
                    problems.push(format!(
                        "`{}` holds record {} and version {}",
                        file.path.display(),
                        snapshot.sequence,
                        snapshot.version
                    ));
                }
                newest = newest.or(Some(snapshot.sequence));
            }
            Err(error) => problems.push(in_full(&error)),
        }
    }
    let first = stored.log.segments.first().map(|segment| segment.first);
    let expected = newest.map_or(1, |sequence| sequence + 1);
    if let Some(first) = first.filter(|&first| first > expected) {
        problems.push(format!(
            "records {expected} to {} are in no snapshot that is whole, and no longer in the log",
            first - 1
        ));
    }
    if let Some((path, at, problem)) = &stored.log.damage {
        problems.push(format!(
            "`{}` is damaged at byte {at}: {problem}",
            path.display()
        ));
    }
    Ok(problems)
}
