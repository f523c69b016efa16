//! Forward passes and input gradients of groups that fill vectors of their own.
//!
//! Each channel that a pixel of the result sees is repeated over a vector and meets the weights to all channels of the group. Nothing is gathered but the rows
//! that are kept, and the result goes to its place.

use std::ops::Range;

use rayon::prelude::*;

use super::lines::Line;
use super::product::{Target, tile};
use super::rows::{Rows, Source};
use super::{KEPT, LEAST_ROWS, TASKS};
use crate::Context;
use crate::conv::kernel::Epilogue;
use crate::core::parallel::Out;
use crate::core::recycle::Scratch;
use crate::core::simd::{Kernel, Simd};

/// A convolution of groups, `inputs` to `outputs` channels each.
pub(super) struct WholeGroups<'a> {
    pub(super) context: &'a Context,
    pub(super) batch: usize,
    pub(super) source: Source<'a>,
    pub(super) rows: Vec<Line>,
    pub(super) columns: Vec<Line>,
    pub(super) groups: usize,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) kernel: [usize; 2],
    pub(super) out: Out,
    pub(super) out_size: [usize; 2],
    pub(super) epilogue: Epilogue<'a>,
}

impl WholeGroups<'_> {
    /// Computes all pixels of the output. `weight(group, input, output)` is the index of the first tap's weight between two channels of a group.
    ///
    /// # Safety
    /// The source is as it says. The output and, if there is one, the residual have `out_size` pixels of all groups for each image, and nobody else uses the output.
    pub(super) unsafe fn run(
        &self,
        weights: &[f32],
        weight: impl Fn(usize, usize, usize) -> usize + Sync,
    ) {
        let isa = self.context.isa();
        let lanes = isa.lanes();
        let rows = self.batch * self.out_size[0];
        if self.groups * self.outputs == 0 || rows * self.out_size[1] == 0 {
            return;
        }
        let packed = self.pack(weights, weight, lanes);
        let kept = self.inputs.div_ceil(lanes) * self.source.block(lanes);
        let some = (KEPT / kept.max(1)).clamp(1, self.groups);
        let cuts = self.groups.div_ceil(some);
        let chunk = rows.div_ceil(TASKS.div_ceil(cuts)).max(LEAST_ROWS);
        let out = Out(packed.as_ptr().cast_mut());
        let tasks = 0..rows.div_ceil(chunk) * cuts;
        tasks.into_par_iter().for_each(|task| {
            let (c, g) = (task / cuts, task % cuts);
            let task = Task {
                all: self,
                weights: out.at(0),
                rows: c * chunk..((c + 1) * chunk).min(rows),
                groups: g * some..((g + 1) * some).min(self.groups),
            };
            // SAFETY: the caller's promise; no two tasks have a row and a group in common.
            unsafe { isa.run(task) };
        });
    }

    /// Floats of the packed weights of a group for a line of some taps.
    fn group_weights(&self, taps: usize, lanes: usize) -> usize {
        self.kernel[0] * taps * self.inputs * self.outputs.next_multiple_of(lanes)
    }

    /// Packs the weights: for each line `[group][vector of outputs][row of the kernel][tap][input][LANES]`, where vectors that are computed together lie side by
    /// side inside, zeros in missing lanes.
    fn pack(
        &self,
        weights: &[f32],
        weight: impl Fn(usize, usize, usize) -> usize + Sync,
        lanes: usize,
    ) -> Scratch<'_> {
        let taps: usize = self.columns.iter().map(|line| line.taps.len()).sum();
        let group_floats = self.group_weights(taps, lanes);
        let mut packed = Scratch::new(self.context, &[self.groups, group_floats]);
        let out = Out(packed.as_mut_ptr());
        (0..self.groups).into_par_iter().for_each(|group| {
            let mut before = 0;
            for line in &self.columns {
                let len = self.group_weights(line.taps.len(), lanes);
                let mut at = self.groups * before + group * len;
                for vectors in self.vectors(lanes, tile(line.count)) {
                    let width = vectors.len() * lanes;
                    for (input, lane) in
                        (0..self.inputs).flat_map(|i| (0..width).map(move |lane| (i, lane)))
                    {
                        let output = vectors.start * lanes + lane;
                        let kernel = if output < self.outputs {
                            &weights[weight(group, input, output)..]
                        } else {
                            &[]
                        };
                        for row in 0..self.kernel[0] {
                            for (t, tap) in line.taps.iter().enumerate() {
                                let value = kernel.get(row * self.kernel[1] + tap.weight);
                                let vector = (row * line.taps.len() + t) * self.inputs + input;
                                // SAFETY: a weight of this group, which only this task writes.
                                unsafe {
                                    *out.at(at + vector * width + lane) =
                                        value.copied().unwrap_or(0.);
                                }
                            }
                        }
                    }
                    at += self.kernel[0] * line.taps.len() * self.inputs * width;
                }
                before += len;
            }
        });
        packed
    }

    /// The vectors of a group's outputs that are computed together, for a tile of some pixels.
    fn vectors(&self, lanes: usize, tile: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let all = self.outputs.div_ceil(lanes);
        let together = if 2 * tile <= self.context.isa().sums() {
            2
        } else {
            1
        };
        (0..all)
            .step_by(together)
            .map(move |first| first..(first + together).min(all))
    }
}

/// Some rows of the output, counted over all images, of some groups.
struct Task<'a> {
    all: &'a WholeGroups<'a>,
    weights: *const f32,
    rows: Range<usize>,
    groups: Range<usize>,
}

impl Kernel for Task<'_> {
    /// # Safety
    /// The conditions of [`WholeGroups::run`] hold, the rows and groups exist, and nobody else writes them.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let all = self.all;
        let (height, channels) = (all.out_size[0], all.groups * all.outputs);
        let parts = all.inputs.div_ceil(S::LANES);
        let blocks = self.groups.start * parts..self.groups.end * parts;
        let mut kept = Rows::new(all.context, &all.source, blocks, S::LANES);
        let offsets: Vec<Vec<usize>> = all.columns.iter().map(Line::offsets).collect();
        let mut seen = Vec::new();
        let mut planes = Vec::new();
        for row in self.rows.clone() {
            kept.turn_to(row / height);
            // SAFETY: the source is as it says.
            unsafe { kept.see::<S>(&all.rows, row % height, &mut seen) };
            let mut weights = self.weights;
            for (line, offsets) in all.columns.iter().zip(&offsets) {
                let group_weights = all.group_weights(offsets.len(), S::LANES);
                for group in self.groups.clone() {
                    let block = (group - self.groups.start) * parts * kept.block::<S>();
                    planes.clear();
                    planes.extend(seen.iter().map(|&(slot, tap)| Plane {
                        x: kept.at::<S>(slot, 0, line).wrapping_add(block),
                        row: tap,
                    }));
                    let channel = group * all.outputs;
                    let at = (row * all.out_size[1] + line.first) * channels + channel;
                    let product = Product {
                        planes: &planes,
                        inputs: all.inputs,
                        x_block: kept.block::<S>(),
                        step: line.step,
                        offsets,
                        target: Target::new(&all.epilogue, all.out, [at, channel], all.outputs)
                            .with_pixels(line.count, line.every * channels),
                    };
                    let mut weights = weights.wrapping_add(group * group_weights);
                    for vectors in all.vectors(S::LANES, tile(line.count)) {
                        // SAFETY: the rows that are kept go on to the end of the last tile; the pixels of this row and group belong to this task.
                        unsafe { product.run::<S>(vectors.clone(), weights, tile(line.count)) };
                        let rows = all.kernel[0] * offsets.len() * all.inputs;
                        weights = weights.wrapping_add(rows * vectors.len() * S::LANES);
                    }
                }
                weights = weights.wrapping_add(all.groups * group_weights);
            }
        }
    }
}

/// What the pixels see of one row: the column that the first tap sees at the first pixel, in the first block of the group, and the row of the kernel.
#[derive(Clone, Copy)]
struct Plane {
    x: *const f32,
    row: usize,
}

/// `out[pixel] = sum over rows, taps and inputs of x[step * pixel + offsets[tap]][input] * weights[row][tap][input]`, for one group.
struct Product<'a> {
    planes: &'a [Plane],
    inputs: usize,
    /// Floats from what is kept of a block to the next.
    x_block: usize,
    /// Columns from what a pixel sees to what the next one sees.
    step: usize,
    /// Columns from the first tap to each.
    offsets: &'a [usize],
    target: Target,
}

impl Product<'_> {
    /// Computes some vectors of outputs, one or two, in tiles of some pixels.
    ///
    /// # Safety
    /// The processor has `S`, the weights are those of these vectors, and the fields are as they say.
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, vectors: Range<usize>, weights: *const f32, tile: usize) {
        macro_rules! tiles {
            ($($tile:literal)*) => {
                match (tile, vectors.len(), self.step) {
                    $(
                        // SAFETY: the caller's promise.
                        ($tile, 1, 1) => unsafe { S::enter(Tiles::<$tile, 1, 1> { product: self, first: vectors.start, weights }) },
                        // SAFETY: the caller's promise.
                        ($tile, 2, 1) => unsafe { S::enter(Tiles::<$tile, 2, 1> { product: self, first: vectors.start, weights }) },
                        // SAFETY: the caller's promise.
                        ($tile, 1, 2) => unsafe { S::enter(Tiles::<$tile, 1, 2> { product: self, first: vectors.start, weights }) },
                        // SAFETY: the caller's promise.
                        ($tile, 2, 2) => unsafe { S::enter(Tiles::<$tile, 2, 2> { product: self, first: vectors.start, weights }) },
                        // SAFETY: the caller's promise.
                        ($tile, 1, _) => unsafe { S::enter(Tiles::<$tile, 1, 0> { product: self, first: vectors.start, weights }) },
                        // SAFETY: the caller's promise.
                        ($tile, _, _) => unsafe { S::enter(Tiles::<$tile, 2, 0> { product: self, first: vectors.start, weights }) },
                    )*
                    _ => unreachable!("a tile of {tile} pixels"),
                }
            };
        }
        tiles!(8 7 4);
    }
}

/// Tiles of `T` pixels and `V` vectors. `STEP` is the product's, or 0 for any.
struct Tiles<'a, const T: usize, const V: usize, const STEP: usize> {
    product: &'a Product<'a>,
    /// The first vector.
    first: usize,
    weights: *const f32,
}

impl<const T: usize, const V: usize, const STEP: usize> Kernel for Tiles<'_, T, V, STEP> {
    /// # Safety
    /// The product has this step, its pointers cover what its fields say, and the weights are those of these vectors.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let p = self.product;
        let step = S::LANES * if STEP == 0 { p.step } else { STEP };
        for pixel in (0..p.target.pixels).step_by(T) {
            // SAFETY: the planes go on to the end of the last tile; every pixel of it that is stored exists.
            unsafe {
                let mut sums = [[S::splat(0.); T]; V];
                for plane in p.planes {
                    let row = plane.row * p.offsets.len() * p.inputs * V * S::LANES;
                    let mut weights = self.weights.add(row);
                    for offset in p.offsets {
                        let mut x = plane.x.add(pixel * step + offset * S::LANES);
                        let mut left = p.inputs;
                        while left > 0 {
                            let some = left.min(S::LANES);
                            for c in 0..some {
                                let mut w = [S::splat(0.); V];
                                for v in 0..V {
                                    w[v] = S::load(weights.add(v * S::LANES));
                                }
                                for t in 0..T {
                                    let x = S::splat(*x.add(t * step + c));
                                    for v in 0..V {
                                        sums[v][t] = S::fma(x, w[v], sums[v][t]);
                                    }
                                }
                                weights = weights.add(V * S::LANES);
                            }
                            left -= some;
                            x = x.wrapping_add(p.x_block);
                        }
                    }
                }
                for v in 0..V {
                    p.target.store::<S, T>(self.first + v, pixel, sums[v]);
                }
            }
        }
    }
}
