//! Batch norm, group norm and the moments of images on tensors.

use burn::backend::Dispatch;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Tensor;

use super::burn::NormOps;
use super::composed;
use crate::activation::kernel::Activation;
use crate::core::extension::{Optional, StatisticsSource, kernels_for};

/// Settings of [`batch_norm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormOptions {
    /// A small number that is added to the variance under the square root.
    pub epsilon: f32,
    /// What is applied to the result.
    pub activation: Activation,
}

/// Settings of [`group_norm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNormOptions {
    /// The number of groups of neighbouring channels.
    pub groups: usize,
    /// A small number that is added to the variance under the square root.
    pub epsilon: f32,
    /// What is applied to the result.
    pub activation: Activation,
}

/// The result of an op that normalises, and the statistics that it used.
#[derive(Clone, Debug)]
pub struct Normalised<const D: usize = 4> {
    /// The result, for instance `[batch, height, width, channels]`.
    pub y: Tensor<D>,
    /// The mean that was used, `[channels]`, outside the autodiff graph.
    pub mean: Tensor<1>,
    /// The variance that was used (of a batch: the biased one), `[channels]`, outside the graph.
    pub variance: Tensor<1>,
}

impl<const D: usize> Normalised<D> {
    pub(crate) fn from_dispatch(
        (y, mean, variance): (
            FloatTensor<Dispatch>,
            FloatTensor<Dispatch>,
            FloatTensor<Dispatch>,
        ),
    ) -> Self {
        Self {
            y: Tensor::from_dispatch(y),
            mean: Tensor::from_dispatch(mean),
            variance: Tensor::from_dispatch(variance),
        }
    }
}

/// Panics unless scale and shift belong to the channels of the input.
pub(crate) fn check_channels<const D: usize>(
    what: &str,
    x: &Tensor<D>,
    gamma: &Tensor<1>,
    beta: &Tensor<1>,
) {
    let channels = x.dims()[D - 1];
    assert!(
        gamma.dims() == [channels] && beta.dims() == [channels],
        "{what}: input {:?} does not fit scale {:?} and shift {:?}",
        x.dims(),
        gamma.dims(),
        beta.dims()
    );
}

/// Normalises over the batch, with the residual addition and the activation that usually follow:
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
    check_channels("batch_norm", &x, &gamma, &beta);
    if let Some(residual) = &residual {
        assert_eq!(residual.dims(), x.dims(), "batch_norm: residual and input");
    }
    let Some(context) = kernels_for(&x) else {
        return composed::batch_norm(x, (gamma, beta), residual, statistics, options);
    };
    Normalised::from_dispatch(Dispatch::fast_batch_norm(
        x.into_dispatch(),
        gamma.into_dispatch(),
        beta.into_dispatch(),
        Optional::new(residual),
        StatisticsSource::new(statistics),
        options,
        context,
    ))
}

/// Normalises over groups of channels, with the activation that often follows:
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
    check_channels("group_norm", &x, &gamma, &beta);
    let [_, _, _, channels] = x.dims();
    assert!(
        options.groups > 0 && channels.is_multiple_of(options.groups),
        "group_norm: {} groups do not divide the channels of input {:?}",
        options.groups,
        x.dims()
    );
    match kernels_for(&x) {
        Some(context) => Tensor::from_dispatch(Dispatch::fast_group_norm(
            x.into_dispatch(),
            gamma.into_dispatch(),
            beta.into_dispatch(),
            options,
            context,
        )),
        None => composed::group_norm(x, (gamma, beta), options),
    }
}

/// Computes mean and biased variance of every image's every channel over height and width, both outside the autodiff graph.
///
/// The variance is that of the deviations from the mean, without cancellation however far the mean lies from zero; that of an image of one pixel is 0.
///
/// # Shapes
/// - `x`: `[batch, height, width, channels]`
/// - mean and variance: `[batch, channels]`
pub fn image_moments(x: Tensor<4>) -> (Tensor<2>, Tensor<2>) {
    match kernels_for(&x) {
        Some(context) => {
            let (mean, variance) = Dispatch::fast_image_moments(x.into_dispatch(), context);
            (Tensor::from_dispatch(mean), Tensor::from_dispatch(variance))
        }
        None => composed::image_moments(x),
    }
}
