//! Reordering of axes on tensors.

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::burn::ReorderOps;
use super::composed;
use crate::core::extension::kernels_for;

/// Permutes the axes of a tensor, which may be a view, and copies it so that the result is contiguous: axis `a` of the result is axis `axes[a]` of `x`. The copy is
/// parallel if the last axis stays the last.
///
/// # Panics
/// If `axes` does not name every axis once.
pub fn reorder<const D: usize>(x: Tensor<D>, axes: [usize; D]) -> Tensor<D> {
    let mut seen = [false; D];
    let named = axes
        .iter()
        .all(|&axis| axis < D && !std::mem::replace(&mut seen[axis], true));
    assert!(named, "reorder: {axes:?} is not an order of {D} axes");
    match kernels_for(&x) {
        Some(context) => {
            let y = Dispatch::fast_reorder(x.into_dispatch(), axes.to_vec(), context);
            Tensor::from_dispatch(y)
        }
        None => composed::reorder(x, axes),
    }
}
