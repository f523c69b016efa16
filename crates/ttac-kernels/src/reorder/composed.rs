//! Reordering of axes by Burn's own op.

use burn::tensor::Tensor;

/// See [`crate::reorder`]. Burn keeps the result as a view, where it can.
pub fn reorder<const D: usize>(x: Tensor<D>, axes: [usize; D]) -> Tensor<D> {
    x.permute(axes.map(|axis| axis as isize))
}
