//! Training ops for convolutional networks and transformers on a CPU, behind Burn's tensors.
//!
//! A network calls the functions of this crate ([`conv2d`], [`batch_norm`], the pools; [`linear`], [`layer_norm`], [`attention`],
//! [`scaled_dot_product_attention`]) on
//! ordinary [`burn::tensor::Tensor`]s whose activations are NHWC, and never learns which
//! implementation ran: on Burn's CPU backend our [`kernels`], elsewhere [`composed`], which has each
//! op as a composition of Burn's own ops and is the oracle for everything faster. A [`Context`] chooses between them.
//!
//! Each operation has a folder, with these files:
//!
//! | file | what |
//! |---|---|
//! | `ops` | functions on tensors, for networks |
//! | `composed` | the same functions, made of Burn's own ops |
//! | `burn` | the kernels as differentiable ops of Burn's CPU backend |
//! | `kernel` | functions on slices, which know nothing of Burn |
//!
//! This is the only crate of the workspace that may contain `unsafe` code.

#![allow(clippy::inline_always)] // see `core::simd`: without it the instruction set is lost

mod context;
mod core;

mod activation;
#[cfg(feature = "burn")]
mod attention;
mod conv;
mod elementwise;
#[cfg(feature = "burn")]
mod loss;
mod norm;
mod optimiser;
mod points;
mod pool;
mod reorder;
mod tokens;

pub mod kernels;

pub use activation::kernel::Activation;
pub use context::{Context, Implementation};

#[cfg(feature = "burn")]
pub use {
    activation::ops::{activate, add_activate},
    attention::ops::{packed_attention, scaled_dot_product_attention, softmax},
    conv::ops::{ConvOptions, conv_norm_inference, conv2d, conv2d_add, norm_conv2d},
    elementwise::ops::{add, mul, scale_channels, scale_last},
    loss::loss_with_gradient,
    norm::ops::{
        BatchNormOptions, GroupNormOptions, Normalised, batch_norm, group_norm, image_moments,
    },
    optimiser::ops::sgd_step,
    points::ops::{LeakyNormOptions, Neighbours, cloud_pool, edge_conv},
    pool::ops::{
        AveragePoolOptions, PoolOptions, average_pool, global_average_pool, max_pool, shortcut_a,
    },
    reorder::ops::reorder,
    tokens::ops::{AttentionOptions, Before, attention, layer_norm, layer_norm_add, linear},
};

/// Every op as a composition of Burn's own ops.
///
/// They are slow on a CPU, but they run on every backend, their gradients come from autodiff, and they are short
/// enough to be checked by reading. The shapes are those of the functions at the crate's root.
#[cfg(feature = "burn")]
pub mod composed {
    pub use crate::activation::composed::{activate, add_activate};
    pub use crate::attention::composed::{packed_attention, scaled_dot_product_attention, softmax};
    pub use crate::conv::composed::conv2d;
    pub use crate::elementwise::composed::{add, mul, scale_channels, scale_last};
    pub use crate::norm::composed::{batch_norm, group_norm, image_moments};
    pub use crate::optimiser::composed::sgd_step;
    pub use crate::points::composed::cloud_pool;
    pub use crate::pool::composed::{average_pool, global_average_pool, max_pool, shortcut_a};
    pub use crate::reorder::composed::reorder;
    pub use crate::tokens::composed::{attention, layer_norm, linear};
}
