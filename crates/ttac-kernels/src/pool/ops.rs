//! Pooling and the shortcut without parameters on tensors.

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::burn::PoolOps;
use super::composed;
use crate::core::extension::kernels_for;

/// Window, stride and padding of a pooling op, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// The side of the square window.
    pub kernel: usize,
    /// The distance between two neighbouring windows.
    pub stride: usize,
    /// Positions added on each side; they never win a maximum.
    pub padding: usize,
}

/// Takes the mean over height and width: `[batch, height, width, channels]` to `[batch, channels]`.
pub fn global_average_pool(x: Tensor<4>) -> Tensor<2> {
    match kernels_for(&x) {
        Some(context) => {
            let y = Dispatch::fast_global_average_pool(x.into_dispatch(), context);
            Tensor::from_dispatch(y)
        }
        None => composed::global_average_pool(x),
    }
}

/// Takes the mean over windows: `[batch, height, width, channels]` to `[batch, out_height, out_width, channels]`.
pub fn average_pool(x: Tensor<4>, options: PoolOptions) -> Tensor<4> {
    match kernels_for(&x) {
        Some(context) => {
            let y = Dispatch::fast_average_pool(x.into_dispatch(), options, context);
            Tensor::from_dispatch(y)
        }
        None => composed::average_pool(x, options),
    }
}

/// Takes the maximum over windows: `[batch, height, width, channels]` to `[batch, out_height, out_width, channels]`.
pub fn max_pool(x: Tensor<4>, options: PoolOptions) -> Tensor<4> {
    match kernels_for(&x) {
        Some(context) => {
            let y = Dispatch::fast_max_pool(x.into_dispatch(), options, context);
            Tensor::from_dispatch(y)
        }
        None => composed::max_pool(x, options),
    }
}

/// Takes the parameter-free "option A" shortcut of He et al.: every `stride`-th pixel, with channels padded
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
    match kernels_for(&x) {
        Some(context) => {
            let y = Dispatch::fast_shortcut_a(x.into_dispatch(), out_channels, stride, context);
            Tensor::from_dispatch(y)
        }
        None => composed::shortcut_a(x, out_channels, stride),
    }
}
