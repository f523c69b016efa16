//! Cutting images into tiles and transforming them.

use std::ops::Range;

use super::positions;
use super::transform::input_transform;
use crate::core::simd::{Kernel, Simd};
use crate::norm::kernel::{Normalise, Vectors};

/// The tiles of a batch of images: tile `(i, j)` of image `n` begins at pixel `(step i, step j)` of the output.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    batch: usize,
    rows: usize,
    columns: usize,
    step: usize,
}

impl Tiles {
    pub(super) fn new(batch: usize, height: usize, width: usize, step: usize) -> Self {
        Self {
            batch,
            rows: height.div_ceil(step),
            columns: width.div_ceil(step),
            step,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.batch * self.rows * self.columns
    }

    /// Image, and first row and column in the output.
    #[inline(always)]
    pub(super) fn place(&self, tile: usize) -> (usize, usize, usize) {
        let (row, j) = (tile / self.columns, tile % self.columns);
        (row / self.rows, row % self.rows * self.step, j * self.step)
    }
}

/// A batch of images to cut tiles from.
#[derive(Clone, Copy)]
pub(super) struct Images<'a> {
    pub(super) data: &'a [f32],
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) channels: usize,
    /// Zeros in place of the rows outside the image, as many as a row has.
    pub(super) zeros: &'a [f32],
    /// The norm that is applied to the pixels inside the image.
    pub(super) norm: Option<Normalise<'a>>,
}

impl Images<'_> {
    /// The first pixel of each of `N` rows of image `n`, from `row` on; zeros for rows outside.
    #[inline(always)]
    pub(super) fn rows<const N: usize>(&self, n: usize, row: isize) -> [*const f32; N] {
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
    pub(super) fn prefetch<S: Simd, const N: usize>(
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
    pub(super) unsafe fn column<S: Simd, const N: usize>(
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
pub(super) struct Layout {
    /// Room for this many tiles.
    pub(super) tiles: usize,
    pub(super) blocks: usize,
    pub(super) lanes: usize,
}

impl Layout {
    /// Floats from one channel block to the next.
    pub(super) fn block(&self) -> usize {
        self.tiles * self.lanes
    }

    /// Floats from one position to the next. Odd in cache lines: the positions of a tile are written together and must not share a cache set.
    pub(super) fn position(&self) -> usize {
        ((self.tiles * self.blocks) | 1) * self.lanes
    }

    /// Sizes whose product is the length of a buffer for tiles of edge `a`.
    pub(super) fn shape(&self, a: usize) -> [usize; 2] {
        [positions(a), self.position()]
    }
}

/// Windows of `A x A` input pixels, one per tile, each `padding` above and left of its tile. Slot `s` is for tile `first + s`.
pub(super) struct Windows<'a> {
    pub(super) images: &'a Images<'a>,
    pub(super) tiles: &'a Tiles,
    pub(super) first: usize,
    pub(super) slots: Range<usize>,
    pub(super) padding: isize,
    pub(super) out: *mut f32,
    pub(super) layout: Layout,
}

/// Transforms windows.
///
/// # Safety
/// The processor has `S`; `out` has room for the layout, which has room for the tiles.
#[inline(always)]
pub(super) unsafe fn transform_inputs<S: Simd, const A: usize>(windows: Windows) {
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
