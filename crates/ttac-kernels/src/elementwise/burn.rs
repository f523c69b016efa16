//! Products and scales as differentiable ops of Burn's CPU backend.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Flex, backend_extension};
use burn::tensor::Shape;

use super::kernel::{self, ScaleBackward, ScaleShape};
use crate::Context;
use crate::core::autodiff_sums::{Parents, Step};
use crate::core::buffer::{dense, shape_of, tensor, values, values_mut};
use crate::core::elementwise::add_in_place;
use crate::core::extension::{Optional, record};

/// The ops, routed at run time.
#[backend_extension(Flex, Autodiff)]
pub trait ElementwiseOps: Backend {
    /// See [`crate::mul`].
    fn fast_multiply(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        context: Context,
    ) -> FloatTensor<Self>;

    /// See [`crate::scale_channels`] and [`crate::scale_last`]: factors of two axes belong to the images of `x`, those of one axis to all rows.
    fn fast_scale(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        #[extension_type] residual: Optional<Self>,
        context: Context,
    ) -> FloatTensor<Self>;
}

impl ElementwiseOps for Flex {
    fn fast_multiply(x: FlexTensor, y: FlexTensor, context: Context) -> FlexTensor {
        let (mut x, y) = (dense(x), dense(y));
        if let Some(x) = values_mut(&mut x) {
            kernel::multiply_in_place(&context, x, values(&y));
        } else {
            let product = kernel::multiply(&context, values(&x), values(&y));
            x = tensor(&context, product, shape_of(&x));
        }
        x
    }

    fn fast_scale(
        x: FlexTensor,
        scale: FlexTensor,
        residual: Optional<Self>,
        context: Context,
    ) -> FlexTensor {
        scaled(x, scale, residual.into_option(), &context)
    }
}

/// Computes `x scale [+ residual]`, in place where nobody else holds `x`.
fn scaled(
    x: FlexTensor,
    scale: FlexTensor,
    residual: Option<FlexTensor>,
    context: &Context,
) -> FlexTensor {
    let (mut x, scale, residual) = (dense(x), dense(scale), residual.map(dense));
    let shape = scale_shape(&shape_of(&x), &shape_of(&scale));
    let (factors, residual) = (values(&scale), residual.as_ref().map(values));
    if let Some(x) = values_mut(&mut x) {
        kernel::scale_forward_in_place(context, x, factors, residual, &shape);
    } else {
        let y = kernel::scale_forward(context, values(&x), factors, residual, &shape);
        x = tensor(context, y, shape_of(&x));
    }
    x
}

/// The sizes of a scaled tensor: all axes between the first, if the factors have it too, and the last are rows.
fn scale_shape(x: &Shape, scale: &Shape) -> ScaleShape {
    let (last, leading) = (x.num_dims() - 1, scale.num_dims() - 1);
    ScaleShape {
        batch: (0..leading).map(|axis| x[axis]).product(),
        rows: (leading..last).map(|axis| x[axis]).product(),
        channels: x[last],
    }
}

// ------------------------------------------------------------------------------------- autodiff

impl<C: CheckpointStrategy> ElementwiseOps for Autodiff<Flex, C> {
    fn fast_multiply(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        context: Context,
    ) -> FloatTensor<Self> {
        let parents = [x.node(), y.node()];
        let (want_x, want_y) = (x.is_tracked(), y.is_tracked());
        let (x, y) = (dense(x.into_primitive()), dense(y.into_primitive()));
        record!(
            parents,
            Flex::fast_multiply(x, y, context),
            ProductState {
                x: want_y.then(|| x.clone()),
                y: want_x.then(|| y.clone()),
                context: context.clone(),
            }
        )
    }

    fn fast_scale(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        residual: Optional<Self>,
        context: Context,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), scale.node()];
        let residual = residual.into_option();
        let third = residual.as_ref().map(FloatTensor::<Self>::node);
        let residual = residual.map(FloatTensor::<Self>::into_primitive);
        let (want_x, want_scale) = (x.is_tracked(), scale.is_tracked());
        let (x, scale) = (dense(x.into_primitive()), dense(scale.into_primitive()));
        let shapes = [shape_of(&x), shape_of(&scale)];
        // The number of parents is part of the type, hence the two arms below.
        macro_rules! record_scale {
            ($parents:expr) => {
                record!(
                    $parents,
                    scaled(x, scale, residual, &context),
                    ScaleState {
                        x: want_scale.then(|| x.clone()),
                        scale: want_x.then(|| scale.clone()),
                        shapes,
                        context: context.clone(),
                    }
                )
            };
        }
        match third {
            None => record_scale!(nodes),
            Some(third) => {
                let [first, second] = nodes;
                record_scale!([first, second, third])
            }
        }
    }
}

/// What the gradients of a product need: each factor for that of the other. What is not wanted is not kept.
#[derive(Clone, Debug)]
struct ProductState {
    x: Option<FlexTensor>,
    y: Option<FlexTensor>,
    context: Context,
}

/// Parents: both factors.
impl Step for ProductState {
    fn context(&self) -> &Context {
        &self.context
    }

    fn backward(self, mut dy: FlexTensor, mut parents: Parents<'_>) {
        let context = &self.context;
        let shape = shape_of(&dy);
        let other = parents.other.take();
        let other = other.as_ref().map(values);
        // The gradient is ours alone as a rule, and is overwritten; if not, this makes a copy.
        let gradient = dy.storage_mut::<f32>();
        match (&self.x, &self.y) {
            (Some(x), Some(y)) => {
                let factors = [values(x), values(y)];
                let second = kernel::multiply_backward(context, gradient, factors, other);
                parents.give(1, tensor(context, second, shape));
                parents.give(0, dy);
            }
            (None, Some(y)) => {
                kernel::multiply_in_place(context, gradient, values(y));
                if let Some(other) = other {
                    add_in_place(context, gradient, other);
                }
                parents.give(0, dy);
            }
            (Some(x), None) => {
                kernel::multiply_in_place(context, gradient, values(x));
                parents.give(1, dy);
            }
            (None, None) => {}
        }
    }
}

/// What the gradients of a scaled tensor need: the factors for that of the tensor, and the other way round. What is not wanted is not kept.
#[derive(Clone, Debug)]
struct ScaleState {
    x: Option<FlexTensor>,
    scale: Option<FlexTensor>,
    /// The shapes of the tensor and of its factors.
    shapes: [Shape; 2],
    context: Context,
}

/// Parents: tensor, factors and, if there are three, the residual.
impl Step for ScaleState {
    fn context(&self) -> &Context {
        &self.context
    }

    fn backward(self, dy: FlexTensor, mut parents: Parents<'_>) {
        let context = &self.context;
        let [x, scale] = self.shapes;
        let saved = ScaleBackward {
            x: self.x.as_ref().map(values),
            scale: self.scale.as_ref().map(values),
            other: parents.other.as_ref().map(values),
            shape: scale_shape(&x, &scale),
        };
        if saved.x.is_some() || saved.scale.is_some() {
            let gradients = kernel::scale_backward(context, values(&dy), &saved);
            let found = [(gradients.x, x), (gradients.scale, scale)];
            for (parent, (gradient, shape)) in found.into_iter().enumerate() {
                if let Some(gradient) = gradient {
                    parents.give(parent, tensor(context, gradient, shape));
                }
            }
        }
        parents.give(2, dy);
    }
}
