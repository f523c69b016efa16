//! The kernels: slices in, vectors out. They know nothing of Burn.
//!
//! | module | what |
//! |---|---|
//! | [`conv`] | convolution: forward, gradient of the input, gradient of the weights |
//! | [`elementwise`] | additions |
//! | [`norm`] | batch norm with residual addition and ReLU, forward and backward |
//! | [`group_norm`] | group norm with ReLU, forward and backward |
//! | [`optimiser`] | steps of optimisers |
//! | [`points`] | nearest neighbours, edge convolution and pooling of point clouds |
//! | [`pool`] | average and max pooling, the parameter-free shortcut |
//! | [`recycle`] | a free list of large buffers |
//! | [`tokens`] | the ops of transformers: linear layers, layer norm, attention |
//! | [`simd`] | vectors of `f32` for each instruction set |
//!
//! Three rules hold in all of them.
//!
//! - Activations are dense NHWC, `[batch][height][width][channels]`; convolution weights are `[out][in][kh][kw]`, as PyTorch keeps them.
//! - The same input gives the same bits whatever the number of threads: work is cut by the shape alone and partial sums are added in order.
//!   (Another instruction set rounds differently.)
//! - Shapes that do not fit are a bug of the caller: a panic with both shapes, before any memory is touched.

#![allow(clippy::inline_always)] // see `simd`: without it the instruction set is lost

use std::mem::MaybeUninit;

pub mod conv;
pub mod elementwise;
pub mod group_norm;
pub mod norm;
pub mod optimiser;
pub mod points;
pub mod pool;
pub mod recycle;
pub mod simd;
pub mod tokens;

pub use conv::{
    Algorithm, ConvShape, Epilogue, Input, Normalise, conv_forward, conv_input_gradient,
    conv_weight_gradient,
};
pub use elementwise::add_in_place;
pub use group_norm::{
    GroupBackward, GroupParams, GroupShape, group_norm_backward, group_norm_forward,
    group_norm_forward_in_place,
};
pub use norm::{
    NormBackward, NormGradients, NormParams, batch_statistics, norm_backward, norm_forward,
    norm_forward_in_place,
};
pub use optimiser::{Direction, SgdConstants, sgd_step};
pub use pool::{
    PoolShape, average_pool_backward, average_pool_forward, global_average_backward,
    global_average_forward, max_pool_backward, max_pool_forward, shortcut_a_backward,
    shortcut_a_forward,
};
pub use simd::Isa;
pub use tokens::{
    AttentionShape, LayerNormBackward, LayerNormGradients, LinearShape, attention_backward,
    attention_forward, column_sums, gelu_backward, gelu_forward, layer_norm_backward,
    layer_norm_forward, linear_forward, linear_input_gradient, linear_weight_gradient,
};

/// A pointer into an output that several tasks fill, each its own part.
#[derive(Clone, Copy)]
struct Out<T = f32>(*mut T);

// SAFETY: the pointer is only an address; who writes through it must see to it that no two tasks touch the same element.
unsafe impl<T: Send> Send for Out<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Out<T> {}

impl<T> Out<T> {
    /// A method and not a field access, so that closures capture the whole (`Sync`) wrapper.
    #[inline(always)]
    fn at(self, index: usize) -> *mut T {
        self.0.wrapping_add(index)
    }
}

/// A vector of `len` floats from the recycler, every one of which `fill` has written.
///
/// # Safety
/// `fill` must write all `len` floats at the pointer it is given.
unsafe fn filled(len: usize, fill: impl FnOnce(Out)) -> Vec<f32> {
    let mut out = recycle::take(len);
    fill(Out(out.as_mut_ptr()));
    // SAFETY: `take` gave the capacity and `fill` initialised the floats.
    unsafe { out.set_len(len) };
    out
}

/// As [`filled`], for those that write through slices.
///
/// # Safety
/// `fill` must write every element.
unsafe fn filled_slice(len: usize, fill: impl FnOnce(&mut [MaybeUninit<f32>])) -> Vec<f32> {
    let mut out = recycle::take(len);
    fill(&mut out.spare_capacity_mut()[..len]);
    // SAFETY: `fill` initialised the floats.
    unsafe { out.set_len(len) };
    out
}
