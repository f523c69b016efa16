//! Convolution on tensors.

use burn::backend::{Dispatch, Flex};
use burn::tensor::Tensor;

use super::burn::{Call, ConvOps, NormConvOptions, conv_shape};
use super::composed;
use crate::core::extension::{Optional, StatisticsSource, flex, kernels_for};
use crate::core::window::Window;
use crate::norm::composed::batch_norm as composed_batch_norm;
use crate::norm::ops::{BatchNormOptions, Normalised, batch_norm, check_channels};

/// The options of a convolution: its window without the kernel, whose size the weights tell, and its groups. Everything is given for rows first, then for columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions {
    /// The distance between neighbouring places of the kernel, in pixels.
    pub stride: [usize; 2],
    /// The number of zeros that are added before and after each axis: above and below, left and right.
    pub padding: [[usize; 2]; 2],
    /// The distance between neighbouring taps of the kernel, in pixels.
    pub dilation: [usize; 2],
    /// The number of groups of channels that do not see each other.
    pub groups: usize,
}

impl ConvOptions {
    /// Makes the options of a convolution in one group, without dilation, with the same stride along both axes and the same padding on every side.
    pub const fn square(stride: usize, padding: usize) -> Self {
        Self {
            stride: [stride; 2],
            padding: [[padding; 2]; 2],
            dilation: [1; 2],
            groups: 1,
        }
    }

    /// Returns the window of a kernel.
    pub(crate) const fn window(&self, kernel: [usize; 2]) -> Window {
        Window {
            kernel,
            stride: self.stride,
            dilation: self.dilation,
            padding: self.padding,
        }
    }
}

/// Convolves, without a bias.
///
/// # Shapes
/// - `x`: `[batch, height, width, in_channels]`
/// - `weight`: `[out_channels, in_channels / groups, kernel height, kernel width]` (PyTorch's order)
/// - result: `[batch, out_height, out_width, out_channels]`
///
/// # Panics
/// If the channels of `x`, `weight` and the groups do not fit, or the window does not fit the padded image.
pub fn conv2d(x: Tensor<4>, weight: Tensor<4>, options: ConvOptions) -> Tensor<4> {
    conv2d_add(x, weight, None, None, options)
}

/// Does what [`conv2d`] does and adds a `bias`, `[out_channels]`, and a `residual` of the result's shape, in one pass: `conv(x) [+ bias] [+ residual]`.
///
/// The gradient of the bias is the sum of the result's gradient over all images and pixels, that of the residual is the result's gradient itself.
///
/// # Panics
/// As [`conv2d`], or if the bias or the residual has another shape.
pub fn conv2d_add(
    x: Tensor<4>,
    weight: Tensor<4>,
    bias: Option<Tensor<1>>,
    residual: Option<Tensor<4>>,
    options: ConvOptions,
) -> Tensor<4> {
    check_conv(&x, &weight, residual.as_ref(), options);
    if let Some(bias) = &bias {
        let [channels, ..] = weight.dims();
        assert_eq!(
            bias.dims(),
            [channels],
            "conv2d_add: bias and output channels"
        );
    }
    match kernels_for(&x) {
        Some(context) => Tensor::from_dispatch(Dispatch::fast_conv2d(
            x.into_dispatch(),
            weight.into_dispatch(),
            Optional::new(bias),
            Optional::new(residual),
            options,
            context,
        )),
        None => composed::conv2d(x, weight, bias, residual, options),
    }
}

fn check_conv(
    x: &Tensor<4>,
    weight: &Tensor<4>,
    residual: Option<&Tensor<4>>,
    options: ConvOptions,
) {
    let [batch, height, width, channels] = x.dims();
    let [out_channels, per_group, kernel_height, kernel_width] = weight.dims();
    assert!(
        channels == per_group * options.groups
            && options.groups > 0
            && out_channels.is_multiple_of(options.groups),
        "conv2d: input {:?} does not fit weight {:?} in {} groups",
        x.dims(),
        weight.dims(),
        options.groups
    );
    let window = options.window([kernel_height, kernel_width]);
    window.check("conv2d", &options);
    let [out_height, out_width] = window.places([height, width]);
    assert!(
        out_height > 0 && out_width > 0,
        "conv2d: the window does not fit input {:?}: {window:?}",
        x.dims()
    );
    if let Some(residual) = residual {
        assert_eq!(
            residual.dims(),
            [batch, out_height, out_width, out_channels],
            "conv2d_add: residual and result"
        );
    }
}

/// Convolves and normalises with given statistics in one pass, for inference:
///
/// `act(gamma * (conv(x) - mean) / sqrt(variance + epsilon) + beta [+ residual])`.
///
/// The norm is folded into the weights. No gradient passes through it, so on an autodiff device (and
/// where our kernels do not run) it is [`conv2d`] followed by [`batch_norm`].
#[expect(
    clippy::too_many_arguments,
    reason = "they are those of the two ops it replaces"
)]
pub fn conv_norm_inference(
    x: Tensor<4>,
    weight: Tensor<4>,
    options: ConvOptions,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    residual: Option<Tensor<4>>,
    statistics: (Tensor<1>, Tensor<1>),
    norm: BatchNormOptions,
) -> Tensor<4> {
    let context = match kernels_for(&x) {
        Some(context) if !x.is_autodiff() && !weight.is_autodiff() => context,
        _ => {
            let y = conv2d(x, weight, options);
            return batch_norm(y, gamma, beta, residual, Some(statistics), norm).y;
        }
    };
    let (mean, variance) = statistics;
    let scale = gamma / (variance + norm.epsilon).sqrt();
    let bias = beta - mean * scale.clone();
    let [channels, _, _, _] = weight.dims();
    let weight = weight * scale.reshape([channels, 1, 1, 1]);
    let bias: Vec<f32> = bias.to_data().try_to_vec().expect("tensors are f32");
    let call = Call {
        shape: conv_shape(&x.shape(), &weight.shape(), options),
        norm: None,
        bias: Some(&bias),
        activation: norm.activation,
        context: &context,
    };
    let y = call.forward(flex(x), flex(weight), residual.map(flex));
    Tensor::from_primitive::<Flex>(y)
}

/// Convolves a batch norm's result, `conv(act(norm(x))) [+ residual]`, in one pass: the norm's result is never stored, neither now
/// nor for the backward pass. It gives the same bits as [`batch_norm`] and then [`conv2d`] or [`conv2d_add`].
///
/// `y` of the result is the convolution's; mean and variance are those of the norm.
///
/// # Panics
/// Where [`batch_norm`] or [`conv2d`] panics.
#[expect(
    clippy::too_many_arguments,
    reason = "they are those of the two ops it replaces"
)]
pub fn norm_conv2d(
    x: Tensor<4>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    statistics: Option<(Tensor<1>, Tensor<1>)>,
    norm: BatchNormOptions,
    weight: Tensor<4>,
    residual: Option<Tensor<4>>,
    options: ConvOptions,
) -> Normalised {
    check_channels("norm_conv2d", &x, &gamma, &beta);
    check_conv(&x, &weight, residual.as_ref(), options);
    let Some(context) = kernels_for(&x) else {
        let normalised = composed_batch_norm(x, (gamma, beta), None, statistics, norm);
        let y = composed::conv2d(normalised.y, weight, None, residual, options);
        return Normalised { y, ..normalised };
    };
    Normalised::from_dispatch(Dispatch::fast_norm_conv2d(
        x.into_dispatch(),
        gamma.into_dispatch(),
        beta.into_dispatch(),
        StatisticsSource::new(statistics),
        weight.into_dispatch(),
        Optional::new(residual),
        NormConvOptions {
            norm,
            conv: options,
            context,
        },
    ))
}
