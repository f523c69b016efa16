//! The GELU, exact and by a hyperbolic tangent.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::functions::{normal_density, normal_distribution, tanh_gate};
use crate::Context;
use crate::core::parallel::filled_slice;
use crate::core::simd::{Kernel, SafeKernel, Simd};

/// Floats per task.
const TASK: usize = 16 * 1024;

/// A GELU is `x` times a factor between 0 and 1.
trait Gate: Sync {
    /// The factor at `x`.
    fn factor(x: f32) -> f32;
    /// The factor at `x`, and its slope.
    fn factor_and_slope(x: f32) -> (f32, f32);
}

/// The factor is the distribution function of the standard normal.
struct Normal;

impl Gate for Normal {
    #[inline(always)]
    fn factor(x: f32) -> f32 {
        normal_distribution(x)
    }

    #[inline(always)]
    fn factor_and_slope(x: f32) -> (f32, f32) {
        (normal_distribution(x), normal_density(x))
    }
}

/// The factor is `(1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`.
struct Tanh;

impl Gate for Tanh {
    #[inline(always)]
    fn factor(x: f32) -> f32 {
        tanh_gate(x).0
    }

    #[inline(always)]
    fn factor_and_slope(x: f32) -> (f32, f32) {
        tanh_gate(x)
    }
}

/// Computes the exact GELU, `x Phi(x)`, with `Phi` the normal distribution function.
pub fn gelu_forward(context: &Context, x: &[f32]) -> Vec<f32> {
    forward::<Normal>(context, x)
}

/// Computes the approximate GELU, `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`.
pub fn gelu_tanh_forward(context: &Context, x: &[f32]) -> Vec<f32> {
    forward::<Tanh>(context, x)
}

/// Turns the gradient of `gelu(x)` into that of `x`, in place, and returns `gelu(x)`, which was not kept.
///
/// # Panics
/// If the lengths differ.
pub fn gelu_backward(context: &Context, x: &[f32], gradient: &mut [f32]) -> Vec<f32> {
    backward::<Normal>(context, x, gradient)
}

/// Turns the gradient of the approximate GELU into that of `x`, in place, and returns the GELU, which was not kept.
///
/// # Panics
/// If the lengths differ.
pub fn gelu_tanh_backward(context: &Context, x: &[f32], gradient: &mut [f32]) -> Vec<f32> {
    backward::<Tanh>(context, x, gradient)
}

fn forward<G: Gate>(context: &Context, x: &[f32]) -> Vec<f32> {
    let isa = context.isa();
    // SAFETY: the chunks cover everything.
    unsafe {
        filled_slice(context, x.len(), |out| {
            out.par_chunks_mut(TASK)
                .zip(x.par_chunks(TASK))
                .for_each(|(out, x)| {
                    isa.run_safely(Forward {
                        x,
                        out,
                        gate: PhantomData::<G>,
                    });
                });
        })
    }
}

struct Forward<'a, G> {
    x: &'a [f32],
    out: &'a mut [MaybeUninit<f32>],
    gate: PhantomData<G>,
}

impl<G: Gate> Kernel for Forward<'_, G> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (out, &x) in self.out.iter_mut().zip(self.x) {
            out.write(x * G::factor(x));
        }
    }
}

// SAFETY: it works on slices.
unsafe impl<G: Gate> SafeKernel for Forward<'_, G> {}

fn backward<G: Gate>(context: &Context, x: &[f32], gradient: &mut [f32]) -> Vec<f32> {
    assert_eq!(x.len(), gradient.len(), "input and gradient of a GELU");
    let isa = context.isa();
    // SAFETY: the chunks cover everything.
    unsafe {
        filled_slice(context, x.len(), |out| {
            out.par_chunks_mut(TASK)
                .zip(x.par_chunks(TASK))
                .zip(gradient.par_chunks_mut(TASK))
                .for_each(|((out, x), gradient)| {
                    isa.run_safely(Backward {
                        x,
                        gradient,
                        out,
                        gate: PhantomData::<G>,
                    });
                });
        })
    }
}

struct Backward<'a, G> {
    x: &'a [f32],
    gradient: &'a mut [f32],
    out: &'a mut [MaybeUninit<f32>],
    gate: PhantomData<G>,
}

impl<G: Gate> Kernel for Backward<'_, G> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let places = self.out.iter_mut().zip(self.gradient);
        for ((out, gradient), &x) in places.zip(self.x) {
            let (factor, slope) = G::factor_and_slope(x);
            out.write(x * factor);
            *gradient *= factor + x * slope;
        }
    }
}

// SAFETY: it works on slices.
unsafe impl<G: Gate> SafeKernel for Backward<'_, G> {}
