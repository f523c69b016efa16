//! Test-time training by anchored clustering.
//!
//! `ttac` takes a trained classifier into a world it was not trained for, predicts on the unlabelled stream and learns
//! from it. A [`Session`] is the one way to do that: one stream, no data set, no labels.
//!
//! ```
//! use ttac::{Model, Session, SourceStatistics, burn::tensor::Device, data};
//!
//! # fn main() -> ttac::Result<()> {
//! # let shipped = std::path::Path::new("../../assets/shapes10");
//! let model = Model::load(&shipped.join("model.safetensors"), &Device::flex())?;
//! let anchors = SourceStatistics::load(&shipped.join("anchors.safetensors"))?;
//! let mut session = Session::builder(&model).anchors(&anchors).method("ttac").build()?;
//!
//! let dark = data::OpenOptions::new(32).with_corruption("contrast", 5);
//! let stream = data::open("shapes10", shipped, data::Split::Test, &dark)?;
//! let (mut adapted, mut source, ids) = (0, 0, (0..512).collect::<Vec<u64>>());
//! for ids in ids.chunks(64) {
//!     let batch = stream.batch(ids)?;
//!     let labels = batch.labels.unwrap(); // only to show what the learning was worth
//!     let right = |classes: &[usize]| classes.iter().zip(&labels).filter(|(c, l)| c == l).count();
//!     adapted += right(&session.observe(&batch.samples)?.classes);
//!     source += right(&Session::builder(&model).method("test").build()?.predict(&batch.samples)?.classes);
//! }
//! assert!(adapted > source + 200, "{adapted} against {source} of 512");
//! # Ok(())
//! # }
//! ```
//!
//! What a session stands on, and what stands on it:
//!
//! - [`backbone`]s with PyTorch's exact numbers, and [`checkpoint`]s that say what they hold;
//! - [`data`] readers, the [`input`] contract of a network, and [`stream`] plans: what arrives, in which order;
//! - [`train`] and [`stats`]: the source side, its objectives and its anchors; [`norms`]: what its batch norms see;
//! - [`method`]s, one file each, and the [`protocol`]s under which a stream is shown and scored;
//! - [`experiment`]: all of that as data, from a specification to the card of a result;
//! - [`report`]: tables of records that may be compared.
//!
//! The crate is not a general framework for deep learning: tensors, autodiff and devices are [`burn`]'s. `examples/`
//! brings a data set, a backbone and a method of one's own.
#![forbid(unsafe_code)]

pub mod agreement;
pub mod archive;
pub mod backbone;
pub mod checkpoint;
pub mod data;
mod error;
pub mod experiment;
mod files;
pub mod gate;
pub mod graph;
pub mod input;
pub mod loss;
pub mod method;
mod model;
pub mod norms;
pub mod optim;
pub mod protocol;
mod remedy;
pub mod report;
mod rng;
mod scores;
pub mod session;
pub mod shares;
pub mod stats;
pub mod stream;
pub mod train;

pub use burn;
pub use error::{Error, Result, nearest};
pub(crate) use files::write_file_atomically;
pub use files::{write_atomically, write_atomically_with};
pub use model::Model;
pub use remedy::Remedy;
pub use scores::best;
pub use session::{Answer, Predictor, Session, SessionBuilder, SessionState};
pub use stats::SourceStatistics;

/// Compiles the program on the front page of the repository.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct FrontPage;

/// The choice of kernels, for benchmarks and tests, and their memory.
pub mod kernels {
    pub use ttac_kernels::kernels::{Algorithm, keep_freed_memory};
    pub use ttac_kernels::{Context, Implementation};
}
