//! Attention and softmax as differentiable ops of Burn's CPU backend.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Flex, backend_extension};

use crate::Context;
use crate::core::autodiff_sums::{Parents, Step};
use crate::core::buffer::{dense, rows_in_place, shape_of, strided, tensor, values};
use crate::core::extension::{Optional, dims, record};
use crate::kernels as kernel;
use crate::kernels::{AddedMask, AttentionInput, AxisOrder, HeadRows, ScaledDotProductShape};

/// The ops, routed at run time. Shapes are those of the functions at the crate's root.
#[backend_extension(Flex, Autodiff)]
pub trait AttentionOps: Backend {
    /// See [`crate::scaled_dot_product_attention`].
    fn fast_scaled_dot_product(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        #[extension_type] mask: Optional<Self>,
        scale: f32,
        context: Context,
    ) -> FloatTensor<Self>;

    /// See [`crate::packed_attention`].
    fn fast_packed_attention(
        qkv: FloatTensor<Self>,
        #[extension_type] mask: Optional<Self>,
        queries: usize,
        scale: f32,
        context: Context,
    ) -> FloatTensor<Self>;

    /// See [`crate::softmax`].
    fn fast_softmax(x: FloatTensor<Self>, context: Context) -> FloatTensor<Self>;
}

impl AttentionOps for Flex {
    fn fast_scaled_dot_product(
        query: FlexTensor,
        key: FlexTensor,
        value: FlexTensor,
        mask: Optional<Self>,
        scale: f32,
        context: Context,
    ) -> FlexTensor {
        let operands = Operands::separate([query, key, value], mask.into_option(), scale);
        operands.forward(&context).0
    }

    fn fast_packed_attention(
        qkv: FlexTensor,
        mask: Optional<Self>,
        queries: usize,
        scale: f32,
        context: Context,
    ) -> FlexTensor {
        let operands = Operands::packed(qkv, mask.into_option(), queries, scale);
        operands.forward(&context).0
    }

    fn fast_softmax(x: FlexTensor, context: Context) -> FlexTensor {
        softmax_forward(x, &context)
    }
}

fn softmax_forward(x: FlexTensor, context: &Context) -> FlexTensor {
    let x = dense(x);
    let columns = shape_of(&x)[1];
    let y = kernel::softmax_forward(context, values(&x), columns);
    tensor(context, y, shape_of(&x))
}

/// Queries, keys and values.
#[derive(Clone, Debug)]
enum Sources {
    /// Each `[batch, heads, tokens, width]`, in any order in memory, but for the last axis.
    Separate([FlexTensor; 3]),
    /// All `[3, batch, heads, tokens, width]`, of which this many tokens ask.
    Packed(FlexTensor, usize),
}

/// The operands of an attention.
#[derive(Clone, Debug)]
struct Operands {
    sources: Sources,
    mask: Option<FlexTensor>,
    scale: f32,
}

impl Operands {
    fn separate(parts: [FlexTensor; 3], mask: Option<FlexTensor>, scale: f32) -> Self {
        Self {
            sources: Sources::Separate(parts.map(strided)),
            mask: mask.map(dense),
            scale,
        }
    }

    fn packed(qkv: FlexTensor, mask: Option<FlexTensor>, queries: usize, scale: f32) -> Self {
        Self {
            sources: Sources::Packed(strided(qkv), queries),
            mask: mask.map(dense),
            scale,
        }
    }

    fn shape(&self) -> ScaledDotProductShape {
        match &self.sources {
            Sources::Separate([query, _, value]) => {
                let [batch, heads, queries, width] = dims(&shape_of(query));
                let [_, _, tokens, value_width] = dims(&shape_of(value));
                ScaledDotProductShape {
                    batch,
                    heads,
                    queries,
                    tokens,
                    width,
                    value_width,
                }
            }
            Sources::Packed(qkv, queries) => {
                let [_, batch, heads, tokens, width] = dims(&shape_of(qkv));
                ScaledDotProductShape {
                    batch,
                    heads,
                    queries: *queries,
                    tokens,
                    width,
                    value_width: width,
                }
            }
        }
    }

    /// What the kernels read, where it lies.
    fn input(&self) -> AttentionInput<'_> {
        let [query, key, value] = match &self.sources {
            Sources::Separate(parts) => parts.each_ref().map(|part| {
                let (values, [image, head, token, _]) = rows_in_place(part);
                HeadRows {
                    values,
                    strides: [image, head, token],
                }
            }),
            Sources::Packed(qkv, _) => {
                let (values, [part, image, head, token, _]) = rows_in_place(qkv);
                [0, 1, 2].map(|index| HeadRows {
                    values: values.get(index * part..).unwrap_or_default(),
                    strides: [image, head, token],
                })
            }
        };
        let mask = self.mask.as_ref().map(|mask| {
            let [images, heads, _, _] = dims(&shape_of(mask));
            AddedMask {
                values: values(mask),
                images,
                heads,
            }
        });
        AttentionInput {
            query,
            key,
            value,
            mask,
            scale: self.scale,
        }
    }

    /// The result, and what is kept of each softmax.
    fn forward(&self, context: &Context) -> (FlexTensor, Vec<f32>) {
        let s = self.shape();
        let (y, softmax) = kernel::scaled_dot_product_forward(context, &self.input(), &s);
        let shape = [s.batch, s.queries, s.heads, s.value_width];
        (tensor(context, y, shape), softmax)
    }
}

// ------------------------------------------------------------------------------------- autodiff

/// Records an attention with and without a mask: the number of parents is part of the type, hence the two arms.
macro_rules! record_attention {
    ([$($node:ident),*], $mask_node:expr, $operands:expr, $context:expr) => {{
        let (operands, context): (Operands, Context) = ($operands, $context);
        macro_rules! with_parents {
            ($parents:expr) => {
                record!($parents, {
                    tracked => {
                        let (y, softmax) = operands.forward(&context);
                        (AttentionState { operands, softmax, context }, y)
                    },
                    untracked => operands.forward(&context).0
                })
            };
        }
        match $mask_node {
            None => with_parents!([$($node),*]),
            Some(mask) => with_parents!([$($node,)* mask]),
        }
    }};
}

impl<C: CheckpointStrategy> AttentionOps for Autodiff<Flex, C> {
    fn fast_scaled_dot_product(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        mask: Optional<Self>,
        scale: f32,
        context: Context,
    ) -> FloatTensor<Self> {
        let (q, k, v) = (query.node(), key.node(), value.node());
        let mask = mask.into_option();
        let mask_node = mask.as_ref().map(FloatTensor::<Self>::node);
        let mask = mask.map(FloatTensor::<Self>::into_primitive);
        let parts = [query, key, value].map(FloatTensor::<Self>::into_primitive);
        let operands = Operands::separate(parts, mask, scale);
        record_attention!([q, k, v], mask_node, operands, context)
    }

    fn fast_packed_attention(
        qkv: FloatTensor<Self>,
        mask: Optional<Self>,
        queries: usize,
        scale: f32,
        context: Context,
    ) -> FloatTensor<Self> {
        let node = qkv.node();
        let mask = mask.into_option();
        let mask_node = mask.as_ref().map(FloatTensor::<Self>::node);
        let mask = mask.map(FloatTensor::<Self>::into_primitive);
        let operands = Operands::packed(qkv.into_primitive(), mask, queries, scale);
        record_attention!([node], mask_node, operands, context)
    }

    fn fast_softmax(x: FloatTensor<Self>, context: Context) -> FloatTensor<Self> {
        record!([x.node()], {
            tracked => {
                let y = softmax_forward(x.into_primitive(), &context);
                (SoftmaxState { y: y.clone(), context }, y)
            },
            untracked => softmax_forward(x.into_primitive(), &context)
        })
    }
}

/// What the gradients of an attention need.
#[derive(Clone, Debug)]
struct AttentionState {
    operands: Operands,
    softmax: Vec<f32>,
    context: Context,
}

/// Parents: queries, keys and values, or all three as one, and then the mask if there is one.
impl Step for AttentionState {
    const ADDS: bool = false;

    fn context(&self) -> &Context {
        &self.context
    }

    fn backward(self, dy: FlexTensor, mut parents: Parents<'_>) {
        let (context, operands) = (&self.context, &self.operands);
        let (s, input, dy) = (operands.shape(), operands.input(), values(&dy));
        let (mask, mask_parent) = match &operands.sources {
            Sources::Separate(parts) => {
                let want_mask = parents.wants(3);
                let orders = parts.each_ref().map(order);
                let found = kernel::scaled_dot_product_backward(
                    context,
                    dy,
                    &input,
                    &self.softmax,
                    &s,
                    orders,
                    want_mask,
                );
                let gradients = [found.query, found.key, found.value];
                for (parent, gradient) in gradients.into_iter().enumerate() {
                    let shape = dims(&shape_of(&parts[parent]));
                    parents.give(parent, ordered(context, gradient, shape, orders[parent]));
                }
                (found.mask, 3)
            }
            Sources::Packed(..) => {
                let want_mask = parents.wants(1);
                let (gradient, mask) = kernel::packed_attention_backward(
                    context,
                    dy,
                    &input,
                    &self.softmax,
                    &s,
                    want_mask,
                );
                let shape = [s.batch, s.tokens, 3, s.heads, s.width];
                let gradient = tensor(context, gradient, shape);
                parents.give(0, gradient.permute(&[2, 0, 3, 1, 4]));
                (mask, 1)
            }
        };
        if let (Some(gradient), Some(mask)) = (mask, &operands.mask) {
            parents.give(mask_parent, tensor(context, gradient, shape_of(mask)));
        }
    }
}

/// The order of heads and tokens in memory.
fn order(rows: &FlexTensor) -> AxisOrder {
    let strides = rows.layout().strides();
    if strides[1] < strides[2] {
        AxisOrder::TokensFirst
    } else {
        AxisOrder::HeadsFirst
    }
}

/// A gradient of the shape `[batch, heads, tokens, width]` from its values in some order.
fn ordered(
    context: &Context,
    values: Vec<f32>,
    shape @ [batch, heads, tokens, width]: [usize; 4],
    order: AxisOrder,
) -> FlexTensor {
    match order {
        AxisOrder::HeadsFirst => tensor(context, values, shape),
        AxisOrder::TokensFirst => {
            tensor(context, values, [batch, tokens, heads, width]).permute(&[0, 2, 1, 3])
        }
    }
}

/// What the gradient of a softmax needs: its result.
#[derive(Clone, Debug)]
struct SoftmaxState {
    y: FlexTensor,
    context: Context,
}

impl Step for SoftmaxState {
    const ADDS: bool = false;

    fn context(&self) -> &Context {
        &self.context
    }

    fn backward(self, dy: FlexTensor, mut parents: Parents<'_>) {
        let (context, shape) = (&self.context, shape_of(&self.y));
        let dx = kernel::softmax_backward(context, values(&dy), values(&self.y), shape[1]);
        parents.give(0, tensor(context, dx, shape));
    }
}
