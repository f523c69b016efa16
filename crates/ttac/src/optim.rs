//! Optimisers with PyTorch's semantics over the parameters that ask for gradients.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{
    AdamConfig, GradientsParams, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource,
};
use burn::tensor::{Bytes, Device, Tensor};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use ttac_kernels::kernels::SgdConstants;
use ttac_kernels::sgd_step;

use crate::{Error, Result};

/// Configures an optimiser: its rule and the constants of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "optimiser", rename_all = "kebab-case", deny_unknown_fields)]
pub enum OptimiserConfig {
    /// Gradient descent, `v = momentum * v + g; p = p - lr * v`, where `g` is the gradient plus `weight_decay * p`. There is neither
    /// dampening nor Nesterov's momentum.
    Sgd {
        /// The share of the old direction that is kept; 0 is plain gradient descent.
        momentum: f32,
        /// The share of a parameter that is added to its gradient, which pulls it towards zero.
        #[serde(default)]
        weight_decay: f32,
    },
    /// Adam (Kingma and Ba, 2015), with bias correction; epsilon is added outside the square root.
    Adam {
        /// The decay of the first moment.
        beta_1: f32,
        /// The decay of the second moment.
        beta_2: f32,
        /// The number added to the denominator, 1e-8 in PyTorch.
        epsilon: f32,
        /// The share of a parameter that is added to its gradient, which pulls it towards zero.
        #[serde(default)]
        weight_decay: f32,
    },
}

impl OptimiserConfig {
    /// Gradient descent with momentum 0.9 and no weight decay, the optimiser of TTAC.
    pub const SGD: Self = Self::Sgd {
        momentum: 0.9,
        weight_decay: 0.0,
    };

    /// Adam with PyTorch's defaults.
    pub const ADAM: Self = Self::Adam {
        beta_1: 0.9,
        beta_2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
    };

    /// Builds an optimiser, which has no state yet.
    pub fn init(self) -> Optimiser {
        Optimiser {
            config: self,
            inner: self.build(),
        }
    }

    // Every constant is given: Burn's defaults differ from PyTorch's (dampening 0.1, epsilon 1e-5).
    fn build(self) -> ModuleOptimizer {
        match self {
            Self::Sgd {
                momentum,
                weight_decay,
            } => ModuleOptimizer::from(Sgd {
                momentum,
                weight_decay,
            }),
            Self::Adam {
                beta_1,
                beta_2,
                epsilon,
                weight_decay,
            } => AdamConfig::new()
                .with_beta_1(beta_1)
                .with_beta_2(beta_2)
                .with_epsilon(epsilon)
                .with_weight_decay(
                    (weight_decay > 0.0).then(|| WeightDecayConfig::new(weight_decay)),
                )
                .init(),
        }
    }
}

/// Gradient descent in one pass over each parameter. The numbers and the saved state are those of
/// Burn's `Sgd` without dampening and Nesterov.
#[derive(Clone)]
struct Sgd {
    momentum: f32,
    weight_decay: f32,
}

/// The state of [`Sgd`]: the velocity, if there is momentum.
#[derive(Clone)]
struct Velocity<const D: usize>(Option<Tensor<D>>);

/// The name under which Burn's `SgdState` saves the velocity, too, so that each reads the other's state.
const VELOCITY: &str = "momentum.velocity";

impl<const D: usize> RecordState for Velocity<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        if let Some(velocity) = &self.0 {
            out.push_tensor(prefix, VELOCITY, velocity.to_data());
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let data = source.take_tensor(prefix, VELOCITY);
        Some(Self(data.map(|data| Tensor::from_data(data, device))))
    }
}

impl Optimizer for Sgd {
    type State<const D: usize> = Velocity<D>;

    fn step<const D: usize>(
        &self,
        learning_rate: f64,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Velocity<D>>,
    ) -> (Tensor<D>, Option<Velocity<D>>) {
        let constants = SgdConstants {
            learning_rate: learning_rate as f32,
            momentum: self.momentum,
            weight_decay: self.weight_decay,
        };
        let velocity = state.and_then(|state| state.0);
        let (parameter, velocity) = sgd_step(parameter, gradient, velocity, constants);
        (parameter, Some(Velocity(velocity)))
    }

    fn to_device<const D: usize>(state: Velocity<D>, device: &Device) -> Velocity<D> {
        Velocity(state.0.map(|velocity| velocity.to_device(device)))
    }
}

/// An optimiser with its state. A clone has its own state.
///
/// It moves the parameters that require gradients, which [`Backbone::trainable`](crate::backbone::Backbone::trainable) chooses.
/// A parameter without a gradient in a step is left alone, and so is its state.
#[derive(Clone)]
pub struct Optimiser {
    config: OptimiserConfig,
    inner: ModuleOptimizer,
}

impl std::fmt::Debug for Optimiser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Optimiser({:?})", self.config)
    }
}

impl Optimiser {
    /// Makes one step down the gradient of a scalar loss, and returns the moved module.
    pub fn step<M: Module>(&mut self, learning_rate: f64, module: M, loss: &Tensor<1>) -> M {
        let gradients = GradientsParams::from_grads(loss.backward(), &module);
        self.inner.step(learning_rate, module, gradients)
    }

    /// Makes a step with a gradient that is no longer than `bound` times the parameters it belongs to. A longer
    /// one keeps its direction and is cut to that length. Lengths are those of all parameters together.
    pub fn step_bounded<M: Module>(
        &mut self,
        learning_rate: f64,
        module: M,
        loss: &Tensor<1>,
        bound: f64,
    ) -> M {
        let mut gradients = GradientsParams::from_grads(loss.backward(), &module);
        let mut lengths = Lengths {
            gradients: &gradients,
            gradient: 0.0,
            parameter: 0.0,
        };
        module.visit(&mut lengths);
        let share = bound * (lengths.parameter / lengths.gradient).sqrt();
        // A gradient that is not finite has no length to cut to, nor has one of parameters that are all 0.
        if 0.0 < share && share < 1.0 {
            module.visit(&mut Scale {
                gradients: &mut gradients,
                share,
            });
        }
        self.inner.step(learning_rate, module, gradients)
    }

    /// Makes one step along gradients that were computed elsewhere, and returns the moved module.
    pub(crate) fn step_along<M: Module>(
        &mut self,
        learning_rate: f64,
        module: M,
        gradients: GradientsParams,
    ) -> M {
        self.inner.step(learning_rate, module, gradients)
    }

    /// Forgets momenta and moments.
    pub fn reset(&mut self) {
        self.inner = self.config.build();
    }

    /// Returns the state as bytes, for [`restore`](Self::restore). It is keyed by
    /// [`parameter_id`](crate::backbone::parameter_id) and so outlives the process.
    pub fn save(&self) -> Result<Vec<u8>> {
        let bytes = self.inner.into_bytes().map_err(|e| Error::Invalid {
            what: "optimiser state",
            problem: e.to_string(),
        })?;
        Ok(bytes.to_vec())
    }

    /// Replaces the state by a saved one. If that cannot be read, the state stays as it is.
    pub fn restore(&mut self, state: &[u8]) -> Result<()> {
        let bytes = Bytes::from_bytes_vec(state.to_vec());
        let restored = self.config.build().from_bytes(bytes);
        self.inner = restored.map_err(|e| Error::Invalid {
            what: "optimiser state",
            problem: e.to_string(),
        })?;
        Ok(())
    }
}

/// Sums the squares of gradients and of their parameters.
struct Lengths<'a> {
    gradients: &'a GradientsParams,
    gradient: f64,
    parameter: f64,
}

impl ModuleVisitor for Lengths<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.get::<D>(parameter.id) {
            self.gradient += squared_length(gradient);
            self.parameter += squared_length(parameter.val().inner());
        }
    }
}

/// Sums the squares of a tensor's values; the result is the same for any number of threads.
fn squared_length<const D: usize>(tensor: Tensor<D>) -> f64 {
    /// The number of values that a task sums, whatever the number of threads.
    const TASK: usize = 64 * 1024;
    let data = tensor.into_data();
    let values = data.as_slice::<f32>().expect("parameters are f32");
    let parts: Vec<f64> = values
        .par_chunks(TASK)
        .map(|part| part.iter().map(|&v| f64::from(v).powi(2)).sum())
        .collect();
    parts.iter().sum()
}

/// Multiplies all gradients by one number.
struct Scale<'a> {
    gradients: &'a mut GradientsParams,
    share: f64,
}

impl ModuleVisitor for Scale<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(parameter.id) {
            self.gradients
                .register::<D>(parameter.id, gradient.mul_scalar(self.share));
        }
    }
}
