//! The backward pass over one head.

use super::head::{Head, Part};
use crate::core::parallel::Out;
use crate::core::recycle::Scratch;
use crate::core::simd::{Kernel, Simd};
use crate::tokens::kernel::functions::{dot, exp};
use crate::tokens::kernel::product::Product;

/// Where the gradients of queries, keys or values go: the row of an image, a head and a token, as in [`HeadRows`](super::HeadRows).
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub(super) out: Out,
    pub(super) strides: [usize; 3],
}

/// Where the gradients of an attention go.
#[derive(Clone, Copy)]
pub(super) struct Destination {
    pub(super) query: Places,
    pub(super) key: Places,
    pub(super) value: Places,
    /// How many queries of an image and a head have a place. Those that were not asked for get zeros.
    pub(super) query_rows: usize,
}

/// The sum of a mask's gradient, `[queries, tokens]`.
#[derive(Clone, Copy)]
pub(super) struct MaskSum {
    pub(super) out: Out,
    /// Whether other heads have been added before.
    pub(super) accumulate: bool,
}

/// One head of one image, with the gradients of all.
pub(super) struct Backward<'a> {
    pub(super) head: Head<'a>,
    pub(super) dy: &'a [f32],
    pub(super) softmax: &'a [f32],
    pub(super) to: Destination,
    pub(super) mask: Option<MaskSum>,
}

impl Kernel for Backward<'_> {
    /// # Safety
    /// The input has the shape, gradient and softmax have its lengths, the destinations have room for it, and nobody else uses this head's part of them.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let head = self.head;
        let s = head.shape;
        let (tokens, block) = (s.tokens, s.block());
        let padded = head.padded::<S>();
        let (keys, row, value_row) = (padded.tokens, padded.width, padded.value_width);
        let scratch = |rows: usize, columns: usize| Scratch::new(head.context, &[rows, columns]);
        // SAFETY: all offsets are inside the checked shape, and scratch buffers are as long as they are walked.
        unsafe {
            let query = head.pack::<S>(Part::Query);
            let key = head.pack::<S>(Part::Key);
            let key_columns = head.transpose::<S>(&key, s.width);
            let value_columns = head.transpose::<S>(&head.pack::<S>(Part::Value), s.value_width);
            let upstream = self.dy.as_ptr().wrapping_add(head.out_at(0));
            let size = [s.queries, s.value_width];
            let upstream = head.pack_rows::<S>(upstream, size, head.out_stride());
            let (mut p, mut ds) = (scratch(block, keys), scratch(block, keys));
            let mut dq = scratch(block, row);
            let (mut dk, mut dv) = (scratch(tokens, row), scratch(tokens, value_row));
            for first in (0..s.queries).step_by(block) {
                let count = block.min(s.queries - first);
                let asked = query.as_ptr().add(first * row);
                let dy = upstream.as_ptr().add(first * value_row);
                // Scores and dP: queries by keys.
                S::enter(&head.by_tokens::<S>(
                    [count, s.width],
                    (asked, row),
                    &key_columns,
                    &mut p,
                ));
                let (size, a) = ([count, s.value_width], (dy, value_row));
                S::enter(&head.by_tokens::<S>(size, a, &value_columns, &mut ds));
                for i in 0..count {
                    let line = |block: &mut Scratch| {
                        std::slice::from_raw_parts_mut(block.as_mut_ptr().add(i * keys), tokens)
                    };
                    self.score_gradients(first + i, line(&mut p), line(&mut ds));
                }
                S::enter(&head.over_tokens::<S>([count, row], &ds, &key, &mut dq));
                self.write::<S>(&self.to.query, first, (&dq, s.width), count);
                // dK and dV: keys by width, summed over the queries.
                let sum = |a: &Scratch, (b, row): (*const f32, usize), c: &mut Scratch| Product {
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
                S::enter(&sum(&ds, (asked, row), &mut dk));
                S::enter(&sum(&p, (dy, value_row), &mut dv));
            }
            if s.queries == 0 {
                for (sums, row) in [(&mut dk, row), (&mut dv, value_row)] {
                    for at in (0..tokens * row).step_by(S::LANES) {
                        S::store(sums.as_mut_ptr().add(at), S::splat(0.));
                    }
                }
            }
            self.write::<S>(&self.to.key, 0, (&dk, s.width), tokens);
            self.write::<S>(&self.to.value, 0, (&dv, s.value_width), tokens);
            self.write_zeros::<S>();
        }
    }
}

impl Backward<'_> {
    /// Turns the products `p` of one query with all keys into probabilities, and the gradient `dp` of the probabilities into that of the products.
    ///
    /// # Safety
    /// As [`Kernel::run`]; both are as long as there are tokens.
    #[inline(always)]
    unsafe fn score_gradients(&self, query: usize, p: &mut [f32], dp: &mut [f32]) {
        let head = &self.head;
        let kept = head.kept_at(query);
        let (most, inverse) = (self.softmax[kept], self.softmax[kept + 1]);
        let left = head.finish_scores(p, query);
        for p in p.iter_mut() {
            *p = exp((*p - most) * left) * inverse;
        }
        let (mean, scale) = (dot(p, dp), head.input.scale);
        let Some(mask) = self.mask else {
            for (dp, p) in dp.iter_mut().zip(p) {
                *dp = *p * (*dp - mean) * scale;
            }
            return;
        };
        let tokens = dp.len();
        let sums = mask.out.at(query * tokens);
        if !mask.accumulate {
            for token in 0..tokens {
                // SAFETY: the sum has room for all tokens of every query.
                unsafe { *sums.add(token) = 0. };
            }
        }
        // SAFETY: as above, and the floats were written, now or by the heads before.
        let sums = unsafe { std::slice::from_raw_parts_mut(sums, tokens) };
        for ((dp, p), sum) in dp.iter_mut().zip(p).zip(sums) {
            let gradient = *p * (*dp - mean);
            *sum += gradient;
            *dp = gradient * scale;
        }
    }

    /// Writes packed rows to their place among the gradients, from token `first` on.
    ///
    /// # Safety
    /// The processor has `S`; the rows exist, and nobody else writes there.
    #[inline(always)]
    unsafe fn write<S: Simd>(
        &self,
        to: &Places,
        first: usize,
        (rows, width): (&Scratch, usize),
        count: usize,
    ) {
        let row = width.next_multiple_of(S::LANES);
        for i in 0..count {
            let to = self.place(to, first + i);
            for at in (0..width).step_by(S::LANES) {
                // SAFETY: as promised by the caller.
                unsafe {
                    let value = S::load(rows.as_ptr().add(i * row + at));
                    S::store_partial(to.add(at), value, width - at);
                }
            }
        }
    }

    #[inline(always)]
    fn place(&self, to: &Places, token: usize) -> *mut f32 {
        let [image, head, next] = to.strides;
        let at = self.head.image * image + self.head.number * head + token * next;
        to.out.at(at)
    }

    /// Writes zeros as the gradients of the queries that were not asked for. The forward pass does not read the query of a token from `shape.queries` on, so
    /// the result does not depend on it.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn write_zeros<S: Simd>(&self) {
        let s = self.head.shape;
        for token in s.queries..self.to.query_rows {
            let to = self.place(&self.to.query, token);
            for at in (0..s.width).step_by(S::LANES) {
                // SAFETY: the query of a token that exists, in the part that the caller vouches for.
                unsafe { S::store_partial(to.add(at), S::splat(0.), s.width - at) };
            }
        }
    }
}
