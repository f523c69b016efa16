//! Convolution as a differentiable op of Burn's CPU backend.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, Flex, TensorMetadata, backend_extension};
use burn::tensor::Shape;

use super::kernel::{
    ConvShape, Epilogue, Input, conv_forward, conv_input_gradient, conv_weight_gradient,
};
use super::ops::ConvOptions;
use crate::Context;
use crate::activation::kernel::Activation;
use crate::core::autodiff_sums::{Parents, Step};
use crate::core::buffer::{dense, shape_of, tensor, values};
use crate::core::extension::{Optional, StatisticsSource, dims, record};
use crate::norm::burn::{Norm, NormState};
use crate::norm::kernel::Normalise;
use crate::norm::ops::BatchNormOptions;
use crate::tokens::kernel::column_sums;

/// The options of a norm and of the convolution of its result.
#[derive(Clone, Debug)]
pub struct NormConvOptions {
    /// The settings of the norm.
    pub norm: BatchNormOptions,
    /// The settings of the convolution.
    pub conv: ConvOptions,
    /// The context of both.
    pub context: Context,
}

/// The ops, routed at run time. Shapes are those of the functions at the crate's root.
#[backend_extension(Flex, Autodiff)]
pub trait ConvOps: Backend {
    /// See [`crate::conv2d`] and [`crate::conv2d_add`].
    fn fast_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Optional<Self>,
        #[extension_type] residual: Optional<Self>,
        options: ConvOptions,
        context: Context,
    ) -> FloatTensor<Self>;

    /// See [`crate::norm_conv2d`]: the result, and mean and variance of `x`; only the first is
    /// differentiable.
    fn fast_norm_conv2d(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        #[extension_type] statistics: StatisticsSource<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] residual: Optional<Self>,
        options: NormConvOptions,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl ConvOps for Flex {
    fn fast_conv2d(
        x: FlexTensor,
        weight: FlexTensor,
        bias: Optional<Self>,
        residual: Optional<Self>,
        options: ConvOptions,
        context: Context,
    ) -> FlexTensor {
        let shape = conv_shape(&shape_of(&x), &shape_of(&weight), options);
        let bias = bias.into_option().map(dense);
        let call = Call {
            bias: bias.as_ref().map(values),
            ..Call::new(shape, &context)
        };
        call.forward(x, weight, residual.into_option())
    }

    fn fast_norm_conv2d(
        x: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        statistics: StatisticsSource<Self>,
        weight: FlexTensor,
        residual: Optional<Self>,
        options: NormConvOptions,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let statistics = statistics.into_option();
        let norm = Norm::new(&x, gamma, beta, statistics, options.norm, options.context);
        let y = norm_convolve(&norm, x, weight, residual.into_option(), options.conv);
        (y, norm.mean, norm.variance)
    }
}

/// A convolution that knows its sizes and what is done before and after it.
pub(crate) struct Call<'a> {
    pub(crate) shape: ConvShape,
    /// The norm that is applied to the input on the way in.
    pub(crate) norm: Option<Normalise<'a>>,
    /// One value for each output channel, added to the result.
    pub(crate) bias: Option<&'a [f32]>,
    /// What is applied to the result.
    pub(crate) activation: Activation,
    pub(crate) context: &'a Context,
}

impl<'a> Call<'a> {
    /// A convolution with nothing before and after it.
    fn new(shape: ConvShape, context: &'a Context) -> Self {
        Self {
            shape,
            norm: None,
            bias: None,
            activation: Activation::None,
            context,
        }
    }

    /// Computes `act(conv(norm(x)) + bias [+ residual])`.
    pub(crate) fn forward(
        &self,
        x: FlexTensor,
        weight: FlexTensor,
        residual: Option<FlexTensor>,
    ) -> FlexTensor {
        let (x, weight, residual) = (dense(x), dense(weight), residual.map(dense));
        let epilogue = Epilogue {
            bias: self.bias,
            residual: residual.as_ref().map(values),
            activation: self.activation,
        };
        let (shape, context) = (&self.shape, self.context);
        let (algorithm, input) = (context.algorithm(), self.input(&x));
        let y = conv_forward(context, input, values(&weight), shape, algorithm, &epilogue);
        let (height, width) = (shape.out_height(), shape.out_width());
        tensor(context, y, [shape.batch, height, width, shape.out_channels])
    }

    fn input<'b>(&self, x: &'b FlexTensor) -> Input<'b>
    where
        'a: 'b,
    {
        Input {
            values: values(x),
            norm: self.norm,
        }
    }

    /// The gradient of the weights.
    fn weight_gradient(&self, x: FlexTensor, dy: &FlexTensor) -> FlexTensor {
        let x = dense(x);
        let (shape, context) = (&self.shape, self.context);
        let (algorithm, input) = (context.algorithm(), self.input(&x));
        let gradient = conv_weight_gradient(context, input, values(dy), shape, algorithm);
        tensor(context, gradient, shape.weight_shape())
    }

    /// The gradient of the (normalised) input, plus `other`.
    fn input_gradient(
        &self,
        dy: &FlexTensor,
        weight: FlexTensor,
        other: Option<&FlexTensor>,
    ) -> FlexTensor {
        let weight = dense(weight);
        let (shape, context) = (&self.shape, self.context);
        let (algorithm, other) = (context.algorithm(), other.map(values));
        let (dy, weight) = (values(dy), values(&weight));
        let gradient = conv_input_gradient(context, dy, weight, shape, algorithm, other);
        let input = [shape.batch, shape.height, shape.width, shape.in_channels];
        tensor(context, gradient, input)
    }
}

/// The convolution of the normalised `x`, which is not stored.
fn norm_convolve(
    norm: &Norm,
    x: FlexTensor,
    weight: FlexTensor,
    residual: Option<FlexTensor>,
    options: ConvOptions,
) -> FlexTensor {
    let params = norm.params();
    let (scale, shift) = params.affine();
    let call = Call {
        norm: Some(params.normalise(&scale, &shift)),
        ..Call::new(
            conv_shape(&shape_of(&x), &shape_of(&weight), options),
            &norm.context,
        )
    };
    call.forward(x, weight, residual)
}

/// The sizes of a convolution of tensors.
pub(crate) fn conv_shape(x: &Shape, weight: &Shape, options: ConvOptions) -> ConvShape {
    let [out_channels, _, height, width] = dims(weight);
    ConvShape {
        groups: options.groups,
        ..ConvShape::new(dims(x), out_channels, options.window([height, width]))
    }
}

// ------------------------------------------------------------------------------------- autodiff

impl<C: CheckpointStrategy> ConvOps for Autodiff<Flex, C> {
    fn fast_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Optional<Self>,
        residual: Optional<Self>,
        options: ConvOptions,
        context: Context,
    ) -> FloatTensor<Self> {
        let shape = conv_shape(&x.shape(), &weight.shape(), options);
        let (first, second) = (x.node(), weight.node());
        let (bias, residual) = (bias.into_option(), residual.into_option());
        let more = [&bias, &residual].map(|part| part.as_ref().map(FloatTensor::<Self>::node));
        let bias = bias.map(|bias| dense(bias.into_primitive()));
        let residual = residual.map(FloatTensor::<Self>::into_primitive);
        let (want_x, want_weight) = (x.is_tracked(), weight.is_tracked());
        let (x, weight) = (x.into_primitive(), weight.into_primitive());
        let call = Call {
            bias: bias.as_ref().map(values),
            ..Call::new(shape, &context)
        };
        // The number of parents is part of the type, hence the arms below.
        macro_rules! record_conv {
            ($parents:expr) => {
                record!(
                    $parents,
                    call.forward(x, weight, residual),
                    ConvState {
                        shape,
                        x: want_weight.then(|| x.clone()),
                        weight: want_x.then(|| weight.clone()),
                        has_bias: bias.is_some(),
                        context: context.clone(),
                    }
                )
            };
        }
        match more {
            [None, None] => record_conv!([first, second]),
            [Some(third), None] | [None, Some(third)] => record_conv!([first, second, third]),
            [Some(third), Some(fourth)] => record_conv!([first, second, third, fourth]),
        }
    }

    fn fast_norm_conv2d(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        statistics: StatisticsSource<Self>,
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
        let (gamma, beta) = (gamma.into_primitive(), beta.into_primitive());
        let statistics = statistics.into_primitives();
        let norm = Norm::new(&x, gamma, beta, statistics, options.norm, options.context);
        let (mean, variance) = (norm.mean.clone(), norm.variance.clone());

        // The number of parents is part of the type, hence the two arms below.
        macro_rules! record_norm_conv {
            ($parents:expr) => {
                record!(
                    $parents,
                    norm_convolve(&norm, x, weight, residual, options.conv),
                    NormConvState {
                        shape: conv_shape(&shape_of(&x), &shape_of(&weight), options.conv),
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
}

/// What the gradients of a convolution need: the input for that of the weights, and the other way
/// round. What is not wanted is not kept.
#[derive(Clone, Debug)]
struct ConvState {
    shape: ConvShape,
    x: Option<FlexTensor>,
    weight: Option<FlexTensor>,
    /// Whether the third parent is the bias.
    has_bias: bool,
    context: Context,
}

/// Parents: input, weights, then the bias and the residual, each if there is one.
impl Step for ConvState {
    fn context(&self) -> &Context {
        &self.context
    }

    fn backward(self, dy: FlexTensor, mut parents: Parents<'_>) {
        let call = Call::new(self.shape, &self.context);
        if let Some(x) = self.x {
            parents.give(1, call.weight_gradient(x, &dy));
        }
        if let Some(weight) = self.weight {
            let gradient = call.input_gradient(&dy, weight, parents.other.as_ref());
            parents.give(0, gradient);
        }
        if self.has_bias && parents.wants(2) {
            let channels = self.shape.out_channels;
            let sums = column_sums(&self.context, values(&dy), channels);
            parents.give(2, tensor(&self.context, sums, [channels]));
        }
        parents.give(if self.has_bias { 3 } else { 2 }, dy);
    }
}

/// What the gradients of a convolution of a norm need. What is not wanted is not kept; the norm's result never is.
#[derive(Clone, Debug)]
struct NormConvState {
    shape: ConvShape,
    x: Option<FlexTensor>,
    weight: Option<FlexTensor>,
    norm: Norm,
}

/// Parents: the norm's input, scale and shift, the weights and, if there are five, the residual.
impl Step for NormConvState {
    fn context(&self) -> &Context {
        &self.norm.context
    }

    fn backward(self, dy: FlexTensor, mut parents: Parents<'_>) {
        let Self {
            shape,
            x,
            weight,
            norm,
        } = self;
        let context = &norm.context.clone();
        if let (true, Some(x)) = (parents.wants(3), &x) {
            let params = norm.params();
            let (scale, shift) = params.affine();
            let call = Call {
                norm: Some(params.normalise(&scale, &shift)),
                ..Call::new(shape, context)
            };
            parents.give(3, call.weight_gradient(x.clone(), &dy));
        }
        let dx = weight.map(|weight| Call::new(shape, context).input_gradient(&dy, weight, None));
        parents.give(4, dy);
        if let (Some(x), Some(dx)) = (x, dx) {
            let state = NormState {
                x,
                added: None,
                norm,
            };
            state.backward_with(dx, parents, None);
        }
    }
}
