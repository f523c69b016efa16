//! Direct convolution as an implicit matrix product.
//!
//! ```text
//!            taps x channel blocks (steps)                     output channels
//!          ┌──────┬──────┬─────┬──────┐                      ┌────────┬────────┐
//!  pixels  │plane │plane │ ... │plane │   x  steps x lanes   │ panel  │ panel  │
//!  (block) │      │      │     │      │                      │        │        │
//!          └──────┴──────┴─────┴──────┘                      └────────┴────────┘
//! ```
//!
//! A block of output pixels gathers its patches into planes `[tap][channel block][pixel][LANES]`, zeros where the kernel hangs over the
//! edge. It stays in the second-level cache while every panel of packed weights passes by. Where a pixel sees only itself (1x1 kernels of
//! stride 1) there is nothing to gather.

use std::collections::BTreeSet;
use std::ops::Range;

use rayon::prelude::*;

use super::gemm::{Finish, Product, Rows, Step};
use super::packing::{Packed, WeightOrder};
use super::patches::{Block, Geometry, gather, plane_stride};
use super::{ConvShape, Epilogue, Input, Pass};
use crate::Context;
use crate::core::parallel::{Out, filled, filled_rows};
use crate::core::recycle::Scratch;
use crate::core::simd::{Kernel, Simd};

/// Most output pixels in a block: a multiple of every instruction set's tile.
const BLOCK_PIXELS: usize = 168;
/// Most values of a pixel's patch in a block; longer reductions are cut and accumulated.
const BLOCK_REDUCTION: usize = 640;

/// One product of gathered patches and packed weights. Pixel `(i, j)` of the grid goes to pixel `(step[0] i + at[0], step[1] j + at[1])` of the output, and to as
/// many pixels after it as the weights have groups.
struct Convolution<'a> {
    context: &'a Context,
    geometry: Geometry,
    source: Input<'a>,
    weights: Packed<'a>,
    out: Out,
    out_size: [usize; 2],
    /// The number of channels of a pixel of the output.
    out_channels: usize,
    out_step: [usize; 2],
    out_at: [usize; 2],
    epilogue: Epilogue<'a>,
}

impl Convolution<'_> {
    /// Computes all pixels of the grid.
    ///
    /// # Safety
    /// The source has the pixels of the geometry. The output and, if there is one, the residual have `out_size` pixels of `out_channels` for each image, and
    /// nobody else uses the pixels of the output that the grid goes to.
    unsafe fn run(&self) {
        let (pixels, panels) = (self.geometry.pixels(), self.weights.panels.count());
        let block = BLOCK_PIXELS.min(pixels.max(1));
        let blocks = pixels.div_ceil(block);
        // Few blocks: cut the output channels too, so that there is work for every core.
        let groups = (16 / blocks.max(1)).clamp(1, panels.max(1));
        let group = panels.div_ceil(groups);
        (0..blocks * groups).into_par_iter().for_each(|task| {
            let (g, b) = (task / blocks, task % blocks);
            let task = Task {
                convolution: self,
                pixels: b * block..((b + 1) * block).min(pixels),
                panels: g * group..((g + 1) * group).min(panels),
            };
            // SAFETY: the caller's promise; no two tasks have a pixel and a panel in common, and a block has at most `BLOCK_PIXELS` pixels.
            unsafe { self.context.isa().run(task) };
        });
    }

    /// Writes down where the values of a block of pixels begin in the output.
    #[inline(always)]
    fn find_offsets(&self, pixels: Range<usize>, offsets: &mut [usize; BLOCK_PIXELS]) {
        let grid = self.geometry.grid;
        for (offset, pixel) in offsets.iter_mut().zip(pixels) {
            let (row, j) = (pixel / grid[1], pixel % grid[1]);
            let (n, i) = (row / grid[0], row % grid[0]);
            let i = self.out_step[0] * i + self.out_at[0];
            let j = self.out_step[1] * j + self.out_at[1];
            *offset = ((n * self.out_size[0] + i) * self.out_size[1] + j) * self.out_channels;
        }
    }

    /// The epilogue of the panel that begins at an output channel.
    #[inline(always)]
    fn finish(&self, channel: usize) -> Finish {
        let (null, epilogue) = (std::ptr::null(), &self.epilogue);
        let residual = epilogue.residual;
        Finish {
            bias: epilogue.bias.map_or(null, |b| b[channel..].as_ptr()),
            residual: residual.map_or(null, |r| r.as_ptr().wrapping_add(channel)),
            activation: epilogue.activation,
        }
    }
}

/// A block of pixels times a range of panels.
struct Task<'a> {
    convolution: &'a Convolution<'a>,
    pixels: Range<usize>,
    panels: Range<usize>,
}

/// Part of the reduction of a block: where its values are.
struct Part<'a> {
    a: *const f32,
    a_row: Option<usize>,
    steps: &'a [Step],
    /// Values of a patch before this part.
    reduced: usize,
    is_last: bool,
}

impl Kernel for Task<'_> {
    /// # Safety
    /// The conditions of [`Convolution::run`] hold, there are at most `BLOCK_PIXELS` pixels, and nobody else writes these pixels of these panels.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let c = self.convolution;
        let g = &c.geometry;
        let mut offsets = [0; BLOCK_PIXELS];
        c.find_offsets(self.pixels.clone(), &mut offsets);
        let planes = g.planes(S::LANES);
        let chunk = (BLOCK_REDUCTION / S::LANES).min(planes).max(1);
        let in_place = g.is_identity() && c.source.norm.is_none();
        let stride = plane_stride(BLOCK_PIXELS, S::LANES);
        let room = if in_place { 0 } else { chunk };
        let mut patches = Scratch::new(c.context, &[room, stride]);
        let mut steps = Vec::with_capacity(chunk);
        let mut first = 0;
        let mut reduced = 0;
        loop {
            let chunk = first..(first + chunk).min(planes);
            steps.clear();
            let (a, a_row) = if in_place {
                // Nothing to gather: the rows are the source's pixels.
                let count = chunk.clone().map(|plane| g.plane_values(plane, S::LANES));
                steps.push(Step {
                    offset: chunk.start * S::LANES,
                    count: count.sum(),
                });
                let pixel = self.pixels.start * g.channels;
                let values = c.source.values.as_ptr();
                (values.wrapping_add(pixel), Some(g.channels))
            } else {
                let block = Block {
                    pixels: self.pixels.clone(),
                    planes: chunk.clone(),
                    out: patches.as_mut_ptr(),
                    stride,
                };
                // SAFETY: the scratch buffer has room for `chunk` planes of a full block; the source is as the geometry says.
                unsafe { gather::<S>(g, c.source, block) };
                steps.extend(chunk.clone().map(|plane| Step {
                    offset: (plane - chunk.start) * stride,
                    count: g.plane_values(plane, S::LANES),
                }));
                (patches.as_ptr(), None)
            };
            let part = Part {
                a,
                a_row,
                steps: &steps,
                reduced,
                is_last: chunk.end == planes,
            };
            // SAFETY: the planes (or the source) hold the rows of the block; the rest is the caller's promise.
            unsafe { self.multiply::<S>(&part, &offsets) };
            reduced += steps.iter().map(|s| s.count).sum::<usize>();
            first = chunk.end;
            if part.is_last {
                break;
            }
        }
    }
}

impl Task<'_> {
    /// Multiplies a part of the reduction with the task's panels.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `part` says where the values of all pixels are.
    #[inline(always)]
    unsafe fn multiply<S: Simd>(&self, part: &Part, offsets: &[usize; BLOCK_PIXELS]) {
        let c = self.convolution;
        let panels = c.weights.panels;
        for panel in self.panels.clone() {
            let channel = panel * panels.width;
            let product = Product {
                rows: self.pixels.len(),
                a: part.a,
                a_row: part.a_row,
                steps: part.steps,
                weights: c.weights.panel(panel, part.reduced),
                vectors: panels.vectors(panel),
                quads: panels.in_quads(panel, c.weights.inputs),
                out: c.out.at(channel),
                out_rows: Rows::At(offsets),
                out_vector: S::LANES,
                last_lanes: panels.last_lanes(panel),
                accumulate: part.reduced > 0,
                finish: if part.is_last {
                    c.finish(channel)
                } else {
                    Finish::NONE
                },
            };
            // SAFETY: `a` holds the rows, the panel holds the steps' channels, and every (pixel, channel) of the output belongs to exactly one task.
            unsafe { (&product).run::<S>() };
        }
    }
}

/// Computes `y` from `x`.
///
/// # Safety
/// The slices are as long as the shape says, and no product of its sizes wraps.
pub(super) unsafe fn forward(pass: &Pass, x: Input) -> Vec<f32> {
    let (context, s) = (pass.context, pass.shape);
    let geometry = Geometry::forward(s, context.isa().lanes());
    let seen;
    let x = if geometry.span == 1 && !x.is_better_stored(geometry.taps.len()) {
        x
    } else {
        // A vector holds several pixels, or the activation is long.
        seen = x.seen(context);
        Input::from(&*seen)
    };
    let (kernel, inputs) = (s.taps(), geometry.tap_values());
    let order = |input: usize, taps: Vec<usize>| WeightOrder {
        output: s.in_channels * kernel,
        input,
        group: s.out_channels,
        taps: vec![taps.into_iter().map(Some).collect()],
    };
    let weights = if geometry.span == 1 {
        let order = order(kernel, (0..kernel).collect());
        Packed::new(context, pass.weight, [s.out_channels, inputs], &order)
    } else {
        // The values of a row of the kernel are the inputs of one tap.
        let rows = (0..s.window.kernel[0]).map(|row| row * inputs);
        let weight = channels_last(context, pass.weight, s);
        let order = order(1, rows.collect());
        let packed = Packed::new(context, &weight, [s.out_channels, inputs], &order);
        context.recycle(weight);
        packed
    };
    let write = |out: Out| {
        let out_size = geometry.grid;
        let convolution = Convolution {
            context,
            geometry,
            source: x,
            weights,
            out,
            out_size,
            out_channels: s.out_channels,
            out_step: [1; 2],
            out_at: [0, 0],
            epilogue: pass.epilogue,
        };
        // SAFETY: the slices are as long as the shape says, and the output has just been allocated.
        unsafe { convolution.run() };
    };
    // SAFETY: the grid covers every pixel of the output, the panels every channel.
    unsafe { filled(context, s.out_len(), write) }
}

/// Brings weights from `[out][in][kh][kw]` into the order `[out][kh][kw][in]`, in which the values of a patch lie.
fn channels_last(context: &Context, weight: &[f32], s: &ConvShape) -> Vec<f32> {
    let taps = s.taps();
    let row = s.in_channels * taps;
    // SAFETY: every value of a row is written.
    unsafe {
        filled_rows(context, weight.len(), row, |output, out| {
            let weight = &weight[output * row..][..row];
            for (tap, out) in out.chunks_exact_mut(s.in_channels).enumerate() {
                for (out, weight) in out.iter_mut().zip(weight[tap..].iter().step_by(taps)) {
                    out.write(*weight);
                }
            }
        })
    }
}

/// Computes `dx` from `dy`: `dx[h, w, c] = sum over a, b, o of dy[(h + padding - dilation a) / stride, (w + padding - dilation b) / stride, o] w[o, c, a, b]`,
/// where the divisions leave no remainder. The pixels with the same remainders form a grid, and each grid is a convolution of stride 1 with some of the taps.
///
/// A grid of few channels would use few of a panel's vectors. So as many pixels side by side as the stride has are then taken as one with that many times the channels; where one
/// of them does not meet a tap that another meets, its weight is 0.
///
/// # Safety
/// The slices are as long as the shape says, and no product of its sizes wraps.
pub(super) unsafe fn input_gradient(pass: &Pass, dy: &[f32]) -> Vec<f32> {
    let (context, s) = (pass.context, pass.shape);
    let isa = context.isa();
    let stride = s.window.stride;
    let together = if s.in_channels <= isa.lanes() && s.width.is_multiple_of(stride[1]) {
        // Where places do not overlap, all pixels under one meet the same gradient: as many as fill a panel.
        let apart = s.window.kernel[1] == stride[1] && s.window.padding[1][0] == 0;
        let panel = if apart {
            isa.panel() * isa.lanes() / s.in_channels.max(1)
        } else {
            isa.panel()
        };
        stride[1].min(panel)
    } else {
        1
    };
    let write = |out: Out| {
        for (row, column) in
            (0..stride[0]).flat_map(|row| (0..stride[1]).step_by(together).map(move |c| (row, c)))
        {
            let columns = column..(column + together).min(stride[1]);
            let (geometry, order) = grid(s, row, columns.clone());
            let outputs = columns.len() * s.in_channels;
            let convolution = Convolution {
                context,
                geometry,
                source: dy.into(),
                weights: Packed::new(context, pass.weight, [outputs, s.out_channels], &order),
                out,
                out_size: [s.height, s.width],
                out_channels: s.in_channels,
                out_step: stride,
                out_at: [row, column],
                epilogue: pass.epilogue,
            };
            // SAFETY: the slices are as long as the shape says, and the output has just been allocated. Pixels side by side exist
            // together, since the stride then divides the width.
            unsafe { convolution.run() };
        }
    };
    // SAFETY: the grids together cover every pixel of the input, the panels every channel.
    unsafe { filled(context, s.in_len(), write) }
}

/// The grid of the input's pixels whose row has the remainder `row` and whose column has one of `columns`, the gradients they see, and the order of the
/// weights for them.
fn grid(s: &ConvShape, row: usize, columns: Range<usize>) -> (Geometry, WeightOrder) {
    let (taps, window) = (s.taps(), s.window);
    let grid_edge = |axis: usize, edge: usize, phase: usize| {
        edge.saturating_sub(phase).div_ceil(window.stride[axis])
    };
    // Along one axis: how far from the grid's own coordinate the gradient lies that a phase meets at a tap, if it meets one there.
    let distance = |axis: usize, phase: usize, tap: usize| {
        let from = (phase + window.padding[axis][0]).cast_signed()
            - (tap * window.dilation[axis]).cast_signed();
        let stride = window.stride[axis].cast_signed();
        (from % stride == 0).then_some(from / stride)
    };
    // The other way round.
    let tap = |axis: usize, phase: usize, far: isize| {
        (0..window.kernel[axis]).find(|&tap| distance(axis, phase, tap) == Some(far))
    };
    // All distances at which one of some phases has a tap, in ascending order.
    let distances = |axis: usize, phases: Range<usize>| -> BTreeSet<isize> {
        let kernel = 0..window.kernel[axis];
        let all = phases.flat_map(|phase| kernel.clone().map(move |tap| (phase, tap)));
        all.filter_map(|(phase, tap)| distance(axis, phase, tap))
            .collect()
    };
    let right = distances(1, columns.clone());
    let chosen: Vec<_> = distances(0, row..row + 1)
        .into_iter()
        .flat_map(|down| right.iter().map(move |&right| (down, right)))
        .collect();
    let weights = columns.clone().map(|column| {
        let meets = chosen.iter().map(|&(down, right)| {
            Some(tap(0, row, down)? * window.kernel[1] + tap(1, column, right)?)
        });
        meets.collect()
    });
    let order = WeightOrder {
        output: taps,
        input: s.in_channels * taps,
        group: s.in_channels,
        taps: weights.collect(),
    };
    let geometry = Geometry {
        batch: s.batch,
        grid: [
            grid_edge(0, s.height, row),
            grid_edge(1, s.width, columns.start),
        ],
        step: [1; 2],
        source: s.places(),
        channels: s.out_channels,
        span: 1,
        taps: chosen,
    };
    (geometry, order)
}
