//! Activations on tensors.

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::burn::ActivationOps;
use super::composed;
use super::kernel::Activation;
use crate::core::extension::{Optional, kernels_for};

/// Applies an activation to every element, in one pass; so is the backward pass, which needs `x` alone.
///
/// # Shapes
/// - `x`, result: any, the same
pub fn activate<const D: usize>(x: Tensor<D>, activation: Activation) -> Tensor<D> {
    if activation == Activation::None {
        return x;
    }
    match kernels_for(&x) {
        Some(context) => Tensor::from_dispatch(Dispatch::fast_activate(
            x.into_dispatch(),
            Optional::None,
            activation,
            context,
        )),
        None => composed::activate(x, activation),
    }
}

/// Adds and activates, `act(x + y)`, in one pass: the end of a residual block.
///
/// # Shapes
/// - `x`, `y`, result: any, the same
///
/// # Panics
/// If the shapes differ.
pub fn add_activate<const D: usize>(
    x: Tensor<D>,
    y: Tensor<D>,
    activation: Activation,
) -> Tensor<D> {
    assert_eq!(x.dims(), y.dims(), "add_activate: both summands");
    match kernels_for(&x) {
        Some(context) => Tensor::from_dispatch(Dispatch::fast_activate(
            x.into_dispatch(),
            Optional::new(Some(y)),
            activation,
            context,
        )),
        None => composed::add_activate(x, y, activation),
    }
}
