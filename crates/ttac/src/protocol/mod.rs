//! Protocols: what a method is shown, how often, and when its predictions count.
//!
//! A [`Protocol`] is data, and [`run`] is the one driver for all of them. Two letters name the
//! families of the TTAC paper: **N** or **Y**, whether the source was trained as usual or with a
//! self-supervised loss beside (a property of the checkpoint); **O** or **M**, one pass or many.
//!
//! In one pass, for each arriving batch: the method learns, from the batch alone or over several
//! epochs from a queue of recent samples; and the batch is predicted, once, after that (adapt-first,
//! as the authors' program) or before (predict-first, as their text). A prediction is never revised.
//! In many passes the method learns from the whole set again and again and predicts all of it at the
//! end.

mod card;
mod driver;
mod features;
mod health;
mod queue;
mod record;

use serde::{Deserialize, Serialize};

pub use card::{AnchorCard, Card};
pub use driver::{Runner, Sink, StepRecord, Stream, run};
pub use features::FeatureRecord;
pub use health::{Guard, GuardAction};
pub use queue::Queue;
pub use record::{CurvePoint, RECORD_FORMAT, Recorder, RunRecord};

use crate::method::Setting;
use crate::{Error, Result};

/// How a method is run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Protocol {
    /// One pass or many.
    pub passes: Passes,
    /// Recent samples to learn from again; none: each batch is learned from once. Only in one pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueConfig>,
    /// Samples in a learning step from the queue or the set.
    pub minibatch: usize,
    /// Whether a batch is predicted after or before it is learned from.
    pub prediction: Prediction,
    /// When the method goes back to the source.
    pub reset: Reset,
    /// What happens when a method goes wrong.
    pub guard: Guard,
    /// Samples that arrive per second; those that arrive while the method is busy are predicted by
    /// the weights it had before. None: the stream waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrival_rate: Option<f64>,
    /// Seed of the order in which queue or set are learned from.
    pub seed: u64,
}

/// One pass or many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Passes {
    /// One: predictions are instant.
    #[default]
    One,
    /// Many over the whole set, then predictions for all of it.
    Many {
        /// How many.
        epochs: usize,
        /// Which epoch's predictions count.
        selection: Selection,
    },
}

/// Which epoch's predictions count, in many passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// The last one's: labels are not looked at.
    #[default]
    Last,
    /// The best one's by the labels of the test set, as in the released program. An oracle.
    OracleBest,
}

/// The queue of recent samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueConfig {
    /// How many samples it holds.
    pub capacity: usize,
    /// Epochs over it for each arriving batch, at most; there are fewer while it is nearly empty.
    pub epochs: usize,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            capacity: 4096,
            epochs: 4,
        }
    }
}

/// When a batch is predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prediction {
    /// After it was learned from: the authors' program.
    #[default]
    AdaptFirst,
    /// Before: the paper's text, and what a service does that answers at once.
    PredictFirst,
}

/// When a method goes back to the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reset {
    /// Never.
    #[default]
    Never,
    /// At the start of every visit to a domain.
    PerVisit,
    /// Before every batch.
    PerBatch,
}

impl Default for Protocol {
    /// One pass without a queue, adapt-first, minibatches of 256.
    fn default() -> Self {
        Self {
            passes: Passes::One,
            queue: None,
            minibatch: 256,
            prediction: Prediction::AdaptFirst,
            reset: Reset::Never,
            guard: Guard::default(),
            arrival_rate: None,
            seed: 0,
        }
    }
}

impl Protocol {
    /// Which constants of a method are meant for it.
    pub fn setting(&self) -> Setting {
        match (self.passes, self.queue) {
            (Passes::One, None) => Setting::NoQueue,
            (Passes::One, Some(_)) => Setting::Queue,
            (Passes::Many { .. }, _) => Setting::ManyPasses,
        }
    }

    /// Whether it can be run with batches of a size; the error lists everything that is wrong.
    pub fn validate(&self, batch_size: usize) -> Result<()> {
        let mut problems = Vec::new();
        if self.minibatch == 0 {
            problems.push("`minibatch` must be at least 1".to_owned());
        }
        if let Some(queue) = self.queue {
            if queue.epochs == 0 {
                problems.push("`epochs` of the queue must be at least 1".to_owned());
            }
            if queue.capacity < batch_size {
                problems.push(format!(
                    "a queue of {} samples is smaller than a batch of {batch_size}",
                    queue.capacity
                ));
            }
            if queue.capacity < self.minibatch {
                problems.push(format!(
                    "a queue of {} samples is smaller than a minibatch of {}",
                    queue.capacity, self.minibatch
                ));
            }
        }
        if let Passes::Many { epochs, .. } = self.passes {
            if epochs == 0 {
                problems.push("many passes need at least one epoch".to_owned());
            }
            if self.queue.is_some() {
                problems.push("many passes see the whole set and have no queue".to_owned());
            }
            if self.prediction == Prediction::PredictFirst {
                problems.push("many passes predict at the end, not first".to_owned());
            }
            if self.arrival_rate.is_some() {
                problems.push("nothing arrives in many passes".to_owned());
            }
        }
        if self
            .arrival_rate
            .is_some_and(|rate| !(rate.is_finite() && rate > 0.0))
        {
            problems.push("`arrival_rate` must be above zero".to_owned());
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "protocol",
            problem: problems.join("; "),
        })
    }

    /// Epochs over a queue that holds so many samples (METHODS 8.1).
    pub fn queue_epochs(&self, samples: usize) -> usize {
        let most = self.queue.map_or(1, |queue| queue.epochs);
        most.min(samples / self.minibatch + 1)
    }

    /// Samples that a method learns from in all while `samples` arrive in batches: a queue and many
    /// passes repeat them.
    pub fn samples_learned(&self, samples: usize, batch_size: usize) -> usize {
        if let Passes::Many { epochs, .. } = self.passes {
            return epochs * samples;
        }
        let Some(queue) = self.queue else {
            return samples;
        };
        let arrived = (0..samples).step_by(batch_size);
        let waiting = arrived.map(|start| (start + batch_size).min(samples).min(queue.capacity));
        // An epoch takes whole minibatches.
        let whole = |waiting: usize| waiting - waiting % self.minibatch.min(waiting);
        waiting
            .map(|waiting| self.queue_epochs(waiting) * whole(waiting))
            .sum()
    }
}
