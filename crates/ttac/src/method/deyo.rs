//! DeYO: entropy minimisation on samples whose prediction falls when the shape of the object is destroyed.

use burn::tensor::{Tensor, TensorData, activation::softmax};
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::learner::{rows, value};
use super::shot::{select, select_images};
use super::{
    Layers, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, NormUpdates, Observed,
    Prediction, Stage, Wants,
};
use crate::backbone::Adaptable;
use crate::loss::entropies;
use crate::optim::OptimiserConfig;
use crate::{Error, Result, best};

pub(super) const ENTRY: Entry<DeyoConfig> = Entry {
    variants: &[Variant {
        name: "deyo",
        about: "entropy minimisation on predictions that rest on shapes",
        preset: |preset, _| DeyoConfig {
            norm: NormUpdates::of_batches(preset),
            ..DeyoConfig::default()
        },
    }],
    needs: |config| Needs {
        layers: Some(Layers::Norms),
        views: Wants::Shuffled(config.patches),
        ..Needs::NETWORK
    },
    build: |config, network, anchors| {
        config.validate()?;
        let reference = anchors.is_some_and(|anchors| anchors.norms.is_some());
        let DeyoConfig {
            optimiser,
            learning_rate,
            norm,
            ..
        } = config;
        let learner = LearnerConfig {
            adapts: Adaptable::LowerAffine,
            ..LearnerConfig::affine(optimiser, learning_rate, norm, reference)
        };
        let classes = network.num_classes();
        Ok((learner, Box::new(Deyo { config, classes })))
    },
};

/// Constants of [`Deyo`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeyoConfig {
    /// The optimiser; Adam for CIFAR, SGD for ImageNet.
    pub optimiser: OptimiserConfig,
    /// Its learning rate; 0.001 for CIFAR, 0.00025 for ImageNet.
    pub learning_rate: f64,
    /// A sample is certain if its entropy is below this share of the largest one, `ln K`.
    pub entropy_margin: f64,
    /// The entropy, as a share of `ln K`, at which the weight of a sample by its certainty is one.
    pub weight_margin: f64,
    /// A certain sample takes part if the probability of its class falls by more than this when its patches are shuffled; 0.2 on wild
    /// streams, 0.3 on mild ones.
    pub fall_threshold: f64,
    /// Into how many patches each side is cut.
    pub patches: usize,
    /// Where the norms start, and whether their statistics follow images; with the rule `batches` they are those of
    /// the batch, as in the original.
    pub norm: NormUpdates,
}

impl Default for DeyoConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::ADAM,
            learning_rate: 1e-3,
            entropy_margin: 0.5,
            weight_margin: 0.4,
            fall_threshold: 0.2,
            patches: 4,
            norm: NormUpdates::default(),
        }
    }
}

impl DeyoConfig {
    fn validate(&self) -> Result<()> {
        if (1..=64).contains(&self.patches) {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "method constant",
            problem: format!("`patches` must be 1 to 64, found {}", self.patches),
        })
    }
}

/// Destroy your object (Lee et al., 2024).
///
/// # What it does
/// It is TENT on selected samples. A sample takes part if its prediction is certain, and if the probability of its class falls when the
/// patches of the image change places: then the prediction rests on the shape of the object, and not on colours that a shift may
/// bring. Samples count more the more certain they are and the further the probability falls. Norms of the last stage stay as they are.
///
/// # When to use
/// It is made for streams on which entropy misleads, such as those with spurious colours, and for networks with group norms or layer
/// norms on wild streams.
///
/// # Objective
/// `mean_{i in B} (exp(E - H(p_i)) + exp(d_i)) H(p_i)`, the factor without a gradient; `d_i` is the fall of the probability of the
/// predicted class, `B` has the samples with `H(p_i) < entropy_margin * ln K` and `d_i > fall_threshold`, `E = weight_margin * ln K`.
///
/// # State it keeps
/// The learner keeps scales, shifts and Adam's moments; the method itself keeps nothing.
///
/// # Deviations
/// Where a side is no multiple of `patches`, the rest stays in place; the original resizes such images and resizes them back.
///
/// # Which logits are scored
/// Under predict-first those of the forward pass it learns from, as in the original; under adapt-first those of a second pass.
///
/// # References
/// `docs/methods.md`, DeYO.
#[derive(Clone, Debug)]
pub struct Deyo {
    config: DeyoConfig,
    classes: usize,
}

impl Deyo {
    /// Returns how far the probability of its class falls for each of some rows, when their patches are shuffled.
    fn falls(
        &self,
        learner: &Learner,
        logits: &Tensor<2>,
        shuffled: &Tensor<4>,
        certain: &[usize],
    ) -> Vec<f64> {
        let before = rows(&softmax(logits.clone().without_autodiff(), 1));
        let images = select_images(shuffled.clone(), certain);
        let scores = learner.frozen().forward(images, learner.predicts());
        let after = rows(&softmax(scores, 1));
        let pairs = certain.iter().zip(after.chunks_exact(self.classes));
        let falls = pairs.map(|(&row, after)| {
            let own = &before[row * self.classes..][..self.classes];
            let (class, probability) = best(own);
            f64::from(probability) - f64::from(after[class])
        });
        falls.collect()
    }

    /// Takes a step, if any sample is selected; returns the logits before it and what was learned.
    fn step(&self, learner: &mut Learner, batch: &Minibatch) -> Result<(Tensor<2>, Learned)> {
        let views = batch.views.as_ref().ok_or_else(|| Error::Invalid {
            what: "minibatch",
            problem: "`deyo` needs copies of its images whose patches are shuffled".to_owned(),
        })?;
        let logits = learner.training_scores(batch.images.clone());
        let uncertainty = entropies(logits.clone());
        let values = rows(&uncertainty);
        let largest = (self.classes as f64).ln();
        let is_certain =
            |row: &usize| f64::from(values[*row]) < self.config.entropy_margin * largest;
        let certain: Vec<usize> = (0..values.len()).filter(is_certain).collect();
        let mut selected = Vec::new();
        let mut weights = Vec::new();
        if !certain.is_empty() {
            let falls = self.falls(learner, &logits, &views.images, &certain);
            for (&row, fall) in certain.iter().zip(falls) {
                if fall > self.config.fall_threshold {
                    let bound = self.config.weight_margin * largest;
                    let weight = (bound - f64::from(values[row])).exp() + fall.exp();
                    selected.push(row);
                    weights.push(weight as f32);
                }
            }
        }
        let mut learned = Learned {
            accepted: selected.len(),
            considered: values.len(),
            ..Learned::nothing()
        };
        if selected.is_empty() {
            // Nobody asks for gradients, and only a backward pass frees what the forward pass recorded.
            let _ = uncertainty.sum().backward();
        } else {
            let weights = TensorData::new(weights, [selected.len(), 1]);
            let weights = Tensor::<2>::from_data(weights, &uncertainty.device());
            let loss = (select(uncertainty, &selected) * weights).mean();
            learned.losses.push(("entropy", value(&loss)));
            learned.updates = 1;
            learner.step(&loss);
        }
        Ok((logits.without_autodiff(), learned))
    }
}

impl Method for Deyo {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        Ok(self.step(learner, batch)?.1)
    }

    fn observe(&mut self, learner: &mut Learner, batch: &Minibatch, order: Prediction) -> Observed {
        let (before, learned) = self.step(learner, batch)?;
        Ok((learner.scores(before, &batch.images, order), learned))
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}
