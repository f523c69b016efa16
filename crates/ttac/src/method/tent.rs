//! TENT: entropy minimisation over the norms' scales and shifts.

use std::collections::BTreeMap;

use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::learner::value;
use super::{Learned, Learner, Method, Minibatch, NormUpdates, Stage};
use crate::Result;
use crate::archive::Arrays;
use crate::backbone::{Adaptable, Backbone, NormMode, tensors};
use crate::loss::entropy;
use crate::optim::OptimiserConfig;

/// Constants of [`Tent`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TentConfig {
    /// The optimiser; Adam in the original for CIFAR.
    pub optimiser: OptimiserConfig,
    /// Its learning rate.
    pub learning_rate: f64,
}

impl Default for TentConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::ADAM,
            learning_rate: 1e-3,
        }
    }
}

/// Fully test-time adaptation by entropy minimisation (Wang et al., 2021).
///
/// # What it does
/// One step per batch down the mean entropy of the predictions, over scale and shift of the
/// normalisation layers; batch norm uses the statistics of the batch, always. Layer norms and group
/// norms have no such statistics: of them only scale and shift move.
///
/// # When to use
/// Cheap and source-free. Over many steps, or with small batches, it may collapse to few classes.
///
/// # Objective
/// `mean_i H(softmax(z_i))`.
///
/// # State it keeps
/// Scales, shifts, Adam's moments.
///
/// # Which logits are scored
/// Under predict-first those of the forward pass it learns from, as in the original; under
/// adapt-first those of a second pass.
///
/// # References
/// METHODS 9.3.
#[derive(Clone, Debug)]
pub struct Tent<B: Backbone> {
    learner: Learner<B>,
}

impl<B: Backbone> Tent<B> {
    /// Of a trained network.
    pub fn new(network: B, config: TentConfig) -> Self {
        let (optimiser, rate) = (config.optimiser, config.learning_rate);
        let norm = NormUpdates::default();
        Self {
            learner: Learner::new(network, Adaptable::Affine, optimiser, rate, norm),
        }
    }

    /// The logits before the step, and what was learned.
    fn step(&mut self, images: &Tensor<4>) -> (Tensor<2>, Learned) {
        let images = Tensor::from_inner(images.clone());
        let logits = self.learner.network().forward(images, NormMode::Batch);
        let loss = entropy(logits.clone());
        let learned = Learned::one_step(vec![("entropy", value(&loss))]);
        self.learner.step(&loss);
        (logits.without_autodiff(), learned)
    }
}

impl<B: Backbone + 'static> Method for Tent<B> {
    fn name(&self) -> &'static str {
        "tent"
    }

    fn learn(&mut self, minibatch: &Minibatch, _: &Stage) -> Result<Learned> {
        Ok(self.step(&minibatch.images).1)
    }

    fn predict(&self, images: Tensor<4>) -> Tensor<2> {
        self.learner.frozen().forward(images, NormMode::Batch)
    }

    fn features(&self, images: Tensor<4>) -> Tensor<2> {
        self.learner.frozen().features(images, NormMode::Batch)
    }

    fn predict_then_learn(
        &mut self,
        arriving: &Minibatch,
        _: &Stage,
    ) -> Result<(Tensor<2>, Learned)> {
        Ok(self.step(&arriving.images))
    }

    fn reset(&mut self) {
        self.learner.reset();
    }

    fn drift(&self) -> Option<f64> {
        Some(self.learner.drift())
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
