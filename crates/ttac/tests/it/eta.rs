//! ETA, EATA and RDumb beside their fixtures: what a batch without a selected sample leaves, what a reset forgets, by what
//! the loss is divided, how a penalty holds, and when a period ends.

use burn::tensor::{Device, Tensor, TensorData};
use ttac::archive::Arrays;
use ttac::method::{Adapter, Learned, Minibatch, Prediction, Setting, Stage};

use crate::world::{BATCH, Source, data, eager, input};

/// ETA around a random network, all of whose predictions pass for certain and new, with some constants changed.
fn adapter(changes: &[(&str, &str)]) -> Adapter {
    let mut method = eager("eta", Setting::NoQueue);
    for (field, value) in changes {
        method = method.with_field(field, value).unwrap();
    }
    let network = Source::of("eta").model.network;
    method.build(network, None).unwrap()
}

fn arriving(batch: u64) -> Minibatch {
    let count = BATCH as u64;
    let ids: Vec<u64> = (count * batch..count * (batch + 1)).collect();
    let samples = data(0)[0].batch(&ids).unwrap().samples;
    Minibatch {
        ids,
        images: input().normalise(&samples, &Device::flex()).unwrap(),
        views: None,
    }
}

fn observe(method: &mut Adapter, batch: u64, order: Prediction) -> (Vec<f32>, Learned) {
    let (scores, learned) = method.observe(&arriving(batch), order).unwrap();
    (values(&scores), learned)
}

fn values(scores: &Tensor<2>) -> Vec<f32> {
    scores.to_data().try_to_vec().unwrap()
}

/// Weights, moments, counters and the average prediction, to the bit.
fn everything(method: &Adapter) -> Arrays {
    let mut arrays = Arrays::default();
    method.save(&mut arrays).unwrap();
    arrays
}

/// Once there is an average, no sample is new to this one.
const NEVER_NEW: [(&str, &str); 1] = [("similarity_threshold", "0")];

#[test]
fn a_batch_without_a_selected_sample_changes_nothing() {
    let mut method = adapter(&NEVER_NEW);
    let (_, learned) = observe(&mut method, 0, Prediction::AdaptFirst);
    assert_eq!(
        (learned.updates, learned.accepted, learned.considered),
        (1, BATCH, BATCH),
        "in the first batch all are new"
    );
    let before = everything(&method);
    let unmoved = values(&method.predict(arriving(1).images));
    for order in [Prediction::AdaptFirst, Prediction::PredictFirst] {
        let (scores, learned) = observe(&mut method, 1, order);
        let expected = Learned {
            considered: BATCH,
            ..Learned::nothing()
        };
        assert_eq!(learned, expected);
        assert_eq!(everything(&method), before);
        assert!(scores.iter().all(|score| score.is_finite()));
        if order == Prediction::AdaptFirst {
            assert_eq!(scores, unmoved);
        }
    }
}

#[test]
fn a_reset_forgets_the_average_prediction() {
    let mut method = adapter(&NEVER_NEW);
    let fresh = everything(&method);
    let accepted = |method: &mut Adapter| observe(method, 0, Prediction::AdaptFirst).1.accepted;
    assert_eq!(accepted(&mut method), BATCH);
    assert_eq!(accepted(&mut method), 0);
    method.reset();
    assert_eq!(everything(&method), fresh);
    assert_eq!(accepted(&mut method), BATCH);
}

/// The loss is a mean over the selected samples, and the statistics of a batch are those of the batch twice.
#[test]
fn the_same_batch_twice_in_one_makes_the_same_step() {
    let sgd = r#"{"optimiser":"sgd","momentum":0.9}"#;
    let step = |copies: usize| {
        let mut method = adapter(&[("optimiser", sgd)]);
        let Minibatch { ids, images, .. } = arriving(0);
        let batch = Minibatch {
            ids: ids.repeat(copies),
            images: Tensor::cat(vec![images; copies], 0),
            views: None,
        };
        let learned = method.learn(&batch, &Stage::SINGLE).unwrap();
        assert_eq!(learned.accepted, copies * BATCH);
        (method.weights(), learned.losses[0].1)
    };
    let ((once, loss), (twice, same_loss)) = (step(1), step(2));
    assert!(
        (loss - same_loss).abs() < 1e-5 * loss,
        "{loss} and {same_loss}"
    );
    let source = adapter(&[]).weights();
    let mut moved = 0;
    for (key, start) in source {
        let numbers = |data: &TensorData| data.try_to_vec::<f32>().unwrap();
        let (start, once, twice) = (numbers(&start), numbers(&once[&key]), numbers(&twice[&key]));
        let far = |a: &[f32], b: &[f32]| {
            a.iter()
                .zip(b)
                .fold(0.0_f32, |m, (a, b)| m.max((a - b).abs()))
        };
        let way = far(&start, &once);
        moved += usize::from(way > 0.0);
        // Steps are differences of weights near one, which f32 knows to 1e-7.
        assert!(
            far(&once, &twice) <= 1e-3 * way + 5e-7,
            "{key} moves by {way}"
        );
    }
    assert!(moved > 0);
}

#[test]
fn the_answer_before_the_step_does_not_depend_on_the_step() {
    let mut method = adapter(&[]);
    let before = values(&method.predict(arriving(0).images));
    let (scores, learned) = observe(&mut method, 0, Prediction::PredictFirst);
    assert_eq!(learned.updates, 1);
    let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-5;
    assert!(!scores.iter().zip(&before).any(far));
    let after = values(&method.predict(arriving(0).images));
    assert!(after.iter().zip(&before).any(far), "the step is seen");
}

#[test]
fn a_share_above_one_is_refused() {
    let method = eager("eta", Setting::NoQueue);
    let method = method.with_field("average_share", "1.5").unwrap();
    let error = method.build(Source::of("eta").model.network, None).err();
    let error = error.unwrap().to_string();
    assert!(
        error.contains("`average_share` must be 0 to 1, found 1.5"),
        "{error}"
    );
}

/// A method of the family around a random network, with the anchors of that network.
fn anchored(name: &str, changes: &[(&str, &str)]) -> Adapter {
    let mut method = eager(name, Setting::NoQueue);
    for (field, value) in changes {
        method = method.with_field(field, value).unwrap();
    }
    let source = Source::of(name);
    method
        .build(source.model.network, Some(&source.anchors))
        .unwrap()
}

#[test]
fn without_a_penalty_or_a_period_they_are_eta() {
    let mut plain = adapter(&[]);
    let mut others = [
        anchored("eata", &[("penalty_weight", "0")]),
        anchored("rdumb", &[("reset_period", "null")]),
    ];
    for batch in 0..3 {
        let expected = observe(&mut plain, batch, Prediction::PredictFirst);
        for other in &mut others {
            assert_eq!(observe(other, batch, Prediction::PredictFirst), expected);
        }
    }
    for other in others {
        assert_eq!(other.weights(), plain.weights());
    }
}

#[test]
fn a_penalty_holds_parameters_near_the_source() {
    let sgd = r#"{"optimiser":"sgd","momentum":0.0}"#;
    let way = |weight: &str| {
        let changes = [
            ("penalty_weight", weight),
            ("optimiser", sgd),
            ("learning_rate", "0.01"),
        ];
        let mut method = anchored("eata", &changes);
        let losses: Vec<Learned> = (0..4)
            .map(|batch| observe(&mut method, batch, Prediction::AdaptFirst).1)
            .collect();
        let penalty = |learned: &Learned| learned.losses[1].1;
        assert_eq!(
            penalty(&losses[0]),
            0.0,
            "the first step starts from the source"
        );
        assert!(penalty(&losses[3]) > 0.0);
        method.drift().unwrap()
    };
    assert!(way("10") < way("0.001"));
}

#[test]
fn a_period_ends_at_the_source() {
    let mut method = anchored("rdumb", &[("reset_period", "3")]);
    let fresh = everything(&method);
    let first = observe(&mut method, 0, Prediction::PredictFirst);
    for batch in 1..3 {
        observe(&mut method, batch, Prediction::PredictFirst);
    }
    assert_ne!(everything(&method), fresh);
    let fourth = observe(&mut method, 0, Prediction::PredictFirst);
    assert_eq!(fourth, first, "the fourth batch is a first one again");
}

#[test]
fn anchors_without_importance_are_refused_by_eata_alone() {
    let source = Source::of("eata");
    let anchors = ttac::SourceStatistics {
        importance: None,
        ..source.anchors
    };
    let network = source.model.network;
    let error = eager("eata", Setting::NoQueue).build(network.clone(), Some(&anchors));
    let error = error.err().unwrap().to_string();
    assert!(error.contains("anchors made by this version do"), "{error}");
    let error = eager("eata", Setting::NoQueue).build(network.clone(), None);
    let error = error.err().unwrap().to_string();
    assert!(error.contains("`eata` needs source statistics"), "{error}");
    for name in ["eta", "rdumb"] {
        assert!(
            eager(name, Setting::NoQueue)
                .build(network.clone(), None)
                .is_ok()
        );
    }
}

#[test]
fn importance_comes_back_from_a_file() {
    let anchors = Source::of("eata").anchors;
    let found = anchors.importance.as_ref().unwrap();
    assert_eq!(found.images, 100);
    assert!(found.values.iter().all(|value| *value >= 0.0));
    assert!(found.values.iter().any(|value| *value > 0.0));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("anchors");
    anchors.save(&path).unwrap();
    assert_eq!(
        ttac::SourceStatistics::load(&path).unwrap().importance,
        anchors.importance
    );
}
