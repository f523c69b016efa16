//! What every method promises, on a small random network and embedded images: no look ahead, a way
//! back, a state that can be saved, the same bits whatever the number of threads.

use std::ops::ControlFlow;

use burn::tensor::{Device, Tensor};
use ttac::backbone::{Architecture, Network};
use ttac::data::Dataset;
use ttac::method::{
    Adapter, Lesson, MethodSpec, Minibatch, Preset, QueueState, Setting, Stage, Views, method_names,
};
use ttac::protocol::{
    Passes, Prediction, Protocol, QueueConfig, Recorder, Reset, Selection, Sink, StepRecord,
    Stream, run,
};
use ttac::stream::{Domain, Domains, StreamConfig};
use ttac::{Model, Session, SourceStatistics};

use crate::world::{BATCH, Source, anchors, data, eager, input, plan, predictions, protocol};

/// A session of a method that is eager enough to learn from a random network.
fn session(name: &str, protocol: &Protocol) -> Session {
    Source::of(name).session(name, protocol)
}

/// The adapter of such a method alone.
fn adapter(method: &MethodSpec) -> Adapter {
    let Source { model, anchors } = Source::of(&method.name);
    method.build(model.network, Some(&anchors)).unwrap()
}

/// All methods without a queue, and those that can with one.
fn every(mut check: impl FnMut(&str, &dyn Fn() -> Session, &Protocol)) {
    for (name, _) in method_names() {
        let without = protocol(false);
        check(name, &|| session(name, &without), &without);
        let with = protocol(true);
        if session(name, &with).needs().rehearses {
            check(name, &|| session(name, &with), &with);
        }
    }
}

fn weights(session: &Session) -> std::collections::BTreeMap<String, burn::tensor::TensorData> {
    ttac::backbone::tensors(&session.model().network)
}

#[test]
fn nobody_looks_ahead() {
    let plan = plan(3);
    every(|name, _, protocol| {
        for order in [Prediction::AdaptFirst, Prediction::PredictFirst] {
            let protocol = Protocol {
                prediction: order,
                ..protocol.clone()
            };
            let whole = predictions(&mut session(name, &protocol), &plan, &data(0));
            // The same first two batches, and another world after them.
            let mut other = plan.clone();
            let last = other.batches.pop().unwrap();
            let strange = last.iter().map(|arrival| ttac::stream::Arrival {
                id: 59 - arrival.id % 10,
                ..*arrival
            });
            let strange = strange.collect();
            other.batches.push(strange);
            let changed = predictions(&mut session(name, &protocol), &other, &data(0));
            assert_eq!(whole[..2], changed[..2], "{name}, {order:?}");
        }
    });
}

#[test]
fn reset_is_the_source_bit_for_bit() {
    let plan = plan(2);
    every(|name, make, _| {
        let mut used = make();
        let first = predictions(&mut used, &plan, &data(0));
        used.reset();
        let elsewhere = predictions(&mut used, &plan, &data(7));
        assert_ne!(first, elsewhere, "{name}");
        used.reset();
        assert_eq!(weights(&used), weights(&make()), "{name}");
        let again = predictions(&mut used, &plan, &data(0));
        assert_eq!(first, again, "{name}");
    });
}

#[test]
fn threads_do_not_change_a_bit() {
    let plan = plan(2);
    for name in [
        "tent",
        "eata",
        "sar",
        "deyo",
        "poem",
        "roid",
        "cotta",
        "rotta",
        "petta",
        "note",
        "tribe",
        "rmt",
        "memo",
        "lame",
        "shot",
        "tfa",
        "ttac",
        "ttac++",
        "ttac+contrastive",
    ] {
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            pool.build().unwrap().install(|| {
                let mut session = session(name, &protocol(true));
                predictions(&mut session, &plan, &data(0))
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
        let mut used = make();
        let samples = data(0)[0].batch(&[0, 1, 2, 3]).unwrap().samples;
        let scores = || used.predict(&samples).unwrap().probabilities;
        assert_eq!(scores(), scores(), "{name}");
        let before = weights(&used);
        predictions(&mut used, &plan, &data(0));
        let keeps = matches!(name, "test" | "t3a" | "lame" | "memo")
            || (name == "bn" && protocol.queue.is_none());
        assert_eq!(weights(&used) == before, keeps, "{name}");
    });
}

#[test]
fn many_passes_learn_from_all_and_an_oracle_takes_the_best_of_them() {
    let plan = plan(4);
    for name in ["bn", "tent", "shot", "ttac"] {
        let errors = |selection| {
            let protocol = Protocol {
                passes: Passes::Many {
                    epochs: 3,
                    selection,
                },
                ..protocol(false)
            };
            let domains = data(0);
            let stream = Stream::new(&plan, &domains).unwrap();
            let mut sink = Epochs(Recorder::new(&domains[0].info().classes), Vec::new());
            run(&mut session(name, &protocol), &stream, &mut sink).unwrap();
            assert_eq!(sink.0.samples(), 48, "every sample once");
            (sink.0.error_percent().unwrap(), sink.1)
        };
        let (best, epochs) = errors(Selection::OracleBest);
        let measured: Vec<f64> = epochs.into_iter().map(Option::unwrap).collect();
        assert_eq!(measured.len(), 3, "{name}");
        let least = measured.iter().copied().fold(f64::INFINITY, f64::min);
        assert_eq!(best, least, "{name}: {measured:?}");
        let (last, epochs) = errors(Selection::Last);
        assert_eq!(epochs, [None, None, Some(last)], "{name}");
        assert_eq!(measured[2], last, "{name}: the last pass is the same");
    }
}

/// Records errors, and those of every epoch.
struct Epochs(Recorder, Vec<Option<f64>>);

impl Sink for Epochs {
    fn step(&mut self, record: &StepRecord) -> ttac::Result<ControlFlow<()>> {
        self.0.step(record)
    }

    fn epoch(&mut self, _: usize, _: &ttac::method::Learned, error_percent: Option<f64>) {
        self.1.push(error_percent);
    }
}

/// Two passes move the norm statistics, one takes the contrastive loss, then everything is learned.
#[test]
fn several_passes_of_joint_methods_begin_gently() {
    // A step by the size of the batch has to know it where the contrastive loss is alone, too.
    for (name, full_step) in [
        ("ttt++", None),
        ("ttac+contrastive", None),
        ("ttac+contrastive", Some(4.0)),
    ] {
        let mut method = eager(name, Setting::ManyPasses);
        if let Some(full) = full_step {
            method = method.with_value("full_step", full.into()).unwrap();
        }
        let mut used = adapter(&method);
        let first = used.needs().first_passes;
        let lessons: Vec<Lesson> = (1..=5).map(|pass| first.lesson(pass)).collect();
        let expected = [
            Lesson::Norms,
            Lesson::Norms,
            Lesson::Contrastive,
            Lesson::All,
            Lesson::All,
        ];
        assert_eq!(lessons, expected, "{name}");

        let samples = data(0)[0].batch(&[0, 1, 2, 3]).unwrap().samples;
        let images = input().normalise(&samples, &Device::flex()).unwrap();
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
    let plan = config.plan_for(&domains).unwrap();
    let with = |reset| {
        let protocol = Protocol {
            reset,
            ..protocol(true)
        };
        predictions(&mut session("ttac", &protocol), &plan, &domains)
    };
    let (reset, carried) = (with(Reset::PerVisit), with(Reset::Never));
    assert_eq!(reset[..2], carried[..2]);
    assert_ne!(reset[2..], carried[2..]);
}

#[test]
fn a_reset_per_batch_answers_each_batch_as_a_new_session_would() {
    let (plan, domains) = (plan(3), data(0));
    let protocol = Protocol {
        reset: Reset::PerBatch,
        ..protocol(false)
    };
    let found = predictions(&mut session("ttac", &protocol), &plan, &domains);
    let stream = Stream::new(&plan, &domains).unwrap();
    for (arrivals, found) in plan.batches.iter().zip(found) {
        let batch = stream.batch(arrivals).unwrap();
        let mut fresh = session("ttac", &protocol);
        let answer = fresh.observe_known(&batch.ids, &batch.samples).unwrap();
        let pairs = answer.classes.iter().zip(answer.confidence());
        let alone: Vec<_> = pairs.map(|(&class, p)| (class, p.to_bits())).collect();
        assert_eq!(found, alone);
    }
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
fn bn_refuses_a_network_without_batch_norms() {
    for network in without_batch_norm() {
        let model = model(&network);
        let refused = Session::builder(&model).method("bn").build().err().unwrap();
        let message = "`bn` needs batch norms, and this network has none";
        assert_eq!(refused.to_string(), message);
        Session::builder(&model).method("tent").build().unwrap();
    }
}

/// A network of its own as a model.
fn model(network: &Network) -> Model {
    let classes = ttac::data::SHAPES10_CLASSES.map(str::to_owned).to_vec();
    Model::new("small", network.clone(), input(), classes)
}

#[test]
fn transformers_adapt_by_every_method_that_needs_no_second_head() {
    let plan = plan(2);
    let [network, _] = without_batch_norm();
    let model = model(&network);
    let source: SourceStatistics = anchors(&model);
    for name in [
        "tent",
        "shot",
        "t3a",
        "tfa",
        "ttac",
        "ttac+shot",
        "ttac-source-free",
        "ttac++",
    ] {
        let make = || {
            let builder = Session::builder(&model).anchors(&source);
            let builder = builder.method_spec(&eager(name, Setting::NoQueue));
            builder.protocol(&protocol(false)).build().unwrap()
        };
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            pool.build().unwrap().install(|| {
                let mut session = make();
                let found = predictions(&mut session, &plan, &data(0));
                (found, session)
            })
        };
        let (one, mut session) = with(1);
        assert_eq!(one, with(3).0, "{name}");
        let changed = weights(&session);
        let source = weights(&make());
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
        session.reset();
        assert_eq!(weights(&session), source, "{name}");
    }
}

#[test]
fn the_released_queue_makes_2076_steps_of_ten_thousand_samples() {
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
    let error = wrong.validate_for(256).unwrap_err().to_string();
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
        let method = MethodSpec::preset(name, Preset::Released, Setting::NoQueue).unwrap();
        // What a network lacks is said even where the anchors are there.
        let anchors = name.contains('+').then(|| Source::of("ttac").anchors);
        let error = method.build(plain.clone(), anchors.as_ref());
        let error = error.err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let unknown = MethodSpec::preset("tnet", Preset::Released, Setting::NoQueue);
    assert!(
        unknown
            .unwrap_err()
            .to_string()
            .contains("did you mean `tent`?")
    );
}
