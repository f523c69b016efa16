//! The gradient of the weights: for each tap a vector of sums over pixels.
//!
//! A row of the output adds its sums, made in registers, to those of its task; the tasks' sums are added in their order. All cuts depend on the shape
//! alone.

use std::ops::Range;

use rayon::prelude::*;

use super::lanes::Lanes;
use super::lines::Line;
use super::rows::{Rows, Source};
use super::{TASKS, cut_blocks};
use crate::Context;
use crate::conv::kernel::ConvShape;
use crate::core::parallel::{Out, filled};
use crate::core::recycle::Scratch;
use crate::core::simd::{Kernel, Simd};

/// A chunk of rows has at least this many pixels for each sum, so that adding up the chunks does not matter.
const LEAST_PIXELS: usize = 8;

/// What is summed, over all pixels of the output.
pub(super) struct Gradient<'a> {
    pub(super) context: &'a Context,
    pub(super) shape: &'a ConvShape,
    /// The input.
    pub(super) source: Source<'a>,
    /// The gradient of the output, whose pixels are kept as they are.
    pub(super) dy: Source<'a>,
    pub(super) rows: Vec<Line>,
    pub(super) column: Line,
}

impl Gradient<'_> {
    /// Computes the gradient of the weights.
    ///
    /// # Safety
    /// The sources are as they say and as long as the shape says.
    pub(super) unsafe fn run(&self) -> Vec<f32> {
        let (context, s) = (self.context, self.shape);
        let isa = context.isa();
        let lanes = isa.lanes();
        let blocks = s.out_channels.div_ceil(lanes);
        let rows = s.batch * s.out_height();
        if blocks == 0 || rows * s.out_width() == 0 {
            let mut zeros = context.take(s.weight_len());
            zeros.resize(s.weight_len(), 0.);
            return zeros;
        }
        let kept = self.source.block(lanes) + self.dy.block(lanes);
        let planes = self.source.order.planes();
        let group = cut_blocks(blocks, kept, planes, lanes);
        let groups = blocks.div_ceil(group);
        let taps = s.taps() * planes;
        let most = (rows * s.out_width() / (LEAST_PIXELS * taps)).clamp(1, rows);
        let chunk = rows.div_ceil(TASKS.div_ceil(groups).min(most));
        let chunks = rows.div_ceil(chunk);
        let mut sums = Scratch::new(context, &[chunks, blocks, taps, lanes]);
        let out = Out(sums.as_mut_ptr());
        (0..chunks * groups).into_par_iter().for_each(|task| {
            let (c, g) = (task / groups, task % groups);
            let task = Task {
                gradient: self,
                rows: c * chunk..((c + 1) * chunk).min(rows),
                blocks: g * group..((g + 1) * group).min(blocks),
                sums: Out(out.at(c * blocks * taps * lanes)),
                taps,
            };
            // SAFETY: the caller's promise; the sums have room for every chunk, and no two tasks have a chunk and a block in common.
            unsafe { isa.run(task) };
        });
        let write = |weights: Out| {
            (0..blocks).into_par_iter().for_each(|block| {
                let back = Back {
                    gradient: self,
                    sums: out,
                    chunks,
                    taps,
                    block,
                    out: weights,
                };
                // SAFETY: the tasks have written the sums of all chunks; each channel belongs to one block.
                unsafe { isa.run(back) };
            });
        };
        // SAFETY: every weight is that of one output channel, one plane and one tap.
        unsafe { filled(context, s.weight_len(), write) }
    }
}

/// Some rows of the output, counted over all images, of some blocks of channels.
struct Task<'a> {
    gradient: &'a Gradient<'a>,
    rows: Range<usize>,
    blocks: Range<usize>,
    /// `[block][row of the kernel][plane][tap][LANES]`.
    sums: Out,
    /// Vectors of sums of a block.
    taps: usize,
}

impl Kernel for Task<'_> {
    /// # Safety
    /// The conditions of [`Gradient::run`] hold, and nobody else uses the sums of these blocks.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let g = self.gradient;
        let height = g.shape.out_height();
        let planes = g.source.order.planes();
        let block_sums = self.taps * S::LANES;
        let first = self.sums.at(self.blocks.start * block_sums);
        // SAFETY: the sums of these blocks.
        unsafe { first.write_bytes(0, self.blocks.len() * block_sums) };
        let mut x = Rows::new(g.context, &g.source, self.blocks.clone(), S::LANES);
        let mut dy = Rows::new(g.context, &g.dy, self.blocks.clone(), S::LANES);
        let offsets = g.column.offsets();
        let identity = Line::identity(g.column.count);
        let mut seen = Vec::new();
        let mut pairs = Vec::new();
        for row in self.rows.clone() {
            let (image, i) = (row / height, row % height);
            x.turn_to(image);
            dy.turn_to(image);
            // SAFETY: the sources are as they say, and the row exists.
            let slot = unsafe {
                x.see::<S>(&g.rows, i, &mut seen);
                dy.slot::<S>(i)
            };
            pairs.clear();
            for &(slot, tap) in &seen {
                for plane in 0..planes {
                    let vector = (tap * planes + plane) * offsets.len();
                    pairs.push(Pair {
                        x: x.at::<S>(slot, plane, &g.column),
                        sums: first.wrapping_add(vector * S::LANES),
                    });
                }
            }
            let sums = AddRow {
                pairs: &pairs,
                dy: dy.at::<S>(slot, 0, &identity),
                blocks: self.blocks.len(),
                x_block: x.block::<S>(),
                dy_block: dy.block::<S>(),
                sums_block: block_sums,
                pixels: g.column.count,
                step: g.column.step,
                offsets: &offsets,
                is_dense: g.column.is_dense(),
            };
            // SAFETY: the rows that are kept hold what all pixels see; the sums are this task's.
            unsafe { sums.add::<S>() };
        }
    }
}

/// What the pixels see of one plane of one row, from the first tap at the first pixel on, and the sums `[tap][LANES]`, in the first block.
#[derive(Clone, Copy)]
struct Pair {
    x: *const f32,
    sums: *mut f32,
}

/// `sums[tap] += sum over pixels of x[step * pixel + offsets[tap]] * dy[pixel]`, for each pair and some blocks of channels, a vector each.
struct AddRow<'a> {
    pairs: &'a [Pair],
    dy: *const f32,
    blocks: usize,
    /// Floats from what is kept of a block, and from its sums, to the next.
    x_block: usize,
    dy_block: usize,
    sums_block: usize,
    pixels: usize,
    step: usize,
    offsets: &'a [usize],
    is_dense: bool,
}

impl AddRow<'_> {
    /// # Safety
    /// The processor has `S`, the pointers cover what the fields say, and nobody else uses the sums.
    #[inline(always)]
    unsafe fn add<S: Simd>(&self) {
        macro_rules! taps {
            ($($taps:literal $step:literal [$($rows:literal)*]),*) => {
                match (self.offsets.len(), self.step) {
                    $(($taps, $step) if self.is_dense => {
                        let mut pairs = self.pairs;
                        $(while pairs.len() >= $rows && $rows * $taps <= S::SUMS {
                            let (some, rest) = pairs.split_at($rows);
                            // SAFETY: as many pairs of this many neighbouring taps; the rest is the caller's promise.
                            unsafe { S::enter(Taps::<$rows, $taps, $step> { row: self, pairs: some }) };
                            pairs = rest;
                        })*
                    })*
                    // SAFETY: the caller's promise.
                    _ => unsafe { S::enter(AnyTaps(self)) },
                }
            };
        }
        taps!(
            3 1 [4 3 2 1], 5 1 [4 3 2 1], 7 1 [3 2 1], 3 2 [4 3 2 1], 5 2 [4 3 2 1], 7 2 [3 2 1]
        );
    }
}

/// `R` pairs of `K` neighbouring taps, all of whose sums are in registers.
struct Taps<'a, const R: usize, const K: usize, const STEP: usize> {
    row: &'a AddRow<'a>,
    pairs: &'a [Pair],
}

impl<const R: usize, const K: usize, const STEP: usize> Kernel for Taps<'_, R, K, STEP> {
    /// # Safety
    /// There are `R` pairs, `K` neighbouring taps and this step; the rest as [`AddRow::add`].
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let p = self.row;
        for block in 0..p.blocks {
            // SAFETY: the caller's promise.
            unsafe {
                let mut sums = [[S::splat(0.); K]; R];
                let mut x = [self.pairs[0].x; R];
                for r in 0..R {
                    x[r] = self.pairs[r].x.add(block * p.x_block);
                }
                let dy = p.dy.add(block * p.dy_block);
                for pixel in 0..p.pixels {
                    let dy = S::load(dy.add(pixel * S::LANES));
                    let at = pixel * STEP * S::LANES;
                    for r in 0..R {
                        for k in 0..K {
                            let x = S::load(x[r].add(at + k * S::LANES));
                            sums[r][k] = S::fma(x, dy, sums[r][k]);
                        }
                    }
                }
                for r in 0..R {
                    for k in 0..K {
                        let total = self.pairs[r].sums.add(block * p.sums_block + k * S::LANES);
                        S::store(total, S::add(S::load(total), sums[r][k]));
                    }
                }
            }
        }
    }
}

/// Any taps, one after the other.
struct AnyTaps<'a>(&'a AddRow<'a>);

impl Kernel for AnyTaps<'_> {
    /// # Safety
    /// As [`AddRow::add`].
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let p = self.0;
        for (block, pair) in (0..p.blocks).flat_map(|b| p.pairs.iter().map(move |pair| (b, pair))) {
            for (k, offset) in p.offsets.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe {
                    let x = pair.x.add(block * p.x_block + offset * S::LANES);
                    let dy = p.dy.add(block * p.dy_block);
                    let mut sum = S::splat(0.);
                    for pixel in 0..p.pixels {
                        let dy = S::load(dy.add(pixel * S::LANES));
                        sum = S::fma(S::load(x.add(pixel * p.step * S::LANES)), dy, sum);
                    }
                    let total = pair.sums.add(block * p.sums_block + k * S::LANES);
                    S::store(total, S::add(S::load(total), sum));
                }
            }
        }
    }
}

/// Adds the chunks' sums of a block in their order, and brings them into the order of the weights.
struct Back<'a> {
    gradient: &'a Gradient<'a>,
    /// `[chunk][block][row of the kernel][plane][tap][LANES]`.
    sums: Out,
    chunks: usize,
    /// Vectors of sums of a block.
    taps: usize,
    block: usize,
    out: Out,
}

impl Kernel for Back<'_> {
    /// # Safety
    /// All sums are there, the output has room for the weights, and nobody else writes those of this block.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let s = self.gradient.shape;
        let order: Lanes = self.gradient.source.order;
        let (planes, columns) = (order.planes(), s.window.kernel[1]);
        let chunk = s.out_channels.div_ceil(S::LANES) * self.taps * S::LANES;
        for vector in 0..self.taps {
            let (row, plane, tap) = (
                vector / columns / planes,
                vector / columns % planes,
                vector % columns,
            );
            let mut lanes = [0f32; 16];
            // SAFETY: the sums of this block in every chunk; a vector has at most 16 floats.
            unsafe {
                let sums = self.sums.at((self.block * self.taps + vector) * S::LANES);
                let mut total = S::load(sums);
                for c in 1..self.chunks {
                    total = S::add(total, S::load(sums.add(c * chunk)));
                }
                S::store(lanes.as_mut_ptr(), total);
            }
            let first = self.block * S::LANES;
            for channel in first..(first + S::LANES).min(s.out_channels) {
                let kernel = order.weights(s, false, channel, plane);
                // SAFETY: a weight of a channel of this block.
                unsafe {
                    *self.out.at(kernel + row * columns + tap) = lanes[channel - first];
                }
            }
        }
    }
}
