//! SHOT: information maximisation and pseudo-labels over the whole feature extractor.

use burn::tensor::{Device, Int, Tensor, TensorData, activation::softmax};
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::learner::{rows, value};
use super::{Learned, Learner, LearnerConfig, Method, Minibatch, Needs, NormUpdates, Stage};
use crate::loss::{cross_entropy, information_maximisation};
use crate::optim::OptimiserConfig;
use crate::{Result, best};

pub(super) const ENTRY: Entry<ShotConfig> = Entry {
    variants: &[Variant {
        name: "shot",
        about: "information maximisation over all features",
        preset: |preset, _| ShotConfig {
            norm: NormUpdates::of(preset),
            ..ShotConfig::default()
        },
    }],
    needs: |_| Needs::NETWORK,
    build: |config, _, _| {
        let learner = LearnerConfig {
            norm: config.norm,
            ..LearnerConfig::stepping(config.optimiser, config.learning_rate)
        };
        Ok((learner, Box::new(Shot(config))))
    },
};

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
/// It trains everything but the classifier: each prediction becomes certain, and all together diverse over the
/// batch; confident predictions are confirmed.
///
/// # When to use
/// It is source-free, and steadier than TENT over several epochs.
///
/// # Objective
/// `mean_i H(p_i) + sum_k q_k log(q_k + 1e-5) + w * mean_{max p_i > t} CE(p_i, argmax p_i)`, `q` the mean
/// of the `p_i`.
///
/// # State it keeps
/// The learner keeps weights, momentum and running norm statistics.
///
/// # Deviations
/// The original clusters features for pseudo-labels once an epoch; on a stream confident predictions
/// take their place, as in the public online variants.
///
/// # Which logits are scored
/// Those of a forward pass with running statistics.
///
/// # References
/// `docs/methods.md`, SHOT.
#[derive(Clone, Debug)]
pub struct Shot(ShotConfig);

impl Method for Shot {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        let features = learner.features(batch.images.clone());
        let logits = learner.network().logits(features);
        let information = information_maximisation(logits.clone());
        let mut losses = vec![("information_maximisation", value(&information))];
        let mut loss = information;
        let (confident, labels) = confident(&logits, self.0.confidence_threshold);
        if self.0.pseudo_label_weight > 0.0 && !confident.is_empty() {
            let chosen = select(logits, &confident);
            let pseudo = cross_entropy(chosen, &labels) * self.0.pseudo_label_weight;
            losses.push(("pseudo_label", value(&pseudo)));
            loss = loss + pseudo;
        }
        learner.step(&loss);
        Ok(Learned {
            accepted: confident.len(),
            considered: batch.ids.len(),
            ..Learned::one_step(losses)
        })
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}

/// Finds the rows whose largest probability is above a threshold, and their classes.
pub(super) fn confident(logits: &Tensor<2>, threshold: f32) -> (Vec<usize>, Vec<usize>) {
    let [_, classes] = logits.dims();
    let probabilities = rows(&softmax(logits.clone().without_autodiff(), 1));
    let best = probabilities.chunks_exact(classes).map(best);
    let chosen = best.enumerate().filter(|(_, (_, p))| *p > threshold);
    chosen.map(|(row, (class, _))| (row, class)).unzip()
}

/// Selects some rows of a matrix, in their order.
pub(super) fn select(matrix: Tensor<2>, rows: &[usize]) -> Tensor<2> {
    let indices = indices(rows, &matrix.device());
    matrix.select(0, indices)
}

/// Selects some images, in their order.
pub(super) fn select_images(images: Tensor<4>, places: &[usize]) -> Tensor<4> {
    let indices = indices(places, &images.device());
    images.select(0, indices)
}

fn indices(places: &[usize], device: &Device) -> Tensor<1, Int> {
    let indices: Vec<i64> = places.iter().map(|&place| place as i64).collect();
    let device = device.clone().without_autodiff();
    Tensor::from_data(TensorData::new(indices, [places.len()]), &device)
}
