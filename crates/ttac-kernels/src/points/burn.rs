//! Ops on clouds as differentiable ops of Burn's CPU backend.

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, Flex, backend_extension};

use super::kernel::{
    CloudBackward, EdgeBackward, EdgeShape, LeakyNorm, cloud_pool, cloud_pool_backward, edge_pool,
    edge_pool_backward,
};
use super::ops::{HostNeighbours, LeakyNormOptions};
use crate::Context;
use crate::core::autodiff_sums::{Parents, Step};
use crate::core::buffer::{dense, shape_of, tensor, values};
use crate::core::extension::{StatisticsSource, dims, record};
use crate::norm::burn::tensor_statistics;

/// The ops, routed at run time. Results: `y`, the mean and the variance; only the first is differentiable.
#[backend_extension(Flex, Autodiff)]
pub trait PointOps: Backend {
    /// The part of [`crate::edge_conv`] behind the product.
    fn fast_edge_pool(
        ab: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        #[extension_type] statistics: StatisticsSource<Self>,
        neighbours: HostNeighbours,
        options: LeakyNormOptions,
        context: Context,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// See [`crate::cloud_pool`].
    fn fast_cloud_pool(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        #[extension_type] statistics: StatisticsSource<Self>,
        options: LeakyNormOptions,
        context: Context,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl PointOps for Flex {
    fn fast_edge_pool(
        ab: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        statistics: StatisticsSource<Self>,
        neighbours: HostNeighbours,
        options: LeakyNormOptions,
        context: Context,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let norm = Leaky::new([gamma, beta], options, context);
        let state = EdgeState::new(ab, norm, statistics.into_option(), neighbours);
        (state.y, state.mean, state.variance)
    }

    fn fast_cloud_pool(
        x: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        statistics: StatisticsSource<Self>,
        options: LeakyNormOptions,
        context: Context,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let norm = Leaky::new([gamma, beta], options, context);
        let (y, state) = CloudState::new(x, norm, statistics.into_option());
        (y, state.mean, state.variance)
    }
}

impl<C: CheckpointStrategy> PointOps for Autodiff<Flex, C> {
    fn fast_edge_pool(
        ab: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        statistics: StatisticsSource<Self>,
        neighbours: HostNeighbours,
        options: LeakyNormOptions,
        context: Context,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let parents = [ab.node(), gamma.node(), beta.node()];
        let affine = [gamma, beta].map(FloatTensor::<Self>::into_primitive);
        let norm = Leaky::new(affine, options, context);
        let statistics = statistics.into_primitives();
        let state = EdgeState::new(ab.into_primitive(), norm, statistics, neighbours);
        let (y, mean, variance) = (state.y.clone(), state.mean.clone(), state.variance.clone());
        let y = record!(parents, y, state);
        // Statistics leave the graph: they are untracked leaves.
        (y, Self::from_inner(mean), Self::from_inner(variance))
    }

    fn fast_cloud_pool(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        statistics: StatisticsSource<Self>,
        options: LeakyNormOptions,
        context: Context,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let parents = [x.node(), gamma.node(), beta.node()];
        let affine = [gamma, beta].map(FloatTensor::<Self>::into_primitive);
        let norm = Leaky::new(affine, options, context);
        let statistics = statistics.into_primitives();
        let (y, state) = CloudState::new(x.into_primitive(), norm, statistics);
        let (mean, variance) = (state.mean.clone(), state.variance.clone());
        let y = record!(parents, y, state);
        (y, Self::from_inner(mean), Self::from_inner(variance))
    }
}

/// A norm and its activation, and the context of the forward pass.
#[derive(Clone, Debug)]
struct Leaky {
    gamma: FlexTensor,
    beta: FlexTensor,
    options: LeakyNormOptions,
    context: Context,
}

impl Leaky {
    fn new(affine: [FlexTensor; 2], options: LeakyNormOptions, context: Context) -> Self {
        let [gamma, beta] = affine.map(dense);
        Self {
            gamma,
            beta,
            options,
            context,
        }
    }

    fn params(&self) -> LeakyNorm<'_> {
        LeakyNorm {
            gamma: values(&self.gamma),
            beta: values(&self.beta),
            epsilon: self.options.epsilon,
            slope: self.options.slope,
        }
    }
}

/// The result of the second half of an edge convolution, and what its gradients need.
#[derive(Clone, Debug)]
struct EdgeState {
    shape: EdgeShape,
    norm: Leaky,
    neighbours: HostNeighbours,
    ab: FlexTensor,
    y: FlexTensor,
    winners: Arc<Vec<u8>>,
    sums: Option<FlexTensor>,
    mean: FlexTensor,
    variance: FlexTensor,
}

impl EdgeState {
    fn new(
        ab: FlexTensor,
        norm: Leaky,
        statistics: Option<(FlexTensor, FlexTensor)>,
        neighbours: HostNeighbours,
    ) -> Self {
        let ab = dense(ab);
        let [batch, points, columns] = dims(&shape_of(&ab));
        let shape = EdgeShape {
            batch,
            points,
            k: neighbours.k,
            channels: columns / 2,
        };
        let context = &norm.context;
        let statistics = statistics.map(|(mean, variance)| (dense(mean), dense(variance)));
        let given = statistics
            .as_ref()
            .map(|(mean, variance)| (values(mean), values(variance)));
        let (product, indices) = (values(&ab), &neighbours.indices);
        let pooled = edge_pool(context, product, indices, shape, given, norm.params());
        let out = [batch, points, shape.channels];
        let sums = Some(pooled.sums).filter(|sums| !sums.is_empty());
        Self {
            shape,
            y: tensor(context, pooled.y, out),
            winners: Arc::new(pooled.winners),
            sums: sums.map(|sums| tensor(context, sums, out)),
            mean: tensor(context, pooled.mean, [shape.channels]),
            variance: tensor(context, pooled.variance, [shape.channels]),
            norm,
            neighbours,
            ab,
        }
    }
}

/// Parents: the product, scale, shift.
impl Step for EdgeState {
    const ADDS: bool = false;

    fn context(&self) -> &Context {
        &self.norm.context
    }

    fn backward(self, dy: FlexTensor, mut parents: Parents<'_>) {
        let (context, shape) = (&self.norm.context, self.shape);
        let saved = EdgeBackward {
            ab: values(&self.ab),
            neighbours: &self.neighbours.indices,
            y: values(&self.y),
            winners: &self.winners,
            sums: self.sums.as_ref().map_or(&[], values),
            mean: values(&self.mean),
            variance: values(&self.variance),
        };
        let found = edge_pool_backward(context, values(&dy), &saved, shape, self.norm.params());
        let product = [shape.batch, shape.points, 2 * shape.channels];
        let product = tensor(context, found.ab, product);
        let [gamma, beta] =
            [found.gamma, found.beta].map(|gradient| tensor(context, gradient, [shape.channels]));
        parents.give_all([product, gamma, beta]);
    }
}

/// What the gradients of a pooling over clouds need.
#[derive(Clone, Debug)]
struct CloudState {
    norm: Leaky,
    x: FlexTensor,
    winners: Arc<Vec<u32>>,
    mean: FlexTensor,
    variance: FlexTensor,
    batch_statistics: bool,
}

impl CloudState {
    /// Pools; the result comes first.
    fn new(
        x: FlexTensor,
        norm: Leaky,
        statistics: Option<(FlexTensor, FlexTensor)>,
    ) -> (FlexTensor, Self) {
        let x = dense(x);
        let context = &norm.context;
        let [batch, points, channels] = dims(&shape_of(&x));
        let batch_statistics = statistics.is_none();
        let (mean, variance) = statistics.unwrap_or_else(|| tensor_statistics(&x, context));
        let (mean, variance) = (dense(mean), dense(variance));
        let used = [&mean, &variance].map(values);
        let pooled = cloud_pool(context, values(&x), points, used[0], used[1], norm.params());
        let y = tensor(context, pooled.y, [batch, 2 * channels]);
        let state = Self {
            norm,
            x,
            winners: Arc::new(pooled.winners),
            mean,
            variance,
            batch_statistics,
        };
        (y, state)
    }
}

/// Parents: input, scale, shift.
impl Step for CloudState {
    const ADDS: bool = false;

    fn context(&self) -> &Context {
        &self.norm.context
    }

    fn backward(self, dy: FlexTensor, mut parents: Parents<'_>) {
        let (context, shape) = (&self.norm.context, shape_of(&self.x));
        let [_, points, channels] = dims(&shape);
        let saved = CloudBackward {
            x: values(&self.x),
            points,
            winners: &self.winners,
            mean: values(&self.mean),
            variance: values(&self.variance),
            batch_statistics: self.batch_statistics,
        };
        let found = cloud_pool_backward(context, values(&dy), &saved, self.norm.params());
        let x = tensor(context, found.x, shape);
        let [gamma, beta] =
            [found.gamma, found.beta].map(|gradient| tensor(context, gradient, [channels]));
        parents.give_all([x, gamma, beta]);
    }
}
