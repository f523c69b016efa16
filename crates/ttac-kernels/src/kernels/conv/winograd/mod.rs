//! Winograd convolution of 3x3 kernels with stride 1: forward, gradient of the input, gradient of the weights.
//!
//! F(m x m, 3 x 3) computes an `m x m` tile of outputs from an `a x a` tile of inputs, `a = m + 2`, by polynomial multiplication: transform
//! the tile (`V = Bt x B`) and the kernel (`U = G w Gt`), multiply the `a a` positions one by one, transform back (`y = At M A`). Per output and pair of
//! channels that takes `(a / m)^2` multiplications instead of 9: 4 for m = 2, 2.25 for m = 4. Summed over input channels, each position is a
//! matrix product:
//!
//! ```text
//!   tiles x in  ──┐ one product      ┌── tiles x out
//!   tiles x in  ──┤ per position, ───┤   tiles x out
//!   ...  V      ──┘ with U           └── ...  M
//! ```
//!
//! A task transforms a block of tiles, multiplies and transforms back while all of it stays in the second-level cache; whole transformed tensors never exist.

mod gradient;
mod transform;
mod weights;

pub(super) use gradient::weight_gradient;

use super::gemm::{Finish, Product, Rows, Step};
use super::input::{Input, Normalise, Vectors};
use super::{ConvShape, Epilogue};
use crate::kernels::recycle::Scratch;
use crate::kernels::simd::{Isa, Kernel, Simd};
use crate::kernels::{Out, filled};
use rayon::prelude::*;
use std::ops::Range;
use transform::{input_transform, output_transform};
use weights::Weights;

/// Positions of a transformed tile with edge `a`.
const fn positions(a: usize) -> usize {
    a * a
}

/// The tiles of a batch of images: tile `(i, j)` of image `n` begins at pixel `(step i, step j)` of the output.
#[derive(Clone, Copy)]
struct Tiles {
    batch: usize,
    rows: usize,
    columns: usize,
    step: usize,
}

impl Tiles {
    fn new(batch: usize, height: usize, width: usize, step: usize) -> Self {
        Self {
            batch,
            rows: height.div_ceil(step),
            columns: width.div_ceil(step),
            step,
        }
    }

    fn count(&self) -> usize {
        self.batch * self.rows * self.columns
    }

    /// Image, and first row and column in the output.
    #[inline(always)]
    fn place(&self, tile: usize) -> (usize, usize, usize) {
        let (row, j) = (tile / self.columns, tile % self.columns);
        (row / self.rows, row % self.rows * self.step, j * self.step)
    }
}

/// A batch of images to cut tiles from.
#[derive(Clone, Copy)]
struct Images<'a> {
    data: &'a [f32],
    height: usize,
    width: usize,
    channels: usize,
    /// As long as a row; stands for the rows outside.
    zeros: &'a [f32],
    /// What is done to the pixels inside.
    norm: Option<Normalise<'a>>,
}

impl Images<'_> {
    /// The first pixel of each of `N` rows of image `n`, from `row` on; zeros for rows outside.
    #[inline(always)]
    fn rows<const N: usize>(&self, n: usize, row: isize) -> [*const f32; N] {
        let mut rows = [self.zeros.as_ptr(); N];
        for (i, pointer) in rows.iter_mut().enumerate() {
            let h = (row + i.cast_signed()).cast_unsigned();
            if h < self.height {
                *pointer = self
                    .data
                    .as_ptr()
                    .wrapping_add((n * self.height + h) * self.width * self.channels);
            }
        }
        rows
    }

    /// Asks for the pixels of the next tile: four columns from `column` on, of the rows from `first` on (earlier rows were seen by the tiles above).
    #[inline(always)]
    fn prefetch<S: Simd, const N: usize>(
        &self,
        rows: &[*const f32; N],
        first: usize,
        column: isize,
        channel: usize,
    ) {
        let at = column.cast_unsigned() * self.channels + channel;
        for row in &rows[first..] {
            for j in 0..4 {
                S::prefetch(row.wrapping_add(at + j * self.channels));
            }
        }
    }

    /// The vectors from `channel` on of the pixels in `column` of some rows, normalised; zeros for columns outside.
    ///
    /// # Safety
    /// The processor has `S`; `rows` come from [`Images::rows`] and `channel` is a channel.
    #[inline(always)]
    unsafe fn column<S: Simd, const N: usize>(
        &self,
        rows: &[*const f32; N],
        column: isize,
        channel: usize,
        norm: Option<Vectors<S>>,
    ) -> [S::V; N] {
        // SAFETY: a column inside the image (the zeros are as wide), and a channel that exists.
        unsafe {
            let mut vectors = [S::splat(0.); N];
            if column.cast_unsigned() < self.width {
                let at = column.cast_unsigned() * self.channels + channel;
                for i in 0..N {
                    vectors[i] = S::load_partial(rows[i].add(at), self.channels - channel);
                }
                if let Some(norm) = norm {
                    vectors = norm.apply(vectors);
                    let outside = |row: &*const f32| *row == self.zeros.as_ptr();
                    if rows.iter().any(outside) {
                        for i in 0..N {
                            if outside(&rows[i]) {
                                vectors[i] = S::splat(0.);
                            }
                        }
                    }
                }
            }
            vectors
        }
    }
}

/// A block of transformed tiles, `[position][channel block][tile][LANES]`.
#[derive(Clone, Copy)]
struct Layout {
    /// Room for this many tiles.
    tiles: usize,
    blocks: usize,
    lanes: usize,
}

impl Layout {
    /// Floats from one channel block to the next.
    fn block(&self) -> usize {
        self.tiles * self.lanes
    }

    /// Floats from one position to the next. Odd in cache lines: the positions of a tile are written together and must not share a cache set.
    fn position(&self) -> usize {
        ((self.tiles * self.blocks) | 1) * self.lanes
    }

    fn len(&self, a: usize) -> usize {
        positions(a) * self.position()
    }
}

/// Windows of `A x A` input pixels, one per tile, each `padding` above and left of its tile. Slot `s` is for tile `first + s`.
struct Windows<'a> {
    images: &'a Images<'a>,
    tiles: &'a Tiles,
    first: usize,
    slots: Range<usize>,
    padding: isize,
    out: *mut f32,
    layout: Layout,
}

/// Transforms windows.
///
/// # Safety
/// The processor has `S`; `out` has room for the layout, which has room for the tiles.
#[inline(always)]
unsafe fn transform_inputs<S: Simd, const A: usize>(windows: Windows) {
    // Two programs: the one without a norm should not pay for it.
    // SAFETY: the caller's promise, passed on.
    unsafe {
        match windows.images.norm {
            None => S::enter(TransformInputs::<A, false>(windows)),
            Some(_) => S::enter(TransformInputs::<A, true>(windows)),
        }
    }
}

struct TransformInputs<'a, const A: usize, const NORM: bool>(Windows<'a>);

impl<const A: usize, const NORM: bool> Kernel for TransformInputs<'_, A, NORM> {
    type Output = ();

    /// # Safety
    /// As [`transform_inputs`].
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Windows {
            images,
            tiles,
            first,
            slots,
            padding,
            out,
            layout,
        } = self.0;
        for slot in slots {
            let (n, row, column) = tiles.place(first + slot);
            let rows = images.rows::<A>(n, row.cast_signed() - padding);
            let column = column.cast_signed() - padding;
            for block in 0..layout.blocks {
                let channel = block * S::LANES;
                // SAFETY: the rows are those of an image or the zeros; the slot is inside the layout.
                unsafe {
                    let norm = match images.norm {
                        Some(norm) if NORM => Some(norm.vectors::<S>(channel)),
                        _ => None,
                    };
                    let mut t = [[S::splat(0.); A]; A];
                    images.prefetch::<S, A>(&rows, 2, column + A.cast_signed(), channel);
                    for j in 0..A {
                        let column = column + j.cast_signed();
                        let d = images.column::<S, A>(&rows, column, channel, norm);
                        let d = input_transform::<S, A>(d);
                        for i in 0..A {
                            t[i][j] = d[i];
                        }
                    }
                    let out = out.add(block * layout.block() + slot * S::LANES);
                    for i in 0..A {
                        let d = input_transform::<S, A>(t[i]);
                        for j in 0..A {
                            S::store(out.add((i * A + j) * layout.position()), d[j]);
                        }
                    }
                }
            }
        }
    }
}

/// Floats of transformed tiles that a task keeps in the second-level cache, beside what they are multiplied with (432 KiB).
const TASK_TILES: usize = 108 * 1024;
/// What they are multiplied with stays in the second-level cache if it has at most this many floats (1 MiB).
const CACHED: usize = 256 * 1024;
/// Most tiles of a task, and the number when what they are multiplied with is not cached: as many as possible should share its way
/// through the caches. Multiples of every register tile.
const MOST_TILES: usize = 96;
const UNCACHED_TILES: usize = 48;

/// Tiles per task, when each needs `floats` and all are multiplied with `others` floats.
fn tiles_per_task(floats: usize, others: usize) -> usize {
    if others > CACHED {
        UNCACHED_TILES
    } else {
        (TASK_TILES / floats / 12 * 12).clamp(24, MOST_TILES)
    }
}

/// Fewer tasks than this leave cores idle at the end: then each stage is cut for itself.
const FEW_TASKS: usize = 8;
/// Tiles that are transformed at once by one core, when stages are cut for themselves.
const TRANSFORMED_AT_ONCE: usize = 4;

/// A convolution of stride 1.
struct Convolution<'a> {
    images: Images<'a>,
    tiles: Tiles,
    padding: isize,
    weights: Weights,
    out: Out,
    out_size: [usize; 2],
    epilogue: Epilogue<'a>,
}

/// Transformed tiles and their products, of the tiles from `first` on.
#[derive(Clone, Copy)]
struct Block {
    first: usize,
    count: usize,
    inputs: Layout,
    v: Out,
    outputs: Layout,
    m: Out,
}

/// The stages of a convolution.
#[derive(Clone)]
enum Stage {
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
    stage: Stage,
    /// The reduction over the input channels.
    steps: &'a [Step],
}

impl<const A: usize> Kernel for Task<'_, A> {
    type Output = ();

    /// # Safety
    /// Besides the instruction set: the buffers of the block have room for the layouts and nobody else works on the same part of them.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (c, block) = (self.convolution, &self.block);
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match self.stage {
                Stage::Inputs(tiles) => transform_block::<S, A>(c, block, tiles),
                Stage::Multiply { position, panel } => {
                    multiply::<S>(c, block, self.steps, position, panel);
                }
                Stage::Outputs(tiles) => transform_outputs::<S, A>(c, block, tiles),
                Stage::All => {
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
                        if c.epilogue.relu {
                            y = S::relu(y);
                        }
                        S::store_partial(c.out.at(at), y, lanes);
                    }
                }
            }
        }
    }
}

impl Convolution<'_> {
    fn run<const A: usize>(&self, isa: Isa) {
        let lanes = isa.lanes();
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
        let room = if few { count.min(2 * MOST_TILES) } else { room };
        let with_buffers = |first: usize, work: &dyn Fn(Block)| {
            let [inputs, outputs] = blocks.map(|blocks| Layout {
                tiles: room,
                blocks,
                lanes,
            });
            let (mut v, mut m) = (Scratch::new(inputs.len(A)), Scratch::new(outputs.len(A)));
            let count = room.min(count - first);
            work(Block {
                first,
                count,
                inputs,
                v: Out(v.as_mut_ptr()),
                outputs,
                m: Out(m.as_mut_ptr()),
            });
        };
        let steps = steps(self.images.channels, room, lanes);
        let run = |block: Block, stage: Stage| {
            isa.run(Task::<A> {
                convolution: self,
                block,
                stage,
                steps: &steps,
            });
        };
        if !few {
            (0..count.div_ceil(room))
                .into_par_iter()
                .for_each(|task| with_buffers(task * room, &|block| run(block, Stage::All)));
            return;
        }
        for first in (0..count).step_by(room) {
            with_buffers(first, &|block| {
                let parts = block.count.div_ceil(TRANSFORMED_AT_ONCE);
                let part = |i: usize| {
                    i * TRANSFORMED_AT_ONCE..((i + 1) * TRANSFORMED_AT_ONCE).min(block.count)
                };
                (0..parts)
                    .into_par_iter()
                    .for_each(|i| run(block, Stage::Inputs(part(i))));
                (0..positions(A) * panels.count())
                    .into_par_iter()
                    .for_each(|i| {
                        run(
                            block,
                            Stage::Multiply {
                                position: i / panels.count(),
                                panel: i % panels.count(),
                            },
                        );
                    });
                (0..parts)
                    .into_par_iter()
                    .for_each(|i| run(block, Stage::Outputs(part(i))));
            });
        }
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

/// `y` from `x`, with tiles of edge `A`.
pub(super) fn forward<const A: usize>(
    x: Input,
    weight: &[f32],
    s: &ConvShape,
    epilogue: &Epilogue,
    isa: Isa,
) -> Vec<f32> {
    let (inputs, outputs) = (s.in_channels, s.out_channels);
    let weights = Weights::new::<A>(weight, inputs, outputs, false, isa, |o, i| {
        (o * inputs + i) * 9
    });
    let zeros = vec![0.; s.width * inputs];
    let out_size = [s.out_height(), s.out_width()];
    // SAFETY: the tiles cover the output.
    unsafe {
        filled(s.out_len(), |out| {
            Convolution {
                images: Images {
                    data: x.values,
                    height: s.height,
                    width: s.width,
                    channels: inputs,
                    zeros: &zeros,
                    norm: x.norm,
                },
                tiles: Tiles::new(s.batch, out_size[0], out_size[1], A - 2),
                padding: s.padding.cast_signed(),
                weights,
                out,
                out_size,
                epilogue: *epilogue,
            }
            .run::<A>(isa);
        })
    }
}

/// `dx` from `dy`: a convolution with the kernels turned around and the channels exchanged.
pub(super) fn input_gradient<const A: usize>(
    dy: &[f32],
    weight: &[f32],
    s: &ConvShape,
    epilogue: Epilogue,
    isa: Isa,
) -> Vec<f32> {
    let (inputs, outputs) = (s.out_channels, s.in_channels);
    let weights = Weights::new::<A>(weight, inputs, outputs, true, isa, |o, i| {
        (i * outputs + o) * 9
    });
    let zeros = vec![0.; s.out_width() * inputs];
    // SAFETY: the tiles cover the input.
    unsafe {
        filled(s.in_len(), |out| {
            Convolution {
                images: Images {
                    data: dy,
                    height: s.out_height(),
                    width: s.out_width(),
                    channels: inputs,
                    zeros: &zeros,
                    norm: None,
                },
                tiles: Tiles::new(s.batch, s.height, s.width, A - 2),
                padding: 2 - s.padding.cast_signed(),
                weights,
                out,
                out_size: [s.height, s.width],
                epilogue,
            }
            .run::<A>(isa);
        })
    }
}
