//! Reordering of axes as a differentiable op of Burn's CPU backend.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, DType, Flex, backend_extension};

use super::kernel::copy_strided;
use crate::Context;
use crate::core::autodiff_sums::{Parents, Step};
use crate::core::buffer::{shape_of, tensor};
use crate::core::extension::record;

/// The op, routed at run time.
#[backend_extension(Flex, Autodiff)]
pub trait ReorderOps: Backend {
    /// See [`crate::reorder`].
    fn fast_reorder(x: FloatTensor<Self>, axes: Vec<usize>, context: Context) -> FloatTensor<Self>;
}

impl ReorderOps for Flex {
    fn fast_reorder(x: FlexTensor, axes: Vec<usize>, context: Context) -> FlexTensor {
        forward(&x, &axes, &context)
    }
}

fn forward(x: &FlexTensor, axes: &[usize], context: &Context) -> FlexTensor {
    assert_eq!(x.dtype(), DType::F32, "kernels compute in f32");
    let view = x.permute(axes);
    let layout = view.layout();
    // Runs of values are copied by our kernel, in parallel. Where the last axis changes, or steps go backwards, Burn's copy, which is in tiles, is faster.
    let last = layout.num_dims().checked_sub(1);
    let runs = last.is_some_and(|last| layout.strides()[last] == 1 && layout.shape()[last] > 1);
    if !runs || layout.strides().iter().any(|&stride| stride < 0) {
        return view.to_contiguous();
    }
    let strides: Vec<usize> = layout.strides().iter().map(|s| s.unsigned_abs()).collect();
    let values = view.storage::<f32>().get(layout.start_offset()..);
    let shape: Vec<usize> = layout.shape().to_vec();
    let values = copy_strided(context, values.unwrap_or_default(), &shape, &strides);
    tensor(context, values, shape_of(&view))
}

// ------------------------------------------------------------------------------------- autodiff

impl<C: CheckpointStrategy> ReorderOps for Autodiff<Flex, C> {
    fn fast_reorder(x: FloatTensor<Self>, axes: Vec<usize>, context: Context) -> FloatTensor<Self> {
        record!([x.node()], {
            tracked => {
                let y = forward(&x.into_primitive(), &axes, &context);
                (ReorderState { axes, context }, y)
            },
            untracked => forward(&x.into_primitive(), &axes, &context)
        })
    }
}

/// What the gradient needs.
#[derive(Clone, Debug)]
struct ReorderState {
    axes: Vec<usize>,
    context: Context,
}

impl Step for ReorderState {
    const ADDS: bool = false;

    fn context(&self) -> &Context {
        &self.context
    }

    fn backward(self, dy: FlexTensor, mut parents: Parents<'_>) {
        let mut inverse = vec![0; self.axes.len()];
        for (place, &axis) in self.axes.iter().enumerate() {
            inverse[axis] = place;
        }
        parents.give(0, forward(&dy, &inverse, &self.context));
    }
}
