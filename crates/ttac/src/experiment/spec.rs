//! What an experiment is made of, as one type that can be written down.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Family;
use crate::agreement::Agreement;
use crate::data::Split;
use crate::error::suggestion;
use crate::gate::{GateConfig, GateStart};
use crate::method::entry::adapts;
use crate::method::{MethodSpec, Prediction, Preset};
use crate::protocol::{Guard, Passes, Protocol, QueueConfig, Reset, Selection};
use crate::shares::SharesConfig;
use crate::stream::{Choose, Order};
use crate::{Error, Result};

/// Passes over the set where nobody says how many.
const DEFAULT_PASSES: usize = 10;

/// Whether a gate keeps the source in charge while the stream fits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GateChoice {
    /// It is closed at the start, opens when the stream stops fitting the source, and closes when it fits again.
    Auto,
    /// There is none: the method adapts from the first batch to the last.
    Off,
    /// It is open at the start, and closes when the stream fits the source.
    Open,
}

impl GateChoice {
    /// Returns the gate of a choice. Where nobody chose, the preset `recommended` has one for every method that adapts, and the others do not.
    pub fn config(choice: Option<Self>, method: &str, preset: Preset) -> Option<GateConfig> {
        let by_preset = match preset {
            Preset::Recommended if adapts(method) => Self::Auto,
            _ => Self::Off,
        };
        let start = match choice.unwrap_or(by_preset) {
            Self::Off => return None,
            Self::Auto => GateStart::Closed,
            Self::Open => GateStart::Open,
        };
        Some(GateConfig {
            start,
            ..GateConfig::default()
        })
    }
}

/// Whether answers are corrected by the shares of the classes in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharesChoice {
    /// They are corrected by the shares among recent samples.
    Recent,
    /// They are corrected likewise, and then agree with those of similar samples of their batch (LAME).
    Lame,
    /// They are the network's.
    Off,
}

impl SharesChoice {
    /// Returns how answers are corrected. Where nobody chose, those of every method that adapts are with the preset `recommended`, and not with the others.
    pub fn config(choice: Option<Self>, method: &str, preset: Preset) -> Option<SharesConfig> {
        let by_preset = match preset {
            Preset::Recommended if adapts(method) => Self::Recent,
            _ => Self::Off,
        };
        match choice.unwrap_or(by_preset) {
            Self::Recent => Some(SharesConfig::default()),
            Self::Lame => Some(SharesConfig {
                agreement: Some(Agreement::default()),
                ..SharesConfig::default()
            }),
            Self::Off => None,
        }
    }
}

/// One experiment: which model meets which data, by which method, under which protocol.
///
/// Rows of a grid, the arguments of `ttac adapt` and the cards of results all become this type, and run the same
/// experiment from it. Keys are spelled with hyphens:
///
/// ```
/// use ttac::experiment::Spec;
///
/// let spec: Spec = toml::from_str(r#"
///     model = "model.safetensors"
///     data = "cifar10"
///     corruption = "snow"
///     severity = 5
///     method = "tent"
///     no-queue = true
///     set = { learning_rate = 0.0005 }
/// "#).unwrap();
/// assert_eq!(spec.method_spec()?.settings["learning_rate"], 0.0005);
/// assert_eq!(spec.batch_size, 256);
/// # Ok::<(), ttac::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the experiment"
)]
pub struct Spec {
    /// The checkpoint of the source model.
    pub model: PathBuf,
    /// Its source statistics, for the methods that need them.
    pub anchors: Option<PathBuf>,

    /// The name of the data set.
    pub data: String,
    /// The folder the data lies in; `None` for its usual place.
    pub root: Option<PathBuf>,
    /// Which part of the data set.
    pub split: Split,
    /// The corruption; a list `snow,fog,..` is visited in that order, and again if it repeats itself or ends with `*TIMES`; `clean`
    /// stands for none, `standard` and `practical` for fifteen in two orders. `mixed:` before a list brings all at once, `gradual:`
    /// goes through the severities of each, `changing:` brings them in pieces that take turns.
    pub corruption: Option<String>,
    /// The severity of the corruption, 1 to 5.
    pub severity: Option<u8>,
    /// The seed of a corruption that is made on the fly.
    pub corruption_seed: u64,
    /// Photographs for frost that is made on the fly.
    pub frost_textures: Option<PathBuf>,
    /// Whether samples that cannot be read are left out, and counted.
    pub skip_bad: bool,

    /// The name of the method.
    pub method: String,
    /// Which constants it starts from.
    pub preset: Preset,
    /// Constants that are changed, by their path, e.g. `filter.posterior_threshold`.
    pub set: BTreeMap<String, Value>,

    /// The family of the protocol.
    pub protocol: Family,
    /// How many recent samples are learned from again, in one pass.
    pub queue: usize,
    /// Whether each batch is learned from once, without a queue.
    pub no_queue: bool,
    /// Epochs over the queue for each batch, or passes over the set; `None` for 4 and 10.
    pub epochs: Option<usize>,
    /// Samples in a learning step from the queue or the set.
    pub minibatch: usize,
    /// Whether each batch is predicted before it is learned from.
    pub predict_first: bool,
    /// Whether the best of many passes is chosen by the test labels: an oracle.
    pub oracle: bool,
    /// When the method goes back to the source.
    pub reset: Reset,
    /// What happens when adaptation goes wrong: an action, or bounds and an action.
    #[serde(deserialize_with = "guard")]
    pub guard: Guard,
    /// Whether a gate keeps the source in charge while the stream fits it; `None` for what the preset says.
    pub gate: Option<GateChoice>,
    /// Images between two false alarms of the gate on a stream that is fine, at least, on average.
    pub alarm: f64,
    /// Whether answers are corrected by the shares of the classes among recent samples; `None` for what the preset says.
    pub shares: Option<SharesChoice>,
    /// Samples that arrive per second; `None` if the stream waits for the method.
    pub speed: Option<f64>,

    /// How many samples arrive at a time.
    pub batch_size: usize,
    /// In which order they arrive: a word such as `correlated:0.1`, or all its fields.
    pub order: Order,
    /// How many samples of each domain; `None` for all.
    pub subset: Option<usize>,
    /// Which samples those are.
    pub choose: Choose,
    /// The seed of the order of arrival and of learning.
    pub seed: u64,
    /// How many samples' features are kept, before and after.
    pub features: Option<usize>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            model: PathBuf::new(),
            anchors: None,
            data: String::new(),
            root: None,
            split: Split::Test,
            corruption: None,
            severity: None,
            corruption_seed: 0,
            frost_textures: None,
            skip_bad: false,
            method: "ttac".to_owned(),
            preset: Preset::default(),
            set: BTreeMap::new(),
            protocol: Family::PlainOnePass,
            queue: QueueConfig::default().capacity,
            no_queue: false,
            epochs: None,
            minibatch: 256,
            predict_first: false,
            oracle: false,
            reset: Reset::Never,
            guard: Guard::default(),
            gate: None,
            alarm: GateConfig::default().alarm,
            shares: None,
            speed: None,
            batch_size: 256,
            order: Order::default(),
            subset: None,
            choose: Choose::First,
            seed: 0,
            features: None,
        }
    }
}

impl Spec {
    /// Starts from the defaults, with a model and a data set.
    pub fn new(model: impl Into<PathBuf>, data: &str) -> Self {
        Self {
            model: model.into(),
            data: data.to_owned(),
            ..Self::default()
        }
    }

    /// Lists the keys of a specification as they are written.
    pub fn keys() -> Vec<String> {
        let plain = serde_json::to_value(Self::default()).expect("a specification is plain JSON");
        let fields = plain.as_object().expect("a specification is a map");
        fields.keys().cloned().collect()
    }

    /// Advises on a key that is none of a specification's.
    pub fn advise(unknown: &str) -> String {
        let keys = Self::keys();
        let known: Vec<&str> = keys.iter().map(String::as_str).collect();
        suggestion(unknown, &known)
    }

    /// Returns the protocol, with its guard and seed.
    pub fn protocol(&self) -> Result<Protocol> {
        let many = self.protocol.has_many_passes();
        let queue = QueueConfig {
            capacity: self.queue,
            epochs: self.epochs.unwrap_or(QueueConfig::default().epochs),
        };
        // Many passes see the whole set at once, whatever the preset.
        let gate = self.gate.or(many.then_some(GateChoice::Off));
        let gate = GateChoice::config(gate, &self.method, self.preset);
        let shares = self.shares.or(many.then_some(SharesChoice::Off));
        let shares = SharesChoice::config(shares, &self.method, self.preset);
        let protocol = Protocol {
            passes: if many {
                Passes::Many {
                    epochs: self.epochs.unwrap_or(DEFAULT_PASSES),
                    selection: if self.oracle {
                        Selection::OracleBest
                    } else {
                        Selection::Last
                    },
                }
            } else {
                Passes::One
            },
            queue: (!many && !self.no_queue).then_some(queue),
            minibatch: self.minibatch,
            prediction: if self.predict_first {
                Prediction::PredictFirst
            } else {
                Prediction::AdaptFirst
            },
            reset: self.reset,
            guard: self.guard,
            gate: gate.map(|gate| GateConfig {
                alarm: self.alarm,
                ..gate
            }),
            shares,
            arrival_rate: self.speed,
            seed: self.seed,
        };
        protocol.validate_for(self.batch_size)?;
        Ok(protocol)
    }

    /// Returns the method with all its constants: those of the preset, and those that are set.
    pub fn method_spec(&self) -> Result<MethodSpec> {
        let setting = match (self.protocol.has_many_passes(), self.no_queue) {
            (true, _) => crate::method::Setting::ManyPasses,
            (false, true) => crate::method::Setting::NoQueue,
            (false, false) => crate::method::Setting::Queue,
        };
        let mut method = MethodSpec::preset(&self.method, self.preset, setting)?;
        for (field, value) in &self.set {
            method = match value {
                Value::String(text) => method.with_field(field, text)?,
                value => method.with_value(field, value.clone())?,
            };
        }
        Ok(method)
    }

    /// Checks that the letters of the protocol are those of the method.
    pub fn check_family(&self, method: &MethodSpec, protocol: &Protocol) -> Result<Family> {
        let family = Family::of(&method.needs()?, protocol);
        if family == self.protocol {
            return Ok(family);
        }
        let (is, letter) = if family.is_joint() {
            ("learns with a self-supervised branch", "a Y")
        } else {
            ("has no self-supervised branch", "an N")
        };
        Err(Error::Invalid {
            what: "protocol",
            problem: format!(
                "found {}, but `{}` {is}, which is {letter} protocol: expected {family}",
                self.protocol, self.method
            ),
        })
    }
}

/// A guard is an action alone, with the default bounds, or all its fields.
fn guard<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Guard, D::Error> {
    let written = Value::deserialize(deserializer)?;
    let guard = if written.is_string() {
        serde_json::from_value(written).map(Guard::with_action)
    } else {
        serde_json::from_value(written)
    };
    guard.map_err(serde::de::Error::custom)
}
