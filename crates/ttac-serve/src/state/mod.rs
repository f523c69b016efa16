//! What a stream leaves on disk: a log, snapshots, and who decided what.
//!
//! ```text
//! LOCK                                      held while a process serves from the folder
//! streams/ID/stream.json                    model, stream, mode, health, newest snapshot
//!           /snapshots/VERSION-RECORD.safetensors
//!           /log/FIRST.log                  records from number FIRST on
//!           /audit.jsonl                    every decision with its cause
//! ```
//!
//! The state of a stream is a pure function of source, anchors, configuration and log. A snapshot only saves the time to go through the
//! log again, and the log up to a snapshot is removed.

mod disk;
mod folder;
mod inspect;
mod log;
mod record;
mod segment;
mod snapshot;

pub use folder::{Card, SnapshotFile, StateFolder, StreamFolder, stream_folders};
pub use inspect::{Stored, list, read, verify};
pub use log::{Log, Replay, Segment, Survey, Unsynced};
pub use record::{Record, Sample};
pub use segment::{Belongs, FORMAT};
pub use snapshot::Snapshot;

#[cfg(test)]
pub(crate) use disk::fault;
