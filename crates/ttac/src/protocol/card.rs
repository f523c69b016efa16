//! The protocol card: everything one has to know to compare a number with another.

use serde::{Deserialize, Serialize};

use super::Protocol;
use crate::checkpoint::{Augmentation, Objective};
use crate::method::{MethodConfig, Preset};
use crate::stats::{SourceLabels, SourceStatistics};
use crate::stream::StreamConfig;

/// How anchors were made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnchorCard {
    /// The data set.
    pub data: String,
    /// How many samples.
    pub samples: u64,
    /// How images were varied.
    pub transform: Augmentation,
    /// Where classes came from.
    pub labels: SourceLabels,
}

impl From<&SourceStatistics> for AnchorCard {
    fn from(source: &SourceStatistics) -> Self {
        let origin = &source.origin;
        Self {
            data: origin.data.clone(),
            samples: origin.samples,
            transform: origin.transform,
            labels: origin.labels,
        }
    }
}

/// What a result was made with. A result without a card cannot be written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Name of the method.
    pub method: String,
    /// Whose constants.
    pub preset: Preset,
    /// All constants, and thereby every switch.
    pub constants: MethodConfig,
    /// The protocol's two letters.
    pub family: String,
    /// The protocol.
    pub protocol: Protocol,
    /// Architecture of the model.
    pub architecture: String,
    /// Its fingerprint.
    pub model: String,
    /// What it was trained for.
    pub source_objective: Objective,
    /// Its anchors, if the method uses them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchors: Option<AnchorCard>,
    /// The stream.
    pub stream: StreamConfig,
    /// What was done to the images of each domain, if it was done on the fly or is known.
    pub corruptions: Vec<Option<String>>,
    /// Digest of what arrived.
    pub plan: String,
    /// Whether labels of the test set were looked at to choose a result.
    pub oracle: bool,
    /// Samples left out because they could not be read.
    pub skipped: usize,
    /// Program and version.
    pub program: String,
}

impl Card {
    /// `N-O`, `N-M`, `Y-O` or `Y-M`: Y if the method uses a self-supervised branch of the source.
    pub fn family(constants: &MethodConfig, protocol: &Protocol) -> String {
        let source = if constants.needs_joint_training() {
            "Y"
        } else {
            "N"
        };
        let passes = match protocol.passes {
            super::Passes::One => "O",
            super::Passes::Many { .. } => "M",
        };
        format!("{source}-{passes}")
    }
}
