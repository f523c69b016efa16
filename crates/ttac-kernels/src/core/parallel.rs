//! Outputs that several tasks fill, each its own part.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use crate::Context;

/// A pointer into an output that several tasks fill, each its own part.
#[derive(Clone, Copy)]
pub(crate) struct Out<T = f32>(pub(crate) *mut T);

// SAFETY: the pointer is only an address; whoever writes through it promises, in an `unsafe` block, that no two tasks touch the same element.
unsafe impl<T: Send> Send for Out<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Out<T> {}

impl<T> Out<T> {
    /// A method and not a field access, so that closures capture the whole (`Sync`) wrapper.
    #[inline(always)]
    pub(crate) fn at(self, index: usize) -> *mut T {
        self.0.wrapping_add(index)
    }
}

/// Takes a vector of `len` floats from the context's free list and lets `fill` write all of them.
///
/// # Safety
/// `fill` must write all `len` floats at the pointer it is given.
pub(crate) unsafe fn filled(context: &Context, len: usize, fill: impl FnOnce(Out)) -> Vec<f32> {
    let mut out = context.take(len);
    fill(Out(out.as_mut_ptr()));
    // SAFETY: `take` gave the capacity and `fill` initialised the floats.
    unsafe { out.set_len(len) };
    out
}

/// Does what [`filled`] does for callers that write through a slice.
///
/// # Safety
/// `fill` must write every element.
pub(crate) unsafe fn filled_slice(
    context: &Context,
    len: usize,
    fill: impl FnOnce(&mut [MaybeUninit<f32>]),
) -> Vec<f32> {
    let mut out = context.take(len);
    fill(&mut out.spare_capacity_mut()[..len]);
    // SAFETY: `fill` initialised the floats.
    unsafe { out.set_len(len) };
    out
}

/// Makes `len` floats out of rows of `row` floats, each written by `fill(row index, row)`, in parallel.
///
/// # Safety
/// `fill` must write every element of its row.
pub(crate) unsafe fn filled_rows(
    context: &Context,
    len: usize,
    row: usize,
    fill: impl Fn(usize, &mut [MaybeUninit<f32>]) + Sync,
) -> Vec<f32> {
    // SAFETY: the rows cover the buffer, and the caller promises that each is written.
    unsafe {
        filled_slice(context, len, |out| {
            if len > 0 {
                out.par_chunks_mut(row)
                    .enumerate()
                    .for_each(|(i, row)| fill(i, row));
            }
        })
    }
}
