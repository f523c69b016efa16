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

use super::gemm::{Finish, Product, Rows, Step, in_quads};
use super::patches::{Geometry, gather, plane_stride};
use super::{ConvShape, Epilogue, Input};
use crate::kernels::recycle::Scratch;
use crate::kernels::simd::{Isa, Kernel, Simd};
use crate::kernels::{Out, filled};
use rayon::prelude::*;
use std::ops::Range;

/// Most output pixels in a block: a multiple of every instruction set's tile.
const BLOCK_PIXELS: usize = 168;
/// Most values of a pixel's patch in a block; longer reductions are cut and accumulated.
const BLOCK_REDUCTION: usize = 640;

/// Packed weights: panels of some vectors of output channels (the last may have fewer), each `[tap][in][panel width]` (with one vector perhaps in the order of
/// [`in_quads`]), zeros in missing lanes.
pub(super) struct Packed {
    values: Scratch,
    inputs: usize,
    reduction: usize,
    panels: Panels,
}

/// How output channels are cut into panels.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    pub(super) outputs: usize,
    pub(super) lanes: usize,
    /// Lanes of a full panel.
    pub(super) width: usize,
}

impl Panels {
    pub(super) fn new(outputs: usize, isa: Isa) -> Self {
        let lanes = isa.lanes();
        Self {
            outputs,
            lanes,
            width: lanes * isa.panel(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.outputs.div_ceil(self.width)
    }

    /// Vectors of panel `p`.
    pub(super) fn vectors(&self, p: usize) -> usize {
        (self.outputs - p * self.width)
            .div_ceil(self.lanes)
            .min(self.width / self.lanes)
    }

    /// Lanes of panel `p`'s last vector that exist.
    pub(super) fn last_lanes(&self, p: usize) -> usize {
        (self.outputs - p * self.width - (self.vectors(p) - 1) * self.lanes).min(self.lanes)
    }

    /// Whether the weights of panel `p` are in the order of [`in_quads`].
    pub(super) fn in_quads(&self, p: usize, inputs: usize) -> bool {
        self.vectors(p) == 1 && inputs.is_multiple_of(4)
    }

    /// Output channels rounded up to whole vectors.
    pub(super) fn padded(&self) -> usize {
        self.outputs.next_multiple_of(self.lanes)
    }
}

/// Where a weight is. Output channels come in groups of `group`; the one for output channel `o` of group `g`, input channel `i` and tap `t` is at
/// `o * output + i * input + taps[g][t]`, or is 0 if the group has no such tap.
struct WeightOrder {
    output: usize,
    input: usize,
    group: usize,
    taps: Vec<Vec<Option<usize>>>,
}

impl WeightOrder {
    /// The weights of tap `t` from some input channels (at most [`PACKED_AT_ONCE`]), a row for each, to some output channels; zeros behind.
    fn rows(
        &self,
        weight: &[f32],
        outputs: Range<usize>,
        inputs: &Range<usize>,
        t: usize,
    ) -> [[f32; MOST_LANES]; PACKED_AT_ONCE] {
        let mut rows = [[0.; MOST_LANES]; PACKED_AT_ONCE];
        let mut group = outputs.start / self.group.max(1);
        let mut start = outputs.start;
        while start < outputs.end {
            let end = ((group + 1) * self.group).min(outputs.end);
            if let Some(tap) = self.taps[group][t] {
                let base = start % self.group * self.output + inputs.start * self.input + tap;
                let lanes = start - outputs.start..end - outputs.start;
                // The shorter distance goes inside, so that a cache line is used up before the next.
                if self.output < self.input {
                    for (i, row) in rows.iter_mut().enumerate().take(inputs.len()) {
                        let values = &weight[base + i * self.input..];
                        let row = &mut row[lanes.clone()];
                        if self.output == 1 {
                            row.copy_from_slice(&values[..row.len()]);
                        } else {
                            for (o, place) in row.iter_mut().enumerate() {
                                *place = values[o * self.output];
                            }
                        }
                    }
                } else {
                    for (o, lane) in lanes.enumerate() {
                        let values = &weight[base + o * self.output..];
                        if let (1, Some(line)) = (self.input, values.first_chunk()) {
                            // In one go; what is more than the inputs is not looked at.
                            let line: &[f32; PACKED_AT_ONCE] = line;
                            for i in 0..PACKED_AT_ONCE {
                                rows[i][lane] = line[i];
                            }
                        } else {
                            for (i, row) in rows.iter_mut().enumerate().take(inputs.len()) {
                                row[lane] = values[i * self.input];
                            }
                        }
                    }
                }
            }
            (start, group) = (end, group + 1);
        }
        rows
    }
}

/// Input channels that are packed together: a cache line of them.
const PACKED_AT_ONCE: usize = 16;
/// Most lanes of a panel.
const MOST_LANES: usize = 64;

impl Packed {
    fn new(weight: &[f32], [outputs, inputs]: [usize; 2], order: &WeightOrder, isa: Isa) -> Self {
        let taps = order.taps.first().map_or(0, Vec::len);
        let reduction = taps * inputs;
        let panels = Panels::new(outputs, isa);
        let mut values = Scratch::new(panels.padded() * reduction);
        let out = Out(values.as_mut_ptr());
        let parts = inputs.div_ceil(PACKED_AT_ONCE);
        (0..panels.count() * parts)
            .into_par_iter()
            .for_each(|task| {
                let (p, part) = (task / parts, task % parts);
                let first = p * panels.width;
                let width = panels.vectors(p) * panels.lanes;
                let quads = panels.in_quads(p, inputs);
                let some = part * PACKED_AT_ONCE..((part + 1) * PACKED_AT_ONCE).min(inputs);
                for t in 0..taps {
                    let rows = order.rows(weight, first..(first + width).min(outputs), &some, t);
                    for (i, row) in some.clone().zip(&rows) {
                        let tap = first * reduction + t * inputs * width;
                        // SAFETY: inside panel `p` and among these input channels (in whole quads), which only this task writes.
                        unsafe {
                            if quads {
                                for lane in 0..width {
                                    *out.at(tap + in_quads(i, lane, panels.lanes)) = row[lane];
                                }
                            } else {
                                out.at(tap + i * width)
                                    .copy_from_nonoverlapping(row.as_ptr(), width);
                            }
                        }
                    }
                }
            });
        Self {
            values,
            inputs,
            reduction,
            panels,
        }
    }

    /// Panel `p` from row `row` of the reduction on.
    fn panel(&self, p: usize, row: usize) -> *const f32 {
        let width = self.panels.vectors(p) * self.panels.lanes;
        self.values
            .as_ptr()
            .wrapping_add(p * self.panels.width * self.reduction + row * width)
    }
}

/// One product of gathered patches and packed weights. Pixel `(i, j)` of the grid goes to pixel `(step i + at.0, step j + at.1)` of the output, and to as
/// many pixels after it as the weights have groups.
struct Convolution<'a> {
    geometry: Geometry,
    source: Input<'a>,
    weights: Packed,
    out: Out,
    out_size: [usize; 2],
    /// Of a pixel of the output.
    out_channels: usize,
    out_step: usize,
    out_at: [usize; 2],
    epilogue: Epilogue<'a>,
}

impl Convolution<'_> {
    fn run(&self, isa: Isa) {
        let (pixels, panels) = (self.geometry.pixels(), self.weights.panels.count());
        let block = BLOCK_PIXELS.min(pixels.max(1));
        let blocks = pixels.div_ceil(block);
        // Few blocks: cut the output channels too, so that there is work for every core.
        let groups = (16 / blocks.max(1)).clamp(1, panels.max(1));
        let group = panels.div_ceil(groups);
        (0..blocks * groups).into_par_iter().for_each(|task| {
            let (g, b) = (task / blocks, task % blocks);
            isa.run(Task {
                convolution: self,
                pixels: b * block..((b + 1) * block).min(pixels),
                panels: g * group..((g + 1) * group).min(panels),
            });
        });
    }
}

/// A block of pixels times a range of panels.
struct Task<'a> {
    convolution: &'a Convolution<'a>,
    pixels: Range<usize>,
    panels: Range<usize>,
}

impl Kernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let c = self.convolution;
        let g = &c.geometry;
        let panels = c.weights.panels;
        let count = self.pixels.len();
        let mut offsets = [0; BLOCK_PIXELS];
        for (offset, pixel) in offsets.iter_mut().zip(self.pixels.clone()) {
            let (row, j) = (pixel / g.grid[1], pixel % g.grid[1]);
            let (n, i) = (row / g.grid[0], row % g.grid[0]);
            let (i, j) = (c.out_step * i + c.out_at[0], c.out_step * j + c.out_at[1]);
            *offset = ((n * c.out_size[0] + i) * c.out_size[1] + j) * c.out_channels;
        }
        let planes = g.planes(S::LANES);
        let chunk = (BLOCK_REDUCTION / S::LANES).min(planes).max(1);
        let in_place = g.is_identity() && c.source.norm.is_none();
        let room = if in_place { 0 } else { chunk };
        let mut patches = Scratch::new(room * plane_stride(BLOCK_PIXELS, S::LANES));
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
                (
                    c.source.values.as_ptr().wrapping_add(pixel),
                    Some(g.channels),
                )
            } else {
                // SAFETY: the scratch buffer has room for `chunk` planes of a full block.
                unsafe {
                    gather::<S>(
                        g,
                        c.source,
                        self.pixels.clone(),
                        chunk.clone(),
                        patches.as_mut_ptr(),
                        BLOCK_PIXELS,
                    );
                };
                steps.extend(chunk.clone().map(|plane| Step {
                    offset: (plane - chunk.start) * plane_stride(BLOCK_PIXELS, S::LANES),
                    count: g.plane_values(plane, S::LANES),
                }));
                (patches.as_ptr(), None)
            };
            let last = chunk.end == planes;
            for panel in self.panels.clone() {
                let channel = panel * panels.width;
                let null = std::ptr::null();
                let finish = if last {
                    Finish {
                        bias: c.epilogue.bias.map_or(null, |b| b[channel..].as_ptr()),
                        residual: c
                            .epilogue
                            .residual
                            .map_or(null, |r| r.as_ptr().wrapping_add(channel)),
                        relu: c.epilogue.relu,
                    }
                } else {
                    Finish::NONE
                };
                let product = Product {
                    rows: count,
                    a,
                    a_row,
                    steps: &steps,
                    weights: c.weights.panel(panel, reduced),
                    vectors: panels.vectors(panel),
                    quads: panels.in_quads(panel, c.weights.inputs),
                    out: c.out.at(channel),
                    out_rows: Rows::At(&offsets),
                    out_vector: S::LANES,
                    last_lanes: panels.last_lanes(panel),
                    accumulate: first > 0,
                    finish,
                };
                // SAFETY: the planes (or the source) hold `count` rows, the panel holds the steps' channels, and every (pixel, channel) of the output
                // belongs to exactly one task.
                unsafe { (&product).run::<S>() };
            }
            reduced += steps.iter().map(|s| s.count).sum::<usize>();
            first = chunk.end;
            if last {
                break;
            }
        }
    }
}

/// `y` from `x`.
pub(super) fn forward(
    x: Input,
    weight: &[f32],
    s: &ConvShape,
    epilogue: &Epilogue,
    isa: Isa,
) -> Vec<f32> {
    let geometry = Geometry::forward(s, isa.lanes());
    let seen;
    let x = if geometry.span == 1 {
        x
    } else {
        // A vector holds several pixels.
        seen = x.seen();
        Input::from(&*seen)
    };
    let kernel = s.kernel * s.kernel;
    let weights = if geometry.span == 1 {
        let order = WeightOrder {
            output: s.in_channels * kernel,
            input: kernel,
            group: s.out_channels,
            taps: vec![(0..kernel).map(Some).collect()],
        };
        Packed::new(weight, [s.out_channels, s.in_channels], &order, isa)
    } else {
        // Every value of a patch is a tap of its own: rows of the kernel, pixels, channels.
        let taps = (0..kernel)
            .flat_map(|pixel| (0..s.in_channels).map(move |i| Some(i * kernel + pixel)))
            .collect();
        Packed::new(
            weight,
            [s.out_channels, 1],
            &WeightOrder {
                output: s.in_channels * kernel,
                input: 0,
                group: s.out_channels,
                taps: vec![taps],
            },
            isa,
        )
    };
    // SAFETY: the grid covers every pixel of the output, the panels every channel.
    unsafe {
        filled(s.out_len(), |out| {
            let out_size = geometry.grid;
            Convolution {
                geometry,
                source: x,
                weights,
                out,
                out_size,
                out_channels: s.out_channels,
                out_step: 1,
                out_at: [0, 0],
                epilogue: *epilogue,
            }
            .run(isa);
        })
    }
}

/// `dx` from `dy`: `dx[h, w, c] = sum over a, b, o of dy[(h + padding - a) / stride, (w + padding - b) / stride, o] w[o, c, a, b]`, where the
/// divisions leave no remainder. The pixels with the same remainders form a grid, and each grid is a convolution of stride 1 with some of the taps.
///
/// A grid of few channels would use few of a panel's vectors. So `stride` pixels side by side are then taken as one with that many times the channels; where one
/// of them does not meet a tap that another meets, its weight is 0.
pub(super) fn input_gradient(
    dy: &[f32],
    weight: &[f32],
    s: &ConvShape,
    epilogue: Epilogue,
    isa: Isa,
) -> Vec<f32> {
    let taps = s.kernel * s.kernel;
    let grid_edge = |edge: usize, phase: usize| edge.saturating_sub(phase).div_ceil(s.stride);
    // Along one edge: the tap of a phase whose source lies at a distance from the grid's own coordinate.
    let tap = |phase: usize, distance: isize| {
        let tap = (phase + s.padding).cast_signed() - distance * s.stride.cast_signed();
        (0..s.kernel.cast_signed())
            .contains(&tap)
            .then(|| tap.cast_unsigned())
    };
    // All distances at which one of some phases has a tap.
    let distances = |phases: Range<usize>| {
        let far = (s.kernel + s.padding + s.stride).cast_signed();
        (-far..=far)
            .filter(move |&distance| phases.clone().any(|phase| tap(phase, distance).is_some()))
    };
    let together = if s.in_channels <= isa.lanes() && s.width.is_multiple_of(s.stride) {
        s.stride.min(isa.panel())
    } else {
        1
    };
    // SAFETY: the grids together cover every pixel of the input, the panels every channel.
    unsafe {
        filled(s.in_len(), |out| {
            for (row, column) in
                (0..s.stride).flat_map(|row| (0..s.stride).step_by(together).map(move |c| (row, c)))
            {
                let columns = column..(column + together).min(s.stride);
                let chosen: Vec<_> = distances(row..row + 1)
                    .flat_map(|down| distances(columns.clone()).map(move |right| (down, right)))
                    .collect();
                let geometry = Geometry {
                    batch: s.batch,
                    grid: [grid_edge(s.height, row), grid_edge(s.width, column)],
                    step: 1,
                    source: [s.out_height(), s.out_width()],
                    channels: s.out_channels,
                    span: 1,
                    taps: chosen.clone(),
                };
                let order = WeightOrder {
                    output: taps,
                    input: s.in_channels * taps,
                    group: s.in_channels,
                    taps: columns
                        .clone()
                        .map(|column| {
                            let meets = chosen.iter().map(|&(down, right)| {
                                Some(tap(row, down)? * s.kernel + tap(column, right)?)
                            });
                            meets.collect()
                        })
                        .collect(),
                };
                let outputs = columns.len() * s.in_channels;
                let weights = Packed::new(weight, [outputs, s.out_channels], &order, isa);
                Convolution {
                    geometry,
                    source: dy.into(),
                    weights,
                    out,
                    out_size: [s.height, s.width],
                    out_channels: s.in_channels,
                    out_step: s.stride,
                    out_at: [row, column],
                    epilogue,
                }
                .run(isa);
            }
        })
    }
}
