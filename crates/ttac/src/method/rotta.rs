//! RoTTA: a slow teacher with robust norm statistics answers, a student learns from a memory of balanced classes.

use burn::tensor::{Tensor, TensorData, activation::log_softmax, activation::softmax};
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::learner::{from_bytes, rows, to_bytes};
use super::memory::{Memory, Policy};
use super::teacher::Teacher;
use super::terms::Terms;
use super::{
    Classifier, Layers, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, Observed,
    Prediction, Stage, Views, Wants,
};
use crate::backbone::{Adaptable, NormMode};
use crate::data::BatchAugmentation;
use crate::norms::{KeptNorms, KeptRule, PassLabels};
use crate::optim::OptimiserConfig;
use crate::{Error, Result};

pub(super) const ENTRY: Entry<RottaConfig> = Entry {
    variants: &[Variant {
        name: "rotta",
        about: "a slow teacher, robust norms, a memory of balanced classes",
        preset: |_, _| RottaConfig::default(),
    }],
    needs: |config| Needs {
        layers: Some(Layers::Norms),
        views: Wants::Augmented(1, config.augmentation),
        // The memory takes the place of a queue.
        rehearses: false,
        ..Needs::NETWORK
    },
    build: |config, network, _| {
        config.validate()?;
        let learner = LearnerConfig {
            adapts: Adaptable::Affine,
            ..LearnerConfig::stepping(config.optimiser, config.learning_rate)
        };
        let state = State {
            teacher: Teacher::default(),
            teacher_norms: KeptNorms::default(),
            student_norms: KeptNorms::default(),
            memory: Memory::new(config.memory.capacity, network.num_classes()),
        };
        Ok((learner, Box::new(Rotta { config, state })))
    },
};

/// Constants of RoTTA's memory, which PeTTA shares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimelyMemory {
    /// How many samples there is room for.
    pub capacity: usize,
    /// How much age counts for leaving.
    pub timeliness_weight: f64,
    /// How much uncertainty counts for leaving.
    pub uncertainty_weight: f64,
}

impl Default for TimelyMemory {
    fn default() -> Self {
        Self {
            capacity: 64,
            timeliness_weight: 1.0,
            uncertainty_weight: 1.0,
        }
    }
}

impl TimelyMemory {
    pub(super) fn policy(&self) -> Policy {
        Policy::Timely {
            timeliness: self.timeliness_weight,
            uncertainty: self.uncertainty_weight,
        }
    }

    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.capacity == 0 {
            problems.push("`memory.capacity` must be at least 1, found 0".to_owned());
        }
        for (name, value) in [
            ("timeliness_weight", self.timeliness_weight),
            ("uncertainty_weight", self.uncertainty_weight),
        ] {
            if !(0.0..=1e6).contains(&value) {
                problems.push(format!(
                    "`memory.{name}` must be 0 to 1000000, found {value}"
                ));
            }
        }
        problems
    }
}

/// Constants of [`Rotta`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RottaConfig {
    /// The optimiser.
    pub optimiser: OptimiserConfig,
    /// Its learning rate.
    pub learning_rate: f64,
    /// Share of a pass over the memory in the norm statistics.
    pub norm_share: f64,
    /// The memory.
    pub memory: TimelyMemory,
    /// After how many samples there is a step.
    pub update_every: u64,
    /// Share of the student in the teacher after each step.
    pub teacher_share: f64,
    /// How the copies that the student sees are varied.
    pub augmentation: BatchAugmentation,
}

impl Default for RottaConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::ADAM,
            learning_rate: 1e-3,
            norm_share: 0.05,
            memory: TimelyMemory::default(),
            update_every: 64,
            teacher_share: 0.001,
            augmentation: BatchAugmentation::FULL,
        }
    }
}

impl RottaConfig {
    fn validate(&self) -> Result<()> {
        let mut problems = self.memory.problems();
        for (name, value) in [
            ("norm_share", self.norm_share),
            ("teacher_share", self.teacher_share),
        ] {
            if !(0.0..=1.0).contains(&value) {
                problems.push(format!("`{name}` must be 0 to 1, found {value}"));
            }
        }
        if self.update_every == 0 {
            problems.push("`update_every` must be at least 1, found 0".to_owned());
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

/// What RoTTA keeps besides the student.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    teacher: Teacher,
    teacher_norms: KeptNorms,
    student_norms: KeptNorms,
    memory: Memory,
}

/// Robust test-time adaptation (Yuan et al., 2023).
///
/// # What it does
/// A teacher answers, whose norm statistics and weights follow the stream slowly. Answered samples are offered to a memory, which
/// balances the predicted classes and prefers samples that are recent and certain. After every 64 samples a student learns, by scales
/// and shifts of the norms, to answer varied copies of the memory's images as the teacher answers the images; old ones count less.
///
/// # When to use
/// Use it where classes come in runs and domains change, so that a batch says little of the stream. It works with batches of any size,
/// also of one, and costs about three forward passes and a backward pass for 64 samples besides the answers. Over many domains the
/// student drifts; PeTTA is made for that.
///
/// # Objective
/// `mean_i E(a_i) CE(z_i, softmax(t_i))` over the memory, `t` the teacher's logits of the images, `z` the student's of their copies,
/// `a_i` the age over the capacity, `E(a) = exp(-a) / (1 + exp(-a))`.
///
/// # State it keeps
/// It keeps the memory, the weights of the teacher, and norm statistics of student and teacher; the learner keeps the student's
/// scales, shifts and Adam's moments.
///
/// # Deviations
/// A sample is varied once, together with the batch it came in, and keeps its copy in the memory; the authors' program varies the whole
/// memory anew for each step. In a network without batch norms student and teacher have no statistics of their own.
///
/// # Which logits are scored
/// The teacher's with its stored statistics: under predict-first before the samples are offered, as in the original, under adapt-first
/// after the steps that they lead to.
///
/// # References
/// `docs/methods.md`, RoTTA.
#[derive(Clone, Debug)]
pub struct Rotta {
    config: RottaConfig,
    state: State,
}

/// Returns how much a sample counts whose age is this part of the capacity.
fn recency(age: f64) -> f64 {
    1.0 / (1.0 + age.exp())
}

/// Returns the one varied copy of each image of a batch, or says that there is none.
pub(super) fn copies<'a>(name: &str, views: Option<&'a Views>) -> Result<&'a Tensor<4>> {
    let views = views.ok_or_else(|| Error::Invalid {
        what: "minibatch",
        problem: format!("`{name}` needs a varied copy of its images"),
    })?;
    Ok(&views.images)
}

/// No rule of this method asks for the classes of images.
pub(super) const UNLABELLED: PassLabels<'static> = PassLabels {
    labels: &[],
    classes: 0,
};

impl Rotta {
    /// Offers a batch that was answered by these scores to the memory, with the steps between.
    fn offer(
        &mut self,
        learner: &mut Learner,
        batch: &Minibatch,
        scores: Tensor<2>,
    ) -> Result<Learned> {
        let copies = copies("rotta", batch.views.as_ref())?;
        let probabilities = rows(&softmax(scores, 1));
        let memory = &mut self.state.memory;
        let samples = memory.samples(&batch.images, Some(copies), &probabilities);
        let mut learned = Learned::nothing();
        for sample in samples {
            self.state.memory.offer(self.config.memory.policy(), sample);
            if self
                .state
                .memory
                .offers()
                .is_multiple_of(self.config.update_every)
            {
                let step = self.step(learner, &batch.images);
                learned = Learned {
                    updates: learned.updates + step.updates,
                    ..step
                };
            }
        }
        Ok(learned)
    }

    /// Takes a step on the memory, which is not empty; `like` are images on the device that networks take.
    fn step(&mut self, learner: &mut Learner, like: &Tensor<4>) -> Learned {
        let device = like.device();
        let source = learner.source_norms();
        let State {
            teacher,
            teacher_norms,
            student_norms,
            memory,
        } = &mut self.state;
        let rule = KeptRule::Robust {
            share: self.config.norm_share,
        };
        let answers = {
            let network = teacher.network_with(teacher_norms, learner);
            let keeper = teacher_norms.keeper(&source, rule, UNLABELLED);
            network.forward(memory.images(&device), NormMode::Kept(&keeper))
        };
        let logits = {
            let keeper = student_norms.keeper(&source, rule, UNLABELLED);
            let copies = Tensor::from_inner(memory.copies(&device));
            learner.network().forward(copies, NormMode::Kept(&keeper))
        };
        let recency: Vec<f32> = memory
            .ages()
            .into_iter()
            .map(|age| recency(age) as f32)
            .collect();
        let recency = TensorData::new(recency, [memory.len(), 1]);
        let recency = Tensor::<2>::from_data(recency, &logits.device());
        let targets = Tensor::from_inner(softmax(answers, 1));
        let agreement = -(targets * log_softmax(logits, 1)).sum_dim(1);
        let mut terms = Terms::default();
        terms.add("agreement", (agreement * recency).mean());
        let learned = terms.step(learner);
        teacher.follow(learner, self.config.teacher_share);
        learned
    }
}

impl Method for Rotta {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        let teacher = self.answering(learner);
        let scores = teacher.forward(batch.images.clone(), learner.predicts());
        self.offer(learner, batch, scores)
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
        let before = teacher.forward(batch.images.clone(), learner.predicts());
        let learned = self.offer(learner, batch, before.clone())?;
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

    #[test]
    fn old_samples_count_less() {
        assert!((recency(0.0) - 0.5).abs() < 1e-12);
        // The expected value has six decimals.
        assert!((recency(1.0) - 0.268_941).abs() < 1e-6);
    }

    #[test]
    fn every_wrong_constant_is_named() {
        let config = RottaConfig {
            norm_share: -0.1,
            teacher_share: 2.0,
            update_every: 0,
            memory: TimelyMemory {
                capacity: 0,
                timeliness_weight: f64::NAN,
                uncertainty_weight: -1.0,
            },
            ..RottaConfig::default()
        };
        let message = config.validate().unwrap_err().to_string();
        for name in [
            "`norm_share`",
            "`teacher_share`",
            "`update_every`",
            "`memory.capacity`",
            "`memory.timeliness_weight`",
            "`memory.uncertainty_weight`",
        ] {
            assert!(message.contains(name), "{name} in {message}");
        }
    }
}
