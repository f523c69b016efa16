//! The rows of one head, packed for the product.

use super::AttentionShape;
use crate::Context;
use crate::core::recycle::Scratch;
use crate::core::simd::Simd;
use crate::tokens::kernel::product::Product;

/// One head of one image.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub(super) context: &'a Context,
    pub(super) qkv: &'a [f32],
    pub(super) shape: &'a AttentionShape,
    pub(super) task: usize,
}

/// Queries, keys or values.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Query,
    Key,
    Value,
}

impl<'a> Head<'a> {
    pub(super) fn new(
        context: &'a Context,
        qkv: &'a [f32],
        shape: &'a AttentionShape,
        task: usize,
    ) -> Self {
        Self {
            context,
            qkv,
            shape,
            task,
        }
    }

    /// Tokens and values of a head, both in whole vectors.
    #[inline(always)]
    pub(super) fn padded<S: Simd>(&self) -> (usize, usize) {
        (
            self.shape.tokens.next_multiple_of(S::LANES),
            self.shape.head_width.next_multiple_of(S::LANES),
        )
    }

    /// Where a token's part begins among queries, keys and values; tokens are three widths apart.
    pub(super) fn at(&self, part: Part, token: usize) -> usize {
        let s = self.shape;
        let (image, head) = (self.task / s.heads, self.task % s.heads);
        ((image * s.tokens + token) * 3 + part as usize) * s.width() + head * s.head_width
    }

    /// Where a query's result begins in the output; queries are one width apart.
    pub(super) fn out_at(&self, query: usize) -> usize {
        let s = self.shape;
        let (image, head) = (self.task / s.heads, self.task % s.heads);
        (image * s.queries + query) * s.width() + head * s.head_width
    }

    /// Packs a part: `[tokens][padded width]`, zeros after the width.
    ///
    /// # Safety
    /// The processor has `S`; the shape is that of the input.
    #[inline(always)]
    pub(super) unsafe fn pack<S: Simd>(&self, part: Part) -> Scratch<'a> {
        let s = self.shape;
        // SAFETY: the tokens of the shape exist.
        unsafe {
            let from = self.qkv.as_ptr().add(self.at(part, 0));
            self.pack_rows::<S>(from, s.tokens, 3 * s.width())
        }
    }

    /// Packs some rows of a head's width, `stride` apart, side by side and padded with zeros to whole vectors.
    ///
    /// # Safety
    /// The processor has `S`; the rows exist.
    #[inline(always)]
    pub(super) unsafe fn pack_rows<S: Simd>(
        &self,
        from: *const f32,
        rows: usize,
        stride: usize,
    ) -> Scratch<'a> {
        let width = self.shape.head_width;
        let padded = width.next_multiple_of(S::LANES);
        let mut out = Scratch::new(self.context, &[rows, padded]);
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

    /// Turns packed rows into columns, `[width][tokens, padded]`, with zeros after the tokens.
    ///
    /// # Safety
    /// The processor has `S`; there is a row for every token.
    #[inline(always)]
    pub(super) unsafe fn transpose<S: Simd>(&self, packed: &Scratch) -> Scratch<'a> {
        let (tokens, width) = (self.shape.tokens, self.shape.head_width);
        let (to_row, from_row) = self.padded::<S>();
        let mut out = Scratch::new(self.context, &[width, to_row]);
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

    /// The product of some rows of a head's width with the columns of all tokens: `c`, `[rows][tokens, padded]`.
    #[inline(always)]
    pub(super) fn by_tokens<S: Simd>(
        &self,
        rows: usize,
        (a, a_row): (*const f32, usize),
        columns: &Scratch,
        c: &mut Scratch,
    ) -> Product {
        let (keys, _) = self.padded::<S>();
        Product {
            rows,
            reduction: self.shape.head_width,
            vectors: keys / S::LANES,
            a,
            a_row,
            a_step: 1,
            b: columns.as_ptr(),
            b_row: keys,
            c: c.as_mut_ptr(),
            c_row: keys,
            accumulate: false,
        }
    }

    /// The product of `a`, `[rows][tokens, padded]`, with the packed rows of all tokens: `c`, `[rows][width, padded]`.
    #[inline(always)]
    pub(super) fn over_tokens<S: Simd>(
        &self,
        rows: usize,
        a: &Scratch,
        packed: &Scratch,
        c: &mut Scratch,
    ) -> Product {
        let (keys, row) = self.padded::<S>();
        Product {
            rows,
            reduction: self.shape.tokens,
            vectors: row / S::LANES,
            a: a.as_ptr(),
            a_row: keys,
            a_step: 1,
            b: packed.as_ptr(),
            b_row: row,
            c: c.as_mut_ptr(),
            c_row: row,
            accumulate: false,
        }
    }
}
