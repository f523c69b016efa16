//! The product of two tensors of one shape.

use rayon::prelude::*;

use crate::Context;
use crate::core::parallel::{Out, filled};
use crate::core::simd::{Kernel, Simd};

/// Floats per task.
const TASK: usize = 64 * 1024;

/// Computes `x y`, element by element, into a new buffer.
///
/// # Panics
/// If the lengths differ.
pub fn multiply(context: &Context, x: &[f32], y: &[f32]) -> Vec<f32> {
    check("factor", y.len(), x.len());
    let data = Out(x.as_ptr().cast_mut());
    // SAFETY: the tasks cover all of `x`, which is only read, and of the new buffer.
    unsafe { filled(context, x.len(), |out| products(context, [data, out], y)) }
}

/// Multiplies `x` itself by `y`.
///
/// # Panics
/// If the lengths differ.
pub fn multiply_in_place(context: &Context, x: &mut [f32], y: &[f32]) {
    check("factor", y.len(), x.len());
    let data = Out(x.as_mut_ptr());
    // SAFETY: `x` is borrowed mutably, and `y` is as long.
    unsafe { products(context, [data, data], y) };
}

/// Turns the gradient of `x y` into that of `x`, `dy y [+ other]`, in place, and returns that of `y`, `dy x`.
///
/// # Panics
/// If the lengths differ.
pub fn multiply_backward(
    context: &Context,
    dy: &mut [f32],
    [x, y]: [&[f32]; 2],
    other: Option<&[f32]>,
) -> Vec<f32> {
    let len = dy.len();
    check("factor", x.len(), len);
    check("factor", y.len(), len);
    if let Some(other) = other {
        check("other gradient", other.len(), len);
    }
    let (isa, dx) = (context.isa(), Out(dy.as_mut_ptr()));
    let write = |out: Out| {
        (0..len.div_ceil(TASK)).into_par_iter().for_each(|task| {
            let range = task * TASK..((task + 1) * TASK).min(len);
            let gradients = Gradients {
                dx: dx.at(range.start),
                dy: out.at(range.start),
                x: &x[range.clone()],
                y: &y[range.clone()],
                other: other.map(|other| &other[range]),
            };
            // SAFETY: all parts are of this task's range, which no other task has; `dy` is borrowed mutably and the other buffer is new.
            unsafe { isa.run(gradients) };
        });
    };
    // SAFETY: the tasks cover everything.
    unsafe { filled(context, len, write) }
}

fn check(what: &str, found: usize, expected: usize) {
    assert!(
        found == expected,
        "{what} of a product: expected {expected} values as in the other, found {found}"
    );
}

/// # Safety
/// `x` and `out` are valid for as many floats as `y` has; they may be the same. Nobody else uses `out`.
unsafe fn products(context: &Context, [x, out]: [Out; 2], y: &[f32]) {
    let isa = context.isa();
    y.par_chunks(TASK).enumerate().for_each(|(task, y)| {
        let product = Product {
            x: x.at(task * TASK),
            out: out.at(task * TASK),
            y,
        };
        // SAFETY: the caller's promise, for this task's part, which no other task has.
        unsafe { isa.run(product) };
    });
}

struct Product<'a> {
    x: *const f32,
    out: *mut f32,
    y: &'a [f32],
}

impl Kernel for Product<'_> {
    /// # Safety
    /// `x` and `out` are valid for as many floats as `y` has, and nobody else uses `out`.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let len = self.y.len();
        for at in (0..len).step_by(S::LANES) {
            let n = len - at;
            // SAFETY: `at + min(n, LANES) <= len`.
            unsafe {
                let x = S::load_partial(self.x.add(at), n);
                let y = S::load_partial(self.y.as_ptr().add(at), n);
                S::store_partial(self.out.add(at), S::mul(x, y), n);
            }
        }
    }
}

struct Gradients<'a> {
    /// The gradient of the product, and then of `x`.
    dx: *mut f32,
    /// The gradient of `y`.
    dy: *mut f32,
    x: &'a [f32],
    y: &'a [f32],
    other: Option<&'a [f32]>,
}

impl Kernel for Gradients<'_> {
    /// # Safety
    /// Both gradients are valid for as many floats as `x` has, and nobody else uses them; all slices are as long.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let len = self.x.len();
        for at in (0..len).step_by(S::LANES) {
            let n = len - at;
            // SAFETY: `at + min(n, LANES) <= len`.
            unsafe {
                let g = S::load_partial(self.dx.add(at), n);
                let x = S::load_partial(self.x.as_ptr().add(at), n);
                let y = S::load_partial(self.y.as_ptr().add(at), n);
                let mut dx = S::mul(g, y);
                if let Some(other) = self.other {
                    dx = S::add(dx, S::load_partial(other.as_ptr().add(at), n));
                }
                S::store_partial(self.dx.add(at), dx, n);
                S::store_partial(self.dy.add(at), S::mul(g, x), n);
            }
        }
    }
}
