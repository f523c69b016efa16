//! TTT-R: a few steps of rotation prediction on copies of each image, before it is classified.

use std::collections::BTreeMap;

use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::learner::value;
use super::{Learned, Learner, Method, Minibatch, NormUpdates, Stage, Wants};
use crate::archive::Arrays;
use crate::backbone::{Adaptable, Backbone, NormMode, tensors};
use crate::loss::cross_entropy;
use crate::optim::OptimiserConfig;
use crate::{Error, Result};

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
/// Turns cropped copies of an image by right angles and learns to tell by how much, through the
/// layers that the classifier shares; then classifies the image.
///
/// # When to use
/// With a network trained jointly to do both; one image at a time, any norm without batch statistics.
///
/// # Objective
/// Cross-entropy of the rotation head over the copies.
///
/// # State it keeps
/// Shared layers and rotation head (online), nothing otherwise.
///
/// # Deviations
/// The standard version makes its ten steps on the same copies.
///
/// # Which logits are scored
/// Those of the image itself, right after (or, predict-first, right before) its own steps.
///
/// # References
/// METHODS 9.6.
#[derive(Clone, Debug)]
pub struct TttR<B: Backbone> {
    config: TttRConfig,
    learner: Learner<B>,
}

impl<B: Backbone + 'static> TttR<B> {
    /// Of a network trained jointly.
    pub fn new(network: B, config: TttRConfig) -> Result<Self> {
        if !network.has_rotation() {
            return Err(super::config::no_head(
                "ttt-r",
                "a rotation head",
                "rotation",
            ));
        }
        let (optimiser, rate) = (config.optimiser, config.learning_rate);
        let norm = NormUpdates::default();
        // The rotation loss reaches neither the classifier nor what only it uses.
        let learner = Learner::new(network, Adaptable::All, optimiser, rate, norm);
        Ok(Self { config, learner })
    }

    /// Image by image: steps on its copies, and a prediction on the side that is asked for.
    fn each(&mut self, arriving: &Minibatch, predict_first: bool) -> Result<(Tensor<2>, Learned)> {
        let copies = self.config.copies;
        let views = arriving.views.as_ref().ok_or_else(|| Error::Invalid {
            what: "minibatch",
            problem: "`ttt-r` needs turned copies of its images".to_owned(),
        })?;
        let mut scores = Vec::new();
        let (mut total, mut updates) = (0.0, 0);
        for image in 0..arriving.ids.len() {
            let own = arriving.images.clone().slice_dim(0, image..image + 1);
            if !self.config.online {
                self.learner.reset();
            }
            if predict_first {
                scores.push(self.predict(own.clone()));
            }
            let place = image * copies..(image + 1) * copies;
            let turned = views.images.clone().slice_dim(0, place.clone());
            for _ in 0..self.config.steps {
                let mode = self.learner.updating();
                let images = Tensor::from_inner(turned.clone());
                let logits = self.learner.network().rotation(images, mode);
                let logits = logits.expect("checked when made");
                let loss = cross_entropy(logits, &views.turns[place.clone()]);
                total += value(&loss);
                updates += 1;
                self.learner.step(&loss);
            }
            if !predict_first {
                scores.push(self.predict(own));
            }
        }
        let losses = vec![("rotation", total / f64::from(updates.max(1)))];
        let learned = Learned {
            updates: updates as usize,
            ..Learned::one_step(losses)
        };
        Ok((Tensor::cat(scores, 0), learned))
    }
}

impl<B: Backbone + 'static> Method for TttR<B> {
    fn name(&self) -> &'static str {
        "ttt-r"
    }

    fn wants(&self) -> Wants {
        Wants::Turned(self.config.copies)
    }

    fn rehearses(&self) -> bool {
        false
    }

    fn learn(&mut self, minibatch: &Minibatch, _: &Stage) -> Result<Learned> {
        Ok(self.each(minibatch, false)?.1)
    }

    fn predict(&self, images: Tensor<4>) -> Tensor<2> {
        self.learner.frozen().forward(images, NormMode::Running)
    }

    fn features(&self, images: Tensor<4>) -> Tensor<2> {
        self.learner.frozen().features(images, NormMode::Running)
    }

    fn learn_then_predict(
        &mut self,
        arriving: &Minibatch,
        _: &Stage,
    ) -> Result<(Tensor<2>, Learned)> {
        self.each(arriving, false)
    }

    fn predict_then_learn(
        &mut self,
        arriving: &Minibatch,
        _: &Stage,
    ) -> Result<(Tensor<2>, Learned)> {
        self.each(arriving, true)
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
