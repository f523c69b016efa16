//! A network that is being adapted, with its optimiser and the way back to the source.

use std::collections::BTreeMap;

use burn::module::{ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::classifier::Classifier;
use super::{Prediction, Preset};
use crate::archive::{Array, Arrays};
use crate::backbone::{
    Adaptable, Backbone, NormMode, ParameterKind, load_tensors, parameters, tensors,
};
use crate::optim::{Optimiser, OptimiserConfig};
use crate::{Error, Result};

/// How the running norm statistics follow the target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NormUpdates {
    /// Share of the newest batch in the running statistics; with a prior, the least share.
    pub momentum: f64,
    /// With a warm start the source counts like this many batches before the t-th target batch, and all
    /// target batches count alike, so the newest one has the share `max(momentum, 1 / (t + prior))`. Without
    /// one the share is always `momentum`, as in the released program.
    pub prior_batches: Option<f64>,
}

impl Default for NormUpdates {
    fn default() -> Self {
        Self {
            momentum: 0.1,
            prior_batches: None,
        }
    }
}

impl NormUpdates {
    /// Returns a preset's updates. `recommended` starts warm, with the source counting like one batch; this was
    /// chosen on the held-out corruptions (`results/cifar10-c/README.md` has the figures).
    pub fn of(preset: Preset) -> Self {
        match preset {
            Preset::Released => Self::default(),
            Preset::Recommended => Self::warm(1.0),
        }
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
        problems
    }
}

/// What a [`Learner`] changes, by which rule, and how it predicts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnerConfig {
    /// Which parameters move.
    pub adapts: Adaptable,
    /// The rule they move by.
    pub optimiser: OptimiserConfig,
    /// The learning rate of each step.
    pub learning_rate: f64,
    /// The longest gradient, relative to the length of the parameters it belongs to; longer ones are shortened
    /// to it. `None` allows any length.
    pub gradient_bound: Option<f64>,
    /// How running norm statistics follow the target.
    pub norm: NormUpdates,
    /// Which norm statistics predictions use.
    pub predicts: NormMode,
}

impl Default for LearnerConfig {
    /// Everything but the classifier moves by SGD with momentum 0.9; the learning rate is zero until it is set.
    fn default() -> Self {
        Self {
            adapts: Adaptable::Features,
            optimiser: OptimiserConfig::SGD,
            learning_rate: 0.0,
            gradient_bound: None,
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
    /// began, and others do since.
    pub fn affine(optimiser: OptimiserConfig, learning_rate: f64) -> Self {
        Self {
            adapts: Adaptable::Affine,
            predicts: NormMode::Batch,
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
}

impl Clone for Learner {
    fn clone(&self) -> Self {
        Self {
            student: self.student.boxed_clone(),
            config: self.config,
            norm_updates: self.norm_updates,
        }
    }
}

impl Learner {
    /// Takes a trained network as the source to start from.
    pub fn new<B: Backbone + Sync + 'static>(source: B, config: LearnerConfig) -> Self {
        Self {
            student: Box::new(Pupil {
                network: Some(source.clone().trainable(config.adapts)),
                source,
                adapts: config.adapts,
                optimiser: config.optimiser.init(),
            }),
            config,
            norm_updates: 0,
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

    /// Returns the norm statistics that predictions use.
    pub fn predicts(&self) -> NormMode {
        self.config.predicts
    }

    /// Returns the norm mode of the next forward pass in training, and counts it as one update of the running
    /// statistics.
    pub fn updating(&mut self) -> NormMode {
        self.norm_updates += 1;
        NormMode::Blending {
            momentum: self.config.norm.share(self.norm_updates),
        }
    }

    /// Runs a forward pass only to move the running norm statistics, which counts as one update. The pass records
    /// no gradients, because no backward pass would ever free them.
    pub fn follow_norms(&mut self, images: Tensor<4>) {
        let mode = self.updating();
        self.student.follow_norms(images, mode);
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
            gradient_bound,
            ..
        } = self.config;
        self.student.step(loss, learning_rate, gradient_bound);
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
        self.student.restore_optimiser(&optimiser)?;
        self.norm_updates = counter.first().copied().unwrap_or_default();
        self.student.load(&values);
        Ok(())
    }
}

/// What a learner does with a network whose type it does not know.
trait Student: Send {
    fn network(&self) -> &dyn Classifier;
    fn frozen(&self) -> Box<dyn Classifier + Send + Sync>;
    fn follow_norms(&mut self, images: Tensor<4>, mode: NormMode);
    fn step(&mut self, loss: &Tensor<1>, learning_rate: f64, gradient_bound: Option<f64>);
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
