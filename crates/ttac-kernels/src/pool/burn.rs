//! Pooling and the shortcut without parameters as differentiable ops of Burn's CPU backend.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Flex, TensorMetadata, backend_extension};
use burn::tensor::Shape;

use super::kernel::{self, Divisor, PoolShape, ShortcutShape};
use super::ops::{AveragePoolOptions, PoolOptions};
use crate::Context;
use crate::core::autodiff_sums::{Parents, Step};
use crate::core::buffer::{dense, shape_of, tensor, values};
use crate::core::elementwise::add_in_place;
use crate::core::extension::{dims, record};

/// The ops, routed at run time. Shapes are those of the functions at the crate's root.
#[backend_extension(Flex, Autodiff)]
pub trait PoolOps: Backend {
    /// See [`crate::global_average_pool`].
    fn fast_global_average_pool(x: FloatTensor<Self>, context: Context) -> FloatTensor<Self>;

    /// See [`crate::average_pool`].
    fn fast_average_pool(
        x: FloatTensor<Self>,
        options: AveragePoolOptions,
        context: Context,
    ) -> FloatTensor<Self>;

    /// See [`crate::max_pool`].
    fn fast_max_pool(
        x: FloatTensor<Self>,
        options: PoolOptions,
        context: Context,
    ) -> FloatTensor<Self>;

    /// See [`crate::shortcut_a`].
    fn fast_shortcut_a(
        x: FloatTensor<Self>,
        out_channels: usize,
        stride: usize,
        context: Context,
    ) -> FloatTensor<Self>;
}

impl PoolOps for Flex {
    fn fast_global_average_pool(x: FlexTensor, context: Context) -> FlexTensor {
        let x = dense(x);
        let [batch, height, width, channels] = dims(&shape_of(&x));
        let shape = [batch, height * width, channels];
        let y = kernel::global_average_forward(&context, values(&x), shape);
        tensor(&context, y, [batch, channels])
    }

    fn fast_average_pool(
        x: FlexTensor,
        options: AveragePoolOptions,
        context: Context,
    ) -> FlexTensor {
        let x = dense(x);
        let shape = options.windows.shape(dims(&shape_of(&x)));
        let y = kernel::average_pool_forward(&context, values(&x), &shape, options.division());
        tensor(&context, y, shape.out_shape())
    }

    fn fast_max_pool(x: FlexTensor, options: PoolOptions, context: Context) -> FlexTensor {
        max_pool_forward(x, options, &context).0
    }

    fn fast_shortcut_a(
        x: FlexTensor,
        out_channels: usize,
        stride: usize,
        context: Context,
    ) -> FlexTensor {
        let x = dense(x);
        let shape = shortcut_shape(&shape_of(&x), out_channels, stride);
        let y = kernel::shortcut_a_forward(&context, values(&x), &shape);
        tensor(&context, y, shape.out_shape())
    }
}

/// The maxima, and the pixels they came from.
fn max_pool_forward(
    x: FlexTensor,
    options: PoolOptions,
    context: &Context,
) -> (FlexTensor, Vec<u32>) {
    let x = dense(x);
    let shape = options.shape(dims(&shape_of(&x)));
    let (y, winners) = kernel::max_pool_forward(context, values(&x), &shape);
    (tensor(context, y, shape.out_shape()), winners)
}

fn shortcut_shape(x: &Shape, out_channels: usize, stride: usize) -> ShortcutShape {
    ShortcutShape::new(dims(x), out_channels, stride)
}

// ------------------------------------------------------------------------------------- autodiff

impl<C: CheckpointStrategy> PoolOps for Autodiff<Flex, C> {
    fn fast_global_average_pool(x: FloatTensor<Self>, context: Context) -> FloatTensor<Self> {
        let saved = Saved::new(x.shape(), &context);
        record!(
            [x.node()],
            Flex::fast_global_average_pool(x.into_primitive(), context),
            saved
        )
    }

    fn fast_average_pool(
        x: FloatTensor<Self>,
        options: AveragePoolOptions,
        context: Context,
    ) -> FloatTensor<Self> {
        let shape = options.windows.shape(dims(&x.shape()));
        let saved = Saved::new((shape, options.division()), &context);
        record!(
            [x.node()],
            Flex::fast_average_pool(x.into_primitive(), options, context),
            saved
        )
    }

    fn fast_max_pool(
        x: FloatTensor<Self>,
        options: PoolOptions,
        context: Context,
    ) -> FloatTensor<Self> {
        record!([x.node()], {
            tracked => {
                let shape = options.shape(dims(&x.shape()));
                let (y, winners) = max_pool_forward(x.into_primitive(), options, &context);
                (Saved::new((shape, winners), &context), y)
            },
            untracked => Flex::fast_max_pool(x.into_primitive(), options, context)
        })
    }

    fn fast_shortcut_a(
        x: FloatTensor<Self>,
        out_channels: usize,
        stride: usize,
        context: Context,
    ) -> FloatTensor<Self> {
        let saved = Saved::new(shortcut_shape(&x.shape(), out_channels, stride), &context);
        record!(
            [x.node()],
            Flex::fast_shortcut_a(x.into_primitive(), out_channels, stride, context),
            saved
        )
    }
}

/// What the gradient of a pooling needs, with the context of its forward pass.
#[derive(Clone, Debug)]
struct Saved<T> {
    needs: T,
    context: Context,
}

impl<T> Saved<T> {
    fn new(needs: T, context: &Context) -> Self {
        let context = context.clone();
        Self { needs, context }
    }
}

/// What is enough to compute the gradient of an op with one parent.
trait Needs: Clone + std::fmt::Debug + Send + 'static {
    /// Computes the gradient of the input, and its shape.
    fn gradient(&self, context: &Context, dy: &[f32]) -> (Vec<f32>, Shape);
}

impl<T: Needs> Step for Saved<T> {
    fn context(&self) -> &Context {
        &self.context
    }

    fn backward(self, dy: FlexTensor, mut parents: Parents<'_>) {
        let (dx, shape) = self.needs.gradient(&self.context, values(&dy));
        let mut dx = tensor(&self.context, dx, shape);
        if let Some(other) = &parents.other {
            add_in_place(&self.context, dx.storage_mut::<f32>(), values(other));
        }
        parents.give(0, dx);
    }
}

/// Global average pool: the shape of the input.
impl Needs for Shape {
    fn gradient(&self, context: &Context, dy: &[f32]) -> (Vec<f32>, Shape) {
        let [batch, height, width, channels] = dims(self);
        let sizes = [batch, height * width, channels];
        let dx = kernel::global_average_backward(context, dy, sizes);
        (dx, self.clone())
    }
}

/// Average pool: how the sums are divided.
impl Needs for (PoolShape, Divisor) {
    fn gradient(&self, context: &Context, dy: &[f32]) -> (Vec<f32>, Shape) {
        let dx = kernel::average_pool_backward(context, dy, &self.0, self.1);
        (dx, self.0.in_shape().into())
    }
}

/// Max pool: where each maximum came from.
impl Needs for (PoolShape, Vec<u32>) {
    fn gradient(&self, context: &Context, dy: &[f32]) -> (Vec<f32>, Shape) {
        let dx = kernel::max_pool_backward(context, dy, &self.1, &self.0);
        (dx, self.0.in_shape().into())
    }
}

/// Shortcut without parameters.
impl Needs for ShortcutShape {
    fn gradient(&self, context: &Context, dy: &[f32]) -> (Vec<f32>, Shape) {
        let dx = kernel::shortcut_a_backward(context, dy, self);
        (dx, self.in_shape().into())
    }
}
