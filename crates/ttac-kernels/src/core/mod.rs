//! What all operations share.
//!
//! | file | what |
//! |---|---|
//! | [`simd`] | vectors of `f32` for each instruction set |
//! | [`parallel`] | outputs that several tasks fill |
//! | [`recycle`] | a free list of large buffers |
//! | [`shape`] | products of sizes, checked before memory is touched |
//! | [`window`] | windows that move over images |
//! | [`elementwise`] | additions |
//! | [`walk`] | the walk over a tensor with values per channel |
//! | `buffer` | tensors from kernels' buffers and back, without copies |
//! | `autodiff_sums` | gradients that meet at a tensor, added inside the kernels |
//! | `extension` | types of arguments and helpers for the ops of Burn's CPU backend |

#[cfg(feature = "burn")]
pub(crate) mod autodiff_sums;
#[cfg(feature = "burn")]
pub(crate) mod buffer;
pub(crate) mod elementwise;
#[cfg(feature = "burn")]
pub mod extension;
pub(crate) mod parallel;
pub(crate) mod recycle;
pub(crate) mod shape;
pub(crate) mod simd;
pub(crate) mod walk;
pub(crate) mod window;
