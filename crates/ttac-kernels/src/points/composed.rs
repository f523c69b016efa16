//! The ops on clouds as compositions of Burn's own ops.

use burn::tensor::{Int, Tensor, activation};

use super::ops::LeakyNormOptions;
use crate::norm::composed::normalise_rows;
use crate::norm::ops::Normalised;

/// See [`crate::Neighbours::nearest`].
pub(crate) fn nearest(x: Tensor<3>, k: usize) -> Tensor<3, Int> {
    let x = x.detach();
    let squares = x.clone().square().sum_dim(2); // [batch, points, 1]
    let products = x.clone().matmul(x.swap_dims(1, 2)); // [batch, points, points]
    let nearness = products * 2.0 - squares.clone() - squares.swap_dims(1, 2);
    nearness.topk_with_indices(k, 2).1
}

/// See [`crate::edge_conv`]; `affine` is scale and shift.
pub(crate) fn edge_conv(
    x: Tensor<3>,
    weight: Tensor<2>,
    neighbours: Tensor<3, Int>,
    affine: (Tensor<1>, Tensor<1>),
    statistics: Option<(Tensor<1>, Tensor<1>)>,
    options: LeakyNormOptions,
) -> Normalised<3> {
    let ([batch, points, inputs], [_, _, k]) = (x.dims(), neighbours.dims());
    let [outputs, _] = weight.dims();
    let edges = batch * points * k;
    let flat: Tensor<2> = x.clone().reshape([batch * points, inputs]);
    // Clouds lie one after the other: the first point of each is at a multiple of `points`.
    let first = Tensor::<1, Int>::arange(0..batch as i64, &x.device()) * points as i64;
    let rows = neighbours + first.reshape([batch, 1, 1]);
    let near = flat.select(0, rows.reshape([edges]));
    let own: Tensor<4> = x.unsqueeze_dim(2);
    let own: Tensor<2> = own.repeat_dim(2, k).reshape([edges, inputs]);
    let features = Tensor::cat(vec![near - own.clone(), own], 1);
    let e = features.matmul(weight.transpose());
    let (y, mean, variance) = leaky_norm(e, affine, statistics, options);
    let y: Tensor<3> = y.reshape([batch * points, k, outputs]);
    Normalised {
        y: y.max_dim(1).reshape([batch, points, outputs]),
        mean,
        variance,
    }
}

/// See [`crate::cloud_pool`]; `affine` is scale and shift.
pub fn cloud_pool(
    x: Tensor<3>,
    affine: (Tensor<1>, Tensor<1>),
    statistics: Option<(Tensor<1>, Tensor<1>)>,
    options: LeakyNormOptions,
) -> Normalised<2> {
    let [batch, points, channels] = x.dims();
    let flat = x.reshape([batch * points, channels]);
    let (y, mean, variance) = leaky_norm(flat, affine, statistics, options);
    let y: Tensor<3> = y.reshape([batch, points, channels]);
    let largest = y.clone().max_dim(1).reshape([batch, channels]);
    let mean_of_points = y.mean_dim(1).reshape([batch, channels]);
    Normalised {
        y: Tensor::cat(vec![largest, mean_of_points], 1),
        mean,
        variance,
    }
}

/// Normalises rows, `[rows, channels]`, over all of them or by given statistics, and activates them.
fn leaky_norm(
    x: Tensor<2>,
    affine: (Tensor<1>, Tensor<1>),
    statistics: Option<(Tensor<1>, Tensor<1>)>,
    options: LeakyNormOptions,
) -> (Tensor<2>, Tensor<1>, Tensor<1>) {
    let (z, mean, variance) = normalise_rows(x, affine, statistics, options.epsilon);
    let y = activation::leaky_relu(z, f64::from(options.slope));
    (y, mean, variance)
}
