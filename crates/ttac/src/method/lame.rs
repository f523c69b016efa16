//! LAME: predictions that agree with those of similar samples in the batch. Nothing is trained.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::{
    Classifier, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, NormSource, Stage,
};
pub use crate::agreement::Affinity;
use crate::agreement::Agreement;
use crate::backbone::NormMode;
use crate::{Error, Result};

pub(super) const ENTRY: Entry<LameConfig> = Entry {
    variants: &[Variant {
        name: "lame",
        about: "predictions that agree with those of similar samples",
        preset: |_, _| LameConfig::default(),
    }],
    needs: |_| Needs {
        rehearses: false,
        ..Needs::NETWORK
    },
    build: |config, _, _| {
        config.validate()?;
        let learner = LearnerConfig {
            predicts: config.statistics.mode(),
            ..LearnerConfig::default()
        };
        Ok((learner, Box::new(Lame(config))))
    },
};

/// Constants of [`Lame`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LameConfig {
    /// How alike two samples are.
    pub affinity: Affinity,
    /// How many neighbours a sample has. With `rbf` the sample itself is the first of them.
    pub neighbours: usize,
    /// The mean sum of a row of affinities, to which they are scaled, so that the pull does not grow with the batch; none leaves them
    /// as they are, as published.
    pub pull: Option<f64>,
    /// How often predictions are moved, at most.
    pub iterations: usize,
    /// Norm statistics of the forward pass; the source's in the original.
    pub statistics: NormSource,
}

impl Default for LameConfig {
    fn default() -> Self {
        Self {
            affinity: Affinity::Rbf,
            neighbours: 5,
            pull: None,
            iterations: 100,
            statistics: NormSource::Running,
        }
    }
}

impl LameConfig {
    fn agreement(&self) -> Agreement {
        Agreement {
            affinity: self.affinity,
            neighbours: self.neighbours,
            pull: self.pull,
            iterations: self.iterations,
        }
    }

    fn validate(&self) -> Result<()> {
        Error::invalid_if_any("method constant", &self.agreement().problems())
    }
}

/// Laplacian adjusted maximum-likelihood estimation (Boudiaf et al., 2022).
///
/// # What it does
/// It leaves the network as it is, and moves the predictions of a batch so that they stay near the network's and agree with those of
/// samples whose features are alike.
///
/// # When to use
/// Use it where classes come in runs, so that neighbours really have the same class, and where nothing may be trained. On a stream
/// whose classes are mixed it makes predictions worse.
///
/// # Objective
/// `sum_i KL(y_i || p_i) - sum_ij W_ij y_i . y_j` over predictions `y`, by the fixed point `y_i ~ p_i exp(sum_j W_ij y_j)`.
///
/// # State it keeps
/// It keeps nothing between batches.
///
/// # Deviations
/// `pull` can keep the influence of neighbours the same for batches of any size. A batch whose samples all have the same feature has
/// no width to divide by; each of them is then every other's neighbour.
///
/// # Which logits are scored
/// The logarithms of the moved predictions, before and after learning alike, because nothing is learned.
///
/// # References
/// `docs/methods.md`, LAME.
#[derive(Clone, Copy, Debug)]
pub struct Lame(LameConfig);

impl Method for Lame {
    fn learn(&mut self, _: &mut Learner, _: &Minibatch, _: &Stage) -> Result<Learned> {
        Ok(Learned::nothing())
    }

    fn predict(&self, network: &dyn Classifier, mode: NormMode, images: Tensor<4>) -> Tensor<2> {
        let features = network.features(images, mode);
        let scores = network.logits(features.clone());
        self.0.agreement().apply(scores, &features, 1.0)
    }

    fn predicts_alone(&self) -> bool {
        false
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(*self)
    }
}
