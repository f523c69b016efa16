#![forbid(unsafe_code)]
#![expect(
    clippy::inline_always,
    reason = "what runs inside `wide` must be inlined there"
)]
#![expect(clippy::cast_possible_wrap, reason = "sides are at most 8192 pixels")]
#![doc = include_str!("../README.md")]

mod blur;
mod colour;
mod corruption;
mod corruptor;
mod dct;
mod defocus;
mod digital;
mod elastic;
mod error;
mod frost;
mod gaussian;
mod jpeg;
mod motion;
mod noise;
mod parameters;
#[cfg(test)]
mod parity;
mod pixel;
pub mod points;
mod random;
#[cfg(test)]
mod replay;
mod severity;
mod size;
mod spatter;
mod weather;
mod wide;
mod zoom;

pub use corruption::Corruption;
pub use corruptor::Corruptor;
pub use error::Error;
pub use frost::{FROST_VARIABLE, FrostTextures};
pub use severity::Severity;
