//! Losses of the source side and joint training steps against PyTorch: `reference/objectives`.

use burn::tensor::{Device, Tensor};
use ttac::backbone::{Adaptable, Architecture, Backbone, Network, tensors};
use ttac::burn::module::Module;
use ttac::checkpoint::Objective;
use ttac::loss::{LabelSmoothing, contrastive, smoothed_cross_entropy};
use ttac::optim::OptimiserConfig;
use ttac::train::{Prepared, TrainConfig, objective};

use crate::fixture::{Fixture, filled};

/// Sums of a few dozen terms in f32.
const LOSS: f64 = 1e-6;
/// Five steps; PyTorch's own f32 is at 3e-7.
const STEPS: f64 = 1e-5;

fn device() -> Device {
    Device::flex().autodiff()
}

/// Compares value and gradient of a loss of one input.
fn check(fixture: &mut Fixture, case: &str, loss: impl Fn(Tensor<2>) -> Tensor<1>) {
    let x: Tensor<2> = fixture.input(&format!("{case}.x"), &device());
    let x = x.require_grad();
    let y = loss(x.clone());
    fixture.compare("y", &format!("{case}.y"), &y.clone().without_autodiff());
    let gradient = x.grad(&y.backward()).unwrap();
    fixture.compare("dx", &format!("{case}.dx"), &gradient);
}

#[test]
fn smoothed_labels() {
    let mut fixture = Fixture::open_in("objectives", "label-smoothing");
    for case in ["all-0.1", "all-0.1-steep", "others-0.1", "others-0.2"] {
        let about = fixture.about["cases"][case].clone();
        let labels: Vec<usize> = serde_json::from_value(about["labels"].clone()).unwrap();
        let share = about["smoothing"].as_f64().unwrap() as f32;
        let smoothing = match about["spread_over"].as_str() {
            Some("all") => LabelSmoothing::AllClasses(share),
            _ => LabelSmoothing::OtherClasses(share),
        };
        check(&mut fixture, case, |x| {
            smoothed_cross_entropy(x, &labels, smoothing)
        });
    }
    fixture.expect("y", LOSS);
    fixture.expect("dx", LOSS);
}

#[test]
fn contrastive_pairs() {
    let mut fixture = Fixture::open_in("objectives", "nt-xent");
    for case in ["plain", "two-pairs"] {
        check(&mut fixture, case, contrastive);
    }
    fixture.expect("y", LOSS);
    // Gradients are differences of nearly equal terms.
    fixture.expect("dx", 2e-6);
}

#[test]
fn identical_views_of_orthogonal_embeddings() {
    // See `docs/methods.md`, Identities that the tests check: 7.142857 log(1 + (2b - 2) e^-2).
    let pairs = 4;
    let rows: Vec<f32> = (0..2 * pairs * pairs)
        .map(|i| f32::from(u8::from(i % pairs == i / pairs % pairs)))
        .collect();
    let rows = burn::tensor::TensorData::new(rows, [2 * pairs, pairs]);
    let loss = contrastive(Tensor::from_data(rows, &Device::flex()));
    let found: Vec<f32> = loss.to_data().try_to_vec().unwrap();
    let expected = 0.5 / 0.07 * (1.0 + (2.0 * pairs as f64 - 2.0) * (-2.0_f64).exp()).ln();
    assert!(
        (f64::from(found[0]) - expected).abs() < 1e-5,
        "{found:?} {expected}"
    );
}

fn joint(name: &str, network: Network, kind: Objective, prepared: &Prepared) {
    let mut fixture = Fixture::open_in("objectives", name);
    let config = TrainConfig::new(kind, 1);
    let mut network = network.trainable(Adaptable::All);
    let mut optimiser = OptimiserConfig::Sgd {
        momentum: 0.9,
        weight_decay: 1e-4,
    }
    .init();
    let mut losses = Vec::new();
    for _ in 0..5 {
        let made = objective(&network, prepared.clone(), &config);
        losses.push(made.loss.clone().without_autodiff());
        network = optimiser.step(0.02, network, &made.loss);
    }
    fixture.compare("losses", "losses.total", &Tensor::cat(losses, 0));
    fixture.expect("losses", STEPS);
    let after = tensors(&network.valid());
    for key in fixture.keys("after.") {
        let values: Vec<f32> = after[&key].clone().try_to_vec().unwrap();
        let flat = Tensor::<1>::from_data(values.as_slice(), &Device::flex());
        let shape = after[&key].shape().to_vec();
        let name = format!("after.{key}");
        match *shape {
            [_] => fixture.compare("after", &name, &flat),
            [a, b] => fixture.compare("after", &name, &flat.reshape([a, b])),
            [a, b, c, d] => fixture.compare("after", &name, &flat.reshape([a, b, c, d])),
            _ => panic!("`{key}` has shape {shape:?}"),
        }
    }
    fixture.expect("after", STEPS);
}

fn small(name: &str, fields: &[(&str, &str)]) -> Network {
    let mut architecture = Architecture::by_name(name, 10).unwrap();
    for (field, value) in fields {
        architecture = architecture.with_field(field, value).unwrap();
    }
    let blank = architecture.blank(&Device::flex()).unwrap();
    let names = blank.clone();
    filled(blank, |path| names.published_key(path))
}

#[test]
fn five_joint_steps_with_contrast() {
    let fixture = Fixture::open_in("objectives", "train-simclr");
    let views = ["view1", "view2"].map(|name| fixture.input::<4>(name, &device()));
    let prepared = Prepared {
        draw: 0,
        images: Tensor::cat(views.to_vec(), 0),
        labels: vec![0, 7, 4, 1],
        turned: None,
    };
    let fields = [("blocks", "[1,1,1,1]"), ("width", "4"), ("projection", "8")];
    let network = small("resnet18-cifar", &fields);
    joint("train-simclr", network, Objective::Simclr, &prepared);
}

#[test]
fn five_joint_steps_with_rotations() {
    let fixture = Fixture::open_in("objectives", "train-rotation");
    let images: Tensor<4> = fixture.input("input", &device());
    // Counter-clockwise: transpose, then upside down.
    let quarter = |x: Tensor<4>| x.swap_dims(1, 2).flip([1]);
    let mut turned = vec![images.clone()];
    for turn in 0..3 {
        turned.push(quarter(turned[turn].clone()));
    }
    let prepared = Prepared {
        draw: 0,
        labels: vec![0, 7, 4, 1],
        turned: Some((Tensor::cat(turned, 0), (0..16).map(|i| i / 4).collect())),
        images,
    };
    let network = small("resnet26", &[("depth", "8"), ("width", "8")]);
    joint("train-rotation", network, Objective::Rotation, &prepared);
}
