//! Steps of optimisers on tensors.

use burn::backend::Flex;
use burn::tensor::Tensor;

use super::composed;
use super::kernel::{self, Direction, SgdConstants};
use crate::core::buffer::{dense, values};
use crate::core::extension::{flex, kernels_for};

/// Does a step of stochastic gradient descent on one parameter, outside the autodiff graph:
///
/// `v = momentum v + g; p = p - learning_rate v` with `g` the gradient plus `weight_decay p`.
///
/// Returns the parameter and, with momentum, the velocity; without a `velocity` this is the first step,
/// and `g` becomes it. Our kernel does it in one pass, to the bits of [`composed::sgd_step`](crate::composed::sgd_step).
///
/// # Panics
/// If the shapes differ.
pub fn sgd_step<const D: usize>(
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    velocity: Option<Tensor<D>>,
    constants: SgdConstants,
) -> (Tensor<D>, Option<Tensor<D>>) {
    assert_eq!(
        parameter.dims(),
        gradient.dims(),
        "sgd_step: parameter and gradient"
    );
    if let Some(velocity) = &velocity {
        assert_eq!(
            parameter.dims(),
            velocity.dims(),
            "sgd_step: parameter and velocity"
        );
    }
    let Some(context) = kernels_for(&parameter) else {
        return composed::sgd_step((parameter, gradient), velocity, constants);
    };
    // Buffers that nobody else holds are overwritten.
    let (mut parameter, mut gradient) = (dense(flex(parameter)), dense(flex(gradient)));
    let mut velocity = velocity.map(|velocity| dense(flex(velocity)));
    let place = parameter.storage_mut::<f32>();
    if let Some(velocity) = &mut velocity {
        let direction = Direction::Velocity(values(&gradient), velocity.storage_mut::<f32>());
        kernel::sgd_step(&context, place, direction, constants);
    } else if constants.momentum > 0. {
        let direction = Direction::First(gradient.storage_mut::<f32>());
        kernel::sgd_step(&context, place, direction, constants);
        velocity = Some(gradient);
    } else {
        let direction = Direction::Gradient(values(&gradient));
        kernel::sgd_step(&context, place, direction, constants);
    }
    let back = Tensor::from_primitive::<Flex>;
    (back(parameter), velocity.map(back))
}
