//! Convolutions of tensors with every option: the kernels against compositions of Burn's own ops, values and gradients, and against differences of values.

#![cfg(feature = "burn")]

mod comparison;

use burn::tensor::{Device, Tensor, TensorData};
use comparison::{error, values};
use ttac_kernels::Activation;
use ttac_kernels::{BatchNormOptions, ConvOptions, composed, conv2d, conv2d_add, norm_conv2d};

/// Both sides add up at most some hundred products in `f32`, each in its own order: the root of their number in half ulps, on either side.
const TOLERANCE: f64 = 4e-6;

fn leaf<const D: usize>(shape: [usize; D], seed: u64) -> Tensor<D> {
    let values = values(shape.iter().product(), seed);
    let data = TensorData::new(values, shape);
    Tensor::from_data(data, &Device::flex().autodiff()).require_grad()
}

fn numbers<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.to_data().try_to_vec().unwrap()
}

fn same<const D: usize>(what: &str, found: &Tensor<D>, expected: &Tensor<D>) {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let exact: Vec<f64> = numbers(expected).into_iter().map(f64::from).collect();
    let error = error(&numbers(found), &exact);
    assert!(error < TOLERANCE, "{what}: {error:.1e}");
}

/// Size of the images, channels, kernel and options of some convolutions.
fn cases() -> Vec<([usize; 4], [usize; 3], ConvOptions)> {
    let plain = ConvOptions::square(1, 1);
    vec![
        ([2, 6, 5, 4], [7, 3, 3], plain),
        ([1, 5, 5, 8], [5, 1, 1], ConvOptions::square(1, 0)),
        (
            [2, 6, 9, 3],
            [6, 1, 7],
            ConvOptions {
                padding: [[0; 2], [3; 2]],
                ..plain
            },
        ),
        (
            [1, 7, 8, 5],
            [4, 3, 2],
            ConvOptions {
                stride: [2, 1],
                padding: [[0, 1], [1, 0]],
                ..plain
            },
        ),
        (
            [1, 9, 8, 4],
            [6, 3, 3],
            ConvOptions {
                dilation: [2, 3],
                padding: [[2; 2], [3, 2]],
                ..plain
            },
        ),
    ]
}

#[test]
fn values_and_gradients_equal_those_of_the_composition() {
    for (case, (input, [outputs, height, width], options)) in cases().into_iter().enumerate() {
        for added in 0..4 {
            let x = leaf(input, 1);
            let weight = leaf([outputs, input[3], height, width], 2);
            let bias = (added & 1 != 0).then(|| leaf([outputs], 3));
            let shape = conv2d(x.clone(), weight.clone(), options).dims();
            let residual = (added & 2 != 0).then(|| leaf(shape, 4));
            let dy = leaf(shape, 5).detach();
            let arguments = || (x.clone(), weight.clone(), bias.clone(), residual.clone());
            let (a, b, c, d) = arguments();
            let found = conv2d_add(a, b, c, d, options);
            let (a, b, c, d) = arguments();
            let expected = composed::conv2d(a, b, c, d, options);
            let what = |part: &str| format!("case {case}, added {added}, {part}");
            same(&what("y"), &found, &expected);
            let [found, expected] = [found, expected].map(|y| (y * dy.clone()).sum().backward());
            let [dx, exact] = [&found, &expected].map(|grads| x.grad(grads).unwrap());
            same(&what("dx"), &dx, &exact);
            let [dw, exact] = [&found, &expected].map(|grads| weight.grad(grads).unwrap());
            same(&what("dw"), &dw, &exact);
            if let Some(bias) = &bias {
                let [db, exact] = [&found, &expected].map(|grads| bias.grad(grads).unwrap());
                same(&what("dbias"), &db, &exact);
            }
            if let Some(residual) = &residual {
                same(&what("dresidual"), &residual.grad(&found).unwrap(), &dy);
            }
        }
    }
}

/// A convolution is linear in each of its tensors, so that a central difference has no error but rounding, whatever the step: a step of 1 makes that least.
#[test]
fn gradients_equal_differences_of_values() {
    for (input, [outputs, height, width], options) in cases() {
        let shapes = (input, [outputs, input[3], height, width]);
        let (x, weight, bias) = (leaf(shapes.0, 1), leaf(shapes.1, 2), leaf([outputs], 3));
        let shape = conv2d(x.clone(), weight.clone(), options).dims();
        let (residual, dy) = (leaf(shape, 4), leaf(shape, 5).detach());
        let loss = |x: &Tensor<4>, weight: &Tensor<4>, bias: &Tensor<1>, residual: &Tensor<4>| {
            let (bias, residual) = (Some(bias.clone()), Some(residual.clone()));
            let y = conv2d_add(x.clone(), weight.clone(), bias, residual, options);
            (y * dy.clone()).sum()
        };
        let grads = loss(&x, &weight, &bias, &residual).backward();
        let difference = |plus: Tensor<1>, minus: Tensor<1>| -> f64 {
            (f64::from(plus.into_scalar::<f32>()) - f64::from(minus.into_scalar::<f32>())) / 2.
        };
        // Each tensor moves along a direction of its own shape.
        let along = |gradient: Vec<f32>, way: Vec<f32>| -> f64 {
            let products = gradient.iter().zip(&way);
            products.map(|(g, w)| f64::from(*g) * f64::from(*w)).sum()
        };
        let (w4, w1) = (leaf(shapes.1, 6).detach(), leaf([outputs], 7).detach());
        let (wx, wr) = (leaf(shapes.0, 8).detach(), leaf(shape, 9).detach());
        let moved = |sign: f32| {
            [
                loss(&(x.clone() + wx.clone() * sign), &weight, &bias, &residual),
                loss(&x, &(weight.clone() + w4.clone() * sign), &bias, &residual),
                loss(&x, &weight, &(bias.clone() + w1.clone() * sign), &residual),
                loss(&x, &weight, &bias, &(residual.clone() + wr.clone() * sign)),
            ]
        };
        let exact = [
            along(numbers(&x.grad(&grads).unwrap()), numbers(&wx)),
            along(numbers(&weight.grad(&grads).unwrap()), numbers(&w4)),
            along(numbers(&bias.grad(&grads).unwrap()), numbers(&w1)),
            along(numbers(&residual.grad(&grads).unwrap()), numbers(&wr)),
        ];
        for ((plus, minus), exact) in moved(1.).into_iter().zip(moved(-1.)).zip(exact) {
            let found = difference(plus, minus);
            // The losses are sums of some thousand products of order 1: 1e-4 is a thousand times half an ulp of such a sum.
            assert!(
                (found - exact).abs() < 1e-4 * exact.abs().max(10.),
                "{found} {exact}"
            );
        }
    }
}

#[test]
fn a_norm_before_any_window_equals_the_composition() {
    let norm = BatchNormOptions {
        epsilon: 1e-5,
        activation: Activation::Relu,
    };
    for (input, [outputs, height, width], options) in cases() {
        let x = leaf(input, 1);
        let weight = leaf([outputs, input[3], height, width], 2);
        let (gamma, beta) = (leaf([input[3]], 3), leaf([input[3]], 4));
        let (g, b, w) = (gamma.clone(), beta.clone(), weight.clone());
        let found = norm_conv2d(x.clone(), g, b, None, norm, w, None, options).y;
        let (g, b) = (gamma.clone(), beta.clone());
        let normed = composed::batch_norm(x.clone(), (g, b), None, None, norm).y;
        let expected = composed::conv2d(normed, weight.clone(), None, None, options);
        same("y", &found, &expected);
        let dy = leaf(found.dims(), 5).detach();
        let [found, expected] = [found, expected].map(|y| (y * dy.clone()).sum().backward());
        for leaf in [&x, &weight] {
            let [found, expected] = [&found, &expected].map(|grads| leaf.grad(grads).unwrap());
            same("gradient", &found, &expected);
        }
    }
}
