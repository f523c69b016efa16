//! The gradient of the weights, direct: `dw[o, c, a, b] = sum over pixels of dy[pixel, o] patch[pixel, (a, b, c)]`.
//!
//! The reduction runs over the pixels. It is cut into chunks, each with its own sum, and the sums are added in the chunks' order. The values
//! of a patch are cut into groups, so that a task's sums stay in the second-level cache. Both cuts depend on the shape alone.

use std::ops::Range;

use rayon::prelude::*;

use super::gemm::Outer;
use super::patches::{Block, Geometry, gather, plane_stride};
use super::{ConvShape, Input};
use crate::Context;
use crate::core::parallel::{Out, filled};
use crate::core::recycle::Scratch;
use crate::core::simd::{Kernel, Simd};

/// Pixels of a block: a plane of patches and four of gradients stay in the first-level cache.
const BLOCK_PIXELS: usize = 96;
/// A task has at most this many vectors of output gradients, so that a block of them stays in the second-level cache.
const TASK_OUTPUTS: usize = 32;
/// A task's sums hold at most about this many floats (256 KiB).
const TASK_SUMS: usize = 64 * 1024;
/// But it has at least this many planes, so that gathering the gradients pays.
const LEAST_PLANES: usize = 4;
/// As many tasks as keep several cores busy to the end.
const TASKS: usize = 16;
/// Planes of patches that are gathered at once.
const AT_ONCE: usize = 24;

/// Computes `dw`, `[out][in][kh][kw]`.
///
/// # Safety
/// The slices are as long as the shape says, and no product of its sizes wraps.
pub(super) unsafe fn direct(context: &Context, x: Input, dy: &[f32], s: &ConvShape) -> Vec<f32> {
    let lanes = context.isa().lanes();
    let patches = Geometry::forward(s, lanes);
    let seen;
    let x = if patches.span == 1 && !x.is_better_stored(patches.taps.len()) {
        x
    } else {
        // A vector holds several pixels, or the activation is long.
        seen = x.seen(context);
        Input::from(&*seen)
    };
    let (planes, pixels) = (patches.planes(lanes), patches.pixels());
    let gradients = Geometry::identity(pixels, s.out_channels);
    let out_planes = gradients.planes(lanes);
    if pixels == 0 || planes == 0 || out_planes == 0 {
        let mut zeros = context.take(s.weight_len());
        zeros.resize(s.weight_len(), 0.);
        return zeros;
    }
    let out_group = out_planes.min(TASK_OUTPUTS);
    let out_groups = out_planes.div_ceil(out_group);
    let group = (TASK_SUMS / (lanes * out_group * lanes))
        .max(LEAST_PLANES)
        .min(planes);
    let groups = planes.div_ceil(group) * out_groups;
    let chunks = (TASKS / groups).clamp(1, pixels.div_ceil(2 * BLOCK_PIXELS));
    let chunk = pixels.div_ceil(chunks).next_multiple_of(BLOCK_PIXELS);
    let chunks = pixels.div_ceil(chunk);
    let outputs = out_planes * lanes;
    let mut sums = Scratch::new(context, &[chunks, planes, lanes, outputs]);
    let sum_len = planes * lanes * outputs;
    let out = Out(sums.as_mut_ptr());
    (0..chunks * groups).into_par_iter().for_each(|task| {
        let (c, g) = (task / groups, task % groups);
        let (g, o) = (g / out_groups, g % out_groups);
        let task = Task {
            context,
            patches: &patches,
            gradients: &gradients,
            x,
            dy,
            pixels: c * chunk..((c + 1) * chunk).min(pixels),
            planes: g * group..((g + 1) * group).min(planes),
            out_planes: o * out_group..((o + 1) * out_group).min(out_planes),
            sums: Out(out.at(c * sum_len)),
            outputs,
        };
        // SAFETY: the slices are as long as the shape says; the sums have room for every chunk, and no two tasks have a chunk, a
        // plane of patches and an output channel in common.
        unsafe { context.isa().run(task) };
    });
    // SAFETY: the tasks wrote the sums of all chunks.
    unsafe { to_weights(context, &sums, chunks, &patches, s) }
}

/// A range of pixels, a range of the patch's planes, a range of output channels.
struct Task<'a> {
    context: &'a Context,
    patches: &'a Geometry,
    gradients: &'a Geometry,
    x: Input<'a>,
    dy: &'a [f32],
    pixels: Range<usize>,
    planes: Range<usize>,
    out_planes: Range<usize>,
    /// `[plane][LANES][outputs]`.
    sums: Out,
    outputs: usize,
}

impl Kernel for Task<'_> {
    /// # Safety
    /// `x` and `dy` are as the geometries say; there is room for the sums of all planes, and nobody else uses those of this task.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let stride = plane_stride(BLOCK_PIXELS, S::LANES);
        let mut dy = Scratch::new(self.context, &[self.out_planes.len(), stride]);
        let mut x = Scratch::new(self.context, &[AT_ONCE.min(self.planes.len()), stride]);
        for first in self.pixels.clone().step_by(BLOCK_PIXELS) {
            let block = first..(first + BLOCK_PIXELS).min(self.pixels.end);
            let gradients = Block {
                pixels: block.clone(),
                planes: self.out_planes.clone(),
                out: dy.as_mut_ptr(),
                stride,
            };
            // SAFETY: the buffer has room for these planes, one block each.
            unsafe { gather::<S>(self.gradients, self.dy.into(), gradients) };
            for some in self.planes.clone().step_by(AT_ONCE) {
                let some = some..(some + AT_ONCE).min(self.planes.end);
                let patches = Block {
                    pixels: block.clone(),
                    planes: some.clone(),
                    out: x.as_mut_ptr(),
                    stride,
                };
                // SAFETY: the buffer has room for `AT_ONCE` planes, or for all.
                unsafe { gather::<S>(self.patches, self.x, patches) };
                for plane in some.clone() {
                    let outer = Outer {
                        rows: block.len(),
                        a: x.as_ptr().wrapping_add((plane - some.start) * stride),
                        channels: self.patches.plane_values(plane, S::LANES),
                        b: dy.as_ptr(),
                        b_planes: self.out_planes.len(),
                        b_plane: stride,
                        out: self
                            .sums
                            .at(plane * S::LANES * self.outputs + self.out_planes.start * S::LANES),
                        out_stride: self.outputs,
                        accumulate: first > self.pixels.start,
                    };
                    // SAFETY: `x` and `dy` hold `rows` rows; these sums belong to this task alone.
                    unsafe { S::enter(&outer) };
                }
            }
        }
    }
}

/// Adds the chunks' sums, `[tap][values, padded to whole vectors][out]`, in their order, and brings them into the order of the weights.
///
/// # Safety
/// All sums of the chunks have been written.
unsafe fn to_weights(
    context: &Context,
    sums: &Scratch,
    chunks: usize,
    patches: &Geometry,
    s: &ConvShape,
) -> Vec<f32> {
    let lanes = context.isa().lanes();
    let parts = s.in_channels.div_ceil(BACK_INPUTS);
    let sums = Out(sums.as_ptr().cast_mut());
    let write = |out: Out| {
        let tasks = 0..s.out_channels.div_ceil(lanes) * parts;
        tasks.into_par_iter().for_each(|task| {
            let (vector, part) = (task / parts, task % parts);
            let back = Back {
                sums: sums.at(0),
                chunks,
                patches,
                shape: s,
                inputs: part * BACK_INPUTS..((part + 1) * BACK_INPUTS).min(s.in_channels),
                first: vector * lanes,
                out,
            };
            // SAFETY: the sums are there, by the caller's promise; no two tasks have a pair of channels in common.
            unsafe { context.isa().run(back) };
        });
    };
    // SAFETY: the tasks cover all pairs of channels, and write every tap of them.
    unsafe { filled(context, s.weight_len(), write) }
}

/// Input channels that are brought back together: enough for contiguous writes.
const BACK_INPUTS: usize = 16;

/// Some input channels of one vector of output channels.
struct Back<'a> {
    /// `chunks` times `[tap][values, padded][out, padded]`.
    sums: *const f32,
    chunks: usize,
    patches: &'a Geometry,
    shape: &'a ConvShape,
    inputs: Range<usize>,
    /// First output channel.
    first: usize,
    out: Out,
}

impl Kernel for Back<'_> {
    /// # Safety
    /// The sums of all chunks are there, the output has room for the weights, and nobody else writes those of these channels.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (s, patches) = (self.shape, self.patches);
        let taps = s.taps();
        let outputs = s.out_channels.next_multiple_of(S::LANES);
        let tap_rows = patches.tap_planes(S::LANES) * S::LANES;
        let sum_len = patches.taps.len() * tap_rows * outputs;
        let mut totals = vec![0f32; self.inputs.len() * taps * S::LANES];
        let mut at = 0;
        for i in self.inputs.clone() {
            for t in 0..taps {
                let row = t / patches.span * tap_rows + t % patches.span * s.in_channels + i;
                // SAFETY: `chunks` times `sum_len` sums, of which a row has `outputs`: whole vectors; the totals have room for one vector per (i, t).
                unsafe {
                    let sums = self.sums.add(row * outputs + self.first);
                    let mut total = S::load(sums);
                    for chunk in 1..self.chunks {
                        total = S::add(total, S::load(sums.add(chunk * sum_len)));
                    }
                    S::store(totals.as_mut_ptr().add(at), total);
                }
                at += S::LANES;
            }
        }
        for lane in 0..S::LANES.min(s.out_channels - self.first) {
            let start = ((self.first + lane) * s.in_channels + self.inputs.start) * taps;
            for (k, total) in totals.iter().skip(lane).step_by(S::LANES).enumerate() {
                // SAFETY: the weights of existing channels, which belong to this task alone.
                unsafe { *self.out.at(start + k) = *total };
            }
        }
    }
}
