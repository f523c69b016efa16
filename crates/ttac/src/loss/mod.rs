//! Losses, one file each.

mod contrastive;
mod cross_entropy;
mod entropy;

pub use contrastive::{BASE_TEMPERATURE, TEMPERATURE, contrastive};
pub use cross_entropy::{LabelSmoothing, cross_entropy, smoothed_cross_entropy};
pub use entropy::{entropy, information_maximisation};
