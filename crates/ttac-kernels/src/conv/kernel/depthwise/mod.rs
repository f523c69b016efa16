//! Depthwise convolutions, and those whose groups are so small that several of them fit a vector.
//!
//! A lane belongs to a channel of the result and meets only few channels of the source. A depthwise convolution is a sum over taps of products of vectors,
//! lane by lane. In groups of, say, four channels, a lane meets four: its own, and those of the lanes whose number differs in the last two bits. So
//! a row of the source is kept in four planes, in which the lanes have changed places, and each plane is summed as if the convolution were depthwise.
//!
//! | file | what |
//! |---|---|
//! | `lines` | which places of the source the places of an output see, along one axis |
//! | `lanes` | which channels meet in a lane, and the weights in that order |
//! | `rows` | rows of the source, kept in the cache as the windows move down |
//! | `product` | the micro-kernel |
//! | `pass` | forward passes and input gradients |
//! | `whole` | forward passes and input gradients of groups that fill vectors of their own |
//! | `weight_gradient` | the gradient of the weights |

mod lanes;
mod lines;
mod pass;
mod product;
mod rows;
mod weight_gradient;
mod whole;

use std::borrow::Cow;

pub(super) use lanes::Lanes;
use lanes::Packed;
use lines::Line;
use pass::Convolution;
use product::tile;
use rows::Source;
use weight_gradient::Gradient;
use whole::WholeGroups;

use super::{ConvShape, Epilogue, Input, Pass};
use crate::Context;
use crate::core::parallel::{Out, filled};
use crate::norm::kernel::Normalise;

/// The rows that a task keeps hold at most about this many floats.
const KEPT: usize = 16 * 1024;
/// But a task of a depthwise convolution has at least this many channels, so that it reads several cache lines in a row.
const LEAST_CHANNELS: usize = 64;
/// As many tasks as keep several cores busy to the end.
const TASKS: usize = 32;

/// A task of a pass has at least this many rows, so that clearing and filling what it keeps does not matter.
const LEAST_ROWS: usize = 8;

/// Returns how many blocks of channels a task has, of each of which it keeps some of a source. The tasks are about equal.
fn cut_blocks(blocks: usize, kept: usize, planes: usize, lanes: usize) -> usize {
    let least = (LEAST_CHANNELS / planes).div_ceil(lanes);
    let most = (KEPT / kept.max(1)).max(least).clamp(1, blocks);
    blocks.div_ceil(blocks.div_ceil(most))
}

/// Computes `y` from `x`.
///
/// # Safety
/// The slices are as long as the shape says, no product of its sizes wraps, and the order is that of the shape.
pub(super) unsafe fn forward(pass: &Pass, x: Input, order: Lanes) -> Vec<f32> {
    let (context, s) = (pass.context, pass.shape);
    let out_size = [s.out_height(), s.out_width()];
    let repeated = Repeated::new(&x, order);
    let [rows, columns] = [0, 1].map(|axis| Line::forward(&s.window, axis, out_size[axis]));
    let source = Source::new(
        repeated.input(x),
        [s.height, s.width, s.in_channels],
        (order, s.out_channels),
        [&rows, &columns],
        |line| tile(line.count),
    );
    let weights = Packed::new(context, pass.weight, s, order, &columns, false);
    let write = |out: Out| {
        let convolution = Convolution {
            context,
            batch: s.batch,
            source,
            rows,
            columns,
            weights,
            out,
            out_size,
            channels: s.out_channels,
            epilogue: pass.epilogue,
        };
        // SAFETY: the slices are as long as the shape says, and the output has just been allocated.
        unsafe { convolution.run() };
    };
    // SAFETY: the lines cover every pixel of the output, the lanes every channel.
    unsafe { filled(context, s.out_len(), write) }
}

/// Computes `dx` from `dy`.
///
/// # Safety
/// As [`forward`].
pub(super) unsafe fn input_gradient(pass: &Pass, dy: &[f32], order: Lanes) -> Vec<f32> {
    let s = pass.shape;
    match order {
        Lanes::Repeated { times } => {
            // The gradient by one output channel of each input channel after the other, each added to those before.
            let mut sum: Option<Vec<f32>> = None;
            for first in 0..times {
                let order = Lanes::Every {
                    every: times,
                    first,
                };
                let before = Epilogue {
                    residual: sum.as_deref(),
                    ..Epilogue::default()
                };
                // SAFETY: the caller's promise.
                let next = unsafe { input_gradient_of(pass, dy, order, before) };
                pass.context.recycle(sum.replace(next).unwrap_or_default());
            }
            let mut sum = sum.unwrap_or_default();
            if let Some(other) = pass.epilogue.residual {
                crate::core::elementwise::add_in_place(pass.context, &mut sum, other);
            }
            debug_assert_eq!(sum.len(), s.in_len());
            sum
        }
        // SAFETY: the caller's promise.
        order => unsafe { input_gradient_of(pass, dy, order, pass.epilogue) },
    }
}

/// Computes the part of `dx` that comes from the channels of `dy` in some order of lanes.
///
/// # Safety
/// As [`forward`]; the order is one for the gradient.
unsafe fn input_gradient_of(pass: &Pass, dy: &[f32], order: Lanes, epilogue: Epilogue) -> Vec<f32> {
    let (context, s) = (pass.context, pass.shape);
    let out_size = [s.height, s.width];
    let [rows, columns] = [0, 1].map(|axis| Line::backward(&s.window, axis, out_size[axis]));
    let source = Source::new(
        dy.into(),
        [s.out_height(), s.out_width(), s.out_channels],
        (order, s.in_channels),
        [&rows, &columns],
        |line| tile(line.count),
    );
    let weights = Packed::new(context, pass.weight, s, order, &columns, true);
    let write = |out: Out| {
        let convolution = Convolution {
            context,
            batch: s.batch,
            source,
            rows,
            columns,
            weights,
            out,
            out_size,
            channels: s.in_channels,
            epilogue,
        };
        // SAFETY: the slices are as long as the shape says, and the output has just been allocated.
        unsafe { convolution.run() };
    };
    // SAFETY: the lines cover every pixel of the input, the lanes every channel.
    unsafe { filled(context, s.in_len(), write) }
}

/// Computes `y` from `x` for groups that fill vectors of their own.
///
/// # Safety
/// The slices are as long as the shape says, and no product of its sizes wraps.
pub(super) unsafe fn whole_forward(pass: &Pass, x: Input) -> Vec<f32> {
    let (context, s) = (pass.context, pass.shape);
    let out_size = [s.out_height(), s.out_width()];
    let (inputs, outputs) = (s.in_channels / s.groups, s.out_channels / s.groups);
    let [rows, columns] = [0, 1].map(|axis| Line::forward(&s.window, axis, out_size[axis]));
    let source = Source::new(
        x,
        [s.height, s.width, s.in_channels],
        (Lanes::Whole { channels: inputs }, s.in_channels),
        [&rows, &columns],
        |line| tile(line.count),
    );
    let write = |out: Out| {
        let groups = WholeGroups {
            context,
            batch: s.batch,
            source,
            rows,
            columns,
            groups: s.groups,
            inputs,
            outputs,
            kernel: s.window.kernel,
            out,
            out_size,
            epilogue: pass.epilogue,
        };
        let weight = |group: usize, input: usize, output: usize| {
            ((group * outputs + output) * inputs + input) * s.taps()
        };
        // SAFETY: the slices are as long as the shape says, and the output has just been allocated.
        unsafe { groups.run(pass.weight, weight) };
    };
    // SAFETY: the lines cover every pixel of the output, the groups every channel.
    unsafe { filled(context, s.out_len(), write) }
}

/// Computes `dx` from `dy` for groups that fill vectors of their own.
///
/// # Safety
/// As [`whole_forward`].
pub(super) unsafe fn whole_input_gradient(pass: &Pass, dy: &[f32]) -> Vec<f32> {
    let (context, s) = (pass.context, pass.shape);
    let out_size = [s.height, s.width];
    // The gradient goes from the convolution's outputs to its inputs.
    let (inputs, outputs) = (s.out_channels / s.groups, s.in_channels / s.groups);
    let [rows, columns] = [0, 1].map(|axis| Line::backward(&s.window, axis, out_size[axis]));
    let source = Source::new(
        dy.into(),
        [s.out_height(), s.out_width(), s.out_channels],
        (Lanes::Whole { channels: inputs }, s.out_channels),
        [&rows, &columns],
        |line| tile(line.count),
    );
    let write = |out: Out| {
        let groups = WholeGroups {
            context,
            batch: s.batch,
            source,
            rows,
            columns,
            groups: s.groups,
            inputs,
            outputs,
            kernel: s.window.kernel,
            out,
            out_size,
            epilogue: pass.epilogue,
        };
        let weight = |group: usize, input: usize, output: usize| {
            ((group * inputs + input) * outputs + output) * s.taps()
        };
        // SAFETY: the slices are as long as the shape says, and the output has just been allocated.
        unsafe { groups.run(pass.weight, weight) };
    };
    // SAFETY: the lines cover every pixel of the input, the groups every channel.
    unsafe { filled(context, s.in_len(), write) }
}

/// Computes `dw` from `x` and `dy`.
///
/// # Safety
/// As [`forward`].
pub(super) unsafe fn weight_gradient(
    context: &Context,
    x: Input,
    dy: &[f32],
    s: &ConvShape,
    order: Lanes,
) -> Vec<f32> {
    let [height, width] = [s.out_height(), s.out_width()];
    let repeated = Repeated::new(&x, order);
    let [rows, columns] =
        [(0, height), (1, width)].map(|(axis, count)| Line::forward(&s.window, axis, count));
    let source = Source::new(
        repeated.input(x),
        [s.height, s.width, s.in_channels],
        (order, s.out_channels),
        [&rows, &columns],
        |_| 1,
    );
    let same = Lanes::Exchanged { planes: 1 };
    let dy = Source::new(
        dy.into(),
        [height, width, s.out_channels],
        (same, s.out_channels),
        [&[Line::identity(height)], &[Line::identity(width)]],
        |_| 1,
    );
    let column = columns.into_iter().next();
    let gradient = Gradient {
        context,
        shape: s,
        source,
        dy,
        rows,
        column: column.unwrap_or_else(|| Line::identity(0)),
    };
    // SAFETY: the caller's promise.
    unsafe { gradient.run() }
}

/// The norm of an input for lanes in which channels are repeated.
struct Repeated<'a>(Option<[Cow<'a, [f32]>; 2]>);

impl<'a> Repeated<'a> {
    fn new(x: &Input<'a>, order: Lanes) -> Self {
        Self(x.norm.map(|norm| {
            [norm.scale, norm.shift].map(|values| match order {
                Lanes::Repeated { times } => {
                    let repeat = |&value| std::iter::repeat_n(value, times);
                    Cow::Owned(values.iter().flat_map(repeat).collect())
                }
                _ => Cow::Borrowed(values),
            })
        }))
    }

    /// The input with this norm.
    fn input<'b>(&'b self, x: Input<'b>) -> Input<'b> {
        let norm = match (x.norm, &self.0) {
            (Some(norm), Some([scale, shift])) => Some(Normalise {
                scale,
                shift,
                ..norm
            }),
            (norm, _) => norm,
        };
        Input { norm, ..x }
    }
}
