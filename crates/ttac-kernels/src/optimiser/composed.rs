//! Steps of optimisers as compositions of Burn's own ops.

use burn::tensor::Tensor;

use super::kernel::SgdConstants;

/// See [`crate::sgd_step`].
pub fn sgd_step<const D: usize>(
    (parameter, gradient): (Tensor<D>, Tensor<D>),
    velocity: Option<Tensor<D>>,
    constants: SgdConstants,
) -> (Tensor<D>, Option<Tensor<D>>) {
    let SgdConstants {
        learning_rate,
        momentum,
        weight_decay,
    } = constants;
    let mut direction = gradient;
    if weight_decay > 0. {
        direction = parameter.clone() * weight_decay + direction;
    }
    if let Some(velocity) = velocity {
        direction = direction + velocity * momentum;
    }
    let velocity = (momentum > 0.).then(|| direction.clone());
    (parameter - direction * learning_rate, velocity)
}
