//! The ops of transformers on rows of tokens: linear layers, layer norm, attention.

#[cfg(feature = "burn")]
mod burn;
#[cfg(feature = "burn")]
pub(crate) mod composed;
pub(crate) mod kernel;
#[cfg(feature = "burn")]
pub(crate) mod ops;
