//! RoTTA, PeTTA, NOTE and TRIBE beside their fixtures: when they learn, who answers, and what is refused.

use burn::tensor::{Device, Tensor, TensorData};
use ttac::backbone::Architecture;
use ttac::method::{Adapter, Learned, Minibatch, Prediction, Setting, Stage, Views};

use crate::world::{Source, data, eager, input};

fn adapter(name: &str, changes: &[(&str, &str)]) -> Adapter {
    let mut method = eager(name, Setting::NoQueue);
    for (field, value) in changes {
        method = method.with_field(field, value).unwrap();
    }
    let Source { model, anchors } = Source::of(name);
    method.build(model.network, Some(&anchors)).unwrap()
}

/// Some images of the set, with copies that are darker.
fn arriving(first: u64, count: u64) -> Minibatch {
    let ids: Vec<u64> = (first..first + count).collect();
    let samples = data(0)[0].batch(&ids).unwrap().samples;
    let images = input().normalise(&samples, &Device::flex()).unwrap();
    Minibatch {
        ids,
        views: Some(Views {
            images: images.clone() * 0.8,
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

/// Shows 48 images in batches of a size; returns all scores and how many steps each batch led to.
fn shown(name: &str, size: u64) -> (Vec<f32>, Vec<usize>) {
    let mut method = adapter(name, &[("update_every", "12")]);
    let (mut scores, mut updates) = (Vec::new(), Vec::new());
    for first in (0..48).step_by(size as usize) {
        let batch = arriving(first, size.min(48 - first));
        let answer = method.observe(&batch, Prediction::PredictFirst);
        let (found, Learned { updates: steps, .. }) = answer.unwrap();
        scores.extend(values(&found));
        updates.push(steps);
    }
    (scores, updates)
}

#[test]
fn steps_come_after_every_so_many_samples() {
    for name in ["rotta", "note"] {
        for (size, expected) in [
            (48, vec![4]),
            (32, vec![2, 2]),
            (12, vec![1; 4]),
            (4, [0, 0, 1].repeat(4)),
        ] {
            assert_eq!(shown(name, size).1, expected, "{name}, batches of {size}");
        }
        let (one_by_one, updates) = shown(name, 1);
        let places = updates.iter().enumerate().filter(|(_, steps)| **steps > 0);
        let places: Vec<usize> = places.map(|(place, _)| place).collect();
        assert_eq!(places, [11, 23, 35, 47], "{name}");
        // The answers do not depend on the size of a batch where it divides the period.
        let largest = one_by_one
            .iter()
            .fold(0.0, |most: f32, s| most.max(s.abs()));
        for (a, b) in one_by_one.iter().zip(shown(name, 12).0) {
            // Convolutions of several images add up in another order, and steps amplify it.
            assert!((a - b).abs() < 1e-4 * largest, "{name}: {a} and {b}");
        }
    }
}

#[test]
fn a_batch_is_answered_by_the_state_before_it() {
    for name in ["rotta", "petta", "note", "tribe"] {
        let mut method = adapter(name, &[]);
        method
            .observe(&arriving(0, 12), Prediction::PredictFirst)
            .unwrap();
        let expected = values(&method.predict(arriving(12, 12).images));
        let answer = method.observe(&arriving(12, 12), Prediction::PredictFirst);
        assert_eq!(values(&answer.unwrap().0), expected, "{name}");
        let after = values(&method.predict(arriving(12, 12).images));
        assert_ne!(after, expected, "{name}");
    }
}

/// A teacher whose parameters and statistics do not follow is the source, whatever the student learns.
#[test]
fn the_teacher_answers() {
    for name in ["rotta", "petta"] {
        let still = [("teacher_share", "0"), ("norm_share", "0")];
        let mut method = adapter(name, &still);
        let (before, student) = (
            values(&method.predict(arriving(24, 12).images)),
            method.weights(),
        );
        method.learn(&arriving(0, 12), &Stage::SINGLE).unwrap();
        assert_ne!(method.weights(), student, "{name}");
        assert_eq!(
            values(&method.predict(arriving(24, 12).images)),
            before,
            "{name}"
        );
        for (field, value) in still {
            let mut method = adapter(name, &[still[0], still[1], (field, "0.5")]);
            method.learn(&arriving(0, 12), &Stage::SINGLE).unwrap();
            let after = values(&method.predict(arriving(24, 12).images));
            assert_ne!(after, before, "{name} follows by its {field}, not {value}");
        }
    }
}

#[test]
fn petta_is_free_at_the_start() {
    let mut method = adapter("petta", &[]);
    let loss = |learned: &Learned| {
        let is_named = |(name, _): &&(&str, f64)| *name == "parameters";
        learned.losses.iter().find(is_named).unwrap().1
    };
    let first = method.learn(&arriving(0, 12), &Stage::SINGLE).unwrap();
    assert_eq!(loss(&first), 0.0, "nothing has drifted");
    let second = method.learn(&arriving(12, 12), &Stage::SINGLE).unwrap();
    assert!(loss(&second) < 0.0);
}

/// Names and values of the trained parameters, and those of the norm statistics.
fn parts(method: &Adapter) -> [Vec<(String, Vec<f32>)>; 2] {
    let all = method.weights().into_iter();
    let all = all.map(|(key, data)| (key, numbers(&data)));
    let (running, trained): (Vec<_>, Vec<_>) = all.partition(|(key, _)| key.contains("running_"));
    [trained, running]
}

#[test]
fn tribe_without_a_certain_sample_moves_statistics_alone() {
    let mut method = adapter("tribe", &[("entropy_margin", "0")]);
    let [trained, running] = parts(&method);
    let learned = method.learn(&arriving(0, 12), &Stage::SINGLE).unwrap();
    assert_eq!(learned.accepted, 0);
    let [after, moved] = parts(&method);
    assert_eq!(after, trained, "the first step has no momentum yet");
    assert_ne!(moved, running);
    let finite =
        |values: &[(String, Vec<f32>)]| values.iter().all(|(_, v)| v.iter().all(|x| x.is_finite()));
    assert!(finite(&moved));
    // Later it coasts.
    let mut method = adapter("tribe", &[]);
    method.learn(&arriving(0, 12), &Stage::SINGLE).unwrap();
    let [_, before] = parts(&method);
    assert_ne!(before, running);
}

#[test]
fn a_memory_may_be_smaller_than_there_are_classes() {
    for (name, field) in [
        ("rotta", "memory.capacity"),
        ("petta", "memory.capacity"),
        ("note", "capacity"),
    ] {
        for room in ["1", "3"] {
            let mut method = adapter(name, &[(field, room)]);
            for batch in 0..3 {
                let answer = method.observe(&arriving(12 * batch, 12), Prediction::AdaptFirst);
                let (scores, learned) = answer.unwrap();
                assert!(learned.updates > 0);
                assert!(
                    values(&scores).iter().all(|score| score.is_finite()),
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn what_they_cannot_serve_is_refused() {
    let mut small = Architecture::by_name("resnet26", 10).unwrap();
    for (field, value) in [("depth", "8"), ("width", "8")] {
        small = small.with_field(field, value).unwrap();
    }
    let groups = small.init(1, &Device::flex()).unwrap();
    let build = |name: &str| eager(name, Setting::NoQueue).build(groups.clone(), None);
    let error = build("tribe").err().unwrap().to_string();
    assert_eq!(
        error,
        "`tribe` needs batch norms, and this network has none"
    );
    let error = build("petta").err().unwrap().to_string();
    assert!(error.contains("needs source statistics"), "{error}");
    // These have something left without batch norms.
    for name in ["rotta", "note"] {
        let mut method = build(name).unwrap();
        let before = method.weights();
        method.learn(&arriving(0, 12), &Stage::SINGLE).unwrap();
        let after = method.weights();
        let moved = |key: &&String| after[*key] != before[*key];
        assert!(before.keys().any(|key| moved(&key)), "{name}");
    }
    for name in ["rotta", "petta", "tribe"] {
        let batch = Minibatch {
            views: None,
            ..arriving(0, 12)
        };
        let error = adapter(name, &[])
            .learn(&batch, &Stage::SINGLE)
            .unwrap_err();
        let expected = format!("`{name}` needs a varied copy");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}
