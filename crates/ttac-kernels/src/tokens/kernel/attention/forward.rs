//! The forward pass over one head.

use super::head::{Head, Part};
use crate::core::parallel::Out;
use crate::core::recycle::Scratch;
use crate::core::simd::{Kernel, Simd};
use crate::tokens::kernel::functions::{exponentials, largest, sum};

/// One head of one image, with the outputs of all.
pub(super) struct Forward<'a> {
    pub(super) head: Head<'a>,
    pub(super) out: Out,
    pub(super) softmax: Out,
}

impl Kernel for Forward<'_> {
    /// # Safety
    /// The input has the shape, output and softmax have room for it, and nobody else uses this head's part of them.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let head = self.head;
        let s = head.shape;
        let (tokens, width, block) = (s.tokens, s.value_width, s.block());
        let padded = head.padded::<S>();
        let (keys, row) = (padded.tokens, padded.value_width);
        // SAFETY: all offsets are inside the checked shape, and scratch buffers are as long as they are walked.
        unsafe {
            let transposed = head.transpose::<S>(&head.pack::<S>(Part::Key), s.width);
            let values = head.pack::<S>(Part::Value);
            let mut scores = Scratch::new(head.context, &[block, keys]);
            let mut mixed = Scratch::new(head.context, &[block, row]);
            for first in (0..s.queries).step_by(block) {
                let count = block.min(s.queries - first);
                let a = head.row(Part::Query, first);
                S::enter(&head.by_tokens::<S>([count, s.width], a, &transposed, &mut scores));
                let kept = self.softmax.at(head.kept_at(first));
                for i in 0..count {
                    let scores = scores.as_mut_ptr().add(i * keys);
                    let scores = std::slice::from_raw_parts_mut(scores, tokens);
                    let scale = head.finish_scores(scores, first + i);
                    let most = largest(scores);
                    exponentials(scores, most, scale);
                    *kept.add(2 * i) = most;
                    *kept.add(2 * i + 1) = 1. / sum(scores);
                }
                S::enter(&head.over_tokens::<S>([count, row], &scores, &values, &mut mixed));
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
