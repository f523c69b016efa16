//! The one driver of all protocols.

use std::ops::ControlFlow;
use std::time::Instant;

use burn::tensor::{Device, Tensor, activation::softmax};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{GuardAction, Passes, Prediction, Protocol, Queue, Reset, Selection};
use crate::checkpoint::{Augmentation, InputContract};
use crate::data::{Batch, Dataset, Draw, Images, SampleId, Samples, augment, rotate};
use crate::method::{FirstPasses, Learned, Method, Minibatch, QueueState, Stage, Views, Wants};
use crate::stream::{Arrival, StreamPlan};
use crate::{Error, Result, best};

/// Batches between two looks at the parameters.
const DRIFT_INTERVAL: usize = 8;

/// Images in a forward pass where nothing else says so.
pub(super) const PREDICTION_BATCH: usize = 256;

/// A plan with the data it names.
pub struct Stream<'a> {
    /// What arrives.
    pub plan: &'a StreamPlan,
    /// The data of each domain of the plan.
    pub domains: &'a [Box<dyn Dataset>],
    /// What the model wants images to look like.
    pub input: &'a InputContract,
    /// Where to compute.
    pub device: &'a Device,
}

impl Stream<'_> {
    pub(super) fn batch(&self, arrivals: &[Arrival]) -> Result<Batch> {
        let mut whole: Option<Batch> = None;
        // Neighbours of one domain are read together.
        for group in arrivals.chunk_by(|a, b| a.domain == b.domain) {
            let domain = group[0].domain;
            let ids: Vec<SampleId> = group.iter().map(|arrival| arrival.id).collect();
            let mut part = self.domains[domain].batch(&ids)?;
            part.samples.ids = group.iter().map(unique_id).collect();
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => {
                    whole.samples.ids.extend(part.samples.ids);
                    whole.samples.images.append(part.samples.images)?;
                    whole.labels.extend(part.labels);
                }
            }
        }
        whole.ok_or_else(|| Error::Invalid {
            what: "stream",
            problem: "a batch is empty".to_owned(),
        })
    }

    pub(super) fn normalise(&self, images: &Images) -> Result<Tensor<4>> {
        self.input.normalise(images, self.device)
    }
}

/// An id that no other domain's sample has.
fn unique_id(arrival: &Arrival) -> SampleId {
    (arrival.domain as SampleId) << 40 | arrival.id
}

/// What happened to an arriving batch.
#[derive(Clone, Debug)]
pub struct StepRecord {
    /// Its number, from zero.
    pub batch: usize,
    /// The visit it belongs to.
    pub visit: usize,
    /// What arrived.
    pub arrivals: Vec<Arrival>,
    /// The true classes, for scoring only.
    pub labels: Vec<usize>,
    /// The predicted classes.
    pub predicted: Vec<usize>,
    /// The probability of each.
    pub confidence: Vec<f32>,
    /// What was learned on its arrival, summed over all steps; losses are means.
    pub learned: Learned,
    /// Time for learning, in seconds.
    pub learning_seconds: f64,
    /// Time for predicting, in seconds.
    pub predicting_seconds: f64,
    /// Whether it arrived while the method was busy.
    pub late: bool,
    /// What somebody should know.
    pub warnings: Vec<String>,
}

impl StepRecord {
    /// How many predictions are wrong.
    pub fn wrong(&self) -> usize {
        let pairs = self.predicted.iter().zip(&self.labels);
        pairs
            .filter(|(predicted, label)| predicted != label)
            .count()
    }
}

/// Who writes down what happens, and may stop it.
pub trait Sink {
    /// After every batch; in many passes, after the last one.
    fn step(&mut self, record: &StepRecord) -> Result<ControlFlow<()>>;

    /// After that, with the method as it goes on: the place to save its state.
    fn save(&mut self, _method: &dyn Method) -> Result<()> {
        Ok(())
    }

    /// After every epoch of many passes, with the error on the whole set in percent if it was
    /// measured.
    fn epoch(&mut self, _epoch: usize, _learned: &Learned, _error_percent: Option<f64>) {}
}

/// Runs a method over a stream, from its start.
pub fn run(
    protocol: &Protocol,
    method: &mut dyn Method,
    stream: &Stream<'_>,
    sink: &mut dyn Sink,
) -> Result<()> {
    Runner::new(protocol, stream)?.run(method, sink)
}

/// A run that can begin in the middle.
pub struct Runner<'a> {
    protocol: &'a Protocol,
    stream: &'a Stream<'a>,
    queue: Queue,
    next: usize,
}

impl<'a> Runner<'a> {
    /// At the start of a stream.
    pub fn new(protocol: &'a Protocol, stream: &'a Stream<'a>) -> Result<Self> {
        protocol.validate(stream.plan.config.batch_size)?;
        let sizes: Vec<usize> = stream.domains.iter().map(|data| data.len()).collect();
        stream.plan.check(&sizes)?;
        Ok(Self {
            protocol,
            stream,
            queue: Queue::new(protocol.queue.map_or(0, |queue| queue.capacity)),
            next: 0,
        })
    }

    /// Goes on before a batch of one pass; the method has to be in the state it had then. The queue
    /// is filled again from the stream.
    pub fn skip_to(mut self, batch: usize) -> Result<Self> {
        if self.protocol.queue.is_some() && self.protocol.reset != Reset::PerBatch {
            let first = match self.protocol.reset {
                Reset::PerVisit => self
                    .visit_starts()
                    .into_iter()
                    .rfind(|&start| start < batch),
                Reset::Never | Reset::PerBatch => Some(0),
            };
            for arrivals in &self.stream.plan.batches[first.unwrap_or(0)..batch] {
                let samples = self.stream.batch(arrivals)?.samples;
                self.queue.push(&samples);
            }
        }
        self.next = batch;
        Ok(self)
    }

    fn visit_starts(&self) -> Vec<usize> {
        let visits = self.stream.plan.visits.iter();
        let mut next = 0;
        visits
            .map(|&count| {
                let start = next;
                next += count;
                start
            })
            .collect()
    }

    /// Runs to the end, or until the sink stops it.
    pub fn run(mut self, method: &mut dyn Method, sink: &mut dyn Sink) -> Result<()> {
        match self.protocol.passes {
            Passes::One => self.one_pass(method, sink),
            Passes::Many { epochs, selection } => self.many_passes(method, sink, epochs, selection),
        }
    }

    // ------------------------------------------------------------------------------------ one pass

    fn one_pass(&mut self, method: &mut dyn Method, sink: &mut dyn Sink) -> Result<()> {
        let starts = self.visit_starts();
        let mut clock = self.protocol.arrival_rate.map(Clock::new);
        let mut published: Option<Box<dyn Method>> = None;
        for index in self.next..self.stream.plan.batches.len() {
            let visit = starts
                .iter()
                .rposition(|&start| start <= index)
                .unwrap_or(0);
            let starting = starts[visit] == index && index > 0;
            let resets = match self.protocol.reset {
                Reset::Never => false,
                Reset::PerVisit => starting,
                Reset::PerBatch => index > 0,
            };
            if resets {
                method.reset();
                self.queue.clear();
                published = None;
            }
            let arrivals = &self.stream.plan.batches[index];
            let batch = self.stream.batch(arrivals)?;
            let images = self.stream.normalise(&batch.samples.images)?;
            let late = clock
                .as_mut()
                .is_some_and(|clock| clock.arrive(batch.labels.len()));
            let record = if late {
                let start = Instant::now();
                let scores = match &published {
                    Some(before) => before.predict(images),
                    None => method.predict(images),
                };
                let mut record = scored(
                    scores,
                    Learned::nothing(),
                    index,
                    visit,
                    arrivals,
                    batch.labels,
                );
                record.predicting_seconds = start.elapsed().as_secs_f64();
                record.late = true;
                record
            } else {
                if clock.is_some() {
                    published = Some(method.boxed_clone());
                }
                let mut record = self.arrive(method, index, visit, batch, images)?;
                if let Some(clock) = &mut clock {
                    clock.work(record.learning_seconds + record.predicting_seconds);
                }
                self.judge(method, &mut record)?;
                record
            };
            self.next = index + 1;
            let going_on = sink.step(&record)?;
            sink.save(method)?;
            if going_on.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Learns from an arriving batch and predicts it.
    fn arrive(
        &mut self,
        method: &mut dyn Method,
        index: usize,
        visit: usize,
        batch: Batch,
        images: Tensor<4>,
    ) -> Result<StepRecord> {
        let arrivals = &self.stream.plan.batches[index];
        let first = self.protocol.prediction == Prediction::PredictFirst;
        let start = Instant::now();
        if self.protocol.queue.is_none() || !method.rehearses() {
            let views = self.views(method.wants(), &batch.samples, index as u64)?;
            let arriving = Minibatch {
                ids: batch.samples.ids.clone(),
                images,
                views,
            };
            method.begin_epoch(&Stage::SINGLE);
            let (scores, learned) = if first {
                method.predict_then_learn(&arriving, &Stage::SINGLE)?
            } else {
                method.learn_then_predict(&arriving, &Stage::SINGLE)?
            };
            // A sample that comes only once needs no memory.
            method.forget(&batch.samples.ids);
            let mut record = scored(scores, learned, index, visit, arrivals, batch.labels);
            record.learning_seconds = start.elapsed().as_secs_f64();
            return Ok(record);
        }
        let before = first.then(|| method.predict(images.clone()));
        let predicted_before = start.elapsed().as_secs_f64();
        self.queue.check(&batch.samples.images)?;
        let left = self.queue.push(&batch.samples);
        method.forget(&left);
        let learned = self.rehearse(method, index)?;
        let learned_at = start.elapsed().as_secs_f64();
        let scores = before.unwrap_or_else(|| method.predict(images));
        let mut record = scored(scores, learned, index, visit, arrivals, batch.labels);
        record.learning_seconds = learned_at - predicted_before;
        record.predicting_seconds = start.elapsed().as_secs_f64() - record.learning_seconds;
        Ok(record)
    }

    /// The epochs over the queue.
    fn rehearse(&self, method: &mut dyn Method, index: usize) -> Result<Learned> {
        let samples = self.queue.len();
        let epochs = self.protocol.queue_epochs(samples);
        let queue = if self.queue.is_full() {
            QueueState::Full
        } else {
            QueueState::Filling
        };
        let most = self.protocol.queue.map_or(1, |queue| queue.epochs);
        let first = usize::from(!method.warms_up());
        let mut tally = Tally::default();
        for epoch in first..=epochs {
            let stage = Stage::rehearsal(epoch, most, queue);
            if epoch > 0 {
                method.begin_epoch(&stage);
            }
            let draw = (index as u64) << 16 | epoch as u64;
            self.epoch(method, &stage, samples, draw, &mut tally, &|places| {
                Ok(self.queue.pick(places))
            })?;
        }
        Ok(tally.finish())
    }

    /// One epoch over samples that `pick` reads: whole minibatches in a random order.
    fn epoch(
        &self,
        method: &mut dyn Method,
        stage: &Stage,
        samples: usize,
        draw: u64,
        tally: &mut Tally,
        pick: &dyn Fn(&[usize]) -> Result<Samples>,
    ) -> Result<()> {
        let size = self.protocol.minibatch.min(samples);
        let order = self.order(samples, draw, 0);
        let contrastive = method.wants() == Wants::Contrastive;
        // The contrastive loss sees other samples than the alignment.
        let others = contrastive.then(|| self.order(samples, draw, 1));
        for (step, places) in order.chunks_exact(size).enumerate() {
            let chosen = pick(places)?;
            let views = match &others {
                Some(others) => {
                    let chosen = pick(&others[step * size..][..size])?;
                    let draw = draw << 16 | step as u64;
                    self.views(Wants::Contrastive, &chosen, draw)?
                }
                None => self.views(method.wants(), &chosen, draw << 16 | step as u64)?,
            };
            let minibatch = Minibatch {
                images: self.stream.normalise(&chosen.images)?,
                ids: chosen.ids,
                views,
            };
            tally.add(method.learn(&minibatch, stage)?);
        }
        Ok(())
    }

    fn order(&self, samples: usize, draw: u64, purpose: u64) -> Vec<usize> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.protocol.seed);
        rng.set_stream(draw << 1 | purpose);
        let mut order: Vec<usize> = (0..samples).collect();
        order.shuffle(&mut rng);
        order
    }

    /// The varied copies a method wants.
    fn views(&self, wants: Wants, samples: &Samples, draw: u64) -> Result<Option<Views>> {
        let seed = self.protocol.seed;
        let draw = |view: u64| Draw {
            seed,
            epoch: draw,
            view,
        };
        if wants != Wants::Nothing {
            // Either kind of copy is made of images.
            Augmentation::Simclr.check(self.stream.input)?;
        }
        match wants {
            Wants::Nothing => Ok(None),
            Wants::Contrastive => {
                let mut images = augment(samples, Augmentation::Simclr, draw(0));
                images
                    .pixels
                    .extend(augment(samples, Augmentation::Simclr, draw(1)).pixels);
                Ok(Some(Views {
                    images: self.stream.normalise(&images)?,
                    turns: Vec::new(),
                }))
            }
            Wants::Turned(copies) => {
                let bytes = samples.images.pixels.len() / samples.ids.len();
                let mut pixels = vec![Vec::new(); samples.ids.len()];
                for copy in 0..copies as u64 {
                    let varied = augment(samples, Augmentation::PadCropFlip, draw(copy));
                    for (own, image) in pixels.iter_mut().zip(varied.pixels.chunks_exact(bytes)) {
                        own.extend_from_slice(image);
                    }
                }
                // A view number that no crop uses.
                let turns = samples.ids.iter().flat_map(|&id| {
                    let mut rng = draw(u64::MAX).rng(id);
                    (0..copies)
                        .map(move |_| rng.random_range(0..4_u8))
                        .collect::<Vec<_>>()
                });
                let turns: Vec<u8> = turns.collect();
                let copies = Images {
                    pixels: pixels.concat(),
                    ..samples.images
                };
                Ok(Some(Views {
                    images: self.stream.normalise(&rotate(&copies, &turns))?,
                    turns: turns.into_iter().map(usize::from).collect(),
                }))
            }
        }
    }

    /// Looks at a method's health, and does what the guard says.
    fn judge(&mut self, method: &mut dyn Method, record: &mut StepRecord) -> Result<()> {
        let guard = &self.protocol.guard;
        let classes = self.stream.domains[0].classes().len();
        let mut problems: Vec<String> = Vec::new();
        let losses = &record.learned.losses;
        let wild = losses.iter().find(|(_, value)| !value.is_finite());
        let mut broken = false;
        if let Some((name, value)) = wild {
            problems.push(format!("loss `{name}` became {value}"));
            broken = true;
        }
        if !record.confidence.iter().all(|p| p.is_finite()) {
            problems.push("predictions are not finite".to_owned());
            broken = true;
        }
        problems.extend(guard.collapse(&record.predicted, classes));
        if record.batch.is_multiple_of(DRIFT_INTERVAL)
            && let Some(drift) = method.drift()
        {
            if !drift.is_finite() {
                problems.push("parameters are not finite".to_owned());
                broken = true;
            }
            problems.extend(guard.drifted(drift));
        }
        if problems.is_empty() {
            return Ok(());
        }
        let problem = format!("batch {}: {}", record.batch, problems.join("; "));
        let action = match guard.action {
            GuardAction::Warn if broken => GuardAction::Reset,
            action => action,
        };
        match action {
            GuardAction::Warn => record.warnings.push(problem),
            GuardAction::Stop => {
                return Err(Error::Invalid {
                    what: "health of the method",
                    problem,
                });
            }
            GuardAction::Reset => {
                method.reset();
                self.queue.clear();
                record
                    .warnings
                    .push(format!("{problem}; reset to the source"));
            }
        }
        Ok(())
    }

    // --------------------------------------------------------------------------------- many passes

    fn many_passes(
        &mut self,
        method: &mut dyn Method,
        sink: &mut dyn Sink,
        epochs: usize,
        selection: Selection,
    ) -> Result<()> {
        let plan = self.stream.plan;
        let arrivals: Vec<Arrival> = plan.batches.concat();
        let pick = |places: &[usize]| {
            let mut chosen: Vec<Arrival> = places.iter().map(|&place| arrivals[place]).collect();
            // Read domain by domain; the order within a minibatch has no meaning.
            chosen.sort_unstable();
            Ok(self.stream.batch(&chosen)?.samples)
        };
        let mut best: Option<(usize, Vec<StepRecord>)> = None;
        let mut first = method.first_passes();
        if first.norms + first.contrastive >= epochs {
            first = FirstPasses::default();
        }
        for epoch in 1..=epochs {
            let start = Instant::now();
            let stage = Stage {
                epoch,
                lesson: first.lesson(epoch),
                epochs,
                queue: QueueState::Everything,
            };
            method.begin_epoch(&stage);
            let mut tally = Tally::default();
            self.epoch(
                method,
                &stage,
                arrivals.len(),
                epoch as u64,
                &mut tally,
                &pick,
            )?;
            let learned = tally.finish();
            let seconds = start.elapsed().as_secs_f64();
            let last = epoch == epochs;
            if selection == Selection::OracleBest || last {
                let mut records = self.predict_all(method)?;
                let wrong: usize = records.iter().map(StepRecord::wrong).sum();
                let error = 100.0 * wrong as f64 / arrivals.len() as f64;
                if let Some(first) = records.first_mut() {
                    first.learned = learned.clone();
                    first.learning_seconds = seconds;
                }
                sink.epoch(epoch, &learned, Some(error));
                let better = best.as_ref().is_none_or(|(least, _)| wrong < *least);
                if better || selection == Selection::Last {
                    best = Some((wrong, records));
                }
            } else {
                sink.epoch(epoch, &learned, None);
            }
        }
        for record in best.map(|(_, records)| records).unwrap_or_default() {
            if sink.step(&record)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn predict_all(&self, method: &dyn Method) -> Result<Vec<StepRecord>> {
        let mut records = Vec::new();
        let batches = self.stream.plan.batches.iter().enumerate();
        for (index, arrivals) in batches {
            let start = Instant::now();
            let batch = self.stream.batch(arrivals)?;
            let mut scores = Vec::new();
            let images = self.stream.normalise(&batch.samples.images)?;
            let count = arrivals.len();
            for first in (0..count).step_by(PREDICTION_BATCH) {
                let last = (first + PREDICTION_BATCH).min(count);
                scores.push(method.predict(images.clone().slice_dim(0, first..last)));
            }
            let scores = Tensor::cat(scores, 0);
            let learned = Learned::nothing();
            let mut record = scored(scores, learned, index, 0, arrivals, batch.labels);
            record.predicting_seconds = start.elapsed().as_secs_f64();
            records.push(record);
        }
        Ok(records)
    }
}

/// A record of scores, `[batch, classes]`.
fn scored(
    scores: Tensor<2>,
    learned: Learned,
    batch: usize,
    visit: usize,
    arrivals: &[Arrival],
    labels: Vec<usize>,
) -> StepRecord {
    let [_, classes] = scores.dims();
    let probabilities = softmax(scores, 1).to_data();
    let probabilities: Vec<f32> = probabilities.try_to_vec().expect("scores are f32");
    let (predicted, confidence) = probabilities.chunks_exact(classes).map(best).unzip();
    let warnings = learned.notes.clone();
    StepRecord {
        batch,
        visit,
        arrivals: arrivals.to_vec(),
        labels,
        predicted,
        confidence,
        learned,
        learning_seconds: 0.0,
        predicting_seconds: 0.0,
        late: false,
        warnings,
    }
}

/// What several steps learned.
#[derive(Default)]
struct Tally {
    sum: Learned,
    /// How often each loss was there.
    times: Vec<usize>,
}

impl Tally {
    fn add(&mut self, learned: Learned) {
        self.sum.updates += learned.updates;
        self.sum.accepted += learned.accepted;
        self.sum.considered += learned.considered;
        // The newest is where the clusters are.
        self.sum.anchor_distance = learned.anchor_distance.or(self.sum.anchor_distance);
        self.sum.notes.extend(learned.notes);
        for (name, value) in learned.losses {
            let place = self.sum.losses.iter().position(|(known, _)| *known == name);
            if let Some(place) = place {
                self.sum.losses[place].1 += value;
                self.times[place] += 1;
            } else {
                self.sum.losses.push((name, value));
                self.times.push(1);
            }
        }
    }

    fn finish(mut self) -> Learned {
        for ((_, sum), times) in self.sum.losses.iter_mut().zip(self.times) {
            *sum /= times as f64;
        }
        self.sum.notes.sort();
        self.sum.notes.dedup();
        self.sum
    }
}

/// Arrivals at a given rate against work that takes its time.
struct Clock {
    rate: f64,
    arrived: usize,
    busy_until: f64,
}

impl Clock {
    fn new(rate: f64) -> Self {
        Self {
            rate,
            arrived: 0,
            busy_until: 0.0,
        }
    }

    fn now(&self) -> f64 {
        self.arrived as f64 / self.rate
    }

    /// The next samples are there; whether the method is still busy.
    fn arrive(&mut self, samples: usize) -> bool {
        self.arrived += samples;
        self.now() < self.busy_until
    }

    fn work(&mut self, seconds: f64) {
        self.busy_until = self.now() + seconds;
    }
}
