//! The [`kernels`](crate::kernels) as differentiable ops of Burn's CPU backend, Flex.
//!
//! All contact with Burn's backend interface is in this file, in `tokens::extension` and in `buffer`. An op has three parts:
//! its method in [`FastOps`], which `#[backend_extension]` routes by the tensors it is given; its
//! implementation for [`Flex`], a call of a kernel; and its implementation for `Autodiff<Flex, _>`, which
//! registers a [`Backward`] step. A step saves only what the gradients that are wanted need.

use std::cell::RefCell;
use std::collections::HashSet;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, AutodiffBackend, Backend, ExtensionType, Flex, TensorMetadata, backend_extension,
};
use burn::tensor::Shape;

use crate::buffer::{dense, shape_of, tensor, values, values_mut};
use crate::kernels::group_norm::{
    GroupBackward, GroupParams, GroupShape, Statistics as GroupStatistics,
};
use crate::kernels::{
    self, Algorithm, ConvShape, Direction, Epilogue, Input, NormBackward, NormParams, Normalise,
    PoolShape, SgdConstants,
};
use crate::{BatchNormOptions, ConvOptions, GroupNormOptions, PoolOptions};

/// A tensor that may be absent. (`Option` is not understood as an input by `#[backend_extension]`.)
#[derive(ExtensionType)]
pub enum Optional<B: Backend> {
    /// Nothing.
    None,
    /// A tensor.
    Some(FloatTensor<B>),
}

/// The options of a norm and of the convolution of its result.
#[derive(Clone, Copy, Debug)]
pub struct NormConvOptions {
    /// Of the norm.
    pub norm: BatchNormOptions,
    /// Of the convolution.
    pub conv: ConvOptions,
    /// How the convolution is computed.
    pub algorithm: Algorithm,
}

/// Statistics for batch norm.
#[derive(ExtensionType)]
pub enum Statistics<B: Backend> {
    /// Those of the batch, differentiated through.
    Batch,
    /// A mean and a variance that are constants.
    Fixed(FloatTensor<B>, FloatTensor<B>),
}

impl<B: Backend> Optional<B> {
    pub(crate) fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Self::None => None,
            Self::Some(tensor) => Some(tensor),
        }
    }
}

impl<B: Backend> Statistics<B> {
    pub(crate) fn into_option(self) -> Option<(FloatTensor<B>, FloatTensor<B>)> {
        match self {
            Self::Batch => None,
            Self::Fixed(mean, variance) => Some((mean, variance)),
        }
    }
}

/// The ops, routed at run time. Shapes are those of the functions at the crate's root.
#[backend_extension(Flex, Autodiff)]
pub trait FastOps: Backend {
    /// See [`crate::conv2d`] and [`crate::conv2d_add`].
    fn fast_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] residual: Optional<Self>,
        options: ConvOptions,
        algorithm: Algorithm,
    ) -> FloatTensor<Self>;

    /// See [`crate::batch_norm`]: the result, the mean and the variance; only the first is
    /// differentiable.
    fn fast_batch_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        #[extension_type] residual: Optional<Self>,
        #[extension_type] statistics: Statistics<Self>,
        options: BatchNormOptions,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// See [`crate::norm_conv2d`]: the result, and mean and variance of `x`; only the first is
    /// differentiable.
    fn fast_norm_conv2d(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        #[extension_type] statistics: Statistics<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] residual: Optional<Self>,
        options: NormConvOptions,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// See [`crate::group_norm`].
    fn fast_group_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        options: GroupNormOptions,
    ) -> FloatTensor<Self>;

    /// See [`crate::global_average_pool`].
    fn fast_global_average_pool(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// See [`crate::average_pool`].
    fn fast_average_pool(x: FloatTensor<Self>, options: PoolOptions) -> FloatTensor<Self>;

    /// See [`crate::max_pool`].
    fn fast_max_pool(x: FloatTensor<Self>, options: PoolOptions) -> FloatTensor<Self>;

    /// See [`crate::shortcut_a`].
    fn fast_shortcut_a(
        x: FloatTensor<Self>,
        out_channels: usize,
        stride: usize,
    ) -> FloatTensor<Self>;
}

// ------------------------------------------------------------------------------- forward on Flex

impl FastOps for Flex {
    fn fast_conv2d(
        x: FlexTensor,
        weight: FlexTensor,
        residual: Optional<Self>,
        options: ConvOptions,
        algorithm: Algorithm,
    ) -> FlexTensor {
        let shape = conv_shape(&shape_of(&x), &shape_of(&weight), options);
        let residual = residual.into_option();
        convolve(x, None, weight, &shape, algorithm, None, residual, false)
    }

    fn fast_batch_norm(
        x: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        residual: Optional<Self>,
        statistics: Statistics<Self>,
        options: BatchNormOptions,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let norm = Norm::new(&x, gamma, beta, statistics.into_option(), options);
        let y = norm_forward(x, &norm, residual.into_option());
        (y, norm.mean, norm.variance)
    }

    fn fast_norm_conv2d(
        x: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        statistics: Statistics<Self>,
        weight: FlexTensor,
        residual: Optional<Self>,
        options: NormConvOptions,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let norm = Norm::new(&x, gamma, beta, statistics.into_option(), options.norm);
        let y = norm.convolve(x, weight, residual.into_option(), options);
        (y, norm.mean, norm.variance)
    }

    fn fast_group_norm(
        x: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        options: GroupNormOptions,
    ) -> FlexTensor {
        let (mut x, gamma, beta) = (dense(x), dense(gamma), dense(beta));
        let shape = shape_of(&x);
        let params = group_params(&shape, &gamma, &beta, options);
        if let Some(values) = values_mut(&mut x) {
            kernels::group_norm_forward_in_place(values, &params);
            return x;
        }
        tensor(kernels::group_norm_forward(values(&x), &params).0, shape)
    }

    fn fast_global_average_pool(x: FlexTensor) -> FlexTensor {
        let x = dense(x);
        let [batch, height, width, channels] = dims(&shape_of(&x));
        let y = kernels::global_average_forward(values(&x), batch, height * width, channels);
        tensor(y, [batch, channels])
    }

    fn fast_average_pool(x: FlexTensor, options: PoolOptions) -> FlexTensor {
        let x = dense(x);
        let shape = pool_shape(&shape_of(&x), options);
        tensor(
            kernels::average_pool_forward(values(&x), &shape),
            pooled(&shape),
        )
    }

    fn fast_max_pool(x: FlexTensor, options: PoolOptions) -> FlexTensor {
        max_pool_forward(x, options).0
    }

    fn fast_shortcut_a(x: FlexTensor, out_channels: usize, stride: usize) -> FlexTensor {
        let x = dense(x);
        let [batch, height, width, channels] = dims(&shape_of(&x));
        let y = kernels::shortcut_a_forward(
            values(&x),
            batch,
            height,
            width,
            channels,
            out_channels,
            stride,
        );
        let (height, width) = (height.div_ceil(stride), width.div_ceil(stride));
        tensor(y, [batch, height, width, out_channels])
    }
}

/// `act(conv(x) + bias [+ residual])`, with `x` normalised on the way in if `norm` says how.
#[expect(
    clippy::too_many_arguments,
    reason = "they are those of the ops that share it"
)]
pub(crate) fn convolve(
    x: FlexTensor,
    norm: Option<Normalise>,
    weight: FlexTensor,
    shape: &ConvShape,
    algorithm: Algorithm,
    bias: Option<&[f32]>,
    residual: Option<FlexTensor>,
    relu: bool,
) -> FlexTensor {
    let (x, weight, residual) = (dense(x), dense(weight), residual.map(dense));
    let epilogue = Epilogue {
        bias,
        residual: residual.as_ref().map(values),
        relu,
    };
    let input = Input {
        values: values(&x),
        norm,
    };
    let y = kernels::conv_forward(input, values(&weight), shape, algorithm, &epilogue);
    let out = [
        shape.batch,
        shape.out_height(),
        shape.out_width(),
        shape.out_channels,
    ];
    tensor(y, out)
}

/// A batch norm that knows its statistics.
#[derive(Clone, Debug)]
struct Norm {
    mean: FlexTensor,
    variance: FlexTensor,
    gamma: FlexTensor,
    beta: FlexTensor,
    options: BatchNormOptions,
    /// Whether the statistics are those of its input, and pass gradients on.
    batch_statistics: bool,
}

impl Norm {
    /// Without given statistics, those of `x`.
    fn new(
        x: &FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        statistics: Option<(FlexTensor, FlexTensor)>,
        options: BatchNormOptions,
    ) -> Self {
        let batch_statistics = statistics.is_none();
        let (mean, variance) = statistics.unwrap_or_else(|| {
            let x = dense(x.clone());
            let [_, _, _, channels] = dims(&shape_of(&x));
            let (mean, variance) = kernels::batch_statistics(values(&x), channels);
            (tensor(mean, [channels]), tensor(variance, [channels]))
        });
        Self {
            mean: dense(mean),
            variance: dense(variance),
            gamma: dense(gamma),
            beta: dense(beta),
            options,
            batch_statistics,
        }
    }

    fn params(&self) -> NormParams<'_> {
        NormParams {
            mean: values(&self.mean),
            variance: values(&self.variance),
            gamma: values(&self.gamma),
            beta: values(&self.beta),
            epsilon: self.options.epsilon,
            relu: self.options.relu,
        }
    }

    /// The convolution of the normalised `x`, which is not stored.
    fn convolve(
        &self,
        x: FlexTensor,
        weight: FlexTensor,
        residual: Option<FlexTensor>,
        options: NormConvOptions,
    ) -> FlexTensor {
        let shape = conv_shape(&shape_of(&x), &shape_of(&weight), options.conv);
        let (scale, shift) = self.params().affine();
        let norm = Normalise {
            scale: &scale,
            shift: &shift,
            relu: self.options.relu,
        };
        let algorithm = options.algorithm;
        convolve(
            x,
            Some(norm),
            weight,
            &shape,
            algorithm,
            None,
            residual,
            false,
        )
    }
}

/// `act(norm(x) [+ residual])`.
fn norm_forward(x: FlexTensor, norm: &Norm, residual: Option<FlexTensor>) -> FlexTensor {
    let (mut x, residual) = (dense(x), residual.map(dense));
    let shape = shape_of(&x);
    let params = norm.params();
    let residual = residual.as_ref().map(values);
    // An input that nobody else holds (in inference: a convolution's output) is overwritten.
    let overwritten = match values_mut(&mut x) {
        Some(x) => {
            kernels::norm_forward_in_place(x, residual, &params);
            true
        }
        None => false,
    };
    if overwritten {
        return x;
    }
    tensor(kernels::norm_forward(values(&x), residual, &params), shape)
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
        relu: options.relu,
    }
}

fn max_pool_forward(x: FlexTensor, options: PoolOptions) -> (FlexTensor, Vec<u32>) {
    let x = dense(x);
    let shape = pool_shape(&shape_of(&x), options);
    let (y, winners) = kernels::max_pool_forward(values(&x), &shape);
    (tensor(y, pooled(&shape)), winners)
}

/// See [`crate::sgd_step`]. Buffers that nobody else holds are overwritten.
pub(crate) fn sgd_step(
    parameter: FlexTensor,
    gradient: FlexTensor,
    velocity: Option<FlexTensor>,
    constants: SgdConstants,
) -> (FlexTensor, Option<FlexTensor>) {
    let (mut parameter, mut gradient) = (dense(parameter), dense(gradient));
    let mut velocity = velocity.map(dense);
    let place = parameter.storage_mut::<f32>();
    if let Some(velocity) = &mut velocity {
        let direction = Direction::Velocity(values(&gradient), velocity.storage_mut::<f32>());
        kernels::sgd_step(place, direction, constants);
    } else if constants.momentum > 0. {
        let direction = Direction::First(gradient.storage_mut::<f32>());
        kernels::sgd_step(place, direction, constants);
        velocity = Some(gradient);
    } else {
        kernels::sgd_step(place, Direction::Gradient(values(&gradient)), constants);
    }
    (parameter, velocity)
}

pub(crate) fn conv_shape(x: &Shape, weight: &Shape, options: ConvOptions) -> ConvShape {
    let [batch, height, width, in_channels] = dims(x);
    let [out_channels, _, kernel, _] = dims(weight);
    ConvShape {
        batch,
        height,
        width,
        in_channels,
        out_channels,
        kernel,
        stride: options.stride,
        padding: options.padding,
    }
}

fn pool_shape(x: &Shape, options: PoolOptions) -> PoolShape {
    let [batch, height, width, channels] = dims(x);
    PoolShape {
        batch,
        height,
        width,
        channels,
        kernel: options.kernel,
        stride: options.stride,
        padding: options.padding,
    }
}

fn pooled(shape: &PoolShape) -> [usize; 4] {
    let (height, width) = (shape.out_height(), shape.out_width());
    [shape.batch, height, width, shape.channels]
}

fn dims(shape: &Shape) -> [usize; 4] {
    std::array::from_fn(|axis| shape[axis])
}

// ------------------------------------------------------------------------------------- autodiff

/// One op of the graph: the forward pass runs in either case, its state is saved only if tracked.
macro_rules! record {
    ($step:expr, $parents:expr, $forward:expr, $state:expr) => {
        match Backward::<Flex, _>::prepare::<C>($step, $parents)
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(node) => {
                let state = $state;
                node.finish(state, $forward)
            }
            OpsKind::UnTracked(node) => node.finish($forward),
        }
    };
}

impl<C: CheckpointStrategy> FastOps for Autodiff<Flex, C> {
    fn fast_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        residual: Optional<Self>,
        options: ConvOptions,
        algorithm: Algorithm,
    ) -> FloatTensor<Self> {
        let state = |x: &FloatTensor<Self>, weight: &FloatTensor<Self>| ConvState {
            shape: conv_shape(&x.shape(), &weight.shape(), options),
            algorithm,
            x: weight.is_tracked().then(|| x.primitive().clone()),
            weight: x.is_tracked().then(|| weight.primitive().clone()),
        };
        let nodes = [x.node(), weight.node()];
        // The number of parents is part of the type, hence the two arms below.
        match residual {
            Optional::None => record!(
                ConvStep,
                nodes,
                Flex::fast_conv2d(
                    x.into_primitive(),
                    weight.into_primitive(),
                    Optional::None,
                    options,
                    algorithm
                ),
                state(&x, &weight)
            ),
            Optional::Some(residual) => {
                let [first, second] = nodes;
                record!(
                    ConvStep,
                    [first, second, residual.node()],
                    Flex::fast_conv2d(
                        x.into_primitive(),
                        weight.into_primitive(),
                        Optional::Some(residual.into_primitive()),
                        options,
                        algorithm
                    ),
                    state(&x, &weight)
                )
            }
        }
    }

    fn fast_batch_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        residual: Optional<Self>,
        statistics: Statistics<Self>,
        options: BatchNormOptions,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let parents = [x.node(), gamma.node(), beta.node()];
        let residual = residual.into_option();
        let fourth = residual.as_ref().map(FloatTensor::<Self>::node);
        let residual = residual.map(FloatTensor::<Self>::into_primitive);
        let added = residual.is_some();
        let x = x.into_primitive();
        let norm = inner_norm(&x, gamma, beta, statistics, options);
        let (mean, variance) = (norm.mean.clone(), norm.variance.clone());

        // The number of parents is part of the type, hence the two arms below.
        macro_rules! record_norm {
            ($parents:expr) => {
                match Backward::<Flex, _>::prepare::<C>(NormStep, $parents)
                    .compute_bound()
                    .stateful()
                {
                    OpsKind::Tracked(node) => {
                        let y = norm_forward(x.clone(), &norm, residual);
                        let state = NormState {
                            x,
                            y: (options.relu && added).then(|| y.clone()),
                            norm,
                        };
                        node.finish(state, y)
                    }
                    OpsKind::UnTracked(node) => node.finish(norm_forward(x, &norm, residual)),
                }
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

    fn fast_norm_conv2d(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        statistics: Statistics<Self>,
        weight: FloatTensor<Self>,
        residual: Optional<Self>,
        options: NormConvOptions,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let residual = residual.into_option();
        let parents = [x.node(), gamma.node(), beta.node(), weight.node()];
        let fifth = residual.as_ref().map(FloatTensor::<Self>::node);
        let residual = residual.map(FloatTensor::<Self>::into_primitive);
        let norm_wanted = x.is_tracked() || gamma.is_tracked() || beta.is_tracked();
        let weight_wanted = weight.is_tracked();
        let (x, weight) = (x.into_primitive(), weight.into_primitive());
        let norm = inner_norm(&x, gamma, beta, statistics, options.norm);
        let (mean, variance) = (norm.mean.clone(), norm.variance.clone());

        // The number of parents is part of the type, hence the two arms below.
        macro_rules! record_norm_conv {
            ($parents:expr) => {
                record!(
                    NormConvStep,
                    $parents,
                    norm.convolve(x, weight, residual, options),
                    NormConvState {
                        shape: conv_shape(&shape_of(&x), &shape_of(&weight), options.conv),
                        algorithm: options.algorithm,
                        x: (norm_wanted || weight_wanted).then(|| x.clone()),
                        weight: norm_wanted.then(|| weight.clone()),
                        norm: norm.clone(),
                    }
                )
            };
        }
        let y = match fifth {
            None => record_norm_conv!(parents),
            Some(fifth) => {
                let [first, second, third, fourth] = parents;
                record_norm_conv!([first, second, third, fourth, fifth])
            }
        };
        (y, Self::from_inner(mean), Self::from_inner(variance))
    }

    fn fast_group_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        options: GroupNormOptions,
    ) -> FloatTensor<Self> {
        let parents = [x.node(), gamma.node(), beta.node()];
        let x = x.into_primitive();
        let (gamma, beta) = (gamma.into_primitive(), beta.into_primitive());
        match Backward::<Flex, _>::prepare::<C>(GroupNormStep, parents)
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(node) => {
                let (x, gamma, beta) = (dense(x), dense(gamma), dense(beta));
                let shape = shape_of(&x);
                let params = group_params(&shape, &gamma, &beta, options);
                let (y, statistics) = kernels::group_norm_forward(values(&x), &params);
                let state = GroupNormState {
                    x,
                    statistics,
                    gamma,
                    beta,
                    options,
                };
                node.finish(state, tensor(y, shape))
            }
            OpsKind::UnTracked(node) => node.finish(Flex::fast_group_norm(x, gamma, beta, options)),
        }
    }

    fn fast_global_average_pool(x: FloatTensor<Self>) -> FloatTensor<Self> {
        record!(
            GlobalAverageStep,
            [x.node()],
            Flex::fast_global_average_pool(x.into_primitive()),
            x.shape()
        )
    }

    fn fast_average_pool(x: FloatTensor<Self>, options: PoolOptions) -> FloatTensor<Self> {
        record!(
            AverageStep,
            [x.node()],
            Flex::fast_average_pool(x.into_primitive(), options),
            pool_shape(&x.shape(), options)
        )
    }

    fn fast_max_pool(x: FloatTensor<Self>, options: PoolOptions) -> FloatTensor<Self> {
        match Backward::<Flex, 1>::prepare::<C>(MaxStep, [x.node()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(node) => {
                let shape = pool_shape(&x.shape(), options);
                let (y, winners) = max_pool_forward(x.into_primitive(), options);
                node.finish((shape, winners), y)
            }
            OpsKind::UnTracked(node) => {
                node.finish(Flex::fast_max_pool(x.into_primitive(), options))
            }
        }
    }

    fn fast_shortcut_a(
        x: FloatTensor<Self>,
        out_channels: usize,
        stride: usize,
    ) -> FloatTensor<Self> {
        record!(
            ShortcutStep,
            [x.node()],
            Flex::fast_shortcut_a(x.into_primitive(), out_channels, stride),
            (x.shape(), out_channels, stride)
        )
    }
}

/// A norm inside the graph.
fn inner_norm<C: CheckpointStrategy>(
    x: &FlexTensor,
    gamma: FloatTensor<Autodiff<Flex, C>>,
    beta: FloatTensor<Autodiff<Flex, C>>,
    statistics: Statistics<Autodiff<Flex, C>>,
    options: BatchNormOptions,
) -> Norm {
    let statistics = statistics.into_option();
    let statistics =
        statistics.map(|(mean, variance)| (mean.into_primitive(), variance.into_primitive()));
    Norm::new(
        x,
        gamma.into_primitive(),
        beta.into_primitive(),
        statistics,
        options,
    )
}

thread_local! {
    /// Nodes that have a gradient by one of our steps. A node is here at most until its own step has run, and its number is never given to
    /// another, so an entry that stays (the step was not ours) is never asked for again.
    static HAVE_GRADIENT: RefCell<HashSet<u64>> = RefCell::default();
}

/// More entries than a pass over any network has.
const MOST_ENTRIES: usize = 1 << 16;

/// The gradient of a step's result.
fn own_gradient<S, const N: usize>(grads: &mut Gradients, ops: &Ops<S, N>) -> FlexTensor {
    HAVE_GRADIENT.with_borrow_mut(|known| known.remove(&ops.node.id.value));
    dense(grads.consume::<Flex>(&ops.node))
}

/// Takes away the gradient that a parent already has, from a step of ours that ran before: who computes the next one adds it on the
/// way. (Burn would add the two afterwards, on one thread.)
fn other_gradient<S, const N: usize>(
    grads: &mut Gradients,
    ops: &Ops<S, N>,
    parent: usize,
) -> Option<FlexTensor> {
    let node = ops.parents[parent].as_ref()?;
    // A leaf's gradient cannot be taken away. The step's own result is no leaf.
    let taken = node.requirement == ops.node.requirement
        && HAVE_GRADIENT.with_borrow_mut(|known| known.remove(&node.id.value));
    taken.then(|| dense(grads.consume::<Flex>(node)))
}

fn register(grads: &mut Gradients, node: NodeId, gradient: FlexTensor) {
    HAVE_GRADIENT.with_borrow_mut(|known| {
        if known.len() >= MOST_ENTRIES {
            known.clear(); // what is forgotten, Burn adds
        }
        known.insert(node.value);
    });
    grads.register::<Flex>(node, gradient);
}

/// What the gradients of a convolution need: the input for that of the weights, and the other way
/// round. What is not wanted is not kept.
#[derive(Clone, Debug)]
struct ConvState {
    shape: ConvShape,
    algorithm: Algorithm,
    x: Option<FlexTensor>,
    weight: Option<FlexTensor>,
}

/// Parents: input, weights and, if there are three, the residual.
#[derive(Debug)]
struct ConvStep;

impl<const N: usize> Backward<Flex, N> for ConvStep {
    type State = ConvState;

    fn backward(self, ops: Ops<ConvState, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = own_gradient(grads, &ops);
        let other = other_gradient(grads, &ops, 0);
        let state = ops.state;
        let shape = &state.shape;
        let mut parents = ops.parents.into_iter();
        let mut parent = || parents.next().flatten();
        let (x_node, weight_node, residual_node) = (parent(), parent(), parent());
        if let (Some(node), Some(x)) = (weight_node, state.x) {
            let gradient = weight_gradient(x, None, &dy, shape, state.algorithm);
            register(grads, node.id, gradient);
        }
        if let (Some(node), Some(weight)) = (x_node, state.weight) {
            let other = other.as_ref();
            let gradient = input_gradient(&dy, weight, shape, state.algorithm, other);
            register(grads, node.id, gradient);
        }
        if let Some(node) = residual_node {
            register(grads, node.id, dy);
        }
    }
}

fn weight_gradient(
    x: FlexTensor,
    norm: Option<Normalise>,
    dy: &FlexTensor,
    shape: &ConvShape,
    algorithm: Algorithm,
) -> FlexTensor {
    let x = dense(x);
    let input = Input {
        values: values(&x),
        norm,
    };
    let gradient = kernels::conv_weight_gradient(input, values(dy), shape, algorithm);
    let (o, i, k) = (shape.out_channels, shape.in_channels, shape.kernel);
    tensor(gradient, [o, i, k, k])
}

fn input_gradient(
    dy: &FlexTensor,
    weight: FlexTensor,
    shape: &ConvShape,
    algorithm: Algorithm,
    other: Option<&FlexTensor>,
) -> FlexTensor {
    let weight = dense(weight);
    let other = other.map(values);
    let gradient =
        kernels::conv_input_gradient(values(dy), values(&weight), shape, algorithm, other);
    let input = [shape.batch, shape.height, shape.width, shape.in_channels];
    tensor(gradient, input)
}

#[derive(Clone, Debug)]
struct NormState {
    x: FlexTensor,
    /// For the mask of the ReLU, where a residual was added; else the input gives it.
    y: Option<FlexTensor>,
    norm: Norm,
}

/// The nodes of a norm's input, scale, shift and residual, as far as they want gradients.
type NormNodes = [Option<NodeId>; 4];

/// From the gradient of a norm's result to those of its parents.
fn norm_backward(
    mut dy: FlexTensor,
    state: NormState,
    other: Option<&FlexTensor>,
    nodes: NormNodes,
    grads: &mut Gradients,
) {
    let [x_node, gamma_node, beta_node, residual_node] = nodes;
    let x = dense(state.x);
    let y = state.y.map(dense);
    let saved = NormBackward {
        x: values(&x),
        y: y.as_ref().map(values),
        params: state.norm.params(),
        batch_statistics: state.norm.batch_statistics,
        want_dx: x_node.is_some(),
        other: other.map(values),
        want_residual: residual_node.is_some(),
    };
    let (channels, shape) = (shape_of(&state.norm.gamma), shape_of(&x));
    // The gradient is ours alone as a rule, and is overwritten; if not, this makes a copy.
    let found = kernels::norm_backward(dy.storage_mut::<f32>(), &saved);
    if let Some(node) = gamma_node {
        register(grads, node, tensor(found.gamma, channels.clone()));
    }
    if let Some(node) = beta_node {
        register(grads, node, tensor(found.beta, channels));
    }
    if let (Some(node), Some(gradient)) = (residual_node, found.residual) {
        register(grads, node, tensor(gradient, shape));
    }
    if let Some(node) = x_node {
        register(grads, node, dy);
    }
}

/// Parents: input, scale, shift and, if there are four, the residual.
#[derive(Debug)]
struct NormStep;

impl<const N: usize> Backward<Flex, N> for NormStep {
    type State = NormState;

    fn backward(self, ops: Ops<NormState, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = own_gradient(grads, &ops);
        let other = other_gradient(grads, &ops, 0);
        let mut parents = ops.parents.into_iter();
        let nodes = std::array::from_fn(|_| parents.next().flatten().map(|node| node.id));
        norm_backward(dy, ops.state, other.as_ref(), nodes, grads);
    }
}

/// What the gradients of a convolution of a norm need. What is not wanted is not kept; the norm's result never is.
#[derive(Clone, Debug)]
struct NormConvState {
    shape: ConvShape,
    algorithm: Algorithm,
    x: Option<FlexTensor>,
    weight: Option<FlexTensor>,
    norm: Norm,
}

/// Parents: the norm's input, scale and shift, the weights and, if there are five, the residual.
#[derive(Debug)]
struct NormConvStep;

impl<const N: usize> Backward<Flex, N> for NormConvStep {
    type State = NormConvState;

    fn backward(self, ops: Ops<NormConvState, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = own_gradient(grads, &ops);
        let other = other_gradient(grads, &ops, 0);
        let NormConvState {
            shape,
            algorithm,
            x,
            weight,
            norm,
        } = ops.state;
        let mut parents = ops.parents.into_iter();
        let mut parent = || parents.next().flatten().map(|node| node.id);
        let norm_nodes = [parent(), parent(), parent(), None];
        let (weight_node, residual_node) = (parent(), parent());
        if let (Some(node), Some(x)) = (weight_node, &x) {
            let (scale, shift) = norm.params().affine();
            let normalise = Normalise {
                scale: &scale,
                shift: &shift,
                relu: norm.options.relu,
            };
            let gradient = weight_gradient(x.clone(), Some(normalise), &dy, &shape, algorithm);
            register(grads, node, gradient);
        }
        if let (Some(x), Some(weight)) = (x, weight) {
            let dx = input_gradient(&dy, weight, &shape, algorithm, None);
            let state = NormState { x, y: None, norm };
            norm_backward(dx, state, other.as_ref(), norm_nodes, grads);
        }
        if let Some(node) = residual_node {
            register(grads, node, dy);
        }
    }
}

#[derive(Clone, Debug)]
struct GroupNormState {
    x: FlexTensor,
    statistics: Vec<GroupStatistics>,
    gamma: FlexTensor,
    beta: FlexTensor,
    options: GroupNormOptions,
}

#[derive(Debug)]
struct GroupNormStep;

impl Backward<Flex, 3> for GroupNormStep {
    type State = GroupNormState;

    fn backward(self, ops: Ops<GroupNormState, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let mut dy = own_gradient(grads, &ops);
        let other = other_gradient(grads, &ops, 0);
        let state = ops.state;
        let [x_node, gamma_node, beta_node] = ops.parents;
        let saved = GroupBackward {
            x: values(&state.x),
            statistics: &state.statistics,
            params: group_params(
                &shape_of(&state.x),
                &state.gamma,
                &state.beta,
                state.options,
            ),
            want_dx: x_node.is_some(),
            other: other.as_ref().map(values),
        };
        let (gamma, beta) = kernels::group_norm_backward(dy.storage_mut::<f32>(), &saved);
        let channels = shape_of(&state.gamma);
        if let Some(node) = gamma_node {
            register(grads, node.id, tensor(gamma, channels.clone()));
        }
        if let Some(node) = beta_node {
            register(grads, node.id, tensor(beta, channels));
        }
        if let Some(node) = x_node {
            register(grads, node.id, dy);
        }
    }
}

/// A step with one parent: `gradient(dy, state)`.
macro_rules! single_parent {
    ($name:ident, $state:ty, $gradient:expr) => {
        #[derive(Debug)]
        struct $name;

        impl Backward<Flex, 1> for $name {
            type State = $state;

            fn backward(self, ops: Ops<$state, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
                let dy = own_gradient(grads, &ops);
                let other = other_gradient(grads, &ops, 0);
                if let [Some(node)] = ops.parents {
                    let gradient: fn(&[f32], $state) -> FlexTensor = $gradient;
                    let mut dx = gradient(values(&dy), ops.state);
                    if let Some(other) = other {
                        kernels::add_in_place(dx.storage_mut::<f32>(), values(&other));
                    }
                    register(grads, node.id, dx);
                }
            }
        }
    };
}

single_parent!(GlobalAverageStep, Shape, |dy, shape| {
    let [batch, height, width, channels] = dims(&shape);
    let dx = kernels::global_average_backward(dy, batch, height * width, channels);
    tensor(dx, shape)
});

single_parent!(AverageStep, PoolShape, |dy, shape| {
    let input = [shape.batch, shape.height, shape.width, shape.channels];
    tensor(kernels::average_pool_backward(dy, &shape), input)
});

single_parent!(MaxStep, (PoolShape, Vec<u32>), |dy, (shape, winners)| {
    let input = [shape.batch, shape.height, shape.width, shape.channels];
    tensor(kernels::max_pool_backward(dy, &winners, &shape), input)
});

single_parent!(ShortcutStep, (Shape, usize, usize), |dy,
                                                     (
    shape,
    out_channels,
    stride,
)| {
    let [batch, height, width, channels] = dims(&shape);
    let dx = kernels::shortcut_a_backward(dy, batch, height, width, channels, out_channels, stride);
    tensor(dx, shape)
});
