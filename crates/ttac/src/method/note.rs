//! NOTE: entropy minimisation from a memory that is a balanced draw of the stream, predicted by running norm statistics.

use burn::tensor::{Tensor, activation::softmax};
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::learner::{from_bytes, rows, to_bytes};
use super::memory::{Memory, Policy};
use super::terms::Terms;
use super::{
    Layers, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, NormUpdates, Observed,
    Prediction, Preset, Stage,
};
use crate::backbone::Adaptable;
use crate::norms::NormFollow;
use crate::optim::OptimiserConfig;
use crate::{Error, Result};

pub(super) const ENTRY: Entry<NoteConfig> = Entry {
    variants: &[Variant {
        name: "note",
        about: "entropy minimisation from a balanced memory, with running norms",
        preset: |preset, _| NoteConfig::of(preset),
    }],
    needs: |_| Needs {
        layers: Some(Layers::Norms),
        // The memory takes the place of a queue.
        rehearses: false,
        ..Needs::NETWORK
    },
    build: |config, network, _| {
        config.validate()?;
        let learner = LearnerConfig {
            adapts: Adaptable::Affine,
            norm: config.norm,
            ..LearnerConfig::stepping(config.optimiser, config.learning_rate)
        };
        let memory = Memory::new(config.capacity, network.num_classes());
        Ok((learner, Box::new(Note { config, memory })))
    },
};

/// Constants of [`Note`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NoteConfig {
    /// The optimiser.
    pub optimiser: OptimiserConfig,
    /// Its learning rate.
    pub learning_rate: f64,
    /// How many samples the memory has room for.
    pub capacity: usize,
    /// After how many samples there is a step.
    pub update_every: u64,
    /// How the running statistics follow the images of the memory.
    pub norm: NormUpdates,
    /// Seeds the choice of the samples that leave the memory.
    pub seed: u64,
}

impl Default for NoteConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::ADAM,
            learning_rate: 1e-4,
            capacity: 64,
            update_every: 64,
            norm: NormUpdates {
                momentum: 0.01,
                ..NormUpdates::default()
            },
            seed: 0,
        }
    }
}

impl NoteConfig {
    fn of(preset: Preset) -> Self {
        let published = Self::default();
        let norm = NormUpdates::of_batches(preset);
        Self {
            norm: if norm.rule == NormFollow::Batches {
                published.norm
            } else {
                norm
            },
            ..published
        }
    }

    fn validate(&self) -> Result<()> {
        let mut problems = self.norm.problems();
        if self.capacity == 0 {
            problems.push("`capacity` must be at least 1, found 0".to_owned());
        }
        if self.update_every == 0 {
            problems.push("`update_every` must be at least 1, found 0".to_owned());
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "method constant",
            problem: problems.join("; "),
        })
    }
}

/// Non-i.i.d. test-time adaptation (NOTE, Gong et al., 2022), without its norm layer.
///
/// # What it does
/// Every sample is predicted by running norm statistics and offered to a memory, which is a uniform draw of each predicted class and
/// balances the classes. After every 64 samples it makes one step down the entropy of the memory's images, by scales and shifts of the
/// norms, and the running statistics move a little towards those of the memory.
///
/// # When to use
/// Use it where classes come in runs. It works with batches of any size, also of one, and is the cheapest of the methods with a memory.
/// It adapts slowly: after 10,000 samples it has made 156 steps.
///
/// # Objective
/// `-1/(nK) sum_ik p_ik ln(p_ik + 1e-6)` over the `n` images of the memory.
///
/// # State it keeps
/// It keeps the memory; the learner keeps running statistics, scales, shifts and Adam's moments.
///
/// # Deviations
/// The published method replaces batch norms by instance-aware ones (IABN), with which its source is trained. This crate has no such
/// layer: networks keep the norms they were trained with, and published figures of NOTE are not those of this method. The authors'
/// program decays the weights of CIFAR networks by mistake; here nothing decays.
///
/// # Which logits are scored
/// Those with running statistics: under predict-first before the batch is offered, under adapt-first after the steps that it leads to.
/// The original predicts sample by sample, which is the same where the size of a batch divides `update_every`.
///
/// # References
/// `docs/methods.md`, NOTE.
#[derive(Clone, Debug)]
pub struct Note {
    config: NoteConfig,
    memory: Memory,
}

impl Note {
    /// Offers a batch that was predicted by these scores to the memory, with the steps between.
    fn offer(&mut self, learner: &mut Learner, batch: &Minibatch, scores: Tensor<2>) -> Learned {
        let probabilities = rows(&softmax(scores, 1));
        let policy = Policy::Reservoir {
            seed: self.config.seed,
        };
        let mut learned = Learned::nothing();
        for sample in self.memory.samples(&batch.images, None, &probabilities) {
            self.memory.offer(policy, sample);
            if self
                .memory
                .offers()
                .is_multiple_of(self.config.update_every)
            {
                let images = self.memory.images(&batch.images.device());
                let logits = learner.training_scores(images);
                let [_, classes] = logits.dims();
                let probabilities = softmax(logits, 1);
                let parts = probabilities.clone() * (probabilities + 1e-6).log();
                let mut terms = Terms::default();
                terms.add("entropy", -parts.sum_dim(1).mean() / classes as f64);
                let step = terms.step(learner);
                learned = Learned {
                    updates: learned.updates + step.updates,
                    ..step
                };
            }
        }
        learned
    }
}

impl Method for Note {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        let network = learner.frozen();
        let scores = network.forward(batch.images.clone(), learner.predicts());
        Ok(self.offer(learner, batch, scores))
    }

    fn observe(&mut self, learner: &mut Learner, batch: &Minibatch, order: Prediction) -> Observed {
        let network = learner.frozen();
        let before = network.forward(batch.images.clone(), learner.predicts());
        let learned = self.offer(learner, batch, before.clone());
        let scores = learner.scores(before, &batch.images, order);
        Ok((scores, learned))
    }

    fn state(&self) -> Vec<u8> {
        to_bytes(&self.memory)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let memory: Memory = from_bytes(state)?;
        self.memory.check(&memory)?;
        self.memory = memory;
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_constant_is_named() {
        let config = NoteConfig {
            capacity: 0,
            update_every: 0,
            norm: NormUpdates {
                momentum: 2.0,
                ..NormUpdates::default()
            },
            ..NoteConfig::default()
        };
        let message = config.validate().unwrap_err().to_string();
        for name in ["`capacity`", "`update_every`", "`momentum`"] {
            assert!(message.contains(name), "{name} in {message}");
        }
    }
}
