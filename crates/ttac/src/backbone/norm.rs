//! Normalisation layers with PyTorch's exact semantics.

use std::sync::{Mutex, PoisonError};

use burn::module::{
    Content, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor, Param,
    ParamId,
};
use burn::tensor::{Device, Tensor};
use ttac_kernels::{
    BatchNormOptions, GroupNormOptions, batch_norm, group_norm, layer_norm, norm_conv2d,
};

use super::NormMode;
use super::layers::Conv2d;

/// A vector that belongs to a layer but is not learned by gradients, such as a running mean.
///
/// A forward pass may change it through a shared reference. A clone has its own copy, so a cloned
/// network is a snapshot (Burn's `RunningState` is shared by all clones).
#[derive(Debug)]
pub struct Buffer {
    id: ParamId,
    value: Mutex<Tensor<1>>,
}

impl Buffer {
    /// A buffer that starts with a value, `[length]`.
    pub fn new(value: Tensor<1>) -> Self {
        Self::with_id(ParamId::new(), value)
    }

    fn with_id(id: ParamId, value: Tensor<1>) -> Self {
        Self {
            id,
            value: Mutex::new(value),
        }
    }

    /// The current value, `[length]`.
    pub fn value(&self) -> Tensor<1> {
        // A panic elsewhere cannot leave a tensor handle half written.
        self.value
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Replaces the value.
    pub fn set(&self, value: Tensor<1>) {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Self::with_id(self.id, self.value())
    }
}

impl Module for Buffer {
    fn collect_devices(&self, mut devices: Vec<Device>) -> Vec<Device> {
        let device = self.value().device();
        if !devices.contains(&device) {
            devices.push(device);
        }
        devices
    }

    fn fork(self, device: &Device) -> Self {
        self.to_device(device)
    }

    fn to_device(self, device: &Device) -> Self {
        Self::with_id(self.id, self.value().to_device(device))
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        visitor.visit_float(&Param::initialized(self.id, self.value()));
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let (id, value, _) = mapper
            .map_float(Param::initialized(self.id, self.value()))
            .consume();
        // Whatever a mapper does to parameters at large, a buffer never asks for gradients.
        Self::with_id(id, value.set_require_grad(false))
    }

    fn valid(&self) -> Self {
        Self::with_id(self.id, self.value().without_autodiff())
    }

    fn train(self) -> Self {
        Self::with_id(self.id, Tensor::from_inner(self.value().without_autodiff()))
    }

    fn materialize(self) -> Self {
        self
    }
}

impl ModuleDisplayDefault for Buffer {
    fn content(&self, content: Content) -> Option<Content> {
        content
            .add_formatted(&format!("Buffer{:?}", self.value().dims()))
            .optional()
    }
}

impl ModuleDisplay for Buffer {}

/// Batch normalisation over batch, height and width (Ioffe and Szegedy, 2015).
///
/// `y = weight * (x - mean) / sqrt(variance + epsilon) + bias` per channel. A batch is normalised by
/// its biased variance; the running variance moves towards the unbiased one,
/// `running = (1 - momentum) * running + momentum * batch`. Where a channel has a single value, the
/// unbiased variance does not exist and the biased one (zero) is taken.
#[derive(Module, Debug)]
pub struct BatchNorm {
    /// Scale, `[channels]`.
    pub weight: Param<Tensor<1>>,
    /// Shift, `[channels]`.
    pub bias: Param<Tensor<1>>,
    /// Running mean, `[channels]`.
    pub running_mean: Buffer,
    /// Running variance, `[channels]`.
    pub running_var: Buffer,
    /// Added to the variance.
    pub epsilon: f64,
    /// Share of the batch in an update of the running statistics.
    pub momentum: f64,
}

impl BatchNorm {
    /// Scale one, shift zero, running statistics of a standard normal; epsilon 1e-5, momentum 0.1.
    pub fn new(channels: usize, device: &Device) -> Self {
        Self {
            weight: Param::from_tensor(Tensor::ones([channels], device)),
            bias: Param::from_tensor(Tensor::zeros([channels], device)),
            running_mean: Buffer::new(Tensor::zeros([channels], device)),
            running_var: Buffer::new(Tensor::ones([channels], device)),
            epsilon: 1e-5,
            momentum: 0.1,
        }
    }

    /// `act(norm(x) [+ residual])`, all of shape `[batch, height, width, channels]`.
    pub fn forward(
        &self,
        x: Tensor<4>,
        residual: Option<Tensor<4>>,
        relu: bool,
        norm: NormMode,
    ) -> Tensor<4> {
        let [batch, height, width, _] = x.dims();
        let (weight, bias) = (self.weight.val(), self.bias.val());
        let statistics = self.statistics(norm);
        let out = batch_norm(x, weight, bias, residual, statistics, self.options(relu));
        self.follow(out.mean, out.variance, batch * height * width, norm);
        out.y
    }

    /// `conv(relu(norm(x))) [+ residual]`, without storing what the convolution reads.
    pub fn relu_conv(
        &self,
        x: Tensor<4>,
        conv: &Conv2d,
        residual: Option<Tensor<4>>,
        norm: NormMode,
    ) -> Tensor<4> {
        let [batch, height, width, _] = x.dims();
        let out = norm_conv2d(
            x,
            self.weight.val(),
            self.bias.val(),
            self.statistics(norm),
            self.options(true),
            conv.weight.val(),
            residual,
            conv.options(),
        );
        self.follow(out.mean, out.variance, batch * height * width, norm);
        out.y
    }

    /// Mean and variance to normalise by, none where they are the batch's.
    pub(super) fn statistics(&self, norm: NormMode) -> Option<(Tensor<1>, Tensor<1>)> {
        match norm {
            NormMode::Running => Some((self.running_mean.value(), self.running_var.value())),
            NormMode::Batch | NormMode::BatchUpdating | NormMode::Blending { .. } => None,
        }
    }

    /// Moves the running statistics towards those of a batch of `count` values per channel, where the mode says so.
    pub(super) fn follow(
        &self,
        mean: Tensor<1>,
        variance: Tensor<1>,
        count: usize,
        norm: NormMode,
    ) {
        let momentum = match norm {
            NormMode::Running | NormMode::Batch => None,
            NormMode::BatchUpdating => Some(self.momentum),
            NormMode::Blending { momentum } => Some(momentum),
        };
        if let Some(momentum) = momentum {
            let count = count as f64;
            let unbiased = if count > 1.0 {
                count / (count - 1.0)
            } else {
                1.0
            };
            let blend = |running: &Buffer, new: Tensor<1>| {
                running.set(running.value() * (1.0 - momentum) + new * momentum);
            };
            blend(&self.running_mean, mean);
            blend(&self.running_var, variance * unbiased);
        }
    }

    pub(super) fn options(&self, relu: bool) -> BatchNormOptions {
        BatchNormOptions {
            epsilon: self.epsilon as f32,
            relu,
        }
    }
}

/// Group normalisation (Wu and He, 2018): mean and biased variance of each image over height,
/// width and the channels of a group. Independent of the batch.
#[derive(Module, Debug)]
pub struct GroupNorm {
    /// Scale, `[channels]`.
    pub weight: Param<Tensor<1>>,
    /// Shift, `[channels]`.
    pub bias: Param<Tensor<1>>,
    /// Number of groups; divides the channels.
    pub groups: usize,
    /// Added to the variance.
    pub epsilon: f64,
}

impl GroupNorm {
    /// Scale one, shift zero, epsilon 1e-5.
    ///
    /// # Panics
    /// If `groups` does not divide `channels`.
    pub fn new(channels: usize, groups: usize, device: &Device) -> Self {
        assert_eq!(
            channels % groups,
            0,
            "{groups} groups do not divide {channels} channels"
        );
        Self {
            weight: Param::from_tensor(Tensor::ones([channels], device)),
            bias: Param::from_tensor(Tensor::zeros([channels], device)),
            groups,
            epsilon: 1e-5,
        }
    }

    /// `act(norm(x))`, `[batch, height, width, channels]`.
    pub fn forward(&self, x: Tensor<4>, relu: bool) -> Tensor<4> {
        let options = GroupNormOptions {
            groups: self.groups,
            epsilon: self.epsilon as f32,
            relu,
        };
        group_norm(x, self.weight.val(), self.bias.val(), options)
    }
}

/// Layer normalisation (Ba et al., 2016): mean and biased variance over the last axis.
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// Scale, `[width]`.
    pub weight: Param<Tensor<1>>,
    /// Shift, `[width]`.
    pub bias: Param<Tensor<1>>,
    /// Added to the variance.
    pub epsilon: f64,
}

impl LayerNorm {
    /// Scale one, shift zero, epsilon 1e-5.
    pub fn new(width: usize, device: &Device) -> Self {
        Self {
            weight: Param::from_tensor(Tensor::ones([width], device)),
            bias: Param::from_tensor(Tensor::zeros([width], device)),
            epsilon: 1e-5,
        }
    }

    /// `[.., width]` to the same shape.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let shape = x.dims();
        let width = self.weight.lazy_shape()[0];
        let rows: Tensor<2> = x.reshape([shape.iter().product::<usize>() / width, width]);
        let (weight, bias) = (self.weight.val(), self.bias.val());
        layer_norm(rows, weight, bias, self.epsilon as f32).reshape(shape)
    }
}

/// Either normalisation, where an architecture leaves the choice open.
#[derive(Module, Debug)]
pub enum Norm {
    /// Per channel, over the batch.
    Batch(BatchNorm),
    /// Per image and group.
    Group(GroupNorm),
}

impl Norm {
    /// `relu(norm(x))`, `[batch, height, width, channels]`.
    pub fn relu(&self, x: Tensor<4>, norm: NormMode) -> Tensor<4> {
        match self {
            Self::Batch(layer) => layer.forward(x, None, true, norm),
            Self::Group(layer) => layer.forward(x, true),
        }
    }

    /// `conv(relu(norm(x))) [+ residual]`.
    pub fn relu_conv(
        &self,
        x: Tensor<4>,
        conv: &Conv2d,
        residual: Option<Tensor<4>>,
        norm: NormMode,
    ) -> Tensor<4> {
        match (self, residual) {
            (Self::Batch(layer), residual) => layer.relu_conv(x, conv, residual, norm),
            (Self::Group(layer), None) => conv.forward(layer.forward(x, true)),
            (Self::Group(layer), Some(residual)) => {
                conv.forward_add(layer.forward(x, true), residual)
            }
        }
    }
}
