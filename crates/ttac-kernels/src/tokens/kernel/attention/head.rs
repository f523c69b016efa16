//! The rows of one head, packed for the product.

use super::shape::{AttentionInput, HeadRows, ScaledDotProductShape};
use crate::Context;
use crate::core::recycle::Scratch;
use crate::core::simd::Simd;
use crate::tokens::kernel::product::Product;

/// One head of one image.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub(super) context: &'a Context,
    pub(super) input: &'a AttentionInput<'a>,
    pub(super) shape: &'a ScaledDotProductShape,
    pub(super) image: usize,
    /// Which head it is.
    pub(super) number: usize,
}

/// Queries, keys or values.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Query,
    Key,
    Value,
}

/// Sizes in whole vectors.
#[derive(Clone, Copy)]
pub(super) struct Padded {
    /// Tokens.
    pub(super) tokens: usize,
    /// The values of a query or a key.
    pub(super) width: usize,
    /// The values of a value.
    pub(super) value_width: usize,
}

impl<'a> Head<'a> {
    #[inline(always)]
    pub(super) fn padded<S: Simd>(&self) -> Padded {
        let s = self.shape;
        Padded {
            tokens: s.tokens.next_multiple_of(S::LANES),
            width: s.width.next_multiple_of(S::LANES),
            value_width: s.value_width.next_multiple_of(S::LANES),
        }
    }

    fn rows(&self, part: Part) -> &HeadRows<'a> {
        match part {
            Part::Query => &self.input.query,
            Part::Key => &self.input.key,
            Part::Value => &self.input.value,
        }
    }

    /// A token's row of a part, and the distance to the next token's.
    pub(super) fn row(&self, part: Part, token: usize) -> (*const f32, usize) {
        let rows = self.rows(part);
        let [image, head, next] = rows.strides;
        let at = self.image * image + self.number * head + token * next;
        (rows.values.as_ptr().wrapping_add(at), next)
    }

    /// Where a query's result begins in the output; queries are [`out_stride`](Self::out_stride) apart.
    pub(super) fn out_at(&self, query: usize) -> usize {
        let s = self.shape;
        ((self.image * s.queries + query) * s.heads + self.number) * s.value_width
    }

    pub(super) fn out_stride(&self) -> usize {
        self.shape.heads * self.shape.value_width
    }

    /// Where what is kept of a query's softmax begins.
    pub(super) fn kept_at(&self, query: usize) -> usize {
        let s = self.shape;
        2 * ((self.image * s.heads + self.number) * s.queries + query)
    }

    /// Finishes a query's products with all keys, and returns the factor that is left for after the largest is taken away. Without a mask that is the scale,
    /// since the largest product then has the largest score.
    #[inline(always)]
    pub(super) fn finish_scores(&self, scores: &mut [f32], query: usize) -> f32 {
        let (s, scale) = (self.shape, self.input.scale);
        if let Some(mask) = &self.input.mask {
            let at = (mask.index(self.image, self.number) * s.queries + query) * s.tokens;
            for (score, added) in scores.iter_mut().zip(&mask.values[at..at + s.tokens]) {
                *score = *score * scale + added;
            }
            1.
        } else if scale < 0. {
            for score in scores {
                *score *= scale;
            }
            1.
        } else {
            scale
        }
    }

    /// Packs a part: `[tokens or queries][padded width]`, zeros after the width.
    ///
    /// # Safety
    /// The processor has `S`; the input has the shape.
    #[inline(always)]
    pub(super) unsafe fn pack<S: Simd>(&self, part: Part) -> Scratch<'a> {
        let s = self.shape;
        let (rows, width) = match part {
            Part::Query => (s.queries, s.width),
            Part::Key => (s.tokens, s.width),
            Part::Value => (s.tokens, s.value_width),
        };
        let (from, stride) = self.row(part, 0);
        // SAFETY: the rows of the shape exist.
        unsafe { self.pack_rows::<S>(from, [rows, width], stride) }
    }

    /// Packs some rows, `stride` apart, side by side and padded with zeros to whole vectors.
    ///
    /// # Safety
    /// The processor has `S`; the rows exist.
    #[inline(always)]
    pub(super) unsafe fn pack_rows<S: Simd>(
        &self,
        from: *const f32,
        [rows, width]: [usize; 2],
        stride: usize,
    ) -> Scratch<'a> {
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

    /// Turns the packed rows of all tokens into columns, `[width][tokens, padded]`, with zeros after the tokens.
    ///
    /// # Safety
    /// The processor has `S`; there is a row of `width`, padded, for every token.
    #[inline(always)]
    pub(super) unsafe fn transpose<S: Simd>(&self, packed: &Scratch, width: usize) -> Scratch<'a> {
        let tokens = self.shape.tokens;
        let (to_row, from_row) = (
            tokens.next_multiple_of(S::LANES),
            width.next_multiple_of(S::LANES),
        );
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

    /// The product of some rows of `width` values with the columns of all tokens: `c`, `[rows][tokens, padded]`.
    #[inline(always)]
    pub(super) fn by_tokens<S: Simd>(
        &self,
        [rows, width]: [usize; 2],
        (a, a_row): (*const f32, usize),
        columns: &Scratch,
        c: &mut Scratch,
    ) -> Product {
        let keys = self.padded::<S>().tokens;
        Product {
            rows,
            reduction: width,
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

    /// The product of `a`, `[rows][tokens, padded]`, with the packed rows of all tokens: `c`, `[rows][row]`, the padded width of the packed rows.
    #[inline(always)]
    pub(super) fn over_tokens<S: Simd>(
        &self,
        [rows, row]: [usize; 2],
        a: &Scratch,
        packed: &Scratch,
        c: &mut Scratch,
    ) -> Product {
        Product {
            rows,
            reduction: self.shape.tokens,
            vectors: row / S::LANES,
            a: a.as_ptr(),
            a_row: self.padded::<S>().tokens,
            a_step: 1,
            b: packed.as_ptr(),
            b_row: row,
            c: c.as_mut_ptr(),
            c_row: row,
            accumulate: false,
        }
    }
}
