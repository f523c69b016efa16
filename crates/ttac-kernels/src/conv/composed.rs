//! Convolution as a composition of Burn's own ops.

use burn::tensor::ops::{ConvOptions as BurnConvOptions, PadMode};
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

/// Pads the rows and columns of NCHW with a value, before and after.
pub(crate) fn pad(x: Tensor<4>, [rows, columns]: [[usize; 2]; 2], value: f32) -> Tensor<4> {
    let [[top, bottom], [left, right]] = [rows, columns];
    if [top, bottom, left, right] == [0; 4] {
        return x;
    }
    x.pad((left, right, top, bottom), PadMode::Constant(value))
}

/// See [`crate::conv2d`] and [`crate::conv2d_add`].
pub fn conv2d(
    x: Tensor<4>,
    weight: Tensor<4>,
    bias: Option<Tensor<1>>,
    residual: Option<Tensor<4>>,
    options: ConvOptions,
) -> Tensor<4> {
    let ConvOptions {
        stride,
        padding: [rows @ [top, bottom], columns @ [left, right]],
        dilation,
        groups,
    } = options;
    let x = to_nchw(x);
    let (x, padding) = if top == bottom && left == right {
        (x, [top, left])
    } else {
        (pad(x, [rows, columns], 0.), [0, 0])
    };
    let options = BurnConvOptions::new(stride, padding, dilation, groups);
    let y = to_nhwc(module::conv2d(x, weight, bias, options));
    match residual {
        Some(residual) => y + residual,
        None => y,
    }
}
