//! Test-time training methods, one file each.
//!
//! A [`Method`] learns from minibatches of unlabelled images and predicts. It never sees a label:
//! [`Minibatch`] has none. Which images are shown, how often and in which order, and when
//! predictions are taken, is the [protocol](crate::protocol)'s business.

mod bn;
mod config;
mod learner;
mod shot;
mod t3a;
mod tent;
mod test;
mod tfa;
mod ttac;
mod ttt_r;

use burn::tensor::Tensor;

pub use bn::{Bn, BnConfig, Statistics};
pub use config::{METHOD_NAMES, MethodConfig, Preset, Setting};
pub use learner::{Learner, NormUpdates};
pub use shot::{Shot, ShotConfig};
pub use t3a::{T3a, T3aConfig};
pub use tent::{Tent, TentConfig};
pub use test::Test;
pub use tfa::{Tfa, TfaConfig};
pub use ttac::{
    Assignment, ClassGate, EpochGate, GlobalPart, Posteriors, SourceKind, Ttac, TtacConfig,
};
pub use ttt_r::{TttR, TttRConfig};

use crate::Result;
use crate::archive::Arrays;
use crate::data::SampleId;

/// What a method sees of some samples.
#[derive(Clone, Debug)]
pub struct Minibatch {
    /// Which samples these are. The same sample has the same id whenever it comes again.
    pub ids: Vec<SampleId>,
    /// Normalised images, `[batch, height, width, 3]`, without gradients.
    pub images: Tensor<4>,
    /// Varied copies, if the method [wants](Method::wants) some.
    pub views: Option<Views>,
}

/// Varied copies of images.
#[derive(Clone, Debug)]
pub struct Views {
    /// Normalised, `[copies, height, width, 3]`. For contrastive learning all first views and then
    /// all second views; for rotations all copies of the first image, then of the second, and so on.
    pub images: Tensor<4>,
    /// By how many quarters each was turned; empty for contrastive views.
    pub turns: Vec<usize>,
}

/// Which varied copies a method needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// None.
    Nothing,
    /// Two SimCLR views of as many images, drawn on their own from the queue.
    Contrastive,
    /// So many cropped, flipped and turned copies of each image.
    Turned(usize),
}

/// Where in a protocol a minibatch comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The epoch over the queue (or the whole set), from one. Zero is the warm-up over the queue of methods
    /// that [ask](Method::warms_up) for it.
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

    /// An epoch over the queue; zero is the warm-up.
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
    /// The running norm statistics move, on the images or views the method learns from; nothing else does.
    Norms,
    /// Steps of the contrastive loss alone.
    Contrastive,
    /// Everything.
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
    /// The lesson of a pass, from one.
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

/// The queue of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// There is none: each batch is seen once.
    None,
    /// It holds fewer samples than it could.
    Filling,
    /// It is full.
    Full,
    /// It is the whole data set (several passes).
    Everything,
}

/// What a method made of a minibatch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Learned {
    /// Optimiser steps taken.
    pub updates: usize,
    /// Loss terms by name, as weighted in the sum.
    pub losses: Vec<(&'static str, f64)>,
    /// Samples whose pseudo-label was accepted.
    pub accepted: usize,
    /// Samples that were asked for one.
    pub considered: usize,
    /// Mean distance of the target's class means from those of their anchors, over the classes that
    /// were met; none for methods without such clusters.
    pub anchor_distance: Option<f64>,
    /// What somebody should know, e.g. a covariance that had to be mended.
    pub notes: Vec<String>,
}

impl Learned {
    /// Nothing was learned.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// One step down these losses.
    fn one_step(losses: Vec<(&'static str, f64)>) -> Self {
        Self {
            updates: 1,
            losses,
            ..Self::default()
        }
    }
}

/// A way to adapt a network to unlabelled data.
pub trait Method: Send {
    /// Its published name, in lower case.
    fn name(&self) -> &'static str;

    /// Which varied copies it needs.
    fn wants(&self) -> Wants {
        Wants::Nothing
    }

    /// Whether it makes use of an epoch zero over the queue, before the steps.
    fn warms_up(&self) -> bool {
        false
    }

    /// How it begins several passes over the whole set. Where there are no more passes than these, all of
    /// them learn everything.
    fn first_passes(&self) -> FirstPasses {
        FirstPasses::default()
    }

    /// Whether it can learn from the same sample again, from a queue.
    fn rehearses(&self) -> bool {
        true
    }

    /// Called before each epoch over the queue.
    fn begin_epoch(&mut self, _stage: &Stage) {}

    /// Learns from a minibatch.
    fn learn(&mut self, minibatch: &Minibatch, stage: &Stage) -> Result<Learned>;

    /// Scores of the classes, `[batch, classes]`. Predicting changes nothing.
    fn predict(&self, images: Tensor<4>) -> Tensor<2>;

    /// The features that [`predict`](Self::predict) would score, `[batch, features]`. For pictures of
    /// them, not for learning.
    fn features(&self, images: Tensor<4>) -> Tensor<2>;

    /// Learns from an arriving batch, then predicts it. For methods that do both image by image.
    fn learn_then_predict(
        &mut self,
        arriving: &Minibatch,
        stage: &Stage,
    ) -> Result<(Tensor<2>, Learned)> {
        let learned = self.learn(arriving, stage)?;
        Ok((self.predict(arriving.images.clone()), learned))
    }

    /// Predicts an arriving batch, then learns from it. For methods that can use one forward pass
    /// for both; the scores are those of [`predict`](Self::predict) before.
    fn predict_then_learn(
        &mut self,
        arriving: &Minibatch,
        stage: &Stage,
    ) -> Result<(Tensor<2>, Learned)> {
        let scores = self.predict(arriving.images.clone());
        Ok((scores, self.learn(arriving, stage)?))
    }

    /// These samples left the queue and will not come again.
    fn forget(&mut self, _ids: &[SampleId]) {}

    /// Back to the source, bit for bit: weights, running statistics, optimiser, everything learned.
    fn reset(&mut self);

    /// How far the parameters have moved from the source, relative to their length; none if they
    /// cannot move.
    fn drift(&self) -> Option<f64> {
        None
    }

    /// The network as it is now, by key; the source's if the method does not change it.
    fn weights(&self) -> std::collections::BTreeMap<String, burn::tensor::TensorData>;

    /// Adds everything learned to arrays.
    fn save(&self, arrays: &mut Arrays) -> Result<()>;

    /// Takes it back. The method has to be configured as the one that saved.
    fn load(&mut self, arrays: &mut Arrays) -> Result<()>;

    /// A copy with a life of its own.
    fn boxed_clone(&self) -> Box<dyn Method>;
}
