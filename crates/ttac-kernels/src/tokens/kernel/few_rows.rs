//! Linear layers on few rows, where bringing the weights into another order would take longer than the product: they are read once, where they are.

use rayon::prelude::*;

use super::linear::LinearShape;
use super::product::Product;
use crate::Context;
use crate::core::parallel::{Out, filled};
use crate::core::recycle::Scratch;
use crate::core::shape::{check_len, elements};
use crate::core::simd::{Kernel, Simd};

/// The most rows for which weights are read as they are.
pub(super) const MOST_ROWS: usize = 16;
/// Outputs of a task of the forward pass, and inputs of a task of the gradient: whole register tiles.
const TASK: usize = 64;

fn check(x: usize, weight: usize, [rows, columns]: [usize; 2], shape: &LinearShape) {
    check_len("rows of a linear layer", x, &[rows, columns], shape);
    let sizes = [shape.outputs, shape.inputs];
    check_len("weights of a linear layer", weight, &sizes, shape);
}

/// What is added to the product.
#[derive(Clone, Copy)]
pub(super) struct Added<'a> {
    pub(super) bias: Option<&'a [f32]>,
    pub(super) residual: Option<&'a [f32]>,
}

/// Computes `x w^T + b + residual`, `[rows, outputs]`.
///
/// # Panics
/// If a slice is not as long as the shape says.
pub(super) fn forward(
    context: &Context,
    x: &[f32],
    weight: &[f32],
    added: Added,
    shape: &LinearShape,
) -> Vec<f32> {
    let &LinearShape {
        rows,
        inputs,
        outputs,
    } = shape;
    check(x.len(), weight.len(), [rows, inputs], shape);
    let len = elements("output of a linear layer", &[rows, outputs]);
    if let Some(bias) = added.bias {
        check_len("bias of a linear layer", bias.len(), &[outputs], shape);
    }
    if let Some(residual) = added.residual {
        let what = "residual of a linear layer";
        check_len(what, residual.len(), &[rows, outputs], shape);
    }
    let isa = context.isa();
    let write = |out: Out| {
        let tasks = 0..outputs.div_ceil(TASK);
        tasks.into_par_iter().for_each(|task| {
            let dots = Dots {
                x,
                weight,
                added,
                shape,
                outputs: task * TASK..((task + 1) * TASK).min(outputs),
                out,
            };
            // SAFETY: the lengths were checked, and no other task has these outputs.
            unsafe { isa.run(dots) };
        });
    };
    // SAFETY: the tasks cover all outputs of all rows.
    unsafe { filled(context, len, write) }
}

/// Some outputs of all rows, as scalar products of rows of the input with rows of the weights.
struct Dots<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    added: Added<'a>,
    shape: &'a LinearShape,
    outputs: std::ops::Range<usize>,
    out: Out,
}

impl Kernel for Dots<'_> {
    /// # Safety
    /// The slices are as long as the shape says, the output has room for it, and nobody else uses these outputs.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let rows = self.shape.rows;
        let mut output = self.outputs.start;
        while output < self.outputs.end {
            let four = self.outputs.end - output >= 4;
            let mut row = 0;
            while row < rows {
                let two = rows - row >= 2;
                // SAFETY: these rows and outputs exist; the rest is the caller's promise.
                unsafe {
                    match (two, four) {
                        (true, true) => self.tile::<S, 2, 4>(row, output),
                        (true, false) => self.tile::<S, 2, 1>(row, output),
                        (false, true) => self.tile::<S, 1, 4>(row, output),
                        (false, false) => self.tile::<S, 1, 1>(row, output),
                    }
                }
                row += if two { 2 } else { 1 };
            }
            output += if four { 4 } else { 1 };
        }
    }
}

impl Dots<'_> {
    /// `R` rows by `N` outputs.
    ///
    /// # Safety
    /// As [`Kernel::run`]; the rows and the outputs exist.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const N: usize>(&self, row: usize, output: usize) {
        let &LinearShape {
            inputs, outputs, ..
        } = self.shape;
        let whole = inputs - inputs % S::LANES;
        let x: [&[f32]; R] = std::array::from_fn(|r| &self.x[(row + r) * inputs..][..inputs]);
        let w: [&[f32]; N] =
            std::array::from_fn(|n| &self.weight[(output + n) * inputs..][..inputs]);
        // SAFETY: whole vectors inside rows of `inputs`, and then the values that are left.
        unsafe {
            let mut sums = [[S::splat(0.); N]; R];
            for at in (0..whole).step_by(S::LANES) {
                let factors: [S::V; N] = std::array::from_fn(|n| S::load(w[n].as_ptr().add(at)));
                for r in 0..R {
                    let value = S::load(x[r].as_ptr().add(at));
                    for n in 0..N {
                        sums[r][n] = S::fma(value, factors[n], sums[r][n]);
                    }
                }
            }
            for r in 0..R {
                for n in 0..N {
                    let mut lanes = [0f32; 16];
                    S::store(lanes.as_mut_ptr(), sums[r][n]);
                    let mut sum: f32 = lanes.iter().sum();
                    for at in whole..inputs {
                        sum += x[r][at] * w[n][at];
                    }
                    let place = (row + r) * outputs + output + n;
                    sum += self.added.bias.map_or(0., |bias| bias[output + n]);
                    sum += self.added.residual.map_or(0., |residual| residual[place]);
                    *self.out.at(place) = sum;
                }
            }
        }
    }
}

/// Computes `dx = dy w`, `[rows, inputs]`.
///
/// # Panics
/// If a slice is not as long as the shape says.
pub(super) fn input_gradient(
    context: &Context,
    dy: &[f32],
    weight: &[f32],
    shape: &LinearShape,
) -> Vec<f32> {
    let &LinearShape {
        rows,
        inputs,
        outputs,
    } = shape;
    check(dy.len(), weight.len(), [rows, outputs], shape);
    let len = elements("input gradient of a linear layer", &[rows, inputs]);
    let isa = context.isa();
    let write = |out: Out| {
        let tasks = 0..inputs.div_ceil(TASK);
        tasks.into_par_iter().for_each(|task| {
            let columns = Columns {
                context,
                dy,
                weight,
                shape,
                first: task * TASK,
                out,
            };
            // SAFETY: the lengths were checked, and no other task has these inputs.
            unsafe { isa.run(columns) };
        });
    };
    // SAFETY: the tasks cover all inputs of all rows.
    unsafe { filled(context, len, write) }
}

/// The gradients of [`TASK`] inputs, or of those that are left.
struct Columns<'a> {
    context: &'a Context,
    dy: &'a [f32],
    weight: &'a [f32],
    shape: &'a LinearShape,
    first: usize,
    out: Out,
}

impl Kernel for Columns<'_> {
    /// # Safety
    /// The slices are as long as the shape says, the output has room for it, and nobody else uses these inputs.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let &LinearShape {
            rows,
            inputs,
            outputs,
        } = self.shape;
        let count = TASK.min(inputs - self.first);
        let whole = count - count % S::LANES;
        // SAFETY: whole vectors of the weights' rows; what is left is copied into whole vectors before, and out of them afterwards.
        unsafe {
            if whole > 0 {
                S::enter(&Product {
                    rows,
                    reduction: outputs,
                    vectors: whole / S::LANES,
                    a: self.dy.as_ptr(),
                    a_row: outputs,
                    a_step: 1,
                    b: self.weight.as_ptr().add(self.first),
                    b_row: inputs,
                    c: self.out.at(self.first),
                    c_row: inputs,
                    accumulate: false,
                });
            }
            if whole < count {
                let (at, left) = (self.first + whole, count - whole);
                let mut packed = Scratch::new(self.context, &[outputs, S::LANES]);
                for row in 0..outputs {
                    let value = S::load_partial(self.weight.as_ptr().add(row * inputs + at), left);
                    S::store(packed.as_mut_ptr().add(row * S::LANES), value);
                }
                let mut found = Scratch::new(self.context, &[rows, S::LANES]);
                S::enter(&Product {
                    rows,
                    reduction: outputs,
                    vectors: 1,
                    a: self.dy.as_ptr(),
                    a_row: outputs,
                    a_step: 1,
                    b: packed.as_ptr(),
                    b_row: S::LANES,
                    c: found.as_mut_ptr(),
                    c_row: S::LANES,
                    accumulate: false,
                });
                for row in 0..rows {
                    let value = S::load(found.as_ptr().add(row * S::LANES));
                    S::store_partial(self.out.at(row * inputs + at), value, left);
                }
            }
        }
    }
}
