//! Linear layers on rows: `y = x w^T + b + residual`.
//!
//! Result and input gradient are those of a 1x1 convolution, whose kernels they share, unless there are few rows. The weight gradient has its own, cut for rows that are many and
//! whose values lie side by side.

use std::ops::Range;

use rayon::prelude::*;

use super::few_rows::{self, Added};
use super::product::Product;
use crate::Context;
use crate::activation::kernel::Activation;
use crate::conv::kernel::{Algorithm, ConvShape, Epilogue, conv_forward, conv_input_gradient};
use crate::core::parallel::{Out, filled};
use crate::core::recycle::Scratch;
use crate::core::shape::{check_len, elements};
use crate::core::simd::{Kernel, SafeKernel, Simd};
use crate::core::window::Window;

/// Rows per task of a sum over rows; made in `f32`, and added up in `f64`.
const SUM_TASK: usize = 64;

/// The sizes of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinearShape {
    /// The number of rows of input and output.
    pub rows: usize,
    /// The number of values of an input row.
    pub inputs: usize,
    /// The number of values of an output row.
    pub outputs: usize,
}

impl LinearShape {
    /// A row is a pixel.
    fn convolution(&self) -> ConvShape {
        ConvShape::new(
            [self.rows, 1, 1, self.inputs],
            self.outputs,
            Window::square(1, 1, 0),
        )
    }
}

/// Computes `x w^T + b + residual`, `[rows, outputs]`, with `w` as `[outputs, inputs]`; bias and residual may be absent.
///
/// # Panics
/// If a slice is not as long as the shape says.
pub fn linear_forward(
    context: &Context,
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    residual: Option<&[f32]>,
    shape: &LinearShape,
) -> Vec<f32> {
    if shape.rows <= few_rows::MOST_ROWS && !context.is_for_a_nominal_batch() {
        let added = Added { bias, residual };
        return few_rows::forward(context, x, weight, added, shape);
    }
    let epilogue = Epilogue {
        bias,
        residual,
        activation: Activation::None,
    };
    let shape = shape.convolution();
    conv_forward(context, x, weight, &shape, Algorithm::Direct, &epilogue)
}

/// Computes `dx = dy w`, `[rows, inputs]`.
///
/// # Panics
/// If a slice is not as long as the shape says.
pub fn linear_input_gradient(
    context: &Context,
    dy: &[f32],
    weight: &[f32],
    shape: &LinearShape,
) -> Vec<f32> {
    if shape.rows <= few_rows::MOST_ROWS {
        return few_rows::input_gradient(context, dy, weight, shape);
    }
    let shape = shape.convolution();
    conv_input_gradient(context, dy, weight, &shape, Algorithm::Direct, None)
}

/// Rows of a block of the weight gradient: a panel of inputs and a plane of gradients of so many rows fit the first-level cache.
const BLOCK: usize = 128;
/// A task's sums hold at most about this many floats, so that they and a block stay in the second-level cache.
const TASK_SUMS: usize = 48 * 1024;
/// As many tasks as keep several cores busy to the end.
const TASKS: usize = 16;

/// How the reduction over rows of a weight gradient is cut. The cuts depend on the shape alone.
#[derive(Clone, Copy)]
struct Cut {
    /// Inputs in whole vectors.
    columns: usize,
    /// Vectors of outputs.
    planes: usize,
    /// Planes of a task, and how many such groups there are.
    group: usize,
    groups: usize,
    /// Rows of a chunk, and how many chunks there are.
    chunk: usize,
    chunks: usize,
}

impl Cut {
    fn new(shape: &LinearShape, lanes: usize) -> Self {
        let (columns, planes) = (
            shape.inputs.next_multiple_of(lanes),
            shape.outputs.div_ceil(lanes),
        );
        let group = (TASK_SUMS / (columns * lanes)).clamp(1, planes);
        let groups = planes.div_ceil(group);
        let chunks = (TASKS / groups).clamp(1, shape.rows.div_ceil(2 * BLOCK));
        let chunk = shape.rows.div_ceil(chunks).next_multiple_of(BLOCK);
        Self {
            columns,
            planes,
            group,
            groups,
            chunk,
            chunks: shape.rows.div_ceil(chunk),
        }
    }
}

/// Computes `dw = dy^T x`, `[outputs, inputs]`, and `db`, the sum of the rows of `dy`.
///
/// The reduction runs over the rows. It is cut into chunks, each with its own sums, which are added in the chunks' order; the cuts depend on the shape alone.
///
/// # Panics
/// If a slice is not as long as the shape says.
pub fn linear_weight_gradient(
    context: &Context,
    x: &[f32],
    dy: &[f32],
    shape: &LinearShape,
) -> (Vec<f32>, Vec<f32>) {
    let &LinearShape {
        rows,
        inputs,
        outputs,
    } = shape;
    check_len("input of a linear layer", x.len(), &[rows, inputs], shape);
    let what = "output gradient of a linear layer";
    check_len(what, dy.len(), &[rows, outputs], shape);
    let weights = elements("weights of a linear layer", &[outputs, inputs]);
    if rows == 0 || inputs == 0 || outputs == 0 {
        return (vec![0.; weights], vec![0.; outputs]);
    }
    let isa = context.isa();
    let lanes = isa.lanes();
    let cut = Cut::new(shape, lanes);
    let mut buffer = Scratch::new(context, &[cut.chunks, cut.planes, lanes, cut.columns]);
    let sum_len = cut.planes * lanes * cut.columns;
    let sums = Out(buffer.as_mut_ptr());
    let bias_parts: Vec<Vec<f64>> = (0..cut.chunks * cut.groups)
        .into_par_iter()
        .map(|task| {
            let (c, g) = (task / cut.groups, task % cut.groups);
            let planes = g * cut.group..((g + 1) * cut.group).min(cut.planes);
            let task = WeightTask {
                context,
                x,
                dy,
                shape,
                rows: c * cut.chunk..((c + 1) * cut.chunk).min(rows),
                sums: Out(sums.at(c * sum_len + planes.start * lanes * cut.columns)),
                planes,
            };
            // SAFETY: the lengths were checked; the sums have room for all chunks, and no two tasks have a chunk and a plane in common.
            unsafe { isa.run(task) }
        })
        .collect();
    let mut bias = vec![0f64; outputs];
    for (task, part) in bias_parts.iter().enumerate() {
        let first = task % cut.groups * cut.group * lanes;
        for (total, sum) in bias[first..].iter_mut().zip(part) {
            *total += sum;
        }
    }
    let write = |out: Out| {
        (0..cut.planes).into_par_iter().for_each(|plane| {
            let add = AddUp {
                sums,
                chunks: cut.chunks,
                sum_len,
                columns: cut.columns,
                inputs,
                rows: plane * lanes..((plane + 1) * lanes).min(outputs),
                out,
            };
            // SAFETY: the sums of all chunks have been written; no other task has these rows.
            unsafe { isa.run(add) };
        });
    };
    // SAFETY: the tasks cover all rows of the weights.
    let weight = unsafe { filled(context, weights, write) };
    (weight, bias.into_iter().map(|total| total as f32).collect())
}

/// A range of rows and of planes of outputs, a plane being a vector of them.
struct WeightTask<'a> {
    context: &'a Context,
    x: &'a [f32],
    dy: &'a [f32],
    shape: &'a LinearShape,
    rows: Range<usize>,
    planes: Range<usize>,
    /// `[plane][LANES][columns]`, from the first plane on.
    sums: Out,
}

impl Kernel<Vec<f64>> for WeightTask<'_> {
    /// Returns the sums of the gradient's rows, for the outputs of these planes.
    ///
    /// # Safety
    /// `x` and `dy` are as long as the shape says; there is room for the sums of the planes, and nobody else uses them.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Vec<f64> {
        let &LinearShape {
            inputs, outputs, ..
        } = self.shape;
        let columns = inputs.next_multiple_of(S::LANES);
        let vectors = columns / S::LANES;
        let planes = self.planes.len();
        let mut gradients = Scratch::new(self.context, &[planes, BLOCK, S::LANES]);
        let mut patches = Scratch::new(self.context, &[BLOCK, columns]);
        let mut row_sums = vec![0f32; planes * S::LANES];
        let mut totals = vec![0f64; planes * S::LANES];
        for first in self.rows.clone().step_by(BLOCK) {
            let count = BLOCK.min(self.rows.end - first);
            for row in 0..count {
                // SAFETY: a row has `outputs` gradients and `inputs` values; the buffers hold `BLOCK` rows of whole vectors.
                unsafe {
                    let dy = self.dy.as_ptr().add((first + row) * outputs);
                    for plane in 0..planes {
                        let at = (self.planes.start + plane) * S::LANES;
                        let value = S::load_partial(dy.add(at), outputs - at);
                        let place = (plane * BLOCK + row) * S::LANES;
                        S::store(gradients.as_mut_ptr().add(place), value);
                        let sum = row_sums.as_mut_ptr().add(plane * S::LANES);
                        S::store(sum, S::add(S::load(sum), value));
                    }
                    let x = self.x.as_ptr().add((first + row) * inputs);
                    for panel in (0..vectors).step_by(S::PANEL) {
                        let width = S::PANEL.min(vectors - panel);
                        for vector in 0..width {
                            let at = (panel + vector) * S::LANES;
                            let value = S::load_partial(x.add(at), inputs - at);
                            let place = panel * BLOCK + row * width + vector;
                            S::store(patches.as_mut_ptr().add(place * S::LANES), value);
                        }
                    }
                }
            }
            for (total, sum) in totals.iter_mut().zip(&mut row_sums) {
                *total += f64::from(std::mem::take(sum));
            }
            for panel in (0..vectors).step_by(S::PANEL) {
                let width = S::PANEL.min(vectors - panel);
                for plane in 0..planes {
                    let at = (self.planes.start + plane) * S::LANES;
                    // SAFETY: both buffers hold `count` rows; these sums belong to this task alone.
                    unsafe {
                        S::enter(&Product {
                            rows: S::LANES.min(outputs - at),
                            reduction: count,
                            vectors: width,
                            a: gradients.as_ptr().add(plane * BLOCK * S::LANES),
                            a_row: 1,
                            a_step: S::LANES,
                            b: patches.as_ptr().add(panel * BLOCK * S::LANES),
                            b_row: width * S::LANES,
                            c: self.sums.at((plane * columns + panel) * S::LANES),
                            c_row: columns,
                            accumulate: first > self.rows.start,
                        });
                    }
                }
            }
        }
        totals
    }
}

/// Adds the chunks' sums of some rows of the weights, in their order.
struct AddUp {
    sums: Out,
    chunks: usize,
    sum_len: usize,
    columns: usize,
    inputs: usize,
    rows: Range<usize>,
    out: Out,
}

impl Kernel for AddUp {
    /// # Safety
    /// The sums of these rows are there, and nobody else writes the rows.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for row in self.rows {
            for at in (0..self.inputs).step_by(S::LANES) {
                // SAFETY: a row of sums has whole vectors, one of weights `inputs` values.
                unsafe {
                    let sums = self.sums.at(row * self.columns + at);
                    let mut total = S::load(sums);
                    for chunk in 1..self.chunks {
                        total = S::add(total, S::load(sums.add(chunk * self.sum_len)));
                    }
                    let out = self.out.at(row * self.inputs + at);
                    S::store_partial(out, total, self.inputs - at);
                }
            }
        }
    }
}

/// Adds up all rows, `[columns]`: the gradient of a bias.
///
/// # Panics
/// If `x` does not consist of whole rows.
pub fn column_sums(context: &Context, x: &[f32], columns: usize) -> Vec<f32> {
    assert!(
        columns > 0 && x.len().is_multiple_of(columns),
        "column sums: expected the shape [.., {columns}], found {} values",
        x.len()
    );
    let isa = context.isa();
    let parts: Vec<Vec<f32>> = x
        .par_chunks(SUM_TASK.saturating_mul(columns))
        .map(|rows| {
            let mut sums = vec![0f32; columns];
            isa.run_safely(Sums {
                rows,
                sums: &mut sums,
            });
            sums
        })
        .collect();
    let mut totals = vec![0f64; columns];
    for part in &parts {
        for (total, &sum) in totals.iter_mut().zip(part) {
            *total += f64::from(sum);
        }
    }
    totals.into_iter().map(|total| total as f32).collect()
}

struct Sums<'a> {
    rows: &'a [f32],
    sums: &'a mut [f32],
}

impl Kernel for Sums<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for row in self.rows.chunks_exact(self.sums.len()) {
            for (sum, &value) in self.sums.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }
}

// SAFETY: it works on slices.
unsafe impl SafeKernel for Sums<'_> {}
