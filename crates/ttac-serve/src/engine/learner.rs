//! Learns from what has arrived, stream by stream, and saves what was learned.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ttac::data::Samples;

use super::course::Notice;
use super::pools::Pool;
use super::stream::{Learning, Stream, lock};
use super::weights::Weights;
use crate::Result;
use crate::api::Mode;
use crate::config::{Durability, StateConfig};
use crate::error::in_full;
use crate::state::{Card, FORMAT, Record, Survey};

/// How many comparisons may wait. They are dropped before anything else is.
const MOST_COMPARISONS: usize = 64;

/// Images that the other weights score aside, once the answer is out.
pub struct Comparison {
    /// The stream that they belong to.
    pub stream: Arc<Stream>,
    /// The id of their request.
    pub id: String,
    /// The weights that were not asked.
    pub weights: Arc<Weights>,
    /// Whether those are the adapted ones.
    pub adapted: bool,
    /// The images.
    pub samples: Samples,
}

/// What waits for the learner.
#[derive(Default)]
pub struct Work {
    queue: Mutex<Queue>,
    more: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct Queue {
    streams: VecDeque<Arc<Stream>>,
    comparisons: VecDeque<Comparison>,
    closed: bool,
}

/// A piece of work.
enum Piece {
    Stream(Arc<Stream>),
    Comparison(Comparison),
}

impl Work {
    /// Says that there is something to do for a stream.
    pub fn wake(&self, stream: &Arc<Stream>) {
        if stream.queued.swap(true, Ordering::SeqCst) {
            return;
        }
        lock(&self.queue).streams.push_back(Arc::clone(stream));
        self.more.notify_one();
    }

    /// Adds a comparison, unless too many wait.
    pub fn compare(&self, comparison: Comparison) {
        let mut queue = lock(&self.queue);
        if queue.comparisons.len() < MOST_COMPARISONS {
            queue.comparisons.push_back(comparison);
            self.more.notify_one();
        }
    }

    /// Lets the learner end after the piece of work that it is at.
    pub fn close(&self) {
        lock(&self.queue).closed = true;
        self.more.notify_all();
        self.done.notify_all();
    }

    /// Waits until a record was applied, or the learner ends, or the time is up; tells whether it was applied.
    pub fn wait_for(&self, stream: &Stream, record: u64, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        let mut queue = lock(&self.queue);
        loop {
            if stream.applied.load(Ordering::SeqCst) >= record {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if queue.closed || left.is_zero() {
                return false;
            }
            let waited = self.done.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn next(&self) -> Option<Piece> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.closed {
                return None;
            }
            if let Some(stream) = queue.streams.pop_front() {
                stream.queued.store(false, Ordering::SeqCst);
                return Some(Piece::Stream(stream));
            }
            if let Some(comparison) = queue.comparisons.pop_front() {
                return Some(Piece::Comparison(comparison));
            }
            let waited = self.more.wait(queue);
            queue = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn tell_done(&self) {
        // Whoever waits looks again under the lock, so nobody misses it.
        drop(lock(&self.queue));
        self.done.notify_all();
    }
}

/// What the learner needs.
pub struct Learner<'a> {
    /// What waits.
    pub work: &'a Work,
    /// The threads that learn.
    pub pool: &'a Pool,
    /// When and how streams are saved.
    pub state: &'a StateConfig,
    /// The share of the time that is worked.
    pub duty: f64,
}

impl Learner<'_> {
    /// Works until the end.
    pub fn work(&self) {
        while let Some(piece) = self.work.next() {
            let begun = Instant::now();
            match piece {
                Piece::Stream(stream) => {
                    if self.step(&stream) {
                        self.work.wake(&stream);
                    }
                    self.work.tell_done();
                }
                Piece::Comparison(comparison) => self.compare(comparison),
            }
            if self.duty < 1.0 {
                std::thread::sleep(begun.elapsed().mul_f64(1.0 / self.duty - 1.0));
            }
        }
    }

    /// Applies the records of a stream up to the end of a learn batch; tells whether there may be more.
    fn step(&self, stream: &Arc<Stream>) -> bool {
        let mut learning = lock(&stream.learning);
        if stream.deleted.load(Ordering::SeqCst) {
            return false;
        }
        let mut more = false;
        loop {
            let (sequence, record) = match learning.next(stream) {
                Ok(Some(next)) => next,
                Ok(None) => break,
                Err(error) => {
                    learning.replay = None;
                    stream.replay_left.store(0, Ordering::Relaxed);
                    learning.damage = Some(in_full(&error));
                    break;
                }
            };
            let is_cut = record == Record::Cut;
            let replayed = learning.replay.is_some();
            let decided = decision(&record, sequence);
            let course = &mut learning.course;
            let notices = if is_cut {
                self.pool.run(|| course.apply(sequence, record))
            } else {
                course.apply(sequence, record)
            };
            tell(stream, &mut learning, sequence, decided, &notices);
            if is_cut && !replayed {
                let waiting = &stream.cuts_waiting;
                let _ = waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |cuts| {
                    Some(cuts.saturating_sub(1))
                });
            }
            stream.applied.store(sequence, Ordering::SeqCst);
            if is_cut {
                more = true;
                break;
            }
        }
        if let Some(reason) = learning
            .damage
            .clone()
            .filter(|_| learning.replay.is_none())
            && learning.course.memory().failed.is_none()
        {
            let sequence = learning.course.memory().sequence;
            let notices = learning.course.fail(&reason);
            tell(stream, &mut learning, sequence + 1, None, &notices);
        }
        self.save_if_due(stream, &mut learning);
        more
    }

    fn compare(&self, comparison: Comparison) {
        let Comparison {
            stream,
            id,
            weights,
            adapted,
            samples,
        } = comparison;
        let answer = self.pool.run(|| weights.predict(&samples));
        if let Ok(answer) = answer {
            let ring = &mut lock(&stream.intake).ring;
            ring.complete(&id, &answer.classes, adapted);
        }
    }

    /// Saves a stream that changed, if it was long ago or somebody asked.
    fn save_if_due(&self, stream: &Arc<Stream>, learning: &mut Learning) {
        let memory = learning.course.memory();
        if memory.sequence == learning.saved {
            stream.wants_snapshot.store(false, Ordering::SeqCst);
            return;
        }
        let log_bytes = lock(&stream.intake)
            .log
            .as_ref()
            .map_or(0, crate::state::Log::bytes);
        let due = stream.wants_snapshot.load(Ordering::SeqCst)
            || learning.saved_at.elapsed() >= self.state.snapshot_every
            || memory.cuts - learning.saved_cuts >= self.state.snapshot_batches
            || log_bytes >= self.state.snapshot_log;
        if due {
            let _ = self.save(stream, learning);
        }
    }

    /// Saves a stream: snapshots, then its card, then the log up to there is forgotten.
    pub fn save(&self, stream: &Arc<Stream>, learning: &mut Learning) -> Result<()> {
        stream.wants_snapshot.store(false, Ordering::SeqCst);
        let Some(folder) = learning.folder.clone() else {
            return Ok(());
        };
        if !learning.course.can_be_saved() || learning.replay.is_some() {
            return Ok(());
        }
        learning.saved_at = Instant::now();
        learning.saved_cuts = learning.course.memory().cuts;
        let saved = self.write(stream, learning, &folder);
        if let Err(error) = &saved {
            let reason = in_full(error);
            let notice = Notice {
                kind: "alarm",
                data: json!({"guard": "snapshot", "reason": reason}),
            };
            stream.tell(&[notice]);
        }
        saved
    }

    fn write(
        &self,
        stream: &Arc<Stream>,
        learning: &mut Learning,
        folder: &crate::state::StreamFolder,
    ) -> Result<()> {
        let images = self.state.durability != Durability::None;
        let (mut snapshot, kept) = learning.course.snapshot(&learning.belongs, images)?;
        snapshot.parent.clone_from(&learning.parent);
        let mut needed = Vec::new();
        for kept in kept {
            let path = folder.snapshot_path(kept.version, kept.sequence);
            if !path.exists() {
                folder.save(&kept)?;
            }
            needed.push(path);
        }
        let path = folder.snapshot_path(snapshot.version, snapshot.sequence);
        learning.parent = Some(folder.save(&snapshot)?);
        let standing = stream.standing.load();
        folder.write_card(&Card {
            format: FORMAT,
            model: learning.belongs.stream.0.clone(),
            stream: stream.name.clone(),
            mode: standing.mode,
            health: standing.health,
            snapshot: path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned()),
        })?;
        learning.saved = snapshot.sequence;
        learning.files.retain(|old| *old != path);
        learning.files.insert(0, path);
        learning.files.truncate(2);
        if let Some(log) = &mut lock(&stream.intake).log {
            log.forget(snapshot.sequence + 1)?;
        }
        needed.extend(learning.files.iter().cloned());
        folder.keep(&needed)
    }
}

/// Shows what a record led to.
fn tell(
    stream: &Arc<Stream>,
    learning: &mut Learning,
    sequence: u64,
    decided: Option<Value>,
    notices: &[Notice],
) {
    if decided.is_none() && notices.is_empty() {
        return;
    }
    show(stream, learning);
    stream.tell(notices);
    let now = milliseconds();
    if learning.audited >= sequence {
        return;
    }
    learning.audited = sequence;
    let Some(folder) = &learning.folder else {
        return;
    };
    let decisions = notices.iter().filter(|notice| notice.kind != "step");
    let decisions = decisions.map(|notice| {
        let mut entry = json!({"kind": notice.kind});
        merge(&mut entry, &notice.data);
        entry
    });
    for mut entry in decided.into_iter().chain(decisions) {
        merge(&mut entry, &json!({"seq": sequence, "time": now}));
        // The trail tells people what was decided. Learning goes on where it cannot be written.
        let _ = folder.audit(&entry);
    }
}

/// Shows the stream to those who answer. A mode that an operator has set counts before its record is applied.
fn show(stream: &Stream, learning: &Learning) {
    let mut standing = learning.course.standing();
    let memory = learning.course.memory();
    let mut intake = lock(&stream.intake);
    if intake.mode_record > memory.sequence {
        standing.mode = intake.mode;
    } else {
        // Guards may have set it.
        intake.mode = memory.mode;
    }
    // Swapped under the lock, so that a mode that is set meanwhile is not lost.
    stream.standing.store(Arc::new(standing));
}

/// What a record of somebody's decision looks like in the audit trail.
fn decision(record: &Record, sequence: u64) -> Option<Value> {
    match record {
        Record::Mode { mode, by } => {
            let mode: Mode = *mode;
            Some(json!({"kind": "mode", "mode": mode, "by": by, "seq": sequence}))
        }
        Record::Rollback { to, by, reason } => Some(json!({
            "kind": "rollback", "to": format!("{to:?}"), "by": by, "reason": reason, "seq": sequence,
        })),
        _ => None,
    }
}

fn merge(entry: &mut Value, more: &Value) {
    if let (Value::Object(entry), Value::Object(more)) = (entry, more) {
        for (key, value) in more {
            entry.insert(key.clone(), value.clone());
        }
    }
}

/// Returns the time in milliseconds since 1970.
pub fn milliseconds() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}

/// Reads how far a stored stream had been audited.
pub fn audited(trail: &[Value]) -> u64 {
    let numbers = trail.iter().filter_map(|entry| entry["seq"].as_u64());
    numbers.max().unwrap_or(0)
}

/// Says what damage of a log means.
pub fn damage_of(survey: &Survey) -> Option<String> {
    survey.damage.as_ref().map(|(path, at, problem)| {
        let path = path.display();
        format!("the log `{path}` is damaged at byte {at}: {problem}")
    })
}
