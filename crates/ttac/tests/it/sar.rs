//! SAR beside its fixture: what a batch without a certain sample does, when it goes back to the source, and what stays of the last
//! stage.

use burn::tensor::{Device, Tensor};
use ttac::archive::Arrays;
use ttac::backbone::Architecture;
use ttac::method::{Adapter, Learned, MethodSpec, Minibatch, Prediction, Setting, Stage};

use crate::world::{BATCH, Source, data, eager, input};

fn changed(name: &str, changes: &[(&str, &str)]) -> MethodSpec {
    let mut method = eager(name, Setting::NoQueue);
    for (field, value) in changes {
        method = method.with_field(field, value).unwrap();
    }
    method
}

fn adapter(changes: &[(&str, &str)]) -> Adapter {
    let network = Source::of("sar").model.network;
    changed("sar", changes).build(network, None).unwrap()
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

fn learn(method: &mut Adapter, batch: u64) -> Learned {
    method.learn(&arriving(batch), &Stage::SINGLE).unwrap()
}

fn everything(method: &Adapter) -> Arrays {
    let mut arrays = Arrays::default();
    method.save(&mut arrays).unwrap();
    arrays
}

fn values(scores: &Tensor<2>) -> Vec<f32> {
    scores.to_data().try_to_vec().unwrap()
}

#[test]
fn a_batch_without_a_certain_sample_coasts_on_momentum() {
    // No entropy is below zero.
    let mut never = adapter(&[("entropy_margin", "0")]);
    let before = never.weights();
    let learned = learn(&mut never, 0);
    assert_eq!((learned.accepted, learned.losses.len()), (0, 0));
    assert_eq!(never.weights(), before, "there is no momentum yet");

    // The first batch gives momentum, which the second one has when nothing is certain any more.
    let mut method = adapter(&[("learning_rate", "0.01")]);
    learn(&mut method, 0);
    let once = everything(&method);
    let mut state = once.clone();
    let mut coasting = adapter(&[("learning_rate", "0.01"), ("entropy_margin", "0")]);
    coasting.load(&mut state).unwrap();
    let before = coasting.weights();
    let learned = learn(&mut coasting, 1);
    assert_eq!((learned.updates, learned.accepted), (1, 0));
    assert_ne!(coasting.weights(), before);
}

/// Without a way up the slope the second pass is the first one again, so the step is that of TENT.
#[test]
fn with_no_radius_it_is_tent() {
    let sgd = r#"{"optimiser":"sgd","momentum":0.9}"#;
    let mut sar = adapter(&[("radius", "0"), ("learning_rate", "0.001")]);
    let tent = changed("tent", &[("optimiser", sgd)]);
    let mut tent = tent.build(Source::of("sar").model.network, None).unwrap();
    for batch in 0..3 {
        let of = |method: &mut Adapter| {
            let (scores, _) = method
                .observe(&arriving(batch), Prediction::PredictFirst)
                .unwrap();
            values(&scores)
        };
        let pairs = of(&mut sar).into_iter().zip(of(&mut tent));
        // The same sums in the same order, but for the mean over selected rows.
        assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-5));
    }
}

#[test]
fn entropies_that_get_too_small_lead_back_to_the_source() {
    let mut method = adapter(&[("recovery_entropy", "100")]);
    let fresh = everything(&method);
    let learned = learn(&mut method, 0);
    assert!(
        learned.notes[0].contains("back to the source"),
        "{:?}",
        learned.notes
    );
    assert_eq!(
        everything(&method),
        fresh,
        "weights, momentum and the average"
    );
}

#[test]
fn the_last_stage_of_a_transformer_stays() {
    let mut architecture = Architecture::by_name("vit-tiny-4", 10).unwrap();
    for (field, value) in [
        ("patch", "8"),
        ("width", "24"),
        ("depth", "2"),
        ("heads", "3"),
        ("mlp", "40"),
    ] {
        architecture = architecture.with_field(field, value).unwrap();
    }
    let network = architecture.init(1, &Device::flex()).unwrap();
    let mut method = changed("sar", &[]).build(network, None).unwrap();
    let before = method.weights();
    learn(&mut method, 0);
    let after = method.weights();
    for (key, value) in &before {
        let trained = key.contains("norm") && !key.starts_with("norm.");
        assert_eq!(after[key] != *value, trained, "{key}");
    }
}

#[test]
fn wrong_constants_are_refused() {
    let method = changed("sar", &[("radius", "-1"), ("average_share", "2")]);
    let error = method.build(Source::of("sar").model.network, None).err();
    let error = error.unwrap().to_string();
    assert!(error.contains("`radius` must be") && error.contains("`average_share` must be"));
}
