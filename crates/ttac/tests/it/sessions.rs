//! Sessions: bad input changes nothing, saved states go on with the same bits, guards work.

use burn::tensor::Device;
use ttac::backbone::Architecture;
use ttac::data::{Clouds, Images, SHAPES10_CLASSES, Samples, Shapes10, Solids10, Split};
use ttac::data::{Dataset, DatasetExt};
use ttac::input::InputContract;
use ttac::method::Setting;
use ttac::protocol::{Guard, GuardAction, Protocol, QueueConfig, Stream, run};
use ttac::stats::{AnchorConfig, SourceLabels, collect};
use ttac::{Error, Model, Session, SessionState};

use crate::world::{BATCH, Predictions, Source, data, eager, plan, predictions, protocol};

fn images(seed: u64, first: u64, count: u64) -> Samples {
    let set = Shapes10::new(Split::Test, 60, seed);
    let ids: Vec<u64> = (first..first + count).collect();
    set.batch(&ids).unwrap().samples
}

/// Classes and probabilities, to the bit.
fn bits(answer: &ttac::Answer) -> (Vec<usize>, Vec<u32>) {
    let probabilities = answer.probabilities.iter().map(|p| p.to_bits());
    (answer.classes.clone(), probabilities.collect())
}

#[test]
fn a_predictor_answers_as_the_session_did_on_any_thread() {
    for name in ["ttac", "t3a", "tent"] {
        let mut session = Source::of(name).session(name, &protocol(false));
        session.observe(&images(0, 0, 12)).unwrap();
        let predictor = session.predictor();
        let asked = images(0, 40, 8);
        let expected = bits(&session.predict(&asked).unwrap());
        session.observe(&images(7, 0, 12)).unwrap();
        assert_ne!(bits(&session.predict(&asked).unwrap()), expected, "{name}");
        let elsewhere = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2)
                .map(|_| scope.spawn(|| bits(&predictor.predict(&asked).unwrap())))
                .collect();
            let answers = threads.into_iter().map(|thread| thread.join().unwrap());
            answers.collect::<Vec<_>>()
        });
        assert_eq!(elsewhere, [expected.clone(), expected], "{name}");
    }
}

#[test]
fn probabilities_are_the_softmax_of_the_scores() {
    let mut session = Source::of("tent").session("tent", &protocol(false));
    let answer = session.observe(&images(0, 0, 12)).unwrap();
    let rows = answer.scores.chunks_exact(answer.num_classes);
    let expected = rows.flat_map(|row| {
        let largest = row.iter().copied().fold(f32::MIN, f32::max);
        let raised: Vec<f64> = row.iter().map(|s| f64::from(s - largest).exp()).collect();
        let sum: f64 = raised.iter().sum();
        raised.into_iter().map(move |value| value / sum)
    });
    let expected: Vec<f64> = expected.collect();
    assert_eq!(answer.probabilities.len(), expected.len());
    for (found, expected) in answer.probabilities.iter().zip(expected) {
        // Single precision against double.
        assert!((f64::from(*found) - expected).abs() < 1e-6);
    }
}

#[test]
fn a_saved_session_goes_on_with_the_same_bits() {
    let plan = plan(4);
    let domains = data(0);
    let stream = Stream::new(&plan, &domains).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (name, _) in ttac::method::method_names() {
        let source = Source::of(name);
        for queue in [false, true] {
            let protocol = protocol(queue);
            let make = || source.session(name, &protocol);
            if queue && !make().needs().rehearses {
                continue;
            }
            let whole = predictions(&mut make(), &plan, &domains);
            let mut first = make();
            let mut sink = Predictions {
                stop_after: Some(2),
                ..Predictions::default()
            };
            run(&mut first, &stream, &mut sink).unwrap();
            let path = folder.path().join("state");
            first.save(&path).unwrap();
            let mut second = Session::load(&path, &source.model, Some(&source.anchors)).unwrap();
            assert_eq!(second.batches(), 2);
            let rest = predictions(&mut second, &plan, &domains);
            let joined = [sink.batches, rest].concat();
            assert_eq!(joined, whole, "{name}, queue {queue}");
        }
    }
}

/// A stream of one picture again and again, which no method can tell classes apart by.
fn grey(count: usize) -> Samples {
    Samples::Images(Images {
        height: 32,
        width: 32,
        pixels: vec![127; count * 32 * 32 * 3],
    })
}

fn guarded(action: GuardAction, queue: bool) -> Protocol {
    Protocol {
        queue: queue.then_some(QueueConfig {
            capacity: 40,
            epochs: 2,
        }),
        guard: Guard::with_action(action),
        ..protocol(false)
    }
}

#[test]
fn a_guard_stops_an_unlabelled_stream_that_collapses() {
    let source = Source::of("ttac");
    let mut session = source.session("ttac", &guarded(GuardAction::Stop, false));
    let alarms: Vec<bool> = (0..4)
        .map(|_| session.observe(&grey(12)).unwrap().alarm.is_some())
        .take_while(|alarm| !alarm)
        .collect();
    assert_eq!(alarms.len(), 3, "40 predictions of ten classes are judged");
    let error = session.observe(&grey(12)).unwrap_err();
    assert!(
        matches!(&error, Error::Stopped { batch: 3, reason } if reason.contains("1 of 10 classes")),
        "{error}"
    );
    assert!(session.predict(&grey(2)).is_ok(), "it still answers");
    session.reset();
    assert!(session.observe(&images(0, 0, 12)).is_ok());
}

#[test]
fn a_guard_judges_a_thousand_classes_in_batches_of_64() {
    let architecture = Architecture::by_name("resnet20-cifar", 1000).unwrap();
    let architecture = architecture.with_field("depth", "8").unwrap();
    let architecture = architecture.with_field("width", "4").unwrap();
    let network = architecture.init(1, &Device::flex()).unwrap();
    let classes = (0..1000).map(|class| format!("class {class}")).collect();
    let model = Model::new("small", network, Source::of("ttac").model.input, classes);
    let builder = Session::builder(&model).method("tent");
    let guard = Guard::with_action(GuardAction::Stop);
    let mut session = builder.guard(guard).build().unwrap();
    let stopped = (0..6).position(|_| {
        let answer = session.observe(&grey(64)).unwrap();
        answer.alarm.is_some()
    });
    assert_eq!(stopped, Some(3), "when 256 predictions are there");
}

#[test]
fn a_run_that_a_guard_reset_resumes_with_the_same_bits() {
    let source = Source::of("ttac");
    let protocol = guarded(GuardAction::Reset, true);
    let batches: Vec<Samples> = (0..9)
        .map(|batch| match batch {
            0..=4 => grey(12),
            _ => images(0, 12 * (batch - 5), 12),
        })
        .collect();
    let mut whole = source.session("ttac", &protocol);
    let answers: Vec<_> = batches
        .iter()
        .map(|samples| whole.observe(samples).unwrap())
        .collect();
    let resets: Vec<bool> = answers
        .iter()
        .map(|answer| answer.alarm.is_some())
        .collect();
    assert!(resets[3], "{resets:?}: reset after forty grey pictures");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    // Right before the reset, right after it, and later.
    for cut in [3, 4, 6] {
        let mut first = source.session("ttac", &protocol);
        for samples in &batches[..cut] {
            first.observe(samples).unwrap();
        }
        first.save(&path).unwrap();
        let mut second = Session::load(&path, &source.model, Some(&source.anchors)).unwrap();
        for (samples, expected) in batches[cut..].iter().zip(&answers[cut..]) {
            let answer = second.observe(samples).unwrap();
            assert_eq!(bits(&answer), bits(expected), "cut at {cut}");
            assert_eq!(answer.alarm, expected.alarm);
        }
    }
}

#[test]
fn weights_that_are_not_finite_never_survive() {
    let source = Source::of("tent");
    let method = eager("tent", Setting::NoQueue).with_field("learning_rate", "1e38");
    let mut session = Session::builder(&source.model)
        .method_spec(&method.unwrap())
        .protocol(&protocol(false))
        .build()
        .unwrap();
    let fresh = bits(&session.predict(&images(0, 40, 8)).unwrap());
    let mut alarms = Vec::new();
    for batch in 0..4 {
        let answer = session.observe(&images(0, 12 * batch, 12)).unwrap();
        alarms.extend(answer.alarm);
    }
    let reset = alarms.iter().filter(|a| a.action == GuardAction::Reset);
    assert!(
        reset.count() >= 1,
        "a warning alone is not enough: {alarms:?}"
    );
    assert!(alarms[0].reason.contains("finite") || alarms[0].reason.contains("NaN"));
    session.reset();
    assert_eq!(bits(&session.predict(&images(0, 40, 8)).unwrap()), fresh);
}

#[test]
fn late_batches_are_answered_by_the_weights_of_before_and_survive_a_save() {
    let source = Source::of("ttac");
    let protocol = Protocol {
        // Everything that comes after the first batch comes while it is learned from.
        arrival_rate: Some(1e9),
        ..protocol(false)
    };
    let mut session = source.session("ttac", &protocol);
    let before = bits(&session.predict(&images(0, 12, 12)).unwrap());
    assert!(!session.observe(&images(0, 0, 12)).unwrap().late);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    session.save(&path).unwrap();
    let mut loaded = Session::load(&path, &source.model, Some(&source.anchors)).unwrap();
    for session in [&mut session, &mut loaded] {
        let answer = session.observe(&images(0, 12, 12)).unwrap();
        assert!(answer.late && answer.learned.updates == 0);
        assert_eq!(bits(&answer), before);
    }
}

/// What a session must refuse, each with a part of the message.
fn bad_samples() -> Vec<(Samples, &'static str)> {
    let image = |height, width| {
        Samples::Images(Images {
            height,
            width,
            pixels: vec![9; 2 * height * width * 3],
        })
    };
    let cloud = Samples::Clouds(Clouds {
        points: 64,
        values: vec![0.5; 2 * 64 * 3],
    });
    vec![
        (image(31, 32), "31 x 32"),
        (cloud, "clouds of 64 points"),
        (images(0, 0, 1).pick(&[]), "found none"),
    ]
}

#[test]
fn a_session_goes_on_after_bad_input_as_if_it_had_not_been_made() {
    for (name, queue) in [("ttac", true), ("tent", false)] {
        let source = Source::of(name);
        let mut clean = source.session(name, &protocol(queue));
        let mut troubled = source.session(name, &protocol(queue));
        for batch in 0..3 {
            for (samples, expected) in bad_samples() {
                let error = troubled.observe(&samples).unwrap_err().to_string();
                assert!(error.contains(expected), "{expected} in: {error}");
                let error = troubled.predict(&samples).unwrap_err().to_string();
                assert!(error.contains(expected), "{expected} in: {error}");
            }
            if queue {
                let error = troubled.observe(&images(0, 0, 30)).unwrap_err().to_string();
                assert!(error.contains("at most 24"), "{error}");
            }
            let samples = images(0, 12 * batch, 12);
            let [a, b] = [&mut clean, &mut troubled].map(|s| bits(&s.observe(&samples).unwrap()));
            assert_eq!(a, b, "{name}");
        }
        assert!(
            troubled
                .observe_known(&[1, 2, 3], &images(0, 0, 2))
                .is_err()
        );
    }
}

#[test]
fn a_batch_of_one_is_learned_from_or_refused_with_a_reason() {
    for (name, _) in ttac::method::method_names() {
        let source = Source::of(name);
        let mut session = source.session(name, &protocol(false));
        let compares = matches!(name, "tfa" | "ttt++" | "roid" | "cmf" | "cotta" | "rmt");
        if compares || name.contains("source-free") {
            let error = session.observe(&images(0, 0, 1)).unwrap_err().to_string();
            assert!(error.contains("at least 2"), "{error}");
            assert_eq!(session.batches(), 0);
            continue;
        }
        let answer = session.observe(&images(0, 0, 1)).unwrap();
        assert_eq!(answer.classes.len(), 1, "{name}");
        assert!(answer.probabilities.iter().all(|p| p.is_finite()), "{name}");
        let next = session.observe(&images(0, 1, 12)).unwrap();
        assert!(next.probabilities.iter().all(|p| p.is_finite()), "{name}");
    }
}

fn cloud_source() -> Source {
    let mut architecture = Architecture::by_name("dgcnn", 10).unwrap();
    for (field, value) in [("k", "4"), ("width", "8"), ("embedding", "16")] {
        architecture = architecture.with_field(field, value).unwrap();
    }
    let network = architecture.init(1, &Device::flex()).unwrap();
    let input = InputContract::Clouds {
        points: 32,
        fewest: 4,
    };
    let data = Solids10::new(Split::Train, 60, 0).with_points(32);
    let model = Model::new("dgcnn", network, input, data.classes().to_vec());
    let config = AnchorConfig {
        labels: SourceLabels::True,
        alignment_batch: 20,
        ..AnchorConfig::default()
    };
    let anchors = collect(
        &model.network,
        &model.fingerprint,
        &model.input,
        &data,
        &config,
        &Device::flex(),
        |_| {},
    );
    Source {
        anchors: anchors.unwrap(),
        model,
    }
}

#[test]
fn clouds_with_coordinates_that_are_not_numbers_are_refused() {
    let source = cloud_source();
    let data = Solids10::new(Split::Test, 40, 0).with_points(32);
    let good = data.batch(&(0..12).collect::<Vec<_>>()).unwrap().samples;
    let [mut clean, mut troubled] = [0, 1].map(|_| source.session("ttac", &protocol(false)));
    for bad in [f32::NAN, f32::INFINITY] {
        let Samples::Clouds(mut clouds) = good.clone() else {
            panic!("solids are clouds");
        };
        clouds.values[100] = bad;
        let error = troubled.observe(&Samples::Clouds(clouds)).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("point 1 of cloud 1"), "{error}");
    }
    let few = Samples::Clouds(Clouds {
        points: 3,
        values: vec![0.5; 9],
    });
    let error = troubled.observe(&few).unwrap_err().to_string();
    assert!(error.contains("at least 4"), "{error}");
    let expected = bits(&clean.observe(&good).unwrap());
    assert_eq!(bits(&troubled.observe(&good).unwrap()), expected);
}

#[test]
fn single_clouds_whose_features_have_no_spread_are_answered() {
    let source = cloud_source();
    let data = Solids10::new(Split::Test, 40, 0).with_points(32);
    for name in ["tent", "bn", "ttac"] {
        let mut session = source.session(name, &protocol(false));
        for id in 0..3 {
            let answer = session
                .observe(&data.batch(&[id]).unwrap().samples)
                .unwrap();
            assert!(answer.probabilities.iter().all(|p| p.is_finite()), "{name}");
        }
    }
}

#[test]
fn anchors_and_states_of_something_else_are_refused_and_change_nothing() {
    let source = Source::of("ttac");
    let other = Source::of("ttt-r");
    let builder = Session::builder(&source.model).anchors(&other.anchors);
    let error = builder.build().err().unwrap().to_string();
    assert!(
        error.contains(&source.model.fingerprint) && error.contains(&other.model.fingerprint),
        "{error}"
    );

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let mut saved = source.session("ttac", &protocol(false));
    saved.observe(&images(7, 0, BATCH as u64)).unwrap();
    saved.save(&path).unwrap();
    let state = SessionState::load(&path).unwrap();
    let mut troubled = source.session("tent", &protocol(false));
    let mut clean = source.session("tent", &protocol(false));
    let error = troubled.restore(&state).unwrap_err().to_string();
    assert!(error.contains("method of the saved session"), "{error}");
    let with_queue = &mut source.session("ttac", &protocol(true));
    let error = with_queue.restore(&state).err().unwrap().to_string();
    assert!(error.contains("saved session"), "{error}");
    let error = Session::load(&path, &other.model, None).err().unwrap();
    let error = error.to_string();
    assert!(error.contains("model of the saved session"), "{error}");
    let samples = images(0, 0, 12);
    let [a, b] = [&mut clean, &mut troubled].map(|s| bits(&s.observe(&samples).unwrap()));
    assert_eq!(a, b);

    // Cut in the middle, changed, and of another version.
    let bytes = std::fs::read(&path).unwrap();
    for damaged in [&bytes[..bytes.len() / 2], &bytes[..100], &[]] {
        std::fs::write(&path, damaged).unwrap();
        let error = Session::load(&path, &source.model, Some(&source.anchors));
        let error = error.err().unwrap().to_string();
        assert!(error.contains("the state of a ttac session"), "{error}");
    }
    let mut changed = bytes.clone();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(&path, changed).unwrap();
    let error = SessionState::load(&path).unwrap_err().to_string();
    assert!(error.contains("digest"), "{error}");
    let header = serde_json::json!({ "format": 1 });
    let kind = ttac::archive::Kind::Session;
    ttac::archive::save(&path, kind, &header, &ttac::archive::Arrays::default()).unwrap();
    let error = SessionState::load(&path).unwrap_err().to_string();
    assert!(error.contains("version 1, expected"), "{error}");
}

#[test]
fn losses_that_were_not_computed_are_absent() {
    let mut architecture = Architecture::by_name("resnet20-cifar", 10).unwrap();
    for (field, value) in [("depth", "8"), ("width", "132")] {
        architecture = architecture.with_field(field, value).unwrap();
    }
    let network = architecture.init(1, &Device::flex()).unwrap();
    let classes = SHAPES10_CLASSES.map(str::to_owned).to_vec();
    let model = Model::new("wide", network, Source::of("ttac").model.input, classes);
    let method = eager("ttac-source-free", Setting::NoQueue);
    let method = method.with_field("class_covariance", "diagonal").unwrap();
    let mut session = Session::builder(&model)
        .method_spec(&method)
        .protocol(&protocol(false))
        .build()
        .unwrap();
    let learned = session.observe(&images(0, 0, 12)).unwrap().learned;
    assert_eq!(learned.updates, 1);
    assert_eq!(learned.losses, [], "528 features: values are not computed");
}
