//! Parts of a data set.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Which part of a data set. Sets made by code draw their samples with its number, which must not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// The training images.
    Train = 0,
    /// The test images.
    Test = 1,
}

impl Split {
    /// Returns the first value for the training images, the second for the test images.
    pub(super) fn of<T>(self, train: T, test: T) -> T {
        match self {
            Self::Train => train,
            Self::Test => test,
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.of("train", "test"))
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
