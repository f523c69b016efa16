//! Softmax attention: `y_i = sum over j of softmax_j(q_i k_j / sqrt(d)) v_j`, for each image and head.
//!
//! A task is one head of one image. It walks the queries in blocks: the scores of a block against all keys, their softmax, the weighted values. So the memory beyond
//! the result is a block of scores per core, however many tokens there are. Of the forward pass only the largest score and the sum of each softmax are
//! kept; the backward pass makes the same scores again, and then, with `P` the probabilities,
//!
//! `dV = P^T dY`, `dP = dY V^T`, `dS = P (dP - rowsum(P dP)) / sqrt(d)`, `dQ = dS K`, `dK = dS^T Q`.
//!
//! Sums over queries are made block after block inside a task, so their order is the same for any number of threads.

use super::functions::{dot, exp, largest};
use super::product::Product;
use crate::kernels::recycle::Scratch;
use crate::kernels::simd::{Isa, Kernel, Simd};
use crate::kernels::{Out, filled};
use rayon::prelude::*;

/// Most queries in a block. Their scores against a few hundred keys stay in the second-level cache.
const BLOCK: usize = 48;

/// The sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionShape {
    /// Images.
    pub batch: usize,
    /// Tokens of an image.
    pub tokens: usize,
    /// How many of the tokens ask, from the first on. All of them are asked.
    pub queries: usize,
    /// Heads.
    pub heads: usize,
    /// Values of a token in one head.
    pub head_width: usize,
}

impl AttentionShape {
    /// Length of the input, `[batch, tokens, 3, heads, head_width]`: queries, keys and values.
    pub fn in_len(&self) -> usize {
        3 * self.batch * self.tokens * self.width()
    }

    /// Length of the output, `[batch, queries, heads, head_width]`.
    pub fn out_len(&self) -> usize {
        self.batch * self.queries * self.width()
    }

    /// Values of a token.
    pub fn width(&self) -> usize {
        self.heads * self.head_width
    }

    /// Length of what is kept of each softmax, `[batch, heads, queries, 2]`: largest score, inverse of the sum.
    fn kept_len(&self) -> usize {
        2 * self.batch * self.heads * self.queries
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
        check_len("queries, keys and values", qkv, self.in_len(), self);
    }
}

fn check_len(what: &str, data: &[f32], expected: usize, shape: &AttentionShape) {
    assert!(
        data.len() == expected,
        "{what} of an attention: expected {expected} values, found {}, for {shape:?}",
        data.len()
    );
}

/// The output, `[batch, queries, heads, head_width]`, and what [`attention_backward`] needs of each softmax, `[batch, heads, queries, 2]`.
///
/// # Panics
/// If `qkv` is not as long as the shape says.
pub fn attention_forward(qkv: &[f32], shape: &AttentionShape) -> (Vec<f32>, Vec<f32>) {
    shape.check(qkv);
    let isa = Isa::current();
    let mut kept = vec![0f32; shape.kept_len()];
    let softmax = Out(kept.as_mut_ptr());
    // SAFETY: the tasks cover all images and heads, and each writes all of its queries.
    let out = unsafe {
        filled(shape.out_len(), |out| {
            (0..shape.batch * shape.heads)
                .into_par_iter()
                .for_each(|task| {
                    isa.run(Forward {
                        head: Head::new(qkv, shape, task),
                        out,
                        softmax,
                    });
                });
        })
    };
    (out, kept)
}

/// The gradient of queries, keys and values, `[batch, tokens, 3, heads, head_width]`, from that of the output.
///
/// # Panics
/// If a slice is not as long as the shape says.
pub fn attention_backward(
    dy: &[f32],
    qkv: &[f32],
    softmax: &[f32],
    shape: &AttentionShape,
) -> Vec<f32> {
    shape.check(qkv);
    check_len("output gradient", dy, shape.out_len(), shape);
    check_len("softmax", softmax, shape.kept_len(), shape);
    let isa = Isa::current();
    // SAFETY: the tasks cover all images and heads, and each writes all three parts of its tokens.
    unsafe {
        filled(shape.in_len(), |out| {
            (0..shape.batch * shape.heads)
                .into_par_iter()
                .for_each(|task| {
                    isa.run(Backward {
                        head: Head::new(qkv, shape, task),
                        dy,
                        softmax,
                        out,
                    });
                });
        })
    }
}

/// One head of one image.
#[derive(Clone, Copy)]
struct Head<'a> {
    qkv: &'a [f32],
    shape: &'a AttentionShape,
    task: usize,
}

/// Queries, keys or values.
#[derive(Clone, Copy)]
enum Part {
    Query,
    Key,
    Value,
}

impl<'a> Head<'a> {
    fn new(qkv: &'a [f32], shape: &'a AttentionShape, task: usize) -> Self {
        Self { qkv, shape, task }
    }

    /// Where a token's part begins among queries, keys and values; tokens are three widths apart.
    fn at(&self, part: Part, token: usize) -> usize {
        let s = self.shape;
        let (image, head) = (self.task / s.heads, self.task % s.heads);
        ((image * s.tokens + token) * 3 + part as usize) * s.width() + head * s.head_width
    }

    /// Where a query's result begins in the output; queries are one width apart.
    fn out_at(&self, query: usize) -> usize {
        let s = self.shape;
        let (image, head) = (self.task / s.heads, self.task % s.heads);
        (image * s.queries + query) * s.width() + head * s.head_width
    }

    /// A part, `[tokens][padded width]`, zeros after the width.
    #[inline(always)]
    unsafe fn pack<S: Simd>(&self, part: Part) -> Scratch {
        let s = self.shape;
        // SAFETY: the shape was checked.
        unsafe {
            let from = self.qkv.as_ptr().add(self.at(part, 0));
            pack::<S>(from, s.tokens, s.head_width, 3 * s.width())
        }
    }
}

/// Some rows, `stride` apart, side by side and padded with zeros to whole vectors.
///
/// # Safety
/// The processor has `S`; the rows exist.
#[inline(always)]
unsafe fn pack<S: Simd>(from: *const f32, rows: usize, width: usize, stride: usize) -> Scratch {
    let padded = width.next_multiple_of(S::LANES);
    let mut out = Scratch::new(rows * padded);
    for row in 0..rows {
        for at in (0..width).step_by(S::LANES) {
            // SAFETY: `min(LANES, width - at)` values are read, a vector is written into the padded row.
            unsafe {
                S::store(
                    out.as_mut_ptr().add(row * padded + at),
                    S::load_partial(from.add(row * stride + at), width - at),
                );
            }
        }
    }
    out
}

/// `[width][tokens, padded]` of packed rows, zeros after the tokens.
///
/// # Safety
/// The processor has `S`; the rows exist.
#[inline(always)]
unsafe fn transpose<S: Simd>(packed: &Scratch, tokens: usize, width: usize) -> Scratch {
    let (from_row, to_row) = (
        width.next_multiple_of(S::LANES),
        tokens.next_multiple_of(S::LANES),
    );
    let mut out = Scratch::new(width * to_row);
    for value in 0..width {
        let to = out.as_mut_ptr().wrapping_add(value * to_row);
        let from = packed.as_ptr().wrapping_add(value);
        // SAFETY: rows and columns exist in both.
        unsafe {
            for token in 0..tokens {
                *to.add(token) = *from.add(token * from_row);
            }
            for token in tokens..to_row {
                *to.add(token) = 0.;
            }
        }
    }
    out
}

struct Forward<'a> {
    head: Head<'a>,
    out: Out,
    softmax: Out,
}

impl Kernel for Forward<'_> {
    type Output = ();

    /// # Safety
    /// Nobody else writes this head's results.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let head = self.head;
        let s = head.shape;
        let (tokens, width, block) = (s.tokens, s.head_width, s.block());
        let (keys, row) = (
            tokens.next_multiple_of(S::LANES),
            width.next_multiple_of(S::LANES),
        );
        // SAFETY: all offsets are inside the checked shape, and scratch buffers are as long as they are walked.
        unsafe {
            let transposed = transpose::<S>(&head.pack::<S>(Part::Key), tokens, width);
            let values = head.pack::<S>(Part::Value);
            let mut scores = Scratch::new(block * keys);
            let mut mixed = Scratch::new(block * row);
            for first in (0..s.queries).step_by(block) {
                let count = block.min(s.queries - first);
                S::enter(&Product {
                    rows: count,
                    reduction: width,
                    vectors: keys / S::LANES,
                    a: head.qkv.as_ptr().add(head.at(Part::Query, first)),
                    a_row: 3 * s.width(),
                    a_step: 1,
                    b: transposed.as_ptr(),
                    b_row: keys,
                    c: scores.as_mut_ptr(),
                    c_row: keys,
                    accumulate: false,
                });
                let kept = self.softmax.at(2 * (head.task * s.queries + first));
                for i in 0..count {
                    let scores = scores.as_mut_ptr().add(i * keys);
                    let scores = std::slice::from_raw_parts_mut(scores, tokens);
                    let most = largest(scores);
                    exponentials(scores, most, s.scale());
                    *kept.add(2 * i) = most;
                    *kept.add(2 * i + 1) = 1. / sum(scores);
                }
                S::enter(&Product {
                    rows: count,
                    reduction: tokens,
                    vectors: row / S::LANES,
                    a: scores.as_ptr(),
                    a_row: keys,
                    a_step: 1,
                    b: values.as_ptr(),
                    b_row: row,
                    c: mixed.as_mut_ptr(),
                    c_row: row,
                    accumulate: false,
                });
                for i in 0..count {
                    let inverse = S::splat(*kept.add(2 * i + 1));
                    let (from, to) = (
                        mixed.as_ptr().add(i * row),
                        self.out.at(head.out_at(first + i)),
                    );
                    for at in (0..width).step_by(S::LANES) {
                        let value = S::mul(S::load(from.add(at)), inverse);
                        S::store_partial(to.add(at), value, width - at);
                    }
                }
            }
        }
    }
}

/// `exp((score - most) * scale)` in place of each score.
#[inline(always)]
fn exponentials(scores: &mut [f32], most: f32, scale: f32) {
    for score in scores {
        *score = exp((*score - most) * scale);
    }
}

#[inline(always)]
fn sum(values: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let (chunks, rest) = values.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += value;
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane += value;
    }
    lanes.into_iter().sum()
}

struct Backward<'a> {
    head: Head<'a>,
    dy: &'a [f32],
    softmax: &'a [f32],
    out: Out,
}

impl Kernel for Backward<'_> {
    type Output = ();

    /// # Safety
    /// Nobody else writes this head's gradients.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let head = self.head;
        let s = head.shape;
        let (tokens, width, block) = (s.tokens, s.head_width, s.block());
        let (keys, row) = (
            tokens.next_multiple_of(S::LANES),
            width.next_multiple_of(S::LANES),
        );
        // SAFETY: all offsets are inside the checked shape, and scratch buffers are as long as they are walked.
        unsafe {
            let query = head.pack::<S>(Part::Query);
            let key = head.pack::<S>(Part::Key);
            let key_columns = transpose::<S>(&key, tokens, width);
            let value_columns = transpose::<S>(&head.pack::<S>(Part::Value), tokens, width);
            let upstream = pack::<S>(
                self.dy.as_ptr().add(head.out_at(0)),
                s.queries,
                width,
                s.width(),
            );
            let mut p = Scratch::new(block * keys);
            let mut ds = Scratch::new(block * keys);
            let mut dq = Scratch::new(block * row);
            let (mut dk, mut dv) = (Scratch::new(tokens * row), Scratch::new(tokens * row));
            for first in (0..s.queries).step_by(block) {
                let count = block.min(s.queries - first);
                let (asked, dy) = (
                    query.as_ptr().add(first * row),
                    upstream.as_ptr().add(first * row),
                );
                // Scores and dP: queries by keys.
                let by_keys = |a: *const f32, b: &Scratch, c: &mut Scratch| Product {
                    rows: count,
                    reduction: width,
                    vectors: keys / S::LANES,
                    a,
                    a_row: row,
                    a_step: 1,
                    b: b.as_ptr(),
                    b_row: keys,
                    c: c.as_mut_ptr(),
                    c_row: keys,
                    accumulate: false,
                };
                S::enter(&by_keys(asked, &key_columns, &mut p));
                S::enter(&by_keys(dy, &value_columns, &mut ds));
                for i in 0..count {
                    let kept = 2 * (head.task * s.queries + first + i);
                    let line = |block: &mut Scratch| {
                        std::slice::from_raw_parts_mut(block.as_mut_ptr().add(i * keys), tokens)
                    };
                    score_gradients(
                        line(&mut p),
                        line(&mut ds),
                        [self.softmax[kept], self.softmax[kept + 1]],
                        s.scale(),
                    );
                }
                S::enter(&Product {
                    rows: count,
                    reduction: tokens,
                    vectors: row / S::LANES,
                    a: ds.as_ptr(),
                    a_row: keys,
                    a_step: 1,
                    b: key.as_ptr(),
                    b_row: row,
                    c: dq.as_mut_ptr(),
                    c_row: row,
                    accumulate: false,
                });
                self.write::<S>(Part::Query, first, &dq, count);
                // dK and dV: keys by width, summed over the queries.
                let by_tokens = |a: &Scratch, b: *const f32, c: &mut Scratch| Product {
                    rows: tokens,
                    reduction: count,
                    vectors: row / S::LANES,
                    a: a.as_ptr(),
                    a_row: 1,
                    a_step: keys,
                    b,
                    b_row: row,
                    c: c.as_mut_ptr(),
                    c_row: row,
                    accumulate: first > 0,
                };
                S::enter(&by_tokens(&ds, asked, &mut dk));
                S::enter(&by_tokens(&p, dy, &mut dv));
            }
            if s.queries == 0 {
                for at in (0..tokens * row).step_by(S::LANES) {
                    S::store(dk.as_mut_ptr().add(at), S::splat(0.));
                    S::store(dv.as_mut_ptr().add(at), S::splat(0.));
                }
            }
            self.write::<S>(Part::Key, 0, &dk, tokens);
            self.write::<S>(Part::Value, 0, &dv, tokens);
            // Who did not ask has no part in the result as a query.
            for token in s.queries..tokens {
                let to = self.out.at(head.at(Part::Query, token));
                for at in (0..width).step_by(S::LANES) {
                    S::store_partial(to.add(at), S::splat(0.), width - at);
                }
            }
        }
    }
}

impl Backward<'_> {
    /// Writes packed rows to their place among the gradients, from `first` on.
    ///
    /// # Safety
    /// The processor has `S`; the rows exist, and nobody else writes there.
    #[inline(always)]
    unsafe fn write<S: Simd>(&self, part: Part, first: usize, rows: &Scratch, count: usize) {
        let s = self.head.shape;
        let row = s.head_width.next_multiple_of(S::LANES);
        for i in 0..count {
            let to = self.out.at(self.head.at(part, first + i));
            for at in (0..s.head_width).step_by(S::LANES) {
                // SAFETY: as promised by the caller.
                unsafe {
                    let value = S::load(rows.as_ptr().add(i * row + at));
                    S::store_partial(to.add(at), value, s.head_width - at);
                }
            }
        }
    }
}

/// Of one query: scores become probabilities, `dp` becomes the gradient of the scores.
#[inline(always)]
fn score_gradients(p: &mut [f32], dp: &mut [f32], [most, inverse]: [f32; 2], scale: f32) {
    for p in p.iter_mut() {
        *p = exp((*p - most) * scale) * inverse;
    }
    let mean = dot(p, dp);
    for (dp, p) in dp.iter_mut().zip(p) {
        *dp = *p * (*dp - mean) * scale;
    }
}
