//! What transports ask for.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::json;
use ttac::data::Samples;

use super::batcher::{Scored, count_passes};
use super::course::Notice;
use super::evidence::{ENOUGH, Given};
use super::learner::{Comparison, milliseconds};
use super::served::{LARGEST_REQUEST, Served};
use super::stream::{Stream, Taken, lock};
use super::weights::Weights;
use super::{Engine, Shared};
use crate::api::{
    Event, Fate, Feedback, Health, Lane, Mode, ModelInfo, Refusal, Reply, Request, Rollback,
    Service, Statistics, StreamStatus,
};
use crate::config::Promote;
use crate::error::{in_full, with_causes};
use crate::state::{Log, Record, Survey};

/// The longest name of a stream, in bytes.
const LONGEST_NAME: usize = 128;

/// How long an operator's decision waits for the learn batches before it.
const PATIENCE: Duration = Duration::from_mins(1);

impl Service for Engine {
    fn models(&self) -> Vec<ModelInfo> {
        let ready = self.ready();
        let models = self.shared.models.values();
        models.map(|served| served.info(ready)).collect()
    }

    fn infer(&self, request: Request) -> Result<Reply, Refusal> {
        let begun = Instant::now();
        let served = Arc::clone(self.served(&request.model)?);
        let asked = request.lane;
        let answered = self.shared.answer(&served, &request);
        let lane = match &answered {
            Ok((reply, _)) => reply.lane,
            Err(_) => asked.unwrap_or(Lane::Source),
        };
        let mut statistics = lock(served.statistics(lane));
        match answered {
            Ok((reply, scored)) => {
                statistics.success.0 += 1;
                statistics.success.1 += begun.elapsed();
                statistics.queue.0 += 1;
                statistics.queue.1 += reply.queued;
                statistics.infer.0 += 1;
                statistics.infer.1 += reply.computed;
                statistics.images += reply.classes.len() as u64;
                statistics.newest = milliseconds();
                count_passes(&scored, &mut statistics.passes);
                Ok(reply)
            }
            Err(refusal) => {
                statistics.fail.0 += 1;
                statistics.fail.1 += begun.elapsed();
                Err(refusal)
            }
        }
    }

    fn statistics(&self, model: &str, lane: Lane) -> Result<Statistics, Refusal> {
        let served = self.served(model)?;
        Ok(lock(served.statistics(lane)).clone())
    }

    fn streams(&self, model: &str) -> Result<Vec<StreamStatus>, Refusal> {
        let served = self.served(model)?;
        let streams = served.all();
        Ok(streams.iter().map(|one| status(served, one)).collect())
    }

    fn set_mode(&self, model: &str, stream: &str, mode: Mode, by: &str) -> Result<(), Refusal> {
        let stream = self.stream(model, stream)?;
        if let Mode::Canary(share) = mode
            && !(0.0..=1.0).contains(&share)
        {
            return Err(Refusal::Invalid(format!(
                "the share of a canary must be 0 to 1, found {share}"
            )));
        }
        if let Mode::Frozen(Some(version)) = mode {
            stream.standing.load().version(version)?;
        }
        self.shared.set_mode(&stream, mode, by)
    }

    fn roll_back(
        &self,
        model: &str,
        stream: &str,
        to: Rollback,
        by: &str,
        reason: &str,
    ) -> Result<(), Refusal> {
        let stream = self.stream(model, stream)?;
        if let Rollback::Version(version) = to {
            stream.standing.load().version(version)?;
        }
        self.shared.roll_back(&stream, to, by, reason)
    }

    fn snapshot(&self, model: &str, stream: &str) -> Result<(), Refusal> {
        let stream = self.stream(model, stream)?;
        stream.wants_snapshot.store(true, Ordering::SeqCst);
        self.shared.work.wake(&stream);
        Ok(())
    }

    fn delete(&self, model: &str, stream: &str, by: &str) -> Result<(), Refusal> {
        let served = self.served(model)?;
        let stream = self.stream(model, stream)?;
        // First, so that the learner leaves it alone.
        stream.deleted.store(true, Ordering::SeqCst);
        served.remove(&stream.name);
        let learning = lock(&stream.learning);
        lock(&stream.intake).log = None;
        let notice = Notice {
            kind: "state",
            data: json!({"deleted": true, "by": by}),
        };
        stream.tell(&[notice]);
        stream.events.close();
        match &learning.folder {
            Some(folder) => folder
                .delete()
                .map_err(|error| Refusal::Internal(in_full(&error))),
            None => Ok(()),
        }
    }

    fn feedback(
        &self,
        model: &str,
        stream: &str,
        labels: &[Feedback],
    ) -> Result<(u64, u64), Refusal> {
        let served = self.served(model)?;
        let stream = self.stream(model, stream)?;
        let classes = served.rules.loaded.model.classes.len();
        if let Some(wrong) = labels.iter().find(|label| label.class >= classes) {
            return Err(Refusal::Invalid(format!(
                "class {} of image {} of request `{}`: expected 0 to {}",
                wrong.class,
                wrong.index,
                wrong.id,
                classes - 1
            )));
        }
        let promote = served.rules.loaded.config.promote;
        let share = served.rules.loaded.config.canary_share;
        Ok(self.shared.label(&stream, labels, promote, share))
    }

    fn checkpoint(&self, model: &str, stream: &str, version: u64) -> Result<Vec<u8>, Refusal> {
        let served = self.served(model)?;
        let stream = self.stream(model, stream)?;
        stream.standing.load().version(version)?;
        let learning = lock(&stream.learning);
        let bytes = || served.checkpoint(&learning.course, version);
        let bytes = self.shared.update.run(bytes);
        bytes.map_err(|error| Refusal::NotFound(in_full(&error)))
    }

    fn events(
        &self,
        model: &str,
        stream: &str,
        after: Option<u64>,
        wait: Duration,
    ) -> Result<Vec<Arc<Event>>, Refusal> {
        let stream = self.stream(model, stream)?;
        Ok(stream.events.after(after, wait))
    }

    fn ready(&self) -> bool {
        self.shared.ready.load(Ordering::SeqCst)
    }
}

impl Engine {
    fn served(&self, model: &str) -> Result<&Arc<Served>, Refusal> {
        self.shared.models.get(model).ok_or_else(|| {
            let known: Vec<&str> = self.shared.models.keys().map(String::as_str).collect();
            Refusal::NotFound(format!(
                "unknown model `{model}`; the known ones are `{}`",
                known.join("`, `")
            ))
        })
    }

    fn stream(&self, model: &str, stream: &str) -> Result<Arc<Stream>, Refusal> {
        let served = self.served(model)?;
        served
            .stream(stream)
            .ok_or_else(|| Refusal::NotFound(format!("model `{model}` has no stream `{stream}`")))
    }
}

/// What passes a request was first in.
type Passes = Vec<(usize, Duration)>;

impl Shared {
    fn answer(&self, served: &Arc<Served>, request: &Request) -> Result<(Reply, Passes), Refusal> {
        if self.ending.load(Ordering::SeqCst) {
            return Err(Refusal::Unavailable("the service is ending".to_owned()));
        }
        check(served, request)?;
        let stream = self.stream_for(served, &request.stream)?;
        let Some(stream) = stream else {
            return self.answer_without_stream(served, request);
        };
        let standing = stream.standing.load_full();
        let (lane, weights) = standing.choose(request.lane, request.at, draw(request))?;
        let taken = self.learn_from(served, &stream, request);
        if let Some(unsynced) = taken.unsynced {
            unsynced
                .wait()
                .map_err(|error| Refusal::Unavailable(in_full(&error)))?;
        }
        let deadline = request.deadline;
        let scored = self
            .batcher
            .predict(&weights, request.samples.clone(), deadline)?;
        let source_classes = if !request.source_too {
            None
        } else if weights.version == 0 {
            Some(scored.classes.clone())
        } else {
            let samples = request.samples.clone();
            let source = self.batcher.predict(&standing.source, samples, deadline)?;
            Some(source.classes)
        };
        self.remember(&stream, request, &weights, &scored);
        let reply = Reply {
            lane,
            weights_version: weights.version,
            weights: weights.digest.clone(),
            mode: standing.mode,
            health: stream.health(),
            fate: taken.fate,
            sequence: taken.sequence,
            queued: scored.queued,
            computed: scored.computed,
            source_classes,
            scores: scored.scores,
            probabilities: scored.probabilities,
            classes: scored.classes,
        };
        Ok((reply, scored.passes))
    }

    /// Answers by the source where there is no memory for another stream.
    fn answer_without_stream(
        &self,
        served: &Served,
        request: &Request,
    ) -> Result<(Reply, Passes), Refusal> {
        if request.lane == Some(Lane::Adapted) || request.at.is_some_and(|version| version > 0) {
            return Err(Refusal::Unavailable(format!(
                "there is no memory for the stream `{}`; raise `memory` in `[state]`, or delete streams",
                request.stream
            )));
        }
        let weights = &served.rules.source;
        let scored = self
            .batcher
            .predict(weights, request.samples.clone(), request.deadline)?;
        let reply = Reply {
            lane: Lane::Source,
            weights_version: 0,
            weights: weights.digest.clone(),
            mode: served.rules.loaded.config.mode(),
            health: Health::Idle,
            fate: Fate::Off,
            sequence: None,
            queued: scored.queued,
            computed: scored.computed,
            source_classes: request.source_too.then(|| scored.classes.clone()),
            scores: scored.scores,
            probabilities: scored.probabilities,
            classes: scored.classes,
        };
        Ok((reply, scored.passes))
    }

    fn stream_for(&self, served: &Arc<Served>, name: &str) -> Result<Option<Arc<Stream>>, Refusal> {
        let room = || self.has_room(served.stream_bytes);
        let folder = self.folder.as_ref();
        let found = served.stream(name).map(|stream| Ok(Some(stream)));
        let found = found.unwrap_or_else(|| {
            let make = || served.stream_or_new(name, &self.config, folder, room);
            self.predict.run(make)
        });
        found.map_err(|error| {
            Refusal::Unavailable(format!("the stream cannot be opened: {}", in_full(&error)))
        })
    }

    /// Takes a request's images into the log, if they may be learned from.
    fn learn_from(&self, served: &Served, stream: &Arc<Stream>, request: &Request) -> Taken {
        if !request.learn {
            return Taken::nothing(Fate::Off);
        }
        let taken = stream.take(
            request.client.as_deref().unwrap_or_default(),
            request.id.as_deref().unwrap_or_default(),
            &request.samples,
            served.rules.loaded.config.batch,
            self.config.learn.backlog,
        );
        if taken.work {
            self.work.wake(stream);
        }
        taken
    }

    /// Remembers an answer for labels to come, and lets the other weights score some of them aside.
    fn remember(
        &self,
        stream: &Arc<Stream>,
        request: &Request,
        weights: &Arc<Weights>,
        scored: &Scored,
    ) {
        let Some(id) = &request.id else {
            return;
        };
        let adapted = weights.version > 0;
        let given = scored.classes.iter().map(|&class| Given {
            adapted: adapted.then_some(class),
            source: (!adapted).then_some(class),
        });
        lock(&stream.intake).ring.remember(id, given.collect());
        let standing = stream.standing.load();
        let judged = standing.health == Health::Healthy && standing.published.version > 0;
        let chosen = draw_of(&format!("compare\0{}\0{id}", request.stream))
            < self.config.learn.compare_share;
        if judged && chosen {
            let other = if adapted {
                &standing.source
            } else {
                &standing.published
            };
            self.work.compare(Comparison {
                stream: Arc::clone(stream),
                id: id.clone(),
                weights: Arc::clone(other),
                adapted: !adapted,
                samples: request.samples.clone(),
            });
        }
    }

    /// Writes a decision to the log and waits until it counts.
    fn decide(&self, stream: &Arc<Stream>, record: Record) -> Result<u64, Refusal> {
        let written = lock(&stream.intake).write(vec![record]);
        let sequence = written.map_err(|error| Refusal::Unavailable(in_full(&error)))?;
        self.work.wake(stream);
        Ok(sequence)
    }

    fn set_mode(&self, stream: &Arc<Stream>, mode: Mode, by: &str) -> Result<(), Refusal> {
        if let Some(reason) = &stream.standing.load().failed {
            return Err(Refusal::Unavailable(format!(
                "the stream has failed, so it has to be rolled back or deleted first: {reason}"
            )));
        }
        let sequence = {
            let mut intake = lock(&stream.intake);
            if intake.refuses {
                let problem = "the log of the stream is damaged; roll it back, or delete it";
                return Err(Refusal::Unavailable(problem.to_owned()));
            }
            let by = by.to_owned();
            let written = intake.write(vec![Record::Mode { mode, by }]);
            let sequence = written.map_err(|error| Refusal::Unavailable(in_full(&error)))?;
            intake.mode = mode;
            intake.mode_record = sequence;
            // It counts at once for those who answer, and in its turn for what is learned.
            let mut standing = (**stream.standing.load()).clone();
            standing.mode = mode;
            stream.standing.store(Arc::new(standing));
            sequence
        };
        self.work.wake(stream);
        self.work.wait_for(stream, sequence, PATIENCE);
        Ok(())
    }

    fn roll_back(
        &self,
        stream: &Arc<Stream>,
        to: Rollback,
        by: &str,
        reason: &str,
    ) -> Result<(), Refusal> {
        if stream.standing.load().failed.is_some() || lock(&stream.intake).refuses {
            self.revive(stream)
                .map_err(|error| Refusal::Unavailable(in_full(&error)))?;
        }
        let record = Record::Rollback {
            to,
            by: by.to_owned(),
            reason: reason.to_owned(),
        };
        let sequence = self.decide(stream, record)?;
        if self.work.wait_for(stream, sequence, PATIENCE) {
            return Ok(());
        }
        Err(Refusal::Unavailable(
            "the roll back is in the log, and comes after the learn batches that wait".to_owned(),
        ))
    }

    /// Makes a failed stream ready to be rolled back: what cannot be read is put aside.
    fn revive(&self, stream: &Arc<Stream>) -> crate::Result<()> {
        let mut learning = lock(&stream.learning);
        let mut intake = lock(&stream.intake);
        learning.replay = None;
        stream.replay_left.store(0, Ordering::SeqCst);
        stream.cuts_waiting.store(0, Ordering::SeqCst);
        intake.inbox.clear();
        if learning.damage.take().is_some()
            && let Some(folder) = &learning.folder
        {
            folder.set_aside()?;
            let log = folder.log();
            let survey = Survey::of(&log)?;
            let next = learning.course.memory().sequence + 1;
            let durability = self.config.state.durability;
            let belongs = learning.belongs.clone();
            intake.log = Some(Log::open(&log, belongs, durability, &survey, next)?);
            intake.next = next;
        }
        intake.refuses = false;
        Ok(())
    }

    /// Takes late labels. Those of images that both lanes answered, and answered differently, are evidence.
    fn label(
        &self,
        stream: &Arc<Stream>,
        labels: &[Feedback],
        promote: Promote,
        share: f64,
    ) -> (u64, u64) {
        let mut matched = 0;
        let (counts, for_adapted, for_source, mode) = {
            let mut intake = lock(&stream.intake);
            for label in labels {
                let Some(given) = intake.ring.take(&label.id, label.index) else {
                    continue;
                };
                matched += 1;
                let right = |class: Option<usize>| class == Some(label.class);
                if given.adapted.is_some() && given.source.is_some() {
                    let (adapted, source) = (right(given.adapted), right(given.source));
                    intake.labels.adapted += u64::from(adapted && !source);
                    intake.labels.source += u64::from(source && !adapted);
                }
            }
            intake.labels.matched += matched;
            let counts = intake.labels;
            let (for_adapted, for_source) = (counts.for_adapted(), counts.for_source());
            if promote == Promote::Labels && for_adapted.max(for_source) >= ENOUGH {
                // What comes next is counted anew.
                intake.labels.adapted = 0;
                intake.labels.source = 0;
            }
            (counts, for_adapted, for_source, intake.mode)
        };
        let notice = Notice {
            kind: "labels",
            data: json!({
                "matched": matched, "adapted": counts.adapted, "source": counts.source,
                "evidence": for_adapted, "against": for_source,
            }),
        };
        stream.tell(&[notice]);
        if promote == Promote::Labels {
            // A decision that cannot be written is made again when the next labels come.
            let _ = if for_source >= ENOUGH {
                let reason = format!("labels are evidence of {for_source:.1} for the source");
                self.roll_back(stream, Rollback::Source, "labels", &reason)
            } else if for_adapted >= ENOUGH {
                match mode {
                    Mode::Shadow => self.set_mode(stream, Mode::Canary(share), "labels"),
                    Mode::Canary(_) => self.set_mode(stream, Mode::Active, "labels"),
                    _ => Ok(()),
                }
            } else {
                Ok(())
            };
        }
        (matched, labels.len() as u64 - matched)
    }
}

/// Refuses what cannot be answered before anything is done with it.
fn check(served: &Served, request: &Request) -> Result<(), Refusal> {
    let name = &request.stream;
    if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
        return Err(Refusal::Invalid(format!(
            "the name of a stream is 1 to {LONGEST_NAME} bytes of text without control characters"
        )));
    }
    let count = request.samples.count();
    if count > LARGEST_REQUEST {
        return Err(Refusal::Invalid(format!(
            "expected at most {LARGEST_REQUEST} images in a request, found {count}"
        )));
    }
    let input = &served.rules.loaded.model.input;
    input
        .check(&request.samples)
        .map_err(|error| Refusal::Invalid(with_causes(&error)))?;
    if request
        .deadline
        .is_some_and(|deadline| deadline <= Instant::now())
    {
        return Err(Refusal::Deadline);
    }
    Ok(())
}

/// Draws a number, 0 to 1, that is the same for the same request.
fn draw(request: &Request) -> f64 {
    if let Some(id) = &request.id {
        return draw_of(&format!("{}\0{id}", request.stream));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(request.stream.as_bytes());
    match &request.samples {
        Samples::Images(images) => hasher.update(&images.pixels),
        Samples::Clouds(clouds) => {
            let values = clouds.values.iter();
            let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
            hasher.update(&bytes)
        }
    };
    fraction(&hasher.finalize())
}

fn draw_of(text: &str) -> f64 {
    fraction(&blake3::hash(text.as_bytes()))
}

fn fraction(hash: &blake3::Hash) -> f64 {
    let first = hash
        .as_bytes()
        .first_chunk()
        .expect("a digest has 32 bytes");
    (u64::from_le_bytes(*first) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Describes a stream to an operator.
fn status(served: &Served, stream: &Stream) -> StreamStatus {
    let standing = stream.standing.load();
    let intake = lock(&stream.intake);
    let counted = lock(&stream.counted).clone();
    let kept = standing.kept.iter();
    let batch = served.rules.loaded.config.batch;
    StreamStatus {
        stream: stream.name.clone(),
        mode: standing.mode,
        health: stream.health(),
        accepted: intake.accepted,
        learned: standing.learned,
        pending: intake.open as u64 + stream.cuts_waiting.load(Ordering::Relaxed) * batch as u64,
        version: standing.published.version,
        kept: kept
            .map(|kept| (kept.weights.version, kept.accepted, kept.good))
            .collect(),
        guards: standing.guards.clone(),
        labels: (
            intake.labels.adapted,
            intake.labels.source,
            intake.labels.for_adapted(),
        ),
        log_bytes: intake.log.as_ref().map_or(0, Log::bytes),
        memory_bytes: served.stream_bytes,
        alarms: counted.alarms.into_iter().collect(),
        rollbacks: counted.rollbacks,
    }
}
