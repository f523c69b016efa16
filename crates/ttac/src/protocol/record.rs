//! Results: what a run was worth, with its card.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::{GuardAction, Sink};
use crate::experiment::Card;
use crate::gate::Verdict;
use crate::method::Learned;
use crate::session::Answer;
use crate::stream::Arrival;
use crate::{Error, Result};

/// The version of a record.
pub const RECORD_FORMAT: u32 = 1;

/// What happened to an arriving batch.
#[derive(Clone, Debug)]
pub struct StepRecord {
    /// The number of the batch, from zero.
    pub batch: usize,
    /// The number of the visit it belongs to, from zero.
    pub visit: usize,
    /// What arrived.
    pub arrivals: Vec<Arrival>,
    /// The true classes, for scoring only; `None` where they are unknown.
    pub labels: Option<Vec<usize>>,
    /// The predicted classes.
    pub predicted: Vec<usize>,
    /// The probability of each predicted class.
    pub confidence: Vec<f32>,
    /// What was learned on its arrival, summed over all steps; losses are means.
    pub learned: Learned,
    /// Time for learning, in seconds.
    pub learning_seconds: f64,
    /// Time for predicting, in seconds.
    pub predicting_seconds: f64,
    /// Whether it arrived while the method was busy.
    pub late: bool,
    /// What the gate decided, if there is one.
    pub gate: Option<Verdict>,
    /// What somebody should know.
    pub warnings: Vec<String>,
    /// Why the guard stopped the run after this batch, if it did.
    pub stopped: Option<String>,
}

impl StepRecord {
    /// Records a session's answer to a batch.
    pub(super) fn new(
        batch: usize,
        visit: usize,
        arrivals: &[Arrival],
        labels: Option<Vec<usize>>,
        answer: Answer,
    ) -> Self {
        let stop = answer.alarm.as_ref();
        let stop = stop.filter(|alarm| alarm.action == GuardAction::Stop);
        Self {
            batch,
            visit,
            arrivals: arrivals.to_vec(),
            labels,
            confidence: answer.confidence(),
            predicted: answer.classes,
            learned: answer.learned,
            learning_seconds: answer.learning_seconds,
            predicting_seconds: answer.predicting_seconds,
            late: answer.late,
            gate: answer.gate,
            warnings: answer.warnings,
            stopped: stop.map(|alarm| alarm.reason.clone()),
        }
    }

    /// Counts the wrong predictions; `None` where labels are unknown.
    pub fn wrong(&self) -> Option<usize> {
        let pairs = self.predicted.iter().zip(self.labels.as_ref()?);
        let wrong = pairs.filter(|(predicted, label)| predicted != label);
        Some(wrong.count())
    }
}

/// The result of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRecord {
    /// Version, [`RECORD_FORMAT`].
    pub format: u32,
    /// Wrong predictions over all samples, in percent.
    pub error_percent: f64,
    /// Wrong predictions.
    pub wrong: usize,
    /// Samples.
    pub samples: usize,
    /// Error of each class, in percent; none for a class without samples.
    pub class_error_percent: Vec<Option<f64>>,
    /// True class by row, predicted class by column.
    pub confusion: Vec<Vec<usize>>,
    /// Error of each visit to a domain, in percent.
    pub visit_error_percent: Vec<f64>,
    /// What happened batch by batch.
    pub curve: Vec<CurvePoint>,
    /// Optimiser steps.
    pub updates: usize,
    /// Samples that arrived while the method was busy.
    pub late: usize,
    /// Time for learning, in seconds.
    pub learning_seconds: f64,
    /// Time for predicting, in seconds; part of the learning where one pass does both.
    pub predicting_seconds: f64,
    /// BLAKE3 of all predictions in their order.
    pub predictions: String,
    /// Which predictions were right, in the order of arrival: four to a hexadecimal digit, the lowest
    /// bit first. Runs of the same plan can be compared image by image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcomes: Option<String>,
    /// What the gate did, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateRecord>,
    /// Names of the classes, for display.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// What somebody should know.
    pub warnings: Vec<String>,
    /// What it was made with.
    pub card: Card,
}

/// The result of a run over samples whose labels are unknown: all but the errors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnscoredRecord {
    /// How many samples were predicted.
    pub samples: usize,
    /// Optimiser steps.
    pub updates: usize,
    /// Samples that arrived while the method was busy.
    pub late: usize,
    /// Time for learning, in seconds.
    pub learning_seconds: f64,
    /// Time for predicting, in seconds.
    pub predicting_seconds: f64,
    /// BLAKE3 of all predictions in their order.
    pub predictions: String,
    /// What the gate did, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateRecord>,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// What somebody should know.
    pub warnings: Vec<String>,
    /// What it was made with.
    pub card: Card,
}

/// A point of the error curve, after one batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurvePoint {
    /// Samples so far.
    pub samples: usize,
    /// Error over all samples so far, in percent.
    pub cumulative_error_percent: f64,
    /// Share of accepted pseudo-labels, if there were any to accept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_share: Option<f64>,
    /// Mean distance of the class means from their anchors, for methods that have both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchor_distance: Option<f64>,
    /// Losses by name.
    pub losses: Vec<(String, f64)>,
    /// Whether the gate was open, if there is one, and the method answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate_open: Option<bool>,
}

/// What a gate did in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateRecord {
    /// The samples, counted from zero, at which it opened.
    pub opened: Vec<usize>,
    /// The samples, counted from zero, at which it closed.
    pub closed: Vec<usize>,
    /// How many samples the source answered.
    pub answered_by_source: usize,
}

impl GateRecord {
    /// Adds a batch of `count` samples that began after `before` others.
    fn add(&mut self, verdict: &Verdict, before: usize, count: usize) {
        self.opened.extend(verdict.opened.map(|at| before + at));
        self.closed.extend(verdict.closed.map(|at| before + at));
        self.answered_by_source += if verdict.open { 0 } else { count };
    }
}

impl RunRecord {
    /// Tells which predictions were right, in the order of arrival; `None` for records of older versions.
    pub fn right(&self) -> Option<Vec<bool>> {
        let digits = self.outcomes.as_ref()?.chars();
        let digits: Option<Vec<u32>> = digits.map(|digit| digit.to_digit(16)).collect();
        let bits = digits?.into_iter();
        let bits = bits.flat_map(|digit| (0..4).map(move |place| digit >> place & 1 == 1));
        let bits: Vec<bool> = bits.take(self.samples).collect();
        (bits.len() == self.samples).then_some(bits)
    }
}

/// A [`Sink`] that counts errors and makes a record of them. Saved with a session's state, it goes on where it
/// was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recorder {
    classes: Vec<String>,
    batches: usize,
    /// Whether a batch came without labels, so that no error can be stated.
    unlabelled: bool,
    confusion: Vec<Vec<usize>>,
    visits: Vec<(usize, usize)>,
    curve: Vec<CurvePoint>,
    updates: usize,
    late: usize,
    learning_seconds: f64,
    predicting_seconds: f64,
    predictions: Vec<u16>,
    right: Vec<bool>,
    gate: Option<GateRecord>,
    warnings: Vec<String>,
}

impl Recorder {
    /// Starts a record for classes of these names.
    pub fn new(classes: &[String]) -> Self {
        Self {
            classes: classes.to_vec(),
            batches: 0,
            unlabelled: false,
            confusion: vec![vec![0; classes.len()]; classes.len()],
            visits: Vec::new(),
            curve: Vec::new(),
            updates: 0,
            late: 0,
            learning_seconds: 0.0,
            predicting_seconds: 0.0,
            predictions: Vec::new(),
            right: Vec::new(),
            gate: None,
            warnings: Vec::new(),
        }
    }

    /// Returns how many samples were predicted so far.
    pub fn samples(&self) -> usize {
        self.predictions.len()
    }

    /// Returns how many batches came so far.
    pub fn batches(&self) -> usize {
        self.batches
    }

    /// Counts the wrong predictions so far; `None` if labels are unknown.
    pub fn wrong(&self) -> Option<usize> {
        let right = self.right.iter().filter(|right| **right).count();
        (!self.unlabelled).then(|| self.samples() - right)
    }

    /// Returns the error over all samples so far, in percent; `None` if labels are unknown.
    pub fn error_percent(&self) -> Option<f64> {
        Some(percent(self.wrong()?, self.samples()))
    }

    /// Makes the record of samples without labels.
    pub fn finish_unscored(self, card: Card) -> UnscoredRecord {
        UnscoredRecord {
            samples: self.samples(),
            updates: self.updates,
            late: self.late,
            learning_seconds: self.learning_seconds,
            predicting_seconds: self.predicting_seconds,
            predictions: self.digest(),
            gate: self.gate,
            classes: self.classes,
            warnings: self.warnings,
            card,
        }
    }

    /// Digests all predictions in their order.
    fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for class in &self.predictions {
            hasher.update(&class.to_le_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Makes the record. Without labels there is none, and the error says so.
    pub fn finish(self, card: Card) -> Result<RunRecord> {
        let (Some(wrong), Some(error_percent)) = (self.wrong(), self.error_percent()) else {
            return Err(Error::Invalid {
                what: "record",
                problem: "the samples have no labels, so there is no error to record".to_owned(),
            });
        };
        let class_error = |class: usize| {
            let row = &self.confusion[class];
            let samples: usize = row.iter().sum();
            (samples > 0).then(|| percent(samples - row[class], samples))
        };
        Ok(RunRecord {
            format: RECORD_FORMAT,
            error_percent,
            wrong,
            samples: self.samples(),
            class_error_percent: (0..self.classes.len()).map(class_error).collect(),
            visit_error_percent: self.visits.iter().map(|&(w, n)| percent(w, n)).collect(),
            updates: self.updates,
            late: self.late,
            learning_seconds: self.learning_seconds,
            predicting_seconds: self.predicting_seconds,
            predictions: self.digest(),
            outcomes: Some(bits_to_hex(&self.right)),
            gate: self.gate,
            classes: self.classes,
            confusion: self.confusion,
            curve: self.curve,
            warnings: self.warnings,
            card,
        })
    }
}

/// Packs four to a hexadecimal digit, the lowest bit first.
fn bits_to_hex(bits: &[bool]) -> String {
    let digit = |bits: &[bool]| {
        let bits = bits.iter().enumerate();
        let value = bits.fold(0, |value, (place, &bit)| value | u32::from(bit) << place);
        char::from_digit(value, 16).expect("four bits are a digit")
    };
    bits.chunks(4).map(digit).collect()
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

impl Sink for Recorder {
    fn step(&mut self, record: &StepRecord) -> Result<ControlFlow<()>> {
        let count = record.predicted.len();
        self.batches += 1;
        let learned = &record.learned;
        self.updates += learned.updates;
        self.late += if record.late { count } else { 0 };
        self.learning_seconds += record.learning_seconds;
        self.predicting_seconds += record.predicting_seconds;
        self.warnings.extend(record.warnings.iter().cloned());
        if let Some(verdict) = &record.gate {
            let before = self.predictions.len();
            let gate = self.gate.get_or_insert_default();
            gate.add(verdict, before, count);
        }
        let predicted = record.predicted.iter().map(|&class| class as u16);
        self.predictions.extend(predicted);
        let (Some(labels), Some(wrong)) = (&record.labels, record.wrong()) else {
            self.unlabelled = true;
            return Ok(ControlFlow::Continue(()));
        };
        for (&label, &predicted) in labels.iter().zip(&record.predicted) {
            self.confusion[label][predicted] += 1;
            self.right.push(label == predicted);
        }
        self.visits
            .resize(self.visits.len().max(record.visit + 1), (0, 0));
        let visit = &mut self.visits[record.visit];
        visit.0 += wrong;
        visit.1 += count;
        if let Some(error) = self.error_percent() {
            self.curve.push(CurvePoint {
                samples: self.samples(),
                cumulative_error_percent: error,
                accepted_share: (learned.considered > 0)
                    .then(|| learned.accepted as f64 / learned.considered as f64),
                anchor_distance: learned.anchor_distance,
                losses: learned
                    .losses
                    .iter()
                    .map(|&(name, value)| (name.to_owned(), value))
                    .collect(),
                gate_open: record.gate.map(|verdict| verdict.open),
            });
        }
        Ok(ControlFlow::Continue(()))
    }
}
