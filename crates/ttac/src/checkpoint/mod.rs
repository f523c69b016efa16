//! Trained networks in files.
//!
//! [`Checkpoint`] is the native form: safetensors whose metadata hold a validated [`Header`].
//! [`import`] reads PyTorch's files and foreign safetensors; [`export`] writes safetensors that
//! `load_state_dict` accepts.

mod import;
mod native;
mod report;

pub use import::{export, foreign_tensors, import};
pub use native::{
    Augmentation, Checkpoint, FORMAT, Header, InputContract, InputKind, Objective, Provenance,
    fingerprint,
};
pub use report::LoadReport;
