//! The ops as networks see them: functions on Burn tensors, activations NHWC.

use std::sync::atomic::{AtomicU8, Ordering};

use burn::backend::{Dispatch, Flex};
use burn::tensor::Tensor;

use crate::composed;
use crate::extension::{
    self, FastOps, NormConvOptions, Optional, Statistics, conv_shape, convolve,
};
use crate::kernels::{Algorithm, SgdConstants};

/// Who computes an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// Burn's own ops, on every backend.
    Composed,
    /// Our kernels, with this algorithm for convolutions.
    Kernels(Algorithm),
}

const CHOICES: [Implementation; 5] = [
    Implementation::Kernels(Algorithm::Auto),
    Implementation::Kernels(Algorithm::Direct),
    Implementation::Kernels(Algorithm::Winograd2),
    Implementation::Kernels(Algorithm::Winograd4),
    Implementation::Composed,
];

static FORCED: AtomicU8 = AtomicU8::new(0);

/// Chooses the implementation for the whole process, for tests and benchmarks. The default is
/// `Kernels(Auto)`; on other backends than the CPU it is always `Composed`.
pub fn force(implementation: Implementation) {
    let index = CHOICES.iter().position(|choice| *choice == implementation);
    FORCED.store(index.unwrap_or_default() as u8, Ordering::Relaxed);
}

/// The algorithm for convolutions if our kernels are to compute with these tensors.
pub(crate) fn fast<const D: usize>(x: &Tensor<D>) -> Option<Algorithm> {
    use burn::backend::DispatchDevice;
    let device = x.device().without_autodiff();
    let on_cpu = matches!(device.as_dispatch(), DispatchDevice::Flex(_));
    match CHOICES[FORCED.load(Ordering::Relaxed) as usize] {
        Implementation::Kernels(algorithm) if on_cpu => Some(algorithm),
        _ => None,
    }
}

/// Stride and zero padding of a convolution, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions {
    /// Distance between two neighbouring windows.
    pub stride: usize,
    /// Zeros added on each side.
    pub padding: usize,
}

/// Window, stride and padding of a pooling op, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Side of the square window.
    pub kernel: usize,
    /// Distance between two neighbouring windows.
    pub stride: usize,
    /// Positions added on each side; they never win a maximum.
    pub padding: usize,
}

/// What [`batch_norm`] does besides normalising.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormOptions {
    /// Added to the variance under the square root.
    pub epsilon: f32,
    /// Whether `max(0, .)` follows.
    pub relu: bool,
}

/// What [`group_norm`] does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNormOptions {
    /// Number of groups of neighbouring channels.
    pub groups: usize,
    /// Added to the variance under the square root.
    pub epsilon: f32,
    /// Whether `max(0, .)` follows.
    pub relu: bool,
}

/// Result of [`batch_norm`].
#[derive(Clone, Debug)]
pub struct Normalised {
    /// The normalised activations, `[batch, height, width, channels]`.
    pub y: Tensor<4>,
    /// The mean that was used, `[channels]`, outside the autodiff graph.
    pub mean: Tensor<1>,
    /// The variance that was used (of a batch: the biased one), `[channels]`, outside the graph.
    pub variance: Tensor<1>,
}

/// Convolution without bias.
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

/// [`conv2d`] plus a `residual` of the result's shape, in one pass.
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
    match fast(&x) {
        Some(algorithm) => Tensor::from_dispatch(Dispatch::fast_conv2d(
            x.into_dispatch(),
            weight.into_dispatch(),
            optional(residual),
            options,
            algorithm,
        )),
        None => composed::conv2d(x, weight, residual, options),
    }
}

fn optional(tensor: Option<Tensor<4>>) -> Optional<Dispatch> {
    tensor.map_or(Optional::None, |tensor| {
        Optional::Some(tensor.into_dispatch())
    })
}

fn given(statistics: Option<(Tensor<1>, Tensor<1>)>) -> Statistics<Dispatch> {
    statistics.map_or(Statistics::Batch, |(mean, variance)| {
        Statistics::Fixed(mean.into_dispatch(), variance.into_dispatch())
    })
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

/// Convolution and batch norm with given statistics in one pass, for inference:
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
    let algorithm = match fast(&x) {
        Some(algorithm) if !x.is_autodiff() && !weight.is_autodiff() => algorithm,
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
    let shape = conv_shape(&x.shape(), &weight.shape(), options);
    let flex = |tensor: Tensor<4>| {
        let primitive = tensor.try_into_primitive::<Flex>();
        primitive.expect("the device was checked above")
    };
    let residual = residual.map(flex);
    let y = convolve(
        flex(x),
        None,
        flex(weight),
        &shape,
        algorithm,
        Some(&bias),
        residual,
        norm.relu,
    );
    Tensor::from_primitive::<Flex>(y)
}

/// Batch normalisation, with the residual addition and the ReLU that usually follow it:
///
/// `y = act(gamma * (x - mean) / sqrt(variance + epsilon) + beta [+ residual])`.
///
/// Without `statistics`, mean and biased variance of `x` over batch, height and width are used and
/// differentiated through; given statistics are constants.
///
/// # Shapes
/// - `x`, `residual`, `y`: `[batch, height, width, channels]`
/// - `gamma`, `beta`, `mean`, `variance`: `[channels]`
///
/// # Panics
/// If the shapes do not fit together.
pub fn batch_norm(
    x: Tensor<4>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    residual: Option<Tensor<4>>,
    statistics: Option<(Tensor<1>, Tensor<1>)>,
    options: BatchNormOptions,
) -> Normalised {
    check_norm(&x, &gamma, &beta);
    if let Some(residual) = &residual {
        assert_eq!(residual.dims(), x.dims(), "batch_norm: residual and input");
    }
    if fast(&x).is_none() {
        return composed::batch_norm(x, gamma, beta, residual, statistics, options);
    }
    let (y, mean, variance) = Dispatch::fast_batch_norm(
        x.into_dispatch(),
        gamma.into_dispatch(),
        beta.into_dispatch(),
        optional(residual),
        given(statistics),
        options,
    );
    Normalised {
        y: Tensor::from_dispatch(y),
        mean: Tensor::from_dispatch(mean),
        variance: Tensor::from_dispatch(variance),
    }
}

fn check_norm(x: &Tensor<4>, gamma: &Tensor<1>, beta: &Tensor<1>) {
    let [_, _, _, channels] = x.dims();
    assert!(
        gamma.dims() == [channels] && beta.dims() == [channels],
        "batch_norm: input {:?} does not fit scale {:?} and shift {:?}",
        x.dims(),
        gamma.dims(),
        beta.dims()
    );
}

/// A convolution of a batch norm's result, `conv(act(norm(x))) [+ residual]`, in one pass: the norm's result is never stored, neither now
/// nor for the backward pass. The same bits as [`batch_norm`] and then [`conv2d`] or [`conv2d_add`].
///
/// `y` of the result is the convolution's; mean and variance are those of the norm.
///
/// # Panics
/// As the two.
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
    check_norm(&x, &gamma, &beta);
    check_conv(&x, &weight, residual.as_ref(), options);
    let Some(algorithm) = fast(&x) else {
        let normalised = composed::batch_norm(x, gamma, beta, None, statistics, norm);
        let y = composed::conv2d(normalised.y, weight, residual, options);
        return Normalised { y, ..normalised };
    };
    let (y, mean, variance) = Dispatch::fast_norm_conv2d(
        x.into_dispatch(),
        gamma.into_dispatch(),
        beta.into_dispatch(),
        given(statistics),
        weight.into_dispatch(),
        optional(residual),
        NormConvOptions {
            norm,
            conv: options,
            algorithm,
        },
    );
    Normalised {
        y: Tensor::from_dispatch(y),
        mean: Tensor::from_dispatch(mean),
        variance: Tensor::from_dispatch(variance),
    }
}

/// Group normalisation, with the ReLU that often follows it:
///
/// `y = act(gamma * (x - mean) / sqrt(variance + epsilon) + beta)` with mean and biased variance of each
/// image over height, width and the channels of a group.
///
/// # Shapes
/// - `x`, `y`: `[batch, height, width, channels]`
/// - `gamma`, `beta`: `[channels]`
///
/// # Panics
/// If the shapes do not fit together or the groups do not divide the channels.
pub fn group_norm(
    x: Tensor<4>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    options: GroupNormOptions,
) -> Tensor<4> {
    let [_, _, _, channels] = x.dims();
    assert!(
        gamma.dims() == [channels] && beta.dims() == [channels],
        "group_norm: input {:?} does not fit scale {:?} and shift {:?}",
        x.dims(),
        gamma.dims(),
        beta.dims()
    );
    assert!(
        options.groups > 0 && channels.is_multiple_of(options.groups),
        "group_norm: {} groups do not divide the channels of input {:?}",
        options.groups,
        x.dims()
    );
    match fast(&x) {
        Some(_) => Tensor::from_dispatch(Dispatch::fast_group_norm(
            x.into_dispatch(),
            gamma.into_dispatch(),
            beta.into_dispatch(),
            options,
        )),
        None => composed::group_norm(x, gamma, beta, options),
    }
}

/// Mean over height and width: `[batch, height, width, channels]` to `[batch, channels]`.
pub fn global_average_pool(x: Tensor<4>) -> Tensor<2> {
    match fast(&x) {
        Some(_) => Tensor::from_dispatch(Dispatch::fast_global_average_pool(x.into_dispatch())),
        None => composed::global_average_pool(x),
    }
}

/// Mean over windows: `[batch, height, width, channels]` to `[batch, out_height, out_width, channels]`.
pub fn average_pool(x: Tensor<4>, options: PoolOptions) -> Tensor<4> {
    match fast(&x) {
        Some(_) => Tensor::from_dispatch(Dispatch::fast_average_pool(x.into_dispatch(), options)),
        None => composed::average_pool(x, options),
    }
}

/// Maximum over windows: `[batch, height, width, channels]` to `[batch, out_height, out_width, channels]`.
pub fn max_pool(x: Tensor<4>, options: PoolOptions) -> Tensor<4> {
    match fast(&x) {
        Some(_) => Tensor::from_dispatch(Dispatch::fast_max_pool(x.into_dispatch(), options)),
        None => composed::max_pool(x, options),
    }
}

/// The parameter-free "option A" shortcut of He et al.: every `stride`-th pixel, channels padded
/// with zeros to `out_channels`, half of them before and half after.
///
/// `[batch, height, width, channels]` to `[batch, ceil(height / stride), ceil(width / stride), out_channels]`.
pub fn shortcut_a(x: Tensor<4>, out_channels: usize, stride: usize) -> Tensor<4> {
    let [_, _, _, channels] = x.dims();
    assert!(
        out_channels >= channels,
        "shortcut_a: cannot shrink input {:?} to {out_channels} channels",
        x.dims()
    );
    match fast(&x) {
        Some(_) => Tensor::from_dispatch(Dispatch::fast_shortcut_a(
            x.into_dispatch(),
            out_channels,
            stride,
        )),
        None => composed::shortcut_a(x, out_channels, stride),
    }
}

/// A scalar loss of value `value` whose gradient with respect to `x` is `gradient`.
///
/// For losses with a closed-form gradient: compute both outside autodiff, hand them in here, and
/// the backward pass starts from them. The scalar can be scaled and added to other losses.
///
/// # Panics
/// If `x` and `gradient` differ in shape.
pub fn loss_with_gradient<const D: usize>(
    x: Tensor<D>,
    gradient: Tensor<D>,
    value: f32,
) -> Tensor<1> {
    assert_eq!(
        x.dims(),
        gradient.dims(),
        "loss_with_gradient: input and gradient"
    );
    composed::loss_with_gradient(x, gradient, value)
}

/// A step of stochastic gradient descent on one parameter, outside the autodiff graph:
///
/// `v = momentum v + g; p = p - learning_rate v` with `g` the gradient plus `weight_decay p`.
///
/// Returns the parameter and, with momentum, the velocity; without a `velocity` this is the first step,
/// and `g` becomes it. Our kernel does it in one pass, to the bits of [`composed::sgd_step`].
///
/// # Panics
/// If the shapes differ.
pub fn sgd_step<const D: usize>(
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    velocity: Option<Tensor<D>>,
    constants: SgdConstants,
) -> (Tensor<D>, Option<Tensor<D>>) {
    assert_eq!(
        parameter.dims(),
        gradient.dims(),
        "sgd_step: parameter and gradient"
    );
    if let Some(velocity) = &velocity {
        assert_eq!(
            parameter.dims(),
            velocity.dims(),
            "sgd_step: parameter and velocity"
        );
    }
    if fast(&parameter).is_none() {
        return composed::sgd_step(parameter, gradient, velocity, constants);
    }
    let flex = |tensor: Tensor<D>| {
        let primitive = tensor.try_into_primitive::<Flex>();
        primitive.expect("optimisers work outside the graph, and the device was checked above")
    };
    let velocity = velocity.map(flex);
    let (parameter, velocity) =
        extension::sgd_step(flex(parameter), flex(gradient), velocity, constants);
    let back = Tensor::from_primitive::<Flex>;
    (back(parameter), velocity.map(back))
}
