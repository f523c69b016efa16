//! LAME beside its fixtures: nothing is learned, a batch of one is answered, and wrong constants are refused. And as the last stage of
//! other methods.

use ttac::agreement::Agreement;
use ttac::data::Samples;
use ttac::method::{Prediction, Setting};
use ttac::protocol::Protocol;
use ttac::shares::SharesConfig;

use crate::world::{Source, data, eager, protocol};

#[test]
fn a_batch_of_one_keeps_its_class() {
    let source = Source::of("lame");
    let mut session = source.session("lame", &protocol(false));
    let plain = source.session("test", &protocol(false));
    for id in 0..4 {
        let one = data(0)[0].batch(&[id]).unwrap().samples;
        let found = session.observe(&one).unwrap();
        assert_eq!(found.classes, plain.predict(&one).unwrap().classes);
        assert!(found.probabilities.iter().all(|p| p.is_finite()));
    }
}

#[test]
fn answers_are_the_same_in_either_order_and_nothing_moves() {
    let source = Source::of("lame");
    let samples = data(0)[0].batch(&[0, 1, 2, 3, 4, 5]).unwrap().samples;
    let answers = [Prediction::AdaptFirst, Prediction::PredictFirst].map(|prediction| {
        let protocol = ttac::protocol::Protocol {
            prediction,
            ..protocol(false)
        };
        let mut session = source.session("lame", &protocol);
        let first = session.observe(&samples).unwrap();
        assert_eq!(session.drift(), None);
        let again = session.observe(&samples).unwrap();
        assert_eq!(first.probabilities, again.probabilities);
        first.probabilities
    });
    assert_eq!(answers[0], answers[1]);
}

/// A pull of zero leaves the network's own predictions.
#[test]
fn without_a_pull_it_answers_as_the_source() {
    let source = Source::of("lame");
    let method = eager("lame", Setting::NoQueue);
    let method = method.with_field("pull", "0").unwrap();
    let session = ttac::Session::builder(&source.model).method_spec(&method);
    let session = session.protocol(&protocol(false)).build().unwrap();
    let plain = source.session("test", &protocol(false));
    let samples = data(0)[0].batch(&[0, 1, 2, 3, 4, 5]).unwrap().samples;
    let found = session.predict(&samples).unwrap().probabilities;
    let expected = plain.predict(&samples).unwrap().probabilities;
    for (found, expected) in found.iter().zip(expected) {
        // Logarithms and exponentials in between, in single precision at the end.
        assert!((found - expected).abs() < 1e-6);
    }
}

#[test]
fn wrong_constants_are_refused() {
    let method = eager("lame", Setting::NoQueue);
    let method = method.with_field("neighbours", "0").unwrap();
    let error = method.build(Source::of("lame").model.network, None).err();
    let error = error.unwrap().to_string();
    assert!(error.contains("`neighbours` must be at least 1"), "{error}");
}

/// A protocol whose answers agree with similar samples from the second batch on, however little classes come in runs.
fn agreeing(prediction: Prediction, agreement: Option<Agreement>) -> Protocol {
    Protocol {
        prediction,
        shares: Some(SharesConfig {
            window: 6,
            memory: 60.0,
            least: 0.0,
            full: 1e-9,
            agreement,
            ..SharesConfig::default()
        }),
        ..protocol(false)
    }
}

fn batches() -> Vec<Samples> {
    let ids = (0..4).map(|batch| (6 * batch..6 * batch + 6).collect::<Vec<u64>>());
    let data = data(0);
    ids.map(|ids| data[0].batch(&ids).unwrap().samples)
        .collect()
}

#[test]
fn the_answers_of_any_method_can_agree_at_the_end() {
    for name in ["test", "tent", "ttac", "cotta"] {
        let source = Source::of(name);
        for prediction in [Prediction::AdaptFirst, Prediction::PredictFirst] {
            let answers = |agreement| {
                let mut session = source.session(name, &agreeing(prediction, agreement));
                let batches = batches();
                let answers = batches.iter().map(|batch| session.observe(batch).unwrap());
                let scores: Vec<Vec<f32>> = answers.map(|answer| answer.scores).collect();
                scores
            };
            let (with, without) = (answers(Some(Agreement::default())), answers(None));
            assert_eq!(with[0], without[0], "{name}: no window was seen before");
            assert_ne!(with[1..], without[1..], "{name}");
            let unpulled = Agreement {
                pull: Some(0.0),
                ..Agreement::default()
            };
            // Softmax and logarithm leave the differences of scores as they are, up to the 1e-10 that is added to probabilities.
            for (found, expected) in answers(Some(unpulled))
                .concat()
                .chunks(10)
                .zip(without.concat().chunks(10))
            {
                for (a, b) in found.iter().zip(expected) {
                    let (a, b) = (a - found[0], b - expected[0]);
                    assert!((a - b).abs() < 1e-3 * (1.0 + b.abs()), "{name}: {a} {b}");
                }
            }
        }
    }
}

#[test]
fn an_answer_before_learning_does_not_know_what_was_learned() {
    for name in ["tent", "ttac"] {
        let source = Source::of(name);
        let protocol = agreeing(Prediction::PredictFirst, Some(Agreement::default()));
        let mut session = source.session(name, &protocol);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        for (number, batch) in batches().iter().enumerate() {
            let before = session.predict(batch).unwrap().scores;
            let answer = session.observe(batch).unwrap().scores;
            for (found, expected) in answer.iter().zip(before) {
                // TENT's own pass has gradients, whose kernels may sum in another order.
                assert!((found - expected).abs() < 1e-4, "{name}, batch {number}");
            }
            if number == 1 {
                session.save(&path).unwrap();
            }
        }
        let mut loaded = ttac::Session::load(&path, &source.model, Some(&source.anchors)).unwrap();
        let mut again = source.session(name, &protocol);
        for (number, batch) in batches().iter().enumerate() {
            let expected = again.observe(batch).unwrap().scores;
            if number > 1 {
                assert_eq!(loaded.observe(batch).unwrap().scores, expected, "{name}");
            }
        }
    }
}
