//! What a session does with an arriving batch.

use std::collections::BTreeMap;
use std::time::Instant;

use burn::tensor::{Tensor, TensorData};
use rand::seq::SliceRandom;

use super::{Answer, Session};
use crate::backbone::{Backbone, NormMode};
use crate::data::{SampleId, Samples};
use crate::gate::Verdict;
use crate::method::{Learned, Minibatch, Prediction, QueueState, Stage, Wants};
use crate::protocol::views::Copies;
use crate::{Error, Result, rng};

/// What the gate says to a batch.
pub(super) enum Asked {
    /// The source answers, and nothing is learned.
    Closed(Box<Answer>),
    /// The method learns and answers; there may be no gate at all. It took so many seconds to ask.
    Open(Option<Verdict>, f64),
}

/// What the source says to images of a batch.
struct Seen {
    /// The logits of an image, by its place in the batch.
    rows: BTreeMap<usize, Vec<f32>>,
    /// The same, `[images, classes]`; none where no image was looked at.
    scores: Option<Tensor<2>>,
}

impl Seen {
    fn look<B: Backbone>(source: &B, images: &Tensor<4>, chosen: Vec<usize>) -> Self {
        if chosen.is_empty() {
            return Self {
                rows: BTreeMap::new(),
                scores: None,
            };
        }
        let images = if chosen.len() == images.dims()[0] {
            images.clone()
        } else {
            let places: Vec<i64> = chosen.iter().map(|&image| image as i64).collect();
            let places = TensorData::from(places.as_slice());
            let places = Tensor::from_data(places, &images.device());
            images.clone().select(0, places)
        };
        let scores = source.forward(images, NormMode::Running);
        let [_, classes] = scores.dims();
        let values = scores.to_data();
        let values = values.as_slice::<f32>().expect("scores are f32");
        let rows = values.chunks_exact(classes).map(<[f32]>::to_vec);
        Self {
            rows: chosen.into_iter().zip(rows).collect(),
            scores: Some(scores),
        }
    }
}

/// Reads the samples at some places, with their ids.
pub(crate) type Pick<'a> = dyn Fn(&[usize]) -> Result<(Vec<SampleId>, Samples)> + 'a;

impl<B: Backbone + Sync + 'static> Session<B> {
    /// Normalises samples, and refuses what the session cannot learn from before anything changes.
    pub(super) fn check(&self, ids: &[SampleId], samples: &Samples) -> Result<Tensor<4>> {
        if ids.len() != samples.count() {
            return Err(Error::Mismatch {
                what: "ids of a batch".to_owned(),
                expected: format!("{}, one for each sample", samples.count()),
                found: ids.len().to_string(),
            });
        }
        let images = self.normalise(samples)?;
        let mut available = ids.len();
        if self.rehearses() {
            self.state.queue.check(samples)?;
            available += self.state.queue.len();
        }
        let fewest = self.adapter.needs().fewest_samples;
        if available < fewest {
            return Err(Error::Mismatch {
                what: "samples of a batch".to_owned(),
                expected: format!("at least {fewest} for `{}`", self.method.name),
                found: ids.len().to_string(),
            });
        }
        Ok(images)
    }

    /// Makes samples what the network expects, on the session's device.
    pub(crate) fn normalise(&self, samples: &Samples) -> Result<Tensor<4>> {
        self.model.input.normalise(samples, &self.device)
    }

    /// Whether batches are learned from by way of the queue.
    fn rehearses(&self) -> bool {
        self.protocol.queue.is_some() && self.adapter.needs().rehearses
    }

    /// Shows a batch to the gate, if there is one. While it is closed, the scores it looked at are the answer.
    pub(super) fn ask_gate(&mut self, images: &Tensor<4>) -> Asked {
        let (Some(config), Some(gate), Some(calibration)) =
            (&self.protocol.gate, &mut self.state.gate, &self.calibration)
        else {
            return Asked::Open(None, 0.0);
        };
        let start = Instant::now();
        let count = images.dims()[0];
        let needed = |&image: &usize| gate.looks(config, image);
        let mut seen = Seen::look(&self.source, images, (0..count).filter(needed).collect());
        let verdict = gate.observe(config, calibration, count, |image| {
            if !seen.rows.contains_key(&image) {
                // The gate began to look at every image in the middle of the batch.
                seen = Seen::look(&self.source, images, (0..count).collect());
            }
            seen.rows[&image].clone()
        });
        if verdict.open {
            return Asked::Open(Some(verdict), start.elapsed().as_secs_f64());
        }
        let scores = match seen.scores {
            Some(scores) if seen.rows.len() == count => scores,
            _ => self.source.forward(images.clone(), NormMode::Running),
        };
        Asked::Closed(Box::new(Answer {
            gate: Some(verdict),
            predicting_seconds: start.elapsed().as_secs_f64(),
            ..Answer::of_scores(scores)
        }))
    }

    /// Answers a batch that arrived while the method was busy, by the weights it had before.
    pub(super) fn answer_late(&self, images: Tensor<4>) -> Answer {
        let start = Instant::now();
        let scores = match &self.published {
            _ if self.source_answers() => self.source.forward(images, NormMode::Running),
            Some(before) => before.predict(images),
            None => self.adapter.predict(images),
        };
        Answer {
            late: true,
            predicting_seconds: start.elapsed().as_secs_f64(),
            ..Answer::of_scores(scores)
        }
    }

    /// Learns from an arriving batch and predicts it.
    pub(super) fn arrive(
        &mut self,
        ids: &[SampleId],
        samples: &Samples,
        images: Tensor<4>,
    ) -> Result<Answer> {
        if self.rehearses() {
            return self.arrive_in_queue(ids, samples, images);
        }
        let start = Instant::now();
        let size = self.protocol.minibatch;
        let order = self.protocol.prediction;
        let divisible = self.adapter.needs().views == Wants::Nothing;
        if ids.len() > size && order == Prediction::AdaptFirst && divisible {
            return self.arrive_in_parts(ids, &images, size);
        }
        let features = self.features_before(&images);
        let draw = self.state.batches as u64;
        let views = self
            .copies()
            .make(self.adapter.needs().views, (ids, samples), draw)?;
        let arriving = Minibatch {
            ids: ids.to_vec(),
            images: images.clone(),
            views,
        };
        self.adapter.begin_epoch(&Stage::SINGLE);
        let (scores, learned) = self.adapter.observe(&arriving, order)?;
        // A sample that comes only once needs no memory.
        self.adapter.forget(ids);
        let answer = self.answer(scores, images, features);
        let mut answer = answer.with_learned(learned);
        answer.learning_seconds = start.elapsed().as_secs_f64();
        Ok(answer)
    }

    /// Computes the features that a batch is answered by, if that is done before it is learned from and features may be needed.
    fn features_before(&self, images: &Tensor<4>) -> Option<Tensor<2>> {
        let first = self.protocol.prediction == Prediction::PredictFirst;
        let shares = self.protocol.shares.filter(|_| first);
        let agreement = shares.and_then(|shares| shares.agreement);
        agreement.map(|_| self.adapter.features(images.clone()))
    }

    /// Makes the answer of a batch that was learned from. Features are those of before, if it was answered before.
    fn answer(
        &mut self,
        scores: Tensor<2>,
        images: Tensor<4>,
        features: Option<Tensor<2>>,
    ) -> Answer {
        if self.protocol.shares.is_none() {
            return Answer::of_scores(scores);
        }
        let uncorrected = Answer::of_scores(scores.clone()).classes;
        Answer {
            uncorrected: Some(uncorrected),
            ..Answer::of_scores(self.adapter.answer(scores, images, features))
        }
    }

    /// Learns from an arriving batch in steps of at most `size` samples, then predicts all of it.
    fn arrive_in_parts(
        &mut self,
        ids: &[SampleId],
        images: &Tensor<4>,
        size: usize,
    ) -> Result<Answer> {
        let start = Instant::now();
        let mut tally = Tally::default();
        let parts = ids.len().div_ceil(size);
        for part in 0..parts {
            // Parts of nearly equal size, so that none is too small to learn from.
            let range = part * ids.len() / parts..(part + 1) * ids.len() / parts;
            let minibatch = Minibatch {
                ids: ids[range.clone()].to_vec(),
                images: images.clone().slice_dim(0, range),
                views: None,
            };
            self.adapter.begin_epoch(&Stage::SINGLE);
            tally.add(self.adapter.learn(&minibatch, &Stage::SINGLE)?);
        }
        self.adapter.forget(ids);
        let learned_at = start.elapsed().as_secs_f64();
        let scores = self.adapter.score(images.clone());
        let answer = self.answer(scores, images.clone(), None);
        let mut answer = answer.with_learned(tally.finish());
        answer.learning_seconds = learned_at;
        answer.predicting_seconds = start.elapsed().as_secs_f64() - learned_at;
        Ok(answer)
    }

    /// Puts an arriving batch into the queue, learns from the queue, and predicts the batch.
    fn arrive_in_queue(
        &mut self,
        ids: &[SampleId],
        samples: &Samples,
        images: Tensor<4>,
    ) -> Result<Answer> {
        let start = Instant::now();
        let first = self.protocol.prediction == Prediction::PredictFirst;
        let before = first.then(|| self.adapter.score(images.clone()));
        let features = self.features_before(&images);
        let predicted_before = start.elapsed().as_secs_f64();
        let left = self.state.queue.push(ids, samples);
        self.adapter.forget(&left);
        let learned = self.rehearse()?;
        let learned_at = start.elapsed().as_secs_f64();
        let scores = before.unwrap_or_else(|| self.adapter.score(images.clone()));
        let answer = self.answer(scores, images, features);
        let mut answer = answer.with_learned(learned);
        answer.learning_seconds = learned_at - predicted_before;
        answer.predicting_seconds = start.elapsed().as_secs_f64() - answer.learning_seconds;
        Ok(answer)
    }

    /// Learns for some epochs from the queue.
    fn rehearse(&mut self) -> Result<Learned> {
        let samples = self.state.queue.len();
        let epochs = self.protocol.queue_epochs(samples);
        let fill = if self.state.queue.is_full() {
            QueueState::Full
        } else {
            QueueState::Filling
        };
        let most = self.protocol.queue.map_or(1, |queue| queue.epochs);
        let first = usize::from(!self.adapter.needs().warm_up);
        let mut tally = Tally::default();
        // The queue is lent to the epochs, which change the method.
        let queue = std::mem::replace(&mut self.state.queue, super::Queue::new(0));
        let mut result = Ok(());
        for epoch in first..=epochs {
            let stage = Stage::rehearsal(epoch, most, fill);
            if epoch > 0 {
                self.adapter.begin_epoch(&stage);
            }
            let draw = (self.state.batches as u64) << 16 | epoch as u64;
            let pick = |places: &[usize]| Ok(queue.pick(places));
            result = self.epoch(&stage, samples, draw, &mut tally, &pick);
            if result.is_err() {
                break;
            }
        }
        self.state.queue = queue;
        result.map(|()| tally.finish())
    }

    /// Learns for one epoch from samples that `pick` reads: whole minibatches in a random order.
    pub(crate) fn epoch(
        &mut self,
        stage: &Stage,
        samples: usize,
        draw: u64,
        tally: &mut Tally,
        pick: &Pick<'_>,
    ) -> Result<()> {
        let size = self.protocol.minibatch.min(samples);
        let order = |purpose| shuffled(self.protocol.seed, draw << 1 | purpose, samples);
        let wants = self.adapter.needs().views;
        let own = order(0);
        // The contrastive loss sees other samples than the alignment.
        let others = (wants == Wants::Contrastive).then(|| order(1));
        for (step, places) in own.chunks_exact(size).enumerate() {
            let (ids, chosen) = pick(places)?;
            let draw = draw << 16 | step as u64;
            let views = match &others {
                Some(others) => {
                    let (ids, chosen) = pick(&others[step * size..][..size])?;
                    self.copies().make(wants, (&ids, &chosen), draw)?
                }
                None => self.copies().make(wants, (&ids, &chosen), draw)?,
            };
            let minibatch = Minibatch {
                images: self.normalise(&chosen)?,
                ids,
                views,
            };
            tally.add(self.adapter.learn(&minibatch, stage)?);
        }
        Ok(())
    }

    /// Tells the method that an epoch over the whole set begins.
    pub(crate) fn begin_epoch(&mut self, stage: &Stage) {
        self.adapter.begin_epoch(stage);
    }

    /// Says how varied copies of samples are made.
    fn copies(&self) -> Copies<'_> {
        Copies {
            input: &self.model.input,
            device: &self.device,
            seed: self.protocol.seed,
        }
    }
}

/// Returns the places of some samples in a random order.
fn shuffled(seed: u64, stream: u64, samples: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..samples).collect();
    order.shuffle(&mut rng::seeded(seed, stream));
    order
}

/// What several steps learned.
#[derive(Default)]
pub(crate) struct Tally {
    sum: Learned,
    /// How often each loss was there.
    times: Vec<usize>,
}

impl Tally {
    pub fn add(&mut self, learned: Learned) {
        self.sum.updates += learned.updates;
        self.sum.accepted += learned.accepted;
        self.sum.considered += learned.considered;
        // The distance after the newest step is the one that counts.
        self.sum.anchor_distance = learned.anchor_distance.or(self.sum.anchor_distance);
        self.sum.not_finite = self.sum.not_finite.or(learned.not_finite);
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

    pub fn finish(mut self) -> Learned {
        for ((_, sum), times) in self.sum.losses.iter_mut().zip(self.times) {
            *sum /= times as f64;
        }
        self.sum.notes.sort();
        self.sum.notes.dedup();
        self.sum
    }
}
