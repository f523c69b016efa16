//! What a convolution reads: a tensor as it is, or as a batch norm makes it.
//!
//! A norm's result that only a convolution reads need never be stored: every value is normalised in the registers that load it, by the
//! operation that the norm itself would use, so the sums are those of the stored result to the bit.

use std::borrow::Cow;
use std::ops::Deref;

use crate::Context;
use crate::norm::kernel::{Normalise, normalised};

/// The input of a convolution, `[batch, height, width, in_channels]`. A slice is an input as it is.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The values of the tensor.
    pub values: &'a [f32],
    /// The norm that is applied on the way in. Padding is not normalised: it is zero.
    pub norm: Option<Normalise<'a>>,
}

impl<'a> From<&'a [f32]> for Input<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self { values, norm: None }
    }
}

impl<'a> From<&'a Vec<f32>> for Input<'a> {
    fn from(values: &'a Vec<f32>) -> Self {
        values.as_slice().into()
    }
}

impl<'a> Input<'a> {
    /// Whether the values are better stored as the convolution sees them: `taps` windows would each compute a long activation again.
    pub(super) fn is_better_stored(&self, taps: usize) -> bool {
        taps > 1 && self.norm.is_some_and(|norm| norm.activation.is_long())
    }

    /// The values as the convolution sees them.
    pub(super) fn seen<'b>(&self, context: &'b Context) -> Seen<'b>
    where
        'a: 'b,
    {
        let values = match self.norm {
            None => Cow::Borrowed(self.values),
            Some(norm) => Cow::Owned(normalised(context, self.values, None, norm)),
        };
        Seen { values, context }
    }
}

/// The values that a convolution sees, whose memory goes back to the context.
pub(super) struct Seen<'a> {
    values: Cow<'a, [f32]>,
    context: &'a Context,
}

impl Deref for Seen<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values
    }
}

impl Drop for Seen<'_> {
    fn drop(&mut self) {
        if let Cow::Owned(values) = &mut self.values {
            self.context.recycle(std::mem::take(values));
        }
    }
}
