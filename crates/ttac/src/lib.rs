//! Test-time training by anchored clustering.
//!
//! `ttac` takes a trained classifier into a world it was not trained for, predicts on the unlabelled
//! stream and learns from it. This crate is the library behind the command of the same name:
//!
//! - [`backbone`]s with PyTorch's exact numbers, and [`checkpoint`]s that say what they hold;
//! - [`data`] readers and [`stream`]s: what arrives, in which order;
//! - [`train`] and [`stats`]: the source side, its objectives and its anchors;
//! - [`method`]s, one file each, and the [`protocol`]s that show them a stream and score them;
//! - [`report`]: tables of records that may be compared.
//!
//! It is not a general framework for deep learning: tensors, autodiff and devices are [`burn`]'s.
//!
//! A shipped network meets images of almost no contrast:
//!
//! ```
//! use burn::tensor::Device;
//! use ttac::checkpoint::Checkpoint;
//! use ttac::data::{OpenOptions, Split, open};
//! use ttac::method::{MethodConfig, Preset, Setting};
//! use ttac::protocol::{Protocol, Recorder, Stream, run};
//! use ttac::stats::SourceStatistics;
//! use ttac::stream::{Choose, Domain, Domains, StreamConfig};
//!
//! # fn main() -> ttac::Result<()> {
//! let device = Device::flex();
//! let shipped = std::path::Path::new("../../assets/shapes10");
//! let source = Checkpoint::load(&shipped.join("model.safetensors"), &device)?;
//! let anchors = SourceStatistics::load(&shipped.join("anchors.safetensors"))?;
//!
//! let options = OpenOptions::new(32).with_corruption("contrast", 5);
//! let domains = [open("shapes10", shipped, Split::Test, &options)?];
//! let domain = Domain::corrupted("shapes10", "contrast", 5);
//! let plan = StreamConfig::new(Domains::One { domain })
//!     .with_batch_size(64)
//!     .with_subset(512, Choose::First)
//!     .plan(&[&domains[0].labels()?], 10)?;
//! let input = &source.header.input;
//! let stream = Stream { plan: &plan, domains: &domains, input, device: &device };
//!
//! let mut errors = Vec::new();
//! for name in ["test", "ttac"] {
//!     let config = MethodConfig::by_name(name, Preset::Recommended, Setting::NoQueue)?;
//!     let mut method = config.init(source.network.clone(), Some(&anchors))?;
//!     let mut recorder = Recorder::new(&source.header.classes);
//!     run(&Protocol::default(), method.as_mut(), &stream, &mut recorder)?;
//!     errors.push(recorder.error_percent());
//! }
//! assert!(errors[1] < errors[0] - 40.0, "{errors:?}");
//! # Ok(())
//! # }
//! ```
//!
//! `examples/` brings a data set, a backbone and a method of one's own.
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

/// The choice of kernels, for benchmarks and tests, and their memory.
pub mod kernels {
    pub use ttac_kernels::kernels::Algorithm;
    pub use ttac_kernels::kernels::recycle::keep_freed_memory;
    pub use ttac_kernels::{Implementation, force};
}
