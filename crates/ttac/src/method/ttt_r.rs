//! TTT-R: a few steps of rotation prediction on copies of each image, before it is classified.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::learner::value;
use super::{
    Head, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, Observed, Prediction, Stage,
    Wants,
};
use crate::backbone::{Adaptable, NormMode};
use crate::loss::cross_entropy;
use crate::optim::OptimiserConfig;
use crate::{Error, Result};

pub(super) const ENTRY: Entry<TttRConfig> = Entry {
    variants: &[Variant {
        name: "ttt-r",
        about: "rotation prediction image by image; needs a rotation head",
        preset: |_, _| TttRConfig::default(),
    }],
    needs: |config| Needs {
        head: Some(Head::Rotation),
        views: Wants::Turned(config.copies),
        rehearses: false,
        ..Needs::NETWORK
    },
    build: |config, _, _| {
        let learner = LearnerConfig {
            // The rotation loss reaches neither the classifier nor what only it uses.
            adapts: Adaptable::All,
            ..LearnerConfig::stepping(config.optimiser, config.learning_rate)
        };
        Ok((learner, Box::new(TttR(config))))
    },
};

/// Constants of [`TttR`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TttRConfig {
    /// The optimiser; plain gradient descent in the original.
    pub optimiser: OptimiserConfig,
    /// Its learning rate.
    pub learning_rate: f64,
    /// Cropped, flipped and turned copies of each image.
    pub copies: usize,
    /// Steps per image: 1 online, 10 in the standard version.
    pub steps: usize,
    /// Whether weights are carried on from image to image, or restored for each.
    pub online: bool,
}

impl Default for TttRConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::Sgd {
                momentum: 0.0,
                weight_decay: 0.0,
            },
            learning_rate: 1e-3,
            copies: 32,
            steps: 1,
            online: true,
        }
    }
}

/// Test-time training with rotations (Sun et al., 2020).
///
/// # What it does
/// It turns cropped copies of an image by right angles and learns to tell by how much, through the
/// layers that the classifier shares; then classifies the image.
///
/// # When to use
/// Use it with a network trained jointly to do both; one image at a time, any norm without batch statistics.
///
/// # Objective
/// Cross-entropy of the rotation head over the copies.
///
/// # State it keeps
/// The learner keeps shared layers and rotation head (online), nothing otherwise.
///
/// # Deviations
/// The standard version makes its ten steps on the same copies.
///
/// # Which logits are scored
/// Those of the image itself, right after (or, predict-first, right before) its own steps.
///
/// # References
/// `docs/methods.md`, TTT-R.
#[derive(Clone, Debug)]
pub struct TttR(TttRConfig);

impl TttR {
    /// Takes the steps of one image on its turned copies; returns the sum of their losses.
    fn steps(&self, learner: &mut Learner, turned: &Tensor<4>, turns: &[usize]) -> f64 {
        let mut total = 0.0;
        for _ in 0..self.0.steps {
            let mode = learner.updating();
            let images = Tensor::from_inner(turned.clone());
            let logits = learner.network().rotation(images, mode);
            let loss = cross_entropy(logits.expect("needs were checked"), turns);
            total += value(&loss);
            learner.step(&loss);
        }
        total
    }
}

impl Method for TttR {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        Ok(self.observe(learner, batch, Prediction::AdaptFirst)?.1)
    }

    fn observe(&mut self, learner: &mut Learner, batch: &Minibatch, order: Prediction) -> Observed {
        let copies = self.0.copies;
        let views = batch.views.as_ref().ok_or_else(|| Error::Invalid {
            what: "minibatch",
            problem: "`ttt-r` needs turned copies of its images".to_owned(),
        })?;
        let mut scores = Vec::new();
        let mut total = 0.0;
        for image in 0..batch.ids.len() {
            let own = batch.images.clone().slice_dim(0, image..image + 1);
            let predict = |learner: &Learner| {
                let network = learner.frozen();
                network.forward(own.clone(), NormMode::Running)
            };
            if !self.0.online {
                learner.reset();
            }
            if order == Prediction::PredictFirst {
                scores.push(predict(learner));
            }
            let place = image * copies..(image + 1) * copies;
            let turned = views.images.clone().slice_dim(0, place.clone());
            total += self.steps(learner, &turned, &views.turns[place]);
            if order == Prediction::AdaptFirst {
                scores.push(predict(learner));
            }
        }
        let updates = batch.ids.len() * self.0.steps;
        let losses = vec![("rotation", total / updates.max(1) as f64)];
        let learned = Learned {
            updates,
            ..Learned::one_step(losses)
        };
        Ok((Tensor::cat(scores, 0), learned))
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}
