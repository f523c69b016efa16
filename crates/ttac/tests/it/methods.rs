//! What every method promises, on a small random network and embedded images: no look ahead, a way
//! back, a state that can be saved, the same bits whatever the number of threads.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use burn::tensor::{Device, Tensor};
use ttac::archive::Arrays;
use ttac::backbone::{Architecture, Network};
use ttac::checkpoint::InputContract;
use ttac::data::{Dataset, Shapes10, Split};
use ttac::method::{
    Lesson, METHOD_NAMES, Method, MethodConfig, Minibatch, Preset, QueueState, Setting, Stage,
    Views,
};
use ttac::protocol::{
    Passes, Prediction, Protocol, QueueConfig, Recorder, Reset, Runner, Selection, Sink,
    StepRecord, Stream, run,
};
use ttac::stats::{AnchorConfig, SourceLabels, SourceStatistics, collect};
use ttac::stream::{Domain, Domains, StreamConfig, StreamPlan};

const BATCH: usize = 12;

fn data(seed: u64) -> Vec<Box<dyn Dataset>> {
    vec![Box::new(Shapes10::new(Split::Test, 60, seed))]
}

fn input() -> InputContract {
    InputContract::measured(&Shapes10::new(Split::Train, 60, 0), 60).unwrap()
}

fn network(name: &str) -> Network {
    let (family, fields): (&str, &[(&str, &str)]) = match name {
        "ttt-r" => ("resnet26", &[("depth", "8"), ("width", "8")]),
        _ => (
            "resnet20-cifar",
            &[("depth", "8"), ("width", "4"), ("projection", "8")],
        ),
    };
    let mut architecture = Architecture::by_name(family, 10).unwrap();
    for (field, value) in fields {
        architecture = architecture.with_field(field, value).unwrap();
    }
    architecture.init(1, &Device::flex()).unwrap()
}

fn anchors(network: &Network) -> SourceStatistics {
    let source = Shapes10::new(Split::Train, 100, 0);
    let config = AnchorConfig {
        labels: SourceLabels::True,
        alignment_batch: 40,
        ..AnchorConfig::default()
    };
    collect(
        network,
        "",
        &input(),
        &source,
        &config,
        &Device::flex(),
        |_| {},
    )
    .unwrap()
}

thread_local! {
    /// Networks and anchors by family; each test has its own.
    static SOURCES: RefCell<BTreeMap<bool, (Network, SourceStatistics)>> = RefCell::default();
}

fn source(name: &str) -> (Network, SourceStatistics) {
    SOURCES.with_borrow_mut(|sources| {
        let made = sources.entry(name == "ttt-r").or_insert_with(|| {
            let network = network(name);
            let source = anchors(&network);
            (network, source)
        });
        made.clone()
    })
}

/// A method that is eager enough to learn from a random network.
fn method(name: &str, setting: Setting) -> Box<dyn Method> {
    let (network, source) = source(name);
    let mut config = MethodConfig::by_name(name, Preset::Recommended, setting).unwrap();
    let changes: &[(&str, &str)] = match &config {
        MethodConfig::Ttac(_) => &[("filter.posterior_threshold", "0.0"), ("gate.visits", "1")],
        MethodConfig::TttR(_) => &[("copies", "4")],
        MethodConfig::Shot(_) => &[("confidence_threshold", "0.0")],
        MethodConfig::Tfa(_) => &[("ring_length", "24")],
        _ => &[],
    };
    for (field, value) in changes {
        config = config.with_field(field, value).unwrap();
    }
    config.init(network, Some(&source)).unwrap()
}

fn plan(batches: usize) -> StreamPlan {
    let domain = Domain::clean("shapes10");
    let config = StreamConfig::new(Domains::One { domain })
        .with_batch_size(BATCH)
        .with_subset(BATCH * batches, ttac::stream::Choose::First);
    let labels = data(0)[0].labels().unwrap();
    config.plan(&[&labels], 10).unwrap()
}

fn protocol(queue: bool) -> Protocol {
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
struct Predictions(Vec<Vec<(usize, u32)>>, Option<usize>);

impl Sink for Predictions {
    fn step(&mut self, record: &StepRecord) -> ttac::Result<ControlFlow<()>> {
        let pairs = record.predicted.iter().zip(&record.confidence);
        self.0
            .push(pairs.map(|(&class, p)| (class, p.to_bits())).collect());
        Ok(match self.1 {
            Some(last) if self.0.len() == last => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
    }
}

fn predictions(
    method: &mut dyn Method,
    protocol: &Protocol,
    plan: &StreamPlan,
    data: &[Box<dyn Dataset>],
) -> Vec<Vec<(usize, u32)>> {
    let (input, device) = (input(), Device::flex());
    let stream = Stream {
        plan,
        domains: data,
        input: &input,
        device: &device,
    };
    let mut sink = Predictions::default();
    run(protocol, method, &stream, &mut sink).unwrap();
    sink.0
}

/// All methods without a queue, and those that can with one.
fn every(mut check: impl FnMut(&str, &dyn Fn() -> Box<dyn Method>, &Protocol)) {
    for (name, _) in METHOD_NAMES {
        check(name, &|| method(name, Setting::NoQueue), &protocol(false));
        let with_queue = || method(name, Setting::Queue);
        if with_queue().rehearses() {
            check(name, &with_queue, &protocol(true));
        }
    }
}

#[test]
fn nobody_looks_ahead() {
    let plan = plan(3);
    every(|name, make, protocol| {
        for order in [Prediction::AdaptFirst, Prediction::PredictFirst] {
            let protocol = Protocol {
                prediction: order,
                ..protocol.clone()
            };
            let whole = predictions(make().as_mut(), &protocol, &plan, &data(0));
            // The same first two batches, and another world after them.
            let mut other = plan.clone();
            let last = other.batches.pop().unwrap();
            let strange = last.iter().map(|arrival| ttac::stream::Arrival {
                id: 59 - arrival.id % 10,
                ..*arrival
            });
            let strange = strange.collect();
            other.batches.push(strange);
            let changed = predictions(make().as_mut(), &protocol, &other, &data(0));
            assert_eq!(whole[..2], changed[..2], "{name}, {order:?}");
        }
    });
}

#[test]
fn reset_is_the_source_bit_for_bit() {
    let plan = plan(2);
    every(|name, make, protocol| {
        let mut used = make();
        let first = predictions(used.as_mut(), protocol, &plan, &data(0));
        let elsewhere = predictions(used.as_mut(), protocol, &plan, &data(7));
        assert_ne!(first, elsewhere, "{name}");
        used.reset();
        assert_eq!(used.weights(), make().weights(), "{name}");
        let again = predictions(used.as_mut(), protocol, &plan, &data(0));
        assert_eq!(first, again, "{name}");
    });
}

#[test]
fn a_saved_state_goes_on_with_the_same_bits() {
    let plan = plan(4);
    let (input, device) = (input(), Device::flex());
    let domains = data(0);
    let stream = Stream {
        plan: &plan,
        domains: &domains,
        input: &input,
        device: &device,
    };
    every(|name, make, protocol| {
        let whole = predictions(make().as_mut(), protocol, &plan, &domains);
        let mut first = make();
        let mut sink = Predictions(Vec::new(), Some(2));
        let runner = Runner::new(protocol, &stream).unwrap();
        runner.run(first.as_mut(), &mut sink).unwrap();
        let mut arrays = Arrays::default();
        first.save(&mut arrays).unwrap();
        let mut second = make();
        second.load(&mut arrays).unwrap();
        let mut rest = Predictions::default();
        let runner = Runner::new(protocol, &stream).unwrap().skip_to(2).unwrap();
        runner.run(second.as_mut(), &mut rest).unwrap();
        let joined = [sink.0, rest.0].concat();
        assert_eq!(joined, whole, "{name}, queue {:?}", protocol.queue);
    });
}

#[test]
fn threads_do_not_change_a_bit() {
    let plan = plan(2);
    for name in ["tent", "shot", "tfa", "ttac", "ttac+contrastive"] {
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            pool.build().unwrap().install(|| {
                let mut method = method(name, Setting::Queue);
                predictions(method.as_mut(), &protocol(true), &plan, &data(0))
            })
        };
        let one = with(1);
        assert_eq!(one, with(2), "{name}");
        assert_eq!(one, with(3), "{name}");
    }
}

#[test]
fn predicting_changes_nothing_and_learning_changes_something() {
    let plan = plan(2);
    every(|name, make, protocol| {
        let used = make();
        let images = data(0)[0].batch(&[0, 1, 2, 3]).unwrap().samples.images;
        let images = input().normalise(&images, &Device::flex()).unwrap();
        let scores = || used.predict(images.clone()).to_data();
        assert_eq!(scores(), scores(), "{name}");
        let mut used = make();
        let before = used.weights();
        predictions(used.as_mut(), protocol, &plan, &data(0));
        let keeps = matches!(name, "test" | "t3a") || (name == "bn" && protocol.queue.is_none());
        assert_eq!(used.weights() == before, keeps, "{name}");
    });
}

#[test]
fn many_passes_learn_from_all_and_an_oracle_is_never_worse() {
    let plan = plan(4);
    for name in ["bn", "tent", "shot", "ttac"] {
        let error = |selection| {
            let protocol = Protocol {
                passes: Passes::Many {
                    epochs: 3,
                    selection,
                },
                ..protocol(false)
            };
            let (input, device, domains) = (input(), Device::flex(), data(0));
            let stream = Stream {
                plan: &plan,
                domains: &domains,
                input: &input,
                device: &device,
            };
            let mut recorder = Recorder::new(&domains[0].classes());
            let mut method = method(name, Setting::ManyPasses);
            run(&protocol, method.as_mut(), &stream, &mut recorder).unwrap();
            assert_eq!(recorder.samples(), 48, "every sample once");
            recorder.wrong()
        };
        assert!(
            error(Selection::OracleBest) <= error(Selection::Last),
            "{name}"
        );
    }
}

/// METHODS 8.5 and 9.7: two passes for the norm statistics, one for the contrastive loss, then everything.
#[test]
fn several_passes_of_joint_methods_begin_gently() {
    for name in ["ttt++", "ttac+contrastive"] {
        let mut used = method(name, Setting::ManyPasses);
        let first = used.first_passes();
        let lessons: Vec<Lesson> = (1..=5).map(|pass| first.lesson(pass)).collect();
        let expected = [
            Lesson::Norms,
            Lesson::Norms,
            Lesson::Contrastive,
            Lesson::All,
            Lesson::All,
        ];
        assert_eq!(lessons, expected, "{name}");

        let images = data(0)[0].batch(&[0, 1, 2, 3]).unwrap().samples.images;
        let images = input().normalise(&images, &Device::flex()).unwrap();
        let minibatch = Minibatch {
            ids: vec![0, 1, 2, 3],
            views: Some(Views {
                images: Tensor::cat(vec![images.clone(), images.clone() * 0.9], 0),
                turns: Vec::new(),
            }),
            images,
        };
        let is_running = |key: &String| key.contains("running_");
        let mut learn = |lesson| {
            let before = used.weights();
            let stage = Stage {
                epoch: 1,
                lesson,
                epochs: 5,
                queue: QueueState::Everything,
            };
            let learned = used.learn(&minibatch, &stage).unwrap();
            let after = used.weights();
            let moved = before.keys().filter(|&key| before[key] != after[key]);
            let (running, trained): (Vec<&String>, Vec<&String>) =
                moved.partition(|key| is_running(key));
            let losses: Vec<&str> = learned.losses.iter().map(|(name, _)| *name).collect();
            (!running.is_empty(), !trained.is_empty(), losses)
        };
        assert_eq!(learn(Lesson::Norms), (true, false, vec![]), "{name}");
        let alone = (true, true, vec!["contrastive"]);
        assert_eq!(learn(Lesson::Contrastive), alone, "{name}");
        let (.., losses) = learn(Lesson::All);
        assert!(losses.len() > 1, "{name}: {losses:?}");
    }
}

#[test]
fn a_reset_per_visit_makes_visits_independent() {
    let domains: Vec<Box<dyn Dataset>> = vec![data(0).remove(0), data(7).remove(0)];
    let names = vec![
        Domain::clean("shapes10"),
        Domain::corrupted("shapes10", "snow", 5),
    ];
    let config = StreamConfig::new(Domains::Sequence { domains: names })
        .with_batch_size(BATCH)
        .with_subset(24, ttac::stream::Choose::First);
    let labels: Vec<Vec<usize>> = domains.iter().map(|d| d.labels().unwrap()).collect();
    let plan = config.plan(&[&labels[0], &labels[1]], 10).unwrap();
    let with = |reset| {
        let protocol = Protocol {
            reset,
            ..protocol(true)
        };
        let mut method = method("ttac", Setting::Queue);
        predictions(method.as_mut(), &protocol, &plan, &domains)
    };
    let (reset, carried) = (with(Reset::PerVisit), with(Reset::Never));
    assert_eq!(reset[..2], carried[..2]);
    assert_ne!(reset[2..], carried[2..]);
}

/// Networks without batch norm: layer norms, group norms.
fn without_batch_norm() -> [Network; 2] {
    let small: [(&str, &[(&str, &str)]); 2] = [
        (
            "vit-tiny-4",
            &[
                ("patch", "8"),
                ("width", "24"),
                ("depth", "2"),
                ("heads", "3"),
                ("mlp", "40"),
            ],
        ),
        ("resnet26", &[("depth", "8"), ("width", "8")]),
    ];
    small.map(|(name, fields)| {
        let mut architecture = Architecture::by_name(name, 10).unwrap();
        for (field, value) in fields {
            architecture = architecture.with_field(field, value).unwrap();
        }
        architecture.init(1, &Device::flex()).unwrap()
    })
}

#[test]
fn without_batch_norm_bn_is_the_source_and_says_so_once() {
    let plan = plan(3);
    for network in without_batch_norm() {
        for (setting, queue) in [(Setting::NoQueue, false), (Setting::Queue, true)] {
            let make = |name: &str| {
                let config = MethodConfig::by_name(name, Preset::Released, setting).unwrap();
                config.init(network.clone(), None).unwrap()
            };
            let protocol = protocol(queue);
            let expected = predictions(make("test").as_mut(), &protocol, &plan, &data(0));
            let mut bn = make("bn");
            let before = bn.weights();
            assert_eq!(
                predictions(bn.as_mut(), &protocol, &plan, &data(0)),
                expected
            );
            assert_eq!(bn.weights(), before);
            let (input, device, domains) = (input(), Device::flex(), data(0));
            let stream = Stream {
                plan: &plan,
                domains: &domains,
                input: &input,
                device: &device,
            };
            let mut warnings = Warnings::default();
            run(&protocol, make("bn").as_mut(), &stream, &mut warnings).unwrap();
            let said = "the network has no batch norm: `bn` predicts what `test` does";
            assert_eq!(warnings.0, [said]);
        }
    }
}

#[derive(Default)]
struct Warnings(Vec<String>);

impl Sink for Warnings {
    fn step(&mut self, record: &StepRecord) -> ttac::Result<ControlFlow<()>> {
        self.0.extend(record.warnings.iter().cloned());
        Ok(ControlFlow::Continue(()))
    }
}

#[test]
fn transformers_adapt_by_every_method_that_needs_no_second_head() {
    let plan = plan(2);
    let [network, _] = without_batch_norm();
    let source = anchors(&network);
    for name in [
        "tent",
        "shot",
        "t3a",
        "tfa",
        "ttac",
        "ttac+shot",
        "ttac-source-free",
    ] {
        let make = || {
            let config = MethodConfig::by_name(name, Preset::Recommended, Setting::NoQueue);
            let mut config = config.unwrap();
            let changes: &[(&str, &str)] = match &config {
                MethodConfig::Ttac(_) => {
                    &[("filter.posterior_threshold", "0.0"), ("gate.visits", "1")]
                }
                MethodConfig::Tfa(_) => &[("ring_length", "24")],
                _ => &[],
            };
            for (field, value) in changes {
                config = config.with_field(field, value).unwrap();
            }
            config.init(network.clone(), Some(&source)).unwrap()
        };
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            pool.build().unwrap().install(|| {
                let mut method = make();
                let found = predictions(method.as_mut(), &protocol(false), &plan, &data(0));
                (found, method)
            })
        };
        let (one, mut method) = with(1);
        assert_eq!(one, with(3).0, "{name}");
        let changed = method.weights();
        let source = make().weights();
        let moved = |key: &String| changed[key] != source[key];
        match name {
            "t3a" => assert!(!source.keys().any(moved)),
            // Scales and shifts of the norms, nothing else.
            "tent" => assert!(source.keys().all(|key| moved(key) == key.contains("norm"))),
            _ => {
                assert!(moved(&"blocks.0.attn.qkv.weight".to_owned()), "{name}");
                assert!(!moved(&"head.weight".to_owned()), "{name}");
            }
        }
        method.reset();
        assert_eq!(method.weights(), source, "{name}");
    }
}

#[test]
fn the_released_queue_makes_2076_steps_of_ten_thousand_samples() {
    // METHODS 8.1 and 16.3, 8.
    let protocol = Protocol {
        queue: Some(QueueConfig::default()),
        ..Protocol::default()
    };
    let sizes = (0..40).map(|batch| (256 * (batch + 1)).min(10_000));
    let epochs: Vec<usize> = sizes
        .clone()
        .map(|n| protocol.queue_epochs(n.min(4096)))
        .collect();
    assert_eq!(epochs[..5], [2, 3, 4, 4, 4]);
    let steps = sizes
        .zip(&epochs)
        .map(|(n, epochs)| n.min(4096) / 256 * epochs);
    assert_eq!(steps.sum::<usize>(), 2076);
    assert_eq!(protocol.samples_learned(10_000, 256), 2076 * 256);
    let many = Protocol {
        queue: None,
        passes: Passes::Many {
            epochs: 3,
            selection: Selection::Last,
        },
        ..protocol
    };
    assert_eq!(many.samples_learned(1_000, 256), 3_000);
    assert_eq!(Protocol::default().samples_learned(1_000, 256), 1_000);
}

#[test]
fn impossible_protocols_are_refused_with_all_reasons() {
    let wrong = Protocol {
        passes: Passes::Many {
            epochs: 0,
            selection: Selection::Last,
        },
        queue: Some(QueueConfig {
            capacity: 10,
            epochs: 0,
        }),
        prediction: Prediction::PredictFirst,
        ..Protocol::default()
    };
    let error = wrong.validate(256).unwrap_err().to_string();
    for part in [
        "smaller than a batch",
        "at least one epoch",
        "no queue",
        "not first",
    ] {
        assert!(error.contains(part), "{part} in: {error}");
    }
}

#[test]
fn what_a_method_lacks_is_said_before_any_work() {
    let plain = Architecture::by_name("resnet20-cifar", 10).unwrap();
    let plain = plain.with_field("depth", "8").unwrap();
    let plain = plain.init(0, &Device::flex()).unwrap();
    for (name, expected) in [
        ("ttac", "needs source statistics"),
        ("tfa", "needs source statistics"),
        ("ttt-r", "rotation head"),
        ("ttac+contrastive", "projection head"),
    ] {
        let config = MethodConfig::by_name(name, Preset::Released, Setting::NoQueue).unwrap();
        let error = config.init(plain.clone(), None).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let unknown = MethodConfig::by_name("tnet", Preset::Released, Setting::NoQueue);
    assert!(
        unknown
            .unwrap_err()
            .to_string()
            .contains("did you mean `tent`?")
    );
}
