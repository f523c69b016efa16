//! The library's errors as Python's.

use std::any::Any;
use std::error::Error as _;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::{
    PyFileNotFoundError, PyOSError, PyPermissionError, PyRuntimeError, PyValueError,
};
use pyo3::prelude::*;

/// Makes a Python exception of an error, with its causes and with what to try.
pub fn raise(error: ttac::Error) -> PyErr {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(found) = cause {
        let _ = write!(message, ": {found}");
        cause = found.source();
    }
    if let Some(hint) = error.hint() {
        let _ = write!(message, "\nhint: {hint}");
    }
    match &error {
        ttac::Error::Io { source, .. } => match source.kind() {
            ErrorKind::NotFound => PyFileNotFoundError::new_err(message),
            ErrorKind::PermissionDenied => PyPermissionError::new_err(message),
            _ => PyOSError::new_err(message),
        },
        ttac::Error::Stopped { .. } | ttac::Error::Diverged { .. } => {
            PyRuntimeError::new_err(message)
        }
        _ => PyValueError::new_err(message),
    }
}

/// Makes a `ValueError` of what was expected and what was found.
pub fn invalid(message: impl Into<String>) -> PyErr {
    PyValueError::new_err(message.into())
}

/// Computes without the interpreter's lock. A panic, which is a mistake of ours, becomes a `RuntimeError` instead of an end.
pub fn compute<T: Send>(py: Python<'_>, work: impl FnOnce() -> PyResult<T> + Send) -> PyResult<T> {
    py.detach(|| catch_unwind(AssertUnwindSafe(work)))
        .unwrap_or_else(|panic| {
            Err(PyRuntimeError::new_err(format!(
                "ttac failed inside, which is a mistake in ttac: {}",
                said(panic.as_ref())
            )))
        })
}

/// Raises the exception of a signal that has arrived, such as that of Ctrl-C.
#[expect(
    clippy::redundant_closure_for_method_calls,
    reason = "the method alone is not general enough"
)]
pub fn check_signals() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}

/// Reads what a panic says.
fn said(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return text;
    }
    panic
        .downcast_ref::<String>()
        .map_or("no reason was given", String::as_str)
}
