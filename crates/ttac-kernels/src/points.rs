//! Ops on clouds of points, `[batch, points, channels]`: as networks see them, and as ops of Burn's CPU backend.

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{Int, Tensor, activation};

use crate::buffer::{dense, shape_of, tensor, values};
use crate::extension::Statistics;
use crate::kernels::points::{
    EdgeBackward, EdgeShape, LeakyNorm, cloud_pool_backward, edge_pool, edge_pool_backward,
};
use crate::kernels::{self, points};
use crate::ops::fast;
use crate::{ConvOptions, conv2d};

/// What follows a product on clouds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeakyNormOptions {
    /// Added to the variance under the square root.
    pub epsilon: f32,
    /// Slope of the activation below zero, above 0: `leaky(z) = max(z, slope z)`.
    pub slope: f32,
}

/// Result of [`edge_conv`].
#[derive(Clone, Debug)]
pub struct EdgeNormalised {
    /// `[batch, points, channels]`.
    pub y: Tensor<3>,
    /// The mean that was used, `[channels]`, outside the autodiff graph.
    pub mean: Tensor<1>,
    /// The variance that was used (of a batch: the biased one, over all edges), `[channels]`, outside the graph.
    pub variance: Tensor<1>,
}

/// Result of [`cloud_pool`].
#[derive(Clone, Debug)]
pub struct CloudNormalised {
    /// Maximum over the points, then mean: `[batch, 2 channels]`.
    pub y: Tensor<2>,
    /// The mean that was used, `[channels]`, outside the autodiff graph.
    pub mean: Tensor<1>,
    /// The variance that was used, `[channels]`, outside the graph.
    pub variance: Tensor<1>,
}

/// Which points are near which.
#[derive(Clone, Debug)]
pub struct Neighbours(Found);

#[derive(Clone, Debug)]
enum Found {
    Host(HostNeighbours),
    Device(Tensor<3, Int>),
}

/// Positions within each cloud, `[batch, points, k]`.
#[derive(Clone, Debug)]
pub struct HostNeighbours {
    k: usize,
    indices: Arc<Vec<u32>>,
}

impl Neighbours {
    /// The `k` nearest points of every point of `x`, `[batch, points, channels]`, by Euclidean distance, itself included.
    ///
    /// # Panics
    /// If there are fewer points than `k`, or `k` is not 1 to 255.
    pub fn nearest(x: &Tensor<3>, k: usize) -> Self {
        let [_, points, channels] = x.dims();
        assert!(
            (1..=255).contains(&k) && k <= points,
            "nearest: {k} neighbours among {points} points"
        );
        if fast(x).is_none() {
            return Self(Found::Device(composed::nearest(x.clone(), k)));
        }
        let x = x.clone().detach().without_autodiff();
        let x = x.try_into_primitive::<Flex>();
        let x = dense(x.expect("the device was checked above"));
        let indices = Arc::new(points::nearest(values(&x), points, channels, k));
        Self(Found::Host(HostNeighbours { k, indices }))
    }

    /// The positions within each cloud, `[batch, points, k]` in row-major order, for tests.
    pub fn to_vec(&self) -> Vec<u32> {
        match &self.0 {
            Found::Host(host) => host.indices.to_vec(),
            Found::Device(indices) => {
                let data = indices.to_data().convert::<i64>();
                let indices = data.try_to_vec::<i64>().expect("indices are integers");
                indices.into_iter().map(|index| index as u32).collect()
            }
        }
    }
}

/// Edge convolution (Wang et al., 2019) with the norm, activation and pooling that follow it:
///
/// `y_i = max over neighbours j of leaky(norm(W [x_j - x_i, x_i]))`.
///
/// Without `statistics`, mean and biased variance over all edges of the batch are used and differentiated through; given
/// statistics are constants. Which points are neighbours is not differentiated.
///
/// # Shapes
/// - `x`: `[batch, points, in_channels]`
/// - `weight`: `[out_channels, 2 in_channels]`
/// - `gamma`, `beta`, `mean`, `variance`: `[out_channels]`
/// - `y`: `[batch, points, out_channels]`
///
/// # Panics
/// If the shapes do not fit together.
pub fn edge_conv(
    x: Tensor<3>,
    weight: Tensor<2>,
    neighbours: &Neighbours,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    statistics: Option<(Tensor<1>, Tensor<1>)>,
    options: LeakyNormOptions,
) -> EdgeNormalised {
    let ([batch, points, inputs], [outputs, width]) = (x.dims(), weight.dims());
    assert!(
        width == 2 * inputs && gamma.dims() == [outputs] && beta.dims() == [outputs],
        "edge_conv: input {:?} does not fit weight {:?} and scale {:?}",
        x.dims(),
        weight.dims(),
        gamma.dims()
    );
    let host = match &neighbours.0 {
        Found::Device(indices) => {
            return composed::edge_conv(
                x,
                weight,
                indices.clone(),
                gamma,
                beta,
                statistics,
                options,
            );
        }
        Found::Host(host) => host.clone(),
    };
    // W [x_j - x_i, x_i] = W1 x_j + (W2 - W1) x_i, see `kernels::points`.
    let near = weight.clone().slice_dim(1, 0..inputs);
    let own = weight.slice_dim(1, inputs..2 * inputs) - near.clone();
    let weight = Tensor::cat(vec![near, own], 0).reshape([2 * outputs, inputs, 1, 1]);
    let rows = x.reshape([1, batch, points, inputs]);
    let once = ConvOptions {
        stride: 1,
        padding: 0,
    };
    let ab = conv2d(rows, weight, once).reshape([batch, points, 2 * outputs]);
    let (y, mean, variance) = Dispatch::fast_edge_pool(
        ab.into_dispatch(),
        gamma.into_dispatch(),
        beta.into_dispatch(),
        given(statistics),
        host,
        options,
    );
    EdgeNormalised {
        y: Tensor::from_dispatch(y),
        mean: Tensor::from_dispatch(mean),
        variance: Tensor::from_dispatch(variance),
    }
}

/// Maximum and mean over the points of `leaky(norm(x))`, side by side. Statistics as in [`edge_conv`], over all points.
///
/// # Shapes
/// - `x`: `[batch, points, channels]`
/// - `gamma`, `beta`, `mean`, `variance`: `[channels]`
/// - `y`: `[batch, 2 channels]`
///
/// # Panics
/// If the shapes do not fit together.
pub fn cloud_pool(
    x: Tensor<3>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    statistics: Option<(Tensor<1>, Tensor<1>)>,
    options: LeakyNormOptions,
) -> CloudNormalised {
    let [_, points, channels] = x.dims();
    assert!(
        points > 0 && gamma.dims() == [channels] && beta.dims() == [channels],
        "cloud_pool: input {:?} does not fit scale {:?}",
        x.dims(),
        gamma.dims()
    );
    if fast(&x).is_none() {
        return composed::cloud_pool(x, gamma, beta, statistics, options);
    }
    let (y, mean, variance) = Dispatch::fast_cloud_pool(
        x.into_dispatch(),
        gamma.into_dispatch(),
        beta.into_dispatch(),
        given(statistics),
        options,
    );
    CloudNormalised {
        y: Tensor::from_dispatch(y),
        mean: Tensor::from_dispatch(mean),
        variance: Tensor::from_dispatch(variance),
    }
}

fn given(statistics: Option<(Tensor<1>, Tensor<1>)>) -> Statistics<Dispatch> {
    statistics.map_or(Statistics::Batch, |(mean, variance)| {
        Statistics::Fixed(mean.into_dispatch(), variance.into_dispatch())
    })
}

/// The ops as compositions of Burn's own: for other backends, and the oracle of the kernels.
mod composed {
    use super::{CloudNormalised, EdgeNormalised, Int, LeakyNormOptions, Tensor, activation};

    pub(super) fn nearest(x: Tensor<3>, k: usize) -> Tensor<3, Int> {
        let x = x.detach();
        let squares = x.clone().square().sum_dim(2); // [batch, points, 1]
        let products = x.clone().matmul(x.swap_dims(1, 2)); // [batch, points, points]
        let nearness = products * 2.0 - squares.clone() - squares.swap_dims(1, 2);
        nearness.topk_with_indices(k, 2).1
    }

    pub(super) fn edge_conv(
        x: Tensor<3>,
        weight: Tensor<2>,
        neighbours: Tensor<3, Int>,
        gamma: Tensor<1>,
        beta: Tensor<1>,
        statistics: Option<(Tensor<1>, Tensor<1>)>,
        options: LeakyNormOptions,
    ) -> EdgeNormalised {
        let ([batch, points, inputs], [_, _, k]) = (x.dims(), neighbours.dims());
        let [outputs, _] = weight.dims();
        let edges = batch * points * k;
        let flat: Tensor<2> = x.clone().reshape([batch * points, inputs]);
        // Clouds lie one after the other: the first point of each is at a multiple of `points`.
        let first = Tensor::<1, Int>::arange(0..batch as i64, &x.device()) * points as i64;
        let rows = neighbours + first.reshape([batch, 1, 1]);
        let near = flat.select(0, rows.reshape([edges]));
        let own: Tensor<4> = x.unsqueeze_dim(2);
        let own: Tensor<2> = own.repeat_dim(2, k).reshape([edges, inputs]);
        let features = Tensor::cat(vec![near - own.clone(), own], 1);
        let e = features.matmul(weight.transpose());
        let (y, mean, variance) = leaky_norm(e, gamma, beta, statistics, options);
        let y: Tensor<3> = y.reshape([batch * points, k, outputs]);
        EdgeNormalised {
            y: y.max_dim(1).reshape([batch, points, outputs]),
            mean,
            variance,
        }
    }

    pub(super) fn cloud_pool(
        x: Tensor<3>,
        gamma: Tensor<1>,
        beta: Tensor<1>,
        statistics: Option<(Tensor<1>, Tensor<1>)>,
        options: LeakyNormOptions,
    ) -> CloudNormalised {
        let [batch, points, channels] = x.dims();
        let flat = x.reshape([batch * points, channels]);
        let (y, mean, variance) = leaky_norm(flat, gamma, beta, statistics, options);
        let y: Tensor<3> = y.reshape([batch, points, channels]);
        let largest = y.clone().max_dim(1).reshape([batch, channels]);
        let mean_of_points = y.mean_dim(1).reshape([batch, channels]);
        CloudNormalised {
            y: Tensor::cat(vec![largest, mean_of_points], 1),
            mean,
            variance,
        }
    }

    /// Rows normalised over all of them, `[rows, channels]`.
    fn leaky_norm(
        x: Tensor<2>,
        gamma: Tensor<1>,
        beta: Tensor<1>,
        statistics: Option<(Tensor<1>, Tensor<1>)>,
        options: LeakyNormOptions,
    ) -> (Tensor<2>, Tensor<1>, Tensor<1>) {
        let [_, channels] = x.dims();
        let (mean, variance) = statistics.unwrap_or_else(|| {
            let mean = x.clone().mean_dim(0);
            let variance = (x.clone() - mean.clone()).square().mean_dim(0);
            (mean.reshape([channels]), variance.reshape([channels]))
        });
        let scale = gamma / (variance.clone() + options.epsilon).sqrt();
        let z = (x - mean.clone().unsqueeze()) * scale.unsqueeze() + beta.unsqueeze();
        let y = activation::leaky_relu(z, f64::from(options.slope));
        (y, mean.detach(), variance.detach())
    }
}

// ---------------------------------------------------------------------------------- on the CPU

/// The ops, routed at run time. Results: `y`, the mean and the variance; only the first is differentiable.
#[backend_extension(Flex, Autodiff)]
pub trait PointOps: Backend {
    /// The part of [`edge_conv`] behind the product.
    fn fast_edge_pool(
        ab: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        #[extension_type] statistics: Statistics<Self>,
        neighbours: HostNeighbours,
        options: LeakyNormOptions,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// See [`cloud_pool`].
    fn fast_cloud_pool(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        #[extension_type] statistics: Statistics<Self>,
        options: LeakyNormOptions,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl PointOps for Flex {
    fn fast_edge_pool(
        ab: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        statistics: Statistics<Self>,
        neighbours: HostNeighbours,
        options: LeakyNormOptions,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let statistics = statistics.into_option();
        let (state, variance) = edge_forward(ab, gamma, beta, statistics, neighbours, options);
        (state.y, state.mean, variance)
    }

    fn fast_cloud_pool(
        x: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        statistics: Statistics<Self>,
        options: LeakyNormOptions,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let (y, state) = cloud_forward(x, gamma, beta, statistics.into_option(), options);
        (y, state.mean, state.variance)
    }
}

impl<C: CheckpointStrategy> PointOps for Autodiff<Flex, C> {
    fn fast_edge_pool(
        ab: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        statistics: Statistics<Self>,
        neighbours: HostNeighbours,
        options: LeakyNormOptions,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let statistics = statistics.into_option();
        let statistics = statistics.map(|(m, v)| (m.into_primitive(), v.into_primitive()));
        let parents = [ab.node(), gamma.node(), beta.node()];
        let (ab, gamma, beta) = (
            ab.into_primitive(),
            gamma.into_primitive(),
            beta.into_primitive(),
        );
        let (state, variance) = edge_forward(ab, gamma, beta, statistics, neighbours, options);
        let (y, mean) = (state.y.clone(), state.mean.clone());
        let y = match Backward::<Flex, 3>::prepare::<C>(EdgeStep, parents)
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(node) => node.finish(state, y),
            OpsKind::UnTracked(node) => node.finish(y),
        };
        // Statistics leave the graph: they are untracked leaves.
        (y, Self::from_inner(mean), Self::from_inner(variance))
    }

    fn fast_cloud_pool(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        statistics: Statistics<Self>,
        options: LeakyNormOptions,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let statistics = statistics.into_option();
        let statistics = statistics.map(|(m, v)| (m.into_primitive(), v.into_primitive()));
        let parents = [x.node(), gamma.node(), beta.node()];
        let (x, gamma, beta) = (
            x.into_primitive(),
            gamma.into_primitive(),
            beta.into_primitive(),
        );
        let (y, state) = cloud_forward(x, gamma, beta, statistics, options);
        let (mean, variance) = (state.mean.clone(), state.variance.clone());
        let y = match Backward::<Flex, 3>::prepare::<C>(CloudStep, parents)
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(node) => node.finish(state, y),
            OpsKind::UnTracked(node) => node.finish(y),
        };
        (y, Self::from_inner(mean), Self::from_inner(variance))
    }
}

/// What the gradients of the second half of an edge convolution need.
#[derive(Clone, Debug)]
struct EdgeState {
    shape: EdgeShape,
    options: LeakyNormOptions,
    neighbours: HostNeighbours,
    ab: FlexTensor,
    y: FlexTensor,
    winners: Arc<Vec<u8>>,
    sums: Option<FlexTensor>,
    mean: FlexTensor,
    variance: FlexTensor,
    gamma: FlexTensor,
    beta: FlexTensor,
}

fn leaky<'a>(
    gamma: &'a FlexTensor,
    beta: &'a FlexTensor,
    options: LeakyNormOptions,
) -> LeakyNorm<'a> {
    LeakyNorm {
        gamma: values(gamma),
        beta: values(beta),
        epsilon: options.epsilon,
        slope: options.slope,
    }
}

/// The state, with the result in it, and the variance once more.
fn edge_forward(
    ab: FlexTensor,
    gamma: FlexTensor,
    beta: FlexTensor,
    statistics: Option<(FlexTensor, FlexTensor)>,
    neighbours: HostNeighbours,
    options: LeakyNormOptions,
) -> (EdgeState, FlexTensor) {
    let (ab, gamma, beta) = (dense(ab), dense(gamma), dense(beta));
    let dims = shape_of(&ab);
    let shape = EdgeShape {
        batch: dims[0],
        points: dims[1],
        k: neighbours.k,
        channels: dims[2] / 2,
    };
    let statistics = statistics.map(|(mean, variance)| (dense(mean), dense(variance)));
    let given = statistics
        .as_ref()
        .map(|(mean, variance)| (values(mean), values(variance)));
    let norm = leaky(&gamma, &beta, options);
    let pooled = edge_pool(values(&ab), &neighbours.indices, shape, given, norm);
    let out = [shape.batch, shape.points, shape.channels];
    let variance = tensor(pooled.variance, [shape.channels]);
    let state = EdgeState {
        shape,
        options,
        neighbours,
        ab,
        y: tensor(pooled.y, out),
        winners: Arc::new(pooled.winners),
        sums: (!pooled.sums.is_empty()).then(|| tensor(pooled.sums, out)),
        mean: tensor(pooled.mean, [shape.channels]),
        variance: variance.clone(),
        gamma,
        beta,
    };
    (state, variance)
}

/// Parents: the product, scale, shift.
#[derive(Debug)]
struct EdgeStep;

impl Backward<Flex, 3> for EdgeStep {
    type State = EdgeState;

    fn backward(self, ops: Ops<EdgeState, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = dense(grads.consume::<Flex>(&ops.node));
        let state = ops.state;
        let shape = state.shape;
        let saved = EdgeBackward {
            ab: values(&state.ab),
            neighbours: &state.neighbours.indices,
            y: values(&state.y),
            winners: &state.winners,
            sums: state.sums.as_ref().map_or(&[], values),
            mean: values(&state.mean),
            variance: values(&state.variance),
        };
        let norm = leaky(&state.gamma, &state.beta, state.options);
        let found = edge_pool_backward(values(&dy), &saved, shape, norm);
        let [ab, gamma, beta] = ops.parents;
        if let Some(node) = ab {
            let out = [shape.batch, shape.points, 2 * shape.channels];
            grads.register::<Flex>(node.id, tensor(found.ab, out));
        }
        if let Some(node) = gamma {
            grads.register::<Flex>(node.id, tensor(found.gamma, [shape.channels]));
        }
        if let Some(node) = beta {
            grads.register::<Flex>(node.id, tensor(found.beta, [shape.channels]));
        }
    }
}

/// What the gradients of a pooling over clouds need.
#[derive(Clone, Debug)]
struct CloudState {
    options: LeakyNormOptions,
    x: FlexTensor,
    winners: Arc<Vec<u32>>,
    mean: FlexTensor,
    variance: FlexTensor,
    gamma: FlexTensor,
    beta: FlexTensor,
    batch_statistics: bool,
}

fn cloud_forward(
    x: FlexTensor,
    gamma: FlexTensor,
    beta: FlexTensor,
    statistics: Option<(FlexTensor, FlexTensor)>,
    options: LeakyNormOptions,
) -> (FlexTensor, CloudState) {
    let (x, gamma, beta) = (dense(x), dense(gamma), dense(beta));
    let dims = shape_of(&x);
    let (batch, points, channels) = (dims[0], dims[1], dims[2]);
    let batch_statistics = statistics.is_none();
    let (mean, variance) = if let Some((mean, variance)) = statistics {
        (dense(mean), dense(variance))
    } else {
        let (mean, variance) = kernels::batch_statistics(values(&x), channels);
        (tensor(mean, [channels]), tensor(variance, [channels]))
    };
    let norm = leaky(&gamma, &beta, options);
    let pooled = points::cloud_pool(values(&x), points, values(&mean), values(&variance), norm);
    let y = tensor(pooled.y, [batch, 2 * channels]);
    let state = CloudState {
        options,
        x,
        winners: Arc::new(pooled.winners),
        mean,
        variance,
        gamma,
        beta,
        batch_statistics,
    };
    (y, state)
}

/// Parents: input, scale, shift.
#[derive(Debug)]
struct CloudStep;

impl Backward<Flex, 3> for CloudStep {
    type State = CloudState;

    fn backward(self, ops: Ops<CloudState, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = dense(grads.consume::<Flex>(&ops.node));
        let state = ops.state;
        let shape = shape_of(&state.x);
        let (points, channels) = (shape[1], shape[2]);
        let found = cloud_pool_backward(
            values(&dy),
            values(&state.x),
            &state.winners,
            points,
            values(&state.mean),
            values(&state.variance),
            leaky(&state.gamma, &state.beta, state.options),
            state.batch_statistics,
        );
        let [x, gamma, beta] = ops.parents;
        if let Some(node) = x {
            grads.register::<Flex>(node.id, tensor(found.x, shape));
        }
        if let Some(node) = gamma {
            grads.register::<Flex>(node.id, tensor(found.gamma, [channels]));
        }
        if let Some(node) = beta {
            grads.register::<Flex>(node.id, tensor(found.beta, [channels]));
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    const OPTIONS: LeakyNormOptions = LeakyNormOptions {
        epsilon: 1e-5,
        slope: 0.2,
    };

    /// Largest difference over largest magnitude, of single-precision sums of some hundred terms in different orders.
    const TOLERANCE: f32 = 2e-5;

    fn numbers<const D: usize>(seed: u32, shape: [usize; D], device: &Device) -> Tensor<D> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 0.9
        };
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
        Tensor::from_data(TensorData::new(values, shape), device)
    }

    fn close<const D: usize>(what: &str, found: &Tensor<D>, expected: &Tensor<D>) {
        assert_eq!(found.dims(), expected.dims(), "{what}");
        let values = |tensor: &Tensor<D>| tensor.to_data().try_to_vec::<f32>().unwrap();
        let (found, expected) = (values(found), values(expected));
        let largest = expected
            .iter()
            .fold(f32::MIN_POSITIVE, |a, b| a.max(b.abs()));
        let differences = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        let worst = differences.fold(0.0, f32::max);
        assert!(worst <= TOLERANCE * largest, "{what}: {worst} of {largest}");
    }

    /// Result, mean, variance and gradients of input, scale and shift.
    struct Outcome {
        y: Tensor<2>,
        vectors: [Tensor<1>; 4],
        dx: Tensor<3>,
        dw: Option<Tensor<2>>,
    }

    impl Outcome {
        fn compare(&self, what: &str, expected: &Self) {
            close(&format!("{what}: result"), &self.y, &expected.y);
            let names = ["mean", "variance", "scale gradient", "shift gradient"];
            for (name, (found, expected)) in
                names.iter().zip(self.vectors.iter().zip(&expected.vectors))
            {
                close(&format!("{what}: {name}"), found, expected);
            }
            close(&format!("{what}: input gradient"), &self.dx, &expected.dx);
            if let (Some(found), Some(expected)) = (&self.dw, &expected.dw) {
                close(&format!("{what}: weight gradient"), found, expected);
            }
        }
    }

    fn statistics(given: bool, channels: usize, device: &Device) -> Option<(Tensor<1>, Tensor<1>)> {
        given.then(|| {
            let variance = numbers(9, [channels], device).abs() + 0.5;
            (numbers(8, [channels], device), variance)
        })
    }

    fn edges(kernels: bool, given: bool) -> Outcome {
        let device = Device::flex().autodiff();
        // Odd sizes: neither points nor channels fill vectors.
        let (points, inputs, outputs, k) = (37, 5, 39, 7);
        let x = numbers(1, [3, points, inputs], &device).require_grad();
        let weight = numbers(2, [outputs, 2 * inputs], &device).require_grad();
        // Scales of both signs: where it is negative, the largest edge has the smallest product.
        let gamma = numbers(3, [outputs], &device).require_grad();
        let beta = numbers(4, [outputs], &device).require_grad();
        let neighbours = if kernels {
            Neighbours::nearest(&x, k)
        } else {
            Neighbours(Found::Device(composed::nearest(x.clone(), k)))
        };
        let (w, g, b) = (weight.clone(), gamma.clone(), beta.clone());
        let given = statistics(given, outputs, &device);
        let out = edge_conv(x.clone(), w, &neighbours, g, b, given, OPTIONS);
        let loss = (out.y.clone() * numbers(5, [3, points, outputs], &device)).sum();
        let grads = loss.backward();
        Outcome {
            y: out.y.without_autodiff().reshape([3 * points, outputs]),
            vectors: [
                out.mean.without_autodiff(),
                out.variance.without_autodiff(),
                gamma.grad(&grads).unwrap(),
                beta.grad(&grads).unwrap(),
            ],
            dx: x.grad(&grads).unwrap(),
            dw: weight.grad(&grads),
        }
    }

    fn pool(kernels: bool, given: bool) -> Outcome {
        let device = Device::flex().autodiff();
        let (points, channels) = (41, 21);
        let x = numbers(1, [3, points, channels], &device).require_grad();
        let gamma = numbers(3, [channels], &device).require_grad();
        let beta = numbers(4, [channels], &device).require_grad();
        let given = statistics(given, channels, &device);
        let op = if kernels {
            cloud_pool
        } else {
            composed::cloud_pool
        };
        let out = op(x.clone(), gamma.clone(), beta.clone(), given, OPTIONS);
        let loss = (out.y.clone() * numbers(5, [3, 2 * channels], &device)).sum();
        let grads = loss.backward();
        Outcome {
            y: out.y.without_autodiff(),
            vectors: [
                out.mean.without_autodiff(),
                out.variance.without_autodiff(),
                gamma.grad(&grads).unwrap(),
                beta.grad(&grads).unwrap(),
            ],
            dx: x.grad(&grads).unwrap(),
            dw: None,
        }
    }

    #[test]
    fn kernels_equal_the_compositions() {
        for given in [false, true] {
            let what = |op: &str| format!("{op}, statistics given: {given}");
            edges(true, given).compare(&what("edge convolution"), &edges(false, given));
            pool(true, given).compare(&what("pooling"), &pool(false, given));
        }
    }
}
