//! Depthwise and grouped convolutions on tensors: our kernels against Burn's own ops, which know groups too.

#![cfg(feature = "burn")]
#![allow(missing_docs)]

mod comparison;

use burn::tensor::{Device, Tensor, TensorData};
use comparison::{error, values};
use ttac_kernels::{
    Activation, BatchNormOptions, Context, ConvOptions, Implementation, conv_norm_inference,
    conv2d_add, norm_conv2d,
};

/// Both are sums of at most a hundred products in `f32`, in another order.
const TOLERANCE: f64 = 5e-6;

const NORM: BatchNormOptions = BatchNormOptions {
    epsilon: 1e-5,
    activation: Activation::Relu,
};

/// `[groups, channels of a group's input, of its output, stride]`.
const CASES: [[usize; 4]; 5] = [
    [20, 1, 1, 1],
    [20, 1, 1, 2],
    [6, 1, 2, 1],
    [5, 4, 4, 2],
    [2, 17, 18, 1],
];

fn options(groups: usize, stride: usize) -> ConvOptions {
    ConvOptions {
        groups,
        ..ConvOptions::square(stride, 1)
    }
}

fn leaf<const D: usize>(shape: [usize; D], seed: u64, device: &Device) -> Tensor<D> {
    let data = TensorData::new(values(shape.iter().product(), seed), shape);
    Tensor::from_data(data, device)
}

fn floats<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.to_data().try_to_vec().expect("tensors are f32")
}

/// Runs `work` with our kernels and with Burn's ops, and compares each of the results.
fn compare(what: &str, work: impl Fn() -> Vec<Vec<f32>>) {
    let composed = Context::new().with_implementation(Implementation::Composed);
    let (found, expected) = (Context::new().scope(&work), composed.scope(&work));
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let expected: Vec<f64> = expected.iter().map(|&value| f64::from(value)).collect();
        let error = error(found, &expected);
        assert!(error < TOLERANCE, "{what}, result {i}: error {error:.1e}");
    }
}

#[test]
fn values_and_gradients_are_those_of_burns_convolution() {
    let device = &Device::flex().autodiff();
    for case @ [groups, inputs, outputs, stride] in CASES {
        compare(&format!("{case:?}"), || {
            let (from, to, edge) = (groups * inputs, groups * outputs, 8 / stride);
            let x = leaf([2, 8, 8, from], 1, device).require_grad();
            let weight = leaf([to, inputs, 3, 3], 2, device).require_grad();
            let residual = leaf([2, edge, edge, to], 3, device).require_grad();
            let options = options(groups, stride);
            let y = conv2d_add(
                x.clone(),
                weight.clone(),
                None,
                Some(residual.clone()),
                options,
            );
            let gradients = (y.clone() * leaf([2, edge, edge, to], 4, device))
                .sum()
                .backward();
            let gradient = |leaf: &Tensor<4>| floats(&leaf.grad(&gradients).expect("a gradient"));
            let leaves = [&x, &weight, &residual].map(gradient);
            [floats(&y)].into_iter().chain(leaves).collect()
        });
    }
}

#[test]
fn a_norm_before_and_a_norm_after_are_those_of_burns_ops() {
    let device = &Device::flex();
    for case @ [groups, inputs, outputs, stride] in CASES {
        compare(&format!("{case:?}"), || {
            let (from, to) = (groups * inputs, groups * outputs);
            let (x, options) = (leaf([2, 8, 8, from], 1, device), options(groups, stride));
            let weight = leaf([to, inputs, 3, 3], 2, device);
            let vector = |channels: usize, seed| leaf([channels], seed, device);
            let (gamma, beta) = (vector(from, 5), vector(from, 6));
            let before = norm_conv2d(
                x.clone(),
                gamma,
                beta,
                None,
                NORM,
                weight.clone(),
                None,
                options,
            );
            let statistics = (vector(to, 7), vector(to, 8).abs() + 0.5);
            let (gamma, beta) = (vector(to, 9), vector(to, 10));
            let after =
                conv_norm_inference(x, weight, options, gamma, beta, None, statistics, NORM);
            vec![floats(&before.y), floats(&after)]
        });
    }
}
