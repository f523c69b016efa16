//! The backward pass over one head.

use super::head::{Head, Part};
use crate::core::parallel::Out;
use crate::core::recycle::Scratch;
use crate::core::simd::{Kernel, Simd};
use crate::tokens::kernel::functions::{dot, exp};
use crate::tokens::kernel::product::Product;

/// One head of one image, with the gradients of all.
pub(super) struct Backward<'a> {
    pub(super) head: Head<'a>,
    pub(super) dy: &'a [f32],
    pub(super) softmax: &'a [f32],
    pub(super) out: Out,
}

impl Kernel for Backward<'_> {
    /// # Safety
    /// The slices have the lengths of the shape, the output has room for it, and nobody else uses this head's part of the output.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let head = self.head;
        let s = head.shape;
        let (tokens, block) = (s.tokens, s.block());
        let (keys, row) = head.padded::<S>();
        let scratch = |rows: usize, columns: usize| Scratch::new(head.context, &[rows, columns]);
        // SAFETY: all offsets are inside the checked shape, and scratch buffers are as long as they are walked.
        unsafe {
            let query = head.pack::<S>(Part::Query);
            let key = head.pack::<S>(Part::Key);
            let key_columns = head.transpose::<S>(&key);
            let value_columns = head.transpose::<S>(&head.pack::<S>(Part::Value));
            let upstream = self.dy.as_ptr().add(head.out_at(0));
            let upstream = head.pack_rows::<S>(upstream, s.queries, s.width());
            let (mut p, mut ds) = (scratch(block, keys), scratch(block, keys));
            let mut dq = scratch(block, row);
            let (mut dk, mut dv) = (scratch(tokens, row), scratch(tokens, row));
            for first in (0..s.queries).step_by(block) {
                let count = block.min(s.queries - first);
                let asked = query.as_ptr().add(first * row);
                let dy = upstream.as_ptr().add(first * row);
                // Scores and dP: queries by keys.
                S::enter(&head.by_tokens::<S>(count, (asked, row), &key_columns, &mut p));
                S::enter(&head.by_tokens::<S>(count, (dy, row), &value_columns, &mut ds));
                for i in 0..count {
                    let kept = 2 * (head.task * s.queries + first + i);
                    let line = |block: &mut Scratch| {
                        std::slice::from_raw_parts_mut(block.as_mut_ptr().add(i * keys), tokens)
                    };
                    let kept = [self.softmax[kept], self.softmax[kept + 1]];
                    score_gradients(line(&mut p), line(&mut ds), kept, s.scale());
                }
                S::enter(&head.over_tokens::<S>(count, &ds, &key, &mut dq));
                self.write::<S>(Part::Query, first, &dq, count);
                // dK and dV: keys by width, summed over the queries.
                let sum = |a: &Scratch, b: *const f32, c: &mut Scratch| Product {
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
                S::enter(&sum(&ds, asked, &mut dk));
                S::enter(&sum(&p, dy, &mut dv));
            }
            if s.queries == 0 {
                for at in (0..tokens * row).step_by(S::LANES) {
                    S::store(dk.as_mut_ptr().add(at), S::splat(0.));
                    S::store(dv.as_mut_ptr().add(at), S::splat(0.));
                }
            }
            self.write::<S>(Part::Key, 0, &dk, tokens);
            self.write::<S>(Part::Value, 0, &dv, tokens);
            self.write_zeros::<S>();
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

    /// Writes zeros as the gradients of the queries that were not asked for. The forward pass does not read the query of a token from `shape.queries` on, so
    /// the result does not depend on it.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn write_zeros<S: Simd>(&self) {
        let s = self.head.shape;
        for token in s.queries..s.tokens {
            let to = self.out.at(self.head.at(Part::Query, token));
            for at in (0..s.head_width).step_by(S::LANES) {
                // SAFETY: the query of a token that exists, in the part that the caller vouches for.
                unsafe { S::store_partial(to.add(at), S::splat(0.), s.head_width - at) };
            }
        }
    }
}

/// Turns the scores `p` of one query into probabilities, and the gradient `dp` of the probabilities into that of the scores.
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
