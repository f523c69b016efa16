//! A small random network, its anchors, and embedded images: what the tests of methods and sessions share.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use burn::tensor::Device;
use ttac::backbone::Architecture;
use ttac::data::{Dataset, SHAPES10_CLASSES, Shapes10, Split};
use ttac::input::InputContract;
use ttac::method::{MethodSpec, Preset, Setting};
use ttac::protocol::{Protocol, QueueConfig, Sink, StepRecord, Stream, run};
use ttac::stats::{AnchorConfig, SourceLabels, collect};
use ttac::stream::{Domain, Domains, StreamConfig, StreamPlan};
use ttac::{Model, Session, SourceStatistics};

/// Samples that arrive at a time.
pub const BATCH: usize = 12;

pub fn data(seed: u64) -> Vec<Box<dyn Dataset>> {
    vec![Box::new(Shapes10::new(Split::Test, 60, seed))]
}

pub fn input() -> InputContract {
    InputContract::measured(&Shapes10::new(Split::Train, 60, 0), 60).unwrap()
}

/// A model with the anchors of its features.
#[derive(Clone)]
pub struct Source {
    pub model: Model,
    pub anchors: SourceStatistics,
}

thread_local! {
    /// Sources by family; each test has its own.
    static SOURCES: RefCell<BTreeMap<bool, Source>> = RefCell::default();
}

impl Source {
    /// A random network that has the heads which a method needs.
    pub fn of(method: &str) -> Self {
        SOURCES.with_borrow_mut(|sources| {
            let rotation = method == "ttt-r";
            let made = sources.entry(rotation).or_insert_with(|| {
                let (family, fields): (&str, &[(&str, &str)]) = if rotation {
                    ("resnet26", &[("depth", "8"), ("width", "8")])
                } else {
                    (
                        "resnet20-cifar",
                        &[("depth", "8"), ("width", "4"), ("projection", "8")],
                    )
                };
                let mut architecture = Architecture::by_name(family, 10).unwrap();
                for (field, value) in fields {
                    architecture = architecture.with_field(field, value).unwrap();
                }
                let network = architecture.init(1, &Device::flex()).unwrap();
                let classes = SHAPES10_CLASSES.map(str::to_owned).to_vec();
                let model = Model::new(family, network, input(), classes);
                Self {
                    anchors: anchors(&model),
                    model,
                }
            });
            made.clone()
        })
    }

    /// A session of a method that is eager enough to learn from a random network.
    pub fn session(&self, name: &str, protocol: &Protocol) -> Session {
        Session::builder(&self.model)
            .anchors(&self.anchors)
            .method_spec(&eager(name, protocol.setting()))
            .protocol(protocol)
            .build()
            .unwrap()
    }
}

pub fn anchors(model: &Model) -> SourceStatistics {
    let source = Shapes10::new(Split::Train, 100, 0);
    let config = AnchorConfig {
        labels: SourceLabels::True,
        alignment_batch: 40,
        ..AnchorConfig::default()
    };
    collect(
        &model.network,
        &model.fingerprint,
        &model.input,
        &source,
        &config,
        &Device::flex(),
        |_| {},
    )
    .unwrap()
}

/// A method whose thresholds let the predictions of a random network through.
pub fn eager(name: &str, setting: Setting) -> MethodSpec {
    let mut method = MethodSpec::preset(name, Preset::Earlier, setting).unwrap();
    let changes: &[(&str, &str)] = match name {
        "ttt-r" => &[("copies", "4")],
        "eta" | "eata" | "rdumb" => &[("entropy_margin", "2"), ("similarity_threshold", "2")],
        "sar" => &[("entropy_margin", "2"), ("recovery_entropy", "0")],
        "cotta" => &[("copies", "2")],
        "rotta" | "note" => &[("update_every", "8")],
        "tribe" => &[("entropy_margin", "2")],
        // Every probability falls by more than minus two.
        "deyo" => &[("entropy_margin", "2"), ("fall_threshold", "-2")],
        "memo" => &[("copies", "3")],
        // A random network is uncertain of everything, so that it needs few samples and a fast bet.
        "poem" => &[("first_samples", "4"), ("bet_rate", "1")],
        "shot" => &[("confidence_threshold", "0.0")],
        "tfa" | "ttt++" => &[("ring_length", "24")],
        name if name.starts_with("ttac++") => &[
            ("filter.posterior_threshold", "0.0"),
            ("gate.visits", "1"),
            ("strong.confidence_threshold", "0.0"),
        ],
        name if name.starts_with("ttac") => {
            &[("filter.posterior_threshold", "0.0"), ("gate.visits", "1")]
        }
        _ => &[],
    };
    for (field, value) in changes {
        method = method.with_field(field, value).unwrap();
    }
    method
}

pub fn plan(batches: usize) -> StreamPlan {
    let domain = Domain::clean("shapes10");
    let config = StreamConfig::new(Domains::One { domain })
        .with_batch_size(BATCH)
        .with_subset(BATCH * batches, ttac::stream::Choose::First);
    config.plan_for(&data(0)).unwrap()
}

pub fn protocol(queue: bool) -> Protocol {
    Protocol {
        queue: queue.then_some(QueueConfig {
            capacity: 24,
            epochs: 2,
        }),
        minibatch: BATCH,
        ..Protocol::default()
    }
}

/// Predictions with their confidence, to the bit.
#[derive(Default)]
pub struct Predictions {
    pub batches: Vec<Vec<(usize, u32)>>,
    /// After how many batches to stop.
    pub stop_after: Option<usize>,
}

impl Sink for Predictions {
    fn step(&mut self, record: &StepRecord) -> ttac::Result<ControlFlow<()>> {
        let pairs = record.predicted.iter().zip(&record.confidence);
        let pairs = pairs.map(|(&class, p)| (class, p.to_bits()));
        self.batches.push(pairs.collect());
        Ok(if self.stop_after == Some(self.batches.len()) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    }
}

/// Shows a stream to a session, from the batch it is at.
pub fn predictions(
    session: &mut Session,
    plan: &StreamPlan,
    data: &[Box<dyn Dataset>],
) -> Vec<Vec<(usize, u32)>> {
    let stream = Stream::new(plan, data).unwrap();
    let mut sink = Predictions::default();
    run(session, &stream, &mut sink).unwrap();
    sink.batches
}
