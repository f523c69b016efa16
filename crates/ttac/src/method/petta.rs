//! PeTTA: RoTTA that notices how far features have drifted, and holds on to the source the more.

use burn::tensor::{Tensor, activation::log_softmax, activation::softmax};
use serde::{Deserialize, Serialize};

use super::direction::hold;
use super::entry::{Entry, Variant};
use super::learner::{classes, from_bytes, rows, to_bytes, value};
use super::memory::Memory;
use super::rotta::{TimelyMemory, UNLABELLED, copies};
use super::teacher::Teacher;
use super::{
    Classifier, Layers, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, Observed,
    Prediction, Stage, Wants,
};
use crate::backbone::{Adaptable, NormMode};
use crate::data::BatchAugmentation;
use crate::loss::symmetric_cross_entropies;
use crate::norms::{KeptNorms, KeptRule};
use crate::optim::OptimiserConfig;
use crate::stats::SourceStatistics;
use crate::{Error, Result};

pub(super) const ENTRY: Entry<PettaConfig> = Entry {
    variants: &[Variant {
        name: "petta",
        about: "RoTTA, held near the source as its features drift",
        preset: |_, _| PettaConfig::default(),
    }],
    needs: |config| Needs {
        anchors: true,
        layers: Some(Layers::Norms),
        views: Wants::Augmented(1, config.augmentation),
        // The memory takes the place of a queue.
        rehearses: false,
        ..Needs::NETWORK
    },
    build: |config, network, anchors| {
        config.validate()?;
        let learner = LearnerConfig {
            adapts: Adaptable::Affine,
            ..LearnerConfig::stepping(config.optimiser, config.learning_rate)
        };
        let anchors = Anchors::of(anchors.expect("needs were checked"));
        let state = State {
            teacher: Teacher::default(),
            teacher_norms: KeptNorms::default(),
            student_norms: KeptNorms::default(),
            source_norms: KeptNorms::default(),
            memory: Memory::new(config.memory.capacity, network.num_classes()),
            centres: anchors.means.clone(),
        };
        let method = Petta {
            config,
            anchors,
            state,
        };
        Ok((learner, Box::new(method)))
    },
};

/// By which cross-entropy the student learns from its teacher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TeacherLoss {
    /// The symmetric one, of the images and of their copies, as for CIFAR.
    #[default]
    Symmetric,
    /// That of the copies against the teacher's answers, as for ImageNet.
    Plain,
}

/// Constants of [`Petta`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PettaConfig {
    /// The optimiser.
    pub optimiser: OptimiserConfig,
    /// Its learning rate.
    pub learning_rate: f64,
    /// Share of a pass over the memory in the norm statistics.
    pub norm_share: f64,
    /// The memory.
    pub memory: TimelyMemory,
    /// Share of the student in the teacher after each step, where features have not drifted.
    pub teacher_share: f64,
    /// By which loss the student learns from the teacher.
    pub teacher_loss: TeacherLoss,
    /// Weight of the distance to the source's parameters, where features have drifted far.
    pub parameter_weight: f64,
    /// Weight of the cross-entropy against the source's answers.
    pub anchor_weight: f64,
    /// Share of a batch in the mean features of the classes.
    pub centre_share: f64,
    /// How the copies that the student sees are varied.
    pub augmentation: BatchAugmentation,
}

impl Default for PettaConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::ADAM,
            learning_rate: 1e-3,
            norm_share: 0.05,
            memory: TimelyMemory::default(),
            teacher_share: 0.001,
            teacher_loss: TeacherLoss::Symmetric,
            parameter_weight: 10.0,
            anchor_weight: 1.0,
            centre_share: 0.05,
            augmentation: BatchAugmentation::FULL,
        }
    }
}

impl PettaConfig {
    fn validate(&self) -> Result<()> {
        let mut problems = self.memory.problems();
        for (name, value) in [
            ("norm_share", self.norm_share),
            ("teacher_share", self.teacher_share),
            ("centre_share", self.centre_share),
        ] {
            if !(0.0..=1.0).contains(&value) {
                problems.push(format!("`{name}` must be 0 to 1, found {value}"));
            }
        }
        for (name, value) in [
            ("parameter_weight", self.parameter_weight),
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

/// The mean feature of each class of the source and its variances, `[K][D]` each.
#[derive(Clone, Debug)]
struct Anchors {
    means: Vec<Vec<f64>>,
    variances: Vec<Vec<f64>>,
}

impl Anchors {
    fn of(source: &SourceStatistics) -> Self {
        let classes = || source.classes.iter();
        let diagonal = |class: &crate::stats::Gaussian| {
            let covariance = class.covariance();
            covariance.diagonal(class.dimension())
        };
        Self {
            means: classes().map(|class| class.mean().to_vec()).collect(),
            variances: classes().map(diagonal).collect(),
        }
    }

    /// Returns how far the centres of some classes have drifted, from 0 to 1: `1 - exp(-d)` with `d` the mean over these classes and
    /// their features of the squared distance over the variance.
    fn drift(&self, centres: &[Vec<f64>], among: &[usize]) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0);
        for &class in among {
            let anchors = self.means[class].iter().zip(&self.variances[class]);
            for (centre, (mean, variance)) in centres[class].iter().zip(anchors) {
                sum += (centre - mean).powi(2) / (variance + 1e-6);
                count += 1.0;
            }
        }
        1.0 - (-sum / f64::max(count, 1.0)).exp()
    }
}

/// What PeTTA keeps besides the student.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    teacher: Teacher,
    teacher_norms: KeptNorms,
    student_norms: KeptNorms,
    source_norms: KeptNorms,
    memory: Memory,
    /// The mean feature of each class, `[K][D]`.
    centres: Vec<Vec<f64>>,
}

/// Persistent test-time adaptation (PeTTA, Hoang et al., 2024).
///
/// # What it does
/// It works as RoTTA does, with a teacher, robust norm statistics and a memory of balanced classes, but takes a step for every batch.
/// Averages of the teacher's features tell how far each class has drifted from the source's. The farther it has, the more strongly the
/// student's parameters are held at the source's direction, and the slower the teacher follows. The student also agrees with the source,
/// whose norms are moved to the target.
///
/// # When to use
/// Use it on streams without an end, whose domains come again and again: RoTTA breaks down on these. It needs source statistics. A
/// batch costs five forward passes and two backward passes over the memory besides the answers, so small batches are dear.
///
/// # Objective
/// `mean_i (SCE(z_i, t_i) + SCE(z'_i, t_i)) / 2 + 10 g R + mean_i CE(z'_i, softmax(s_i))` over the memory; `z` are the student's
/// logits of the images, `z'` of their copies, `t` the teacher's, `s` the source's, `R = -mean_j cos(theta_j, theta0_j)` over the
/// trained vectors, and `g = 1 - exp(-d)` the drift.
///
/// # State it keeps
/// It keeps the memory, the weights of the teacher, the norm statistics of three networks and the mean features of the classes; the
/// learner keeps the student's scales, shifts and Adam's moments.
///
/// # Deviations
/// A sample is varied once, as in RoTTA. The source's features are those of the anchors, where the authors' program takes the clean test
/// images; their variances are biased.
///
/// # Which logits are scored
/// The teacher's by its stored statistics: under predict-first before the batch is offered, as in the original, under adapt-first after
/// the step.
///
/// # References
/// `docs/methods.md`, PeTTA.
#[derive(Clone, Debug)]
pub struct Petta {
    config: PettaConfig,
    anchors: Anchors,
    state: State,
}

/// The logits of a step's images.
struct Logits {
    /// The student's of the images; none where the loss does not ask for them.
    plain: Option<Tensor<2>>,
    /// The student's of the copies.
    varied: Tensor<2>,
    /// The teacher's of the images.
    teacher: Tensor<2>,
    /// The source's of the images.
    source: Tensor<2>,
}

impl Logits {
    /// Returns how far the student is from the teacher, and from the source with a weight.
    fn losses(self, anchor_weight: f64) -> [Tensor<1>; 2] {
        let against = |logits: Tensor<2>, answers: Tensor<2>| {
            let targets = Tensor::from_inner(softmax(answers, 1));
            -(targets * log_softmax(logits, 1)).sum_dim(1).mean()
        };
        let agreement = match self.plain {
            Some(plain) => {
                let teacher = Tensor::from_inner(self.teacher);
                let both = symmetric_cross_entropies(plain, teacher.clone())
                    + symmetric_cross_entropies(self.varied.clone(), teacher);
                both.mean() * 0.5
            }
            None => against(self.varied.clone(), self.teacher),
        };
        [agreement, against(self.varied, self.source) * anchor_weight]
    }
}

impl Petta {
    /// Offers an answered batch to the memory and takes a step on it. `features` and `scores` are the teacher's.
    fn step(
        &mut self,
        learner: &mut Learner,
        batch: &Minibatch,
        features: &Tensor<2>,
        scores: &Tensor<2>,
    ) -> Result<Learned> {
        let copies = copies("petta", batch.views.as_ref())?;
        let probabilities = rows(&softmax(scores.clone(), 1));
        let memory = &mut self.state.memory;
        for sample in memory.samples(&batch.images, Some(copies), &probabilities) {
            memory.offer(self.config.memory.policy(), sample);
        }
        let logits = self.logits(learner, &batch.images);
        let labels = classes(scores);
        let drift = self.drift(&rows(features), &labels);

        let [agreement, anchor] = logits.losses(self.config.anchor_weight);
        let mut losses = vec![("agreement", value(&agreement)), ("anchor", value(&anchor))];
        let mut gradient = learner.gradient(&(agreement + anchor));
        let weight = self.config.parameter_weight * drift;
        losses.push(("parameters", hold(learner, weight, &mut gradient)));
        learner.step_along(&gradient);
        let share = self.config.teacher_share * (1.0 - drift);
        self.state.teacher.follow(learner, share);
        Ok(Learned::one_step(losses))
    }

    /// Makes the passes over the memory, in which norm statistics move; `like` are images on the device that networks take.
    fn logits(&mut self, learner: &Learner, like: &Tensor<4>) -> Logits {
        let State {
            teacher,
            teacher_norms,
            student_norms,
            source_norms,
            memory,
            ..
        } = &mut self.state;
        let device = like.device();
        let start = learner.source_norms();
        let rule = KeptRule::Robust {
            share: self.config.norm_share,
        };
        let images = memory.images(&device);
        let teacher = {
            let network = teacher.network_with(teacher_norms, learner);
            let keeper = teacher_norms.keeper(&start, rule, UNLABELLED);
            network.forward(images.clone(), NormMode::Kept(&keeper))
        };
        let source = {
            let network = learner.frozen_with(&learner.source_parameters());
            let keeper = source_norms.keeper(&start, rule, UNLABELLED);
            network.forward(images.clone(), NormMode::Kept(&keeper))
        };
        let mut student = |images: Tensor<4>| {
            let keeper = student_norms.keeper(&start, rule, UNLABELLED);
            let images = Tensor::from_inner(images);
            learner.network().forward(images, NormMode::Kept(&keeper))
        };
        let symmetric = self.config.teacher_loss == TeacherLoss::Symmetric;
        Logits {
            plain: symmetric.then(|| student(images)),
            varied: student(memory.copies(&device)),
            teacher,
            source,
        }
    }

    /// Returns how far the classes of a batch had drifted before it, and moves their centres.
    fn drift(&mut self, features: &[f32], labels: &[usize]) -> f64 {
        let mut seen = labels.to_vec();
        seen.sort_unstable();
        seen.dedup();
        let drift = self.anchors.drift(&self.state.centres, &seen);
        let length = features.len() / labels.len().max(1);
        for class in seen {
            let rows = features.chunks_exact(length).zip(labels);
            let own: Vec<&[f32]> = rows.filter(|(_, l)| **l == class).map(|(f, _)| f).collect();
            for (feature, centre) in self.state.centres[class].iter_mut().enumerate() {
                let sum: f64 = own.iter().map(|row| f64::from(row[feature])).sum();
                *centre += self.config.centre_share * (sum / own.len() as f64 - *centre);
            }
        }
        drift
    }
}

impl Method for Petta {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        let teacher = self.answering(learner);
        let features = teacher.features(batch.images.clone(), learner.predicts());
        let scores = teacher.logits(features.clone());
        self.step(learner, batch, &features, &scores)
    }

    fn answering(&self, learner: &Learner) -> Box<dyn Classifier + Send + Sync> {
        let State {
            teacher,
            teacher_norms,
            ..
        } = &self.state;
        teacher.network_with(teacher_norms, learner)
    }

    fn observe(&mut self, learner: &mut Learner, batch: &Minibatch, order: Prediction) -> Observed {
        let teacher = self.answering(learner);
        let features = teacher.features(batch.images.clone(), learner.predicts());
        let before = teacher.logits(features.clone());
        let learned = self.step(learner, batch, &features, &before)?;
        let scores = match order {
            Prediction::PredictFirst => before,
            Prediction::AdaptFirst => {
                let teacher = self.answering(learner);
                teacher.forward(batch.images.clone(), learner.predicts())
            }
        };
        Ok((scores, learned))
    }

    fn state(&self) -> Vec<u8> {
        to_bytes(&self.state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let state: State = from_bytes(state)?;
        self.state.memory.check(&state.memory)?;
        let size = |centres: &[Vec<f64>]| centres.iter().map(Vec::len).collect::<Vec<_>>();
        if size(&state.centres) != size(&self.state.centres) {
            return Err(Error::Mismatch {
                what: "saved mean features".to_owned(),
                expected: format!("those of {} classes", self.state.centres.len()),
                found: format!("{} of other lengths", state.centres.len()),
            });
        }
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

    fn anchors() -> Anchors {
        Anchors {
            means: vec![vec![1.0, 2.0], vec![0.0, 0.0]],
            variances: vec![vec![4.0, 1.0], vec![1.0, 1.0]],
        }
    }

    #[test]
    fn nothing_has_drifted_at_the_start() {
        let anchors = anchors();
        assert_eq!(anchors.drift(&anchors.means, &[0, 1]), 0.0);
    }

    /// By hand: squared distances over variances of 1 and 4 in the first class, 0 and 0 in the second.
    #[test]
    fn drift_is_a_mean_over_classes_that_came_and_features() {
        let anchors = anchors();
        let centres = [vec![3.0, 4.0], vec![0.0, 0.0]];
        for (among, distance) in [(&[0][..], 2.5), (&[0, 1], 1.25), (&[1], 0.0)] {
            let expected = 1.0 - f64::exp(-distance);
            // Variances are raised by 1e-6.
            assert!((anchors.drift(&centres, among) - expected).abs() < 2e-6);
        }
    }

    #[test]
    fn every_wrong_constant_is_named() {
        let config = PettaConfig {
            norm_share: -0.1,
            teacher_share: 2.0,
            centre_share: 1.1,
            parameter_weight: -1.0,
            anchor_weight: f64::NAN,
            ..PettaConfig::default()
        };
        let message = config.validate().unwrap_err().to_string();
        for name in [
            "`norm_share`",
            "`teacher_share`",
            "`centre_share`",
            "`parameter_weight`",
            "`anchor_weight`",
        ] {
            assert!(message.contains(name), "{name} in {message}");
        }
    }
}
