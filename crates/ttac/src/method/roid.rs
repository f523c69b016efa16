//! ROID: weighted likelihood ratios, consistency, a way back to the source, and scores corrected by the batch's classes.

use burn::tensor::{Tensor, TensorData, activation::softmax};
use serde::{Deserialize, Serialize};

use super::ensemble::{ContinualFilter, FilterState, towards_source};
use super::entry::{Entry, Variant};
use super::learner::{from_bytes, rows, to_bytes};
use super::novelty::{AveragePrediction, Weights};
use super::shot::{select, select_images};
use super::terms::Terms;
use super::{
    Classifier, Layers, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, NormUpdates,
    Observed, Prediction, Preset, Stage, Wants, prior,
};
use crate::backbone::NormMode;
use crate::data::BatchAugmentation;
use crate::loss::{soft_likelihood_ratios, symmetric_cross_entropies};
use crate::optim::OptimiserConfig;
use crate::{Error, Result};

pub(super) const ENTRY: Entry<RoidConfig> = Entry {
    variants: &[
        Variant {
            name: "roid",
            about: "weighted likelihood ratios, drawn back to the source",
            preset: |preset, _| RoidConfig::of(preset),
        },
        Variant {
            name: "cmf",
            about: "ROID, drawn back to a filtered average",
            preset: |preset, _| RoidConfig {
                filter: Some(ContinualFilter::default()),
                ..RoidConfig::of(preset)
            },
        },
    ],
    needs: |config| Needs {
        layers: Some(Layers::Norms),
        views: if config.consistency {
            Wants::Augmented(1, config.augmentation)
        } else {
            Wants::Nothing
        },
        // Diversity and certainty compare the samples of a batch, and one sample has no classes' shares.
        fewest_samples: 2,
        ..Needs::NETWORK
    },
    build: |config, network, anchors| {
        config.validate()?;
        let reference = anchors.is_some_and(|anchors| anchors.norms.is_some());
        let RoidConfig {
            optimiser,
            learning_rate,
            norm,
            ..
        } = config;
        let learner = LearnerConfig::affine(optimiser, learning_rate, norm, reference);
        Ok((learner, Box::new(Roid::new(config, network.num_classes()))))
    },
};

/// Constants of [`Roid`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoidConfig {
    /// The optimiser; Adam for CIFAR, SGD for ImageNet.
    pub optimiser: OptimiserConfig,
    /// Its learning rate; 0.001 for CIFAR, 0.00025 for ImageNet.
    pub learning_rate: f64,
    /// Whether samples are weighted by diversity and certainty, and those that are not diverse are left out.
    pub weighting: bool,
    /// How much more the most diverse and most certain sample counts: its weight is `exp` of this.
    pub sharpness: f64,
    /// Share of the newest minibatch in the average prediction that diversity is measured from.
    pub average_share: f64,
    /// Whether answers on a varied copy of the batch have to agree.
    pub consistency: bool,
    /// How the copy is varied.
    pub augmentation: BatchAugmentation,
    /// By which share of the way parameters go back after each step, to the source or to the filter's average.
    pub source_share: f64,
    /// The filter of CMF; without one parameters go back to the source itself.
    pub filter: Option<ContinualFilter>,
    /// Whether scores are multiplied by the classes' shares in the batch.
    pub prior_correction: bool,
    /// Where the norms start, and whether their statistics follow images; with the rule `batches` they are those of
    /// the batch, as in the original.
    pub norm: NormUpdates,
}

impl Default for RoidConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::ADAM,
            learning_rate: 1e-3,
            weighting: true,
            sharpness: 3.0,
            average_share: 0.1,
            consistency: true,
            augmentation: BatchAugmentation::PLAIN,
            source_share: 0.01,
            filter: None,
            prior_correction: true,
            norm: NormUpdates::default(),
        }
    }
}

impl RoidConfig {
    fn of(preset: Preset) -> Self {
        Self {
            norm: NormUpdates::of_batches(preset),
            ..Self::default()
        }
    }

    fn validate(&self) -> Result<()> {
        let mut problems = self.norm.problems();
        for (name, value) in [
            ("average_share", self.average_share),
            ("source_share", self.source_share),
        ] {
            if !(0.0..=1.0).contains(&value) {
                problems.push(format!("`{name}` must be 0 to 1, found {value}"));
            }
        }
        if !(0.0..=50.0).contains(&self.sharpness) {
            problems.push(format!(
                "`sharpness` must be 0 to 50, found {}",
                self.sharpness
            ));
        }
        problems.extend(self.filter.iter().flat_map(ContinualFilter::problems));
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "method constant",
            problem: problems.join("; "),
        })
    }
}

/// What ROID keeps besides the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    average: AveragePrediction,
    /// The largest minibatch so far, which the loss is divided by.
    largest: usize,
    filter: FilterState,
}

/// Robust on-line adaptation to domains and classes that change (ROID, Marsden et al., 2024), and CMF (Lee and Chang, 2024).
///
/// # What it does
/// It trains scales and shifts of the norms. Samples whose prediction is unlike the average prediction, and certain, count most; those
/// that are like it are left out. Predictions become certain, by a loss that does not fade for certain ones, and agree with those on a
/// varied copy of the batch. After each step parameters go a hundredth of the way back to the source. CMF goes back to an
/// average that a Kalman filter keeps of the parameters.
///
/// # When to use
/// Use it on long streams whose domains change, where TENT drifts away. It is source-free, and costs half as much again as TENT. With
/// batch norms it needs batches in which classes are mixed.
///
/// # Objective
/// `1/n sum_i w_i (SLR(z_i) + SCE(z'_i, z_i))` over the samples that are kept, `z'` the scores of the varied copy;
/// `w_i = exp(3 a_i c_i)`, where `a_i = 1 - cos(q, p_i)` and `c_i = -H(p_i)`, both scaled to 0 to 1 over the batch. Kept are those with
/// `a_i` at or above the mean.
///
/// # State it keeps
/// It keeps the average prediction `q`, which starts uniform, the size of the largest batch, and for CMF the average parameters with
/// their variance; the learner keeps scales, shifts and Adam's moments.
///
/// # Deviations
/// The loss is divided by the largest batch so far, where the authors' program divides by the size it was configured with; only a
/// short last batch tells the two from the mean. Where all samples are equally diverse or certain, the scaled values are zero and not
/// the result of a division by zero. A reset forgets the variance of CMF, which the authors' program keeps. Batches of one are refused.
///
/// # Which logits are scored
/// Under predict-first those of the forward pass it learns from, as in the original; under adapt-first those of a second pass. Either
/// is multiplied by the smoothed shares of the classes in that batch.
///
/// # References
/// `docs/methods.md`, ROID and CMF.
#[derive(Clone, Debug)]
pub struct Roid {
    config: RoidConfig,
    state: State,
}

impl Roid {
    fn new(config: RoidConfig, classes: usize) -> Self {
        Self {
            config,
            state: State {
                average: AveragePrediction::uniform(classes),
                largest: 0,
                filter: FilterState::default(),
            },
        }
    }

    /// Returns the weight of each sample by its probabilities, `[batch, K]`; that of a sample which is left out is zero.
    fn weights(&self, probabilities: &[f32], count: usize) -> Vec<f32> {
        if !self.config.weighting {
            return vec![1.0; count];
        }
        let Weights { weights, diversity } = self
            .state
            .average
            .weigh(probabilities, self.config.sharpness);
        let mean = diversity.iter().sum::<f64>() / diversity.len().max(1) as f64;
        let pairs = weights.into_iter().zip(diversity);
        pairs
            .map(|(weight, diverse)| if diverse < mean { 0.0 } else { weight })
            .collect()
    }

    /// Takes a step; returns the logits before it and what was learned.
    fn step(&mut self, learner: &mut Learner, batch: &Minibatch) -> Result<(Tensor<2>, Learned)> {
        let copies = match (&batch.views, self.config.consistency) {
            (Some(views), true) => Some(&views.images),
            (_, false) => None,
            (None, true) => {
                return Err(Error::Invalid {
                    what: "minibatch",
                    problem: "`roid` needs a varied copy of its images".to_owned(),
                });
            }
        };
        let logits = learner.training_scores(batch.images.clone());
        let [count, _] = logits.dims();
        let probabilities = rows(&softmax(logits.clone().without_autodiff(), 1));
        let weights = self.weights(&probabilities, count);
        let average = &mut self.state.average;
        average.follow(&probabilities, self.config.average_share);
        self.state.largest = self.state.largest.max(count);

        let kept: Vec<usize> = (0..count).filter(|&row| weights[row] != 0.0).collect();
        let chosen = select(logits.clone(), &kept);
        let weights: Vec<f32> = kept.iter().map(|&row| weights[row]).collect();
        let weights = TensorData::new(weights, [kept.len(), 1]);
        let weights = Tensor::<2>::from_data(weights, &chosen.device());
        let weighted =
            |losses: Tensor<2>| (losses * weights.clone()).sum() / self.state.largest as f64;
        let mut terms = Terms::default();
        let ratios = soft_likelihood_ratios(chosen.clone());
        terms.add("likelihood_ratio", weighted(ratios));
        if let Some(copies) = copies {
            let varied = learner.varied_scores(select_images(copies.clone(), &kept));
            let consistency = symmetric_cross_entropies(varied, chosen);
            terms.add("consistency", weighted(consistency));
        }
        let learned = Learned {
            accepted: kept.len(),
            considered: count,
            ..terms.step(learner)
        };
        match &self.config.filter {
            Some(filter) => {
                let share = self.config.source_share;
                self.state.filter.filter(filter, learner, share);
            }
            None => towards_source(learner, self.config.source_share),
        }
        Ok((logits.without_autodiff(), learned))
    }

    fn corrected(&self, scores: Tensor<2>) -> Tensor<2> {
        if self.config.prior_correction {
            prior::corrected(scores)
        } else {
            scores
        }
    }
}

impl Method for Roid {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        Ok(self.step(learner, batch)?.1)
    }

    fn predict(&self, network: &dyn Classifier, mode: NormMode, images: Tensor<4>) -> Tensor<2> {
        self.corrected(network.forward(images, mode))
    }

    fn predicts_alone(&self) -> bool {
        !self.config.prior_correction
    }

    fn observe(&mut self, learner: &mut Learner, batch: &Minibatch, order: Prediction) -> Observed {
        let (before, learned) = self.step(learner, batch)?;
        let scores = learner.scores(before, &batch.images, order);
        Ok((self.corrected(scores), learned))
    }

    fn state(&self) -> Vec<u8> {
        to_bytes(&self.state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let state: State = from_bytes(state)?;
        self.state.average.check_saved(&state.average)?;
        self.state = state;
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two alike samples of class 0, a certain and an uncertain one of class 1.
    const BATCH: [f32; 12] = [
        0.8, 0.1, 0.1, //
        0.8, 0.1, 0.1, //
        0.01, 0.98, 0.01, //
        0.2, 0.5, 0.3,
    ];

    #[test]
    fn what_is_like_the_average_is_left_out() {
        let mut method = Roid::new(RoidConfig::default(), 3);
        // Long after a stream of class 0.
        method.state.average.follow(&[0.9, 0.05, 0.05], 1.0);
        let weights = method.weights(&BATCH, 4);
        assert_eq!(weights[..2], [0.0, 0.0]);
        assert!(weights[2] > 1.0 && weights[3] == 1.0, "{weights:?}");
    }

    #[test]
    fn an_average_of_other_classes_is_refused_and_changes_nothing() {
        let mut method = Roid::new(RoidConfig::default(), 3);
        let other = Roid::new(RoidConfig::default(), 4);
        let before = method.state();
        assert!(method.restore(&other.state()).is_err());
        assert_eq!(method.state(), before);
    }

    #[test]
    fn every_wrong_constant_is_named() {
        let config = RoidConfig {
            source_share: 1.5,
            average_share: -0.1,
            filter: Some(ContinualFilter {
                noise: f64::NAN,
                ..ContinualFilter::default()
            }),
            ..RoidConfig::default()
        };
        let message = config.validate().unwrap_err().to_string();
        for name in ["`source_share`", "`average_share`", "`filter.noise`"] {
            assert!(message.contains(name), "{name} in {message}");
        }
    }
}
