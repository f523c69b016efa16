//! Batch norm and group norm as differentiable ops of Burn's CPU backend, and the moments of images, which leave the graph.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, Flex, backend_extension};
use burn::tensor::Shape;

use super::kernel::{
    self, GroupBackward, GroupParams, GroupShape, GroupStatistics, NormBackward, NormParams,
};
use super::ops::{BatchNormOptions, GroupNormOptions};
use crate::Context;
use crate::activation::kernel::Activation;
use crate::core::autodiff_sums::{Parents, Step};
use crate::core::buffer::{dense, shape_of, tensor, values, values_mut};
use crate::core::extension::{Optional, StatisticsSource, dims, record};

/// The ops, routed at run time. Shapes are those of the functions at the crate's root.
#[backend_extension(Flex, Autodiff)]
pub trait NormOps: Backend {
    /// See [`crate::batch_norm`]: the result, the mean and the variance; only the first is
    /// differentiable.
    fn fast_batch_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        #[extension_type] residual: Optional<Self>,
        #[extension_type] statistics: StatisticsSource<Self>,
        options: BatchNormOptions,
        context: Context,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// See [`crate::group_norm`].
    fn fast_group_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        options: GroupNormOptions,
        context: Context,
    ) -> FloatTensor<Self>;

    /// See [`crate::image_moments`]: the mean and the variance; neither is differentiable.
    fn fast_image_moments(
        x: FloatTensor<Self>,
        context: Context,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl NormOps for Flex {
    fn fast_batch_norm(
        x: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        residual: Optional<Self>,
        statistics: StatisticsSource<Self>,
        options: BatchNormOptions,
        context: Context,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let statistics = statistics.into_option();
        let norm = Norm::new(&x, gamma, beta, statistics, options, context);
        let y = norm.forward(x, residual.into_option());
        (y, norm.mean, norm.variance)
    }

    fn fast_group_norm(
        x: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        options: GroupNormOptions,
        context: Context,
    ) -> FlexTensor {
        let (mut x, gamma, beta) = (dense(x), dense(gamma), dense(beta));
        let shape = shape_of(&x);
        let params = group_params(&shape, &gamma, &beta, options);
        if let Some(values) = values_mut(&mut x) {
            kernel::group_norm_forward_in_place(&context, values, &params);
            return x;
        }
        let (y, _) = kernel::group_norm_forward(&context, values(&x), &params);
        tensor(&context, y, shape)
    }

    fn fast_image_moments(x: FlexTensor, context: Context) -> (FlexTensor, FlexTensor) {
        let x = dense(x);
        let [batch, height, width, channels] = dims(&shape_of(&x));
        let shape = [batch, height * width, channels];
        let (mean, variance) = kernel::image_moments(&context, values(&x), shape);
        let [mean, variance] =
            [mean, variance].map(|values| tensor(&context, values, [batch, channels]));
        (mean, variance)
    }
}

/// A batch norm that knows its statistics.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    pub(crate) mean: FlexTensor,
    pub(crate) variance: FlexTensor,
    gamma: FlexTensor,
    beta: FlexTensor,
    options: BatchNormOptions,
    /// Whether the statistics are those of its input, and pass gradients on.
    batch_statistics: bool,
    pub(crate) context: Context,
}

impl Norm {
    /// Takes the given statistics, or else those of `x`.
    pub(crate) fn new(
        x: &FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        statistics: Option<(FlexTensor, FlexTensor)>,
        options: BatchNormOptions,
        context: Context,
    ) -> Self {
        let batch_statistics = statistics.is_none();
        let (mean, variance) = statistics.unwrap_or_else(|| tensor_statistics(x, &context));
        Self {
            mean: dense(mean),
            variance: dense(variance),
            gamma: dense(gamma),
            beta: dense(beta),
            options,
            batch_statistics,
            context,
        }
    }

    pub(crate) fn params(&self) -> NormParams<'_> {
        NormParams {
            mean: values(&self.mean),
            variance: values(&self.variance),
            gamma: values(&self.gamma),
            beta: values(&self.beta),
            epsilon: self.options.epsilon,
            activation: self.options.activation,
        }
    }

    /// Computes `act(norm(x) [+ residual])`.
    fn forward(&self, x: FlexTensor, residual: Option<FlexTensor>) -> FlexTensor {
        let (mut x, residual) = (dense(x), residual.map(dense));
        let (shape, params) = (shape_of(&x), self.params());
        let residual = residual.as_ref().map(values);
        // An input that nobody else holds (in inference: a convolution's output) is overwritten.
        let overwritten = match values_mut(&mut x) {
            Some(x) => {
                kernel::norm_forward_in_place(&self.context, x, residual, &params);
                true
            }
            None => false,
        };
        if overwritten {
            return x;
        }
        let y = kernel::norm_forward(&self.context, values(&x), residual, &params);
        tensor(&self.context, y, shape)
    }
}

/// Mean and biased variance of each channel, the last axis.
pub(crate) fn tensor_statistics(x: &FlexTensor, context: &Context) -> (FlexTensor, FlexTensor) {
    let x = dense(x.clone());
    let shape = shape_of(&x);
    let channels = shape[shape.num_dims() - 1];
    let (mean, variance) = kernel::batch_statistics(context, values(&x), channels);
    let [mean, variance] = [mean, variance].map(|values| tensor(context, values, [channels]));
    (mean, variance)
}

fn group_params<'a>(
    x: &Shape,
    gamma: &'a FlexTensor,
    beta: &'a FlexTensor,
    options: GroupNormOptions,
) -> GroupParams<'a> {
    let [batch, height, width, channels] = dims(x);
    GroupParams {
        shape: GroupShape {
            batch,
            pixels: height * width,
            channels,
            groups: options.groups,
        },
        gamma: values(gamma),
        beta: values(beta),
        epsilon: options.epsilon,
        activation: options.activation,
    }
}

// ------------------------------------------------------------------------------------- autodiff

impl<C: CheckpointStrategy> NormOps for Autodiff<Flex, C> {
    fn fast_batch_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        residual: Optional<Self>,
        statistics: StatisticsSource<Self>,
        options: BatchNormOptions,
        context: Context,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let parents = [x.node(), gamma.node(), beta.node()];
        let residual = residual.into_option();
        let fourth = residual.as_ref().map(FloatTensor::<Self>::node);
        let residual = residual.map(FloatTensor::<Self>::into_primitive);
        let x = x.into_primitive();
        let (gamma, beta) = (gamma.into_primitive(), beta.into_primitive());
        let statistics = statistics.into_primitives();
        let norm = Norm::new(&x, gamma, beta, statistics, options, context);
        let (mean, variance) = (norm.mean.clone(), norm.variance.clone());

        // The number of parents is part of the type, hence the two arms below.
        macro_rules! record_norm {
            ($parents:expr) => {
                record!($parents, {
                    tracked => {
                        let y = norm.forward(x.clone(), residual.clone());
                        let added = residual.map(|residual| Added::new(&y, residual, options.activation));
                        (NormState { x, added, norm }, y)
                    },
                    untracked => norm.forward(x, residual)
                })
            };
        }
        let y = match fourth {
            None => record_norm!(parents),
            Some(fourth) => {
                let [first, second, third] = parents;
                record_norm!([first, second, third, fourth])
            }
        };
        // Statistics leave the graph: they are untracked leaves.
        (y, Self::from_inner(mean), Self::from_inner(variance))
    }

    fn fast_group_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        options: GroupNormOptions,
        context: Context,
    ) -> FloatTensor<Self> {
        let parents = [x.node(), gamma.node(), beta.node()];
        let x = x.into_primitive();
        let (gamma, beta) = (gamma.into_primitive(), beta.into_primitive());
        record!(parents, {
            tracked => {
                let (x, gamma, beta) = (dense(x), dense(gamma), dense(beta));
                let shape = shape_of(&x);
                let params = group_params(&shape, &gamma, &beta, options);
                let (y, statistics) = kernel::group_norm_forward(&context, values(&x), &params);
                let y = tensor(&context, y, shape);
                let state = GroupNormState {
                    x,
                    statistics,
                    gamma,
                    beta,
                    options,
                    context,
                };
                (state, y)
            },
            untracked => Flex::fast_group_norm(x, gamma, beta, options, context)
        })
    }

    fn fast_image_moments(
        x: FloatTensor<Self>,
        context: Context,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (mean, variance) = Flex::fast_image_moments(x.into_primitive(), context);
        // As the statistics of a norm: untracked leaves.
        (Self::from_inner(mean), Self::from_inner(variance))
    }
}

/// What the slope of an activation behind a sum needs, besides one of the summands.
#[derive(Clone, Debug)]
pub(crate) enum Added {
    /// Nothing: there is no activation.
    Nothing,
    /// The result shows the slope, and is kept by whoever reads it in any case.
    Result(FlexTensor),
    /// The other summand. Nothing new is stored for it.
    Summand(FlexTensor),
}

impl Added {
    /// Chooses what to keep of the result and of a summand.
    pub(crate) fn new(result: &FlexTensor, summand: FlexTensor, activation: Activation) -> Self {
        match activation {
            Activation::None => Self::Nothing,
            _ if activation.slope_shows_in_result() => Self::Result(result.clone()),
            _ => Self::Summand(dense(summand)),
        }
    }

    /// Returns the result, if that is what was kept.
    pub(crate) fn result(&self) -> Option<&[f32]> {
        match self {
            Self::Result(result) => Some(values(result)),
            _ => None,
        }
    }

    /// Returns the summand, if that is what was kept.
    pub(crate) fn summand(&self) -> Option<&[f32]> {
        match self {
            Self::Summand(summand) => Some(values(summand)),
            _ => None,
        }
    }
}

/// What the gradients of a batch norm need.
#[derive(Clone, Debug)]
pub(crate) struct NormState {
    pub(crate) x: FlexTensor,
    /// What the residual left, where one was added.
    pub(crate) added: Option<Added>,
    pub(crate) norm: Norm,
}

/// Parents: input, scale, shift and, if there are four, the residual.
impl Step for NormState {
    fn context(&self) -> &Context {
        &self.norm.context
    }

    fn backward(self, dy: FlexTensor, parents: Parents<'_>) {
        self.backward_with(dy, parents, Some(3));
    }
}

impl NormState {
    /// Goes from the gradient of a norm's result to those of its input, scale and shift, and to that of the parent that is the residual.
    pub(crate) fn backward_with(
        self,
        mut dy: FlexTensor,
        mut parents: Parents<'_>,
        residual: Option<usize>,
    ) {
        let context = &self.norm.context;
        let x = dense(self.x);
        let saved = NormBackward {
            x: values(&x),
            y: self.added.as_ref().and_then(Added::result),
            residual: self.added.as_ref().and_then(Added::summand),
            params: self.norm.params(),
            batch_statistics: self.norm.batch_statistics,
            want_dx: parents.wants(0),
            other: parents.other.as_ref().map(values),
            want_residual: residual.is_some_and(|residual| parents.wants(residual)),
        };
        let channels = shape_of(&self.norm.gamma);
        // The gradient is ours alone as a rule, and is overwritten; if not, this makes a copy.
        let found = kernel::norm_backward(context, dy.storage_mut::<f32>(), &saved);
        let [gamma, beta] =
            [found.gamma, found.beta].map(|gradient| tensor(context, gradient, channels.clone()));
        parents.give_all([dy, gamma, beta]);
        if let (Some(residual), Some(gradient)) = (residual, found.residual) {
            parents.give(residual, tensor(context, gradient, shape_of(&x)));
        }
    }
}

/// What the gradients of a group norm need.
#[derive(Clone, Debug)]
struct GroupNormState {
    x: FlexTensor,
    statistics: Vec<GroupStatistics>,
    gamma: FlexTensor,
    beta: FlexTensor,
    options: GroupNormOptions,
    context: Context,
}

/// Parents: input, scale, shift.
impl Step for GroupNormState {
    fn context(&self) -> &Context {
        &self.context
    }

    fn backward(self, mut dy: FlexTensor, mut parents: Parents<'_>) {
        let (context, shape) = (&self.context, shape_of(&self.x));
        let saved = GroupBackward {
            x: values(&self.x),
            statistics: &self.statistics,
            params: group_params(&shape, &self.gamma, &self.beta, self.options),
            want_dx: parents.wants(0),
            other: parents.other.as_ref().map(values),
        };
        let (gamma, beta) = kernel::group_norm_backward(context, dy.storage_mut::<f32>(), &saved);
        let channels = shape_of(&self.gamma);
        let [gamma, beta] =
            [gamma, beta].map(|gradient| tensor(context, gradient, channels.clone()));
        parents.give_all([dy, gamma, beta]);
    }
}
