//! An activation over a whole tensor, or over the sum of two: `y = f(x [+ addend])`.

use rayon::prelude::*;

use super::{Activation, Function, with_function};
use crate::Context;
use crate::core::parallel::{Out, filled};
use crate::core::simd::{Kernel, Simd};

/// Floats per task.
const TASK: usize = 64 * 1024;

/// Computes `f(x)`, or `f(x + addend)`, into a new buffer.
///
/// # Panics
/// If the lengths differ.
pub fn activate_forward(
    context: &Context,
    x: &[f32],
    addend: Option<&[f32]>,
    activation: Activation,
) -> Vec<f32> {
    check("addend", addend, x.len());
    let data = Out(x.as_ptr().cast_mut());
    // SAFETY: the tasks cover all of `x`, which is only read, and of the new buffer; the addend is as long.
    unsafe {
        filled(context, x.len(), |y| {
            forward(context, [data, y], x.len(), addend, activation);
        })
    }
}

/// Does what [`activate_forward`] does to `x` itself.
///
/// # Panics
/// If the lengths differ.
pub fn activate_forward_in_place(
    context: &Context,
    x: &mut [f32],
    addend: Option<&[f32]>,
    activation: Activation,
) {
    check("addend", addend, x.len());
    let data = Out(x.as_mut_ptr());
    // SAFETY: `x` is borrowed mutably; the addend is as long.
    unsafe { forward(context, [data, data], x.len(), addend, activation) };
}

/// Turns the gradient of `f(x)`, or of `f(x + addend)`, into that of `x`, in place, and adds `other` to it.
///
/// # Panics
/// If the lengths differ.
pub fn activate_backward(
    context: &Context,
    dy: &mut [f32],
    x: &[f32],
    addend: Option<&[f32]>,
    other: Option<&[f32]>,
    activation: Activation,
) {
    check("input", Some(x), dy.len());
    check("addend", addend, dy.len());
    check("other gradient", other, dy.len());
    let isa = context.isa();
    with_function!(activation, function => {
        dy.par_chunks_mut(TASK).enumerate().for_each(|(task, dy)| {
            let range = task * TASK..task * TASK + dy.len();
            let gradient = Gradient {
                function,
                dy: dy.as_mut_ptr(),
                x: &x[range.clone()],
                addend: addend.map(|addend| &addend[range.clone()]),
                other: other.map(|other| &other[range]),
            };
            // SAFETY: all parts are as long as this task's part of `dy`, which is borrowed mutably.
            unsafe { isa.run(gradient) };
        });
    });
}

fn check(what: &str, found: Option<&[f32]>, expected: usize) {
    if let Some(found) = found {
        let found = found.len();
        assert!(
            found == expected,
            "{what} of an activation: expected {expected} values, found {found}"
        );
    }
}

/// # Safety
/// `x` and `y` are valid for `len` floats; they may be the same. The addend is as long, and nobody else uses `y`.
unsafe fn forward(
    context: &Context,
    [x, y]: [Out; 2],
    len: usize,
    addend: Option<&[f32]>,
    activation: Activation,
) {
    let isa = context.isa();
    with_function!(activation, function => {
        (0..len.div_ceil(TASK)).into_par_iter().for_each(|task| {
            let range = task * TASK..((task + 1) * TASK).min(len);
            let values = Values {
                function,
                x: x.at(range.start),
                y: y.at(range.start),
                len: range.len(),
                addend: addend.map(|addend| &addend[range]),
            };
            // SAFETY: the caller's promise, for this task's part, which no other task has.
            unsafe { isa.run(values) };
        });
    });
}

struct Values<'a, F> {
    function: F,
    x: *const f32,
    y: *mut f32,
    len: usize,
    addend: Option<&'a [f32]>,
}

impl<F: Function> Kernel for Values<'_, F> {
    /// # Safety
    /// `x` and `y` are valid for `len` floats, and so is the addend; nobody else uses `y`.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for at in (0..self.len).step_by(S::LANES) {
            let n = self.len - at;
            // SAFETY: `at + min(n, LANES) <= len`.
            unsafe {
                let mut z = S::load_partial(self.x.add(at), n);
                if let Some(addend) = self.addend {
                    z = S::add(z, S::load_partial(addend.as_ptr().add(at), n));
                }
                S::store_partial(self.y.add(at), self.function.value::<S>(z), n);
            }
        }
    }
}

struct Gradient<'a, F> {
    function: F,
    dy: *mut f32,
    x: &'a [f32],
    addend: Option<&'a [f32]>,
    other: Option<&'a [f32]>,
}

impl<F: Function> Kernel for Gradient<'_, F> {
    /// # Safety
    /// `dy` is valid for as many floats as `x` has, and nobody else uses it; the addend and the other gradient are as long.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let len = self.x.len();
        for at in (0..len).step_by(S::LANES) {
            let n = len - at;
            // SAFETY: `at + min(n, LANES) <= len`.
            unsafe {
                let mut z = S::load_partial(self.x.as_ptr().add(at), n);
                if let Some(addend) = self.addend {
                    z = S::add(z, S::load_partial(addend.as_ptr().add(at), n));
                }
                let mut g = self
                    .function
                    .gradient::<S>(z, S::load_partial(self.dy.add(at), n));
                if let Some(other) = self.other {
                    g = S::add(g, S::load_partial(other.as_ptr().add(at), n));
                }
                S::store_partial(self.dy.add(at), g, n);
            }
        }
    }
}
