//! BN: the norm statistics of the target instead of the source's.

use std::collections::BTreeMap;

use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::{Learned, Learner, Method, Minibatch, NormUpdates, Stage};
use crate::Result;
use crate::archive::Arrays;
use crate::backbone::{Adaptable, Backbone, NormMode, tensors};
use crate::optim::OptimiserConfig;

/// Which statistics predictions use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Statistics {
    /// Those of the batch that is predicted: the original.
    #[default]
    Batch,
    /// Running ones that follow the stream: with a queue, as in the TTAC paper.
    Running,
}

/// Constants of [`Bn`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BnConfig {
    /// Which statistics predictions use.
    pub statistics: Statistics,
    /// How running statistics follow.
    pub norm: NormUpdates,
}

/// Norm statistics of the target (Schneider et al., 2020; Nado et al., 2020).
///
/// # What it does
/// Replaces mean and variance of batch norm by those of the target: of the very batch, or running
/// averages over the stream. No parameter moves.
///
/// # When to use
/// Cheap, and the largest part of what adaptation wins under noise and blur. It hurts where the shift
/// is mild, where batches are small, and where classes do not come mixed. A network without batch norm
/// has no such statistics: the method says so, and predicts what [`super::Test`] does.
///
/// # State it keeps
/// The running statistics, with [`Statistics::Running`].
///
/// # References
/// METHODS 9.2.
#[derive(Clone, Debug)]
pub struct Bn<B: Backbone> {
    config: BnConfig,
    learner: Learner<B>,
    has_batch_norm: bool,
    /// Whether it has been said that there is no batch norm; once is enough.
    said: bool,
}

impl<B: Backbone> Bn<B> {
    /// Of a trained network.
    pub fn new(network: B, config: BnConfig) -> Self {
        let learner = Learner::new(
            network,
            Adaptable::Affine,
            OptimiserConfig::SGD,
            0.0,
            config.norm,
        );
        Self {
            config,
            has_batch_norm: learner.network().has_batch_norm(),
            learner,
            said: false,
        }
    }

    fn norm_mode(&self) -> NormMode {
        match self.config.statistics {
            Statistics::Batch => NormMode::Batch,
            Statistics::Running => NormMode::Running,
        }
    }
}

impl<B: Backbone + 'static> Method for Bn<B> {
    fn name(&self) -> &'static str {
        "bn"
    }

    fn learn(&mut self, minibatch: &Minibatch, _: &Stage) -> Result<Learned> {
        let mut learned = Learned::nothing();
        if !self.has_batch_norm && !self.said {
            self.said = true;
            let note = "the network has no batch norm: `bn` predicts what `test` does";
            learned.notes.push(note.to_owned());
        }
        if self.has_batch_norm && self.config.statistics == Statistics::Running {
            self.learner.observe(minibatch.images.clone());
        }
        Ok(learned)
    }

    fn predict(&self, images: Tensor<4>) -> Tensor<2> {
        self.learner.frozen().forward(images, self.norm_mode())
    }

    fn features(&self, images: Tensor<4>) -> Tensor<2> {
        self.learner.frozen().features(images, self.norm_mode())
    }

    fn reset(&mut self) {
        self.learner.reset();
    }

    fn weights(&self) -> BTreeMap<String, TensorData> {
        tensors(&self.learner.frozen())
    }

    fn save(&self, arrays: &mut Arrays) -> Result<()> {
        self.learner.save(arrays)
    }

    fn load(&mut self, arrays: &mut Arrays) -> Result<()> {
        self.learner.load(arrays)
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}
