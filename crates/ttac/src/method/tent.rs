//! TENT: entropy minimisation over the norms' scales and shifts.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::learner::value;
use super::{
    Layers, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, NormUpdates, Observed,
    Prediction, Stage,
};
use crate::Result;
use crate::loss::Uncertainty;
use crate::optim::OptimiserConfig;

pub(super) const ENTRY: Entry<TentConfig> = Entry {
    variants: &[Variant {
        name: "tent",
        about: "entropy minimisation over norm scales and shifts",
        preset: |preset, _| TentConfig {
            norm: NormUpdates::of_batches(preset),
            ..TentConfig::default()
        },
    }],
    needs: |_| Needs {
        layers: Some(Layers::Norms),
        ..Needs::NETWORK
    },
    build: |config, _, anchors| {
        let reference = anchors.is_some_and(|anchors| anchors.norms.is_some());
        let TentConfig {
            optimiser,
            learning_rate,
            uncertainty,
            norm,
        } = config;
        let learner = LearnerConfig::affine(optimiser, learning_rate, norm, reference);
        Ok((learner, Box::new(Tent(uncertainty))))
    },
};

/// Constants of [`Tent`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TentConfig {
    /// The optimiser; Adam in the original for CIFAR.
    pub optimiser: OptimiserConfig,
    /// Its learning rate.
    pub learning_rate: f64,
    /// By which measure predictions are uncertain; `opinion` is COME.
    pub uncertainty: Uncertainty,
    /// Where the norms start, and whether their statistics follow images; with the rule `batches` they are those of
    /// the batch, as in the original.
    pub norm: NormUpdates,
}

impl Default for TentConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::ADAM,
            learning_rate: 1e-3,
            uncertainty: Uncertainty::Entropy,
            norm: NormUpdates::default(),
        }
    }
}

/// Fully test-time adaptation by entropy minimisation (Wang et al., 2021).
///
/// # What it does
/// It takes one step per batch down the mean entropy of the predictions, over scale and shift of the
/// normalisation layers; batch norm uses the statistics of the batch, always. Layer norms and group
/// norms have no such statistics: of them only scale and shift move.
///
/// # When to use
/// It is cheap and source-free. Over many steps, or with small batches, it may collapse to few classes.
///
/// # Objective
/// `mean_i H(softmax(z_i))`, or with `uncertainty = opinion` the mean entropy of opinions (COME, Zhang et al., 2025).
///
/// # State it keeps
/// The learner keeps scales, shifts and Adam's moments; the method itself keeps nothing.
///
/// # Which logits are scored
/// Under predict-first those of the forward pass it learns from, as in the original; under
/// adapt-first those of a second pass.
///
/// # References
/// `docs/methods.md`, TENT.
#[derive(Clone, Copy, Debug)]
pub struct Tent(Uncertainty);

impl Tent {
    /// Takes a step; returns the logits before it and what was learned.
    fn step(self, learner: &mut Learner, images: &Tensor<4>) -> (Tensor<2>, Learned) {
        let logits = learner.training_scores(images.clone());
        let loss = self.0.of(logits.clone()).mean();
        let learned = Learned::one_step(vec![("entropy", value(&loss))]);
        learner.step(&loss);
        (logits.without_autodiff(), learned)
    }
}

impl Method for Tent {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        Ok(self.step(learner, &batch.images).1)
    }

    fn observe(&mut self, learner: &mut Learner, batch: &Minibatch, order: Prediction) -> Observed {
        let (before, learned) = self.step(learner, &batch.images);
        Ok((learner.scores(before, &batch.images, order), learned))
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(*self)
    }
}
