//! Protocols: what a method is shown, how often, and when its predictions count.
//!
//! A [`Protocol`] is data, and [`run`] shows a stream to a [`Session`](crate::Session) under any of them. Two letters name the
//! families of the TTAC paper: **N** or **Y**, whether the source was trained as usual or with a
//! self-supervised loss beside (a property of the checkpoint); **O** or **M**, one pass or many.
//!
//! In one pass, for each arriving batch: the method learns, from the batch alone or over several
//! epochs from a queue of recent samples; and the batch is predicted, once, after that (adapt-first,
//! as the authors' program) or before (predict-first, as their text). A prediction is never revised.
//! In many passes the method learns from the whole set again and again and predicts all of it at the
//! end.

mod clock;
mod features;
mod guard;
mod many_passes;
mod one_pass;
mod queue;
mod record;
mod stream;
pub(crate) mod views;

use serde::{Deserialize, Serialize};

pub use clock::Clock;
pub use features::FeatureRecord;
pub use guard::{Alarm, Guard, GuardAction, Watch};
pub(crate) use guard::{Look, SOURCE_SAMPLES, Signs};
pub use one_pass::{Sink, run};
pub use queue::Queue;
pub use record::{
    CurvePoint, GateRecord, RECORD_FORMAT, Recorder, RunRecord, StepRecord, UnscoredRecord,
};
pub use stream::Stream;

use crate::gate::GateConfig;
pub use crate::method::Prediction;
use crate::method::Setting;
use crate::shares::SharesConfig;
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
    /// Keeps the source in charge while the stream fits it. None: the method adapts from the first batch on. Only in
    /// one pass, and only with a calibration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateConfig>,
    /// Corrects answers by the shares of the classes among recent samples. None: answers are the network's. Only in one pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<SharesConfig>,
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
    /// The stream is seen once, and predictions are instant.
    #[default]
    One,
    /// The whole set is seen many times, then all of it is predicted.
    Many {
        /// How many passes there are.
        epochs: usize,
        /// Which epoch's predictions count.
        selection: Selection,
    },
}

/// Which epoch's predictions count, in many passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// Those of the last epoch count, and labels are not looked at.
    #[default]
    Last,
    /// Those of the best epoch by the labels of the test set count, as in the released program: an oracle.
    OracleBest,
}

/// How large the queue of recent samples is and how often it is learned from.
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

/// When a method goes back to the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reset {
    /// It never goes back.
    #[default]
    Never,
    /// It goes back at the start of every visit to a domain.
    PerVisit,
    /// It goes back before every batch.
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
            gate: None,
            shares: None,
            arrival_rate: None,
            seed: 0,
        }
    }
}

impl Protocol {
    /// Returns the kind of protocol that a method's constants are chosen for.
    pub fn setting(&self) -> Setting {
        match (self.passes, self.queue) {
            (Passes::One, None) => Setting::NoQueue,
            (Passes::One, Some(_)) => Setting::Queue,
            (Passes::Many { .. }, _) => Setting::ManyPasses,
        }
    }

    /// Checks that the protocol can be run; the error lists everything that is wrong with it.
    pub fn validate(&self) -> Result<()> {
        self.validate_for(1)
    }

    /// Checks that the protocol can be run with batches of a size; the error lists everything that is wrong.
    pub fn validate_for(&self, batch_size: usize) -> Result<()> {
        let mut problems = Vec::new();
        if self.minibatch == 0 {
            problems.push("`minibatch` must be at least 1".to_owned());
        }
        if let Some(queue) = self.queue {
            problems.extend(self.queue_problems(queue, batch_size));
        }
        if let Err(Error::Invalid { problem, .. }) = self.guard.validate() {
            problems.push(problem);
        }
        if let Some(Err(Error::Invalid { problem, .. })) = self.gate.map(|gate| gate.validate()) {
            problems.push(problem);
        }
        if let Some(Err(Error::Invalid { problem, .. })) = self.shares.map(|one| one.validate()) {
            problems.push(problem);
        }
        if let Passes::Many { epochs, .. } = self.passes {
            if self.shares.is_some() {
                problems.push("many passes see the whole set, and no sample is recent".to_owned());
            }
            if self.gate.is_some() {
                problems.push(
                    "many passes see the whole set, and no gate can keep them from it".to_owned(),
                );
            }
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

    fn queue_problems(&self, queue: QueueConfig, batch_size: usize) -> Vec<String> {
        let mut problems = Vec::new();
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
        problems
    }

    /// Returns how many epochs a queue with this many samples is learned from
    /// (`docs/methods.md`, Queue and epochs).
    pub fn queue_epochs(&self, samples: usize) -> usize {
        let most = self.queue.map_or(1, |queue| queue.epochs);
        most.min(samples / self.minibatch + 1)
    }

    /// Counts the samples that a method learns from in all while `samples` arrive in batches: a queue and many
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
