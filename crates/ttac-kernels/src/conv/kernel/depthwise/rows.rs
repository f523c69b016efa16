//! Rows of a source, kept in the cache as the windows move down.
//!
//! A row is copied once, normalised if that is asked for, into `[block of channels][plane][column][LANES]` with zeros left and right of it. From then on
//! nobody asks where the image ends, which lanes exist and whether there is a norm, and a pixel and its neighbour are `LANES` floats apart.

use std::ops::Range;

use super::lanes::Lanes;
use super::lines::Line;
use crate::Context;
use crate::conv::kernel::Input;
use crate::core::recycle::Scratch;
use crate::core::simd::Simd;

/// A source and what is kept of it.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) input: Input<'a>,
    pub(super) size: [usize; 2],
    /// The number of channels of a pixel.
    pub(super) channels: usize,
    pub(super) order: Lanes,
    /// The number of lanes that exist.
    pub(super) lanes: usize,
    /// How many rows are kept: as many as one row of the output may see.
    pub(super) slots: usize,
    /// The column of the source that is kept first; it may lie outside.
    pub(super) origin: isize,
    /// The number of columns that are kept.
    pub(super) width: usize,
}

impl<'a> Source<'a> {
    /// Keeps what lines of rows and columns see, of which the latter are walked in tiles of some places.
    pub(super) fn new(
        input: Input<'a>,
        [height, width, channels]: [usize; 3],
        (order, lanes): (Lanes, usize),
        [rows, columns]: [&[Line]; 2],
        tile: impl Fn(&Line) -> usize,
    ) -> Self {
        let slots = rows.iter().map(Line::span).max().unwrap_or(0);
        let first = columns.iter().filter_map(|line| line.taps.first());
        let origin = first.map(|tap| tap.offset).min().unwrap_or(0);
        let end = columns.iter().filter_map(|line| {
            let places = line.count.next_multiple_of(tile(line)).max(1);
            let last = line.taps.last()?.offset;
            Some((line.step * (places - 1)).cast_signed() + last + 1)
        });
        let end = end.max().unwrap_or(0);
        Self {
            input,
            size: [height, width],
            channels,
            order,
            lanes,
            slots: slots.min(height).max(1),
            origin,
            width: (end - origin).cast_unsigned(),
        }
    }

    /// Returns the floats that are kept of a block of channels.
    pub(super) fn block(&self, lanes: usize) -> usize {
        self.slots * self.order.planes() * self.width * lanes
    }
}

/// The rows that are kept of some blocks of channels: `[slot][block][plane][column][LANES]`.
pub(super) struct Rows<'a> {
    source: &'a Source<'a>,
    blocks: Range<usize>,
    buffer: Scratch<'a>,
    image: usize,
    /// The row in each slot.
    held: Vec<Option<usize>>,
}

impl<'a> Rows<'a> {
    /// Makes room for blocks of `LANES` channels, with zeros where no row will be copied to.
    pub(super) fn new(
        context: &'a Context,
        source: &'a Source<'a>,
        blocks: Range<usize>,
        lanes: usize,
    ) -> Self {
        let len = source.block(lanes);
        let mut buffer = Scratch::new(context, &[blocks.len(), len]);
        // SAFETY: the buffer has room for as many floats.
        unsafe { buffer.as_mut_ptr().write_bytes(0, blocks.len() * len) };
        Self {
            source,
            blocks,
            buffer,
            image: 0,
            held: vec![None; source.slots],
        }
    }

    /// Forgets the rows of another image.
    pub(super) fn turn_to(&mut self, image: usize) {
        if self.image != image {
            self.image = image;
            self.held.fill(None);
        }
    }

    /// Returns the slot of an existing row, which is copied if it is not there.
    ///
    /// # Safety
    /// The processor has `S`, the source is as it says, the row exists.
    #[inline(always)]
    pub(super) unsafe fn slot<S: Simd>(&mut self, row: usize) -> usize {
        let slot = row % self.held.len();
        if self.held[slot] != Some(row) {
            self.held[slot] = Some(row);
            // SAFETY: the caller's promise.
            unsafe {
                match self.source.order {
                    Lanes::Exchanged { .. } | Lanes::Whole { .. } => {
                        self.copy_blocks::<S>(row, slot);
                    }
                    _ => self.pick::<S>(row, slot),
                }
            }
        }
        slot
    }

    /// Finds the rows that row `place` of an output sees, as slots and rows of the kernel; those that are not there are copied.
    ///
    /// # Safety
    /// The processor has `S`, and the source is as it says. The lines are those that it was made for, and one of them has the place.
    #[inline(always)]
    pub(super) unsafe fn see<S: Simd>(
        &mut self,
        lines: &[Line],
        place: usize,
        seen: &mut Vec<(usize, usize)>,
    ) {
        seen.clear();
        let line = &lines[place % lines.len()];
        let first = (place / lines.len() * line.step).cast_signed();
        for tap in &line.taps {
            let row = first + tap.offset;
            if (0..self.source.size[0].cast_signed()).contains(&row) {
                // SAFETY: the caller's promise; the row exists.
                let slot = unsafe { self.slot::<S>(row.cast_unsigned()) };
                seen.push((slot, tap.weight));
            }
        }
    }

    /// Floats from what is kept of a block to the next.
    #[inline(always)]
    pub(super) fn block<S: Simd>(&self) -> usize {
        self.source.order.planes() * self.source.width * S::LANES
    }

    /// What the first tap of a line sees at place 0, of a plane of the first block.
    #[inline(always)]
    pub(super) fn at<S: Simd>(&self, slot: usize, plane: usize, line: &Line) -> *const f32 {
        let (origin, width) = (self.source.origin, self.source.width);
        let first = line.taps.first().map_or(origin, |tap| tap.offset) - origin;
        let column = plane * width + first.cast_unsigned();
        let at = slot * self.blocks.len() * self.block::<S>() + column * S::LANES;
        self.buffer.as_ptr().wrapping_add(at)
    }

    /// The columns of the source that are kept.
    #[inline(always)]
    fn columns(&self) -> Range<usize> {
        let s = self.source;
        let end = (s.origin + s.width.cast_signed()).clamp(0, s.size[1].cast_signed());
        let start = s.origin.clamp(0, end);
        start.cast_unsigned()..end.cast_unsigned()
    }

    /// A row, and where it goes.
    #[inline(always)]
    fn piece<S: Simd>(&mut self, row: usize, slot: usize) -> Piece {
        let (s, columns) = (self.source, self.columns());
        let row = self.image * s.size[0] + row;
        let first = (columns.start.cast_signed() - s.origin).cast_unsigned();
        let to = slot * self.blocks.len() * self.block::<S>() + first * S::LANES;
        Piece {
            from: (row * s.size[1] + columns.start) * s.channels,
            pixels: columns.len(),
            to: self.buffer.as_mut_ptr().wrapping_add(to),
        }
    }

    /// Copies a row whose lanes hold the channels themselves, or channels of the same vector.
    ///
    /// # Safety
    /// As [`slot`](Self::slot).
    #[inline(always)]
    unsafe fn copy_blocks<S: Simd>(&mut self, row: usize, slot: usize) {
        let piece = self.piece::<S>(row, slot);
        let (s, blocks) = (self.source, self.blocks.clone());
        let whole = blocks.end.min(s.order.whole_blocks(s.lanes, S::LANES));
        let mut block = blocks.start;
        // SAFETY: the caller's promise; whole blocks are so.
        unsafe {
            if s.order.planes() == 1 {
                while block + 4 <= whole {
                    self.copy::<S, 4>(&piece, block);
                    block += 4;
                }
            }
            while block < blocks.end {
                self.copy::<S, 1>(&piece, block);
                block += 1;
            }
        }
    }

    /// Copies `N` blocks of a row.
    ///
    /// # Safety
    /// As [`slot`](Self::slot); the blocks exist, and if they are several they are whole and have one plane.
    #[inline(always)]
    unsafe fn copy<S: Simd, const N: usize>(&self, piece: &Piece, block: usize) {
        let s = self.source;
        let (channel, lanes) = s.order.block(block, s.lanes, S::LANES);
        let lanes = if N > 1 { N * S::LANES } else { lanes };
        let (planes, plane) = (s.order.planes(), s.width * S::LANES);
        let to = piece
            .to
            .wrapping_add((block - self.blocks.start) * self.block::<S>());
        let from = s.input.values.as_ptr().wrapping_add(piece.from + channel);
        // The next row will be wanted next.
        let ahead = s.size[1] * s.channels;
        // SAFETY: these pixels of an existing row have `lanes` channels from this one on, and the planes have room for them.
        unsafe {
            if let Some(norm) = s.input.norm {
                let mut norms = [norm.vectors::<S>(channel); N];
                for n in 1..N {
                    norms[n] = norm.vectors::<S>(channel + n * S::LANES);
                }
                for pixel in 0..piece.pixels {
                    let from = from.add(pixel * s.channels);
                    for n in 0..N {
                        S::prefetch(from.wrapping_add(ahead + n * S::LANES));
                        let x = S::load_partial(from.add(n * S::LANES), lanes - n * S::LANES);
                        let [x] = norms[n].apply([x]);
                        let to = to.add(n * plane + pixel * S::LANES);
                        store_planes::<S>(to, x, planes, plane);
                    }
                }
            } else {
                for pixel in 0..piece.pixels {
                    let from = from.add(pixel * s.channels);
                    for n in 0..N {
                        S::prefetch(from.wrapping_add(ahead + n * S::LANES));
                        let x = S::load_partial(from.add(n * S::LANES), lanes - n * S::LANES);
                        let to = to.add(n * plane + pixel * S::LANES);
                        store_planes::<S>(to, x, planes, plane);
                    }
                }
            }
        }
    }

    /// Copies a row whose lanes hold channels from elsewhere.
    ///
    /// # Safety
    /// As [`slot`](Self::slot).
    #[inline(always)]
    unsafe fn pick<S: Simd>(&mut self, row: usize, slot: usize) {
        let piece = self.piece::<S>(row, slot);
        let s = self.source;
        for block in self.blocks.clone() {
            let channel = block * S::LANES;
            let lanes = S::LANES.min(s.lanes - channel);
            let to = piece
                .to
                .wrapping_add((block - self.blocks.start) * self.block::<S>());
            let mut channels = [0; 16];
            for (lane, place) in channels.iter_mut().enumerate().take(lanes) {
                *place = s.order.source(channel + lane, 0);
            }
            for i in 0..piece.pixels {
                let pixel = &s.input.values[piece.from + i * s.channels..][..s.channels];
                let mut x = [0f32; 16];
                for (x, &channel) in x.iter_mut().zip(&channels).take(lanes) {
                    *x = pixel[channel];
                }
                // SAFETY: a vector has at most 16 floats, the norm has the lanes, and the plane has room for the pixel.
                unsafe {
                    let mut x = S::load(x.as_ptr());
                    if let Some(norm) = s.input.norm {
                        [x] = norm.vectors::<S>(channel).apply([x]);
                    }
                    S::store(to.add(i * S::LANES), x);
                }
            }
        }
    }
}

/// The pixels of a row that are kept.
struct Piece {
    /// The index of the first one's values in the source.
    from: usize,
    pixels: usize,
    /// The place of the first one in the first block.
    to: *mut f32,
}

/// Stores a vector of plane 0 and what the other planes hold in its place.
///
/// # Safety
/// The processor has `S`; there is room for a vector in each of the planes, which are `distance` apart and at most as many as lanes.
#[inline(always)]
unsafe fn store_planes<S: Simd>(to: *mut f32, x: S::V, planes: usize, distance: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        // Calls and no closure: that would be compiled without the instruction set.
        S::store(to, x);
        if planes == 1 {
            return;
        }
        let x1 = S::exchange::<1>(x);
        S::store(to.add(distance), x1);
        if planes == 2 {
            return;
        }
        let (x2, x3) = (S::exchange::<2>(x), S::exchange::<2>(x1));
        S::store(to.add(2 * distance), x2);
        S::store(to.add(3 * distance), x3);
        if planes == 4 {
            return;
        }
        S::store(to.add(4 * distance), S::exchange::<4>(x));
        S::store(to.add(5 * distance), S::exchange::<4>(x1));
        S::store(to.add(6 * distance), S::exchange::<4>(x2));
        S::store(to.add(7 * distance), S::exchange::<4>(x3));
    }
}
