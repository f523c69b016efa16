//! CoTTA beside its fixture: what returns to the source, how the teacher follows, who answers, and what is refused.

use burn::tensor::{Device, Tensor, TensorData};
use ttac::method::{Adapter, Minibatch, Prediction, Setting, Stage, Views};

use crate::world::{BATCH, Source, data, eager, input};

fn adapter(changes: &[(&str, &str)]) -> Adapter {
    let mut method = eager("cotta", Setting::NoQueue);
    for (field, value) in changes {
        method = method.with_field(field, value).unwrap();
    }
    method
        .build(Source::of("cotta").model.network, None)
        .unwrap()
}

/// Images with two copies that differ from them.
fn arriving() -> Minibatch {
    let ids: Vec<u64> = (0..BATCH as u64).collect();
    let samples = data(0)[0].batch(&ids).unwrap().samples;
    let images = input().normalise(&samples, &Device::flex()).unwrap();
    Minibatch {
        ids,
        views: Some(Views {
            images: Tensor::cat(vec![images.clone() * 0.8, images.clone() * 1.2], 0),
            turns: Vec::new(),
        }),
        images,
    }
}

fn numbers(data: &TensorData) -> Vec<f32> {
    data.try_to_vec().unwrap()
}

fn values(scores: &Tensor<2>) -> Vec<f32> {
    scores.to_data().try_to_vec().unwrap()
}

#[test]
fn all_weights_return_if_each_returns_for_certain() {
    let mut method = adapter(&[("restore_probability", "1")]);
    let source = method.weights();
    method.learn(&arriving(), &Stage::SINGLE).unwrap();
    assert_eq!(method.weights(), source);
}

#[test]
fn as_many_weights_return_as_the_probability_says() {
    let source = adapter(&[]).weights();
    let run = |probability: &str| {
        let mut method = adapter(&[("restore_probability", probability)]);
        method.learn(&arriving(), &Stage::SINGLE).unwrap();
        method.weights()
    };
    let (free, restored) = (run("0"), run("0.25"));
    let (mut moved, mut back) = (0, 0);
    for (key, start) in &source {
        let (start, free, restored) =
            (numbers(start), numbers(&free[key]), numbers(&restored[key]));
        for ((start, free), restored) in start.iter().zip(free).zip(restored) {
            if free != *start {
                moved += 1;
                back += usize::from(restored == *start);
            }
        }
    }
    let deviation = (0.25 * 0.75 / f64::from(moved)).sqrt();
    let share = back as f64 / f64::from(moved);
    // Four standard deviations of a share of independent draws.
    assert!((share - 0.25).abs() < 4.0 * deviation, "{share} of {moved}");
}

/// A teacher that does not follow is the source, whatever the student learns.
#[test]
fn the_teacher_answers() {
    let mut method = adapter(&[("teacher_share", "0")]);
    let before = values(&method.predict(arriving().images));
    let student = method.weights();
    method.learn(&arriving(), &Stage::SINGLE).unwrap();
    assert_ne!(method.weights(), student);
    assert_eq!(values(&method.predict(arriving().images)), before);

    let mut quick = adapter(&[("teacher_share", "1"), ("restore_probability", "0")]);
    quick.learn(&arriving(), &Stage::SINGLE).unwrap();
    assert_ne!(values(&quick.predict(arriving().images)), before);
}

#[test]
fn one_decision_is_made_for_a_batch() {
    let scores = |threshold: &str| {
        let mut method = adapter(&[("confidence_threshold", threshold)]);
        let (scores, learned) = method
            .observe(&arriving(), Prediction::PredictFirst)
            .unwrap();
        (values(&scores), learned.accepted)
    };
    let (sure, all) = scores("0");
    let (unsure, none) = scores("1.1");
    assert_eq!((all, none), (BATCH, 0));
    let plain = values(&adapter(&[]).predict(arriving().images));
    assert_eq!(sure, plain, "a confident source needs no copies");
    assert_ne!(unsure, plain);
}

/// The teacher is the student before the first step, so that their answers agree and the gradient is zero.
#[test]
fn nothing_is_learned_from_an_equal_teacher() {
    let sgd = r#"{"optimiser":"sgd","momentum":0.0}"#;
    let mut method = adapter(&[
        ("confidence_threshold", "0"),
        ("restore_probability", "0"),
        ("optimiser", sgd),
    ]);
    let before = method.weights();
    method.learn(&arriving(), &Stage::SINGLE).unwrap();
    for (key, value) in method.weights() {
        let pairs = numbers(&value).into_iter().zip(numbers(&before[&key]));
        // The two passes fuse different operations, and the rate is a thousandth.
        assert!(
            pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-6),
            "{key}"
        );
    }
}

#[test]
fn missing_copies_and_wrong_constants_are_refused() {
    let mut method = adapter(&[]);
    let batch = Minibatch {
        views: None,
        ..arriving()
    };
    let error = method
        .learn(&batch, &Stage::SINGLE)
        .unwrap_err()
        .to_string();
    assert!(error.contains("`cotta` needs varied copies"), "{error}");
    let wrong = eager("cotta", Setting::NoQueue);
    let wrong = wrong.with_field("copies", "0").unwrap();
    let wrong = wrong.with_field("teacher_share", "-0.5").unwrap();
    let error = wrong.build(Source::of("cotta").model.network, None).err();
    let error = error.unwrap().to_string();
    assert!(
        error.contains("`copies`") && error.contains("`teacher_share`"),
        "{error}"
    );
}
