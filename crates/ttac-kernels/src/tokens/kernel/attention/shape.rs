//! The sizes of an attention, and where the rows of its operands lie.

use super::mask::AddedMask;
use crate::core::shape::elements;

/// Most queries in a block. Their scores against a few hundred keys stay in the second-level cache.
const BLOCK: usize = 48;

/// The sizes of a scaled dot-product attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaledDotProductShape {
    /// The number of images.
    pub batch: usize,
    /// The number of heads.
    pub heads: usize,
    /// The number of queries of an image.
    pub queries: usize,
    /// The number of keys and values of an image.
    pub tokens: usize,
    /// The number of values of a query or a key in one head.
    pub width: usize,
    /// The number of values of a value, and of a row of the result, in one head.
    pub value_width: usize,
}

impl ScaledDotProductShape {
    /// Returns the length of the output, `[batch, queries, heads, value_width]`.
    ///
    /// # Panics
    /// If no slice could hold it.
    pub fn out_len(&self) -> usize {
        let sizes = [self.batch, self.queries, self.heads, self.value_width];
        elements("output of an attention", &sizes)
    }

    /// Length of what is kept of each softmax, `[batch, heads, queries, 2]`: largest score, inverse of the sum.
    pub(super) fn kept_len(&self) -> usize {
        let sizes = [self.batch, self.heads, self.queries, 2];
        elements("softmax of an attention", &sizes)
    }

    /// Queries in a block: blocks as long as each other.
    pub(super) fn block(&self) -> usize {
        let blocks = self.queries.div_ceil(BLOCK).max(1);
        self.queries.div_ceil(blocks).max(1)
    }

    pub(super) fn check_len(&self, what: &str, found: usize, expected: usize) {
        assert!(
            found == expected,
            "{what} of an attention: expected {expected} values, found {found}, for {self:?}"
        );
    }
}

/// Rows of queries, keys or values, one for each image, head and token, where they lie in memory.
///
/// The values of a row lie side by side; the first one of image `i`, head `h` and token `t` is at `i * strides[0] + h * strides[1] + t * strides[2]`.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'a> {
    /// The memory, from the first row on.
    pub values: &'a [f32],
    /// The distances, in values, from one image, head and token to the next.
    pub strides: [usize; 3],
}

impl<'a> HeadRows<'a> {
    /// Names rows that lie one after the other, `[batch, heads, tokens, width]`.
    pub fn dense(values: &'a [f32], [heads, tokens, width]: [usize; 3]) -> Self {
        let strides = [heads * tokens * width, tokens * width, width];
        Self { values, strides }
    }

    /// # Panics
    /// If the last row would end after the memory.
    fn check(&self, what: &str, sizes: [usize; 3], width: usize) {
        if sizes.contains(&0) {
            return;
        }
        let steps = sizes.iter().zip(self.strides);
        let end = steps
            .map(|(size, stride)| (size - 1).checked_mul(stride))
            .try_fold(width, |end, step| end.checked_add(step?));
        assert!(
            end.is_some_and(|end| end <= self.values.len()),
            "{what} of an attention: rows of {width} values for {sizes:?} images, heads and tokens, {:?} apart, do not fit into {} values",
            self.strides,
            self.values.len()
        );
    }
}

/// The operands of a scaled dot-product attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInput<'a> {
    /// The queries, `queries` of them for each image and head, `width` values each.
    pub query: HeadRows<'a>,
    /// The keys, `tokens` of them, `width` values each.
    pub key: HeadRows<'a>,
    /// The values, `tokens` of them, `value_width` values each.
    pub value: HeadRows<'a>,
    /// What is added to the scores.
    pub mask: Option<AddedMask<'a>>,
    /// The factor of the scores, before the mask is added.
    pub scale: f32,
}

impl AttentionInput<'_> {
    /// # Panics
    /// If the operands do not have the shape, so that a kernel would leave them.
    pub(super) fn check(&self, shape: &ScaledDotProductShape) {
        let s = shape;
        assert!(
            s.heads > 0 && s.width > 0 && s.value_width > 0 && (s.tokens > 0 || s.queries == 0),
            "an attention needs heads of some width, and keys if there are queries, found {s:?}"
        );
        let (asking, asked) = ([s.batch, s.heads, s.queries], [s.batch, s.heads, s.tokens]);
        elements(
            "rows of an attention",
            &[s.batch, s.heads, s.tokens, s.width.max(s.value_width)],
        );
        self.query.check("queries", asking, s.width);
        self.key.check("keys", asked, s.width);
        self.value.check("values", asked, s.value_width);
        if let Some(mask) = &self.mask {
            mask.check(s);
        }
    }
}
