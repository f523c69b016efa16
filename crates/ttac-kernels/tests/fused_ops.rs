//! Activations, sums, products and scales on tensors: values and gradients are those of the compositions of Burn's own ops.

#![cfg(feature = "burn")]

mod comparison;

use burn::tensor::{Device, Gradients, Tensor, TensorData};
use comparison::values;
use ttac_kernels::kernels::Activation;
use ttac_kernels::{
    BatchNormOptions, Context, ConvOptions, GroupNormOptions, Implementation, activate, add,
    add_activate, batch_norm, conv_norm_inference, group_norm, mul, norm_conv2d, scale_channels,
    scale_last,
};

/// Norms and sums over some hundred values in another order; functions within some 1e-7.
const TOLERANCE: f32 = 2e-5;

const SHAPE: [usize; 4] = [2, 5, 4, 6];

/// Values in -5 .. 5, which reach every kink, without a gradient. (A detached leaf would have one.)
fn constant<const D: usize>(shape: [usize; D], seed: u64) -> Tensor<D> {
    let values = values(shape.iter().product(), seed);
    let data = TensorData::new(values.iter().map(|v| 5. * v).collect(), shape);
    Tensor::from_data(data, &Device::flex().autodiff())
}

/// The same values with a gradient.
fn leaf<const D: usize>(shape: [usize; D], seed: u64) -> Tensor<D> {
    constant(shape, seed).require_grad()
}

fn read<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

/// The gradients of `sum(y * weights)`.
fn backward<const D: usize>(y: &Tensor<D>) -> Gradients {
    let weights = constant(y.dims(), 99);
    (y.clone() * weights).sum().backward()
}

/// Runs a case with our kernels and with Burn's ops, and compares all that it returns.
fn compare(what: &str, case: impl Fn() -> Vec<Vec<f32>>) {
    let found = Context::new().scope(&case);
    let composed = Context::new().with_implementation(Implementation::Composed);
    let expected = composed.scope(&case);
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let largest = expected.iter().fold(1f32, |m, e| m.max(e.abs()));
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            let error = (found - expected).abs() / largest;
            assert!(error < TOLERANCE, "{what}, {i}: {found} for {expected}");
        }
    }
}

#[test]
fn activations() {
    for activation in Activation::ALL {
        compare(&format!("{activation:?}"), || {
            let x = leaf([3, 7, 5], 1);
            let y = activate(x.clone(), activation);
            let grads = backward(&y);
            vec![read(y), read(x.grad(&grads).unwrap())]
        });
        compare(&format!("sum, {activation:?}"), || {
            let (x, y) = (leaf([9, 11], 1), leaf([9, 11], 2));
            let z = add_activate(x.clone(), y.clone(), activation);
            let grads = backward(&z);
            let [dx, dy] = [x, y].map(|leaf| read(leaf.grad(&grads).unwrap()));
            vec![read(z), dx, dy]
        });
    }
}

/// A tensor that several of our ops read, once as a leaf and once as a result, where gradients are added inside the kernels.
#[test]
fn gradients_that_meet_are_added() {
    type Use = fn(Tensor<4>) -> Tensor<4>;
    let uses: [Use; 7] = [
        |x| activate(x, Activation::Silu),
        |x| add_activate(x.clone(), x * 0.5, Activation::HardSwish),
        |x| add_activate(x.clone() * 0.5, x, Activation::Relu),
        |x| add(x.clone(), x),
        |x| mul(x.clone(), x),
        |x| mul(x.clone(), x.detach()),
        |x| scale_channels(x, constant([2, 6], 7)),
    ];
    for (first, one) in uses.iter().enumerate() {
        for (second, other) in uses.iter().enumerate() {
            for is_leaf in [true, false] {
                compare(&format!("{first} and {second}, leaf {is_leaf}"), || {
                    let x = leaf(SHAPE, 1);
                    let used = if is_leaf { x.clone() } else { x.clone() * 0.7 };
                    let y = one(used.clone()) + other(used);
                    let grads = backward(&y);
                    vec![read(y), read(x.grad(&grads).unwrap())]
                });
            }
        }
    }
}

#[test]
fn products_and_sums() {
    for (want_x, want_y) in [(true, true), (true, false), (false, true)] {
        for op in [add::<4>, mul::<4>] {
            compare("product or sum", || {
                let make = |seed: u64, want: bool| {
                    if want {
                        leaf(SHAPE, seed)
                    } else {
                        constant(SHAPE, seed)
                    }
                };
                let (x, y) = (make(1, want_x), make(2, want_y));
                let z = op(x.clone(), y.clone());
                let grads = backward(&z);
                let gradients = [x, y].map(|leaf| leaf.grad(&grads).map_or(vec![], read));
                assert_eq!(
                    gradients.each_ref().map(|g| !g.is_empty()),
                    [want_x, want_y]
                );
                let [dx, dy] = gradients;
                vec![read(z), dx, dy]
            });
        }
    }
}

#[test]
fn scales() {
    compare("channels", || {
        let (x, scale) = (leaf(SHAPE, 1), leaf([2, 6], 2));
        let y = scale_channels(x.clone(), scale.clone());
        let grads = backward(&y);
        let dx = read(x.grad(&grads).unwrap());
        vec![read(y), dx, read(scale.grad(&grads).unwrap())]
    });
    for add in [false, true] {
        compare("columns", || {
            let (x, gamma, residual) = (leaf([13, 6], 1), leaf([6], 2), leaf([13, 6], 3));
            let y = scale_last(x.clone(), gamma.clone(), add.then(|| residual.clone()));
            let grads = backward(&y);
            let dx = read(x.grad(&grads).unwrap());
            let dgamma = read(gamma.grad(&grads).unwrap());
            let dresidual = residual.grad(&grads);
            assert_eq!(dresidual.is_some(), add);
            vec![read(y), dx, dgamma, dresidual.map_or(vec![], read)]
        });
    }
    // Only the residual wants a gradient.
    compare("constant columns", || {
        let (x, gamma) = (constant([13, 6], 1), constant([6], 2));
        let residual = leaf([13, 6], 3);
        let y = scale_last(x, gamma, Some(residual.clone()));
        let grads = backward(&y);
        vec![read(y), read(residual.grad(&grads).unwrap())]
    });
}

#[test]
fn norms() {
    for activation in Activation::ALL {
        let options = BatchNormOptions {
            epsilon: 1e-5,
            activation,
        };
        for (add, given) in [(false, false), (true, false), (false, true), (true, true)] {
            compare(&format!("norm, {activation:?}, {add}, {given}"), || {
                let (x, residual) = (leaf(SHAPE, 1), leaf(SHAPE, 2));
                let (gamma, beta) = (leaf([6], 3), leaf([6], 4));
                let mean = constant([6], 5);
                let statistics = given.then(|| (mean.clone(), mean.square() + 1.));
                let (g, b) = (gamma.clone(), beta.clone());
                let summand = add.then(|| residual.clone());
                let y = batch_norm(x.clone(), g, b, summand, statistics, options).y;
                let grads = backward(&y);
                let mut all = vec![read(y)];
                all.extend([x, residual].map(|leaf| leaf.grad(&grads).map_or(vec![], read)));
                all.extend([gamma, beta].map(|leaf| read(leaf.grad(&grads).unwrap())));
                all
            });
        }
        compare(&format!("group norm, {activation:?}"), || {
            let (x, gamma, beta) = (leaf(SHAPE, 1), leaf([6], 3), leaf([6], 4));
            let options = GroupNormOptions {
                groups: 3,
                epsilon: 1e-5,
                activation,
            };
            let y = group_norm(x.clone(), gamma.clone(), beta.clone(), options);
            let grads = backward(&y);
            let dx = read(x.grad(&grads).unwrap());
            let [dgamma, dbeta] = [gamma, beta].map(|leaf| read(leaf.grad(&grads).unwrap()));
            vec![read(y), dx, dgamma, dbeta]
        });
    }
}

#[test]
fn convolutions() {
    for activation in Activation::ALL {
        let norm = BatchNormOptions {
            epsilon: 1e-5,
            activation,
        };
        for (kernel, stride) in [(1, 1), (3, 1), (3, 2)] {
            let options = ConvOptions::square(stride, kernel / 2);
            let what = format!("{activation:?}, kernel {kernel}, stride {stride}");
            compare(&format!("before, {what}"), || {
                let (x, weight) = (leaf(SHAPE, 1), leaf([7, 6, kernel, kernel], 2));
                let (gamma, beta) = (leaf([6], 3), leaf([6], 4));
                let (g, b) = (gamma.clone(), beta.clone());
                let w = weight.clone();
                let y = norm_conv2d(x.clone(), g, b, None, norm, w, None, options).y;
                let grads = backward(&y);
                let mut all = vec![read(y)];
                all.extend([x, weight].map(|leaf| read(leaf.grad(&grads).unwrap())));
                all.extend([gamma, beta].map(|leaf| read(leaf.grad(&grads).unwrap())));
                all
            });
            compare(&format!("behind, {what}"), || {
                let x = leaf(SHAPE, 1).inner();
                let weight = leaf([7, 6, kernel, kernel], 2).inner();
                let [gamma, beta, mean] = [3, 4, 5].map(|seed| leaf([7], seed).inner());
                let statistics = (mean.clone(), mean.square() + 1.);
                let y =
                    conv_norm_inference(x, weight, options, gamma, beta, None, statistics, norm);
                vec![read(y)]
            });
        }
    }
}
