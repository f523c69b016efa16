//! Activations as compositions of Burn's own ops.

use burn::tensor::{Tensor, activation};

use super::kernel::Activation;

/// See [`crate::activate`].
pub fn activate<const D: usize>(x: Tensor<D>, function: Activation) -> Tensor<D> {
    match function {
        Activation::None => x,
        Activation::Relu => activation::relu(x),
        Activation::Relu6 => x.clamp(0., 6.),
        Activation::Silu => activation::silu(x),
        Activation::HardSwish => x.clone() * hard_sigmoid(x),
        Activation::Gelu => activation::gelu(x),
        Activation::GeluTanh => gelu_tanh(x),
        Activation::Sigmoid => activation::sigmoid(x),
        Activation::HardSigmoid => hard_sigmoid(x),
    }
}

/// See [`crate::add_activate`].
pub fn add_activate<const D: usize>(x: Tensor<D>, y: Tensor<D>, function: Activation) -> Tensor<D> {
    activate(x + y, function)
}

fn hard_sigmoid<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    (x + 3.).clamp(0., 6.) / 6.
}

fn gelu_tanh<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let cubic = x.clone() * x.clone() * x.clone() * 0.044_715;
    let scale = (2. / std::f64::consts::PI).sqrt();
    let tanh = ((x.clone() + cubic) * scale).tanh();
    x * (tanh + 1.) * 0.5
}
