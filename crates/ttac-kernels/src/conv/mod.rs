//! Convolution, with the norm before it and the addition after it.

#[cfg(feature = "burn")]
mod burn;
#[cfg(feature = "burn")]
pub(crate) mod composed;
pub(crate) mod kernel;
#[cfg(feature = "burn")]
pub(crate) mod ops;
