//! A network that is being adapted, with its optimiser and the way back to the source.

use std::collections::BTreeMap;

use burn::module::{ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::classifier::Classifier;
use super::ensemble::towards_source;
use super::{Prediction, Preset, parameters as trained};
use crate::archive::{Array, Arrays};
use crate::backbone::{
    Adaptable, Backbone, NormMode, ParameterKind, load_tensors, parameters, tensors,
};
use crate::norms::{Following, NormFollow, NormReference, SourceNorms};
use crate::optim::{Optimiser, OptimiserConfig};
use crate::shares::RecentShares;
use crate::{Error, Result, best};

/// How the running norm statistics follow the target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NormUpdates {
    /// Share of the newest batch in the running statistics, with the rule `batches`; with a prior, the least share.
    pub momentum: f64,
    /// With a warm start the source counts like this many batches before the t-th target batch, and all
    /// target batches count alike, so the newest one has the share `max(momentum, 1 / (t + prior))`. Without
    /// one the share is always `momentum`, as in the released program.
    pub prior_batches: Option<f64>,
    /// Whether the norms are re-based on the reference moments in the anchors before anything is learned.
    pub rebase: bool,
    /// By which rule the statistics follow. The rules that count images need reference moments.
    pub rule: NormFollow,
    /// The source counts like this many images, of each class with the rules by class.
    pub prior_images: f64,
    /// After this many images, of each class with the rules by class, statistics forget.
    pub window_images: f64,
    /// The share of every image in the statistics of its class, instead of the two numbers above. A small one is
    /// safe without a gate.
    pub image_share: Option<f64>,
    /// With the rules that count images, whether gradients pass through the statistics of the batch, although the followed ones
    /// normalise. Otherwise they are constants, and gradients ask for shifts and scales that the next statistics undo.
    pub batch_gradients: bool,
}

impl Default for NormUpdates {
    fn default() -> Self {
        Self {
            momentum: 0.1,
            prior_batches: None,
            rebase: false,
            rule: NormFollow::Batches,
            prior_images: 64.0,
            window_images: 1024.0,
            image_share: None,
            batch_gradients: false,
        }
    }
}

impl NormUpdates {
    /// Returns a preset's updates. `recommended-0.1` starts warm, with the source counting like one batch; this was
    /// chosen on the held-out corruptions (`results/cifar10-c/README.md` has the figures).
    pub fn of(preset: Preset) -> Self {
        match preset {
            Preset::Released => Self::default(),
            Preset::Earlier => Self::warm(1.0),
            Preset::Recommended => Self {
                rebase: true,
                rule: NormFollow::Auto,
                prior_images: 16.0,
                window_images: 200.0,
                batch_gradients: true,
                // Where the anchors have no reference moments.
                ..Self::warm(1.0)
            },
        }
    }

    /// Returns a preset's updates for a method that uses the statistics of the batch, unless the preset follows images.
    pub(super) fn of_batches(preset: Preset) -> Self {
        match preset {
            Preset::Released | Preset::Earlier => Self::default(),
            Preset::Recommended => Self::of(preset),
        }
    }

    /// Whether reference moments are needed.
    pub fn needs_reference(&self) -> bool {
        self.rebase || self.rule != NormFollow::Batches
    }

    /// Starts warm: the source counts like `prior_batches` batches.
    pub fn warm(prior_batches: f64) -> Self {
        Self {
            prior_batches: Some(prior_batches),
            ..Self::default()
        }
    }

    /// Returns the share of the t-th batch, counted from one.
    pub fn share(&self, t: u64) -> f64 {
        match self.prior_batches {
            None => self.momentum,
            Some(prior) => self.momentum.max(1.0 / (t as f64 + prior)).min(1.0),
        }
    }

    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !(0.0..=1.0).contains(&self.momentum) {
            problems.push(format!(
                "`momentum` must be 0 to 1, found {}",
                self.momentum
            ));
        }
        if self
            .prior_batches
            .is_some_and(|prior| !(0.0..=1e6).contains(&prior))
        {
            problems.push(format!(
                "`prior_batches` must be 0 to 1000000, found {:?}",
                self.prior_batches
            ));
        }
        for (name, value) in [
            ("prior_images", self.prior_images),
            ("window_images", self.window_images),
        ] {
            if !(1.0..=1e9).contains(&value) {
                problems.push(format!("`{name}` must be 1 to 1e9, found {value}"));
            }
        }
        if self
            .image_share
            .is_some_and(|share| !(share > 0.0 && share <= 1.0))
        {
            problems.push(format!(
                "`image_share` must be above 0 and at most 1, found {:?}",
                self.image_share
            ));
        }
        problems
    }
}

/// What a [`Learner`] changes, by which rule, and how it predicts.
#[derive(Clone, Copy, Debug)]
pub struct LearnerConfig {
    /// Which parameters move.
    pub adapts: Adaptable,
    /// The rule they move by.
    pub optimiser: OptimiserConfig,
    /// The learning rate of each step.
    pub learning_rate: f64,
    /// From how many samples in a batch on a step is as long as the learning rate says. One of a smaller batch is shorter in proportion, so
    /// that the way does not depend on how a stream is cut. `None` for a full step of any batch.
    pub full_step: Option<f64>,
    /// The longest gradient, relative to the length of the parameters it belongs to; longer ones are shortened
    /// to it. `None` allows any length.
    pub gradient_bound: Option<f64>,
    /// How strongly every step is followed by one back to the source: the share of the way is this times the [drift](Learner::drift), at
    /// most all of it. Where steps of a relative length `s` go the same way for ever, the parameters come to rest at a drift of
    /// `sqrt(s / brake)`. `None` for not at all.
    pub brake: Option<f64>,
    /// How running norm statistics follow the target.
    pub norm: NormUpdates,
    /// Which norm statistics predictions use.
    pub predicts: NormMode<'static>,
}

impl Default for LearnerConfig {
    /// Everything but the classifier moves by SGD with momentum 0.9; the learning rate is zero until it is set.
    fn default() -> Self {
        Self {
            adapts: Adaptable::Features,
            optimiser: OptimiserConfig::SGD,
            learning_rate: 0.0,
            full_step: None,
            gradient_bound: None,
            brake: None,
            norm: NormUpdates::default(),
            predicts: NormMode::Running,
        }
    }
}

impl LearnerConfig {
    /// Steps by a rule at a learning rate; everything else is as by default.
    pub fn stepping(optimiser: OptimiserConfig, learning_rate: f64) -> Self {
        Self {
            optimiser,
            learning_rate,
            ..Self::default()
        }
    }

    /// Only scales and shifts of the norms move, and batch norm uses the statistics of the batch, always: what TENT
    /// began, and others do since. Statistics that follow images take the place of the batch's where there is a
    /// `reference` to start from and the rule is one that counts images.
    pub fn affine(
        optimiser: OptimiserConfig,
        learning_rate: f64,
        norm: NormUpdates,
        reference: bool,
    ) -> Self {
        let follows = reference && norm.rule != NormFollow::Batches;
        Self {
            adapts: Adaptable::Affine,
            norm,
            predicts: if follows {
                NormMode::Running
            } else {
                NormMode::Batch
            },
            ..Self::stepping(optimiser, learning_rate)
        }
    }
}

/// A network with its optimiser and the source it came from. It steps, counts updates of the norm statistics,
/// goes back to the source, and saves and loads all of that, once for every method.
///
/// The type of the network is hidden behind [`Classifier`], so that methods are written once for all backbones.
pub struct Learner {
    student: Box<dyn Student>,
    config: LearnerConfig,
    norm_updates: u64,
    /// How many samples are being learned from.
    samples: usize,
    /// How stored norm statistics follow the images, unless they follow batches.
    following: Option<Following>,
    /// The shares of the classes among recent samples, if scores are corrected by them.
    shares: Option<RecentShares>,
}

impl Clone for Learner {
    fn clone(&self) -> Self {
        Self {
            student: self.student.boxed_clone(),
            config: self.config,
            norm_updates: self.norm_updates,
            samples: self.samples,
            following: self.following.clone(),
            shares: self.shares.clone(),
        }
    }
}

impl Learner {
    /// Takes a trained network as the source to start from. Norms are not re-based and follow batches, whatever the configuration
    /// says, because both other things need a reference.
    pub fn new<B: Backbone + Sync + 'static>(source: B, config: LearnerConfig) -> Self {
        Self::around(source, config, None)
    }

    /// Takes a trained network as the source to start from. Its norms are re-based on the reference, and follow images from there, as
    /// the configuration says.
    pub fn with_reference<B: Backbone + Sync + 'static>(
        source: B,
        config: LearnerConfig,
        reference: &NormReference,
    ) -> Result<Self> {
        let norm = config.norm;
        let source = if norm.rebase {
            reference.rebase(source)?
        } else {
            source
        };
        let follows = norm.rule != NormFollow::Batches && !reference.layers.is_empty();
        let following = follows.then(|| {
            let images = (norm.prior_images, norm.window_images);
            Following::new(&source, reference, norm.rule, images, norm.image_share)
                .with_batch_gradients(norm.batch_gradients)
        });
        Ok(Self::around(source, config, following))
    }

    fn around<B: Backbone + Sync + 'static>(
        source: B,
        config: LearnerConfig,
        following: Option<Following>,
    ) -> Self {
        Self {
            following,
            shares: None,
            student: Box::new(Pupil {
                network: Some(source.clone().trainable(config.adapts)),
                source,
                adapts: config.adapts,
                optimiser: config.optimiser.init(),
            }),
            config,
            norm_updates: 0,
            samples: 0,
        }
    }

    /// Returns the network with gradients. Wrap images by `Tensor::from_inner` before they go in.
    pub fn network(&self) -> &dyn Classifier {
        self.student.network()
    }

    /// Returns a copy of the network as it is now, without gradients.
    pub fn frozen(&self) -> Box<dyn Classifier + Send + Sync> {
        self.student.frozen()
    }

    /// Returns how norm statistics follow the target.
    pub(super) fn norm_updates(&self) -> NormUpdates {
        self.config.norm
    }

    /// Corrects scores by the shares of the classes among recent samples from now on, or no longer.
    pub(super) fn use_shares(&mut self, shares: Option<RecentShares>) {
        self.shares = shares;
    }

    /// Hears how many samples will be learned from, whatever copies of them a pass may have.
    pub(super) fn begin(&mut self, samples: usize) {
        self.samples = samples;
    }

    /// Returns the shares that scores are corrected by, if they are.
    pub(super) fn shares(&self) -> Option<&RecentShares> {
        self.shares.as_ref()
    }

    /// Corrects the scores of answered samples, `[batch, classes]`, by the shares of the classes among recent samples, if that was asked
    /// for, moves them to agree with those of samples whose features are alike, and remembers them. Nothing is learned from corrected
    /// scores: what was learned would change the shares that it was learned by, until all answers are one class.
    pub(super) fn answer(&mut self, scores: Tensor<2>, features: Option<Tensor<2>>) -> Tensor<2> {
        match &mut self.shares {
            Some(shares) => shares.answer(scores, features),
            None => scores,
        }
    }

    /// Returns the norm statistics that predictions use.
    pub fn predicts(&self) -> NormMode<'static> {
        self.config.predicts
    }

    /// Whether [`features`](Self::features) are normalised by the statistics that are stored after the pass. If so, their scores are those of
    /// a pass with [`NormMode::Running`], up to rounding.
    pub fn learns_by_stored_norms(&self) -> bool {
        self.following.is_some()
    }

    /// Returns the norm mode of the next forward pass in training over varied copies of images. Where norm statistics follow
    /// batches, it counts as one update of them; where they follow images, copies do not move them.
    pub fn updating(&mut self) -> NormMode<'static> {
        if self.following.is_some() {
            return NormMode::Running;
        }
        self.norm_updates += 1;
        NormMode::Blending {
            momentum: self.config.norm.share(self.norm_updates),
        }
    }

    /// Computes features with gradients, `[batch, features]`, while the norm statistics follow the images.
    pub fn features(&mut self, images: Tensor<4>) -> Tensor<2> {
        let can_wait = self
            .following
            .as_ref()
            .is_some_and(Following::labels_can_wait);
        let features = |student: &mut dyn Student, images, mode: NormMode| {
            let images = Tensor::from_inner(images);
            student.network().features(images, mode)
        };
        if !can_wait {
            return self.pass(images, features);
        }
        // The scores of this very pass tell the classes, and spare another one.
        let following = self.following.as_mut().expect("it was just asked");
        following.begin_unlabelled(images.dims()[0]);
        let made = features(self.student.as_mut(), images, NormMode::Ruled(&*following));
        let scores = self.network().logits(made.clone()).without_autodiff();
        let labels = classes(&scores);
        let following = self.following.as_mut().expect("it was just asked");
        following.finish_with(labels);
        made
    }

    /// Computes scores with gradients, `[batch, classes]`, by the statistics that predictions use: those of the batch, or stored ones
    /// that follow the images.
    pub fn training_scores(&mut self, images: Tensor<4>) -> Tensor<2> {
        if let NormMode::Batch = self.config.predicts {
            let images = Tensor::from_inner(images);
            return self.network().forward(images, NormMode::Batch);
        }
        let features = self.features(images);
        self.network().logits(features)
    }

    /// Computes scores of varied copies with gradients, `[batch, classes]`, by statistics of their own or by the stored ones, as
    /// predictions do. Copies do not move statistics that follow images.
    pub fn varied_scores(&mut self, images: Tensor<4>) -> Tensor<2> {
        let mode = match self.config.predicts {
            NormMode::Batch => NormMode::Batch,
            _ => self.updating(),
        };
        let images = Tensor::from_inner(images);
        self.network().forward(images, mode)
    }

    /// Returns the values of all trained parameters, one after the other.
    pub fn parameters(&self) -> Vec<f32> {
        self.student.parameters()
    }

    /// Returns the values that the trained parameters have in the source.
    pub fn source_parameters(&self) -> Vec<f32> {
        self.student.source_parameters()
    }

    /// Replaces the values of all trained parameters. The optimiser keeps its state.
    ///
    /// # Panics
    /// If there are not as many values as [`parameters`](Self::parameters) returns.
    pub fn set_parameters(&mut self, values: &[f32]) {
        self.student.set_parameters(values);
    }

    /// Returns a copy of the network without gradients whose trained parameters have other values.
    ///
    /// # Panics
    /// If there are not as many values as [`parameters`](Self::parameters) returns.
    pub fn frozen_with(&self, values: &[f32]) -> Box<dyn Classifier + Send + Sync> {
        self.student.frozen_with(values)
    }

    /// Returns such a copy whose running statistics have other values too, by key; those that are not named stay as they are.
    pub(super) fn frozen_as(
        &self,
        values: &[f32],
        buffers: &BTreeMap<String, TensorData>,
    ) -> Box<dyn Classifier + Send + Sync> {
        self.student.frozen_as(values, buffers)
    }

    /// Reads the stored norm statistics of the source.
    pub(super) fn source_norms(&self) -> SourceNorms {
        self.student.source_norms()
    }

    /// Returns how long each trained parameter is, in the order of [`parameters`](Self::parameters).
    pub(super) fn parameter_lengths(&self) -> Vec<usize> {
        self.student.parameter_lengths()
    }

    /// Computes the gradient of a loss over the trained parameters, in their order, and moves nothing.
    pub fn gradient(&self, loss: &Tensor<1>) -> Vec<f32> {
        self.student.gradient(loss)
    }

    /// Takes one step along a gradient, which is as long as [`parameters`](Self::parameters).
    ///
    /// # Panics
    /// If it has another length.
    pub fn step_along(&mut self, gradient: &[f32]) {
        self.student.step_along(gradient, self.config.learning_rate);
    }

    /// Runs a forward pass only to move the running norm statistics. The pass records no gradients, because no backward pass would
    /// ever free them.
    pub fn follow_norms(&mut self, images: Tensor<4>) {
        self.pass(images, |student, images, mode| {
            student.follow_norms(images, mode);
        });
    }

    /// Makes a pass with the norm mode by which the statistics follow these images.
    fn pass<T>(
        &mut self,
        images: Tensor<4>,
        make: impl FnOnce(&mut dyn Student, Tensor<4>, NormMode) -> T,
    ) -> T {
        if self.following.is_none() {
            let mode = self.updating();
            return make(self.student.as_mut(), images, mode);
        }
        let count = images.dims()[0];
        let by_class = self.following.as_ref().is_some_and(Following::is_by_class);
        let labels = if by_class {
            let scores = self.frozen().forward(images.clone(), NormMode::Running);
            classes(&scores)
        } else {
            vec![0; count]
        };
        let following = self.following.as_mut().expect("it was just looked at");
        following.begin(labels);
        let made = make(self.student.as_mut(), images, NormMode::Ruled(&*following));
        following.finish();
        made
    }

    /// Frees what forward passes have recorded for gradients that nobody asked for. Burn frees such records in the next backward pass
    /// to a parameter of the network; where no step follows a pass, they would pile up.
    pub(super) fn discard(&self) {
        self.student.discard();
    }

    /// Takes one step down the gradient of a loss.
    pub fn step(&mut self, loss: &Tensor<1>) {
        let LearnerConfig {
            learning_rate,
            full_step,
            gradient_bound,
            brake,
            ..
        } = self.config;
        let part = full_step.map_or(1.0, |full| (self.samples as f64 / full).min(1.0));
        let rate = learning_rate * part;
        self.student.step(loss, rate, gradient_bound);
        if let Some(strength) = brake {
            towards_source(self, (strength * self.drift()).min(1.0));
        }
    }

    /// Returns the scores of a batch that was learned from: where it is predicted first, those `before` the step, of
    /// the forward pass that the step was computed from; else those of a second pass.
    pub fn scores(&self, before: Tensor<2>, images: &Tensor<4>, order: Prediction) -> Tensor<2> {
        match order {
            Prediction::PredictFirst => before,
            Prediction::AdaptFirst => self.frozen().forward(images.clone(), self.predicts()),
        }
    }

    /// Goes back to the source: weights, running statistics and optimiser.
    pub fn reset(&mut self) {
        self.student.reset();
        self.norm_updates = 0;
        if let Some(shares) = &mut self.shares {
            shares.reset();
        }
        if let Some(following) = &mut self.following {
            following.reset();
        }
    }

    /// Measures how far the parameters have moved from the source, relative to their own length.
    pub fn drift(&self) -> f64 {
        let (now, before) = (self.student.weights(), self.student.source_weights());
        let (mut way, mut length) = (0.0, 0.0);
        for (key, kind) in self.student.kinds() {
            if kind == ParameterKind::Buffer {
                continue;
            }
            let values = |data: &TensorData| data.try_to_vec::<f32>().expect("parameters are f32");
            for (now, before) in values(&now[&key]).iter().zip(values(&before[&key])) {
                way += f64::from(now - before).powi(2);
                length += f64::from(before).powi(2);
            }
        }
        (way / length.max(f64::MIN_POSITIVE)).sqrt()
    }

    /// Whether any parameter can move at all.
    pub fn can_drift(&self) -> bool {
        self.config.learning_rate > 0.0
    }

    /// Returns the network's parameters and running statistics by key.
    pub fn weights(&self) -> BTreeMap<String, TensorData> {
        self.student.weights()
    }

    /// Adds weights, optimiser state and counters to arrays.
    pub fn save(&self, arrays: &mut Arrays) -> Result<()> {
        for (key, data) in self.weights() {
            arrays.insert(format!("network.{key}"), data);
        }
        arrays.insert("optimiser", Array::U8(self.student.save_optimiser()?));
        arrays.insert("norm_updates", Array::U64(vec![self.norm_updates]));
        if let Some(following) = &self.following {
            following.save(arrays);
        }
        if let Some(shares) = &self.shares {
            shares.save(arrays);
        }
        Ok(())
    }

    /// Takes back what [`save`](Self::save) added. If the arrays do not fit this network, the learner stays as it
    /// was.
    pub fn load(&mut self, arrays: &mut Arrays) -> Result<()> {
        let values = arrays.tensors("network.");
        let before = self.student.source_weights();
        let fits = before.iter().all(|(key, data)| {
            let found = values.get(key);
            found.is_some_and(|found| found.shape() == data.shape())
        });
        if !fits || values.len() != before.len() {
            return Err(Error::Mismatch {
                what: "saved state of the method".to_owned(),
                expected: format!("the {} tensors of this network", before.len()),
                found: format!("{} tensors, of which some do not fit", values.len()),
            });
        }
        let optimiser = arrays.u8("optimiser")?;
        let Some(Array::U64(counter)) = arrays.0.remove("norm_updates") else {
            return Err(Error::Invalid {
                what: "saved state of the method",
                problem: "it has no `norm_updates`".to_owned(),
            });
        };
        let groups = match &self.following {
            Some(following) => Some(following.read(arrays)?),
            None => None,
        };
        let mut shares = self.shares.clone();
        if let Some(shares) = &mut shares {
            shares.load(arrays)?;
        }
        self.student.restore_optimiser(&optimiser)?;
        self.shares = shares;
        if let (Some(following), Some(groups)) = (&mut self.following, groups) {
            following.restore(groups);
        }
        self.norm_updates = counter.first().copied().unwrap_or_default();
        self.student.load(&values);
        Ok(())
    }
}

/// What a learner does with a network whose type it does not know.
trait Student: Send + Sync {
    fn network(&self) -> &dyn Classifier;
    fn frozen(&self) -> Box<dyn Classifier + Send + Sync>;
    fn follow_norms(&mut self, images: Tensor<4>, mode: NormMode);
    fn step(&mut self, loss: &Tensor<1>, learning_rate: f64, gradient_bound: Option<f64>);
    fn parameters(&self) -> Vec<f32>;
    fn source_parameters(&self) -> Vec<f32>;
    fn set_parameters(&mut self, values: &[f32]);
    fn frozen_with(&self, values: &[f32]) -> Box<dyn Classifier + Send + Sync>;
    fn frozen_as(
        &self,
        values: &[f32],
        buffers: &BTreeMap<String, TensorData>,
    ) -> Box<dyn Classifier + Send + Sync>;
    fn source_norms(&self) -> SourceNorms;
    fn parameter_lengths(&self) -> Vec<usize>;
    fn gradient(&self, loss: &Tensor<1>) -> Vec<f32>;
    fn step_along(&mut self, gradient: &[f32], learning_rate: f64);
    fn discard(&self);
    fn reset(&mut self);
    fn weights(&self) -> BTreeMap<String, TensorData>;
    fn source_weights(&self) -> BTreeMap<String, TensorData>;
    fn kinds(&self) -> Vec<(String, ParameterKind)>;
    fn load(&mut self, values: &BTreeMap<String, TensorData>);
    fn save_optimiser(&self) -> Result<Vec<u8>>;
    fn restore_optimiser(&mut self, bytes: &[u8]) -> Result<()>;
    fn boxed_clone(&self) -> Box<dyn Student>;
}

/// A network of a known type.
#[derive(Clone)]
struct Pupil<B: Backbone> {
    source: B,
    /// Always there, except during a step.
    network: Option<B>,
    adapts: Adaptable,
    optimiser: Optimiser,
}

impl<B: Backbone> Pupil<B> {
    fn now(&self) -> &B {
        self.network.as_ref().expect("the network is put back")
    }
}

impl<B: Backbone + Sync + 'static> Student for Pupil<B> {
    fn network(&self) -> &dyn Classifier {
        self.now()
    }

    fn frozen(&self) -> Box<dyn Classifier + Send + Sync> {
        Box::new(self.now().valid())
    }

    fn follow_norms(&mut self, images: Tensor<4>, mode: NormMode) {
        let network = self.now().valid();
        let _ = Backbone::features(&network, images, mode);
        self.network = Some(network.trainable(self.adapts));
    }

    fn step(&mut self, loss: &Tensor<1>, learning_rate: f64, gradient_bound: Option<f64>) {
        let network = self.network.take().expect("the network is put back");
        let optimiser = &mut self.optimiser;
        self.network = Some(match gradient_bound {
            None => optimiser.step(learning_rate, network, loss),
            Some(bound) => optimiser.step_bounded(learning_rate, network, loss, bound),
        });
    }

    fn parameters(&self) -> Vec<f32> {
        trained::values(self.now(), &self.source.params(self.adapts))
    }

    fn source_parameters(&self) -> Vec<f32> {
        trained::values(&self.source, &self.source.params(self.adapts))
    }

    fn set_parameters(&mut self, values: &[f32]) {
        let group = self.source.params(self.adapts);
        let network = trained::with_values(self.now().valid(), &group, values);
        self.network = Some(network.trainable(self.adapts));
    }

    fn frozen_with(&self, values: &[f32]) -> Box<dyn Classifier + Send + Sync> {
        let group = self.source.params(self.adapts);
        Box::new(trained::with_values(self.now().valid(), &group, values))
    }

    fn frozen_as(
        &self,
        values: &[f32],
        buffers: &BTreeMap<String, TensorData>,
    ) -> Box<dyn Classifier + Send + Sync> {
        let group = self.source.params(self.adapts);
        let network = trained::with_values(self.now().valid(), &group, values);
        Box::new(load_tensors(network, buffers))
    }

    fn source_norms(&self) -> SourceNorms {
        SourceNorms::of(&self.source)
    }

    fn parameter_lengths(&self) -> Vec<usize> {
        trained::lengths(&self.source, &self.source.params(self.adapts))
    }

    fn gradient(&self, loss: &Tensor<1>) -> Vec<f32> {
        trained::gradient(self.now(), &self.source.params(self.adapts), loss)
    }

    fn step_along(&mut self, gradient: &[f32], learning_rate: f64) {
        let network = self.network.take().expect("the network is put back");
        let group = self.source.params(self.adapts);
        let gradients = trained::gradients(&network, &group, gradient);
        let moved = self.optimiser.step_along(learning_rate, network, gradients);
        self.network = Some(moved);
    }

    fn discard(&self) {
        if let Some(network) = &self.network {
            network.visit(&mut Discard { done: false });
        }
    }

    fn reset(&mut self) {
        self.network = Some(self.source.clone().trainable(self.adapts));
        self.optimiser.reset();
    }

    fn weights(&self) -> BTreeMap<String, TensorData> {
        tensors(&self.now().valid())
    }

    fn source_weights(&self) -> BTreeMap<String, TensorData> {
        tensors(&self.source)
    }

    fn kinds(&self) -> Vec<(String, ParameterKind)> {
        let found = parameters(&self.source).into_iter();
        found
            .map(|parameter| (parameter.key, parameter.kind))
            .collect()
    }

    fn load(&mut self, values: &BTreeMap<String, TensorData>) {
        let network = load_tensors(self.source.clone(), values);
        self.network = Some(network.trainable(self.adapts));
    }

    fn save_optimiser(&self) -> Result<Vec<u8>> {
        self.optimiser.save()
    }

    fn restore_optimiser(&mut self, bytes: &[u8]) -> Result<()> {
        self.optimiser.restore(bytes)
    }

    fn boxed_clone(&self) -> Box<dyn Student> {
        Box::new(self.clone())
    }
}

/// Encodes a method's own state; doubles keep their bits.
pub(super) fn to_bytes(state: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(state, &mut bytes).expect("writing to memory cannot fail");
    bytes
}

/// Decodes what [`to_bytes`] encoded.
pub(super) fn from_bytes<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    ciborium::from_reader(bytes).map_err(|e| Error::Invalid {
        what: "saved state of the method",
        problem: e.to_string(),
    })
}

/// Returns the class with the highest score of each row, `[batch, classes]`; of equal ones the first.
pub(super) fn classes(scores: &Tensor<2>) -> Vec<usize> {
    let [_, classes] = scores.dims();
    let rows = rows(scores);
    rows.chunks_exact(classes).map(|row| best(row).0).collect()
}

/// Reads the values of a matrix, row-major.
pub(super) fn rows(matrix: &Tensor<2>) -> Vec<f32> {
    matrix.to_data().try_to_vec().expect("tensors are f32")
}

/// Reads the value of a loss.
pub(super) fn value(loss: &Tensor<1>) -> f64 {
    f64::from(loss.to_data().as_slice::<f32>().expect("losses are f32")[0])
}

/// Takes the gradient of the first parameter that may have one.
struct Discard {
    done: bool,
}

impl ModuleVisitor for Discard {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if !self.done && value.is_require_grad() {
            value.sum().backward();
            self.done = true;
        }
    }
}
