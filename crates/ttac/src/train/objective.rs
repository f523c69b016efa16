//! The loss that a training step minimises.

use burn::tensor::{Tensor, TensorData};

use super::TrainConfig;
use super::loader::Prepared;
use crate::backbone::{Backbone, NormMode};
use crate::best;
use crate::checkpoint::Objective;
use crate::loss::{LabelSmoothing, contrastive, cross_entropy, smoothed_cross_entropy};

/// The weight of classification in joint training, as published.
const CLASSIFICATION_WEIGHT: f64 = 0.9;
/// The weight of the contrastive loss in joint training, as published.
const CONTRASTIVE_WEIGHT: f64 = 0.1;

/// A step's loss before its backward pass.
#[derive(Clone, Debug)]
pub struct Objectives {
    /// The loss that is minimised.
    pub loss: Tensor<1>,
    /// The self-supervised part, for the log.
    pub auxiliary: Option<Tensor<1>>,
    /// The number of images that were classified rightly, and the number of images.
    pub right: (usize, usize),
}

/// Computes the objective of one prepared batch on a network in training.
///
/// # Panics
/// If the network lacks the head that the objective needs; [`super::Trainer`] makes sure of it.
pub fn objective<B: Backbone>(network: &B, prepared: Prepared, config: &TrainConfig) -> Objectives {
    let Prepared {
        images,
        mut labels,
        turned,
        draw,
    } = prepared;
    let classify = |logits: Tensor<2>, labels: &[usize]| match config.label_smoothing {
        0.0 => cross_entropy(logits, labels),
        share if config.smooth_others => {
            smoothed_cross_entropy(logits, labels, LabelSmoothing::OtherClasses(share))
        }
        share => smoothed_cross_entropy(logits, labels, LabelSmoothing::AllClasses(share)),
    };
    if config.objective == Objective::Plain {
        let logits = network.training_logits(images, draw);
        return Objectives {
            right: right(&logits, &labels),
            loss: classify(logits, &labels),
            auxiliary: None,
        };
    }
    let features = network.features(images, NormMode::BatchUpdating);
    let logits = network.logits(features.clone());
    match config.objective {
        Objective::Plain => unreachable!("it returned above"),
        Objective::Simclr => {
            labels.extend_from_within(..);
            let projections = network.projection(features).expect("a projection head");
            let contrast = contrastive(projections);
            Objectives {
                right: right(&logits, &labels),
                // The mean over both views is half of CE(x1) + CE(x2).
                loss: classify(logits, &labels) * (2.0 * CLASSIFICATION_WEIGHT)
                    + contrast.clone() * CONTRASTIVE_WEIGHT,
                auxiliary: Some(contrast),
            }
        }
        Objective::Rotation => {
            let (images, turns) = turned.expect("the loader turns images for this objective");
            let turn_logits = network.rotation(images, NormMode::BatchUpdating);
            let rotation = cross_entropy(turn_logits.expect("a rotation head"), &turns);
            Objectives {
                right: right(&logits, &labels),
                loss: classify(logits, &labels) + rotation.clone(),
                auxiliary: Some(rotation),
            }
        }
    }
}

/// Counts the rows whose largest score is that of the label, and all rows.
pub(super) fn right(logits: &Tensor<2>, labels: &[usize]) -> (usize, usize) {
    let [_, classes] = logits.dims();
    let data: TensorData = logits.to_data();
    let scores: Vec<f32> = data.try_to_vec().expect("scores are f32");
    let rows = scores.chunks_exact(classes).zip(labels);
    let is_right = |(row, &label): (&[f32], &usize)| best(row).0 == label;
    (rows.filter(|&row| is_right(row)).count(), labels.len())
}
