//! Activation functions: as ops of their own, and as parts of norms, convolutions and sums.

#[cfg(feature = "burn")]
pub(crate) mod burn;
#[cfg(feature = "burn")]
pub(crate) mod composed;
pub(crate) mod kernel;
#[cfg(feature = "burn")]
pub(crate) mod ops;
