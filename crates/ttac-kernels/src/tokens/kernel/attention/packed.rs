//! Attention with queries, keys and values in one tensor.

use super::backward::{Destination, Places};
use super::separate::{backward_into, scaled_dot_product_forward};
use super::shape::{AttentionInput, HeadRows, ScaledDotProductShape};
use crate::Context;
use crate::core::parallel::{Out, filled};
use crate::core::shape::elements;

/// The sizes of a softmax attention on rows of queries, keys and values, whose scores are divided by the root of the head's width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionShape {
    /// The number of images.
    pub batch: usize,
    /// The number of tokens of an image.
    pub tokens: usize,
    /// How many tokens of each image have a row in the result, from the first on. Each of them attends to all tokens.
    pub queries: usize,
    /// The number of heads.
    pub heads: usize,
    /// The number of values of a token in one head.
    pub head_width: usize,
}

impl AttentionShape {
    /// Makes a shape in which every token attends, of `[batch, tokens]` and `[heads, head_width]`.
    pub fn new([batch, tokens]: [usize; 2], [heads, head_width]: [usize; 2]) -> Self {
        Self {
            batch,
            tokens,
            queries: tokens,
            heads,
            head_width,
        }
    }

    /// Returns the length of the input, `[batch, tokens, 3, heads, head_width]`: queries, keys and values.
    ///
    /// # Panics
    /// If no slice could hold it.
    pub fn in_len(&self) -> usize {
        let sizes = [self.batch, self.tokens, 3, self.heads, self.head_width];
        elements("input of an attention", &sizes)
    }

    /// Returns the length of the output, `[batch, queries, heads, head_width]`.
    ///
    /// # Panics
    /// If no slice could hold it.
    pub fn out_len(&self) -> usize {
        self.general().out_len()
    }

    /// Returns how many values a token has.
    pub fn width(&self) -> usize {
        self.heads * self.head_width
    }

    fn general(&self) -> ScaledDotProductShape {
        ScaledDotProductShape {
            batch: self.batch,
            heads: self.heads,
            queries: self.queries,
            tokens: self.tokens,
            width: self.head_width,
            value_width: self.head_width,
        }
    }

    /// The three parts of the rows.
    fn input<'a>(&self, qkv: &'a [f32]) -> AttentionInput<'a> {
        assert!(
            self.queries <= self.tokens && self.heads > 0 && self.head_width > 0,
            "an attention needs heads of some width and at most as many queries as tokens, found {self:?}"
        );
        let expected = self.in_len();
        assert!(
            qkv.len() == expected,
            "queries, keys and values of an attention: expected {expected} values, found {}, for {self:?}",
            qkv.len()
        );
        let width = self.width();
        let part = |part: usize| HeadRows {
            values: qkv.get(part * width..).unwrap_or_default(),
            strides: packed_strides(&self.general()),
        };
        AttentionInput {
            query: part(0),
            key: part(1),
            value: part(2),
            mask: None,
            scale: 1. / (self.head_width as f32).sqrt(),
        }
    }
}

/// From one image, head and token to the next, in `[batch, tokens, 3, heads, width]`.
fn packed_strides(shape: &ScaledDotProductShape) -> [usize; 3] {
    let row = 3 * shape.heads * shape.width;
    [shape.tokens * row, shape.width, row]
}

/// Attends. Returns the output, `[batch, queries, heads, head_width]`, and what [`attention_backward`] needs of each softmax,
/// `[batch, heads, queries, 2]`.
///
/// # Panics
/// If `qkv` is not as long as the shape says.
pub fn attention_forward(
    context: &Context,
    qkv: &[f32],
    shape: &AttentionShape,
) -> (Vec<f32>, Vec<f32>) {
    scaled_dot_product_forward(context, &shape.input(qkv), &shape.general())
}

/// Computes the gradient of queries, keys and values, `[batch, tokens, 3, heads, head_width]`, from that of the output.
///
/// # Panics
/// If a slice is not as long as the shape says.
pub fn attention_backward(
    context: &Context,
    dy: &[f32],
    qkv: &[f32],
    softmax: &[f32],
    shape: &AttentionShape,
) -> Vec<f32> {
    let input = shape.input(qkv);
    packed_attention_backward(context, dy, &input, softmax, &shape.general(), false).0
}

/// Computes the gradients of queries, keys and values as one tensor, `[batch, tokens, 3, heads, width]`, and that of the mask, `[images, heads, queries, tokens]`, if
/// `want_mask` and there is one. Queries that were not asked for have zeros.
///
/// # Panics
/// If an operand does not have the shape, values are not as wide as keys, or there are more queries than tokens.
pub fn packed_attention_backward(
    context: &Context,
    dy: &[f32],
    input: &AttentionInput,
    softmax: &[f32],
    shape: &ScaledDotProductShape,
    want_mask: bool,
) -> (Vec<f32>, Option<Vec<f32>>) {
    let s = shape;
    assert!(
        s.value_width == s.width && s.queries <= s.tokens,
        "queries, keys and values in one tensor need the same width and at most as many queries as tokens, found {s:?}"
    );
    let sizes = [s.batch, s.tokens, 3, s.heads, s.width];
    let len = elements("input of an attention", &sizes);
    let mut mask = None;
    let write = |out: Out| {
        let part = |part: usize| Places {
            out: Out(out.at(part * s.heads * s.width)),
            strides: packed_strides(s),
        };
        let to = Destination {
            query: part(0),
            key: part(1),
            value: part(2),
            query_rows: s.tokens,
        };
        // SAFETY: the strides are those of the output, in which every row has a place of its own.
        mask = unsafe { backward_into(context, dy, input, softmax, shape, to, want_mask) };
    };
    // SAFETY: all rows of all three parts are written.
    let gradient = unsafe { filled(context, len, write) };
    (gradient, mask)
}
