//! The two letters of the TTAC paper.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::method::Needs;
use crate::protocol::{Passes, Protocol};

/// The family of a protocol: **N** or **Y**, whether the method uses a self-supervised branch that the source was
/// trained with; **O** or **M**, one pass or many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    /// No branch, one pass.
    #[default]
    #[serde(rename = "N-O", alias = "n-o")]
    PlainOnePass,
    /// No branch, many passes.
    #[serde(rename = "N-M", alias = "n-m")]
    PlainManyPasses,
    /// A branch, one pass.
    #[serde(rename = "Y-O", alias = "y-o")]
    JointOnePass,
    /// A branch, many passes.
    #[serde(rename = "Y-M", alias = "y-m")]
    JointManyPasses,
}

impl Family {
    /// Every family.
    pub const ALL: [Self; 4] = [
        Self::PlainOnePass,
        Self::PlainManyPasses,
        Self::JointOnePass,
        Self::JointManyPasses,
    ];

    /// Returns the family of a method under a protocol.
    pub fn of(needs: &Needs, protocol: &Protocol) -> Self {
        Self::new(needs.head.is_some(), protocol.passes != Passes::One)
    }

    fn new(is_joint: bool, has_many_passes: bool) -> Self {
        match (is_joint, has_many_passes) {
            (false, false) => Self::PlainOnePass,
            (false, true) => Self::PlainManyPasses,
            (true, false) => Self::JointOnePass,
            (true, true) => Self::JointManyPasses,
        }
    }

    /// Whether the method uses a self-supervised branch.
    pub fn is_joint(self) -> bool {
        matches!(self, Self::JointOnePass | Self::JointManyPasses)
    }

    /// Whether the set is seen in many passes.
    pub fn has_many_passes(self) -> bool {
        matches!(self, Self::PlainManyPasses | Self::JointManyPasses)
    }

    /// Returns the same family with one pass.
    pub fn with_one_pass(self) -> Self {
        Self::new(self.is_joint(), false)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PlainOnePass => "N-O",
            Self::PlainManyPasses => "N-M",
            Self::JointOnePass => "Y-O",
            Self::JointManyPasses => "Y-M",
        })
    }
}

impl FromStr for Family {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let same = |family: &Self| family.to_string().eq_ignore_ascii_case(text);
        Self::ALL
            .into_iter()
            .find(same)
            .ok_or_else(|| Error::Invalid {
                what: "protocol",
                problem: format!("expected `n-o`, `n-m`, `y-o` or `y-m`, found `{text}`"),
            })
    }
}
