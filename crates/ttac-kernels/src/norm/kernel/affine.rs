//! Applying a norm whose statistics are known.

use rayon::prelude::*;

use super::walk::{EachVector, Walk, walk};
use crate::Context;
use crate::core::parallel::{Out, filled};
use crate::core::simd::{Kernel, Simd};

/// A norm whose statistics are known: `scale x + shift` per channel, then perhaps ReLU.
#[derive(Clone, Copy, Debug)]
pub struct Normalise<'a> {
    /// One value for each channel.
    pub scale: &'a [f32],
    /// One value for each channel.
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
    pub(crate) unsafe fn vectors<S: Simd>(&self, channel: usize) -> Vectors<S> {
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
pub(crate) struct Vectors<S: Simd> {
    scale: S::V,
    shift: S::V,
    relu: bool,
}

impl<S: Simd> Vectors<S> {
    /// # Safety
    /// The processor has `S`.
    #[inline(always)]
    pub(crate) unsafe fn apply<const N: usize>(&self, mut x: [S::V; N]) -> [S::V; N] {
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

/// `y = scale x + shift [+ residual]`, then perhaps ReLU; `x` and `y` may be the same.
pub(super) struct Affine<'a> {
    pub(super) x: *const f32,
    pub(super) y: *mut f32,
    pub(super) len: usize,
    pub(super) residual: Option<&'a [f32]>,
    pub(super) scale: &'a [f32],
    pub(super) shift: &'a [f32],
    pub(super) relu: bool,
}

impl Kernel for Affine<'_> {
    /// # Safety
    /// `x` and `y` are valid for `len` floats, and so is the residual; nobody else uses `y`. Scale and shift are equally long, in whole vectors.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise; scales and shifts are as long as the period.
        unsafe { walk::<S, 0, 8>(&self, [], self.len, self.scale.len()) }
    }
}

impl<S: Simd> EachVector<S, 0> for Affine<'_> {
    #[inline(always)]
    unsafe fn step(&self, none: [S::V; 0], at: usize, phase: usize, n: usize) -> [S::V; 0] {
        // SAFETY: the caller's promise.
        unsafe {
            let x = S::load_partial(self.x.add(at), n);
            let mut y = S::fma(
                S::load(self.scale.as_ptr().add(phase)),
                x,
                S::load(self.shift.as_ptr().add(phase)),
            );
            if let Some(residual) = self.residual {
                y = S::add(y, S::load_partial(residual.as_ptr().add(at), n));
            }
            if self.relu {
                y = S::relu(y);
            }
            S::store_partial(self.y.add(at), y, n);
        }
        none
    }
}

/// Normalises `len` floats from `x` to `y`.
///
/// # Safety
/// Both are valid for `len` floats; they may be the same. The residual has as many, and nobody else uses `y`.
pub(super) unsafe fn normalise(
    context: &Context,
    [x, y]: [Out; 2],
    len: usize,
    residual: Option<&[f32]>,
    norm: Normalise,
) {
    let isa = context.isa();
    let walk = Walk::new(norm.scale.len(), isa);
    let scales = walk.repeat(|c| norm.scale[c]);
    let shifts = walk.repeat(|c| norm.shift[c]);
    // Backwards: what the statistics read last is still in the cache.
    (0..walk.tasks(len)).into_par_iter().rev().for_each(|task| {
        let range = walk.range(task, len);
        let affine = Affine {
            x: x.at(range.start),
            y: y.at(range.start),
            len: range.len(),
            residual: residual.map(|r| &r[range.clone()]),
            scale: &scales,
            shift: &shifts,
            relu: norm.relu,
        };
        // SAFETY: the caller's promise, for this task's part, which no other task has; scales and shifts are a period long.
        unsafe { isa.run(affine) };
    });
}

/// Normalises `x` into a new buffer.
///
/// # Panics
/// If the residual is shorter.
pub(crate) fn normalised(
    context: &Context,
    x: &[f32],
    residual: Option<&[f32]>,
    norm: Normalise,
) -> Vec<f32> {
    let data = Out(x.as_ptr().cast_mut());
    // SAFETY: the tasks cover all of `x`, which is only read, and of the new buffer; they take their part of the residual as a slice.
    unsafe {
        filled(context, x.len(), |y| {
            normalise(context, [data, y], x.len(), residual, norm);
        })
    }
}
