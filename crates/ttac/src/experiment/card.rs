//! The protocol card: everything one has to know to compare a number with another.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Family, PROGRAM, Spec};
use crate::Result;
use crate::backbone::Backbone;
use crate::checkpoint::{Augmentation, Objective};
use crate::data::Dataset;
use crate::gate::CalibrationImages;
use crate::method::{MethodSpec, Preset};
use crate::protocol::{Passes, Protocol, Selection};
use crate::session::Session;
use crate::stats::{SourceLabels, SourceStatistics};
use crate::stream::{StreamConfig, StreamPlan};

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
    /// How many images, as they are, the norms' reference moments came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_images: Option<u64>,
    /// What the gate was calibrated by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationCard>,
}

/// What a gate was calibrated by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibrationCard {
    /// The data set.
    pub data: String,
    /// Where in it the images come from.
    pub images: CalibrationImages,
    /// How many there were.
    pub samples: u64,
    /// The limit above which mean payoffs speak of a shift, the higher one of the two scores.
    pub limit: f64,
}

impl From<&SourceStatistics> for AnchorCard {
    fn from(source: &SourceStatistics) -> Self {
        let origin = &source.origin;
        Self {
            data: origin.data.clone(),
            samples: origin.samples,
            transform: origin.transform,
            labels: origin.labels,
            reference_images: source.norms.as_ref().map(|norms| norms.images),
            calibration: source.calibration.as_ref().map(|found| CalibrationCard {
                data: found.data.clone(),
                images: found.images,
                samples: found.samples,
                limit: found.limit(),
            }),
        }
    }
}

/// What a result was made with. A result without a card cannot be written.
///
/// Names are plain text and constants plain JSON, so that a method, a backbone or a data set of one's own can be in a
/// card, and its records in tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// The name of the method.
    pub method: String,
    /// Which constants the method started from.
    pub preset: Preset,
    /// All constants of the method, and thereby every switch.
    #[serde(deserialize_with = "constants")]
    pub constants: Value,
    /// The protocol's two letters.
    pub family: Family,
    /// The protocol.
    pub protocol: Protocol,
    /// The architecture of the model.
    pub architecture: String,
    /// The fingerprint of the model.
    pub model: String,
    /// What the model was trained for.
    pub source_objective: Objective,
    /// How its anchors were made, if the method uses them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchors: Option<AnchorCard>,
    /// The stream.
    pub stream: StreamConfig,
    /// What was done to the samples of each domain, if it was done on the fly or is known.
    pub corruptions: Vec<Option<String>>,
    /// The digest of what arrived.
    pub plan: String,
    /// Whether labels of the test set were looked at to choose a result.
    pub oracle: bool,
    /// How many samples were left out because they could not be read.
    pub skipped: usize,
    /// The program and its version.
    pub program: String,
    /// The specification that runs the same experiment again. Records of older versions, and of runs that were
    /// put together by hand, have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Spec>,
}

impl Card {
    /// Describes what a session shown a plan will be made with.
    pub fn new<B: Backbone + Sync + 'static>(
        session: &Session<B>,
        anchors: Option<&SourceStatistics>,
        plan: &StreamPlan,
        domains: &[Box<dyn Dataset>],
    ) -> Result<Self> {
        let (model, protocol) = (session.source(), session.protocol());
        let needs = session.needs();
        Ok(Self {
            method: session.method().name.clone(),
            preset: Preset::default(),
            constants: session.method().settings.clone(),
            family: Family::of(&needs, protocol),
            protocol: protocol.clone(),
            architecture: model.architecture.clone(),
            model: model.fingerprint.clone(),
            source_objective: model.objective,
            anchors: anchors
                .filter(|_| needs.anchors || protocol.gate.is_some() || session.uses_reference())
                .map(AnchorCard::from)
                .map(|card| AnchorCard {
                    reference_images: card.reference_images.filter(|_| session.uses_reference()),
                    calibration: card.calibration.filter(|_| protocol.gate.is_some()),
                    ..card
                }),
            stream: plan.config.clone(),
            corruptions: domains
                .iter()
                .map(|data| data.info().corruption.clone())
                .collect(),
            plan: plan.digest(),
            oracle: matches!(
                protocol.passes,
                Passes::Many {
                    selection: Selection::OracleBest,
                    ..
                }
            ),
            skipped: domains.iter().map(|data| data.info().skipped).sum(),
            program: PROGRAM.to_owned(),
            spec: None,
        })
    }

    /// Lists the constants that are not the preset's, each as `field=value`. A method of one's own has no preset
    /// and no changes.
    pub fn changes(&self) -> Vec<String> {
        let Ok(preset) = MethodSpec::preset(&self.method, self.preset, self.protocol.setting())
        else {
            return Vec::new();
        };
        let own = MethodSpec {
            name: self.method.clone(),
            settings: self.constants.clone(),
        };
        // Older records lack constants that came later, and write single precision with more digits.
        let own = own.completed().unwrap_or(own);
        let mut changes = Vec::new();
        differences("", &preset.settings, &own.settings, &mut changes);
        changes
    }
}

/// Reads constants. Older records name the method among them.
fn constants<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    let mut constants = Value::deserialize(deserializer)?;
    if let Some(fields) = constants.as_object_mut() {
        fields.remove("method");
    }
    Ok(constants)
}

/// Lists what `found` says otherwise than `expected`, field by field; `null` stands for what it does not say.
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
        let preset = MethodSpec::preset("ttac", Preset::Earlier, Setting::NoQueue).unwrap();
        let changed = preset.with_field("filter.mode", "none").unwrap();
        let changed = changed.with_field("global_part", "l2").unwrap();
        let changed = changed.with_field("gradient_bound", "null").unwrap();
        let mut found = Vec::new();
        differences("", &preset.settings, &changed.settings, &mut found);
        let expected = ["filter.mode=none", "global_part=l2", "gradient_bound=null"];
        assert_eq!(found, expected);
    }
}
