//! Between Burn's tensors and the kernels' slices, without copying.
//!
//! A result of a kernel becomes a tensor that keeps the kernel's buffer; when Burn drops the last
//! handle to it, the buffer goes back to the free list of the kernel's [`Context`].

use std::mem::MaybeUninit;

use burn::backend::DType;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, Shape};
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty};

use crate::Context;

/// Makes the tensor's buffer exactly its elements in row-major order. It copies only if it must:
/// Burn's own gradients are often permuted or broadcast views.
pub(crate) fn dense(tensor: FlexTensor) -> FlexTensor {
    assert_eq!(tensor.dtype(), DType::F32, "kernels compute in f32");
    let layout = tensor.layout();
    let whole = layout.is_contiguous()
        && layout.start_offset() == 0
        && tensor.bytes().len() == layout.num_elements() * size_of::<f32>();
    if whole {
        tensor
    } else {
        tensor.to_contiguous()
    }
}

/// Makes the values along the tensor's last axis lie side by side, and every other step in memory go forward. It copies only if it must: most views, permuted or
/// sliced, are so already, as long as their last axis is that of the tensor they show.
pub(crate) fn strided(tensor: FlexTensor) -> FlexTensor {
    assert_eq!(tensor.dtype(), DType::F32, "kernels compute in f32");
    let layout = tensor.layout();
    let beside = |last: usize| layout.shape()[last] == 1 || layout.strides()[last] == 1;
    let last = layout.num_dims().checked_sub(1);
    let forward = layout.strides().iter().all(|&stride| stride >= 0);
    if forward && last.is_none_or(beside) {
        tensor
    } else {
        tensor.to_contiguous()
    }
}

/// Returns the memory of a [`strided`] tensor from its first element on, and the steps along its `D` axes.
pub(crate) fn rows_in_place<const D: usize>(tensor: &FlexTensor) -> (&[f32], [usize; D]) {
    let layout = tensor.layout();
    let strides = layout.strides();
    let step = |axis: usize| usize::try_from(strides[axis]).expect("steps go forward");
    let memory = tensor.storage::<f32>();
    let values = memory.get(layout.start_offset()..).unwrap_or_default();
    (values, std::array::from_fn(step))
}

/// Returns the elements of a [`dense`] tensor.
pub(crate) fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.storage::<f32>()
}

/// Returns the elements of a [`dense`] tensor, if nobody else holds them.
pub(crate) fn values_mut(tensor: &mut FlexTensor) -> Option<&mut [f32]> {
    tensor.try_storage_mut::<f32>()
}

/// Returns the shape of a tensor.
pub(crate) fn shape_of(tensor: &FlexTensor) -> Shape {
    tensor.layout().shape().clone()
}

/// Makes a tensor that takes over a kernel's result.
pub(crate) fn tensor(context: &Context, values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    let shape = shape.into();
    assert_eq!(values.len(), shape.num_elements(), "values for {shape:?}");
    let length = values.len() * size_of::<f32>();
    let context = context.clone();
    let memory = Recycled { values, context };
    // SAFETY: the controller's memory is the vector's `length` bytes, all initialised.
    let bytes = unsafe { Bytes::from_controller(Box::new(memory), length) };
    FlexTensor::new(bytes, Layout::contiguous(shape), DType::F32)
}

/// The memory of a tensor, which goes back to its context when the tensor is dropped.
struct Recycled {
    values: Vec<f32>,
    context: Context,
}

impl AllocationController for Recycled {
    fn alloc_align(&self) -> usize {
        align_of::<f32>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(
        &mut self,
        _: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let length = size_of_val(self.values.as_slice());
        // SAFETY: the vector owns `length` initialised bytes, borrowed as long as `self` is. The caller
        // promises to leave them initialised, and every bit pattern is an f32.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.values.as_mut_ptr().cast(), length) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let length = size_of_val(self.values.as_slice());
        // SAFETY: as above, shared.
        Ok(unsafe { std::slice::from_raw_parts(self.values.as_ptr().cast(), length) })
    }
}

impl Drop for Recycled {
    fn drop(&mut self) {
        self.context.recycle(std::mem::take(&mut self.values));
    }
}
