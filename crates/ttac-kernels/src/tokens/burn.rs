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
        bias: FloatTensor<Self>,
        #[extension_type] residual: Optional<Self>,
        before: Before,
        context: Context,
    ) -> FloatTensor<Self>;

    /// See [`crate::layer_norm`].
    fn fast_layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
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
        bias: FlexTensor,
        residual: Optional<Self>,
        before: Before,
        context: Context,
    ) -> FlexTensor {
        linear_forward(x, weight, bias, residual.into_option(), before, &context)
    }

    fn fast_layer_norm(
        x: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        epsilon: f32,
        context: Context,
    ) -> FlexTensor {
        layer_norm_forward(x, gamma, beta, epsilon, &context).0
    }

    fn fast_attention(qkv: FlexTensor, options: AttentionOptions, context: Context) -> FlexTensor {
        attention_forward(qkv, options, &context).0
    }
}

fn linear_forward(
    x: FlexTensor,
    weight: FlexTensor,
    bias: FlexTensor,
    residual: Option<FlexTensor>,
    before: Before,
    context: &Context,
) -> FlexTensor {
    let (x, weight, bias, residual) = (dense(x), dense(weight), dense(bias), residual.map(dense));
    let shape = linear_shape(&shape_of(&x), &shape_of(&weight));
    let product = |x: &[f32]| {
        let residual = residual.as_ref().map(values);
        kernel::linear_forward(context, x, values(&weight), values(&bias), residual, &shape)
    };
    let y = match before {
        Before::Nothing => product(values(&x)),
        Before::Gelu => {
            let activated = kernel::gelu_forward(context, values(&x));
            let y = product(&activated);
            context.recycle(activated);
            y
        }
    };
    tensor(context, y, [shape.rows, shape.outputs])
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
    gamma: FlexTensor,
    beta: FlexTensor,
    epsilon: f32,
    context: &Context,
) -> (FlexTensor, Vec<f32>) {
    let (x, gamma, beta) = (dense(x), dense(gamma), dense(beta));
    let (scale, shift) = (values(&gamma), values(&beta));
    let (y, statistics) = kernel::layer_norm_forward(context, values(&x), scale, shift, epsilon);
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
        bias: FloatTensor<Self>,
        residual: Optional<Self>,
        before: Before,
        context: Context,
    ) -> FloatTensor<Self> {
        let parents = [x.node(), weight.node(), bias.node()];
        let residual = residual.into_option();
        let fourth = residual.as_ref().map(FloatTensor::<Self>::node);
        let residual = residual.map(FloatTensor::<Self>::into_primitive);
        let (want_x, want_weight) = (x.is_tracked(), weight.is_tracked());
        let (x, weight) = (x.into_primitive(), weight.into_primitive());
        let bias = bias.into_primitive();
        // The number of parents is part of the type, hence the two arms below.
        macro_rules! record_linear {
            ($parents:expr) => {
                record!(
                    $parents,
                    linear_forward(x, weight, bias, residual, before, &context),
                    LinearState {
                        x: (want_weight || (want_x && before == Before::Gelu)).then(|| x.clone()),
                        weight: want_x.then(|| weight.clone()),
                        before,
                        shape: linear_shape(&shape_of(&x), &shape_of(&weight)),
                        context: context.clone(),
                    }
                )
            };
        }
        match fourth {
            None => record_linear!(parents),
            Some(fourth) => {
                let [first, second, third] = parents;
                record_linear!([first, second, third, fourth])
            }
        }
    }

    fn fast_layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f32,
        context: Context,
    ) -> FloatTensor<Self> {
        let parents = [x.node(), gamma.node(), beta.node()];
        let (x, gamma) = (x.into_primitive(), gamma.into_primitive());
        let beta = beta.into_primitive();
        record!(parents, {
            tracked => {
                let kept = (x.clone(), gamma.clone());
                let (y, statistics) = layer_norm_forward(x, gamma, beta, epsilon, &context);
                let state = LayerNormState {
                    x: kept.0,
                    gamma: kept.1,
                    statistics,
                    context,
                };
                (state, y)
            },
            untracked => layer_norm_forward(x, gamma, beta, epsilon, &context).0
        })
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
    shape: LinearShape,
    context: Context,
}

/// Parents: input, weight, bias and, if there are four, the residual.
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
        let activated = match (self.before, &x) {
            (Before::Gelu, Some(x)) => Some(match &mut dx {
                Some(dx) => kernel::gelu_backward(context, values(x), dx),
                None => kernel::gelu_forward(context, values(x)),
            }),
            _ => None,
        };
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
        if parents.wants(2) {
            let sums = || kernel::column_sums(context, dy, shape.outputs);
            let gradient = bias_gradient.unwrap_or_else(sums);
            parents.give(2, tensor(context, gradient, [shape.outputs]));
        }
        if let Some(dx) = dx {
            parents.give(0, tensor(context, dx, [shape.rows, shape.inputs]));
        }
        parents.give(3, upstream);
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

/// Parents: input, scale, shift.
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
