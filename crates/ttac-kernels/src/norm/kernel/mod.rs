//! Batch norm and group norm, forward and backward.
//!
//! All of it is bound by memory. So a tensor is walked as one flat array, a vector at a time, and what belongs to a channel is repeated up to
//! a *period*, a common multiple of channels and lanes, so that any number of channels runs on full vectors.
//!
//! | file | what |
//! |---|---|
//! | `statistics` | mean and variance of each channel, of a batch and of every image |
//! | `affine` | a norm whose statistics are known |
//! | `gradient` | the gradients that both norms share |
//! | `batch` | batch norm |
//! | `group` | group norm |

mod affine;
mod batch;
mod gradient;
mod group;
mod statistics;

pub use affine::Normalise;
pub(crate) use affine::{Vectors, normalised};
pub use batch::{
    NormBackward, NormGradients, NormParams, norm_backward, norm_forward, norm_forward_in_place,
};
pub use group::{
    GroupBackward, GroupParams, GroupShape, GroupStatistics, group_norm_backward,
    group_norm_forward, group_norm_forward_in_place,
};
pub use statistics::{batch_statistics, image_moments};
