//! A method at work on a network.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{Tensor, TensorData};

use super::{
    Classifier, Head, Layers, Learned, Learner, LearnerConfig, Method, Minibatch, Needs,
    NormUpdates, Observed, Prediction, Stage, Unadapted,
};
use crate::Result;
use crate::archive::{Array, Arrays};
use crate::backbone::{Backbone, NormMode};
use crate::data::SampleId;
use crate::norms::NormReference;
use crate::shares::RecentShares;

/// A method together with the network it adapts. It is what [`MethodSpec::build`](super::MethodSpec::build) makes
/// and what a [`Session`](crate::Session) holds; all that methods share (going back, saving, cloning) is written
/// here, once.
pub struct Adapter {
    needs: Needs,
    learner: Learner,
    method: Box<dyn Method>,
    /// The method's own state before it learned anything.
    initial: Vec<u8>,
}

impl Clone for Adapter {
    fn clone(&self) -> Self {
        Self {
            needs: self.needs,
            learner: self.learner.clone(),
            method: self.method.boxed_clone(),
            initial: self.initial.clone(),
        }
    }
}

impl Adapter {
    /// Puts a method to work on a trained network. `needs` tells the protocol what to hand it.
    pub fn new<B: Backbone + Sync + 'static>(
        network: B,
        learner: LearnerConfig,
        method: Box<dyn Method>,
        needs: Needs,
    ) -> Self {
        Self::around(Learner::new(network, learner), method, needs)
    }

    /// Puts a method to work on a trained network whose norms start from the reference moments of the source, as the learner's
    /// configuration says.
    pub fn with_reference<B: Backbone + Sync + 'static>(
        network: B,
        learner: LearnerConfig,
        method: Box<dyn Method>,
        needs: Needs,
        reference: &NormReference,
    ) -> Result<Self> {
        let learner = Learner::with_reference(network, learner, reference)?;
        Ok(Self::around(learner, method, needs))
    }

    fn around(learner: Learner, method: Box<dyn Method>, needs: Needs) -> Self {
        Self {
            needs,
            learner,
            initial: method.state(),
            method,
        }
    }

    /// Returns what the method has to be handed.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Returns how norm statistics follow the target.
    pub fn norm_updates(&self) -> NormUpdates {
        self.learner.norm_updates()
    }

    /// Tells the method that an epoch over the queue, the set, or a single arriving batch begins.
    pub fn begin_epoch(&mut self, stage: &Stage) {
        self.method.begin_epoch(stage);
    }

    /// Learns from a minibatch.
    pub fn learn(&mut self, minibatch: &Minibatch, stage: &Stage) -> Result<Learned> {
        self.learner.begin(minibatch.ids.len());
        let learned = self.method.learn(&mut self.learner, minibatch, stage)?;
        if learned.updates == 0 {
            self.learner.discard();
        }
        Ok(learned)
    }

    /// Learns from an arriving batch and scores it, in the given order.
    pub fn observe(&mut self, batch: &Minibatch, order: Prediction) -> Observed {
        self.learner.begin(batch.ids.len());
        let (scores, learned) = self.method.observe(&mut self.learner, batch, order)?;
        if learned.updates == 0 {
            self.learner.discard();
        }
        Ok((scores, learned))
    }

    /// Scores normalised samples, `[batch, classes]`, and changes nothing.
    pub fn predict(&self, images: Tensor<4>) -> Tensor<2> {
        let scores = self.score(images.clone());
        match self.learner.shares() {
            Some(shares) => shares.finish(scores, || Some(self.features(images))),
            None => scores,
        }
    }

    /// Scores normalised samples without correcting them by the shares of the classes.
    pub(crate) fn score(&self, images: Tensor<4>) -> Tensor<2> {
        let network = self.method.answering(&self.learner);
        self.method
            .predict(network.as_ref(), self.learner.predicts(), images)
    }

    /// Corrects scores by the shares of the classes among recent samples from now on, or no longer.
    pub fn use_shares(&mut self, shares: Option<RecentShares>) {
        self.learner.use_shares(shares);
    }

    /// Makes the scores of an arriving batch those of its answer: they are corrected by the shares of the classes among recent samples,
    /// and agree with those of similar samples, where that was asked for, and are remembered. The features are computed if there are
    /// none yet and they are needed.
    pub(crate) fn answer(
        &mut self,
        scores: Tensor<2>,
        images: Tensor<4>,
        features: Option<Tensor<2>>,
    ) -> Tensor<2> {
        let shares = self.learner.shares();
        let agrees = shares.is_some_and(|shares| shares.agrees(&scores));
        let features = agrees.then(|| features.unwrap_or_else(|| self.features(images)));
        self.learner.answer(scores, features)
    }

    /// Computes the features that predictions are made from, `[batch, features]`, for pictures of them.
    pub fn features(&self, images: Tensor<4>) -> Tensor<2> {
        let mode = self.learner.predicts();
        let network = self.method.answering(&self.learner);
        network.features(images, mode)
    }

    /// Whether the answer to a sample does not depend on the other samples that are predicted with it, once answers are corrected by the
    /// shares of samples of before alone.
    pub fn predicts_alone(&self) -> bool {
        let shares = self.learner.shares();
        self.method.predicts_alone()
            && self.learner.predicts().is_running()
            && !shares.is_some_and(RecentShares::compares)
    }

    /// Tells the method that these samples left the queue and will not come again.
    pub fn forget(&mut self, ids: &[SampleId]) {
        self.method.forget(ids);
    }

    /// Goes back to the source, bit for bit: weights, running statistics, optimiser, everything learned.
    pub fn reset(&mut self) {
        self.learner.reset();
        let own = self.method.restore(&self.initial);
        own.expect("a method reads the state it wrote");
    }

    /// Measures how far the parameters have moved from the source, relative to their length; `None` for methods
    /// that move none.
    pub fn drift(&self) -> Option<f64> {
        self.learner.can_drift().then(|| self.learner.drift())
    }

    /// Returns the network as it is now, by key.
    pub fn weights(&self) -> BTreeMap<String, TensorData> {
        self.learner.weights()
    }

    /// Adds everything learned to arrays.
    pub fn save(&self, arrays: &mut Arrays) -> Result<()> {
        arrays.insert("method", Array::U8(self.method.state()));
        self.learner.save(arrays)
    }

    /// Takes back what [`save`](Self::save) added. The method has to be configured like the one that saved; if the
    /// arrays do not fit, the adapter stays as it was.
    pub fn load(&mut self, arrays: &mut Arrays) -> Result<()> {
        let own = arrays.u8("method")?;
        let mut method = self.method.boxed_clone();
        method.restore(&own)?;
        self.learner.load(arrays)?;
        self.method = method;
        Ok(())
    }

    /// Takes a snapshot that goes on predicting as the adapter does now, on any thread.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            network: self.method.answering(&self.learner).into(),
            mode: self.learner.predicts(),
            method: self.method.boxed_clone().into(),
            correction: self
                .learner
                .shares()
                .map(|shares| Correction::Recent(Arc::new(shares.clone()))),
        }
    }
}

/// Rows of features are scored in whole groups of this many, because the sums of a matrix product have another order where rows are few.
const ROWS: usize = 64;

/// A network whose scores of a sample do not depend on how many others there are.
struct Alone(Arc<dyn Classifier + Send + Sync>);

impl Classifier for Alone {
    fn features(&self, images: Tensor<4>, norm: NormMode) -> Tensor<2> {
        self.0.features(images, norm)
    }

    fn logits(&self, features: Tensor<2>) -> Tensor<2> {
        let [rows, length] = features.dims();
        let missing = rows.next_multiple_of(ROWS) - rows;
        let zeros = Tensor::zeros([missing, length], &features.device());
        let whole = Tensor::cat(vec![features, zeros], 0);
        let scores = whole.chunk(rows.div_ceil(ROWS), 0).into_iter();
        let scores = scores.map(|group| self.0.logits(group)).collect();
        Tensor::cat(scores, 0).slice_dim(0, 0..rows)
    }

    fn projection(&self, features: Tensor<2>) -> Option<Tensor<2>> {
        self.0.projection(features)
    }

    fn rotation(&self, images: Tensor<4>, norm: NormMode) -> Option<Tensor<2>> {
        self.0.rotation(images, norm)
    }

    fn head_weights(&self) -> Option<Tensor<2>> {
        self.0.head_weights()
    }

    fn num_features(&self) -> usize {
        self.0.num_features()
    }

    fn num_classes(&self) -> usize {
        self.0.num_classes()
    }

    fn has_layers(&self, layers: Layers) -> bool {
        self.0.has_layers(layers)
    }

    fn has(&self, head: Head) -> bool {
        self.0.has(head)
    }
}

/// How a snapshot corrects scores by the shares of the classes.
#[derive(Clone)]
enum Correction {
    /// By those among the samples of before and the ones that are predicted.
    Recent(Arc<RecentShares>),
    /// By what those among the samples of before add to the score of each class.
    Fixed(Arc<[f32]>),
}

/// The answers of an [`Adapter`] at one moment: immutable, cheap to clone, shared between threads.
#[derive(Clone)]
pub struct Snapshot {
    network: Arc<dyn Classifier + Send + Sync>,
    mode: NormMode<'static>,
    method: Arc<dyn Method>,
    correction: Option<Correction>,
}

impl Snapshot {
    /// Takes a snapshot of a network that answers as it is.
    pub(crate) fn of_source<B: Backbone + Sync + 'static>(network: B) -> Self {
        Self {
            network: Arc::new(network),
            mode: NormMode::Running,
            method: Arc::new(Unadapted),
            correction: None,
        }
    }

    /// Returns a snapshot that corrects scores by the shares of samples of before alone, and not by those that are predicted, and whose scores
    /// of a sample have the same bits in every batch.
    pub fn alone(self) -> Self {
        let network: Arc<dyn Classifier + Send + Sync> = Arc::new(Alone(self.network));
        let correction = self.correction.and_then(|correction| match correction {
            Correction::Recent(shares) => {
                shares.terms().map(|terms| Correction::Fixed(terms.into()))
            }
            fixed @ Correction::Fixed(_) => Some(fixed),
        });
        Self {
            network,
            correction,
            ..self
        }
    }

    /// Scores normalised samples, `[batch, classes]`.
    pub fn predict(&self, images: Tensor<4>) -> Tensor<2> {
        let network = self.network.as_ref();
        let scores = self.method.predict(network, self.mode, images.clone());
        match &self.correction {
            Some(Correction::Recent(shares)) => {
                shares.finish(scores, || Some(network.features(images, self.mode)))
            }
            Some(Correction::Fixed(terms)) => {
                let terms = Tensor::<1>::from_floats(&terms[..], &scores.device());
                scores + terms.unsqueeze()
            }
            None => scores,
        }
    }
}
