//! How a session is put together.

use burn::tensor::Device;
use serde_json::Value;

use super::{RunState, Session};
use crate::backbone::{Backbone, Network};
use crate::experiment::{GateChoice, SharesChoice, Spec};
use crate::gate::GateConfig;
use crate::method::{Adapter, MethodSpec, Prediction, Preset};
use crate::model::Model;
use crate::protocol::{Guard, Protocol, QueueConfig, views};
use crate::shares::{RecentShares, SharesConfig};
use crate::stats::SourceStatistics;
use crate::{Error, Result};

/// Puts a [`Session`] together: a model, and whatever differs from the defaults (method `ttac` with the
/// `recommended` constants and their gate, one pass without a queue, adapt-first, a guard that warns).
#[must_use = "a builder does nothing until `build` is called"]
pub struct SessionBuilder<'a, B: Backbone = Network> {
    model: &'a Model<B>,
    anchors: Option<&'a SourceStatistics>,
    method: Choice,
    protocol: Protocol,
    device: Option<Device>,
}

/// Which method adapts.
enum Choice {
    /// A preset of a named method, with some constants changed.
    Preset {
        name: String,
        preset: Preset,
        changes: Vec<(String, Value)>,
    },
    /// A named method with all its constants.
    Whole(MethodSpec),
    /// A method of somebody's own, with its name and constants for the record.
    Own(MethodSpec, Box<Adapter>),
}

impl<'a, B: Backbone + Sync + 'static> SessionBuilder<'a, B> {
    pub(super) fn new(model: &'a Model<B>) -> Self {
        Self {
            model,
            anchors: None,
            method: Choice::Preset {
                name: "ttac".to_owned(),
                preset: Preset::default(),
                changes: Vec::new(),
            },
            protocol: Protocol {
                gate: GateChoice::config(None, "ttac", Preset::default()),
                shares: SharesChoice::config(None, "ttac", Preset::default()),
                ..Protocol::default()
            },
            device: None,
        }
    }

    /// Gives the model's source statistics, which the methods with anchors need.
    pub fn anchors(mut self, anchors: &'a SourceStatistics) -> Self {
        self.anchors = Some(anchors);
        self
    }

    /// Chooses a method by name, with the constants of its `recommended` preset.
    pub fn method(self, name: &str) -> Self {
        self.preset(name, Preset::default())
    }

    /// Chooses a method by name, with the constants, the gate and the shares of a preset.
    /// The preset `recommended` comes with a gate, and with answers corrected by recent shares of the classes.
    pub fn preset(mut self, name: &str, preset: Preset) -> Self {
        let protocol = &mut self.protocol;
        protocol.gate = GateChoice::config(None, name, preset);
        protocol.shares = SharesChoice::config(None, name, preset);
        self.method = Choice::Preset {
            name: name.to_owned(),
            preset,
            changes: Vec::new(),
        };
        self
    }

    /// Changes one constant of the chosen preset, e.g. `learning_rate`.
    pub fn set(mut self, field: &str, value: impl Into<Value>) -> Self {
        if let Choice::Preset { changes, .. } = &mut self.method {
            changes.push((field.to_owned(), value.into()));
        }
        self
    }

    /// Chooses a method with all its constants. Gate and shares are left as they are.
    pub fn method_spec(mut self, method: &MethodSpec) -> Self {
        self.method = Choice::Whole(method.clone());
        self
    }

    /// Uses a method of one's own; `record` names it, with its constants, in protocol cards and saved states.
    pub fn own_method(mut self, record: MethodSpec, adapter: Adapter) -> Self {
        self.method = Choice::Own(record, Box::new(adapter));
        self
    }

    /// Takes method, protocol, guard and seed from a specification. Model, anchors and data are not read from it:
    /// the model is the one the builder was made with.
    pub fn spec(mut self, spec: &Spec) -> Result<Self> {
        self.method = Choice::Whole(spec.method_spec()?);
        self.protocol = spec.protocol()?;
        Ok(self)
    }

    /// Runs under another protocol.
    pub fn protocol(mut self, protocol: &Protocol) -> Self {
        self.protocol = protocol.clone();
        self
    }

    /// Learns again from a queue of recent samples; `None` learns from each batch once.
    pub fn queue(mut self, queue: Option<QueueConfig>) -> Self {
        self.protocol.queue = queue;
        self
    }

    /// Predicts each batch before or after it is learned from.
    pub fn prediction(mut self, order: Prediction) -> Self {
        self.protocol.prediction = order;
        self
    }

    /// Watches over the adaptation with other bounds, or acts otherwise beyond them.
    pub fn guard(mut self, guard: Guard) -> Self {
        self.protocol.guard = guard;
        self
    }

    /// Keeps the source in charge while the stream fits it, or does not; to be said after the preset. A gate needs anchors with a
    /// calibration. Where they have none the session adapts from the first batch on, and
    /// [`Session::warnings`] says so.
    pub fn gate(mut self, gate: Option<GateConfig>) -> Self {
        self.protocol.gate = gate;
        self
    }

    /// Corrects answers by the shares of the classes among recent samples, or does not; to be said after the preset.
    pub fn shares(mut self, shares: Option<SharesConfig>) -> Self {
        self.protocol.shares = shares;
        self
    }

    /// Seeds the order in which a queue is learned from, and all varied copies.
    pub fn seed(mut self, seed: u64) -> Self {
        self.protocol.seed = seed;
        self
    }

    /// Computes on another device than the model lies on.
    pub fn device(mut self, device: &Device) -> Self {
        self.device = Some(device.clone());
        self
    }

    /// Checks that everything fits together, and makes the session.
    pub fn build(self) -> Result<Session<B>> {
        let Self {
            model,
            anchors,
            method,
            mut protocol,
            device,
        } = self;
        protocol.validate()?;
        let outputs = model.network.num_classes();
        if model.classes.len() != outputs {
            return Err(Error::Mismatch {
                what: "classes of the model".to_owned(),
                expected: format!("{outputs}, as the network has scores"),
                found: format!("{} names", model.classes.len()),
            });
        }
        if let Some(anchors) = anchors {
            anchors.check_backbone(&model.fingerprint)?;
        }
        let device = device.unwrap_or_else(|| model.network.devices()[0].clone());
        let network = || model.network.clone().to_device(&device);
        let (method, mut adapter) = match method {
            Choice::Own(record, adapter) => (record, *adapter),
            Choice::Whole(method) => {
                let adapter = method.build(network(), anchors)?;
                (method, adapter)
            }
            Choice::Preset {
                name,
                preset,
                changes,
            } => {
                let mut method = MethodSpec::preset(&name, preset, protocol.setting())?;
                for (field, value) in changes {
                    method = method.with_value(&field, value)?;
                }
                let adapter = method.build(network(), anchors)?;
                (method, adapter)
            }
        };
        views::check(adapter.needs().views, &model.input)?;
        adapter.use_shares(protocol.shares.map(|config| {
            let counts = anchors.map(|anchors| anchors.counts.as_slice());
            RecentShares::new(config, outputs, counts)
        }));
        let mut lacking = Vec::new();
        let norm = adapter.norm_updates();
        let has_norms = anchors.is_some_and(|anchors| anchors.norms.is_some());
        if norm.needs_reference() && !has_norms && model.network.has_batch_norm() {
            lacking.push(
                "no reference moments of the norms, so norms are not re-based and their statistics follow batches",
            );
        }
        let calibration = anchors.and_then(|anchors| anchors.calibration.as_ref());
        if protocol.gate.is_some() && calibration.is_none() {
            protocol.gate = None;
            lacking.push(
                "no calibration, so there is no gate, and the method adapts from the first batch on",
            );
        }
        let mut warnings = Vec::new();
        if !lacking.is_empty() {
            let whose = match anchors {
                Some(_) => "the anchors have",
                None => "there are no anchors, hence",
            };
            warnings.push(format!("{whose} {}", lacking.join("; and ")));
        }
        let calibration = calibration.filter(|_| protocol.gate.is_some());
        warnings.extend(calibration.iter().flat_map(|found| found.warnings()));
        Ok(Session {
            calibration: calibration.cloned(),
            uses_reference: norm.needs_reference() && has_norms,
            warnings,
            state: RunState::new(&protocol),
            published: None,
            source: network(),
            model: model.clone(),
            device,
            method,
            protocol,
            adapter,
        })
    }
}
