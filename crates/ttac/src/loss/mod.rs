//! Losses, one file each.

mod cross_entropy;

pub use cross_entropy::cross_entropy;
