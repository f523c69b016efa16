//! The losses that networks are trained and adapted with. Each has a file of its own.

mod contrastive;
mod cross_entropy;
mod entropy;

pub use contrastive::{BASE_TEMPERATURE, TEMPERATURE, contrastive};
pub use cross_entropy::{LabelSmoothing, cross_entropy, smoothed_cross_entropy};
pub use entropy::{entropy, information_maximisation};
