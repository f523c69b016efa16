//! The gradient of the weights: the correlation of input tiles with gradient tiles is F(3 x 3, m x m), over the same points.
//!
//! The same `Bt` transforms the input, another `G` the gradient, and the sum over tiles is taken before the transformation back.

use std::ops::Range;

use rayon::prelude::*;

use super::convolution::Block;
use super::tiles::{Images, Layout, Tiles, Windows, transform_inputs};
use super::transform::{gradient_sum_transform, gradient_transform};
use super::{CACHED, MOST_TILES, TRANSFORMED_AT_ONCE, positions, tiles_per_task};
use crate::Context;
use crate::conv::kernel::gemm::Outer;
use crate::conv::kernel::{ConvShape, Input};
use crate::core::parallel::{Out, filled};
use crate::core::recycle::Scratch;
use crate::core::simd::{Kernel, Simd};

/// How the tiles of a weight gradient are cut.
///
/// While the sums (one per position and pair of channels) fit the second-level cache, the tiles are cut into chunks with sums of their own, which are
/// added in the chunks' order. Larger sums exist once: block after block of tiles is transformed, and then every position adds its products.
struct Cut {
    /// Whether the sums exist once.
    large: bool,
    /// Tiles of a block.
    room: usize,
    /// Chunks that have sums.
    chunks: usize,
    /// Tiles of a chunk.
    chunk: usize,
    /// Channels in whole vectors, of the input and of the output.
    padded: [usize; 2],
}

impl Cut {
    fn new(count: usize, edge: usize, padded: [usize; 2]) -> Self {
        let [inputs, outputs] = padded;
        let sum_len = positions(edge) * inputs * outputs;
        let floats = positions(edge) * (inputs + outputs);
        let large = sum_len > CACHED;
        let room = if large {
            (SHARED_TILES / floats).clamp(MOST_TILES, count.max(MOST_TILES))
        } else {
            tiles_per_task(floats, sum_len)
        };
        // Every chunk costs the zeroing and adding of its sums: let it have some blocks of tiles.
        let chunks = if large {
            1
        } else {
            count
                .div_ceil(8 * room)
                .clamp(count.div_ceil(room).min(4), 16)
        };
        Self {
            large,
            room,
            chunks,
            chunk: count.div_ceil(chunks).next_multiple_of(room),
            padded,
        }
    }
}

/// Computes `dw` with tiles of edge `A`.
///
/// # Safety
/// The slices are as long as the shape says, and no product of its sizes wraps.
pub(in crate::conv::kernel) unsafe fn weight_gradient<const A: usize>(
    context: &Context,
    x: Input,
    dy: &[f32],
    s: &ConvShape,
) -> Vec<f32> {
    let lanes = context.isa().lanes();
    let padded = [s.in_channels, s.out_channels].map(|c| c.next_multiple_of(lanes));
    let tiles = Tiles::new(s.batch, s.out_height(), s.out_width(), A - 2);
    let cut = Cut::new(tiles.count(), A, padded);
    let zeros = vec![0.; (s.width * s.in_channels).max(s.out_width() * s.out_channels)];
    let mut sums = Scratch::new(context, &[cut.chunks, positions(A), padded[0], padded[1]]);
    let gradient = Gradient {
        context,
        x: Images {
            data: x.values,
            height: s.height,
            width: s.width,
            channels: s.in_channels,
            zeros: &zeros,
            norm: x.norm,
        },
        dy: Images {
            data: dy,
            height: s.out_height(),
            width: s.out_width(),
            channels: s.out_channels,
            zeros: &zeros,
            norm: None,
        },
        tiles,
        padding: s.window.padding[0][0].cast_signed(),
        sums: Out(sums.as_mut_ptr()),
    };
    // SAFETY: the images are as long as their sizes say, and the sums have room for all chunks.
    unsafe { gradient.sum::<A>(&cut) };
    let sums = Out(sums.as_mut_ptr());
    let write = |out: Out| {
        let tasks = 0..s.in_channels.div_ceil(8);
        tasks.into_par_iter().for_each(|task| {
            let back = GradientBack::<A> {
                sums: sums.at(0),
                chunks: gradient.tiles.count().div_ceil(cut.chunk),
                inputs: task * 8..(task * 8 + 8).min(s.in_channels),
                padded,
                channels: [s.in_channels, s.out_channels],
                out,
            };
            // SAFETY: all sums have been written; no two tasks have an input channel in common.
            unsafe { context.isa().run(back) };
        });
    };
    // SAFETY: the tasks cover all pairs of channels, and write nine values for each.
    unsafe { filled(context, s.weight_len(), write) }
}

/// Floats of transformed tiles of both kinds that all cores work on together (4 MiB).
const SHARED_TILES: usize = 1024 * 1024;

/// What a weight gradient is made of.
struct Gradient<'a> {
    context: &'a Context,
    x: Images<'a>,
    dy: Images<'a>,
    tiles: Tiles,
    padding: isize,
    /// `[chunk][position][in][out]`.
    sums: Out,
}

impl Gradient<'_> {
    /// Makes the sums of all chunks.
    ///
    /// # Safety
    /// The images are as long as their sizes say; the sums have room for the chunks of the cut, and nobody else uses them.
    unsafe fn sum<const A: usize>(&self, cut: &Cut) {
        let lanes = self.context.isa().lanes();
        let count = self.tiles.count();
        let [inputs, outputs] = cut.padded.map(|channels| Layout {
            tiles: cut.room,
            blocks: channels / lanes,
            lanes,
        });
        let sum_len = positions(A) * cut.padded[0] * cut.padded[1];
        (0..cut.chunks).into_par_iter().for_each(|c| {
            let mut v = Scratch::new(self.context, &inputs.shape(A));
            let mut m = Scratch::new(self.context, &outputs.shape(A));
            let (v, m) = (Out(v.as_mut_ptr()), Out(m.as_mut_ptr()));
            let chunk = c * cut.chunk..((c + 1) * cut.chunk).min(count);
            for first in chunk.clone().step_by(cut.room) {
                let block = Block {
                    first,
                    count: (first + cut.room).min(chunk.end) - first,
                    inputs,
                    v,
                    outputs,
                    m,
                };
                let sums = Out(self.sums.at(c * sum_len));
                // SAFETY: the buffers are this chunk's own, and so are the sums.
                unsafe { self.add::<A>(block, sums, first == chunk.start, cut.large) };
            }
        });
    }

    /// Adds the products of a block of tiles to the sums; `fresh` says that they begin with it, `parallel` that the stages are cut.
    ///
    /// # Safety
    /// As [`Gradient::sum`]; the block's buffers have room for its layouts, and nobody else uses them or the sums.
    unsafe fn add<const A: usize>(&self, block: Block, sums: Out, fresh: bool, parallel: bool) {
        let run = |stage: GradientStage| {
            let task = GradientTask::<A> {
                gradient: self,
                block,
                stage,
                sums,
                fresh,
            };
            // SAFETY: the caller's promise; within a stage no two tasks have tiles or positions in common, and the first is over before the second reads.
            unsafe { self.context.isa().run(task) };
        };
        let parts = block.count.div_ceil(TRANSFORMED_AT_ONCE);
        let part =
            |i: usize| i * TRANSFORMED_AT_ONCE..((i + 1) * TRANSFORMED_AT_ONCE).min(block.count);
        if parallel {
            (0..parts)
                .into_par_iter()
                .for_each(|i| run(GradientStage::Transform(part(i))));
            (0..positions(A))
                .into_par_iter()
                .for_each(|i| run(GradientStage::Multiply(i..i + 1)));
        } else {
            run(GradientStage::Transform(0..block.count));
            run(GradientStage::Multiply(0..positions(A)));
        }
    }
}

/// The stages of a weight gradient.
enum GradientStage {
    /// Transforms some of the block's tiles, of the input and of the gradient.
    Transform(Range<usize>),
    /// Adds the products of all tiles to the sums of some positions.
    Multiply(Range<usize>),
}

/// One stage for a block of tiles, whose `m` holds the transformed gradients.
struct GradientTask<'a, const A: usize> {
    gradient: &'a Gradient<'a>,
    block: Block,
    stage: GradientStage,
    /// `[position][in][out]`.
    sums: Out,
    /// Whether the sums begin with this block.
    fresh: bool,
}

impl<const A: usize> Kernel for GradientTask<'_, A> {
    /// # Safety
    /// Besides the instruction set: the buffers of the block have room for the layouts, and nobody else works on the same part of them or on the same sums.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (g, block) = (self.gradient, &self.block);
        let (inputs, outputs) = (block.inputs, block.outputs);
        let (rows, row) = (inputs.blocks * S::LANES, outputs.blocks * S::LANES);
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match self.stage {
                GradientStage::Transform(slots) => {
                    transform_inputs::<S, A>(Windows {
                        images: &g.x,
                        tiles: &g.tiles,
                        first: block.first,
                        slots: slots.clone(),
                        padding: g.padding,
                        out: block.v.0,
                        layout: inputs,
                    });
                    transform_gradients::<S, A>(
                        &g.dy,
                        &g.tiles,
                        block.first,
                        slots,
                        block.m.0,
                        outputs,
                    );
                }
                GradientStage::Multiply(positions) => {
                    for position in positions {
                        let sums = self.sums.at(position * rows * row);
                        for plane in 0..inputs.blocks {
                            let outer = Outer {
                                rows: block.count,
                                a: block
                                    .v
                                    .at(position * inputs.position() + plane * inputs.block()),
                                channels: S::LANES,
                                b: block.m.at(position * outputs.position()),
                                b_planes: outputs.blocks,
                                b_plane: outputs.block(),
                                out: sums.add(plane * S::LANES * row),
                                out_stride: row,
                                accumulate: !self.fresh,
                            };
                            S::enter(&outer);
                        }
                    }
                }
            }
        }
    }
}

/// Adds the chunks' sums and transforms them back to kernels.
struct GradientBack<const A: usize> {
    sums: *const f32,
    chunks: usize,
    inputs: Range<usize>,
    padded: [usize; 2],
    channels: [usize; 2],
    out: Out,
}

impl<const A: usize> Kernel for GradientBack<A> {
    /// # Safety
    /// The sums of all chunks have been written, the output has room for the weights, and nobody else writes those of these input channels.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let [rows, row] = self.padded;
        let sum_len = positions(A) * rows * row;
        for input in self.inputs {
            for first in (0..self.channels[1]).step_by(S::LANES) {
                let mut kernels = [[0f32; 16]; 9];
                // SAFETY: the sums hold `chunks` times `[position][rows][row]`, and `row` is whole vectors.
                unsafe {
                    let mut half = [[S::splat(0.); A]; 3];
                    for b in 0..A {
                        let mut column = [S::splat(0.); A];
                        for a in 0..A {
                            let at = ((a * A + b) * rows + input) * row + first;
                            for chunk in 0..self.chunks {
                                column[a] =
                                    S::add(column[a], S::load(self.sums.add(chunk * sum_len + at)));
                            }
                        }
                        let column = gradient_sum_transform::<S, A>(column);
                        for a in 0..3 {
                            half[a][b] = column[a];
                        }
                    }
                    for a in 0..3 {
                        let values = gradient_sum_transform::<S, A>(half[a]);
                        for b in 0..3 {
                            S::store(kernels[a * 3 + b].as_mut_ptr(), values[b]);
                        }
                    }
                }
                for lane in 0..(self.channels[1] - first).min(S::LANES) {
                    for (t, kernel) in kernels.iter().enumerate() {
                        let at = ((first + lane) * self.channels[0] + input) * 9 + t;
                        // SAFETY: the kernel of an existing pair of channels, which belongs to this task alone.
                        unsafe { *self.out.at(at) = kernel[lane] };
                    }
                }
            }
        }
    }
}

/// Transforms tiles of output gradients.
///
/// # Safety
/// As [`transform_inputs`].
#[inline(always)]
unsafe fn transform_gradients<S: Simd, const A: usize>(
    images: &Images,
    tiles: &Tiles,
    first: usize,
    slots: Range<usize>,
    out: *mut f32,
    layout: Layout,
) {
    for slot in slots {
        let (n, row, column) = tiles.place(first + slot);
        let rows = images.rows::<4>(n, row.cast_signed());
        for block in 0..layout.blocks {
            let channel = block * S::LANES;
            // SAFETY: the rows are those of an image or the zeros; the slot is inside the layout.
            unsafe {
                let mut t = [[S::splat(0.); 4]; A];
                images.prefetch::<S, 4>(&rows, 0, (column + A - 2).cast_signed(), channel);
                for j in 0..A - 2 {
                    let g = images.column::<S, 4>(&rows, (column + j).cast_signed(), channel, None);
                    let g = gradient_transform::<S, A>(g);
                    for i in 0..A {
                        t[i][j] = g[i];
                    }
                }
                let out = out.add(block * layout.block() + slot * S::LANES);
                for i in 0..A {
                    let g = gradient_transform::<S, A>(t[i]);
                    for j in 0..A {
                        S::store(out.add((i * A + j) * layout.position()), g[j]);
                    }
                }
            }
        }
    }
}
