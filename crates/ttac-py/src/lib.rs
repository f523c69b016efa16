//! The Python package `ttac`: a [`Session`](ttac::Session) for people who work in Python.
//!
//! This crate is glue. Every class holds a value of the library, every function hands its arguments over and turns errors
//! into Python's, and whatever computes releases the interpreter's lock meanwhile. What Python says better is in
//! `python/ttac`: reading arrays of other libraries, `torch.export`, and tables.
#![forbid(unsafe_code)]
#![expect(
    clippy::needless_pass_by_value,
    reason = "arguments are made for the call out of Python's"
)]

mod anchors;
mod answer;
mod arrays;
mod corrupt;
mod data;
mod errors;
mod grid;
mod model;
mod plain;
mod session;

use pyo3::prelude::*;

/// The compiled part of `ttac`. Use the package, which has all of this under its own name.
#[pymodule]
mod _engine {
    #[pymodule_export]
    use crate::anchors::Anchors;
    #[pymodule_export]
    use crate::answer::{Answer, Gate, Learned};
    #[pymodule_export]
    use crate::corrupt::{corrupt, corruptions};
    #[pymodule_export]
    use crate::data::load_data;
    #[pymodule_export]
    use crate::grid::run_grid;
    #[pymodule_export]
    use crate::model::Model;
    #[pymodule_export]
    use crate::session::{Session, methods};

    use pyo3::prelude::*;

    /// Tells glibc to keep freed memory for this process instead of returning it to the system after each batch.
    ///
    /// The command does this, and methods with anchors learn a little faster for it. It affects the whole process, so it is yours to call.
    #[pyfunction]
    fn keep_freed_memory() {
        ttac::kernels::keep_freed_memory();
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
