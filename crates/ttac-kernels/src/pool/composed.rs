//! Pooling and the shortcut without parameters as compositions of Burn's own ops.

use burn::tensor::ops::{AvgPoolOptions, MaxPoolOptions};
use burn::tensor::{Tensor, module};

use super::kernel::Divisor;
use super::ops::{AveragePoolOptions, PoolOptions};
use crate::conv::composed::{pad, to_nchw, to_nhwc};

/// See [`crate::global_average_pool`].
pub fn global_average_pool(x: Tensor<4>) -> Tensor<2> {
    let [batch, height, width, channels] = x.dims();
    let pixels: Tensor<3> = x.reshape([batch, height * width, channels]);
    pixels.mean_dim(1).reshape([batch, channels])
}

/// See [`crate::average_pool`].
pub fn average_pool(x: Tensor<4>, options: impl Into<AveragePoolOptions>) -> Tensor<4> {
    let options = options.into();
    let (window, dims) = (options.windows.window, x.dims());
    let [height, width] = window.kernel;
    let means = AvgPoolOptions {
        stride: window.stride,
        ..AvgPoolOptions::new(window.kernel)
    };
    let device = x.device();
    let sums = |x: Tensor<4>| module::avg_pool2d(x, means.clone()) * (height * width) as f32;
    let padded = |x, outside| pad(x, padding(options.windows, dims), outside);
    let y = sums(padded(to_nchw(x), 0.));
    let y = match options.division() {
        Divisor::Number(number) => y / number as f32,
        division => {
            // The sum over a mask of what counts is the number of pixels that count.
            let mask = Tensor::ones([1, 1, dims[1], dims[2]], &device);
            let mask = if division == Divisor::Padded {
                pad(mask, window.padding, 1.)
            } else {
                pad(mask, window.padding, 0.)
            };
            let [[_, below], [_, right]] = window.padding;
            let [[_, bottom], [_, end]] = padding(options.windows, dims);
            let more = [[0, bottom - below], [0, end - right]];
            y / sums(pad(mask, more, 0.)).clamp_min(1.)
        }
    };
    to_nhwc(y)
}

/// See [`crate::max_pool`].
pub fn max_pool(x: Tensor<4>, options: PoolOptions) -> Tensor<4> {
    let window = options.window;
    let maxima = MaxPoolOptions {
        stride: window.stride,
        dilation: window.dilation,
        ..MaxPoolOptions::new(window.kernel)
    };
    let padding = padding(options, x.dims());
    let x = pad(to_nchw(x), padding, f32::NEG_INFINITY);
    to_nhwc(module::max_pool2d(x, maxima))
}

/// Returns the padding of `[batch, height, width, channels]` with which no window hangs over that stands for a remainder. No other windows fit with it: one
/// that was left out would begin behind the image, and the padding there is smaller than a window.
fn padding(options: PoolOptions, [_, height, width, _]: [usize; 4]) -> [[usize; 2]; 2] {
    let (window, size) = (options.window, [height, width]);
    if !options.ceil {
        return window.padding;
    }
    let places = window.places_ceil(size);
    std::array::from_fn(|axis| {
        let [before, after] = window.padding[axis];
        let end = places[axis].saturating_sub(1) * window.stride[axis] + window.span(axis);
        [before, after.max(end.saturating_sub(before + size[axis]))]
    })
}

/// See [`crate::shortcut_a`].
pub fn shortcut_a(x: Tensor<4>, out_channels: usize, stride: usize) -> Tensor<4> {
    // A maximum over windows of one pixel is the subsampling `x[.., ::stride, ::stride, ..]`.
    let x = max_pool(x, PoolOptions::square(1, stride, 0));
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
