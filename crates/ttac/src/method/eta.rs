//! ETA: entropy minimisation on samples that are certain and tell something new. EATA, which holds on to what matters to the
//! source, and RDumb, which goes back to the source now and then.

use burn::tensor::{Tensor, TensorData, activation::softmax};
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::learner::{from_bytes, rows, to_bytes, value};
use super::shot::select;
use super::{
    Layers, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, NormUpdates, Observed,
    Prediction, Preset, Stage,
};
use crate::loss::Uncertainty;
use crate::optim::OptimiserConfig;
use crate::stats::SourceStatistics;
use crate::{Error, Result};

pub(super) const ENTRY: Entry<EtaConfig> = Entry {
    variants: &[
        Variant {
            name: "eta",
            about: "entropy minimisation on certain and novel samples",
            preset: |preset, _| EtaConfig::of(preset),
        },
        Variant {
            name: "eata",
            about: "ETA, held near the source where it matters",
            preset: |preset, _| EtaConfig {
                penalty_weight: 1.0,
                ..EtaConfig::of(preset)
            },
        },
        Variant {
            name: "rdumb",
            about: "ETA, reset to the source every 1000 batches",
            preset: |preset, _| EtaConfig {
                reset_period: Some(1000),
                ..EtaConfig::of(preset)
            },
        },
    ],
    needs: |config| Needs {
        layers: Some(Layers::Norms),
        anchors: config.penalty_weight > 0.0,
        ..Needs::NETWORK
    },
    build: |config, network, anchors| {
        config.validate()?;
        let reference = anchors.is_some_and(|anchors| anchors.norms.is_some());
        let EtaConfig {
            optimiser,
            learning_rate,
            norm,
            ..
        } = config;
        let learner = LearnerConfig::affine(optimiser, learning_rate, norm, reference);
        let mut method = Eta::new(config, network.num_classes());
        if config.penalty_weight > 0.0 {
            method.importance = importance(anchors)?;
        }
        Ok((learner, Box::new(method)))
    },
};

/// Constants of [`Eta`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EtaConfig {
    /// The optimiser; Adam for CIFAR, SGD for ImageNet.
    pub optimiser: OptimiserConfig,
    /// Its learning rate; 0.001 for CIFAR, 0.00025 for ImageNet.
    pub learning_rate: f64,
    /// By which measure predictions are uncertain; `opinion` is COME.
    pub uncertainty: Uncertainty,
    /// A sample is certain if its entropy is below this share of the largest one, `ln K`.
    pub entropy_margin: f64,
    /// A certain sample is new if the cosine between its prediction and the average prediction is below this; 0.4
    /// for CIFAR-10, 0.1 for CIFAR-100, 0.05 for ImageNet. Above one, every sample is new.
    pub similarity_threshold: f64,
    /// Share of the newest minibatch in the average prediction.
    pub average_share: f64,
    /// Weight of the penalty that holds important parameters near the source; zero for none. 1 for CIFAR, 2000 for ImageNet.
    pub penalty_weight: f64,
    /// After how many batches everything goes back to the source; none for never.
    pub reset_period: Option<u64>,
    /// Where the norms start, and whether their statistics follow images; with the rule `batches` they are those of
    /// the batch, as in the original.
    pub norm: NormUpdates,
}

impl Default for EtaConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::ADAM,
            learning_rate: 1e-3,
            uncertainty: Uncertainty::Entropy,
            entropy_margin: 0.4,
            similarity_threshold: 0.4,
            average_share: 0.1,
            penalty_weight: 0.0,
            reset_period: None,
            norm: NormUpdates::default(),
        }
    }
}

impl EtaConfig {
    fn of(preset: Preset) -> Self {
        Self {
            norm: NormUpdates::of_batches(preset),
            ..Self::default()
        }
    }

    fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        if !(0.0..=1.0).contains(&self.average_share) {
            problems.push(format!(
                "`average_share` must be 0 to 1, found {}",
                self.average_share
            ));
        }
        if !(0.0..=1e9).contains(&self.penalty_weight) {
            problems.push(format!(
                "`penalty_weight` must be 0 to 1e9, found {}",
                self.penalty_weight
            ));
        }
        if self.reset_period == Some(0) {
            problems.push("`reset_period` must be at least 1, found 0".to_owned());
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

/// Returns how much each trained parameter matters to the source. Anchors that do not say so are refused.
fn importance(anchors: Option<&SourceStatistics>) -> Result<Vec<f32>> {
    let found = anchors.and_then(|anchors| anchors.importance.as_ref());
    let found = found.ok_or_else(|| Error::Invalid {
        what: "anchors",
        problem: "`eata` needs to know how much each scale and shift of the norms matters to the source, and these anchors do not say \
                  so; anchors made by this version do"
            .to_owned(),
    })?;
    Ok(found.values.clone())
}

/// Efficient test-time adaptation (ETA and EATA, Niu et al., 2022), and RDumb (Press et al., 2023).
///
/// # What it does
/// It is TENT on selected samples. A sample takes part if its prediction is certain, and if it differs from the
/// average prediction of the samples that took part before. The more certain a sample is, the more it counts. EATA adds a penalty against
/// forgetting: parameters that matter to the predictions on source images are held near the source. RDumb goes back to the source
/// after every thousand batches.
///
/// # When to use
/// It is source-free and as cheap as TENT, and steadier, because uncertain samples cannot mislead it and classes
/// that were met often cannot take over. On long streams take EATA, whose anchors have to say what matters, or RDumb.
///
/// # Objective
/// `mean_{i in B} w_i H(p_i)`, `w_i = exp(E - H(p_i))` without a gradient, `E = entropy_margin * ln K`; `B` has
/// the samples with `H(p_i) < E` whose `|cos(q, p_i)|` is below `similarity_threshold`, `q` the average prediction. EATA adds
/// `penalty_weight * sum_j F_j (theta_j - source_j)^2`, `F` the Fisher information on source images.
///
/// # State it keeps
/// It keeps the average prediction, once a sample has been selected, and counts batches; the learner keeps scales, shifts and Adam's
/// moments.
///
/// # Deviations
/// A reset forgets the average prediction, which the authors' program keeps. That program is for ImageNet only; the
/// constants here are those that public benchmarks use for CIFAR-10.
///
/// # Which logits are scored
/// Under predict-first those of the forward pass it learns from, as in the original; under
/// adapt-first those of a second pass.
///
/// # References
/// `docs/methods.md`, ETA, EATA and RDumb.
#[derive(Clone, Debug)]
pub struct Eta {
    config: EtaConfig,
    classes: usize,
    /// How much each trained parameter matters to the source; empty without a penalty.
    importance: Vec<f32>,
    /// Average prediction of the selected samples, `[K]`; none before the first one.
    average: Option<Vec<f64>>,
    /// Batches of this period; zero without a period.
    batches: u64,
}

impl Eta {
    fn new(config: EtaConfig, classes: usize) -> Self {
        Self {
            config,
            classes,
            importance: Vec::new(),
            average: None,
            batches: 0,
        }
    }

    /// Returns the entropy below which a prediction is certain.
    fn entropy_bound(&self) -> f64 {
        self.config.entropy_margin * (self.classes as f64).ln()
    }

    /// Finds the rows that take part, by their entropies and probabilities, `[batch, K]`.
    fn selected(&self, entropies: &[f32], probabilities: &[f32]) -> Vec<usize> {
        let bound = self.entropy_bound();
        let samples = entropies
            .iter()
            .zip(probabilities.chunks_exact(self.classes));
        let selected = samples.enumerate().filter(|(_, (entropy, prediction))| {
            f64::from(**entropy) < bound && self.is_new(prediction)
        });
        selected.map(|(row, _)| row).collect()
    }

    /// Whether a prediction differs enough from the average one. Without an average every one does.
    fn is_new(&self, prediction: &[f32]) -> bool {
        let Some(average) = &self.average else {
            return true;
        };
        let prediction = || prediction.iter().map(|&p| f64::from(p));
        let product: f64 = average.iter().zip(prediction()).map(|(q, p)| q * p).sum();
        let length_of_average: f64 = average.iter().map(|q| q * q).sum();
        let length: f64 = prediction().map(|p| p * p).sum();
        let cosine = product / (length_of_average * length).sqrt();
        cosine.abs() < self.config.similarity_threshold
    }

    /// Returns the weight of a selected sample in the loss.
    fn weight(&self, entropy: f32) -> f32 {
        (self.entropy_bound() - f64::from(entropy)).exp() as f32
    }

    /// Moves the average prediction by the selected rows, of which there is at least one.
    fn follow(&mut self, probabilities: &[f32], selected: &[usize]) {
        let mut mean = vec![0.0; self.classes];
        for &row in selected {
            let prediction = &probabilities[row * self.classes..][..self.classes];
            for (sum, &p) in mean.iter_mut().zip(prediction) {
                *sum += f64::from(p) / selected.len() as f64;
            }
        }
        let share = self.config.average_share;
        self.average = Some(match self.average.take() {
            None => mean,
            Some(before) => {
                let pairs = before.iter().zip(&mean);
                pairs.map(|(b, m)| (1.0 - share) * b + share * m).collect()
            }
        });
    }

    /// Adds the gradient of the penalty against forgetting to another one, and returns the value of the penalty.
    fn hold(&self, learner: &Learner, gradient: &mut [f32]) -> f64 {
        let (now, source) = (learner.parameters(), learner.source_parameters());
        let weights = self
            .importance
            .iter()
            .map(|&f| self.config.penalty_weight * f64::from(f));
        let ways = now
            .iter()
            .zip(source)
            .map(|(now, source)| f64::from(now - source));
        let mut penalty = 0.0;
        for ((slope, weight), way) in gradient.iter_mut().zip(weights).zip(ways) {
            penalty += weight * way * way;
            *slope += (2.0 * weight * way) as f32;
        }
        penalty
    }

    /// Takes a step, if any sample is selected; returns the logits before it and what was learned.
    fn step(&mut self, learner: &mut Learner, images: &Tensor<4>) -> (Tensor<2>, Learned) {
        if let Some(period) = self.config.reset_period {
            if self.batches == period {
                learner.reset();
                self.average = None;
                self.batches = 0;
            }
            self.batches += 1;
        }
        let logits = learner.training_scores(images.clone());
        let probabilities = softmax(logits.clone().without_autodiff(), 1);
        let entropies = self.config.uncertainty.of(logits.clone());
        let (certainty, probabilities) = (rows(&entropies), rows(&probabilities));
        let selected = self.selected(&certainty, &probabilities);
        let mut learned = Learned {
            accepted: selected.len(),
            considered: certainty.len(),
            ..Learned::nothing()
        };
        if selected.is_empty() {
            // Nobody asks for these gradients; but only a backward pass frees what the forward pass recorded, and a
            // stream without a single certain sample would fill the memory.
            let _ = entropies.sum().backward();
        } else {
            self.follow(&probabilities, &selected);
            let weights = selected.iter().map(|&row| self.weight(certainty[row]));
            let weights = TensorData::new(weights.collect(), [selected.len(), 1]);
            let weights = Tensor::from_data(weights, &entropies.device());
            let loss = (select(entropies, &selected) * weights).mean();
            learned.losses.push(("entropy", value(&loss)));
            learned.updates = 1;
            if self.importance.is_empty() {
                learner.step(&loss);
            } else {
                let mut gradient = learner.gradient(&loss);
                let penalty = self.hold(learner, &mut gradient);
                learned.losses.push(("penalty", penalty));
                learner.step_along(&gradient);
            }
        }
        (logits.without_autodiff(), learned)
    }
}

impl Method for Eta {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        Ok(self.step(learner, &batch.images).1)
    }

    fn observe(&mut self, learner: &mut Learner, batch: &Minibatch, order: Prediction) -> Observed {
        let (before, learned) = self.step(learner, &batch.images);
        Ok((learner.scores(before, &batch.images, order), learned))
    }

    fn state(&self) -> Vec<u8> {
        to_bytes(&(&self.average, self.batches))
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let (average, batches): (Option<Vec<f64>>, u64) = from_bytes(state)?;
        if let Some(found) = average.as_ref().filter(|found| found.len() != self.classes) {
            return Err(Error::Mismatch {
                what: "saved average prediction".to_owned(),
                expected: format!("{} classes", self.classes),
                found: format!("{} classes", found.len()),
            });
        }
        self.average = average;
        self.batches = batches;
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entropies of rows of probabilities.
    fn entropies(probabilities: &[f32], classes: usize) -> Vec<f32> {
        let rows = probabilities.chunks_exact(classes);
        rows.map(|row| row.iter().map(|p| -p * p.max(1e-30).ln()).sum())
            .collect()
    }

    fn selected(method: &Eta, probabilities: &[f32]) -> Vec<usize> {
        method.selected(&entropies(probabilities, method.classes), probabilities)
    }

    /// Three certain samples, of classes 0, 0 and 1, and an uncertain one.
    const BATCH: [f32; 12] = [
        0.98, 0.01, 0.01, //
        0.96, 0.02, 0.02, //
        0.01, 0.98, 0.01, //
        0.40, 0.30, 0.30,
    ];

    #[test]
    fn a_sample_counts_by_its_certainty() {
        let ten = Eta::new(EtaConfig::default(), 10);
        assert!((ten.weight(0.5) - 1.523_536).abs() < 1e-6);
    }

    #[test]
    fn the_first_batch_is_asked_for_certainty_alone() {
        let config = EtaConfig {
            similarity_threshold: 0.0,
            ..EtaConfig::default()
        };
        let mut method = Eta::new(config, 3);
        assert_eq!(selected(&method, &BATCH), [0, 1, 2]);
        method.follow(&BATCH, &[0, 1, 2]);
        assert_eq!(selected(&method, &BATCH), [] as [usize; 0]);
    }

    #[test]
    fn the_average_is_of_selected_samples_and_makes_their_like_redundant() {
        let mut method = Eta::new(EtaConfig::default(), 3);
        method.follow(&BATCH, &[0, 1]);
        let average = |method: &Eta| method.average.clone().unwrap();
        let near = |found: Vec<f64>, expected: [f64; 3]| {
            let far = found
                .iter()
                .zip(expected)
                .any(|(a, b)| (a - b).abs() > 1e-7);
            assert!(!far, "{found:?} instead of {expected:?}");
        };
        near(average(&method), [0.97, 0.015, 0.015]);
        assert_eq!(selected(&method, &BATCH), [2], "class 0 is known");
        method.follow(&BATCH, &[2]);
        near(average(&method), [0.874, 0.1115, 0.0145]);
    }

    #[test]
    fn an_average_of_other_classes_is_refused_and_changes_nothing() {
        let mut method = Eta::new(EtaConfig::default(), 3);
        method.follow(&BATCH, &[0]);
        let before = method.state();
        let mut other = Eta::new(EtaConfig::default(), 4);
        assert!(
            method
                .restore(&to_bytes(&(Some(vec![0.25; 4]), 3)))
                .is_err()
        );
        assert_eq!(method.state(), before);
        assert!(other.restore(&before).is_err());
        other.restore(&other.state()).unwrap();
        assert_eq!(other.average, None);
    }
}
