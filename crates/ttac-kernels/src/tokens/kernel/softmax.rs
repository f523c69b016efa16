//! The softmax of rows: `y_j = exp(x_j) / sum over k of exp(x_k)`.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::functions::{dot, exp, largest, sum};
use crate::Context;
use crate::core::parallel::filled_slice;
use crate::core::simd::{Kernel, SafeKernel, Simd};

/// Floats per task, about: as many whole rows as fit.
const TASK: usize = 16 * 1024;

fn check_rows(what: &str, len: usize, columns: usize) {
    assert!(
        columns > 0 && len.is_multiple_of(columns),
        "{what} of a softmax: expected the shape [.., {columns}], found {len} values"
    );
}

/// Values of a task.
fn task(columns: usize) -> usize {
    (TASK / columns).max(1) * columns
}

/// Computes the softmax of every row, `[rows, columns]`.
///
/// # Panics
/// If `x` does not consist of whole rows.
pub fn softmax_forward(context: &Context, x: &[f32], columns: usize) -> Vec<f32> {
    check_rows("input", x.len(), columns);
    let (isa, task) = (context.isa(), task(columns));
    // SAFETY: the chunks cover everything.
    unsafe {
        filled_slice(context, x.len(), |out| {
            let tasks = out.par_chunks_mut(task).zip(x.par_chunks(task));
            tasks.for_each(|(out, x)| isa.run_safely(Forward { x, columns, out }));
        })
    }
}

struct Forward<'a> {
    x: &'a [f32],
    columns: usize,
    out: &'a mut [MaybeUninit<f32>],
}

impl Kernel for Forward<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let rows = self.x.chunks_exact(self.columns);
        for (x, out) in rows.zip(self.out.chunks_exact_mut(self.columns)) {
            let most = largest(x);
            for (out, &x) in out.iter_mut().zip(x) {
                out.write(exp(x - most));
            }
            // SAFETY: the whole row was written.
            let out = unsafe { out.assume_init_mut() };
            let inverse = 1. / sum(out);
            for value in out {
                *value *= inverse;
            }
        }
    }
}

// SAFETY: it works on slices.
unsafe impl SafeKernel for Forward<'_> {}

/// Computes the gradient of the input from that of the result and the result `y`: `dx = y (dy - sum(y dy))` in every row.
///
/// # Panics
/// If the lengths differ, or are not whole rows.
pub fn softmax_backward(context: &Context, dy: &[f32], y: &[f32], columns: usize) -> Vec<f32> {
    check_rows("result", y.len(), columns);
    assert_eq!(dy.len(), y.len(), "gradient and result of a softmax");
    let (isa, task) = (context.isa(), task(columns));
    // SAFETY: the chunks cover everything.
    unsafe {
        filled_slice(context, y.len(), |out| {
            out.par_chunks_mut(task)
                .zip(dy.par_chunks(task).zip(y.par_chunks(task)))
                .for_each(|(out, (dy, y))| {
                    isa.run_safely(Backward {
                        dy,
                        y,
                        columns,
                        out,
                    });
                });
        })
    }
}

struct Backward<'a> {
    dy: &'a [f32],
    y: &'a [f32],
    columns: usize,
    out: &'a mut [MaybeUninit<f32>],
}

impl Kernel for Backward<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let columns = self.columns;
        let rows = self
            .y
            .chunks_exact(columns)
            .zip(self.dy.chunks_exact(columns));
        for ((y, dy), out) in rows.zip(self.out.chunks_exact_mut(columns)) {
            let mean = dot(y, dy);
            for ((out, &y), &dy) in out.iter_mut().zip(y).zip(dy) {
                out.write(y * (dy - mean));
            }
        }
    }
}

// SAFETY: it works on slices.
unsafe impl SafeKernel for Backward<'_> {}
