//! Training of a network on labelled source images, before it is adapted.
//!
//! A [`Trainer`] minimises one of three objectives over a labelled data set:
//!
//! - `plain`: cross-entropy;
//! - `simclr`: `0.9 * (CE(x1) + CE(x2)) + 0.1 * contrastive(x1, x2)` over two augmented views;
//! - `rotation`: `CE(x) + CE_rotation(rotations of x)`, the second through the rotation head.
//!
//! Everything random (initial weights, order, augmentation, held-out images) is a function of the
//! seed, the epoch and the sample, never of what ran before, so a [`Trainer`] that was stopped at any
//! step and [resumed](Trainer::resume) ends with the same bits.

mod loader;
mod objective;
mod ranks;
mod schedule;
mod state;
mod trainer;

use serde::{Deserialize, Serialize};

pub use loader::Prepared;
pub use objective::{Objectives, objective};
pub use ranks::{Alone, Ranks};
pub use schedule::Schedule;
pub use trainer::{Ended, EpochReport, StepReport, Trainer, Watch};

use crate::checkpoint::{Augmentation, Objective};
use crate::{Error, Result};

/// The constants of a training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// What is minimised.
    pub objective: Objective,
    /// The number of passes over the training images.
    pub epochs: usize,
    /// The number of images in a step. Images that do not fill a batch at the end of an epoch are left
    /// out until the next shuffle.
    pub batch_size: usize,
    /// Into how many parts of the same size a batch is cut, each with norm statistics of its own. Several processes share them, and the
    /// result depends on the parts and not on the processes.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub shards: usize,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// The number of epochs over which the learning rate rises from zero to its highest value.
    pub warm_up_epochs: f64,
    /// How the learning rate falls after that.
    pub schedule: Schedule,
    /// How the optimiser moves the parameters.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rule: Rule,
    /// The share of the old direction that SGD keeps.
    pub momentum: f32,
    /// The pull of all parameters towards zero.
    pub weight_decay: f32,
    /// The share of a label's weight that is spread over all classes.
    pub label_smoothing: f32,
    /// Whether that share is spread over the other classes only, as DGCNN is trained.
    #[serde(default, skip_serializing_if = "is_default")]
    pub smooth_others: bool,
    /// How the images are varied. The contrastive views of `simclr` are always [`Augmentation::Simclr`].
    pub augmentation: Augmentation,
    /// Which turned images the rotation head sees.
    pub rotations: Rotations,
    /// How many training images are kept back to measure the error on.
    pub held_out: usize,
    /// The seed of everything random.
    pub seed: u64,
}

/// How the optimiser moves the parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Stochastic gradient descent with momentum.
    #[default]
    Sgd,
    /// Adam with PyTorch's constants; `momentum` has no meaning.
    Adam,
}

fn one() -> usize {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_one(count: &usize) -> bool {
    *count == 1
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Which turned images the rotation head sees in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rotations {
    /// All four rotations of each image.
    All,
    /// One rotation of each image, drawn at random, at less than half the cost.
    Random,
}

impl TrainConfig {
    /// Returns the constants for images: SGD with momentum 0.9, weight decay 5e-4 and a cosine from 0.1
    /// over batches of 128; for `simclr` batches of 256 and weight decay 1e-4, as published.
    pub fn new(objective: Objective, epochs: usize) -> Self {
        let joint = objective == Objective::Simclr;
        Self {
            objective,
            epochs,
            batch_size: if joint { 256 } else { 128 },
            shards: 1,
            learning_rate: 0.1,
            warm_up_epochs: 1.0,
            schedule: Schedule::Cosine { floor: 1e-3 },
            rule: Rule::Sgd,
            momentum: 0.9,
            weight_decay: if joint { 1e-4 } else { 5e-4 },
            label_smoothing: 0.0,
            smooth_others: false,
            augmentation: if joint {
                Augmentation::Simclr
            } else {
                Augmentation::PadCropFlip
            },
            rotations: Rotations::All,
            held_out: 1000,
            seed: 0,
        }
    }

    /// Returns the constants that DGCNN is trained with on clouds: Adam with a rate of 1e-3 that is
    /// halved when the loss has not fallen for ten epochs, weight decay 1e-4, batches of 32, and a fifth
    /// of a label's weight on the other classes. The published run has 300 epochs.
    pub fn clouds(epochs: usize) -> Self {
        Self {
            batch_size: 32,
            learning_rate: 1e-3,
            warm_up_epochs: 0.0,
            schedule: Schedule::PLATEAU,
            rule: Rule::Adam,
            weight_decay: 1e-4,
            label_smoothing: 0.2,
            smooth_others: true,
            augmentation: Augmentation::ScaleShift,
            held_out: 500,
            ..Self::new(Objective::Plain, epochs)
        }
    }

    /// Checks every value; the error lists all that are wrong.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        let mut check = |holds: bool, problem: &str| {
            if !holds {
                problems.push(problem.to_owned());
            }
        };
        check(self.epochs > 0, "`epochs` must be at least 1");
        check(self.batch_size > 0, "`batch_size` must be at least 1");
        check(
            self.shards > 0 && self.batch_size.is_multiple_of(self.shards),
            "`shards` must be at least 1 and divide `batch_size`",
        );
        let rate = self.learning_rate;
        check(
            rate.is_finite() && rate > 0.0,
            "`learning_rate` must be positive",
        );
        check(
            self.warm_up_epochs >= 0.0 && self.warm_up_epochs < self.epochs as f64,
            "`warm_up_epochs` must be at least 0 and less than `epochs`",
        );
        let share = |x: f32| (0.0..1.0).contains(&x);
        check(share(self.momentum), "`momentum` must be in 0..1");
        check(share(self.weight_decay), "`weight_decay` must be in 0..1");
        check(
            share(self.label_smoothing),
            "`label_smoothing` must be in 0..1",
        );
        let simclr =
            (self.objective == Objective::Simclr) == (self.augmentation == Augmentation::Simclr);
        check(
            simclr,
            "the objective `simclr` goes with the augmentation `simclr`, and no other does",
        );
        if self.augmentation == Augmentation::Unknown {
            problems.push("`augmentation` must be known".to_owned());
        }
        problems.extend(self.schedule.problems(self.epochs));
        Error::invalid_if_any("training configuration", &problems)
    }
}
