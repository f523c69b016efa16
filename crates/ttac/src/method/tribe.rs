//! TRIBE: three networks with balanced norm statistics; student and teacher share their weights, the source holds them.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::learner::{classes, from_bytes, rows, to_bytes, value};
use super::rotta::copies;
use super::shot::select;
use super::{
    Layers, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, Observed, Prediction, Stage,
    Wants,
};
use crate::backbone::{Adaptable, NormMode};
use crate::data::BatchAugmentation;
use crate::loss::{cross_entropy, entropies};
use crate::norms::{KeptNorms, KeptRule, PassLabels};
use crate::optim::OptimiserConfig;
use crate::{Error, Result};

pub(super) const ENTRY: Entry<TribeConfig> = Entry {
    variants: &[Variant {
        name: "tribe",
        about: "balanced norms by class; student and teacher share weights",
        preset: |_, _| TribeConfig::default(),
    }],
    needs: |config| Needs {
        layers: Some(Layers::BatchNorms),
        views: Wants::Augmented(1, config.augmentation),
        ..Needs::NETWORK
    },
    build: |config, network, _| {
        config.validate()?;
        let learner = LearnerConfig {
            adapts: Adaptable::Affine,
            ..LearnerConfig::stepping(config.optimiser, config.learning_rate)
        };
        let method = Tribe {
            config,
            classes: network.num_classes(),
            state: State::default(),
        };
        Ok((learner, Box::new(method)))
    },
};

/// Constants of [`Tribe`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TribeConfig {
    /// The optimiser.
    pub optimiser: OptimiserConfig,
    /// Its learning rate.
    pub learning_rate: f64,
    /// Share of an image in the norm statistics of its class; 0.01 for CIFAR-10, 0.05 for CIFAR-100, 0.5 for ImageNet. None takes
    /// the larger of 0.01 and 0.0005 times the number of classes, which is the authors' rule for these.
    pub norm_share: Option<f64>,
    /// The part of a movement of norm statistics that all classes take; 0 for CIFAR-10, 0.1 for CIFAR-100, 0.5 for ImageNet.
    pub common_part: f64,
    /// Samples count whose entropy is below this part of `ln K`; 0.05 for CIFAR-10, 0.2 for CIFAR-100, 0.4 for ImageNet.
    pub entropy_margin: f64,
    /// Weight of the distance to the source's logits.
    pub anchor_weight: f64,
    /// How the copies that the student sees are varied.
    pub augmentation: BatchAugmentation,
}

impl Default for TribeConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::ADAM,
            learning_rate: 1e-3,
            norm_share: None,
            common_part: 0.0,
            entropy_margin: 0.05,
            anchor_weight: 0.5,
            augmentation: BatchAugmentation::FULL,
        }
    }
}

impl TribeConfig {
    fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        if let Some(share) = self.norm_share.filter(|s| !(*s > 0.0 && *s <= 1.0)) {
            problems.push(format!(
                "`norm_share` must be above 0 and at most 1, found {share}"
            ));
        }
        if !(0.0..=1.0).contains(&self.common_part) {
            problems.push(format!(
                "`common_part` must be 0 to 1, found {}",
                self.common_part
            ));
        }
        for (name, value) in [
            ("entropy_margin", self.entropy_margin),
            ("anchor_weight", self.anchor_weight),
        ] {
            if !(0.0..=1e6).contains(&value) {
                problems.push(format!("`{name}` must be 0 to 1000000, found {value}"));
            }
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

/// What TRIBE keeps besides the network: the norm statistics of each class in each of three networks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct State {
    student: KeptNorms,
    teacher: KeptNorms,
    source: KeptNorms,
}

/// Test-time adaptation with balanced norms and three networks (TRIBE, Su et al., 2024).
///
/// # What it does
/// Batch norms keep statistics of every class, and use those that all classes would have together if they were equally frequent; so a
/// run of one class moves that class alone. Three networks have such statistics of their own. The teacher answers; its classes tell
/// the norms which statistics an image belongs to. The student sees a varied copy of the batch and learns the teacher's classes, where
/// the teacher is certain. Both have the same scales and shifts. The third network is the source with its norms moved to the target,
/// and the teacher's logits stay near its logits.
///
/// # When to use
/// Use it where classes come in runs, or some are rare, and domains change. It costs four forward passes and two backward passes for
/// each batch. A network without batch norms is refused, because the balanced norms are what it lives from. A class that never comes
/// keeps the source's statistics.
///
/// # Objective
/// `mean_i CE(z_i, argmax t_i) + 1/2 mean_ik (t_ik - s_ik)^2` over the samples with `H(t_i) < 0.05 ln K`; `t` are the teacher's
/// logits of the batch, `z` the student's of its copy, `s` the source's. Gradients pass through the statistics, and into the shared
/// scales and shifts through teacher and student.
///
/// # State it keeps
/// It keeps the class statistics of the three networks, which take three times as much memory as there are classes, times the running
/// statistics of the network; the learner keeps scales, shifts, Adam's moments and the statistics that predictions use.
///
/// # Deviations
/// None are known.
///
/// # Which logits are scored
/// The teacher's by its stored statistics: under predict-first before they move, as in the original; under adapt-first after it.
///
/// # References
/// `docs/methods.md`, TRIBE.
#[derive(Clone, Debug)]
pub struct Tribe {
    config: TribeConfig,
    classes: usize,
    state: State,
}

impl Tribe {
    /// Takes a step on a batch for which the teacher's scores are these.
    fn step(
        &mut self,
        learner: &mut Learner,
        batch: &Minibatch,
        scores: &Tensor<2>,
    ) -> Result<Learned> {
        let copies = copies("tribe", batch.views.as_ref())?.clone();
        let labels = classes(scores);
        let labels = PassLabels {
            labels: &labels,
            classes: self.classes,
        };
        let rule = KeptRule::Balanced {
            share: self.norm_share(),
            common: self.config.common_part,
        };
        let start = learner.source_norms();
        let source = {
            let network = learner.frozen_with(&learner.source_parameters());
            let keeper = self.state.source.keeper(&start, rule, labels);
            network.forward(batch.images.clone(), NormMode::Kept(&keeper))
        };
        let student = {
            let keeper = self.state.student.keeper(&start, rule, labels);
            let images = Tensor::from_inner(copies);
            learner.network().forward(images, NormMode::Kept(&keeper))
        };
        // The teacher comes last, so that the statistics which the network stores are the teacher's.
        let teacher = {
            let keeper = self.state.teacher.keeper(&start, rule, labels);
            let images = Tensor::from_inner(batch.images.clone());
            learner.network().forward(images, NormMode::Kept(&keeper))
        };
        let certain = self.certain(&teacher);
        let mut learned = Learned {
            accepted: certain.len(),
            considered: batch.ids.len(),
            ..Learned::one_step(Vec::new())
        };
        if certain.is_empty() {
            // Only a backward pass frees what the forward passes recorded.
            let _ = (student.sum() + teacher.sum()).backward();
            // Without a sample the gradient is zero, and the step coasts on its momentum.
            learner.step_along(&vec![0.0; learner.parameters().len()]);
            return Ok(learned);
        }
        let own = classes(&teacher);
        let own: Vec<usize> = certain.iter().map(|&row| own[row]).collect();
        let self_training = cross_entropy(select(student, &certain), &own);
        let distance = select(teacher, &certain) - select(Tensor::from_inner(source), &certain);
        let anchor = distance.square().mean() * self.config.anchor_weight;
        learned.losses = vec![
            ("self_training", value(&self_training)),
            ("anchor", value(&anchor)),
        ];
        learner.step(&(self_training + anchor));
        Ok(learned)
    }

    fn norm_share(&self) -> f64 {
        let rule = (0.0005 * self.classes as f64).clamp(0.01, 1.0);
        self.config.norm_share.unwrap_or(rule)
    }

    /// Finds the rows whose entropy is below the bound.
    fn certain(&self, logits: &Tensor<2>) -> Vec<usize> {
        let bound = self.config.entropy_margin * (self.classes as f64).ln();
        let entropies = rows(&entropies(logits.clone().without_autodiff()));
        let is_certain = |&row: &usize| f64::from(entropies[row]) < bound;
        (0..entropies.len()).filter(is_certain).collect()
    }
}

impl Method for Tribe {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        let teacher = learner.frozen();
        let scores = teacher.forward(batch.images.clone(), learner.predicts());
        self.step(learner, batch, &scores)
    }

    fn observe(&mut self, learner: &mut Learner, batch: &Minibatch, order: Prediction) -> Observed {
        let teacher = learner.frozen();
        let before = teacher.forward(batch.images.clone(), learner.predicts());
        let learned = self.step(learner, batch, &before)?;
        let scores = learner.scores(before, &batch.images, order);
        Ok((scores, learned))
    }

    fn state(&self) -> Vec<u8> {
        to_bytes(&self.state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.state = from_bytes(state)?;
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_an_image_grows_with_the_number_of_classes() {
        let share = |classes, norm_share| {
            let config = TribeConfig {
                norm_share,
                ..TribeConfig::default()
            };
            let method = Tribe {
                config,
                classes,
                state: State::default(),
            };
            method.norm_share()
        };
        for (classes, expected) in [(2, 0.01), (10, 0.01), (100, 0.05), (1000, 0.5), (9999, 1.0)] {
            assert!((share(classes, None) - expected).abs() < 1e-12);
        }
        assert_eq!(share(10, Some(0.2)), 0.2);
    }

    /// Student and teacher are one network, so whatever moves one moves the other; what they keep of the classes differs, because the
    /// student saw copies.
    #[test]
    fn three_networks_have_statistics_of_their_own() {
        let device = burn::tensor::Device::flex();
        let architecture = crate::backbone::Architecture::by_name("resnet20-cifar", 10).unwrap();
        let architecture = architecture.with_field("depth", "8").unwrap();
        let network = architecture.init(1, &device).unwrap();
        let config = TribeConfig {
            entropy_margin: 2.0,
            ..TribeConfig::default()
        };
        let (settings, _) = (ENTRY.build)(config, &network, None).unwrap();
        let mut learner = Learner::new(network, settings);
        let mut method = Tribe {
            config,
            classes: 10,
            state: State::default(),
        };
        let images = Tensor::random([4, 8, 8, 3], burn::tensor::Distribution::Default, &device);
        let batch = Minibatch {
            ids: vec![0, 1, 2, 3],
            views: Some(super::super::Views {
                images: images.clone() * 0.8,
                turns: Vec::new(),
            }),
            images,
        };
        let before = learner.parameters();
        for _ in 0..2 {
            // In the first step teacher and source are the same but for rounding.
            method.learn(&mut learner, &batch, &Stage::SINGLE).unwrap();
        }
        assert_ne!(learner.parameters(), before);
        let State {
            student,
            teacher,
            source,
        } = &method.state;
        assert!(student != teacher && teacher != source);
    }

    #[test]
    fn every_wrong_constant_is_named() {
        let config = TribeConfig {
            norm_share: Some(0.0),
            common_part: 1.5,
            entropy_margin: -1.0,
            anchor_weight: f64::NAN,
            ..TribeConfig::default()
        };
        let message = config.validate().unwrap_err().to_string();
        for name in [
            "`norm_share`",
            "`common_part`",
            "`entropy_margin`",
            "`anchor_weight`",
        ] {
            assert!(message.contains(name), "{name} in {message}");
        }
    }
}
