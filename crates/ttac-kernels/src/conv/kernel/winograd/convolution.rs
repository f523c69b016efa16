//! One Winograd convolution: tiles are transformed, multiplied and transformed back.

use std::ops::Range;

use rayon::prelude::*;

use super::tiles::{Images, Layout, Tiles, Windows, transform_inputs};
use super::transform::output_transform;
use super::weights::Weights;
use super::{FEW_TASKS, MOST_TILES, TRANSFORMED_AT_ONCE, positions, tiles_per_task};
use crate::Context;
use crate::activation::kernel::activated;
use crate::conv::kernel::Epilogue;
use crate::conv::kernel::gemm::{Finish, Product, Rows, Step};
use crate::core::parallel::Out;
use crate::core::recycle::Scratch;
use crate::core::simd::{Kernel, Simd};

/// A convolution of stride 1.
pub(super) struct Convolution<'a> {
    pub(super) context: &'a Context,
    pub(super) images: Images<'a>,
    pub(super) tiles: Tiles,
    pub(super) padding: isize,
    pub(super) weights: Weights<'a>,
    pub(super) out: Out,
    pub(super) out_size: [usize; 2],
    pub(super) epilogue: Epilogue<'a>,
}

/// Transformed tiles and their products, of the tiles from `first` on.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) inputs: Layout,
    pub(super) v: Out,
    pub(super) outputs: Layout,
    pub(super) m: Out,
}

/// The stages of a convolution.
#[derive(Clone)]
enum ConvolutionStage {
    /// Transforms some of the block's tiles.
    Inputs(Range<usize>),
    /// Multiplies one position of all tiles with one panel of weights.
    Multiply { position: usize, panel: usize },
    /// Transforms some of the block's tiles back.
    Outputs(Range<usize>),
    /// All of that, for all tiles.
    All,
}

/// One stage for a block of tiles.
struct Task<'a, const A: usize> {
    convolution: &'a Convolution<'a>,
    block: Block,
    stage: ConvolutionStage,
    /// The reduction over the input channels.
    steps: &'a [Step],
}

impl<const A: usize> Kernel for Task<'_, A> {
    /// # Safety
    /// Besides the instruction set: the buffers of the block have room for the layouts and nobody else works on the same part of them.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (c, block) = (self.convolution, &self.block);
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match self.stage {
                ConvolutionStage::Inputs(tiles) => transform_block::<S, A>(c, block, tiles),
                ConvolutionStage::Multiply { position, panel } => {
                    multiply::<S>(c, block, self.steps, position, panel);
                }
                ConvolutionStage::Outputs(tiles) => transform_outputs::<S, A>(c, block, tiles),
                ConvolutionStage::All => {
                    transform_block::<S, A>(c, block, 0..block.count);
                    for position in 0..positions(A) {
                        for panel in 0..c.weights.panels.count() {
                            multiply::<S>(c, block, self.steps, position, panel);
                        }
                    }
                    transform_outputs::<S, A>(c, block, 0..block.count);
                }
            }
        }
    }
}

/// # Safety
/// As [`Task`].
#[inline(always)]
unsafe fn transform_block<S: Simd, const A: usize>(
    c: &Convolution,
    block: &Block,
    tiles: Range<usize>,
) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        transform_inputs::<S, A>(Windows {
            images: &c.images,
            tiles: &c.tiles,
            first: block.first,
            slots: tiles,
            padding: c.padding,
            out: block.v.0,
            layout: block.inputs,
        });
    };
}

/// # Safety
/// As [`Task`].
#[inline(always)]
unsafe fn multiply<S: Simd>(
    c: &Convolution,
    block: &Block,
    steps: &[Step],
    position: usize,
    panel: usize,
) {
    let panels = c.weights.panels;
    let first_plane = panel * (panels.width / S::LANES);
    let product = Product {
        rows: block.count,
        a: block.v.at(position * block.inputs.position()),
        a_row: None,
        steps,
        weights: c.weights.panel(position, panel),
        vectors: panels.vectors(panel),
        quads: panels.in_quads(panel, c.images.channels),
        out: block
            .m
            .at(position * block.outputs.position() + first_plane * block.outputs.block()),
        out_rows: Rows::Every(S::LANES),
        out_vector: block.outputs.block(),
        last_lanes: S::LANES,
        accumulate: false,
        finish: Finish::NONE,
    };
    // SAFETY: the layouts hold `count` tiles; the rest is the caller's promise.
    unsafe { (&product).run::<S>() };
}

/// Transforms the products of some tiles back, finishes and stores them.
///
/// # Safety
/// The processor has `S`; the block holds the tiles' products, and nobody else writes their outputs.
#[inline(always)]
unsafe fn transform_outputs<S: Simd, const A: usize>(
    c: &Convolution,
    block: &Block,
    slots: Range<usize>,
) {
    let channels = c.weights.panels.outputs;
    let (layout, products) = (block.outputs, block.m.0);
    for slot in slots {
        let (n, row, column) = c.tiles.place(block.first + slot);
        // Tiles at the edge may hang over.
        let (rows, columns) = (
            (c.out_size[0] - row).min(A - 2),
            (c.out_size[1] - column).min(A - 2),
        );
        for block in 0..layout.blocks {
            let channel = block * S::LANES;
            let lanes = channels - channel;
            // SAFETY: position, block and slot are inside the layout; pixel (row + i, column + j) with i < rows, j < columns is inside the output.
            unsafe {
                let m = products.add(block * layout.block() + slot * S::LANES);
                let mut t = [[S::splat(0.); A]; 4];
                for j in 0..A {
                    let mut d = [S::splat(0.); A];
                    for i in 0..A {
                        d[i] = S::load(m.add((i * A + j) * layout.position()));
                    }
                    let d = output_transform::<S, A>(d);
                    for i in 0..A - 2 {
                        t[i][j] = d[i];
                    }
                }
                let bias = match c.epilogue.bias {
                    Some(bias) => S::load_partial(bias.as_ptr().add(channel), lanes),
                    None => S::splat(0.),
                };
                for i in 0..A - 2 {
                    if i == rows {
                        break;
                    }
                    let y = output_transform::<S, A>(t[i]);
                    for j in 0..A - 2 {
                        if j == columns {
                            break;
                        }
                        let at = ((n * c.out_size[0] + row + i) * c.out_size[1] + column + j)
                            * channels
                            + channel;
                        let mut y = S::add(y[j], bias);
                        if let Some(residual) = c.epilogue.residual {
                            y = S::add(y, S::load_partial(residual.as_ptr().add(at), lanes));
                        }
                        let [y] = activated::<S, 1>(c.epilogue.activation, [y]);
                        S::store_partial(c.out.at(at), y, lanes);
                    }
                }
            }
        }
    }
}

impl Convolution<'_> {
    /// Computes all tiles.
    ///
    /// # Safety
    /// The images and, if there is one, the residual are as long as their sizes say. The output has `out_size` pixels for each image, all of which the
    /// tiles cover, and nobody else uses it.
    pub(super) unsafe fn run<const A: usize>(&self) {
        let lanes = self.context.isa().lanes();
        let panels = self.weights.panels;
        let blocks = [
            self.images.channels.div_ceil(lanes),
            panels.padded() / lanes,
        ];
        let floats = positions(A) * (blocks[0] + blocks[1]) * lanes;
        let room = tiles_per_task(
            floats,
            positions(A) * self.images.channels * panels.padded(),
        );
        let count = self.tiles.count();
        let few = count.div_ceil(room) < FEW_TASKS;
        let room = if few {
            count.clamp(1, 2 * MOST_TILES)
        } else {
            room
        };
        let layouts = blocks.map(|blocks| Layout {
            tiles: room,
            blocks,
            lanes,
        });
        let steps = steps(self.images.channels, room, lanes);
        if !few {
            (0..count.div_ceil(room)).into_par_iter().for_each(|task| {
                self.with_block::<A>(task * room, layouts, |block| {
                    // SAFETY: the block's buffers are this task's own, and so are its tiles.
                    unsafe { self.stage::<A>(block, ConvolutionStage::All, &steps) };
                });
            });
            return;
        }
        for first in (0..count).step_by(room) {
            self.with_block::<A>(first, layouts, |block| {
                // SAFETY: the block's buffers are used here alone.
                unsafe { self.stage_by_stage::<A>(block, &steps) };
            });
        }
    }

    /// Calls `work` with buffers for the tiles from `first` on.
    fn with_block<const A: usize>(
        &self,
        first: usize,
        [inputs, outputs]: [Layout; 2],
        work: impl FnOnce(Block),
    ) {
        let mut v = Scratch::new(self.context, &inputs.shape(A));
        let mut m = Scratch::new(self.context, &outputs.shape(A));
        work(Block {
            first,
            count: inputs.tiles.min(self.tiles.count() - first),
            inputs,
            v: Out(v.as_mut_ptr()),
            outputs,
            m: Out(m.as_mut_ptr()),
        });
    }

    /// Runs the stages of a block one after the other, each of them in parallel.
    ///
    /// # Safety
    /// As [`Convolution::run`]; the block's buffers have room for its layouts, and nobody else uses them.
    unsafe fn stage_by_stage<const A: usize>(&self, block: Block, steps: &[Step]) {
        let panels = self.weights.panels.count();
        let parts = block.count.div_ceil(TRANSFORMED_AT_ONCE);
        let part =
            |i: usize| i * TRANSFORMED_AT_ONCE..((i + 1) * TRANSFORMED_AT_ONCE).min(block.count);
        let run = |stage: ConvolutionStage| {
            // SAFETY: the caller's promise; within a stage no two tasks have tiles, or a position and a panel, in common, and each stage is over before the
            // next one reads what it wrote.
            unsafe { self.stage::<A>(block, stage, steps) };
        };
        (0..parts)
            .into_par_iter()
            .for_each(|i| run(ConvolutionStage::Inputs(part(i))));
        (0..positions(A) * panels).into_par_iter().for_each(|i| {
            run(ConvolutionStage::Multiply {
                position: i / panels,
                panel: i % panels,
            });
        });
        (0..parts)
            .into_par_iter()
            .for_each(|i| run(ConvolutionStage::Outputs(part(i))));
    }

    /// Runs one stage of a block.
    ///
    /// # Safety
    /// As [`Convolution::run`]; the block's buffers have room for its layouts, and nobody else works on the same part of them.
    unsafe fn stage<const A: usize>(&self, block: Block, stage: ConvolutionStage, steps: &[Step]) {
        let task = Task::<A> {
            convolution: self,
            block,
            stage,
            steps,
        };
        // SAFETY: the caller's promise.
        unsafe { self.context.isa().run(task) };
    }
}

/// The reduction over the input channels.
fn steps(channels: usize, room: usize, lanes: usize) -> Vec<Step> {
    (0..channels.div_ceil(lanes))
        .map(|b| Step {
            offset: b * room * lanes,
            count: (channels - b * lanes).min(lanes),
        })
        .collect()
}
