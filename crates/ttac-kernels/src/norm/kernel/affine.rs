//! Applying a norm whose statistics are known.

use rayon::prelude::*;

use crate::Context;
use crate::activation::kernel::{Activation, Function, activated, with_function};
use crate::core::parallel::{Out, filled};
use crate::core::simd::{Kernel, Simd};
use crate::core::walk::{EachVector, Walk, walk};

/// A norm whose statistics are known: `scale x + shift` per channel, then the activation.
#[derive(Clone, Copy, Debug)]
pub struct Normalise<'a> {
    /// One value for each channel.
    pub scale: &'a [f32],
    /// One value for each channel.
    pub shift: &'a [f32],
    /// What is applied to the result.
    pub activation: Activation,
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
                activation: self.activation,
            }
        }
    }
}

impl Normalise<'_> {
    /// Splits off an activation that is not inlined, and is applied faster to many vectors together: what to do to each, then to all of them.
    pub(crate) fn split(self) -> (Self, Option<Activation>) {
        match self.activation {
            Activation::None | Activation::Relu => (self, None),
            activation => {
                let first = Self {
                    activation: Activation::None,
                    ..self
                };
                (first, Some(activation))
            }
        }
    }
}

/// [`Normalise`] for one vector of channels.
#[derive(Clone, Copy)]
pub(crate) struct Vectors<S: Simd> {
    scale: S::V,
    shift: S::V,
    activation: Activation,
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
            activated::<S, N>(self.activation, x)
        }
    }
}

/// `y = f(scale x + shift [+ residual])`; `x` and `y` may be the same.
pub(super) struct Affine<'a, F> {
    pub(super) x: *const f32,
    pub(super) y: *mut f32,
    pub(super) len: usize,
    pub(super) residual: Option<&'a [f32]>,
    pub(super) scale: &'a [f32],
    pub(super) shift: &'a [f32],
    pub(super) function: F,
}

impl<F: Function> Kernel for Affine<'_, F> {
    /// # Safety
    /// `x` and `y` are valid for `len` floats, and so is the residual; nobody else uses `y`. Scale and shift are equally long, in whole vectors.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise; scales and shifts are as long as the period.
        unsafe { walk_long::<S, F>(&self, self.len, self.scale.len()) }
    }
}

impl<S: Simd, F: Function> EachVector<S, 0> for Affine<'_, F> {
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
            S::store_partial(self.y.add(at), self.function.value::<S>(y), n);
        }
        none
    }
}

/// Walks without sums, with fewer vectors abreast where the function is long.
///
/// # Safety
/// As for [`walk`].
#[inline(always)]
pub(super) unsafe fn walk_long<S: Simd, F: Function>(
    work: &impl EachVector<S, 0>,
    len: usize,
    period: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if F::LONG {
            walk::<S, 0, 2>(work, [], len, period);
        } else {
            walk::<S, 0, 8>(work, [], len, period);
        }
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
    with_function!(norm.activation, function => {
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
                function,
            };
            // SAFETY: the caller's promise, for this task's part, which no other task has; scales and shifts are a period long.
            unsafe { isa.run(affine) };
        });
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
