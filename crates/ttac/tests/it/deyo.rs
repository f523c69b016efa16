//! `DeYO` beside its fixture: what one patch leaves, batches without a step, and what is refused.

use ttac::archive::Arrays;
use ttac::method::{Adapter, Learned, Minibatch, Setting, Stage};
use ttac::protocol::Protocol;

use crate::world::{BATCH, Source, data, eager, input, protocol};

fn adapter(changes: &[(&str, &str)]) -> Adapter {
    let mut method = eager("deyo", Setting::NoQueue);
    for (field, value) in changes {
        method = method.with_field(field, value).unwrap();
    }
    method
        .build(Source::of("deyo").model.network, None)
        .unwrap()
}

fn everything(method: &Adapter) -> Arrays {
    let mut arrays = Arrays::default();
    method.save(&mut arrays).unwrap();
    arrays
}

/// With one patch nothing changes places, so that no probability falls and no step is made.
#[test]
fn one_patch_teaches_nothing() {
    let source = Source::of("deyo");
    for (patches, steps) in [("1", 0), ("4", 1)] {
        let method = eager("deyo", Setting::NoQueue);
        let method = method.with_field("patches", patches).unwrap();
        // A pass that predicts may differ from one that is learned from in its last digits.
        let threshold = if steps == 0 { "1e-5" } else { "-2" };
        let method = method.with_field("fall_threshold", threshold).unwrap();
        let builder = ttac::Session::builder(&source.model).method_spec(&method);
        let protocol: Protocol = protocol(false);
        let mut session = builder.protocol(&protocol).build().unwrap();
        let ids: Vec<u64> = (0..BATCH as u64).collect();
        let answer = session
            .observe(&data(0)[0].batch(&ids).unwrap().samples)
            .unwrap();
        assert_eq!(answer.learned.updates, steps, "{patches} patches");
        assert_eq!(answer.learned.considered, BATCH);
    }
}

#[test]
fn a_batch_without_a_selected_sample_changes_nothing() {
    let ids: Vec<u64> = (0..BATCH as u64).collect();
    let samples = data(0)[0].batch(&ids).unwrap().samples;
    let images = input()
        .normalise(&samples, &burn::tensor::Device::flex())
        .unwrap();
    let batch = Minibatch {
        ids,
        views: Some(ttac::method::Views {
            images: images.clone(),
            turns: Vec::new(),
        }),
        images,
    };
    // No probability falls by more than one, and no entropy is below zero.
    for change in [("fall_threshold", "1"), ("entropy_margin", "0")] {
        let mut method = adapter(&[change]);
        let before = everything(&method);
        let learned = method.learn(&batch, &Stage::SINGLE).unwrap();
        let expected = Learned {
            considered: BATCH,
            ..Learned::nothing()
        };
        assert_eq!(learned, expected);
        assert_eq!(everything(&method), before);
    }
    let mut method = adapter(&[]);
    let without = Minibatch {
        views: None,
        ..batch
    };
    let error = method
        .learn(&without, &Stage::SINGLE)
        .unwrap_err()
        .to_string();
    assert!(error.contains("whose patches are shuffled"), "{error}");
}

#[test]
fn no_patches_are_refused() {
    let method = eager("deyo", Setting::NoQueue);
    let method = method.with_field("patches", "0").unwrap();
    let error = method.build(Source::of("deyo").model.network, None).err();
    let error = error.unwrap().to_string();
    assert!(
        error.contains("`patches` must be 1 to 64, found 0"),
        "{error}"
    );
}
