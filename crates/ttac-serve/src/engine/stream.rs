//! A stream: what arrives goes into its log and waits, what was learned stands in its course, and who answers in its standing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use ttac::data::Samples;

use super::admission::Admission;
use super::course::{Course, Notice};
use super::events::Events;
use super::evidence::{Labels, Ring};
use super::learner::milliseconds;
use super::standing::Standing;
use crate::Result;
use crate::api::{Fate, Health, Mode};
use crate::state::{Belongs, Log, Record, Replay, Sample, StreamFolder, Unsynced};

/// A stream of a model.
pub struct Stream {
    /// The model that it is a stream of.
    pub model: String,
    /// Its name.
    pub name: String,
    /// Who answers.
    pub standing: ArcSwap<Standing>,
    /// What arrives. It is never held while anything is computed.
    pub intake: Mutex<Intake>,
    /// What is learned. It is held while a learn batch is learned from.
    pub learning: Mutex<Learning>,
    /// What happened.
    pub events: Events,
    /// How often guards raised alarms, and how often the stream went back, since the process started.
    pub counted: Mutex<Counted>,
    /// Whether it stands in the learner's queue.
    pub queued: AtomicBool,
    /// Records of the log that are learned from again after a start.
    pub replay_left: AtomicU64,
    /// Learn batches that wait or are learned from.
    pub cuts_waiting: AtomicU64,
    /// The number of the last record that was applied.
    pub applied: AtomicU64,
    /// Whether somebody asked for a snapshot.
    pub wants_snapshot: AtomicBool,
    /// Whether the stream was deleted.
    pub deleted: AtomicBool,
}

/// What is counted for metrics.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// Alarms by guard.
    pub alarms: BTreeMap<String, u64>,
    /// Roll backs.
    pub rollbacks: u64,
}

/// What arrives at a stream.
pub struct Intake {
    /// The log, if there is a state folder and the log can be read.
    pub log: Option<Log>,
    /// The number that the next record gets where there is no log.
    pub next: u64,
    /// Records that wait for the learner.
    pub inbox: VecDeque<(u64, Record)>,
    /// Who may be learned from.
    pub admission: Admission,
    /// Images since the last cut, and when the first of them came.
    pub open: usize,
    pub open_since: Option<Instant>,
    /// The operator's mode, which counts at once, and the record that says it.
    pub mode: Mode,
    pub mode_record: u64,
    /// Images that were accepted.
    pub accepted: u64,
    /// Answers that labels may come for.
    pub ring: Ring,
    /// What labels have shown.
    pub labels: Labels,
    /// Why the last write failed, if it did.
    pub write_error: Option<String>,
    /// Whether nothing is taken, because the log cannot be read to its end.
    pub refuses: bool,
}

/// What is learned from a stream.
pub struct Learning {
    /// The state of the stream.
    pub course: Course,
    /// What is learned from again after a start, before anything that arrives.
    pub replay: Option<Replay>,
    /// Damage at which the replay ends, if there is any.
    pub damage: Option<String>,
    /// Where it is saved.
    pub folder: Option<StreamFolder>,
    /// What its files say that they belong to.
    pub belongs: Belongs,
    /// The last record that a snapshot has.
    pub saved: u64,
    /// When it was saved last, and how many learn batches it had then.
    pub saved_at: Instant,
    pub saved_cuts: u64,
    /// The digest of the newest snapshot.
    pub parent: Option<String>,
    /// The newest snapshot and the one before, which stays until there is another.
    pub files: Vec<std::path::PathBuf>,
    /// The last record whose decisions are in the audit trail.
    pub audited: u64,
}

/// What became of the images of a request.
pub struct Taken {
    /// What the client is told.
    pub fate: Fate,
    /// The place of the first one in the log.
    pub sequence: Option<u64>,
    /// What has to reach the disk before the answer.
    pub unsynced: Option<Unsynced>,
    /// Whether there is something for the learner.
    pub work: bool,
}

impl Taken {
    /// Says that nothing was taken, and why.
    pub fn nothing(fate: Fate) -> Self {
        Self {
            fate,
            sequence: None,
            unsynced: None,
            work: false,
        }
    }
}

/// Locks what is consistent even if somebody panicked while holding it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream {
    /// Returns the health that clients are told.
    pub fn health(&self) -> Health {
        let health = self.standing.load().health;
        if health != Health::Failed && self.replay_left.load(Ordering::Relaxed) > 0 {
            Health::CatchingUp
        } else {
            health
        }
    }

    /// Tells those who watch what happened, and the log of the program. Neither ever has a pixel.
    pub fn tell(&self, notices: &[Notice]) {
        let (model, stream) = (self.model.as_str(), self.name.as_str());
        for Notice { kind, data } in notices {
            let text = |key: &str| data[key].as_str().unwrap_or_default();
            let (by, cause) = (text("by"), text("cause"));
            if *kind == "alarm" {
                let (guard, reason) = (text("guard"), text("reason"));
                let mut counted = lock(&self.counted);
                *counted.alarms.entry(guard.to_owned()).or_default() += 1;
                tracing::warn!(model, stream, guard, reason, "alarm");
            } else if let Some(mode) = data.get("mode") {
                tracing::info!(model, stream, %mode, by, "another mode");
            } else if data.get("health").is_some() {
                let (health, from) = (text("health"), text("from"));
                tracing::info!(model, stream, health, from, cause, "another health");
            } else if let Some(version) = data.get("rollback") {
                lock(&self.counted).rollbacks += 1;
                tracing::info!(model, stream, %version, cause, "rolled back");
            } else if data.get("deleted").is_some() {
                tracing::info!(model, stream, by, "deleted");
            } else {
                tracing::debug!(model, stream, %data, "{kind}");
            }
        }
        self.events.add(notices, milliseconds());
    }

    /// Takes images that may be learned from into the log.
    pub fn take(
        &self,
        client: &str,
        request: &str,
        samples: &Samples,
        batch: usize,
        backlog: usize,
    ) -> Taken {
        let standing = self.standing.load();
        let mut intake = lock(&self.intake);
        let by_mode = !matches!(intake.mode, Mode::Off | Mode::Frozen(_));
        let deleted = self.deleted.load(Ordering::Relaxed);
        if !by_mode || !standing.learns() || intake.refuses || deleted {
            return Taken::nothing(Fate::Off);
        }
        if standing.health == Health::Cooling {
            // They count, so that cooling ends, and are not learned from.
            let record = Record::Passed(samples.count() as u32);
            let work = intake.write(vec![record]).is_ok();
            return Taken {
                work,
                ..Taken::nothing(Fate::Off)
            };
        }
        let waiting = self.cuts_waiting.load(Ordering::Relaxed) as usize;
        let (chosen, fate) = intake.admission.choose(client, samples, waiting >= backlog);
        if chosen.is_empty() {
            return Taken::nothing(fate);
        }
        let mut records = Vec::new();
        let mut cuts = 0;
        let mut open = intake.open;
        for place in &chosen {
            records.push(Record::Sample(Sample {
                client: client.to_owned(),
                request: request.to_owned(),
                values: Some(samples.pick(&[*place])),
            }));
            open += 1;
            if open >= batch {
                records.push(Record::Cut);
                open = 0;
                cuts += 1;
            }
        }
        let Ok(first) = intake.write(records) else {
            return Taken::nothing(Fate::Off);
        };
        if intake.open == 0 || cuts > 0 {
            intake.open_since = (open > 0).then(Instant::now);
        }
        intake.open = open;
        intake.accepted += chosen.len() as u64;
        self.cuts_waiting.fetch_add(cuts, Ordering::Relaxed);
        let unsynced = intake.log.as_ref().and_then(|log| log.unsynced().ok());
        Taken {
            fate,
            sequence: Some(first),
            unsynced: unsynced.flatten(),
            work: true,
        }
    }

    /// Ends a learn batch that has waited long enough for more; tells whether it did.
    pub fn flush(&self, fewest: usize, after: Duration) -> bool {
        let mut intake = lock(&self.intake);
        let due = intake
            .open_since
            .is_some_and(|since| since.elapsed() >= after);
        if intake.open < fewest || !due || intake.write(vec![Record::Cut]).is_err() {
            return false;
        }
        intake.open = 0;
        intake.open_since = None;
        intake.admission.cut();
        self.cuts_waiting.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl Intake {
    /// Writes records to the log and hands them to the learner. Returns the number of the first.
    pub fn write(&mut self, records: Vec<Record>) -> Result<u64> {
        let first = match &mut self.log {
            Some(log) => match log.append(&records) {
                Ok(numbers) => numbers.start,
                Err(error) => {
                    self.write_error = Some(crate::error::in_full(&error));
                    return Err(error);
                }
            },
            None => self.next,
        };
        self.write_error = None;
        self.next = first + records.len() as u64;
        self.inbox.extend((first..).zip(records));
        Ok(first)
    }
}

impl Learning {
    /// Takes the next record: first what is learned from again, then what has arrived.
    pub fn next(&mut self, stream: &Arc<Stream>) -> Result<Option<(u64, Record)>> {
        if let Some(replay) = &mut self.replay {
            if let Some(record) = replay.read()? {
                stream.replay_left.store(replay.left(), Ordering::Relaxed);
                return Ok(Some(record));
            }
            self.replay = None;
            stream.replay_left.store(0, Ordering::Relaxed);
        }
        Ok(lock(&stream.intake).inbox.pop_front())
    }
}
