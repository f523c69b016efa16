//! Trained networks in files.
//!
//! [`Checkpoint::load`] and [`Checkpoint::save`] read and write the native form, safetensors whose metadata hold a checked
//! [`Header`]. [`import`] reads PyTorch's files and the safetensors of other programs; [`export`] writes safetensors that
//! `load_state_dict` accepts.

mod graph;
mod import;
mod native;
mod report;
mod verify;

pub use graph::{ImportedGraph, export_like, export_onnx, import_graph};
pub use import::{export, export_bytes, foreign_tensors, import, import_tensors};
pub use native::{Augmentation, Checkpoint, FORMAT, Header, Objective, Provenance, fingerprint};
pub(crate) use report::fill;
pub use report::{Advice, LoadReport};
pub use verify::{Difference, verify};

pub use crate::input::InputContract;
