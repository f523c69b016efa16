//! Training ops for convolutional networks and transformers on a CPU, behind Burn's tensors.
//!
//! A network calls the functions of this crate ([`conv2d`], [`batch_norm`], the pools; [`linear`], [`layer_norm`], [`attention`]) on
//! ordinary [`burn::tensor::Tensor`]s whose activations are NHWC, and never learns which
//! implementation ran: on Burn's CPU backend our [`kernels`], elsewhere [`composed`], which has each
//! op as a composition of Burn's own ops and is the oracle for everything faster.
//!
//! This is the only crate of the workspace that may contain `unsafe` code.

#[cfg(feature = "burn")]
mod buffer;
#[cfg(feature = "burn")]
pub mod composed;
#[cfg(feature = "burn")]
mod extension;
pub mod kernels;
#[cfg(feature = "burn")]
mod ops;
#[cfg(feature = "burn")]
mod points;
#[cfg(feature = "burn")]
pub mod tokens;

#[cfg(feature = "burn")]
pub use ops::{
    BatchNormOptions, ConvOptions, GroupNormOptions, Implementation, Normalised, PoolOptions,
    average_pool, batch_norm, conv_norm_inference, conv2d, conv2d_add, force, global_average_pool,
    group_norm, loss_with_gradient, max_pool, norm_conv2d, sgd_step, shortcut_a,
};
#[cfg(feature = "burn")]
pub use points::{
    CloudNormalised, EdgeNormalised, LeakyNormOptions, Neighbours, cloud_pool, edge_conv,
};
#[cfg(feature = "burn")]
pub use tokens::{AttentionOptions, Before, attention, layer_norm, linear};
