//! Activations and their derivatives in `f64`, straight from PyTorch's definitions.

#![allow(dead_code)] // not every test needs all of it

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use ttac_kernels::kernels::Activation;

pub fn value(activation: Activation, z: f64) -> f64 {
    match activation {
        Activation::None => z,
        Activation::Relu => z.max(0.),
        Activation::Relu6 => z.clamp(0., 6.),
        Activation::Silu => z * sigmoid(z),
        Activation::HardSwish => z * hard_sigmoid(z),
        Activation::Gelu => z * normal_distribution(z),
        Activation::GeluTanh => 0.5 * z * (1. + tanh_argument(z).tanh()),
        Activation::Sigmoid => sigmoid(z),
        Activation::HardSigmoid => hard_sigmoid(z),
    }
}

pub fn derivative(activation: Activation, z: f64) -> f64 {
    let inside = |low: f64, high: f64, slope: f64| {
        if low < z && z < high { slope } else { 0. }
    };
    match activation {
        Activation::None => 1.,
        Activation::Relu => inside(0., f64::INFINITY, 1.),
        Activation::Relu6 => inside(0., 6., 1.),
        Activation::Silu => sigmoid(z) * (1. + z * (1. - sigmoid(z))),
        Activation::HardSwish if z >= 3. => 1.,
        Activation::HardSwish => inside(-3., 3., z / 3. + 0.5),
        Activation::Gelu => normal_distribution(z) + z * normal_density(z),
        Activation::GeluTanh => {
            let tanh = tanh_argument(z).tanh();
            let slope = (2. / PI).sqrt() * (1. + 3. * 0.044_715 * z * z);
            0.5 * (1. + tanh) + 0.5 * z * (1. - tanh * tanh) * slope
        }
        Activation::Sigmoid => sigmoid(z) * (1. - sigmoid(z)),
        Activation::HardSigmoid => inside(-3., 3., 1. / 6.),
    }
}

fn sigmoid(z: f64) -> f64 {
    1. / (1. + (-z).exp())
}

fn hard_sigmoid(z: f64) -> f64 {
    (z + 3.).clamp(0., 6.) / 6.
}

fn tanh_argument(z: f64) -> f64 {
    (2. / PI).sqrt() * (z + 0.044_715 * z * z * z)
}

fn normal_density(z: f64) -> f64 {
    (-0.5 * z * z).exp() / PI.sqrt() * FRAC_1_SQRT_2
}

/// By its power series near 0, by its continued fraction in the tails.
fn normal_distribution(z: f64) -> f64 {
    if z.abs() < 4. {
        let (mut term, mut sum) = (z, z);
        for k in 1..100 {
            term *= z * z / f64::from(2 * k + 1);
            sum += term;
        }
        return 0.5 + normal_density(z) * sum;
    }
    let a = z.abs();
    let fraction = (1..100).rev().fold(a, |below, k| a + f64::from(k) / below);
    let tail = normal_density(z) / fraction;
    if z < 0. { tail } else { 1. - tail }
}
