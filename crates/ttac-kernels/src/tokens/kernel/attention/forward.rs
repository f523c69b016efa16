//! The forward pass over one head.

use super::head::{Head, Part};
use crate::core::parallel::Out;
use crate::core::recycle::Scratch;
use crate::core::simd::{Kernel, Simd};
use crate::tokens::kernel::functions::{exp, largest};

/// One head of one image, with the outputs of all.
pub(super) struct Forward<'a> {
    pub(super) head: Head<'a>,
    pub(super) out: Out,
    pub(super) softmax: Out,
}

impl Kernel for Forward<'_> {
    /// # Safety
    /// The input has the length of the shape, output and softmax have room for it, and nobody else uses this head's part of them.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let head = self.head;
        let s = head.shape;
        let (tokens, width, block) = (s.tokens, s.head_width, s.block());
        let (keys, row) = head.padded::<S>();
        // SAFETY: all offsets are inside the checked shape, and scratch buffers are as long as they are walked.
        unsafe {
            let transposed = head.transpose::<S>(&head.pack::<S>(Part::Key));
            let values = head.pack::<S>(Part::Value);
            let mut scores = Scratch::new(head.context, &[block, keys]);
            let mut mixed = Scratch::new(head.context, &[block, row]);
            for first in (0..s.queries).step_by(block) {
                let count = block.min(s.queries - first);
                let query = head.qkv.as_ptr().add(head.at(Part::Query, first));
                let a = (query, 3 * s.width());
                S::enter(&head.by_tokens::<S>(count, a, &transposed, &mut scores));
                let kept = self.softmax.at(2 * (head.task * s.queries + first));
                for i in 0..count {
                    let scores = scores.as_mut_ptr().add(i * keys);
                    let scores = std::slice::from_raw_parts_mut(scores, tokens);
                    let most = largest(scores);
                    exponentials(scores, most, s.scale());
                    *kept.add(2 * i) = most;
                    *kept.add(2 * i + 1) = 1. / sum(scores);
                }
                S::enter(&head.over_tokens::<S>(count, &scores, &values, &mut mixed));
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
