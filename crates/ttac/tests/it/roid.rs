//! ROID and CMF beside their fixtures: what is left when parts are switched off, what goes back to the source, what a short
//! batch is divided by, and what is refused.

use burn::tensor::{Device, Tensor, TensorData};
use ttac::backbone::{ParameterKind, parameters};
use ttac::method::{
    Adapter, Learned, MethodSpec, Minibatch, Prediction, Preset, Setting, Stage, Views,
};
use ttac::{Error, Session};

use crate::world::{BATCH, Source, data, input, protocol};

/// A method around a random network, with some constants changed.
fn adapter(name: &str, changes: &[(&str, &str)]) -> Adapter {
    let mut method = MethodSpec::preset(name, Preset::Earlier, Setting::NoQueue).unwrap();
    for (field, value) in changes {
        method = method.with_field(field, value).unwrap();
    }
    method.build(Source::of(name).model.network, None).unwrap()
}

/// Some images, with copies of themselves for the consistency.
fn arriving(first: u64, count: u64) -> Minibatch {
    let ids: Vec<u64> = (first..first + count).collect();
    let samples = data(0)[0].batch(&ids).unwrap().samples;
    let images = input().normalise(&samples, &Device::flex()).unwrap();
    Minibatch {
        ids,
        views: Some(Views {
            images: images.clone() * 0.9,
            turns: Vec::new(),
        }),
        images,
    }
}

fn values(scores: &Tensor<2>) -> Vec<f32> {
    scores.to_data().try_to_vec().unwrap()
}

fn numbers(data: &TensorData) -> Vec<f32> {
    data.try_to_vec().unwrap()
}

fn learn(method: &mut Adapter, batch: &Minibatch) -> Learned {
    method.learn(batch, &Stage::SINGLE).unwrap()
}

/// The four parts switched off.
const BARE: [(&str, &str); 4] = [
    ("weighting", "false"),
    ("consistency", "false"),
    ("source_share", "0"),
    ("prior_correction", "false"),
];

#[test]
fn without_its_parts_it_is_a_mean_of_likelihood_ratios() {
    let mut method = adapter("roid", &BARE);
    let batch = arriving(0, BATCH as u64);
    let before = values(&method.predict(batch.images.clone()));
    let (scores, learned) = method.observe(&batch, Prediction::PredictFirst).unwrap();
    // The pass that is learned from fuses other operations than one that predicts.
    let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-5;
    assert!(!values(&scores).iter().zip(&before).any(far));
    assert_eq!((learned.accepted, learned.updates), (BATCH, 1));
    assert_eq!(learned.losses.len(), 1);
    let ratios = ttac::loss::soft_likelihood_ratios(scores).mean();
    let ratios = ratios.to_data().try_to_vec::<f32>().unwrap()[0];
    // One sum of twelve terms, divided in another order.
    assert!((learned.losses[0].1 - f64::from(ratios)).abs() < 1e-5);
}

#[test]
fn only_scales_and_shifts_move_and_all_the_way_back_is_the_source() {
    let network = Source::of("roid").model.network;
    for name in ["roid", "cmf"] {
        let source = adapter(name, &[]).weights();
        let mut method = adapter(name, &[]);
        learn(&mut method, &arriving(0, BATCH as u64));
        let moved = method.weights();
        for parameter in parameters(&network) {
            let may_move = parameter.kind == ParameterKind::Affine;
            let moves = moved[&parameter.key] != source[&parameter.key];
            assert_eq!(moves, may_move, "{name}: {}", parameter.key);
        }
    }
    let mut method = adapter("roid", &[("source_share", "1")]);
    let source = method.weights();
    learn(&mut method, &arriving(0, BATCH as u64));
    assert_eq!(method.weights(), source);
}

/// A share of the way back shortens the way, by the same factor everywhere.
#[test]
fn a_quarter_of_the_way_back_leaves_three_quarters() {
    let batch = arriving(0, BATCH as u64);
    let run = |share: &str| {
        let mut method = adapter("roid", &[("source_share", share)]);
        learn(&mut method, &batch);
        method.weights()
    };
    let source = adapter("roid", &[]).weights();
    let (free, drawn) = (run("0"), run("0.25"));
    for (key, start) in source {
        let (start, free, drawn) = (numbers(&start), numbers(&free[&key]), numbers(&drawn[&key]));
        for ((start, free), drawn) in start.iter().zip(free).zip(drawn) {
            let expected = 0.75 * (free - start);
            // Weights are near one, where single precision has steps of 1e-7.
            assert!((drawn - start - expected).abs() < 3e-7, "{key}");
        }
    }
}

#[test]
fn a_short_batch_is_divided_by_the_size_of_the_others() {
    let bare = [BARE[0], BARE[1], BARE[2], BARE[3], ("learning_rate", "0")];
    let (long, short) = (arriving(0, BATCH as u64), arriving(20, 4));
    let mut method = adapter("roid", &bare);
    let alone = learn(&mut method, &short).losses[0].1;
    learn(&mut method, &long);
    let after = learn(&mut method, &short).losses[0].1;
    let expected = alone * 4.0 / BATCH as f64;
    // Four terms are divided by another number.
    assert!((after - expected).abs() < 1e-6, "{after}, not {expected}");
    method.reset();
    assert_eq!(learn(&mut method, &short).losses[0].1, alone);
}

#[test]
fn batches_of_one_and_missing_copies_are_refused_and_change_nothing() {
    let source = Source::of("roid");
    let mut session = source.session("roid", &protocol(false));
    let one = data(0)[0].batch(&[0]).unwrap().samples;
    let error = session.observe(&one).unwrap_err();
    assert_eq!(
        error.to_string(),
        "samples of a batch: expected at least 2 for `roid`, found 1"
    );
    assert_eq!(session.batches(), 0);

    let mut method = adapter("roid", &[]);
    let before = method.weights();
    let batch = Minibatch {
        views: None,
        ..arriving(0, 4)
    };
    let error = method.learn(&batch, &Stage::SINGLE).unwrap_err();
    assert!(error.to_string().contains("needs a varied copy"), "{error}");
    assert_eq!(method.weights(), before);
}

#[test]
fn clouds_have_no_varied_copies() {
    let mut model = Source::of("roid").model;
    model.input = ttac::input::InputContract::Clouds {
        points: 64,
        fewest: 1,
    };
    let built = Session::builder(&model).method("roid").build();
    assert!(matches!(
        built,
        Err(Error::Mismatch { .. } | Error::Invalid { .. })
    ));
}
