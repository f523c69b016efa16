//! Pools of tensors with every option: the kernels against compositions of Burn's own ops, values and gradients.

#![cfg(feature = "burn")]

mod comparison;

use burn::tensor::{Device, Tensor, TensorData};
use comparison::{error, values};
use ttac_kernels::kernels::Window;
use ttac_kernels::{AveragePoolOptions, PoolOptions, average_pool, composed, max_pool};

/// Both sides add up a dozen values in `f32` and divide: a few ulps.
const TOLERANCE: f64 = 2e-6;

fn leaf(shape: [usize; 4], seed: u64) -> Tensor<4> {
    let values = values(shape.iter().product(), seed);
    let data = TensorData::new(values, shape);
    Tensor::from_data(data, &Device::flex().autodiff()).require_grad()
}

fn same(what: &str, found: &Tensor<4>, expected: &Tensor<4>) {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let numbers = |tensor: &Tensor<4>| -> Vec<f32> { tensor.to_data().try_to_vec().unwrap() };
    let exact: Vec<f64> = numbers(expected).into_iter().map(f64::from).collect();
    let error = error(&numbers(found), &exact);
    assert!(error < TOLERANCE, "{what}: {error:.1e}");
}

/// Value and gradient of two implementations.
fn compare(what: &str, pools: [&dyn Fn(Tensor<4>) -> Tensor<4>; 2]) {
    let x = leaf([2, 7, 8, 5], 1);
    let [found, expected] = pools.map(|pool| pool(x.clone()));
    same(what, &found, &expected);
    let dy = leaf(found.dims(), 2).detach();
    let [found, expected] = [found, expected].map(|y| {
        let gradients = (y * dy.clone()).sum().backward();
        x.grad(&gradients).unwrap()
    });
    same(&format!("gradient of {what}"), &found, &expected);
}

fn cases() -> Vec<PoolOptions> {
    let window = |kernel, stride, padding| Window {
        kernel,
        stride,
        dilation: [1; 2],
        padding,
    };
    let windows = [
        Window::square(3, 2, 1),
        Window::square(2, 2, 0),
        Window::square(3, 3, 0),
        Window::square(5, 1, 2),
        window([2, 3], [3, 2], [[1, 0], [0, 2]]),
        window([1, 4], [1, 3], [[0, 0], [1, 3]]),
        window([7, 8], [1, 1], [[0; 2]; 2]),
    ];
    let both = [false, true].into_iter();
    both.flat_map(|ceil| windows.map(|window| PoolOptions { window, ceil }))
        .collect()
}

#[test]
fn averages_equal_the_composition() {
    for windows in cases() {
        for (count_padding, divisor) in [(true, None), (false, None), (true, Some(7))] {
            let options = AveragePoolOptions {
                windows,
                count_padding,
                divisor,
            };
            compare(
                &format!("{options:?}"),
                [&|x| average_pool(x, options), &|x| {
                    composed::average_pool(x, options)
                }],
            );
        }
    }
}

#[test]
fn maxima_equal_the_composition() {
    for options in cases() {
        for dilation in [[1, 1], [2, 1]] {
            let window = Window {
                dilation,
                ..options.window
            };
            if window.span(0) > 7 {
                continue;
            }
            let options = PoolOptions { window, ..options };
            compare(
                &format!("{options:?}"),
                [&|x| max_pool(x, options), &|x| {
                    composed::max_pool(x, options)
                }],
            );
        }
    }
}

#[test]
#[should_panic(expected = "max_pool: the window does not fit input [2, 7, 8, 5]")]
fn a_window_that_does_not_fit_is_refused() {
    max_pool(leaf([2, 7, 8, 5], 1), PoolOptions::square(9, 1, 0));
}

#[test]
#[should_panic(expected = "average_pool: expected no dilation and a divisor of at least 1")]
fn a_divisor_of_zero_is_refused() {
    let options = AveragePoolOptions {
        divisor: Some(0),
        ..PoolOptions::square(2, 2, 0).into()
    };
    average_pool(leaf([2, 7, 8, 5], 1), options);
}
