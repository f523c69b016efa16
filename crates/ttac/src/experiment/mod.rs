//! Experiments as data: a [`Spec`] says what to run, [`Experiment::open`] checks that everything fits together, and
//! a [`Card`] says afterwards what a result was made with. A [`Grid`] is a table of specifications.

mod card;
mod digest;
mod family;
mod grid;
mod open;
mod spec;
mod streams;
mod visits;

pub use card::{AnchorCard, CalibrationCard, Card};
pub use digest::FileDigests;
pub use family::Family;
pub use grid::{Cell, Grid};
pub use open::{Experiment, check_classes};
pub use spec::{GateChoice, SharesChoice, Spec};
pub use streams::StreamPreset;

/// This library and its version, for what it writes.
pub const PROGRAM: &str = concat!("ttac ", env!("CARGO_PKG_VERSION"));
