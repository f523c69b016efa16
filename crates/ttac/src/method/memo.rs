//! MEMO: each image alone becomes certain, by the mean of the predictions on varied copies of it.

use burn::tensor::{Tensor, activation::log_softmax};
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::learner::value;
use super::{
    Learned, Learner, LearnerConfig, Method, Minibatch, Needs, Observed, Prediction, Stage, Wants,
};
use crate::backbone::{Adaptable, NormMode};
use crate::loss::entropy_of_mean;
use crate::optim::OptimiserConfig;
use crate::{Error, Result};

pub(super) const ENTRY: Entry<MemoConfig> = Entry {
    variants: &[Variant {
        name: "memo",
        about: "each image alone, made certain over varied copies of itself",
        preset: |_, _| MemoConfig::default(),
    }],
    needs: |config| Needs {
        views: Wants::Mixed {
            copies: config.copies,
            flips: config.flips,
        },
        rehearses: false,
        ..Needs::NETWORK
    },
    build: |config, _, _| {
        config.validate()?;
        let learner = LearnerConfig {
            adapts: Adaptable::All,
            ..LearnerConfig::stepping(config.optimiser, config.learning_rate)
        };
        Ok((learner, Box::new(Memo(config))))
    },
};

/// Constants of [`Memo`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoConfig {
    /// The optimiser; gradient descent without momentum.
    pub optimiser: OptimiserConfig,
    /// Its learning rate; 0.005 for CIFAR, 0.00025 for ImageNet.
    pub learning_rate: f64,
    /// Varied copies of each image; 32 for CIFAR, 64 for ImageNet.
    pub copies: usize,
    /// Whether images may be flipped. Where left and right mean something, as in digits, they must not.
    pub flips: bool,
}

impl Default for MemoConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::Sgd {
                momentum: 0.0,
                weight_decay: 0.0,
            },
            learning_rate: 0.005,
            copies: 32,
            flips: true,
        }
    }
}

impl MemoConfig {
    fn validate(&self) -> Result<()> {
        let problems = if self.copies == 0 {
            vec!["`copies` must be at least 1, found 0".to_owned()]
        } else {
            Vec::new()
        };
        Error::invalid_if_any("method constant", &problems)
    }
}

/// Marginal entropy minimisation with one test point (Zhang, Levine and Finn, 2022).
///
/// # What it does
/// For each image it takes one step down the entropy of the mean probability over varied copies, by AugMix, so that the copies agree on
/// one class; then it classifies the image. After that everything goes back to the source: no image learns from another.
///
/// # When to use
/// Use it for single images, or where nothing may be carried on from one to the next. It costs 33 forward and 32 backward passes
/// for each image.
///
/// # Objective
/// `H(mean_j p_j)` over the copies of one image.
///
/// # State it keeps
/// It keeps nothing.
///
/// # Deviations
/// Norms use their stored statistics. For ImageNet the authors' program mixes in a share of one in seventeen of those of the copies.
///
/// # Which logits are scored
/// Those of the image itself after its own step; under predict-first those of the source. Predictions apart from learning are
/// the source's.
///
/// # References
/// `docs/methods.md`, MEMO.
#[derive(Clone, Copy, Debug)]
pub struct Memo(MemoConfig);

impl Method for Memo {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        Ok(self.observe(learner, batch, Prediction::AdaptFirst)?.1)
    }

    fn observe(&mut self, learner: &mut Learner, batch: &Minibatch, order: Prediction) -> Observed {
        let copies = self.0.copies;
        let views = batch.views.as_ref().ok_or_else(|| Error::Invalid {
            what: "minibatch",
            problem: "`memo` needs varied copies of its images".to_owned(),
        })?;
        let source = learner.source_parameters();
        let before = (order == Prediction::PredictFirst).then(|| {
            let network = learner.frozen();
            network.forward(batch.images.clone(), NormMode::Running)
        });
        let mut scores = Vec::new();
        let mut total = 0.0;
        let count = batch.ids.len();
        for image in 0..count {
            let place = image * copies..(image + 1) * copies;
            let own = Tensor::from_inner(views.images.clone().slice_dim(0, place));
            let logits = learner.network().forward(own, NormMode::Running);
            let loss = entropy_of_mean(log_softmax(logits, 1));
            total += value(&loss);
            learner.step(&loss);
            if before.is_none() {
                let image = batch.images.clone().slice_dim(0, image..image + 1);
                scores.push(learner.frozen().forward(image, NormMode::Running));
            }
            learner.set_parameters(&source);
        }
        let learned = Learned {
            updates: count,
            ..Learned::one_step(vec![("entropy", total / count.max(1) as f64)])
        };
        Ok((before.unwrap_or_else(|| Tensor::cat(scores, 0)), learned))
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(*self)
    }
}
