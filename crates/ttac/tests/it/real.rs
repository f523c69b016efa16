//! The last rung: published weights on real images, prediction by prediction.
//!
//! Needs the weights (`weights/*.th` below `$TTAC_DATA` or the folder `../shared/data`) and CIFAR-10
//! (`$TTAC_DATA/cifar10` or the user's cache, see `ttac fetch`); says so and passes where they are absent.

use std::path::PathBuf;

use burn::tensor::Device;
use safetensors::SafeTensors;
use ttac::backbone::{Architecture, Backbone, NormMode};
use ttac::checkpoint::{InputContract, import};
use ttac::data::{Dataset, Split, default_root, open_cifar10};

use crate::fixture::{self, note};

/// A file or folder of the data at hand.
pub fn at_hand(name: &str) -> Option<PathBuf> {
    let workspace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let places = [default_root(), workspace.join("../shared/data")];
    places
        .into_iter()
        .map(|place| place.join(name))
        .find(|path| path.exists())
}

/// PyTorch's smallest margin between its two best logits is 0.002 on these images, thousands of
/// times the rounding error, so every prediction has to agree.
fn predictions_agree(architecture: &str, weights: &str, fixture: &str) {
    let (Some(weights), Some(root)) = (at_hand(weights), at_hand("cifar10")) else {
        note(&format!("skipped: needs `{weights}` and CIFAR-10"));
        return;
    };
    let path = fixture::path("cifar10-predictions").join(format!("{fixture}.safetensors"));
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let expected = file.tensor("predicted").unwrap();

    let device = Device::flex();
    let architecture = Architecture::by_name(architecture, 10).unwrap();
    let (network, _) = import(&weights, &architecture, false, &device).unwrap();
    let (_, mean, std) = InputContract::NORMALISATIONS[0];
    let contract = crate::files::contract([32, 32], mean, std);
    let data = open_cifar10(&root, Split::Test).unwrap();
    // A tenth of the images keeps the test quick; `ttac eval` runs them all.
    let ids: Vec<u64> = (0..1000).collect();
    for ids in ids.chunks(250) {
        let batch = data.batch(ids).unwrap();
        let images = contract.normalise(&batch.samples, &device).unwrap();
        let logits = network.forward(images, NormMode::Running);
        let best: Vec<i64> = logits
            .argmax(1)
            .to_data()
            .convert::<i64>()
            .try_to_vec()
            .unwrap();
        for (id, predicted) in ids.iter().zip(best) {
            let pytorch = i64::from(expected.data()[*id as usize]);
            assert_eq!(predicted, pytorch, "image {id}");
        }
    }
}

#[test]
fn resnet20_predicts_what_pytorch_predicts() {
    predictions_agree("resnet20-cifar", "weights/resnet20-12fca82f.th", "resnet20");
}

#[test]
fn resnet32_predicts_what_pytorch_predicts() {
    predictions_agree("resnet32-cifar", "weights/resnet32-d509ac18.th", "resnet32");
}
