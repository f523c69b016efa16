//! Sums, products and scales on tensors.

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::burn::ElementwiseOps;
use super::composed;
use crate::activation::kernel::Activation;
use crate::activation::ops::add_activate;
use crate::core::extension::{Optional, kernels_for};

/// Adds, element by element. In the backward pass both summands get the gradient of the sum itself, without a copy.
///
/// # Shapes
/// - `x`, `y`, result: any, the same
///
/// # Panics
/// If the shapes differ.
pub fn add<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    add_activate(x, y, Activation::None)
}

/// Multiplies, element by element. The backward pass makes both gradients in one pass.
///
/// # Shapes
/// - `x`, `y`, result: any, the same
///
/// # Panics
/// If the shapes differ.
pub fn mul<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    assert_eq!(x.dims(), y.dims(), "mul: both factors");
    match kernels_for(&x) {
        Some(context) => Tensor::from_dispatch(Dispatch::fast_multiply(
            x.into_dispatch(),
            y.into_dispatch(),
            context,
        )),
        None => composed::mul(x, y),
    }
}

/// Scales every channel of every image by its own factor, as squeeze-and-excitation does: `y[n, i, j, c] = x[n, i, j, c] scale[n, c]`.
///
/// The backward pass makes both gradients in one pass.
///
/// # Shapes
/// - `x`, result: `[batch, height, width, channels]`
/// - `scale`: `[batch, channels]`
///
/// # Panics
/// If the shapes do not fit together.
pub fn scale_channels(x: Tensor<4>, scale: Tensor<2>) -> Tensor<4> {
    let [batch, _, _, channels] = x.dims();
    assert_eq!(
        scale.dims(),
        [batch, channels],
        "scale_channels: factors for an input {:?}",
        x.dims()
    );
    match kernels_for(&x) {
        Some(context) => Tensor::from_dispatch(Dispatch::fast_scale(
            x.into_dispatch(),
            scale.into_dispatch(),
            Optional::None,
            context,
        )),
        None => composed::scale_channels(x, scale),
    }
}

/// Scales the columns of rows, `x gamma [+ residual]`: the layer scale of `ConvNeXt` and `DeiT` III, with the sum that follows it.
///
/// The backward pass makes the gradients of `x` and `gamma` in one pass; that of the residual is the gradient of the result itself.
///
/// # Shapes
/// - `x`, `residual`, result: `[rows, columns]`
/// - `gamma`: `[columns]`
///
/// # Panics
/// If the shapes do not fit together.
pub fn scale_last(x: Tensor<2>, gamma: Tensor<1>, residual: Option<Tensor<2>>) -> Tensor<2> {
    let [_, columns] = x.dims();
    assert_eq!(
        gamma.dims(),
        [columns],
        "scale_last: factors for an input {:?}",
        x.dims()
    );
    if let Some(residual) = &residual {
        assert_eq!(residual.dims(), x.dims(), "scale_last: residual and input");
    }
    match kernels_for(&x) {
        Some(context) => Tensor::from_dispatch(Dispatch::fast_scale(
            x.into_dispatch(),
            gamma.into_dispatch(),
            Optional::new(residual),
            context,
        )),
        None => composed::scale_last(x, gamma, residual),
    }
}
