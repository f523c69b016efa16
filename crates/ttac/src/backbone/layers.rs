//! Convolution and linear layers, with PyTorch's parameter names and layouts.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, activation::relu};
use ttac_kernels::{ConvOptions, conv_norm_inference, conv2d, conv2d_add};

use super::{BatchNorm, NormMode};

/// Convolution without bias on NHWC activations.
#[derive(Module, Debug)]
pub struct Conv2d {
    /// `[out_channels, in_channels, k, k]`.
    pub weight: Param<Tensor<4>>,
    /// Distance between windows.
    pub stride: usize,
    /// Zeros on each side.
    pub padding: usize,
}

impl Conv2d {
    /// Weights zero; padding `k / 2`, which keeps the size at stride one.
    pub fn new(
        in_channels: usize,
        out_channels: usize,
        kernel: usize,
        stride: usize,
        device: &Device,
    ) -> Self {
        let shape = [out_channels, in_channels, kernel, kernel];
        Self {
            weight: Param::from_tensor(Tensor::zeros(shape, device)),
            stride,
            padding: kernel / 2,
        }
    }

    /// `[batch, height, width, in_channels]` to `[batch, out_height, out_width, out_channels]`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        conv2d(x, self.weight.val(), self.options())
    }

    /// `conv(x) + residual`.
    pub fn forward_add(&self, x: Tensor<4>, residual: Tensor<4>) -> Tensor<4> {
        conv2d_add(x, self.weight.val(), residual, self.options())
    }

    fn options(&self) -> ConvOptions {
        ConvOptions {
            stride: self.stride,
            padding: self.padding,
        }
    }
}

/// What follows the normalisation in [`conv_norm`].
#[derive(Debug)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// `max(0, .)`.
    Relu,
    /// `max(0, . + residual)`.
    AddRelu(Tensor<4>),
}

/// Convolution and batch norm, the pair every post-activation network is made of. With running
/// statistics and without gradients the norm is folded into the convolution.
pub fn conv_norm(
    conv: &Conv2d,
    layer: &BatchNorm,
    x: Tensor<4>,
    then: Then,
    norm: NormMode,
) -> Tensor<4> {
    let (residual, relu) = match then {
        Then::Nothing => (None, false),
        Then::Relu => (None, true),
        Then::AddRelu(residual) => (Some(residual), true),
    };
    match norm {
        NormMode::Running => conv_norm_inference(
            x,
            conv.weight.val(),
            conv.options(),
            layer.weight.val(),
            layer.bias.val(),
            residual,
            (layer.running_mean.value(), layer.running_var.value()),
            layer.options(relu),
        ),
        NormMode::Batch | NormMode::BatchUpdating | NormMode::Blending { .. } => {
            layer.forward(conv.forward(x), residual, relu, norm)
        }
    }
}

/// `y = x * weight^T + bias`.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[outputs, inputs]`.
    pub weight: Param<Tensor<2>>,
    /// `[outputs]`.
    pub bias: Param<Tensor<1>>,
}

impl Linear {
    /// All zero.
    pub fn new(inputs: usize, outputs: usize, device: &Device) -> Self {
        Self {
            weight: Param::from_tensor(Tensor::zeros([outputs, inputs], device)),
            bias: Param::from_tensor(Tensor::zeros([outputs], device)),
        }
    }

    /// `[batch, inputs]` to `[batch, outputs]`.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x.matmul(self.weight.val().transpose()) + self.bias.val().unsqueeze()
    }
}

/// A step without parameters inside a tuple of layers. Published checkpoints number the parts of
/// a sequence, parameter-free ones included; this keeps the count.
#[derive(Module, Debug, Default)]
pub struct Parameterless;

/// A contrastive projection head: linear, ReLU, linear; keys `head.0.*` and `head.2.*`.
pub type ProjectionHead = (Linear, Parameterless, Linear);

/// A projection head with zero weights, as wide inside as the features.
pub fn projection_head(features: usize, outputs: usize, device: &Device) -> ProjectionHead {
    (
        Linear::new(features, features, device),
        Parameterless,
        Linear::new(features, outputs, device),
    )
}

/// The output of a projection head, `[batch, features]` to `[batch, outputs]`.
pub fn project((first, _, second): &ProjectionHead, features: Tensor<2>) -> Tensor<2> {
    second.forward(relu(first.forward(features)))
}
