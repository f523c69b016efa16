//! What is wrong with a file, before its path is known.

use std::path::Path;

use crate::Error;

/// What is wrong, and what to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong, as a part of a sentence.
    pub problem: String,
    /// What to try.
    pub hint: Option<String>,
}

/// A result whose error has no path yet.
pub type Result<T, E = Problem> = std::result::Result<T, E>;

impl Problem {
    /// Makes a problem with advice.
    pub fn with_hint(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            problem: problem.into(),
            hint: Some(hint.into()),
        }
    }

    /// Says where the problem is.
    pub fn at(self, place: &str) -> Self {
        Self {
            problem: format!("{place}: {}", self.problem),
            hint: self.hint,
        }
    }

    /// Says in which file the problem is.
    pub fn in_file(self, path: &Path) -> Error {
        Error::Format {
            path: path.to_owned(),
            expected: "an ONNX network that can be imported",
            problem: self.problem,
            hint: self.hint,
        }
    }
}

impl From<String> for Problem {
    fn from(problem: String) -> Self {
        Self {
            problem,
            hint: None,
        }
    }
}

impl From<&str> for Problem {
    fn from(problem: &str) -> Self {
        problem.to_owned().into()
    }
}
