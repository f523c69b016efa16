//! LAME beside its fixtures: nothing is learned, a batch of one is answered, and wrong constants are refused.

use ttac::method::{Prediction, Setting};

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
