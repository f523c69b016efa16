//! RPL: robust pseudo-labels, by a loss that bounds what a wrong one can cost.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::learner::value;
use super::{
    Layers, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, NormUpdates, Observed,
    Prediction, Stage,
};
use crate::loss::generalised_cross_entropies;
use crate::optim::OptimiserConfig;
use crate::{Error, Result};

pub(super) const ENTRY: Entry<RplConfig> = Entry {
    variants: &[Variant {
        name: "rpl",
        about: "pseudo-labels under a loss that bounds what a wrong one costs",
        preset: |preset, _| RplConfig {
            norm: NormUpdates::of_batches(preset),
            ..RplConfig::default()
        },
    }],
    needs: |_| Needs {
        layers: Some(Layers::Norms),
        ..Needs::NETWORK
    },
    build: |config, _, anchors| {
        config.validate()?;
        let reference = anchors.is_some_and(|anchors| anchors.norms.is_some());
        let RplConfig {
            optimiser,
            learning_rate,
            q,
            norm,
        } = config;
        let learner = LearnerConfig::affine(optimiser, learning_rate, norm, reference);
        Ok((learner, Box::new(Rpl { q })))
    },
};

/// Constants of [`Rpl`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RplConfig {
    /// The optimiser; Adam for CIFAR, SGD for ImageNet.
    pub optimiser: OptimiserConfig,
    /// Its learning rate; 0.001 for CIFAR, 0.0005 for ImageNet.
    pub learning_rate: f64,
    /// How far the loss is from the cross-entropy, which it is at zero, above zero to one.
    pub q: f64,
    /// Where the norms start, and whether their statistics follow images; with the rule `batches` they are those of
    /// the batch, as in the original.
    pub norm: NormUpdates,
}

impl Default for RplConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::ADAM,
            learning_rate: 1e-3,
            q: 0.8,
            norm: NormUpdates::default(),
        }
    }
}

impl RplConfig {
    fn validate(&self) -> Result<()> {
        let mut problems = self.norm.problems();
        if !(self.q > 0.0 && self.q <= 1.0) {
            problems.push(format!(
                "`q` must be above 0 and at most 1, found {}",
                self.q
            ));
        }
        Error::invalid_if_any("method constant", &problems)
    }
}

/// Robust pseudo-labelling (Rusak et al., 2022).
///
/// # What it does
/// It is TENT with another loss: each prediction is confirmed by the generalised cross-entropy against its own class. Uncertain
/// predictions, which are often wrong, get a smaller gradient than by the cross-entropy or the entropy.
///
/// # When to use
/// It is source-free and as cheap as TENT, and bears long streams and higher learning rates better.
///
/// # Objective
/// `mean_i (1 - p_ic^q) / q`, `c = argmax p_i` without a gradient.
///
/// # State it keeps
/// The learner keeps scales, shifts and Adam's moments; the method itself keeps nothing.
///
/// # Deviations
/// The authors' program is for ImageNet, with SGD; the constants here are those that public benchmarks use for CIFAR-10.
///
/// # Which logits are scored
/// Under predict-first those of the forward pass it learns from, as in the original; under
/// adapt-first those of a second pass.
///
/// # References
/// `docs/methods.md`, RPL.
#[derive(Clone, Copy, Debug)]
pub struct Rpl {
    q: f64,
}

impl Rpl {
    /// Takes a step; returns the logits before it and what was learned.
    fn step(self, learner: &mut Learner, images: &Tensor<4>) -> (Tensor<2>, Learned) {
        let logits = learner.training_scores(images.clone());
        let loss = generalised_cross_entropies(logits.clone(), self.q).mean();
        let learned = Learned::one_step(vec![("pseudo_label", value(&loss))]);
        learner.step(&loss);
        (logits.without_autodiff(), learned)
    }
}

impl Method for Rpl {
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
