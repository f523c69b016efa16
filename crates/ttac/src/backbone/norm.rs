//! Normalisation layers with PyTorch's exact semantics.

use std::sync::{Mutex, PoisonError};

use burn::module::{
    Content, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor, Param,
    ParamId,
};
use burn::tensor::{Device, Tensor};
use ttac_kernels::{
    Activation, BatchNormOptions, GroupNormOptions, batch_norm, group_norm, image_moments,
    layer_norm, norm_conv2d,
};

use super::NormMode;
use super::layers::Conv2d;

/// Holds a vector that belongs to a layer but is not learned by gradients, such as a running mean.
///
/// A forward pass may change it through a shared reference. A clone has its own copy, so a cloned
/// network is a snapshot (Burn's `RunningState` is shared by all clones).
#[derive(Debug)]
pub struct Buffer {
    /// The identity of the vector, as visitors of the network meet it.
    pub(crate) id: ParamId,
    value: Mutex<Tensor<1>>,
}

impl Buffer {
    /// Builds a buffer that starts with a value, `[length]`.
    pub fn new(value: Tensor<1>) -> Self {
        Self::with_id(ParamId::new(), value)
    }

    fn with_id(id: ParamId, value: Tensor<1>) -> Self {
        Self {
            id,
            value: Mutex::new(value),
        }
    }

    /// Returns the current value, `[length]`.
    pub fn value(&self) -> Tensor<1> {
        // A panic elsewhere cannot leave a tensor handle half written.
        self.value
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Replaces the value by another of the same length.
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

/// Builds a scale of ones and a shift of zeros, which change nothing.
fn identity(channels: usize, device: &Device) -> [Param<Tensor<1>>; 2] {
    let [ones, zeros] = [
        Tensor::ones([channels], device),
        Tensor::zeros([channels], device),
    ];
    [Param::from_tensor(ones), Param::from_tensor(zeros)]
}

/// Batch normalisation over batch, height and width (Ioffe and Szegedy, 2015).
///
/// `y = weight * (x - mean) / sqrt(variance + epsilon) + bias` per channel. A batch is normalised by
/// its biased variance; the running variance moves towards the unbiased one,
/// `running = (1 - momentum) * running + momentum * batch`. Where a channel has a single value, the
/// unbiased variance does not exist and the biased one (zero) is taken.
#[derive(Module, Debug)]
pub struct BatchNorm {
    /// The scale, `[channels]`.
    pub weight: Param<Tensor<1>>,
    /// The shift, `[channels]`.
    pub bias: Param<Tensor<1>>,
    /// The mean that [`NormMode::Running`] subtracts, `[channels]`.
    pub running_mean: Buffer,
    /// The variance that [`NormMode::Running`] divides by, `[channels]`.
    pub running_var: Buffer,
    /// The number added to the variance.
    pub epsilon: f64,
    /// The share of the batch in an update of the running statistics.
    pub momentum: f64,
}

impl BatchNorm {
    /// Builds a norm with scale one, shift zero, running mean zero, running variance one, epsilon 1e-5 and momentum 0.1.
    pub fn new(channels: usize, device: &Device) -> Self {
        let [weight, bias] = identity(channels, device);
        Self {
            weight,
            bias,
            running_mean: Buffer::new(Tensor::zeros([channels], device)),
            running_var: Buffer::new(Tensor::ones([channels], device)),
            epsilon: 1e-5,
            momentum: 0.1,
        }
    }

    /// Normalises `x`, adds the residual if there is one, and applies a ReLU if asked to. All have the shape
    /// `[batch, height, width, channels]`.
    pub fn forward(
        &self,
        x: Tensor<4>,
        residual: Option<Tensor<4>>,
        relu: bool,
        norm: NormMode,
    ) -> Tensor<4> {
        let [batch, height, width, _] = x.dims();
        let (weight, bias, statistics) = self.prepared(norm, &x);
        let out = batch_norm(x, weight, bias, residual, statistics, self.options(relu));
        self.running()
            .follow(out.mean, out.variance, batch * height * width, norm);
        out.y
    }

    /// Computes `conv(relu(norm(x)))`, plus the residual if there is one, without storing what the convolution reads.
    pub fn relu_conv(
        &self,
        x: Tensor<4>,
        conv: &Conv2d,
        residual: Option<Tensor<4>>,
        norm: NormMode,
    ) -> Tensor<4> {
        let [batch, height, width, _] = x.dims();
        let (weight, bias, statistics) = self.prepared(norm, &x);
        let out = norm_conv2d(
            x,
            weight,
            bias,
            statistics,
            self.options(true),
            conv.weight.val(),
            residual,
            conv.options(),
        );
        self.running()
            .follow(out.mean, out.variance, batch * height * width, norm);
        out.y
    }

    /// Returns scale, shift and statistics with which `x`, `[batch, height, width, channels]`, is normalised.
    fn prepared(
        &self,
        norm: NormMode,
        x: &Tensor<4>,
    ) -> (Tensor<1>, Tensor<1>, Option<(Tensor<1>, Tensor<1>)>) {
        let affine = (self.weight.val(), self.bias.val());
        let moments = |gradients| ImageMoments::of_images(x, gradients);
        self.running()
            .for_mode(norm, affine, x.is_autodiff(), moments)
    }

    pub(super) fn running(&self) -> RunningStatistics<'_> {
        RunningStatistics {
            mean: &self.running_mean,
            variance: &self.running_var,
            momentum: self.momentum,
            layer: NormLayer {
                weight: Some(self.weight.id),
                bias: Some(self.bias.id),
                mean: self.running_mean.id,
                variance: self.running_var.id,
                epsilon: self.epsilon,
            },
        }
    }

    pub(super) fn options(&self, relu: bool) -> BatchNormOptions {
        BatchNormOptions {
            epsilon: self.epsilon as f32,
            activation: activation(relu),
        }
    }
}

/// The tensors of a batch norm by their identities, and what it adds to the variance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormLayer {
    /// The scale; `None` where it is computed and not a tensor of the network.
    pub weight: Option<ParamId>,
    /// The shift, likewise.
    pub bias: Option<ParamId>,
    /// The running mean.
    pub mean: ParamId,
    /// The running variance.
    pub variance: ParamId,
    /// The number added to the variance under the square root.
    pub epsilon: f64,
}

/// The moments of what every image of a batch brings to a batch norm, outside the autodiff graph unless they are made
/// [with gradients](Self::with_gradients).
#[derive(Clone, Debug)]
pub struct ImageMoments {
    /// The mean of every image and channel over height and width, `[batch, channels]`.
    pub mean: Tensor<2>,
    /// The biased variance of the same, `[batch, channels]`.
    pub variance: Tensor<2>,
}

impl ImageMoments {
    /// Computes the moments of `[batch, height, width, channels]`.
    pub fn of(x: &Tensor<4>) -> Self {
        let (mean, variance) = image_moments(x.clone());
        Self { mean, variance }
    }

    /// Computes the moments of `[batch, height, width, channels]`, through which gradients pass to `x`.
    pub fn with_gradients(x: &Tensor<4>) -> Self {
        let [batch, height, width, channels] = x.dims();
        let images: Tensor<3> = x.clone().reshape([batch, height * width, channels]);
        let mean = images.clone().mean_dim(1);
        let variance = (images - mean.clone()).square().mean_dim(1);
        Self {
            mean: mean.reshape([batch, channels]),
            variance: variance.reshape([batch, channels]),
        }
    }

    /// Computes the moments with gradients or without.
    pub(crate) fn of_images(x: &Tensor<4>, gradients: bool) -> Self {
        if gradients {
            Self::with_gradients(x)
        } else {
            Self::of(x)
        }
    }

    /// Joins the images: mean and biased variance of the whole batch, `[channels]` each.
    pub(crate) fn of_batch(self) -> (Tensor<1>, Tensor<1>) {
        let [_, channels] = self.mean.dims();
        let mean = self.mean.clone().mean_dim(0);
        let spread = (self.mean - mean.clone()).square();
        let variance = (self.variance + spread).mean_dim(0);
        (mean.reshape([channels]), variance.reshape([channels]))
    }
}

/// Chooses the statistics that batch norms use in a pass with [`NormMode::Ruled`].
pub trait NormRule: std::fmt::Debug + Sync {
    /// Returns mean and variance, `[channels]` each, that the layer uses for this batch and stores, or `None` for those it has
    /// stored already. Layers ask in the order in which they run, so what a layer sees was normalised by the rule before it.
    fn statistics(&self, layer: &NormLayer, moments: &ImageMoments)
    -> Option<(Vec<f32>, Vec<f32>)>;

    /// Whether gradients pass through the statistics of the batch, as if the layer had normalised by those. Otherwise the statistics
    /// are constants to gradients.
    fn batch_gradients(&self) -> bool {
        false
    }
}

/// Keeps statistics of batch norms outside of the network, for passes with [`NormMode::Kept`]: where several networks share parameters,
/// each has statistics of its own.
pub trait NormKeeper: std::fmt::Debug + Sync {
    /// Returns mean and variance, `[channels]` each, that the layer uses for this batch, as functions of the images' moments, so that
    /// gradients pass through them. Layers ask in the order in which they run.
    fn statistics(&self, layer: &NormLayer, moments: &ImageMoments) -> (Tensor<1>, Tensor<1>);
}

/// The running statistics of a batch norm, wherever they are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningStatistics<'a> {
    /// The running mean, `[channels]`.
    pub mean: &'a Buffer,
    /// The running variance, `[channels]`.
    pub variance: &'a Buffer,
    /// The share of the batch in an update.
    pub momentum: f64,
    /// The layer they belong to.
    pub layer: NormLayer,
}

impl RunningStatistics<'_> {
    /// Returns mean and variance, `[channels]` each.
    pub(crate) fn values(self) -> (Tensor<1>, Tensor<1>) {
        (self.mean.value(), self.variance.value())
    }

    /// Returns scale and shift, `[channels]` each, and the mean and variance to normalise by, or `None` where they are the batch's. A
    /// rule is shown the `moments` of the images, and its statistics are stored.
    ///
    /// Where the rule wants gradients of the batch and the input is `tracked`, a norm with statistics `m`, `v` is written as one with
    /// those of the batch, `m_b` and `v_b` (batch renormalisation, Ioffe, 2017):
    ///
    /// ```text
    /// scale (x - m) / sqrt(v + e) + shift  =  scale r (x - m_b) / sqrt(v_b + e) + shift + scale d
    /// r = sqrt((v_b + e) / (v + e)),   d = (m_b - m) / sqrt(v + e),   both constants
    /// ```
    ///
    /// It computes the same, and no gradient asks for what the next statistics would undo.
    ///
    /// `moments` is told whether gradients have to pass through them.
    pub(crate) fn for_mode(
        self,
        norm: NormMode,
        (scale, shift): (Tensor<1>, Tensor<1>),
        tracked: bool,
        moments: impl FnOnce(bool) -> ImageMoments,
    ) -> (Tensor<1>, Tensor<1>, Option<(Tensor<1>, Tensor<1>)>) {
        let rule = match norm {
            NormMode::Running => return (scale, shift, Some(self.values())),
            NormMode::Batch | NormMode::BatchUpdating | NormMode::Blending { .. } => {
                return (scale, shift, None);
            }
            NormMode::Kept(keeper) => {
                let statistics = keeper.statistics(&self.layer, &moments(tracked));
                return self.through(statistics, (scale, shift));
            }
            NormMode::Ruled(rule) => rule,
        };
        let moments = moments(false);
        let Some((mean, variance)) = rule.statistics(&self.layer, &moments) else {
            return (scale, shift, Some(self.values()));
        };
        let device = self.mean.value().device();
        self.mean.set(Tensor::from_floats(mean.as_slice(), &device));
        self.variance
            .set(Tensor::from_floats(variance.as_slice(), &device));
        let (mean, variance) = self.values();
        if !(tracked && rule.batch_gradients()) {
            return (scale, shift, Some((mean, variance)));
        }
        let (batch_mean, batch_variance) = moments.of_batch();
        let epsilon = self.layer.epsilon;
        let deviation = (variance + epsilon).sqrt();
        let ratio = (batch_variance + epsilon).sqrt() / deviation.clone();
        let offset = (batch_mean - mean) / deviation;
        let shift = shift + scale.clone() * offset;
        (scale * ratio, shift, None)
    }

    /// Stores statistics, and returns scale and shift with which a norm that takes them for constants has the gradients of one that does
    /// not. With the constants `m_c = m` and `v_c = v`:
    ///
    /// ```text
    /// scale (x - m) / sqrt(v + e) + shift  =  scale r (x - m_c) / sqrt(v_c + e) + shift + scale (m_c - m) / sqrt(v + e)
    /// r = sqrt(v_c + e) / sqrt(v + e)
    /// ```
    fn through(
        self,
        (mean, variance): (Tensor<1>, Tensor<1>),
        (scale, shift): (Tensor<1>, Tensor<1>),
    ) -> (Tensor<1>, Tensor<1>, Option<(Tensor<1>, Tensor<1>)>) {
        let device = self.mean.value().device();
        let constant = |tensor: &Tensor<1>| Tensor::from_data(tensor.to_data(), &device);
        self.mean.set(constant(&mean));
        self.variance.set(constant(&variance));
        let stored = self.values();
        let epsilon = self.layer.epsilon;
        let deviation = (variance + epsilon).sqrt();
        let ratio = (stored.1.clone() + epsilon).sqrt() / deviation.clone();
        let offset = (stored.0.clone() - mean) / deviation;
        let shift = shift + scale.clone() * offset;
        (scale * ratio, shift, Some(stored))
    }

    /// Moves the running statistics towards those of a batch of `count` values per channel, where the mode says so.
    pub(crate) fn follow(self, mean: Tensor<1>, variance: Tensor<1>, count: usize, norm: NormMode) {
        let momentum = match norm {
            NormMode::Running | NormMode::Batch | NormMode::Ruled(_) | NormMode::Kept(_) => return,
            NormMode::BatchUpdating => self.momentum,
            NormMode::Blending { momentum } => momentum,
        };
        let count = count as f64;
        let unbiased = if count > 1.0 {
            count / (count - 1.0)
        } else {
            1.0
        };
        let blend = |running: &Buffer, new: Tensor<1>| {
            running.set(running.value() * (1.0 - momentum) + new * momentum);
        };
        blend(self.mean, mean);
        blend(self.variance, variance * unbiased);
    }
}

/// Returns what follows a norm that has a ReLU behind it or not.
fn activation(relu: bool) -> Activation {
    if relu {
        Activation::Relu
    } else {
        Activation::None
    }
}

/// Group normalisation (Wu and He, 2018): each image is normalised by its own mean and biased variance over height,
/// width and the channels of a group, whatever else is in the batch.
#[derive(Module, Debug)]
pub struct GroupNorm {
    /// The scale, `[channels]`.
    pub weight: Param<Tensor<1>>,
    /// The shift, `[channels]`.
    pub bias: Param<Tensor<1>>,
    /// The number of groups, which divides that of the channels.
    pub groups: usize,
    /// The number added to the variance.
    pub epsilon: f64,
}

impl GroupNorm {
    /// Builds a norm with scale one, shift zero and epsilon 1e-5.
    ///
    /// # Panics
    /// If `groups` does not divide `channels`.
    pub fn new(channels: usize, groups: usize, device: &Device) -> Self {
        assert_eq!(
            channels % groups,
            0,
            "{groups} groups do not divide {channels} channels"
        );
        let [weight, bias] = identity(channels, device);
        Self {
            weight,
            bias,
            groups,
            epsilon: 1e-5,
        }
    }

    /// Normalises `x`, `[batch, height, width, channels]`, and applies a ReLU if asked to.
    pub fn forward(&self, x: Tensor<4>, relu: bool) -> Tensor<4> {
        let options = GroupNormOptions {
            groups: self.groups,
            epsilon: self.epsilon as f32,
            activation: activation(relu),
        };
        group_norm(x, self.weight.val(), self.bias.val(), options)
    }
}

/// Layer normalisation (Ba et al., 2016): each row is normalised by its own mean and biased variance, over the last axis.
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// The scale, `[width]`.
    pub weight: Param<Tensor<1>>,
    /// The shift, `[width]`.
    pub bias: Param<Tensor<1>>,
    /// The number added to the variance.
    pub epsilon: f64,
}

impl LayerNorm {
    /// Builds a norm with scale one, shift zero and epsilon 1e-5.
    pub fn new(width: usize, device: &Device) -> Self {
        let [weight, bias] = identity(width, device);
        Self {
            weight,
            bias,
            epsilon: 1e-5,
        }
    }

    /// Normalises `x`, `[.., width]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let shape = x.dims();
        let width = self.weight.lazy_shape()[0];
        let rows: Tensor<2> = x.reshape([shape.iter().product::<usize>() / width, width]);
        let (weight, bias) = (self.weight.val(), self.bias.val());
        layer_norm(rows, weight, bias, self.epsilon as f32).reshape(shape)
    }
}

/// Holds a norm of either kind, where an architecture leaves the choice open.
#[derive(Module, Debug)]
pub enum Norm {
    /// Normalises each channel over the batch.
    Batch(BatchNorm),
    /// Normalises each group of channels of each image.
    Group(GroupNorm),
}

impl Norm {
    /// Computes `relu(norm(x))`, `[batch, height, width, channels]`.
    pub fn relu(&self, x: Tensor<4>, norm: NormMode) -> Tensor<4> {
        match self {
            Self::Batch(layer) => layer.forward(x, None, true, norm),
            Self::Group(layer) => layer.forward(x, true),
        }
    }

    /// Computes `conv(relu(norm(x)))`, plus the residual if there is one.
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
