//! CoTTA: a student learns from the averaged answers of a teacher that follows it slowly, and forgets at random.

use burn::tensor::{Tensor, activation::log_softmax, activation::softmax};
use rand::Rng;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::learner::{from_bytes, rows, to_bytes};
use super::teacher::Teacher;
use super::terms::Terms;
use super::{
    Classifier, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, Observed, Prediction,
    Stage, Wants,
};
use crate::backbone::{Adaptable, NormMode};
use crate::data::BatchAugmentation;
use crate::optim::OptimiserConfig;
use crate::rng::Purpose;
use crate::{Error, Result, best};

pub(super) const ENTRY: Entry<CottaConfig> = Entry {
    variants: &[Variant {
        name: "cotta",
        about: "a slow teacher's averaged answers, weights restored at random",
        preset: |_, _| CottaConfig::default(),
    }],
    needs: |config| Needs {
        views: Wants::Augmented(config.copies, config.augmentation),
        // Statistics of a single image say nothing of the others.
        fewest_samples: 2,
        ..Needs::NETWORK
    },
    build: |config, _, _| {
        config.validate()?;
        let learner = LearnerConfig {
            adapts: Adaptable::All,
            predicts: NormMode::Batch,
            ..LearnerConfig::stepping(config.optimiser, config.learning_rate)
        };
        let method = Cotta {
            config,
            state: State::default(),
        };
        Ok((learner, Box::new(method)))
    },
};

/// Constants of [`Cotta`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CottaConfig {
    /// The optimiser; Adam for CIFAR, SGD for ImageNet.
    pub optimiser: OptimiserConfig,
    /// Its learning rate; 0.001 for CIFAR, 0.01 for ImageNet.
    pub learning_rate: f64,
    /// Over how many varied copies the teacher's answers are averaged, where the source is not confident.
    pub copies: usize,
    /// How the copies are varied.
    pub augmentation: BatchAugmentation,
    /// The source is confident if the mean of its largest probabilities reaches this; 0.92 for CIFAR-10, 0.72 for CIFAR-100, 0.1 for
    /// ImageNet.
    pub confidence_threshold: f64,
    /// Share of the student in the teacher after each step.
    pub teacher_share: f64,
    /// How likely each weight of the student returns to the source after each step; 0.01 for CIFAR, 0.001 for ImageNet.
    pub restore_probability: f64,
    /// Seeds the choice of the weights that return.
    pub seed: u64,
}

impl Default for CottaConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::ADAM,
            learning_rate: 1e-3,
            copies: 32,
            augmentation: BatchAugmentation::FULL,
            confidence_threshold: 0.92,
            teacher_share: 0.001,
            restore_probability: 0.01,
            seed: 0,
        }
    }
}

impl CottaConfig {
    fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        for (name, value) in [
            ("teacher_share", self.teacher_share),
            ("restore_probability", self.restore_probability),
        ] {
            if !(0.0..=1.0).contains(&value) {
                problems.push(format!("`{name}` must be 0 to 1, found {value}"));
            }
        }
        if self.copies == 0 {
            problems.push("`copies` must be at least 1, found 0".to_owned());
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

/// What CoTTA keeps besides the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct State {
    teacher: Teacher,
    /// Steps so far, which number the random choices.
    steps: u64,
}

/// Continual test-time adaptation (Wang et al., 2022).
///
/// # What it does
/// It trains all weights of a student to answer as its teacher does. The teacher is an average of the student over time, and where
/// the source is not confident of a batch the teacher's answers are averaged over varied copies. After each step some weights of the
/// student, chosen at random, return to the source. All networks use the statistics of the batch.
///
/// # When to use
/// It is made for streams whose domains change again and again. It is the dearest of all methods here: more than thirty forward
/// passes for each batch. It needs batches in which classes are mixed.
///
/// # Objective
/// `mean_i CE(z_i, softmax(t_i))`, `t` the teacher's logits: of the images themselves, or the mean over the copies.
///
/// # State it keeps
/// It keeps the weights of the teacher and the number of steps; the learner keeps those of the student and Adam's moments.
///
/// # Deviations
/// The copies are made whether they are needed or not. Under adapt-first, and for predictions apart from learning, the teacher answers
/// by one pass of the images themselves.
///
/// # Which logits are scored
/// Under predict-first the teacher's that the student learns from, as in the original; under adapt-first those of the teacher after the
/// step.
///
/// # References
/// `docs/methods.md`, CoTTA.
#[derive(Clone, Debug)]
pub struct Cotta {
    config: CottaConfig,
    state: State,
}

impl Cotta {
    /// Returns the teacher's logits of a batch: of the images, or where the source is not confident the mean over their copies.
    fn lesson(&self, learner: &Learner, batch: &Minibatch) -> Result<(Tensor<2>, bool)> {
        let source = learner.frozen_with(&learner.source_parameters());
        let scores = source.forward(batch.images.clone(), NormMode::Batch);
        let confident = confidence(&scores) >= self.config.confidence_threshold;
        let teacher = self.state.teacher.network(learner);
        if confident {
            let logits = teacher.forward(batch.images.clone(), NormMode::Batch);
            return Ok((logits, confident));
        }
        let views = batch.views.as_ref().ok_or_else(|| Error::Invalid {
            what: "minibatch",
            problem: "`cotta` needs varied copies of its images".to_owned(),
        })?;
        // Each copy has statistics of its own.
        let count = batch.ids.len();
        let answers = (0..self.config.copies).map(|copy| {
            let images = views.images.clone();
            let own = images.slice_dim(0, copy * count..(copy + 1) * count);
            teacher.forward(own, NormMode::Batch)
        });
        let sum = answers.reduce(|sum, answer| sum + answer);
        let sum = sum.expect("there is at least one copy");
        Ok((sum / self.config.copies as f64, confident))
    }

    /// Takes a step; returns the teacher's logits before it and what was learned.
    fn step(&mut self, learner: &mut Learner, batch: &Minibatch) -> Result<(Tensor<2>, Learned)> {
        let (lesson, confident) = self.lesson(learner, batch)?;
        let logits = learner.training_scores(batch.images.clone());
        let targets = Tensor::from_inner(softmax(lesson.clone(), 1));
        let agreement = -(targets * log_softmax(logits, 1)).sum_dim(1).mean();
        let mut terms = Terms::default();
        terms.add("agreement", agreement);
        let learned = terms.step(learner);
        self.state
            .teacher
            .follow(learner, self.config.teacher_share);
        self.restore_some(learner);
        let count = batch.ids.len();
        let learned = Learned {
            accepted: if confident { count } else { 0 },
            considered: count,
            ..learned
        };
        Ok((lesson, learned))
    }

    /// Returns some weights of the student, chosen at random, to the source.
    fn restore_some(&mut self, learner: &mut Learner) {
        let mut rng =
            Purpose::new(*b"cotta restores weights..").stream(self.config.seed, self.state.steps);
        self.state.steps += 1;
        // Of all numbers of 32 bits, this many are below the probability.
        let bound = (self.config.restore_probability * 2.0_f64.powi(32)) as u64;
        let mut weights = learner.parameters();
        for (weight, source) in weights.iter_mut().zip(learner.source_parameters()) {
            if u64::from(rng.next_u32()) < bound {
                *weight = source;
            }
        }
        learner.set_parameters(&weights);
    }
}

/// Returns the mean over a batch of the largest probability of each sample.
fn confidence(scores: &Tensor<2>) -> f64 {
    let [count, classes] = scores.dims();
    let probabilities = rows(&softmax(scores.clone(), 1));
    let largest = probabilities
        .chunks_exact(classes)
        .map(|row| f64::from(best(row).1));
    largest.sum::<f64>() / count.max(1) as f64
}

impl Method for Cotta {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        Ok(self.step(learner, batch)?.1)
    }

    fn answering(&self, learner: &Learner) -> Box<dyn Classifier + Send + Sync> {
        self.state.teacher.network(learner)
    }

    fn observe(&mut self, learner: &mut Learner, batch: &Minibatch, order: Prediction) -> Observed {
        let (before, learned) = self.step(learner, batch)?;
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
        self.state = from_bytes(state)?;
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}
