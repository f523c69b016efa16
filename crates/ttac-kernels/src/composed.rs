//! Every op as a composition of Burn's own ops.
//!
//! Slow on a CPU, but it runs on every backend, its gradients come from autodiff, and it is short
//! enough to be checked by reading. The shapes are those of the functions at the crate's root.

use burn::tensor::ops::{AvgPoolOptions, ConvOptions as BurnConvOptions, MaxPoolOptions};
use burn::tensor::{Tensor, activation, module};

use crate::kernels::SgdConstants;
use crate::{BatchNormOptions, ConvOptions, GroupNormOptions, Normalised, PoolOptions};

fn to_nchw(x: Tensor<4>) -> Tensor<4> {
    x.permute([0, 3, 1, 2])
}

fn to_nhwc(x: Tensor<4>) -> Tensor<4> {
    x.permute([0, 2, 3, 1])
}

/// See [`crate::conv2d`] and [`crate::conv2d_add`].
pub fn conv2d(
    x: Tensor<4>,
    weight: Tensor<4>,
    residual: Option<Tensor<4>>,
    options: ConvOptions,
) -> Tensor<4> {
    let ConvOptions { stride, padding } = options;
    let options = BurnConvOptions::new([stride; 2], [padding; 2], [1; 2], 1);
    let y = to_nhwc(module::conv2d(to_nchw(x), weight, None, options));
    match residual {
        Some(residual) => y + residual,
        None => y,
    }
}

/// See [`crate::batch_norm`].
pub fn batch_norm(
    x: Tensor<4>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    residual: Option<Tensor<4>>,
    statistics: Option<(Tensor<1>, Tensor<1>)>,
    options: BatchNormOptions,
) -> Normalised {
    let [batch, height, width, channels] = x.dims();
    let flat: Tensor<2> = x.reshape([batch * height * width, channels]);
    let (mean, variance) = statistics.unwrap_or_else(|| {
        let mean = flat.clone().mean_dim(0);
        let variance = (flat.clone() - mean.clone()).square().mean_dim(0);
        (mean.reshape([channels]), variance.reshape([channels]))
    });
    let scale = gamma / (variance.clone() + options.epsilon).sqrt();
    let flat = (flat - mean.clone().unsqueeze()) * scale.unsqueeze() + beta.unsqueeze();
    let mut y: Tensor<4> = flat.reshape([batch, height, width, channels]);
    if let Some(residual) = residual {
        y = y + residual;
    }
    if options.relu {
        y = activation::relu(y);
    }
    Normalised {
        y,
        mean: mean.detach(),
        variance: variance.detach(),
    }
}

/// See [`crate::group_norm`].
pub fn group_norm(
    x: Tensor<4>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
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
    if options.relu { activation::relu(y) } else { y }
}

/// See [`crate::global_average_pool`].
pub fn global_average_pool(x: Tensor<4>) -> Tensor<2> {
    let [batch, height, width, channels] = x.dims();
    let pixels: Tensor<3> = x.reshape([batch, height * width, channels]);
    pixels.mean_dim(1).reshape([batch, channels])
}

/// See [`crate::average_pool`].
pub fn average_pool(x: Tensor<4>, options: PoolOptions) -> Tensor<4> {
    let burn_options = AvgPoolOptions {
        stride: [options.stride; 2],
        padding: [(options.padding, options.padding); 2],
        ..AvgPoolOptions::new([options.kernel; 2])
    };
    to_nhwc(module::avg_pool2d(to_nchw(x), burn_options))
}

/// See [`crate::max_pool`].
pub fn max_pool(x: Tensor<4>, options: PoolOptions) -> Tensor<4> {
    let burn_options = MaxPoolOptions {
        stride: [options.stride; 2],
        padding: [(options.padding, options.padding); 2],
        ..MaxPoolOptions::new([options.kernel; 2])
    };
    to_nhwc(module::max_pool2d(to_nchw(x), burn_options))
}

/// See [`crate::shortcut_a`].
pub fn shortcut_a(x: Tensor<4>, out_channels: usize, stride: usize) -> Tensor<4> {
    // A maximum over windows of one pixel is the subsampling `x[.., ::stride, ::stride, ..]`.
    let x = max_pool(
        x,
        PoolOptions {
            kernel: 1,
            stride,
            padding: 0,
        },
    );
    let [batch, height, width, channels] = x.dims();
    let before = (out_channels - channels) / 2;
    let after = out_channels - channels - before;
    let zeros = |count| Tensor::zeros([batch, height, width, count], &x.device());
    let parts = match (before, after) {
        (0, 0) => return x,
        (0, after) => vec![x.clone(), zeros(after)],
        (before, after) => vec![zeros(before), x.clone(), zeros(after)],
    };
    Tensor::cat(parts, 3)
}

/// See [`crate::loss_with_gradient`].
pub fn loss_with_gradient<const D: usize>(
    x: Tensor<D>,
    gradient: Tensor<D>,
    value: f32,
) -> Tensor<1> {
    let surrogate = (x * gradient.detach()).sum();
    // Zero in value, `gradient` in gradient.
    surrogate.clone() - surrogate.detach() + value
}

/// See [`crate::sgd_step`].
pub fn sgd_step<const D: usize>(
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    velocity: Option<Tensor<D>>,
    constants: SgdConstants,
) -> (Tensor<D>, Option<Tensor<D>>) {
    let SgdConstants {
        learning_rate,
        momentum,
        weight_decay,
    } = constants;
    let mut direction = gradient;
    if weight_decay > 0. {
        direction = parameter.clone() * weight_decay + direction;
    }
    if let Some(velocity) = velocity {
        direction = direction + velocity * momentum;
    }
    let velocity = (momentum > 0.).then(|| direction.clone());
    (parameter - direction * learning_rate, velocity)
}
