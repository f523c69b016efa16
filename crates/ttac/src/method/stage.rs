//! What a protocol hands a method, and what comes back.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::data::SampleId;

/// The samples of one learning step. It has no labels, because a method must never see any.
#[derive(Clone, Debug)]
pub struct Minibatch {
    /// Identifies each sample. A sample that comes again has the same id again.
    pub ids: Vec<SampleId>,
    /// Normalised samples, `[batch, height, width, 3]`, without gradients.
    pub images: Tensor<4>,
    /// Varied copies, if the method [needs](super::Needs::views) some.
    pub views: Option<Views>,
}

/// Varied copies of images.
#[derive(Clone, Debug)]
pub struct Views {
    /// Normalised, `[copies, height, width, 3]`. For contrastive learning all first views come before all second
    /// views; for rotations and mixed copies all those of the first image come before those of the second, and so on. Of a batch that was
    /// augmented as a whole, all images of the first copy come before those of the second, and all weak copies before all strong ones.
    pub images: Tensor<4>,
    /// By how many quarters each copy was turned; empty unless copies are turned.
    pub turns: Vec<usize>,
}

/// When a batch is predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prediction {
    /// The batch is predicted after it was learned from, as in the authors' program.
    #[default]
    AdaptFirst,
    /// The batch is predicted before it is learned from, as in the paper's text and in a service that answers at
    /// once.
    PredictFirst,
}

/// Where in a protocol a minibatch comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The epoch over the queue (or the whole set), counted from one. Epoch zero is the warm-up over the queue of
    /// methods that [ask](super::Needs::warm_up) for it.
    pub epoch: usize,
    /// What may be learned.
    pub lesson: Lesson,
    /// How many epochs the protocol has at most.
    pub epochs: usize,
    /// Whether there is a queue, and whether it is full.
    pub queue: QueueState,
}

impl Stage {
    /// The only step on an arriving batch, without a queue.
    pub const SINGLE: Self = Self {
        epoch: 1,
        lesson: Lesson::All,
        epochs: 1,
        queue: QueueState::None,
    };

    /// Describes an epoch over the queue; epoch zero is the warm-up.
    pub fn rehearsal(epoch: usize, epochs: usize, queue: QueueState) -> Self {
        let lesson = match epoch {
            0 => Lesson::Norms,
            _ => Lesson::All,
        };
        Self {
            epoch,
            lesson,
            epochs,
            queue,
        }
    }
}

/// What a method learns at a stage. The published programs begin several passes gently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lesson {
    /// Only the running norm statistics move, on the images or views the method learns from.
    Norms,
    /// The method steps down the contrastive loss alone.
    Contrastive,
    /// The method learns everything it can.
    All,
}

/// How many of several passes begin with which [`Lesson`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstPasses {
    /// Passes that move the norm statistics alone.
    pub norms: usize,
    /// Passes after them that take the contrastive loss alone.
    pub contrastive: usize,
}

impl FirstPasses {
    /// Returns the lesson of a pass, counted from one.
    pub fn lesson(self, pass: usize) -> Lesson {
        if pass <= self.norms {
            Lesson::Norms
        } else if pass <= self.norms + self.contrastive {
            Lesson::Contrastive
        } else {
            Lesson::All
        }
    }
}

/// The state of a protocol's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// There is no queue: each batch is seen once.
    None,
    /// The queue holds fewer samples than it could.
    Filling,
    /// The queue is full.
    Full,
    /// The queue is the whole data set (several passes).
    Everything,
}

/// What a method made of a minibatch.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Learned {
    /// Optimiser steps taken.
    pub updates: usize,
    /// Loss terms by name, as weighted in the sum. A term whose value was not computed is not listed.
    pub losses: Vec<(&'static str, f64)>,
    /// Samples whose pseudo-label was accepted.
    pub accepted: usize,
    /// Samples that were asked for a pseudo-label.
    pub considered: usize,
    /// Mean distance of the target's class means from those of their anchors, over the classes met so far; `None`
    /// for methods without such clusters.
    pub anchor_distance: Option<f64>,
    /// Names a gradient that was not finite, so that its step was left out.
    pub not_finite: Option<&'static str>,
    /// What somebody should know, e.g. a covariance that had to be mended.
    pub notes: Vec<String>,
}

impl Learned {
    /// Says that nothing was learned.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Says that one step was taken down these losses.
    pub fn one_step(losses: Vec<(&'static str, f64)>) -> Self {
        Self {
            updates: 1,
            losses,
            ..Self::default()
        }
    }
}
