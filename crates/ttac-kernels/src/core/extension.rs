//! Types of arguments and helpers for the ops of Burn's CPU backend, Flex.
//!
//! All contact with Burn's backend interface is here, in the files named `burn.rs`, and in `buffer` and `autodiff_sums`. An op has three parts:
//! its method in a trait, which `#[backend_extension]` routes by the tensors it is given; its
//! implementation for [`Flex`], a call of a kernel; and its implementation for `Autodiff<Flex, _>`, which
//! registers a `Backward` step. A step saves the context of its forward pass and what the gradients that are wanted need.

use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, Dispatch, DispatchDevice, ExtensionType, Flex,
    autodiff::checkpoint::strategy::CheckpointStrategy,
};
use burn::tensor::{Shape, Tensor};

use crate::{Context, Implementation};

/// A tensor that may be absent. (`Option` is not understood as an input by `#[backend_extension]`.)
#[derive(ExtensionType)]
pub enum Optional<B: Backend> {
    /// There is no tensor.
    None,
    /// There is this tensor.
    Some(FloatTensor<B>),
}

/// Where the mean and the variance of a norm come from.
#[derive(ExtensionType)]
pub enum StatisticsSource<B: Backend> {
    /// They are those of the batch, and are differentiated through.
    Batch,
    /// They are given, and are constants.
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

impl Optional<Dispatch> {
    pub(crate) fn new<const D: usize>(tensor: Option<Tensor<D>>) -> Self {
        tensor.map_or(Self::None, |tensor| Self::Some(tensor.into_dispatch()))
    }
}

impl<B: Backend> StatisticsSource<B> {
    pub(crate) fn into_option(self) -> Option<(FloatTensor<B>, FloatTensor<B>)> {
        match self {
            Self::Batch => None,
            Self::Fixed(mean, variance) => Some((mean, variance)),
        }
    }
}

impl StatisticsSource<Dispatch> {
    pub(crate) fn new(statistics: Option<(Tensor<1>, Tensor<1>)>) -> Self {
        statistics.map_or(Self::Batch, |(mean, variance)| {
            Self::Fixed(mean.into_dispatch(), variance.into_dispatch())
        })
    }
}

impl<C: CheckpointStrategy> StatisticsSource<Autodiff<Flex, C>> {
    /// The statistics outside the graph; no gradients pass through given ones.
    pub(crate) fn into_primitives(self) -> Option<(FlexTensor, FlexTensor)> {
        let statistics = self.into_option();
        statistics.map(|(mean, variance)| (mean.into_primitive(), variance.into_primitive()))
    }
}

/// Returns the current context if our kernels are to compute with this tensor.
pub(crate) fn kernels_for<const D: usize>(x: &Tensor<D>) -> Option<Context> {
    let device = x.device().without_autodiff();
    let on_cpu = matches!(device.as_dispatch(), DispatchDevice::Flex(_));
    let context = Context::current();
    let chosen = matches!(context.implementation(), Implementation::Kernels(_));
    (on_cpu && chosen).then_some(context)
}

/// Returns the tensor of Burn's CPU backend.
///
/// # Panics
/// If it is on another device or in an autodiff graph; [`kernels_for`] tells the first.
pub(crate) fn flex<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    let primitive = tensor.try_into_primitive::<Flex>();
    primitive.expect("the tensor is on the CPU and outside the graph")
}

/// The sizes of a tensor that has `D` axes.
pub(crate) fn dims<const D: usize>(shape: &Shape) -> [usize; D] {
    std::array::from_fn(|axis| shape[axis])
}

/// Records one op in the graph: the forward pass runs in either case, its state (a [`Step`](super::autodiff_sums::Step)) is saved only if the op is tracked.
macro_rules! record {
    ($parents:expr, { tracked => $tracked:expr, untracked => $untracked:expr }) => {{
        use burn::backend::autodiff::ops::{Backward, OpsKind};
        let step = crate::core::autodiff_sums::Recorded::new();
        match Backward::<Flex, _>::prepare::<C>(step, $parents)
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(node) => {
                let (state, result) = $tracked;
                node.finish(state, result)
            }
            OpsKind::UnTracked(node) => node.finish($untracked),
        }
    }};
    ($parents:expr, $forward:expr, $state:expr) => {
        record!($parents, {
            tracked => ($state, $forward),
            untracked => $forward
        })
    };
}
pub(crate) use record;
