//! Convolution on tensors.

use burn::backend::{Dispatch, Flex};
use burn::tensor::Tensor;

use super::burn::{Call, ConvOps, NormConvOptions, conv_shape};
use super::composed;
use crate::core::extension::{Optional, StatisticsSource, flex, kernels_for};
use crate::norm::composed::batch_norm as composed_batch_norm;
use crate::norm::ops::{BatchNormOptions, Normalised, batch_norm, check_channels};

/// Stride and zero padding of a convolution, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions {
    /// The distance between two neighbouring windows.
    pub stride: usize,
    /// The number of zeros that are added on each side.
    pub padding: usize,
}

/// Convolves, without a bias.
///
/// # Shapes
/// - `x`: `[batch, height, width, in_channels]`
/// - `weight`: `[out_channels, in_channels, k, k]` (PyTorch's order)
/// - result: `[batch, out_height, out_width, out_channels]`
///
/// # Panics
/// If the channels of `x` and `weight` differ, or the window does not fit the padded image.
pub fn conv2d(x: Tensor<4>, weight: Tensor<4>, options: ConvOptions) -> Tensor<4> {
    convolution(x, weight, None, options)
}

/// Does what [`conv2d`] does and adds a `residual` of the result's shape, in one pass.
///
/// # Panics
/// As [`conv2d`], or if the residual has another shape.
pub fn conv2d_add(
    x: Tensor<4>,
    weight: Tensor<4>,
    residual: Tensor<4>,
    options: ConvOptions,
) -> Tensor<4> {
    convolution(x, weight, Some(residual), options)
}

fn convolution(
    x: Tensor<4>,
    weight: Tensor<4>,
    residual: Option<Tensor<4>>,
    options: ConvOptions,
) -> Tensor<4> {
    check_conv(&x, &weight, residual.as_ref(), options);
    match kernels_for(&x) {
        Some(context) => Tensor::from_dispatch(Dispatch::fast_conv2d(
            x.into_dispatch(),
            weight.into_dispatch(),
            Optional::new(residual),
            options,
            context,
        )),
        None => composed::conv2d(x, weight, residual, options),
    }
}

fn check_conv(
    x: &Tensor<4>,
    weight: &Tensor<4>,
    residual: Option<&Tensor<4>>,
    options: ConvOptions,
) {
    let ([_, height, width, channels], [_, expected, kernel, other]) = (x.dims(), weight.dims());
    assert!(
        channels == expected && kernel == other,
        "conv2d: input {:?} does not fit weight {:?}",
        x.dims(),
        weight.dims()
    );
    assert!(
        height.min(width) + 2 * options.padding >= kernel,
        "conv2d: window of {kernel} does not fit input {:?} with padding {}",
        x.dims(),
        options.padding
    );
    if let Some(residual) = residual {
        let places = |edge: usize| (edge + 2 * options.padding - kernel) / options.stride + 1;
        let ([batch, ..], [channels, ..]) = (x.dims(), weight.dims());
        assert_eq!(
            residual.dims(),
            [batch, places(height), places(width), channels],
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
        relu: norm.relu,
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
        let y = composed::conv2d(normalised.y, weight, residual, options);
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
