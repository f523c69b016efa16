//! Forward passes and input gradients.

use std::ops::Range;

use rayon::prelude::*;

use super::lanes::Packed;
use super::lines::Line;
use super::product::{Plane, Product, Target, tile};
use super::rows::{Rows, Source};
use super::{LEAST_ROWS, TASKS, cut_blocks};
use crate::Context;
use crate::conv::kernel::Epilogue;
use crate::core::parallel::Out;
use crate::core::simd::{Kernel, Simd};

/// An output of more floats is not in the cache.
const LARGE: usize = 2 << 20;

/// A convolution of each lane with kernels of its own.
pub(super) struct Convolution<'a> {
    pub(super) context: &'a Context,
    pub(super) batch: usize,
    pub(super) source: Source<'a>,
    pub(super) rows: Vec<Line>,
    pub(super) columns: Vec<Line>,
    pub(super) weights: Packed<'a>,
    pub(super) out: Out,
    pub(super) out_size: [usize; 2],
    /// The number of channels of a pixel of the output.
    pub(super) channels: usize,
    pub(super) epilogue: Epilogue<'a>,
}

impl Convolution<'_> {
    /// Computes all pixels of the output.
    ///
    /// # Safety
    /// The source is as it says. The output and, if there is one, the residual have `out_size` pixels of `channels` for each image, and nobody else uses the output.
    pub(super) unsafe fn run(&self) {
        let isa = self.context.isa();
        let lanes = isa.lanes();
        let blocks = self.channels.div_ceil(lanes);
        let rows = self.batch * self.out_size[0];
        if blocks == 0 || rows * self.out_size[1] == 0 {
            return;
        }
        let planes = self.source.order.planes();
        let group = cut_blocks(blocks, self.source.block(lanes), planes, lanes);
        let groups = blocks.div_ceil(group);
        let chunk = rows.div_ceil(TASKS.div_ceil(groups)).max(LEAST_ROWS);
        let tasks = rows.div_ceil(chunk) * groups;
        (0..tasks).into_par_iter().for_each(|task| {
            let (c, g) = (task / groups, task % groups);
            let task = Task {
                convolution: self,
                rows: c * chunk..((c + 1) * chunk).min(rows),
                blocks: g * group..((g + 1) * group).min(blocks),
            };
            // SAFETY: the caller's promise; no two tasks have a row and a block in common.
            unsafe { isa.run(task) };
        });
    }
}

/// Some rows of the output, counted over all images, of some blocks of channels.
struct Task<'a> {
    convolution: &'a Convolution<'a>,
    rows: Range<usize>,
    blocks: Range<usize>,
}

impl Kernel for Task<'_> {
    /// # Safety
    /// The conditions of [`Convolution::run`] hold, the rows and blocks exist, and nobody else writes them.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let c = self.convolution;
        let height = c.out_size[0];
        let mut kept = Rows::new(c.context, &c.source, self.blocks.clone(), S::LANES);
        let offsets: Vec<Vec<usize>> = c.columns.iter().map(Line::offsets).collect();
        let mut seen = Vec::new();
        let row_floats = c.out_size[1] * c.channels;
        let is_large = c.batch * height * row_floats > LARGE;
        let mut planes = Vec::new();
        for row in self.rows.clone() {
            let (image, i) = (row / height, row % height);
            kept.turn_to(image);
            // SAFETY: the source is as it says.
            unsafe { kept.see::<S>(&c.rows, i, &mut seen) };
            for (k, line) in c.columns.iter().enumerate() {
                planes.clear();
                for &(slot, tap) in &seen {
                    for plane in 0..c.source.order.planes() {
                        planes.push(Plane {
                            x: kept.at::<S>(slot, plane, line),
                            weights: c.weights.at(k, self.blocks.start, tap, plane),
                        });
                    }
                }
                let channel = self.blocks.start * S::LANES;
                let pixel = row * c.out_size[1] + line.first;
                let at = pixel * c.channels + channel;
                let product = Product {
                    planes: &planes,
                    blocks: self.blocks.len(),
                    x_block: kept.block::<S>(),
                    weights_block: c.weights.block(k),
                    tile: tile(line.count),
                    step: line.step,
                    offsets: &offsets[k],
                    is_dense: line.is_dense(),
                    target: Target::new(&c.epilogue, c.out, [at, channel], c.channels - channel)
                        .with_pixels(line.count, line.every * c.channels),
                    fetch: is_large.then_some(row_floats),
                };
                // SAFETY: the rows that are kept go on to the end of the last tile; the pixels of this row and these blocks belong to this task.
                unsafe { (&product).run::<S>() };
            }
        }
    }
}
