//! Clouds of points: neighbours, edge convolution, pooling over a cloud.

#[cfg(feature = "burn")]
mod burn;
#[cfg(feature = "burn")]
pub(crate) mod composed;
pub(crate) mod kernel;
#[cfg(feature = "burn")]
pub(crate) mod ops;
