//! What a convolution reads: a tensor as it is, or as a batch norm makes it.
//!
//! A norm's result that only a convolution reads need never be stored: every value is normalised in the registers that load it, by the
//! operation that the norm itself would use, so the sums are those of the stored result to the bit.

use crate::kernels::norm::normalised;
use crate::kernels::simd::Simd;
use std::borrow::Cow;

/// The input of a convolution, `[batch, height, width, in_channels]`. A slice is an input as it is.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The tensor.
    pub values: &'a [f32],
    /// What is done to it on the way in. Padding is not normalised: it is zero.
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
    /// The values as the convolution sees them.
    pub(super) fn seen(&self) -> Cow<'a, [f32]> {
        match self.norm {
            None => Cow::Borrowed(self.values),
            Some(norm) => Cow::Owned(normalised(self.values, None, norm)),
        }
    }
}

/// `scale x + shift` per channel, then perhaps ReLU.
#[derive(Clone, Copy, Debug)]
pub struct Normalise<'a> {
    /// One per channel.
    pub scale: &'a [f32],
    /// One per channel.
    pub shift: &'a [f32],
    /// Whether negative results become 0.
    pub relu: bool,
}

impl Normalise<'_> {
    /// What the channels from `channel` on need, 0 for those that do not exist.
    ///
    /// # Safety
    /// The processor has `S`; `channel` is a channel.
    #[inline(always)]
    pub(super) unsafe fn vectors<S: Simd>(&self, channel: usize) -> Vectors<S> {
        let lanes = self.scale.len() - channel;
        // SAFETY: there are `lanes` channels from this one on.
        unsafe {
            Vectors {
                scale: S::load_partial(self.scale.as_ptr().add(channel), lanes),
                shift: S::load_partial(self.shift.as_ptr().add(channel), lanes),
                relu: self.relu,
            }
        }
    }
}

/// [`Normalise`] for one vector of channels.
#[derive(Clone, Copy)]
pub(super) struct Vectors<S: Simd> {
    scale: S::V,
    shift: S::V,
    relu: bool,
}

impl<S: Simd> Vectors<S> {
    /// # Safety
    /// The processor has `S`.
    #[inline(always)]
    pub(super) unsafe fn apply<const N: usize>(&self, mut x: [S::V; N]) -> [S::V; N] {
        // Loops and no closures: those would be compiled without the instruction set.
        // SAFETY: the caller's promise.
        unsafe {
            for i in 0..N {
                x[i] = S::fma(self.scale, x[i], self.shift);
            }
            if self.relu {
                for i in 0..N {
                    x[i] = S::relu(x[i]);
                }
            }
        }
        x
    }
}
