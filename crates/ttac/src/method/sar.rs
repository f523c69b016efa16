//! SAR: entropy minimisation on certain samples, by gradients from a little way up the slope, with a way out of collapse.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::learner::{from_bytes, rows, to_bytes, value};
use super::sharpness::with_network_uphill;
use super::shot::select;
use super::{
    Layers, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, NormUpdates, Observed,
    Prediction, Stage,
};
use crate::backbone::Adaptable;
use crate::loss::Uncertainty;
use crate::optim::OptimiserConfig;
use crate::{Error, Result};

pub(super) const ENTRY: Entry<SarConfig> = Entry {
    variants: &[Variant {
        name: "sar",
        about: "sharpness-aware entropy minimisation on certain samples",
        preset: |preset, _| SarConfig {
            norm: NormUpdates::of_batches(preset),
            ..SarConfig::default()
        },
    }],
    needs: |_| Needs {
        layers: Some(Layers::Norms),
        ..Needs::NETWORK
    },
    build: |config, network, anchors| {
        config.validate()?;
        let reference = anchors.is_some_and(|anchors| anchors.norms.is_some());
        let SarConfig {
            optimiser,
            learning_rate,
            norm,
            ..
        } = config;
        let learner = LearnerConfig {
            adapts: Adaptable::LowerAffine,
            ..LearnerConfig::affine(optimiser, learning_rate, norm, reference)
        };
        Ok((learner, Box::new(Sar::new(config, network.num_classes()))))
    },
};

/// Constants of [`Sar`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SarConfig {
    /// The optimiser.
    pub optimiser: OptimiserConfig,
    /// Its learning rate; 0.001 for CIFAR, 0.00025 for ImageNet.
    pub learning_rate: f64,
    /// By which measure predictions are uncertain; `opinion` is COME.
    pub uncertainty: Uncertainty,
    /// A sample is certain if its entropy is below this share of the largest one, `ln K`.
    pub entropy_margin: f64,
    /// How far up the slope the gradient is taken.
    pub radius: f64,
    /// The network goes back to the source when the average entropy of certain samples falls below this. It is meant for a thousand
    /// classes; the same share of `ln 10` is 0.067.
    pub recovery_entropy: f64,
    /// Share of the newest minibatch in that average.
    pub average_share: f64,
    /// Where the norms start, and whether their statistics follow images; with the rule `batches` they are those of
    /// the batch, as in the original.
    pub norm: NormUpdates,
}

impl Default for SarConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::SGD,
            learning_rate: 1e-3,
            uncertainty: Uncertainty::Entropy,
            entropy_margin: 0.4,
            radius: 0.05,
            recovery_entropy: 0.2,
            average_share: 0.1,
            norm: NormUpdates::default(),
        }
    }
}

impl SarConfig {
    fn validate(&self) -> Result<()> {
        let mut problems = self.norm.problems();
        if !(0.0..=1.0).contains(&self.average_share) {
            problems.push(format!(
                "`average_share` must be 0 to 1, found {}",
                self.average_share
            ));
        }
        if !(0.0..=1e6).contains(&self.radius) {
            problems.push(format!(
                "`radius` must be 0 to 1000000, found {}",
                self.radius
            ));
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "method constant",
            problem: problems.join("; "),
        })
    }
}

/// Sharpness-aware and reliable entropy minimisation (Niu et al., 2023).
///
/// # What it does
/// It is TENT on certain samples, with two passes for each step: the gradient of the first shows the way up the slope, and the gradient
/// a little way up is the one that the step takes. So it prefers flat minima, which noisy samples cannot throw it out of. If entropies
/// become suspiciously small, it goes back to the source. Norms of the last stage stay as they are.
///
/// # When to use
/// It is made for networks with layer norms or group norms under label shift, mixed domains or batches of one.
///
/// # Objective
/// `mean_{i in B} H(p_i)` a distance of `radius` up the gradient of `mean_{i in A} H(p_i)`; `A` has the samples with
/// `H(p_i) < entropy_margin * ln K`, `B` those of `A` that are below the same bound up the slope too.
///
/// # State it keeps
/// It keeps the average entropy of the samples that steps were made of; the learner keeps scales, shifts and momentum.
///
/// # Deviations
/// After it went back to the source it forgets the average entropy. The authors' program puts the old value back and so returns to the
/// source after every batch, until the average has risen.
///
/// # Which logits are scored
/// Under predict-first those of the first of the two passes, as in the original; under adapt-first those of a third pass.
///
/// # References
/// `docs/methods.md`, SAR.
#[derive(Clone, Debug)]
pub struct Sar {
    config: SarConfig,
    classes: usize,
    /// Average entropy of the samples that steps were made of.
    average: Option<f64>,
}

impl Sar {
    fn new(config: SarConfig, classes: usize) -> Self {
        Self {
            config,
            classes,
            average: None,
        }
    }

    /// Finds those of some rows whose entropy is below the bound.
    fn certain(&self, entropies: &Tensor<2>, among: impl Iterator<Item = usize>) -> Vec<usize> {
        let bound = self.config.entropy_margin * (self.classes as f64).ln();
        let entropies = rows(entropies);
        let is_certain = |&row: &usize| f64::from(entropies[row]) < bound;
        among.filter(is_certain).collect()
    }

    /// Takes a step; returns the logits before it and what was learned.
    fn step(&mut self, learner: &mut Learner, images: &Tensor<4>) -> (Tensor<2>, Learned) {
        let logits = learner.training_scores(images.clone());
        let [count, _] = logits.dims();
        let uncertainty = self.config.uncertainty.of(logits.clone());
        let certain = self.certain(&uncertainty, 0..count);
        let mut losses = Vec::new();
        let mut accepted = 0;
        let gradient = if certain.is_empty() {
            // Nobody asks for gradients, and only a backward pass frees what the forward pass recorded.
            let _ = uncertainty.sum().backward();
            None
        } else {
            let first = learner.gradient(&select(uncertainty, &certain).mean());
            with_network_uphill(learner, &first, self.config.radius, |learner| {
                // All images again, because they make the statistics of the batch together.
                let uphill = learner.varied_scores(images.clone());
                let uphill = self.config.uncertainty.of(uphill);
                let still = self.certain(&uphill, certain.iter().copied());
                if still.is_empty() {
                    let _ = uphill.sum().backward();
                    return None;
                }
                let loss = select(uphill, &still).mean();
                losses.push(("entropy", value(&loss)));
                accepted = still.len();
                Some(learner.gradient(&loss))
            })
        };
        // Without a sample the gradient is zero, and the step coasts on its momentum.
        let gradient = gradient.unwrap_or_else(|| vec![0.0; learner.parameters().len()]);
        learner.step_along(&gradient);
        if let Some((_, entropy)) = losses.first() {
            let share = self.config.average_share;
            let average = self
                .average
                .map_or(*entropy, |before| (1.0 - share) * before + share * entropy);
            self.average = Some(average);
        }
        let mut learned = Learned {
            accepted,
            considered: count,
            ..Learned::one_step(losses)
        };
        let bound = self.config.recovery_entropy;
        if self.average.is_some_and(|average| average < bound) {
            learner.reset();
            self.average = None;
            let note = format!("back to the source: the average entropy fell below {bound}");
            learned.notes.push(note);
        }
        (logits.without_autodiff(), learned)
    }
}

impl Method for Sar {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        Ok(self.step(learner, &batch.images).1)
    }

    fn observe(&mut self, learner: &mut Learner, batch: &Minibatch, order: Prediction) -> Observed {
        let (before, learned) = self.step(learner, &batch.images);
        Ok((learner.scores(before, &batch.images, order), learned))
    }

    fn state(&self) -> Vec<u8> {
        to_bytes(&self.average)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.average = from_bytes(state)?;
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}
