//! Softmax attention: `y_i = sum over j of softmax_j(q_i k_j / sqrt(d)) v_j`, for each image and head.
//!
//! A task is one head of one image. It walks the queries in blocks: the scores of a block against all keys, their softmax, the weighted values. So the memory beyond
//! the result is a block of scores per core, however many tokens there are. Of the forward pass only the largest score and the sum of each softmax are
//! kept; the backward pass makes the same scores again, and then, with `P` the probabilities,
//!
//! `dV = P^T dY`, `dP = dY V^T`, `dS = P (dP - rowsum(P dP)) / sqrt(d)`, `dQ = dS K`, `dK = dS^T Q`.
//!
//! Sums over queries are made block after block inside a task, so their order is the same for any number of threads.
//!
//! | file | what |
//! |---|---|
//! | `head` | the rows of one head, packed for the product |
//! | `forward`, `backward` | the two passes over one head |

mod backward;
mod forward;
mod head;

use rayon::prelude::*;

use crate::Context;
use crate::core::parallel::{Out, filled};
use crate::core::shape::elements;
use backward::Backward;
use forward::Forward;
use head::Head;

/// Most queries in a block. Their scores against a few hundred keys stay in the second-level cache.
const BLOCK: usize = 48;

/// The sizes of a softmax attention.
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
        let sizes = [self.batch, self.queries, self.heads, self.head_width];
        elements("output of an attention", &sizes)
    }

    /// Returns how many values a token has.
    pub fn width(&self) -> usize {
        self.heads * self.head_width
    }

    /// Length of what is kept of each softmax, `[batch, heads, queries, 2]`: largest score, inverse of the sum.
    fn kept_len(&self) -> usize {
        let sizes = [self.batch, self.heads, self.queries, 2];
        elements("softmax of an attention", &sizes)
    }

    fn scale(&self) -> f32 {
        1. / (self.head_width as f32).sqrt()
    }

    /// Queries in a block: blocks as long as each other.
    fn block(&self) -> usize {
        let blocks = self.queries.div_ceil(BLOCK).max(1);
        self.queries.div_ceil(blocks).max(1)
    }

    fn check(&self, qkv: &[f32]) {
        assert!(
            self.queries <= self.tokens && self.heads > 0 && self.head_width > 0,
            "an attention needs heads of some width and at most as many queries as tokens, found {self:?}"
        );
        self.check_len("queries, keys and values", qkv, self.in_len());
    }

    fn check_len(&self, what: &str, data: &[f32], expected: usize) {
        assert!(
            data.len() == expected,
            "{what} of an attention: expected {expected} values, found {}, for {self:?}",
            data.len()
        );
    }
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
    shape.check(qkv);
    let mut kept = vec![0f32; shape.kept_len()];
    let softmax = Out(kept.as_mut_ptr());
    let write = |out: Out| {
        let tasks = 0..shape.batch * shape.heads;
        tasks.into_par_iter().for_each(|task| {
            let head = Head::new(context, qkv, shape, task);
            let forward = Forward { head, out, softmax };
            // SAFETY: the input has the length of the shape, output and softmax have room for it, and no other task has this head of this image.
            unsafe { context.isa().run(forward) };
        });
    };
    // SAFETY: the tasks cover all images and heads, and each writes all of its queries.
    let out = unsafe { filled(context, shape.out_len(), write) };
    (out, kept)
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
    shape.check(qkv);
    shape.check_len("output gradient", dy, shape.out_len());
    shape.check_len("softmax", softmax, shape.kept_len());
    let write = |out: Out| {
        let tasks = 0..shape.batch * shape.heads;
        tasks.into_par_iter().for_each(|task| {
            let backward = Backward {
                head: Head::new(context, qkv, shape, task),
                dy,
                softmax,
                out,
            };
            // SAFETY: the slices have the lengths of the shape, the output has room for it, and no other task has this head of this image.
            unsafe { context.isa().run(backward) };
        });
    };
    // SAFETY: the tasks cover all images and heads, and each writes all three parts of its tokens.
    unsafe { filled(context, shape.in_len(), write) }
}
