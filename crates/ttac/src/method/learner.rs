//! A network that is being adapted, with all that belongs to it.

use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};

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
    /// Share of the newest batch in the running statistics; the least one if there is a prior.
    pub momentum: f64,
    /// Warm start: before the t-th batch the source counts like so many batches, and all target
    /// batches alike, so the newest one has the share `max(momentum, 1 / (t + prior))`. None: the
    /// share is always `momentum`, as in the released program.
    #[serde(skip_serializing_if = "Option::is_none")]
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
    /// A warm start with the source counting like so many batches.
    pub fn warm(prior_batches: f64) -> Self {
        Self {
            prior_batches: Some(prior_batches),
            ..Self::default()
        }
    }

    /// The share of the t-th batch, from one.
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

/// A network with its optimiser, and the way back to the source.
#[derive(Clone, Debug)]
pub struct Learner<B: Backbone> {
    source: B,
    /// Always there, except during a step.
    network: Option<B>,
    which: Adaptable,
    optimiser: Optimiser,
    learning_rate: f64,
    gradient_bound: Option<f64>,
    norm: NormUpdates,
    norm_updates: u64,
}

impl<B: Backbone> Learner<B> {
    /// Adapts `which` parameters of a trained network.
    pub fn new(
        source: B,
        which: Adaptable,
        optimiser: OptimiserConfig,
        learning_rate: f64,
        norm: NormUpdates,
    ) -> Self {
        Self {
            network: Some(source.clone().trainable(which)),
            source,
            which,
            optimiser: optimiser.init(),
            learning_rate,
            gradient_bound: None,
            norm,
            norm_updates: 0,
        }
    }

    /// With gradients that are at most so long, relative to the parameters.
    pub fn with_gradient_bound(self, gradient_bound: Option<f64>) -> Self {
        Self {
            gradient_bound,
            ..self
        }
    }

    /// The network, with gradients.
    ///
    /// # Panics
    /// Never: the network is absent only inside [`step`](Self::step).
    pub fn network(&self) -> &B {
        self.network.as_ref().expect("the network is put back")
    }

    /// The network, without gradients.
    pub fn frozen(&self) -> B {
        self.network().valid()
    }

    /// The norm mode of the next forward pass in training, which counts as one update.
    pub fn updating(&mut self) -> NormMode {
        self.norm_updates += 1;
        NormMode::Blending {
            momentum: self.norm.share(self.norm_updates),
        }
    }

    /// A forward pass for the sake of the running norm statistics that it moves, which counts as one
    /// update. It leaves no graph behind: nobody would ever walk it back and free it.
    pub fn observe(&mut self, images: Tensor<4>) {
        let mode = self.updating();
        let network = self.frozen();
        let _ = network.features(images, mode);
        self.network = Some(network.trainable(self.which));
    }

    /// One step down the gradient of a loss.
    pub fn step(&mut self, loss: &Tensor<1>) {
        let network = self.network.take().expect("the network is put back");
        let (optimiser, rate) = (&mut self.optimiser, self.learning_rate);
        self.network = Some(match self.gradient_bound {
            None => optimiser.step(rate, network, loss),
            Some(bound) => optimiser.step_bounded(rate, network, loss, bound),
        });
    }

    /// Back to the source: weights, running statistics, optimiser.
    pub fn reset(&mut self) {
        self.network = Some(self.source.clone().trainable(self.which));
        self.optimiser.reset();
        self.norm_updates = 0;
    }

    /// Length of the way the parameters have gone from the source, relative to their own length.
    pub fn drift(&self) -> f64 {
        let (now, before) = (tensors(&self.frozen()), tensors(&self.source));
        let (mut way, mut length) = (0.0, 0.0);
        for parameter in parameters(&self.source) {
            if parameter.kind == ParameterKind::Buffer {
                continue;
            }
            let values = |data: &TensorData| data.try_to_vec::<f32>().expect("parameters are f32");
            let (now, before) = (
                values(&now[&parameter.key]),
                values(&before[&parameter.key]),
            );
            for (now, before) in now.iter().zip(before) {
                way += f64::from(now - before).powi(2);
                length += f64::from(before).powi(2);
            }
        }
        (way / length.max(f64::MIN_POSITIVE)).sqrt()
    }

    /// Adds weights, optimiser and counters to arrays.
    pub fn save(&self, arrays: &mut Arrays) -> Result<()> {
        for (key, data) in tensors(&self.frozen()) {
            arrays.insert(format!("network.{key}"), data);
        }
        arrays.insert("optimiser", Array::U8(self.optimiser.save()?));
        arrays.insert("norm_updates", Array::U64(vec![self.norm_updates]));
        Ok(())
    }

    /// Takes them back.
    pub fn load(&mut self, arrays: &mut Arrays) -> Result<()> {
        let values = arrays.tensors("network.");
        let expected = parameters(&self.source);
        let fits = expected.iter().all(|parameter| {
            let found = values.get(&parameter.key);
            found.is_some_and(|data| data.shape().as_slice() == parameter.shape)
        });
        if !fits || values.len() != expected.len() {
            return Err(Error::Mismatch {
                what: "saved state of the method".to_owned(),
                expected: format!("the {} tensors of this network", expected.len()),
                found: format!("{} tensors, of which some do not fit", values.len()),
            });
        }
        self.optimiser.restore(&arrays.u8("optimiser")?)?;
        self.norm_updates = match arrays.0.remove("norm_updates") {
            Some(Array::U64(values)) if values.len() == 1 => values[0],
            _ => {
                return Err(Error::Invalid {
                    what: "saved state of the method",
                    problem: "it has no `norm_updates`".to_owned(),
                });
            }
        };
        let network = load_tensors(self.source.clone(), &values);
        self.network = Some(network.trainable(self.which));
        Ok(())
    }
}

/// Numbers and lists of any kind as bytes; doubles keep their bits.
pub(super) fn to_bytes(state: &impl Serialize) -> Array {
    let mut bytes = Vec::new();
    ciborium::into_writer(state, &mut bytes).expect("writing to memory cannot fail");
    Array::U8(bytes)
}

/// The other way.
pub(super) fn from_bytes<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    ciborium::from_reader(bytes).map_err(|e| Error::Invalid {
        what: "saved state of the method",
        problem: e.to_string(),
    })
}

/// Values of a matrix, row-major.
pub(super) fn rows(matrix: &Tensor<2>) -> Vec<f32> {
    matrix.to_data().try_to_vec().expect("tensors are f32")
}

/// The value of a loss.
pub(super) fn value(loss: &Tensor<1>) -> f64 {
    f64::from(loss.to_data().as_slice::<f32>().expect("losses are f32")[0])
}
