//! Tensors copied into another order of their axes.

#[cfg(feature = "burn")]
mod burn;
#[cfg(feature = "burn")]
pub(crate) mod composed;
pub(crate) mod kernel;
#[cfg(feature = "burn")]
pub(crate) mod ops;
