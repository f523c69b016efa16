//! Copies of tensors in another order of their axes.
//!
//! Axes that lie together in both orders are merged first; then the result's last axis is copied run by run.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use crate::Context;
use crate::core::parallel::filled_slice;
use crate::core::shape::elements;
use crate::core::simd::{Kernel, SafeKernel, Simd};

/// Values of a task, about.
const TASK: usize = 16 * 1024;

/// An axis of the result: how many values it has, and how far apart they lie in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    size: usize,
    stride: usize,
}

/// Copies a tensor into row-major order. Axis `a` of the result has `shape[a]` values, which are `strides[a]` apart in `x`; the first one is `x[0]`. The
/// values of the tensor `[2, 3]` transposed are thus `copy_strided(context, x, &[3, 2], &[1, 3])`.
///
/// # Panics
/// If there are not as many strides as sizes, or the last value would lie beyond the end of `x`.
pub fn copy_strided(context: &Context, x: &[f32], shape: &[usize], strides: &[usize]) -> Vec<f32> {
    let len = elements("copy", shape);
    assert_eq!(shape.len(), strides.len(), "sizes and strides of a copy");
    if len == 0 {
        return Vec::new();
    }
    let steps = shape.iter().zip(strides);
    let last = steps
        .map(|(size, stride)| (size - 1).checked_mul(*stride))
        .try_fold(0usize, |last, step| last.checked_add(step?));
    assert!(
        last.is_some_and(|last| last < x.len()),
        "copy: values of {shape:?}, {strides:?} apart, do not fit into {} values",
        x.len()
    );
    let axes = merged(shape, strides);
    let (columns, outer) = axes.split_last().expect("there is an axis");
    let (isa, size) = (context.isa(), columns.size);
    let task = (TASK / size).max(1) * size;
    // SAFETY: the chunks cover everything, and each is written as a whole.
    unsafe {
        filled_slice(context, len, |out| {
            let tasks = out.par_chunks_mut(task).enumerate();
            tasks.for_each(|(index, out)| {
                isa.run_safely(Rows {
                    x,
                    outer,
                    columns: *columns,
                    first: index * task / size,
                    out,
                });
            });
        })
    }
}

/// The axes without those of one value, and with neighbours that lie together in the source merged into one. There is at least one.
fn merged(shape: &[usize], strides: &[usize]) -> Vec<Axis> {
    let mut axes: Vec<Axis> = Vec::new();
    for (&size, &stride) in shape.iter().zip(strides) {
        if size == 1 {
            continue;
        }
        match axes.last_mut() {
            Some(before) if before.stride == size * stride => {
                *before = Axis {
                    size: before.size * size,
                    stride,
                };
            }
            _ => axes.push(Axis { size, stride }),
        }
    }
    if axes.is_empty() {
        axes.push(Axis { size: 1, stride: 1 });
    }
    axes
}

/// Where in the source a place of the result lies, counted along some axes, the last fastest.
#[inline(always)]
fn source(axes: &[Axis], mut index: usize) -> usize {
    let mut at = 0;
    for axis in axes.iter().rev() {
        at += index % axis.size * axis.stride;
        index /= axis.size;
    }
    at
}

/// Some rows of the result, each the whole last axis.
struct Rows<'a> {
    x: &'a [f32],
    /// All axes but the last.
    outer: &'a [Axis],
    columns: Axis,
    /// The number of the first row.
    first: usize,
    out: &'a mut [MaybeUninit<f32>],
}

impl Kernel for Rows<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Axis { size, stride } = self.columns;
        for (i, out) in self.out.chunks_exact_mut(size).enumerate() {
            let from = &self.x[source(self.outer, self.first + i)..];
            if stride == 1 {
                out.write_copy_of_slice(&from[..size]);
            } else {
                for (column, out) in out.iter_mut().enumerate() {
                    out.write(from[column * stride]);
                }
            }
        }
    }
}

// SAFETY: it works on slices.
unsafe impl SafeKernel for Rows<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_lie_together_are_one() {
        let axis = |size, stride| Axis { size, stride };
        // [2, 3, 4] as it is, and with its first two axes swapped, and its last two.
        assert_eq!(merged(&[2, 3, 4], &[12, 4, 1]), [axis(24, 1)]);
        let swapped = [axis(3, 4), axis(2, 12), axis(4, 1)];
        assert_eq!(merged(&[3, 2, 4], &[4, 12, 1]), swapped);
        assert_eq!(
            merged(&[2, 1, 4, 3], &[12, 7, 1, 4]),
            [axis(2, 12), axis(4, 1), axis(3, 4)]
        );
        assert_eq!(merged(&[4, 2, 3], &[1, 12, 4]), [axis(4, 1), axis(6, 4)]);
        assert_eq!(merged(&[1, 1], &[5, 5]), [axis(1, 1)]);
    }
}
