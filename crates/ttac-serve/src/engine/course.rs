//! What becomes of a stream, record by record: a pure function of source, anchors, configuration and log.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::{Value, json};
use ttac::data::Samples;
use ttac::protocol::GuardAction;
use ttac::{Answer, Model, Session, SessionState};

use super::guards::Signs;
use super::memory::{KeptCard, Memory};
use super::standing::{KeptWeights, Standing};
use super::weights::Weights;
use crate::Result;
use crate::api::{Health, Mode, Rollback};
use crate::config::{GuardBounds, Loaded};
use crate::error::with_causes;
use crate::state::{Belongs, Record, Sample, Snapshot};

/// What is the same for all streams of a model.
pub struct Rules {
    /// The model with its anchors.
    pub loaded: Loaded,
    /// The bounds of the guards.
    pub bounds: GuardBounds,
    /// How many good versions are kept.
    pub keep_good: usize,
    /// The share of a learn batch that the source scores too.
    pub compare_share: f64,
    /// The weights of the source.
    pub source: Arc<Weights>,
}

/// Something that happened, for pages and for the audit trail.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// `step`, `state`, `alarm` or `labels`.
    pub kind: &'static str,
    /// A JSON object.
    pub data: Value,
}

/// A version that is kept, with everything that is needed to go on from it.
struct Kept {
    card: KeptCard,
    state: Arc<SessionState>,
    weights: Arc<Weights>,
    /// What was remembered then, as JSON text, so that its file is a whole snapshot; none until the record that led to it is done.
    memory: Option<String>,
}

/// A stream that learns.
pub struct Course {
    rules: Arc<Rules>,
    session: Session,
    memory: Memory,
    published: Arc<Weights>,
    kept: Vec<Kept>,
    /// Images since the last cut.
    waiting: Vec<Sample>,
    notices: Vec<Notice>,
}

impl Course {
    /// Starts a stream.
    pub fn new(rules: &Arc<Rules>) -> Result<Self> {
        Ok(Self {
            session: rules.loaded.session()?,
            memory: Memory::new(rules.loaded.config.mode()),
            published: Arc::clone(&rules.source),
            kept: Vec::new(),
            waiting: Vec::new(),
            notices: Vec::new(),
            rules: Arc::clone(rules),
        })
    }

    /// Goes on from a snapshot. `kept` are the snapshots of the versions that it keeps, as far as they are whole.
    pub fn from_snapshot(
        rules: &Arc<Rules>,
        snapshot: Snapshot,
        kept: Vec<Snapshot>,
    ) -> Result<Self> {
        let mut memory: Memory =
            serde_json::from_str(&snapshot.memory).map_err(|error| ttac::Error::Invalid {
                what: "snapshot of a stream",
                problem: format!("what its guards remember: {error}"),
            })?;
        let mut course = Self::new(rules)?;
        for one in kept {
            let known = memory
                .kept
                .iter()
                .find(|card| (card.version, card.sequence) == (one.version, one.sequence));
            let Some(card) = known.cloned() else {
                continue;
            };
            course.session.restore(&one.session)?;
            course.kept.push(Kept {
                weights: Arc::new(Weights::of(&course.session, card.version)),
                state: Arc::new(one.session),
                memory: Some(one.memory),
                card,
            });
        }
        course.kept.sort_by_key(|kept| kept.card.version);
        memory.kept = course.kept.iter().map(|kept| kept.card.clone()).collect();
        course.session.restore(&snapshot.session)?;
        if snapshot.version > 0 {
            let kept = course.kept.iter().map(|kept| &kept.weights);
            let known = kept
                .into_iter()
                .find(|weights| weights.version == snapshot.version);
            course.published = match known {
                Some(weights) => Arc::clone(weights),
                None => Arc::new(Weights::of(&course.session, snapshot.version)),
            };
        }
        course.memory = memory;
        course.waiting = snapshot.waiting;
        Ok(course)
    }

    /// Applies a record and returns what happened.
    pub fn apply(&mut self, sequence: u64, record: Record) -> Vec<Notice> {
        self.memory.sequence = sequence;
        match record {
            Record::Sample(sample) => self.arrive(sample),
            Record::Passed(count) => self.cool(u64::from(count)),
            Record::Cut => self.learn(),
            Record::Mode { mode, by } => {
                let mode = self.pinned(mode);
                self.memory.mode_since = sequence;
                self.set_mode(mode, &by);
            }
            Record::Rollback { to, by, reason } => {
                self.roll_back(to, &format!("{by}: {reason}"));
            }
        }
        if self.kept.iter().any(|kept| kept.memory.is_none()) {
            let text = serde_json::to_string(&self.memory).expect("memory is plain JSON");
            let new = self.kept.iter_mut().filter(|kept| kept.memory.is_none());
            new.for_each(|kept| kept.memory = Some(text.clone()));
        }
        std::mem::take(&mut self.notices)
    }

    /// Gives the stream up: the source answers until somebody rolls it back.
    pub fn fail(&mut self, reason: &str) -> Vec<Notice> {
        self.memory.failed = Some(reason.to_owned());
        self.waiting.clear();
        self.set_health(Health::Failed, reason);
        std::mem::take(&mut self.notices)
    }

    /// Returns what is remembered.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Shows the stream to those who answer.
    pub fn standing(&self) -> Standing {
        let kept = self.kept.iter().map(|kept| KeptWeights {
            weights: Arc::clone(&kept.weights),
            accepted: kept.card.accepted,
            good: kept.card.good,
        });
        Standing {
            mode: self.memory.mode,
            health: self.memory.health,
            source: Arc::clone(&self.rules.source),
            published: Arc::clone(&self.published),
            kept: kept.collect(),
            guards: self.memory.window.judge(&self.rules.bounds),
            learned: self.memory.learned,
            failed: self.memory.failed.clone(),
        }
    }

    /// Whether a snapshot of now would be whole: what is published is what the session would answer by. While a guard holds back what
    /// was learned it is not, and the log has to be kept.
    pub fn can_be_saved(&self) -> bool {
        self.memory.beyond == 0 && self.memory.failed.is_none()
    }

    /// Takes a snapshot, and one of each version that is kept. `images` says whether images may be written to disk.
    pub fn snapshot(&self, belongs: &Belongs, images: bool) -> Result<(Snapshot, Vec<Snapshot>)> {
        let kept = self.kept.iter().map(|kept| Snapshot {
            belongs: belongs.clone(),
            sequence: kept.card.sequence,
            version: kept.card.version,
            parent: None,
            memory: kept.memory.clone().unwrap_or_default(),
            session: (*kept.state).clone(),
            waiting: Vec::new(),
        });
        let waiting = self.waiting.iter().cloned().map(|sample| Sample {
            values: sample.values.filter(|_| images),
            ..sample
        });
        let snapshot = Snapshot {
            belongs: belongs.clone(),
            sequence: self.memory.sequence,
            version: self.published.version,
            parent: None,
            memory: serde_json::to_string(&self.memory).expect("memory is plain JSON"),
            session: self.session.state()?,
            waiting: waiting.collect(),
        };
        Ok((snapshot, kept.collect()))
    }

    /// Returns the model of the published version, if the session still has its weights.
    pub fn published_model(&self, version: u64) -> Result<Model> {
        if version == self.published.version && self.can_be_saved() {
            return Ok(self.session.model());
        }
        Err(ttac::Error::Invalid {
            what: "version",
            problem: format!("version {version} still answers, but its weights are not kept"),
        }
        .into())
    }

    /// Returns the state of a kept version, to make a checkpoint of.
    pub fn kept_state(&self, version: u64) -> Option<Arc<SessionState>> {
        let kept = self.kept.iter().find(|kept| kept.card.version == version);
        kept.map(|kept| Arc::clone(&kept.state))
    }

    fn notice(&mut self, kind: &'static str, data: Value) {
        self.notices.push(Notice { kind, data });
    }

    fn set_health(&mut self, health: Health, cause: &str) {
        let from = self.memory.health;
        if from == health {
            return;
        }
        self.memory.health = health;
        self.notice(
            "state",
            json!({"health": health, "from": from, "cause": cause, "seq": self.memory.sequence}),
        );
    }

    fn set_mode(&mut self, mode: Mode, by: &str) {
        let from = self.memory.mode;
        self.memory.mode = mode;
        self.notice(
            "state",
            json!({"mode": mode, "from": from, "by": by, "seq": self.memory.sequence}),
        );
    }

    /// Names the version of now, where a mode asks for it, and keeps it.
    fn pinned(&mut self, mode: Mode) -> Mode {
        let Mode::Frozen(None) = mode else {
            return mode;
        };
        let version = self.published.version;
        let known = version == 0 || self.kept.iter().any(|kept| kept.card.version == version);
        if !known && self.memory.beyond == 0 {
            self.keep();
        }
        Mode::Frozen(Some(version))
    }

    fn arrive(&mut self, sample: Sample) {
        self.memory.accepted += 1;
        self.memory.open += 1;
        match self.memory.health {
            Health::Failed => {}
            Health::Cooling => self.cool(1),
            health => {
                if health == Health::Idle {
                    self.set_health(Health::Warming, "the first image came");
                }
                self.waiting.push(sample);
            }
        }
    }

    /// Counts images that were answered while the stream cools.
    fn cool(&mut self, count: u64) {
        if self.memory.health != Health::Cooling {
            return;
        }
        self.memory.since += count;
        if self.memory.since >= self.rules.bounds.cooling {
            self.memory.since = 0;
            self.set_health(Health::Warming, "it has cooled");
        }
    }

    /// Learns from the images since the last cut.
    fn learn(&mut self) {
        self.memory.open = 0;
        let waiting = std::mem::take(&mut self.waiting);
        let count = waiting.len();
        let values = waiting.into_iter().filter_map(|sample| sample.values);
        let mut values = values.collect::<Vec<_>>().into_iter();
        let forgotten = (count - values.len()) as u64;
        self.memory.forgotten += forgotten;
        let Some(mut samples) = values.next() else {
            return;
        };
        for more in values {
            if let Err(error) = samples.append(more) {
                self.alarm("update", None, &with_causes(&error));
                return;
            }
        }
        self.memory.cuts += 1;
        let was_closed = self.session.source_answers();
        let observed = catch_unwind(AssertUnwindSafe(|| self.session.observe(&samples)));
        let learned = samples.count() as u64;
        self.memory.learned += learned;
        match observed {
            Err(panic) => self.panicked(&panic_text(panic.as_ref())),
            Ok(Err(error)) => self.alarm("update", None, &with_causes(&error)),
            Ok(Ok(answer)) => {
                let closed = was_closed && self.session.source_answers();
                self.step(&answer, &samples, closed);
            }
        }
    }

    /// Judges what was learned, and publishes it or not.
    fn step(&mut self, answer: &Answer, samples: &Samples, closed: bool) {
        let count = samples.count();
        let broken = answer
            .alarm
            .as_ref()
            .filter(|alarm| alarm.action == GuardAction::Reset);
        if let Some(alarm) = broken {
            self.alarm("finite", None, &alarm.reason);
            return;
        }
        self.memory.since += count as u64;
        let mut published = false;
        if closed {
            // The source answers, nothing was learned, and nothing is to be judged.
            if self.published.version != 0 {
                self.published = Arc::clone(&self.rules.source);
                published = true;
            }
        } else {
            let candidate = Arc::new(Weights::of(&self.session, self.memory.newest + 1));
            if let Err(reason) = self.judge(answer, samples, &candidate) {
                self.alarm("finite", None, &reason);
                return;
            }
            if self.beyond(count as u64) {
                return;
            }
            if self.memory.beyond == 0 {
                published = true;
                if self.session.source_answers() {
                    self.published = Arc::clone(&self.rules.source);
                } else {
                    self.memory.newest += 1;
                    self.published = candidate;
                }
            }
        }
        self.tell_step(answer, published);
        self.age();
        let warm = self.memory.since >= self.rules.bounds.warming;
        if self.memory.health == Health::Warming && warm && self.memory.beyond == 0 {
            self.set_health(Health::Healthy, "no guard is beyond its bound");
        }
    }

    fn tell_step(&mut self, answer: &Answer, published: bool) {
        let losses = answer.learned.losses.iter();
        let losses: serde_json::Map<String, Value> = losses
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        let guards = self.memory.window.judge(&self.rules.bounds);
        let guards: serde_json::Map<String, Value> = guards
            .into_iter()
            .map(|guard| (guard.name, json!(guard.value)))
            .collect();
        let entropy = mean_entropy(answer);
        let images = answer.classes.len();
        let updates = answer.learned.updates;
        let data = json!({
            "seq": self.memory.sequence,
            "batch": self.memory.cuts,
            "images": images,
            "learned": self.memory.learned,
            "updates": updates,
            "version": self.published.version,
            "published": published,
            "source_answers": self.session.source_answers(),
            "losses": losses,
            "entropy": entropy,
            "anchor_distance": answer.learned.anchor_distance,
            "seconds": answer.learning_seconds + answer.predicting_seconds,
            "guards": guards,
            "warnings": answer.warnings,
        });
        self.notice("step", data);
    }

    /// Lets the guards look at a candidate; an error says what is not a number.
    fn judge(
        &mut self,
        answer: &Answer,
        samples: &Samples,
        candidate: &Weights,
    ) -> Result<(), String> {
        let count = samples.count();
        let share = (self.rules.compare_share * count as f64).ceil() as usize;
        let places: Vec<usize> = (0..share.clamp(1, count)).collect();
        let some = samples.pick(&places);
        let predict = |weights: &Weights| weights.predict(&some).map_err(|e| with_causes(&e));
        let (candidate, source) = (predict(candidate)?, predict(&self.rules.source)?);
        if !candidate.scores.iter().all(|score| score.is_finite()) {
            return Err("scores of the candidate are not finite".to_owned());
        }
        let signs = Signs {
            answer,
            candidate: &candidate,
            source: &source,
            drift: self.session.drift(),
        };
        self.memory.window.look(&self.rules.bounds, &signs);
        Ok(())
    }

    /// Counts for how long a guard has been beyond its bound; tells whether that became an alarm.
    fn beyond(&mut self, count: u64) -> bool {
        let bounds = self.rules.bounds;
        let guards = self.memory.window.judge(&bounds);
        let Some(guard) = guards.into_iter().find(|guard| guard.alarmed) else {
            self.memory.beyond = 0;
            return false;
        };
        self.memory.beyond += count;
        // The window of before is full of what the guard saw, and so is this one. While a stream warms, nobody gets its answers, and one
        // window is enough.
        let patience = match self.memory.health {
            Health::Warming => 1,
            _ => bounds.window as u64,
        };
        if self.memory.beyond < patience {
            return false;
        }
        let value = guard.value.unwrap_or(f64::NAN);
        let reason = format!(
            "`{}` is {value:.3}, beyond its bound {}",
            guard.name, guard.bound
        );
        self.alarm(&guard.name, guard.value, &reason);
        true
    }

    /// Marks the versions as good that a whole window has passed since, and keeps one of each window.
    fn age(&mut self) {
        let window = self.rules.bounds.window as u64;
        let learned = self.memory.learned;
        if self.memory.beyond > 0 {
            return;
        }
        for kept in &mut self.kept {
            kept.card.good |= learned - kept.card.learned >= window;
        }
        let newest = self.kept.last().map(|kept| kept.card.learned);
        let due = newest.is_none_or(|newest| learned - newest >= window);
        if due && self.published.version > 0 && !self.session.source_answers() {
            self.keep();
        }
        self.drop_old();
    }

    /// Keeps what is published now, which is what the session answers by.
    fn keep(&mut self) {
        let Ok(state) = self.session.state() else {
            return;
        };
        let version = self.published.version;
        self.kept.retain(|kept| kept.card.version != version);
        self.kept.push(Kept {
            card: KeptCard {
                version,
                sequence: self.memory.sequence,
                accepted: self.memory.accepted,
                learned: self.memory.learned,
                good: false,
            },
            state: Arc::new(state),
            weights: Arc::clone(&self.published),
            memory: None,
        });
        self.list_kept();
    }

    fn drop_old(&mut self) {
        let pinned = match self.memory.mode {
            Mode::Frozen(version) => version,
            _ => None,
        };
        let good = self.kept.iter().filter(|kept| kept.card.good).count();
        let mut surplus = good.saturating_sub(self.rules.keep_good);
        self.kept.retain(|kept| {
            let old = surplus > 0 && kept.card.good && Some(kept.card.version) != pinned;
            surplus -= usize::from(old);
            !old
        });
        self.list_kept();
    }

    fn list_kept(&mut self) {
        self.memory.kept = self.kept.iter().map(|kept| kept.card.clone()).collect();
    }

    /// Goes back because something is beyond its bound.
    fn alarm(&mut self, guard: &str, value: Option<f64>, reason: &str) {
        let sequence = self.memory.sequence;
        self.notice(
            "alarm",
            json!({"guard": guard, "value": value, "reason": reason, "seq": sequence}),
        );
        self.set_health(Health::Alarmed, reason);
        let learned = self.memory.learned;
        let window = self.rules.bounds.rollback_window;
        self.memory.rollbacks.push(learned);
        self.memory.rollbacks.retain(|&at| learned - at <= window);
        self.roll_back(Rollback::Good, reason);
        if self.memory.rollbacks.len() >= self.rules.bounds.rollbacks {
            self.memory.rollbacks.clear();
            let shown = !matches!(self.memory.mode, Mode::Off | Mode::Shadow);
            self.notice(
                "alarm",
                json!({"guard": "rollbacks", "reason": "too many roll backs", "seq": sequence}),
            );
            if shown {
                self.set_mode(Mode::Shadow, "guards");
            }
        }
    }

    /// Goes back to weights of before, and learns nothing for a while.
    fn roll_back(&mut self, to: Rollback, cause: &str) {
        if self.memory.failed.take().is_some() {
            self.memory.panics = 0;
        }
        let good = || self.kept.iter().rposition(|kept| kept.card.good);
        let place = match to {
            Rollback::Source | Rollback::Version(0) => None,
            Rollback::Good => good(),
            // The version may have been dropped since somebody asked for it.
            Rollback::Version(version) => {
                let mut kept = self.kept.iter();
                kept.position(|kept| kept.card.version == version)
                    .or_else(good)
            }
        };
        let restored = if let Some(place) = place {
            let state = Arc::clone(&self.kept[place].state);
            self.published = Arc::clone(&self.kept[place].weights);
            // What came later is what somebody wants to be rid of.
            self.kept.truncate(place + 1);
            self.session.restore(&state).is_ok()
        } else {
            self.kept.clear();
            self.published = Arc::clone(&self.rules.source);
            self.session.reset();
            true
        };
        if !restored {
            self.session.reset();
            self.published = Arc::clone(&self.rules.source);
        }
        self.list_kept();
        self.memory.window.clear();
        self.memory.beyond = 0;
        self.memory.since = 0;
        self.waiting.clear();
        let version = self.published.version;
        let sequence = self.memory.sequence;
        self.notice(
            "state",
            json!({"rollback": version, "cause": cause, "seq": sequence}),
        );
        let next = if self.rules.bounds.cooling == 0 {
            Health::Warming
        } else {
            Health::Cooling
        };
        self.set_health(next, cause);
    }

    /// Goes on from good weights with a new session; the second time it gives up.
    fn panicked(&mut self, text: &str) {
        self.memory.panics += 1;
        let panics = self.memory.panics;
        match self.rules.loaded.session() {
            Ok(session) => self.session = session,
            Err(error) => {
                let reason = crate::error::in_full(&error);
                self.memory.failed = Some(reason.clone());
                self.set_health(Health::Failed, &reason);
                return;
            }
        }
        self.alarm("panic", None, &format!("learning panicked: {text}"));
        if panics >= 2 {
            let reason = format!("learning panicked twice, the last time with `{text}`");
            self.memory.failed = Some(reason.clone());
            self.waiting.clear();
            self.set_health(Health::Failed, &reason);
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "something that is no text".to_owned())
}

fn mean_entropy(answer: &Answer) -> f64 {
    let positive = answer.probabilities.iter().filter(|&&p| p > 0.0);
    let sum: f64 = positive.map(|&p| -f64::from(p) * f64::from(p).ln()).sum();
    sum / answer.classes.len().max(1) as f64
}
