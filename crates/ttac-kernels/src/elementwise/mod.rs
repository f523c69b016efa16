//! Sums, products and scales of whole tensors.

#[cfg(feature = "burn")]
pub(crate) mod burn;
#[cfg(feature = "burn")]
pub(crate) mod composed;
pub(crate) mod kernel;
#[cfg(feature = "burn")]
pub(crate) mod ops;
