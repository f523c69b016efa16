//! Pooling and the shortcut without parameters as compositions of Burn's own ops.

use burn::tensor::ops::{AvgPoolOptions, MaxPoolOptions};
use burn::tensor::{Tensor, module};

use super::ops::PoolOptions;
use crate::conv::composed::{to_nchw, to_nhwc};

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
