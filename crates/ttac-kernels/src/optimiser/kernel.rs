//! Steps of optimisers: one parallel pass over parameter, gradient and velocity.
//!
//! Products and sums are rounded one by one (no fused multiply-add), in the order of PyTorch's and Burn's elementwise ops, so the bits are
//! theirs on every instruction set.

use rayon::prelude::*;

use crate::Context;
use crate::core::parallel::Out;
use crate::core::simd::{Kernel, Simd};

/// Floats per task.
const TASK: usize = 64 * 1024;

/// Constants of a step of gradient descent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdConstants {
    /// The length of the step.
    pub learning_rate: f32,
    /// The share of the old velocity that is kept.
    pub momentum: f32,
    /// The pull towards zero: this times the parameter is added to the gradient.
    pub weight_decay: f32,
}

/// What a step of gradient descent moves a parameter by.
#[derive(Debug)]
pub enum Direction<'a> {
    /// The gradient, without momentum.
    Gradient(&'a [f32]),
    /// The first velocity: it comes in as the gradient.
    First(&'a mut [f32]),
    /// The gradient and the velocity so far.
    Velocity(&'a [f32], &'a mut [f32]),
}

/// Does a step of gradient descent: `v = momentum v + g; p = p - learning_rate v` with `g` the gradient plus `weight_decay p`.
///
/// # Panics
/// If the lengths differ.
pub fn sgd_step(
    context: &Context,
    parameter: &mut [f32],
    direction: Direction,
    constants: SgdConstants,
) {
    let len = parameter.len();
    let check = |what: &str, found: usize| {
        assert!(
            found == len,
            "{what} of a step: expected {len} values as in the parameter, found {found}"
        );
    };
    let none = Out(std::ptr::null_mut());
    let (gradient, velocity) = match direction {
        Direction::Gradient(gradient) => {
            check("gradient", gradient.len());
            (Out(gradient.as_ptr().cast_mut()), none)
        }
        Direction::First(velocity) => {
            check("gradient", velocity.len());
            (none, Out(velocity.as_mut_ptr()))
        }
        Direction::Velocity(gradient, velocity) => {
            check("gradient", gradient.len());
            check("velocity", velocity.len());
            let gradient = Out(gradient.as_ptr().cast_mut());
            (gradient, Out(velocity.as_mut_ptr()))
        }
    };
    let isa = context.isa();
    let parameter = Out(parameter.as_mut_ptr());
    let part = |pointer: Out, at: usize| {
        if pointer.0.is_null() {
            pointer.0
        } else {
            pointer.at(at)
        }
    };
    let task = |task: usize| {
        let at = task * TASK;
        let step = Sgd {
            parameter: parameter.at(at),
            gradient: part(gradient, at),
            velocity: part(velocity, at),
            len: TASK.min(len - at),
            constants,
        };
        // SAFETY: the slices are equally long; parameter and velocity are borrowed mutably, and no other task has this part of them.
        unsafe { isa.run(step) };
    };
    match len.div_ceil(TASK) {
        // Most parameters are short, and waking threads would take longer.
        1 => task(0),
        tasks => (0..tasks).into_par_iter().for_each(task),
    }
}

struct Sgd {
    parameter: *mut f32,
    /// The gradient; null on a first step with momentum, where it is in `velocity`.
    gradient: *const f32,
    /// The velocity; null without momentum.
    velocity: *mut f32,
    len: usize,
    constants: SgdConstants,
}

impl Kernel for Sgd {
    /// # Safety
    /// All pointers that are not null are valid for `len` floats, and nobody else uses what is written.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let constants = self.constants;
        let (first, plain) = (self.gradient.is_null(), self.velocity.is_null());
        let decays = constants.weight_decay > 0.;
        let mut at = 0;
        while at < self.len {
            let n = self.len - at;
            // SAFETY: `at + min(n, LANES) <= len`.
            unsafe {
                let p = S::load_partial(self.parameter.add(at), n);
                let mut direction = if first {
                    S::load_partial(self.velocity.add(at), n)
                } else {
                    S::load_partial(self.gradient.add(at), n)
                };
                if decays {
                    direction = S::add(S::mul(p, S::splat(constants.weight_decay)), direction);
                }
                if !plain {
                    if !first {
                        let old = S::load_partial(self.velocity.add(at), n);
                        direction = S::add(direction, S::mul(old, S::splat(constants.momentum)));
                    }
                    S::store_partial(self.velocity.add(at), direction, n);
                }
                let step = S::mul(direction, S::splat(constants.learning_rate));
                S::store_partial(self.parameter.add(at), S::sub(p, step), n);
            }
            at += S::LANES;
        }
    }
}
