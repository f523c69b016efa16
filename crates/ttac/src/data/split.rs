//! Parts of a data set.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// Which part of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The training images.
    Train,
    /// The test images.
    Test,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Train => "train",
            Self::Test => "test",
        })
    }
}

impl FromStr for Split {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "train" => Ok(Self::Train),
            "test" => Ok(Self::Test),
            other => Err(Error::Invalid {
                what: "split",
                problem: format!("expected `train` or `test`, found `{other}`"),
            }),
        }
    }
}
