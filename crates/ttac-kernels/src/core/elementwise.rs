//! Additions in parallel.

use rayon::prelude::*;

use super::parallel::Out;
use super::simd::{Kernel, Simd};
use crate::Context;

/// Floats per task.
const TASK: usize = 64 * 1024;

/// Adds `y` to `x`.
///
/// # Panics
/// If the lengths differ.
pub fn add_in_place(context: &Context, x: &mut [f32], y: &[f32]) {
    let (expected, found) = (x.len(), y.len());
    assert!(
        found == expected,
        "summand: expected {expected} values as in the other, found {found}"
    );
    let isa = context.isa();
    x.par_chunks_mut(TASK)
        .zip(y.par_chunks(TASK))
        .for_each(|(x, y)| {
            let add = Add {
                x: Out(x.as_mut_ptr()),
                y,
            };
            // SAFETY: both chunks are equally long, as the slices are, and this is the only task with this chunk of `x`.
            unsafe { isa.run(add) };
        });
}

struct Add<'a> {
    x: Out,
    y: &'a [f32],
}

impl Kernel for Add<'_> {
    /// # Safety
    /// `x` is valid for as many floats as `y` has, and nobody else uses them.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let len = self.y.len();
        let mut at = 0;
        while at < len {
            let n = len - at;
            // SAFETY: `at + min(n, LANES) <= len`.
            unsafe {
                let x = S::load_partial(self.x.at(at), n);
                let y = S::load_partial(self.y.as_ptr().add(at), n);
                S::store_partial(self.x.at(at), S::add(x, y), n);
            }
            at += S::LANES;
        }
    }
}
