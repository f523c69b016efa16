//! Convolution as a composition of Burn's own ops.

use burn::tensor::ops::ConvOptions as BurnConvOptions;
use burn::tensor::{Tensor, module};

use super::ops::ConvOptions;

/// Puts the channels before height and width.
pub(crate) fn to_nchw(x: Tensor<4>) -> Tensor<4> {
    x.permute([0, 3, 1, 2])
}

/// Puts the channels last.
pub(crate) fn to_nhwc(x: Tensor<4>) -> Tensor<4> {
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
