//! Activations as differentiable ops of Burn's CPU backend.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Flex, backend_extension};

use super::kernel::{self, Activation};
use crate::Context;
use crate::core::autodiff_sums::{Parents, Step};
use crate::core::buffer::{dense, shape_of, tensor, values, values_mut};
use crate::core::elementwise::add_in_place;
use crate::core::extension::{Optional, record};

/// The ops, routed at run time.
#[backend_extension(Flex, Autodiff)]
pub trait ActivationOps: Backend {
    /// See [`crate::activate`] and [`crate::add_activate`].
    fn fast_activate(
        x: FloatTensor<Self>,
        #[extension_type] addend: Optional<Self>,
        activation: Activation,
        context: Context,
    ) -> FloatTensor<Self>;
}

impl ActivationOps for Flex {
    fn fast_activate(
        x: FlexTensor,
        addend: Optional<Self>,
        activation: Activation,
        context: Context,
    ) -> FlexTensor {
        forward(x, addend.into_option(), activation, &context)
    }
}

/// Computes `act(x [+ addend])`, in place where nobody else holds `x`.
fn forward(
    x: FlexTensor,
    addend: Option<FlexTensor>,
    activation: Activation,
    context: &Context,
) -> FlexTensor {
    let (mut x, addend) = (dense(x), addend.map(dense));
    let addend = addend.as_ref().map(values);
    if let Some(x) = values_mut(&mut x) {
        kernel::activate_forward_in_place(context, x, addend, activation);
    } else {
        let y = kernel::activate_forward(context, values(&x), addend, activation);
        x = tensor(context, y, shape_of(&x));
    }
    x
}

// ------------------------------------------------------------------------------------- autodiff

impl<C: CheckpointStrategy> ActivationOps for Autodiff<Flex, C> {
    fn fast_activate(
        x: FloatTensor<Self>,
        addend: Optional<Self>,
        activation: Activation,
        context: Context,
    ) -> FloatTensor<Self> {
        let first = x.node();
        let x = x.into_primitive();
        match addend.into_option() {
            None => record!([first], {
                tracked => {
                    let y = forward(x.clone(), None, activation, &context);
                    let kept = Argument::Input(dense(x));
                    (ActivationState { kept, activation, context }, y)
                },
                untracked => forward(x, None, activation, &context)
            }),
            Some(addend) => {
                let second = addend.node();
                let addend = addend.into_primitive();
                record!([first, second], {
                    tracked => {
                        let y = forward(x.clone(), Some(addend.clone()), activation, &context);
                        let kept = Argument::of_sum(x, addend, &y, activation);
                        (ActivationState { kept, activation, context }, y)
                    },
                    untracked => forward(x, Some(addend), activation, &context)
                })
            }
        }
    }
}

/// What the slope of an activation is computed from.
#[derive(Clone, Debug)]
enum Argument {
    /// Nothing: the slope is 1.
    Nothing,
    /// The argument, or a result that shows the slope as well.
    Input(FlexTensor),
    /// The summands of the argument. Keeping them stores nothing new.
    Sum(FlexTensor, FlexTensor),
}

impl Argument {
    /// Chooses what is kept of `y = act(x + addend)`.
    fn of_sum(x: FlexTensor, addend: FlexTensor, y: &FlexTensor, activation: Activation) -> Self {
        match activation {
            Activation::None => Self::Nothing,
            _ if activation.slope_shows_in_result() => Self::Input(y.clone()),
            _ => Self::Sum(dense(x), dense(addend)),
        }
    }
}

/// What the gradient of an activation needs.
#[derive(Clone, Debug)]
struct ActivationState {
    kept: Argument,
    activation: Activation,
    context: Context,
}

/// Parents: input and, if there are two, what was added to it.
impl Step for ActivationState {
    fn context(&self) -> &Context {
        &self.context
    }

    fn backward(self, mut dy: FlexTensor, mut parents: Parents<'_>) {
        let context = &self.context;
        // The other gradient of the first parent is added on the way if nobody else gets the result.
        let mut other = parents.other.take();
        let fused = if parents.wants(1) { None } else { other.take() };
        let argument = match &self.kept {
            Argument::Nothing => None,
            Argument::Input(x) => Some((values(x), None)),
            Argument::Sum(x, addend) => Some((values(x), Some(values(addend)))),
        };
        if let Some((x, addend)) = argument {
            let fused = fused.as_ref().map(values);
            // The gradient is ours alone as a rule, and is overwritten; if not, this makes a copy.
            let dy = dy.storage_mut::<f32>();
            kernel::activate_backward(context, dy, x, addend, fused, self.activation);
        } else if fused.is_some() {
            other = fused;
        }
        parents.give(1, dy.clone());
        if let Some(mut other) = other {
            add_in_place(context, other.storage_mut::<f32>(), values(&dy));
            dy = other;
        }
        parents.give(0, dy);
    }
}
