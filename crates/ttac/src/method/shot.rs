//! SHOT: information maximisation and pseudo-labels over the whole feature extractor.

use std::collections::BTreeMap;

use burn::tensor::{Tensor, TensorData, activation::softmax};
use serde::{Deserialize, Serialize};

use super::learner::{rows, value};
use super::{Learned, Learner, Method, Minibatch, NormUpdates, Stage};
use crate::archive::Arrays;
use crate::backbone::{Adaptable, Backbone, NormMode, tensors};
use crate::loss::{cross_entropy, information_maximisation};
use crate::optim::OptimiserConfig;
use crate::{Result, best};

/// Constants of [`Shot`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShotConfig {
    /// The optimiser.
    pub optimiser: OptimiserConfig,
    /// Its learning rate.
    pub learning_rate: f64,
    /// Weight of the cross-entropy against pseudo-labels; zero for none.
    pub pseudo_label_weight: f64,
    /// A sample is its own pseudo-label if its largest probability is above this.
    pub confidence_threshold: f32,
    /// How the running norm statistics follow.
    pub norm: NormUpdates,
}

impl Default for ShotConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::SGD,
            learning_rate: 1e-3,
            pseudo_label_weight: 0.1,
            confidence_threshold: 0.9,
            norm: NormUpdates::default(),
        }
    }
}

/// Source hypothesis transfer (Liang et al., 2020), for streams.
///
/// # What it does
/// Trains everything but the classifier: predictions become certain, each one, and diverse, over the
/// batch; confident ones are confirmed.
///
/// # When to use
/// Source-free, steadier than TENT over several epochs.
///
/// # Objective
/// `mean_i H(p_i) + sum_k q_k log(q_k + 1e-5) + w * mean_{max p_i > t} CE(p_i, argmax p_i)`, `q` the mean
/// of the `p_i`.
///
/// # State it keeps
/// Weights, momentum, running norm statistics.
///
/// # Deviations
/// The original clusters features for pseudo-labels once an epoch; on a stream confident predictions
/// take their place, as in the public online variants.
///
/// # Which logits are scored
/// A forward pass with running statistics.
///
/// # References
/// METHODS 7.6, 9.5.
#[derive(Clone, Debug)]
pub struct Shot<B: Backbone> {
    config: ShotConfig,
    learner: Learner<B>,
}

impl<B: Backbone> Shot<B> {
    /// Of a trained network.
    pub fn new(network: B, config: ShotConfig) -> Self {
        let (optimiser, rate) = (config.optimiser, config.learning_rate);
        Self {
            learner: Learner::new(network, Adaptable::Features, optimiser, rate, config.norm),
            config,
        }
    }
}

impl<B: Backbone + 'static> Method for Shot<B> {
    fn name(&self) -> &'static str {
        "shot"
    }

    fn learn(&mut self, minibatch: &Minibatch, _: &Stage) -> Result<Learned> {
        let mode = self.learner.updating();
        let images = Tensor::from_inner(minibatch.images.clone());
        let logits = self.learner.network().forward(images, mode);
        let information = information_maximisation(logits.clone());
        let mut losses = vec![("information_maximisation", value(&information))];
        let mut loss = information;
        let (confident, labels) = confident(&logits, self.config.confidence_threshold);
        if self.config.pseudo_label_weight > 0.0 && !confident.is_empty() {
            let chosen = select(logits, &confident);
            let pseudo = cross_entropy(chosen, &labels) * self.config.pseudo_label_weight;
            losses.push(("pseudo_label", value(&pseudo)));
            loss = loss + pseudo;
        }
        self.learner.step(&loss);
        Ok(Learned {
            accepted: confident.len(),
            considered: minibatch.ids.len(),
            ..Learned::one_step(losses)
        })
    }

    fn predict(&self, images: Tensor<4>) -> Tensor<2> {
        self.learner.frozen().forward(images, NormMode::Running)
    }

    fn features(&self, images: Tensor<4>) -> Tensor<2> {
        self.learner.frozen().features(images, NormMode::Running)
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

/// The rows whose largest probability is above a threshold, and their classes.
pub(super) fn confident(logits: &Tensor<2>, threshold: f32) -> (Vec<usize>, Vec<usize>) {
    let [_, classes] = logits.dims();
    let probabilities = rows(&softmax(logits.clone().without_autodiff(), 1));
    let best = probabilities.chunks_exact(classes).map(best);
    let chosen = best.enumerate().filter(|(_, (_, p))| *p > threshold);
    chosen.map(|(row, (class, _))| (row, class)).unzip()
}

/// Some rows of a matrix, in their order.
pub(super) fn select(matrix: Tensor<2>, rows: &[usize]) -> Tensor<2> {
    let indices: Vec<i64> = rows.iter().map(|&row| row as i64).collect();
    let device = matrix.device().without_autodiff();
    let indices = Tensor::from_data(TensorData::new(indices, [rows.len()]), &device);
    matrix.select(0, indices)
}
