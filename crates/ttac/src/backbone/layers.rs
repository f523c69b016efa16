//! Convolution and linear layers with PyTorch's parameter names and layouts, for networks of this crate and of your own.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, activation::relu};
use ttac_kernels::{ConvOptions, conv_norm_inference, conv2d, conv2d_add};

use super::{BatchNorm, NormMode};

/// A convolution without a bias, on activations `[batch, height, width, channels]`.
#[derive(Module, Debug)]
pub struct Conv2d {
    /// The weight, `[out_channels, in_channels, k, k]`.
    pub weight: Param<Tensor<4>>,
    /// The distance between windows in pixels.
    pub stride: usize,
    /// The number of zeros added on each side of the image.
    pub padding: usize,
}

impl Conv2d {
    /// Builds a convolution with zero weights. Its padding is `kernel / 2`, which keeps the size at stride one.
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

    /// Maps `[batch, height, width, in_channels]` to `[batch, out_height, out_width, out_channels]`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        conv2d(x, self.weight.val(), self.options())
    }

    /// Computes `conv(x) + residual` in one pass.
    pub fn forward_add(&self, x: Tensor<4>, residual: Tensor<4>) -> Tensor<4> {
        conv2d_add(x, self.weight.val(), None, Some(residual), self.options())
    }

    pub(super) fn options(&self) -> ConvOptions {
        ConvOptions::square(self.stride, self.padding)
    }
}

/// The step behind the last normalisation in [`conv_norm`] and [`conv_norms`].
#[derive(Debug)]
pub enum Then {
    /// Leaves the normalised values as they are.
    Nothing,
    /// Applies a ReLU, `max(0, .)`.
    Relu,
    /// Adds a residual and applies a ReLU, `max(0, . + residual)`.
    AddRelu(Tensor<4>),
}

/// Applies a convolution and a batch norm, the pair that networks are made of which normalise after they convolve.
pub fn conv_norm(
    conv: &Conv2d,
    layer: &BatchNorm,
    x: Tensor<4>,
    then: Then,
    norm: NormMode,
) -> Tensor<4> {
    conv_norms(&[], (conv, layer), x, then, norm)
}

/// Applies pairs of convolution and batch norm: the inner ones with a ReLU behind each, then the last with what `then` says. With
/// running statistics and without gradients the norms are folded into the convolutions. With statistics of the batch the result of an
/// inner norm goes straight into the next convolution and is never stored.
pub fn conv_norms(
    inner: &[(&Conv2d, &BatchNorm)],
    last: (&Conv2d, &BatchNorm),
    mut x: Tensor<4>,
    then: Then,
    norm: NormMode,
) -> Tensor<4> {
    let (residual, relu) = match then {
        Then::Nothing => (None, false),
        Then::Relu => (None, true),
        Then::AddRelu(residual) => (Some(residual), true),
    };
    match norm {
        NormMode::Running => {
            for (conv, layer) in inner {
                x = running(conv, layer, x, None, true);
            }
            running(last.0, last.1, x, residual, relu)
        }
        NormMode::Batch
        | NormMode::BatchUpdating
        | NormMode::Blending { .. }
        | NormMode::Ruled(_)
        | NormMode::Kept(_) => {
            let mut before: Option<&BatchNorm> = None;
            for &(conv, layer) in inner.iter().chain([&last]) {
                x = match before {
                    None => conv.forward(x),
                    Some(before) => before.relu_conv(x, conv, None, norm),
                };
                before = Some(layer);
            }
            last.1.forward(x, residual, relu, norm)
        }
    }
}

fn running(
    conv: &Conv2d,
    layer: &BatchNorm,
    x: Tensor<4>,
    residual: Option<Tensor<4>>,
    relu: bool,
) -> Tensor<4> {
    conv_norm_inference(
        x,
        conv.weight.val(),
        conv.options(),
        layer.weight.val(),
        layer.bias.val(),
        residual,
        (layer.running_mean.value(), layer.running_var.value()),
        layer.options(relu),
    )
}

/// A linear layer: `y = x * weight^T + bias`.
#[derive(Module, Debug)]
pub struct Linear {
    /// The weight, `[outputs, inputs]`.
    pub weight: Param<Tensor<2>>,
    /// The bias, `[outputs]`.
    pub bias: Param<Tensor<1>>,
}

impl Linear {
    /// Builds a layer with zero weights.
    pub fn new(inputs: usize, outputs: usize, device: &Device) -> Self {
        Self {
            weight: Param::from_tensor(Tensor::zeros([outputs, inputs], device)),
            bias: Param::from_tensor(Tensor::zeros([outputs], device)),
        }
    }

    /// Maps `[batch, inputs]` to `[batch, outputs]`.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x.matmul(self.weight.val().transpose()) + self.bias.val().unsqueeze()
    }
}

/// Builds a stage of residual blocks: the first one changes channels and size, the others keep both. `block` gets the numbers
/// of input and output channels, and the stride.
pub(super) fn stage<B>(
    blocks: usize,
    in_channels: usize,
    channels: usize,
    stride: usize,
    block: impl Fn(usize, usize, usize) -> B,
) -> Vec<B> {
    let first = std::iter::once(block(in_channels, channels, stride));
    let others = (1..blocks).map(|_| block(channels, channels, 1));
    first.chain(others).collect()
}

/// Stands for a step without parameters in a tuple of layers. Published checkpoints number all steps of a sequence; this one keeps
/// the count right.
#[derive(Module, Debug, Default)]
pub struct Parameterless;

/// A contrastive projection head: linear, ReLU, linear; keys `head.0.*` and `head.2.*`.
pub type ProjectionHead = (Linear, Parameterless, Linear);

/// Builds a projection head with zero weights. Its hidden layer is as wide as the features.
pub fn projection_head(features: usize, outputs: usize, device: &Device) -> ProjectionHead {
    (
        Linear::new(features, features, device),
        Parameterless,
        Linear::new(features, outputs, device),
    )
}

/// Computes the output of a projection head: `[batch, features]` to `[batch, outputs]`.
pub fn project((first, _, second): &ProjectionHead, features: Tensor<2>) -> Tensor<2> {
    second.forward(relu(first.forward(features)))
}
