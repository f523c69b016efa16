//! Attention with queries, keys and values of their own, and a mask.

use rayon::prelude::*;

use super::backward::{Backward, Destination, MaskSum, Places};
use super::forward::Forward;
use super::head::Head;
use super::shape::{AttentionInput, ScaledDotProductShape};
use crate::Context;
use crate::core::elementwise::add_in_place;
use crate::core::parallel::{Out, filled};
use crate::core::shape::elements;

/// Attends. Returns the output, `[batch, queries, heads, value_width]`, and what the backward pass needs of each softmax, `[batch, heads, queries, 2]`.
///
/// # Panics
/// If the operands do not have the shape.
pub fn scaled_dot_product_forward(
    context: &Context,
    input: &AttentionInput,
    shape: &ScaledDotProductShape,
) -> (Vec<f32>, Vec<f32>) {
    input.check(shape);
    let mut kept = vec![0f32; shape.kept_len()];
    let softmax = Out(kept.as_mut_ptr());
    let write = |out: Out| {
        let tasks = 0..shape.batch * shape.heads;
        tasks.into_par_iter().for_each(|task| {
            let head = head(context, input, shape, task);
            let forward = Forward { head, out, softmax };
            // SAFETY: the input has the shape, output and softmax have room for it, and no other task has this head of this image.
            unsafe { context.isa().run(forward) };
        });
    };
    // SAFETY: the tasks cover all images and heads, and each writes all of its queries.
    let out = unsafe { filled(context, shape.out_len(), write) };
    (out, kept)
}

fn head<'a>(
    context: &'a Context,
    input: &'a AttentionInput,
    shape: &'a ScaledDotProductShape,
    task: usize,
) -> Head<'a> {
    Head {
        context,
        input,
        shape,
        image: task / shape.heads,
        number: task % shape.heads,
    }
}

/// The order in which the rows of a gradient lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisOrder {
    /// `[batch, heads, tokens, width]`.
    HeadsFirst,
    /// `[batch, tokens, heads, width]`, which is the order of rows that a linear layer made.
    TokensFirst,
}

impl AxisOrder {
    fn strides(self, [heads, tokens, width]: [usize; 3]) -> [usize; 3] {
        let (head, token) = match self {
            Self::HeadsFirst => (tokens * width, width),
            Self::TokensFirst => (width, heads * width),
        };
        [heads * tokens * width, head, token]
    }
}

/// The gradients of an attention.
#[derive(Clone, Debug)]
pub struct AttentionGradients {
    /// The gradient of the queries.
    pub query: Vec<f32>,
    /// The gradient of the keys.
    pub key: Vec<f32>,
    /// The gradient of the values.
    pub value: Vec<f32>,
    /// The gradient of the mask, `[images, heads, queries, tokens]`, if it is wanted and there is one.
    pub mask: Option<Vec<f32>>,
}

/// Computes the gradients of queries, keys and values, each in the order it is wanted in, and of the mask if `want_mask`, from that of the output.
///
/// # Panics
/// If an operand does not have the shape.
pub fn scaled_dot_product_backward(
    context: &Context,
    dy: &[f32],
    input: &AttentionInput,
    softmax: &[f32],
    shape: &ScaledDotProductShape,
    orders: [AxisOrder; 3],
    want_mask: bool,
) -> AttentionGradients {
    let s = shape;
    let sizes = [
        [s.heads, s.queries, s.width],
        [s.heads, s.tokens, s.width],
        [s.heads, s.tokens, s.value_width],
    ];
    let mut buffers = sizes.map(|[heads, tokens, width]| {
        let shape = [s.batch, heads, tokens, width];
        let len = elements("gradient of an attention", &shape);
        (context.take(len), len)
    });
    let mut places = [0, 1, 2].map(|part| Places {
        out: Out(buffers[part].0.as_mut_ptr()),
        strides: orders[part].strides(sizes[part]),
    });
    let [query, key, value] = &mut places;
    let to = Destination {
        query: *query,
        key: *key,
        value: *value,
        query_rows: s.queries,
    };
    // SAFETY: the buffers have room for all rows of their part, and the strides take every row to a place of its own.
    let mask = unsafe { backward_into(context, dy, input, softmax, shape, to, want_mask) };
    let [query, key, value] = buffers.map(|(mut buffer, len)| {
        // SAFETY: there is room for `len`, and every row was written.
        unsafe { buffer.set_len(len) };
        buffer
    });
    AttentionGradients {
        query,
        key,
        value,
        mask,
    }
}

/// Writes the gradients of queries, keys and values to their places, all of them, and returns that of the mask if it is wanted and there is one.
///
/// # Panics
/// If the operands do not have the shape.
///
/// # Safety
/// The destinations have room for every row of the shape, and no two rows have a place in common.
pub(super) unsafe fn backward_into(
    context: &Context,
    dy: &[f32],
    input: &AttentionInput,
    softmax: &[f32],
    shape: &ScaledDotProductShape,
    to: Destination,
    want_mask: bool,
) -> Option<Vec<f32>> {
    input.check(shape);
    shape.check_len("output gradient", dy.len(), shape.out_len());
    shape.check_len("softmax", softmax.len(), shape.kept_len());
    let one = |task: usize, mask: Option<MaskSum>| {
        let backward = Backward {
            head: head(context, input, shape, task),
            dy,
            softmax,
            to,
            mask,
        };
        // SAFETY: the lengths were checked, the caller vouches for the destinations, and no other task has this head of this image.
        unsafe { context.isa().run(backward) };
    };
    let Some(mask) = input.mask.filter(|_| want_mask) else {
        let tasks = 0..shape.batch * shape.heads;
        tasks.into_par_iter().for_each(|task| one(task, None));
        return None;
    };
    let len = mask.values.len();
    if shape.batch == 0 {
        return Some(vec![0.; len]);
    }
    let sharing = mask.sharing(shape);
    let each = shape.queries * shape.tokens;
    let write = |out: Out| {
        (0..sharing.sums()).into_par_iter().for_each(|sum| {
            let out = Out(out.at(sum * each));
            for (i, (image, head)) in sharing.members(sum).enumerate() {
                let accumulate = i > 0;
                one(
                    image * shape.heads + head,
                    Some(MaskSum { out, accumulate }),
                );
            }
        });
    };
    // SAFETY: every sum has at least one member, which writes all of it.
    let mut sums = unsafe { filled(context, sharing.groups * len, write) };
    let (first, others) = sums.split_at_mut(len);
    for other in others.chunks_exact(len.max(1)) {
        add_in_place(context, first, other);
    }
    sums.truncate(len);
    Some(sums)
}
