//! The protocol card: everything one has to know to compare a number with another.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

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
    /// Constants that are not the preset's, each as `field=value`.
    pub fn changes(&self) -> Vec<String> {
        let Ok(preset) = MethodConfig::by_name(&self.method, self.preset, self.protocol.setting())
        else {
            return Vec::new();
        };
        let plain = |config| serde_json::to_value(config).expect("a configuration is plain JSON");
        let mut changes = Vec::new();
        differences("", &plain(&preset), &plain(&self.constants), &mut changes);
        changes
    }

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

/// What `found` says otherwise than `expected`, field by field; `null` for what it does not say.
fn differences(path: &str, expected: &Value, found: &Value, into: &mut Vec<String>) {
    if let (Value::Object(expected), Value::Object(found)) = (expected, found) {
        let keys: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
        for key in keys {
            let path = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            let [expected, found] = [expected, found].map(|fields| fields.get(key));
            let null = Value::Null;
            differences(
                &path,
                expected.unwrap_or(&null),
                found.unwrap_or(&null),
                into,
            );
        }
    } else if expected != found {
        let value = found
            .as_str()
            .map_or_else(|| found.to_string(), str::to_owned);
        into.push(format!("{path}={value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::Setting;

    #[test]
    fn differences_are_named_by_their_path() {
        let preset = MethodConfig::by_name("ttac", Preset::Recommended, Setting::NoQueue).unwrap();
        let changed = preset.with_field("filter.mode", "none").unwrap();
        let changed = changed.with_field("global_part", "l2").unwrap();
        let changed = changed.with_field("gradient_bound", "null").unwrap();
        let mut found = Vec::new();
        let plain = |config| serde_json::to_value(config).unwrap();
        differences("", &plain(&preset), &plain(&changed), &mut found);
        let expected = ["filter.mode=none", "global_part=l2", "gradient_bound=null"];
        assert_eq!(found, expected);
    }
}
