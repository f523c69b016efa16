//! The losses that networks are trained and adapted with. Each has a file of its own.

mod contrastive;
mod cross_entropy;
mod entropy;
mod generalised;
mod likelihood_ratio;
mod opinion;
mod symmetric;

pub use contrastive::{BASE_TEMPERATURE, TEMPERATURE, contrastive};
pub use cross_entropy::{LabelSmoothing, cross_entropy, smoothed_cross_entropy};
pub use entropy::{entropies, entropy, entropy_of_mean, information_maximisation};
pub use generalised::generalised_cross_entropies;
pub use likelihood_ratio::soft_likelihood_ratios;
pub use opinion::{Uncertainty, opinion_entropies};
pub use symmetric::symmetric_cross_entropies;
