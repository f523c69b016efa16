//! Batch norm, group norm and the moments of images as compositions of Burn's own ops.

use burn::tensor::Tensor;

use super::ops::{BatchNormOptions, GroupNormOptions, Normalised};
use crate::activation::composed::activate;

/// Normalises rows, `[rows, channels]`, over all of them or by given statistics; returns the result and, outside the graph, the statistics.
pub(crate) fn normalise_rows(
    x: Tensor<2>,
    (gamma, beta): (Tensor<1>, Tensor<1>),
    statistics: Option<(Tensor<1>, Tensor<1>)>,
    epsilon: f32,
) -> (Tensor<2>, Tensor<1>, Tensor<1>) {
    let [_, channels] = x.dims();
    let (mean, variance) = statistics.unwrap_or_else(|| {
        let mean = x.clone().mean_dim(0);
        let variance = (x.clone() - mean.clone()).square().mean_dim(0);
        (mean.reshape([channels]), variance.reshape([channels]))
    });
    let scale = gamma / (variance.clone() + epsilon).sqrt();
    let y = (x - mean.clone().unsqueeze()) * scale.unsqueeze() + beta.unsqueeze();
    (y, mean.detach(), variance.detach())
}

/// See [`crate::batch_norm`]; `affine` is scale and shift.
pub fn batch_norm(
    x: Tensor<4>,
    affine: (Tensor<1>, Tensor<1>),
    residual: Option<Tensor<4>>,
    statistics: Option<(Tensor<1>, Tensor<1>)>,
    options: BatchNormOptions,
) -> Normalised {
    let [batch, height, width, channels] = x.dims();
    let rows = x.reshape([batch * height * width, channels]);
    let (rows, mean, variance) = normalise_rows(rows, affine, statistics, options.epsilon);
    let mut y: Tensor<4> = rows.reshape([batch, height, width, channels]);
    if let Some(residual) = residual {
        y = y + residual;
    }
    Normalised {
        y: activate(y, options.activation),
        mean,
        variance,
    }
}

/// See [`crate::group_norm`].
pub fn group_norm(
    x: Tensor<4>,
    (gamma, beta): (Tensor<1>, Tensor<1>),
    options: GroupNormOptions,
) -> Tensor<4> {
    let [batch, height, width, channels] = x.dims();
    let (pixels, groups) = (height * width, options.groups);
    let per_group = channels / groups;
    // [batch * groups, height * width * per_group]
    let grouped: Tensor<2> = x
        .reshape([batch, pixels, groups, per_group])
        .permute([0, 2, 1, 3])
        .reshape([batch * groups, pixels * per_group]);
    let centred = grouped.clone() - grouped.mean_dim(1);
    let variance = centred.clone().square().mean_dim(1);
    let normalised: Tensor<4> = (centred / (variance + options.epsilon).sqrt())
        .reshape([batch, groups, pixels, per_group])
        .permute([0, 2, 1, 3])
        .reshape([batch, height, width, channels]);
    let y = normalised * gamma.unsqueeze() + beta.unsqueeze();
    activate(y, options.activation)
}

/// See [`crate::image_moments`].
pub fn image_moments(x: Tensor<4>) -> (Tensor<2>, Tensor<2>) {
    let [batch, height, width, channels] = x.dims();
    // A detached leaf would still ask for gradients, and its results would be in a graph again.
    let images: Tensor<3> = x
        .set_require_grad(false)
        .reshape([batch, height * width, channels]);
    let mean = images.clone().mean_dim(1);
    let variance = (images - mean.clone()).square().mean_dim(1);
    (
        mean.reshape([batch, channels]),
        variance.reshape([batch, channels]),
    )
}
