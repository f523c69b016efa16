//! Test-time training by anchored clustering.
//!
//! `ttac` takes a trained classifier into a world it was not trained for. This crate is the library
//! behind the command of the same name: [`backbone`]s with PyTorch's exact numbers, [`checkpoint`]s
//! that say what they hold, [`data`] readers, [`stream`]s and [`optim`]isers. It is not a general framework for
//! deep learning: tensors, autodiff and devices are [`burn`]'s.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use ttac::backbone::{Architecture, Backbone, NormMode};
//!
//! # fn main() -> ttac::Result<()> {
//! let device = Device::flex();
//! let small = Architecture::by_name("resnet20-cifar", 10)?.with_field("width", "4")?;
//! let network = small.init(0, &device)?;
//! let images = Tensor::zeros([2, 32, 32, 3], &device);
//! let logits = network.forward(images, NormMode::Running);
//! assert_eq!(logits.dims(), [2, 10]);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod archive;
pub mod backbone;
pub mod checkpoint;
pub mod data;
mod error;
mod files;
pub mod loss;
pub mod method;
pub mod optim;
pub mod protocol;
pub mod report;
mod scores;
pub mod stats;
pub mod stream;
pub mod train;

pub use burn;
pub use error::{Error, Result, nearest};
pub use files::{write_atomically, write_atomically_with};
pub use scores::best;

/// The choice of kernels, for benchmarks and tests.
pub mod kernels {
    pub use ttac_kernels::kernels::Algorithm;
    pub use ttac_kernels::{Implementation, force};
}
