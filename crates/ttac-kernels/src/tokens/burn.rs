//! The ops of transformers as differentiable ops of Burn's CPU backend.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Flex, backend_extension};
use burn::tensor::Shape;

use super::kernel::{self, AttentionShape, LayerNormBackward, LinearShape};
use super::ops::{AttentionOptions, Before};
use crate::Context;
use crate::core::autodiff_sums::{Parents, Step};
use crate::core::buffer::{dense, shape_of, tensor, values};
use crate::core::extension::{Optional, record};

/// The ops, routed at run time. Shapes are those of the functions at the crate's root.
#[backend_extension(Flex, Autodiff)]
pub trait TokenOps: Backend {
    /// See [`crate::linear`].
    fn fast_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Optional<Self>,
        #[extension_type] residual: Optional<Self>,
        before: Before,
        context: Context,
    ) -> FloatTensor<Self>;

    /// See [`crate::layer_norm`] and [`crate::layer_norm_add`].
    fn fast_layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        #[extension_type] residual: Optional<Self>,
        epsilon: f32,
        context: Context,
    ) -> FloatTensor<Self>;

    /// See [`crate::attention`].
    fn fast_attention(
        qkv: FloatTensor<Self>,
        options: AttentionOptions,
        context: Context,
    ) -> FloatTensor<Self>;
}

impl TokenOps for Flex {
    fn fast_linear(
        x: FlexTensor,
        weight: FlexTensor,
        bias: Optional<Self>,
        residual: Optional<Self>,
        before: Before,
        context: Context,
    ) -> FlexTensor {
        let added = [bias.into_option(), residual.into_option()];
        linear_forward(x, weight, added, before, &context)
    }

    fn fast_layer_norm(
        x: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        residual: Optional<Self>,
        epsilon: f32,
        context: Context,
    ) -> FlexTensor {
        layer_norm_forward(x, [gamma, beta], residual.into_option(), epsilon, &context).0
    }

    fn fast_attention(qkv: FlexTensor, options: AttentionOptions, context: Context) -> FlexTensor {
        attention_forward(qkv, options, &context).0
    }
}

fn linear_forward(
    x: FlexTensor,
    weight: FlexTensor,
    added: [Option<FlexTensor>; 2],
    before: Before,
    context: &Context,
) -> FlexTensor {
    let (x, weight) = (dense(x), dense(weight));
    let added = added.map(|added| added.map(dense));
    let shape = linear_shape(&shape_of(&x), &shape_of(&weight));
    let activated = activate(before, values(&x), context);
    let [bias, residual] = added.each_ref().map(|added| added.as_ref().map(values));
    let x = activated.as_deref().unwrap_or(values(&x));
    let y = kernel::linear_forward(context, x, values(&weight), bias, residual, &shape);
    if let Some(activated) = activated {
        context.recycle(activated);
    }
    tensor(context, y, [shape.rows, shape.outputs])
}

/// What is done to the input before the product, if anything is.
fn activate(before: Before, x: &[f32], context: &Context) -> Option<Vec<f32>> {
    match before {
        Before::Nothing => None,
        Before::Gelu => Some(kernel::gelu_forward(context, x)),
        Before::GeluTanh => Some(kernel::gelu_tanh_forward(context, x)),
    }
}

/// The same, and its gradient turned into that of the input.
fn activate_backward(
    before: Before,
    x: &[f32],
    gradient: &mut [f32],
    context: &Context,
) -> Option<Vec<f32>> {
    match before {
        Before::Nothing => None,
        Before::Gelu => Some(kernel::gelu_backward(context, x, gradient)),
        Before::GeluTanh => Some(kernel::gelu_tanh_backward(context, x, gradient)),
    }
}

fn linear_shape(x: &Shape, weight: &Shape) -> LinearShape {
    LinearShape {
        rows: x[0],
        inputs: x[1],
        outputs: weight[0],
    }
}

/// The result, and mean and inverse deviation of each row.
fn layer_norm_forward(
    x: FlexTensor,
    affine: [FlexTensor; 2],
    residual: Option<FlexTensor>,
    epsilon: f32,
    context: &Context,
) -> (FlexTensor, Vec<f32>) {
    let (x, affine, residual) = (dense(x), affine.map(dense), residual.map(dense));
    let [scale, shift] = affine.each_ref().map(values);
    let (rows, added) = (values(&x), residual.as_ref().map(values));
    let (y, statistics) =
        kernel::layer_norm_add_forward(context, rows, scale, shift, epsilon, added);
    (tensor(context, y, shape_of(&x)), statistics)
}

/// The result, and what is kept of each softmax.
fn attention_forward(
    qkv: FlexTensor,
    options: AttentionOptions,
    context: &Context,
) -> (FlexTensor, Vec<f32>) {
    let qkv = dense(qkv);
    let shape = attention_shape(&shape_of(&qkv), options);
    let (y, softmax) = kernel::attention_forward(context, values(&qkv), &shape);
    let out = [shape.batch * shape.queries, shape.width()];
    (tensor(context, y, out), softmax)
}

fn attention_shape(qkv: &Shape, options: AttentionOptions) -> AttentionShape {
    AttentionShape {
        batch: options.batch,
        tokens: qkv[0] / options.batch,
        queries: options.queries,
        heads: options.heads,
        head_width: qkv[1] / 3 / options.heads,
    }
}

// ------------------------------------------------------------------------------------- autodiff

impl<C: CheckpointStrategy> TokenOps for Autodiff<Flex, C> {
    fn fast_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Optional<Self>,
        residual: Optional<Self>,
        before: Before,
        context: Context,
    ) -> FloatTensor<Self> {
        let (first, second) = (x.node(), weight.node());
        let added = [bias.into_option(), residual.into_option()];
        let nodes = added
            .each_ref()
            .map(|added| added.as_ref().map(FloatTensor::<Self>::node));
        let added = added.map(|added| added.map(FloatTensor::<Self>::into_primitive));
        let (want_x, want_weight) = (x.is_tracked(), weight.is_tracked());
        let (x, weight) = (x.into_primitive(), weight.into_primitive());
        // The number of parents is part of the type, hence the arms below.
        macro_rules! record_linear {
            ($parents:expr, $bias:expr, $residual:expr) => {
                record!(
                    $parents,
                    linear_forward(x, weight, added, before, &context),
                    LinearState {
                        x: (want_weight || (want_x && before != Before::Nothing))
                            .then(|| x.clone()),
                        weight: want_x.then(|| weight.clone()),
                        before,
                        bias: $bias,
                        residual: $residual,
                        shape: linear_shape(&shape_of(&x), &shape_of(&weight)),
                        context: context.clone(),
                    }
                )
            };
        }
        match nodes {
            [None, None] => record_linear!([first, second], None, None),
            [Some(bias), None] => record_linear!([first, second, bias], Some(2), None),
            [None, Some(residual)] => record_linear!([first, second, residual], None, Some(2)),
            [Some(bias), Some(residual)] => {
                record_linear!([first, second, bias, residual], Some(2), Some(3))
            }
        }
    }

    fn fast_layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        residual: Optional<Self>,
        epsilon: f32,
        context: Context,
    ) -> FloatTensor<Self> {
        let [first, second, third] = [x.node(), gamma.node(), beta.node()];
        let residual = residual.into_option();
        let fourth = residual.as_ref().map(FloatTensor::<Self>::node);
        let residual = residual.map(FloatTensor::<Self>::into_primitive);
        let x = x.into_primitive();
        let affine = [gamma.into_primitive(), beta.into_primitive()];
        // The number of parents is part of the type, hence the two arms below.
        macro_rules! record_norm {
            ($parents:expr) => {
                record!($parents, {
                    tracked => {
                        let kept = (x.clone(), affine[0].clone());
                        let (y, statistics) =
                            layer_norm_forward(x, affine, residual, epsilon, &context);
                        let state = LayerNormState {
                            x: kept.0,
                            gamma: kept.1,
                            statistics,
                            context,
                        };
                        (state, y)
                    },
                    untracked => layer_norm_forward(x, affine, residual, epsilon, &context).0
                })
            };
        }
        match fourth {
            None => record_norm!([first, second, third]),
            Some(fourth) => record_norm!([first, second, third, fourth]),
        }
    }

    fn fast_attention(
        qkv: FloatTensor<Self>,
        options: AttentionOptions,
        context: Context,
    ) -> FloatTensor<Self> {
        record!([qkv.node()], {
            tracked => {
                let qkv = qkv.into_primitive();
                let (y, softmax) = attention_forward(qkv.clone(), options, &context);
                let state = AttentionState {
                    qkv,
                    softmax,
                    options,
                    context,
                };
                (state, y)
            },
            untracked => attention_forward(qkv.into_primitive(), options, &context).0
        })
    }
}

/// What the gradients need: the input for that of the weights, the weights for that of the input, and the
/// input for the GELU. What is not wanted is not kept.
#[derive(Clone, Debug)]
struct LinearState {
    x: Option<FlexTensor>,
    weight: Option<FlexTensor>,
    before: Before,
    /// Which parents bias and residual are.
    bias: Option<usize>,
    residual: Option<usize>,
    shape: LinearShape,
    context: Context,
}

/// Parents: input, weight, and bias and residual if there are such.
impl Step for LinearState {
    const ADDS: bool = false;

    fn context(&self) -> &Context {
        &self.context
    }

    fn backward(self, upstream: FlexTensor, mut parents: Parents<'_>) {
        let (context, shape) = (&self.context, &self.shape);
        let (dy, x) = (values(&upstream), self.x.map(dense));
        let mut dx = self.weight.filter(|_| parents.wants(0)).map(|weight| {
            let weight = dense(weight);
            kernel::linear_input_gradient(context, dy, values(&weight), shape)
        });
        let activated = x.as_ref().and_then(|x| match &mut dx {
            Some(dx) => activate_backward(self.before, values(x), dx, context),
            None => activate(self.before, values(x), context),
        });
        let mut bias_gradient = None;
        if let (true, Some(x)) = (parents.wants(1), &x) {
            let x = activated.as_deref().unwrap_or(values(x));
            let (gradient, sums) = kernel::linear_weight_gradient(context, x, dy, shape);
            parents.give(1, tensor(context, gradient, [shape.outputs, shape.inputs]));
            bias_gradient = Some(sums);
        }
        if let Some(activated) = activated {
            context.recycle(activated);
        }
        if let Some(bias) = self.bias.filter(|&bias| parents.wants(bias)) {
            let sums = || kernel::column_sums(context, dy, shape.outputs);
            let gradient = bias_gradient.unwrap_or_else(sums);
            parents.give(bias, tensor(context, gradient, [shape.outputs]));
        }
        if let Some(dx) = dx {
            parents.give(0, tensor(context, dx, [shape.rows, shape.inputs]));
        }
        if let Some(residual) = self.residual {
            parents.give(residual, upstream);
        }
    }
}

/// What the gradients of a layer norm need.
#[derive(Clone, Debug)]
struct LayerNormState {
    x: FlexTensor,
    gamma: FlexTensor,
    statistics: Vec<f32>,
    context: Context,
}

/// Parents: input, scale, shift and, if there are four, the residual.
impl Step for LayerNormState {
    const ADDS: bool = false;

    fn context(&self) -> &Context {
        &self.context
    }

    fn backward(self, dy: FlexTensor, mut parents: Parents<'_>) {
        let context = &self.context;
        let (x, gamma) = (dense(self.x), dense(self.gamma));
        let saved = LayerNormBackward {
            x: values(&x),
            statistics: &self.statistics,
            gamma: values(&gamma),
            want_dx: parents.wants(0),
        };
        let found = kernel::layer_norm_backward(context, values(&dy), &saved);
        parents.give(1, tensor(context, found.gamma, shape_of(&gamma)));
        parents.give(2, tensor(context, found.beta, shape_of(&gamma)));
        if let Some(dx) = found.dx {
            parents.give(0, tensor(context, dx, shape_of(&x)));
        }
        parents.give(3, dy);
    }
}

/// What the gradient of an attention needs.
#[derive(Clone, Debug)]
struct AttentionState {
    qkv: FlexTensor,
    softmax: Vec<f32>,
    options: AttentionOptions,
    context: Context,
}

/// The parent has queries, keys and values.
impl Step for AttentionState {
    const ADDS: bool = false;

    fn context(&self) -> &Context {
        &self.context
    }

    fn backward(self, dy: FlexTensor, mut parents: Parents<'_>) {
        let (context, qkv) = (&self.context, dense(self.qkv));
        let shape = attention_shape(&shape_of(&qkv), self.options);
        let (dy, values) = (values(&dy), values(&qkv));
        let gradient = kernel::attention_backward(context, dy, values, &self.softmax, &shape);
        parents.give(0, tensor(context, gradient, shape_of(&qkv)));
    }
}
