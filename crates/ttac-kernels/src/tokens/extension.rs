//! The [`tokens` kernels](crate::kernels::tokens) as differentiable ops of Burn's CPU backend. The pattern is that of
//! `crate::extension`.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Flex, backend_extension};
use burn::tensor::Shape;

use super::{AttentionOptions, Before};
use crate::buffer::{dense, shape_of, tensor, values};
use crate::extension::Optional;
use crate::kernels::{self, AttentionShape, LayerNormBackward, LinearShape, recycle};

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
    ) -> FloatTensor<Self>;

    /// See [`crate::layer_norm`].
    fn fast_layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f32,
    ) -> FloatTensor<Self>;

    /// See [`crate::attention`].
    fn fast_attention(qkv: FloatTensor<Self>, options: AttentionOptions) -> FloatTensor<Self>;
}

impl TokenOps for Flex {
    fn fast_linear(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        residual: Optional<Self>,
        before: Before,
    ) -> FlexTensor {
        linear_forward(x, weight, bias, residual.into_option(), before)
    }

    fn fast_layer_norm(
        x: FlexTensor,
        gamma: FlexTensor,
        beta: FlexTensor,
        epsilon: f32,
    ) -> FlexTensor {
        layer_norm_forward(x, gamma, beta, epsilon).0
    }

    fn fast_attention(qkv: FlexTensor, options: AttentionOptions) -> FlexTensor {
        attention_forward(qkv, options).0
    }
}

fn linear_forward(
    x: FlexTensor,
    weight: FlexTensor,
    bias: FlexTensor,
    residual: Option<FlexTensor>,
    before: Before,
) -> FlexTensor {
    let (x, weight, bias, residual) = (dense(x), dense(weight), dense(bias), residual.map(dense));
    let shape = linear_shape(&shape_of(&x), &shape_of(&weight));
    let product = |x: &[f32]| {
        let residual = residual.as_ref().map(values);
        kernels::linear_forward(x, values(&weight), values(&bias), residual, &shape)
    };
    let y = match before {
        Before::Nothing => product(values(&x)),
        Before::Gelu => {
            let activated = kernels::gelu_forward(values(&x));
            let y = product(&activated);
            recycle::give(activated);
            y
        }
    };
    tensor(y, [shape.rows, shape.outputs])
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
) -> (FlexTensor, Vec<f32>) {
    let (x, gamma, beta) = (dense(x), dense(gamma), dense(beta));
    let (y, statistics) =
        kernels::layer_norm_forward(values(&x), values(&gamma), values(&beta), epsilon);
    (tensor(y, shape_of(&x)), statistics)
}

/// The result, and what is kept of each softmax.
fn attention_forward(qkv: FlexTensor, options: AttentionOptions) -> (FlexTensor, Vec<f32>) {
    let qkv = dense(qkv);
    let shape = attention_shape(&shape_of(&qkv), options);
    let (y, softmax) = kernels::attention_forward(values(&qkv), &shape);
    let out = [shape.batch * shape.queries, shape.width()];
    (tensor(y, out), softmax)
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
                match Backward::<Flex, _>::prepare::<C>(LinearStep, $parents)
                    .compute_bound()
                    .stateful()
                {
                    OpsKind::Tracked(node) => {
                        let keep_x = want_weight || (want_x && before == Before::Gelu);
                        let state = LinearState {
                            x: keep_x.then(|| x.clone()),
                            weight: want_x.then(|| weight.clone()),
                            before,
                            shape: linear_shape(&shape_of(&x), &shape_of(&weight)),
                        };
                        node.finish(state, linear_forward(x, weight, bias, residual, before))
                    }
                    OpsKind::UnTracked(node) => {
                        node.finish(linear_forward(x, weight, bias, residual, before))
                    }
                }
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
    ) -> FloatTensor<Self> {
        let parents = [x.node(), gamma.node(), beta.node()];
        let (x, gamma, beta) = (
            x.into_primitive(),
            gamma.into_primitive(),
            beta.into_primitive(),
        );
        match Backward::<Flex, 3>::prepare::<C>(LayerNormStep, parents)
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(node) => {
                let (kept_x, kept_gamma) = (x.clone(), gamma.clone());
                let (y, statistics) = layer_norm_forward(x, gamma, beta, epsilon);
                let state = LayerNormState {
                    x: kept_x,
                    gamma: kept_gamma,
                    statistics,
                };
                node.finish(state, y)
            }
            OpsKind::UnTracked(node) => node.finish(layer_norm_forward(x, gamma, beta, epsilon).0),
        }
    }

    fn fast_attention(qkv: FloatTensor<Self>, options: AttentionOptions) -> FloatTensor<Self> {
        match Backward::<Flex, 1>::prepare::<C>(AttentionStep, [qkv.node()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(node) => {
                let qkv = qkv.into_primitive();
                let (y, softmax) = attention_forward(qkv.clone(), options);
                let state = AttentionState {
                    qkv,
                    softmax,
                    options,
                };
                node.finish(state, y)
            }
            OpsKind::UnTracked(node) => {
                node.finish(attention_forward(qkv.into_primitive(), options).0)
            }
        }
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
}

/// Parents: input, weight, bias and, if there are four, the residual.
#[derive(Debug)]
struct LinearStep;

impl<const N: usize> Backward<Flex, N> for LinearStep {
    type State = LinearState;

    fn backward(self, ops: Ops<LinearState, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let upstream = dense(grads.consume::<Flex>(&ops.node));
        let LinearState {
            x,
            weight,
            before,
            shape,
        } = ops.state;
        let mut parents = ops.parents.into_iter();
        let mut parent = || parents.next().flatten();
        let (x_node, weight_node, bias_node, residual_node) =
            (parent(), parent(), parent(), parent());
        let dy = values(&upstream);
        let x = x.map(dense);
        let mut dx = weight.filter(|_| x_node.is_some()).map(|weight| {
            let weight = dense(weight);
            kernels::linear_input_gradient(dy, values(&weight), &shape)
        });
        let activated = match (before, &x) {
            (Before::Gelu, Some(x)) => Some(match &mut dx {
                Some(dx) => kernels::gelu_backward(values(x), dx),
                None => kernels::gelu_forward(values(x)),
            }),
            _ => None,
        };
        let mut bias_gradient = None;
        if let (Some(node), Some(x)) = (weight_node, &x) {
            let x = activated.as_deref().unwrap_or(values(x));
            let (gradient, sums) = kernels::linear_weight_gradient(x, dy, &shape);
            grads.register::<Flex>(node.id, tensor(gradient, [shape.outputs, shape.inputs]));
            bias_gradient = Some(sums);
        }
        if let Some(activated) = activated {
            recycle::give(activated);
        }
        if let Some(node) = bias_node {
            let gradient = bias_gradient.unwrap_or_else(|| kernels::column_sums(dy, shape.outputs));
            grads.register::<Flex>(node.id, tensor(gradient, [shape.outputs]));
        }
        if let (Some(node), Some(dx)) = (x_node, dx) {
            grads.register::<Flex>(node.id, tensor(dx, [shape.rows, shape.inputs]));
        }
        if let Some(node) = residual_node {
            grads.register::<Flex>(node.id, upstream);
        }
    }
}

#[derive(Clone, Debug)]
struct LayerNormState {
    x: FlexTensor,
    gamma: FlexTensor,
    statistics: Vec<f32>,
}

/// Parents: input, scale, shift.
#[derive(Debug)]
struct LayerNormStep;

impl Backward<Flex, 3> for LayerNormStep {
    type State = LayerNormState;

    fn backward(self, ops: Ops<LayerNormState, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = dense(grads.consume::<Flex>(&ops.node));
        let [x_node, gamma_node, beta_node] = ops.parents;
        let (x, gamma) = (dense(ops.state.x), dense(ops.state.gamma));
        let saved = LayerNormBackward {
            x: values(&x),
            statistics: &ops.state.statistics,
            gamma: values(&gamma),
            want_dx: x_node.is_some(),
        };
        let found = kernels::layer_norm_backward(values(&dy), &saved);
        if let Some(node) = gamma_node {
            grads.register::<Flex>(node.id, tensor(found.gamma, shape_of(&gamma)));
        }
        if let Some(node) = beta_node {
            grads.register::<Flex>(node.id, tensor(found.beta, shape_of(&gamma)));
        }
        if let (Some(node), Some(dx)) = (x_node, found.dx) {
            grads.register::<Flex>(node.id, tensor(dx, shape_of(&x)));
        }
    }
}

#[derive(Clone, Debug)]
struct AttentionState {
    qkv: FlexTensor,
    softmax: Vec<f32>,
    options: AttentionOptions,
}

#[derive(Debug)]
struct AttentionStep;

impl Backward<Flex, 1> for AttentionStep {
    type State = AttentionState;

    fn backward(self, ops: Ops<AttentionState, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = dense(grads.consume::<Flex>(&ops.node));
        let [Some(node)] = ops.parents else { return };
        let state = ops.state;
        let qkv = dense(state.qkv);
        let shape = attention_shape(&shape_of(&qkv), state.options);
        let gradient =
            kernels::attention_backward(values(&dy), values(&qkv), &state.softmax, &shape);
        grads.register::<Flex>(node.id, tensor(gradient, shape_of(&qkv)));
    }
}
