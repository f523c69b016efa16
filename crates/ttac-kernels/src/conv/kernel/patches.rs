//! Gathering patches: which source pixels an output pixel sees, and copying them into planes for the micro-kernels.

use std::ops::Range;

use super::{ConvShape, Input};
use crate::activation::kernel::activate_rows;
use crate::core::simd::Simd;
use crate::norm::kernel::Normalise;

/// Which source pixels each pixel of an output grid sees.
///
/// Pixel `(i, j)` of the grid sees, at tap `t`, the `span` source pixels from `(step[0] i + taps[t].0, step[1] j + taps[t].1)` to the right, with zeros
/// outside the source. `span` is 1, unless a pixel has few channels (in the first layer of a network, or where it embeds patches) and would leave most of a vector
/// empty: then a whole row of the kernel is one tap, and as it is contiguous in NHWC, it fills the vectors.
pub(super) struct Geometry {
    pub(super) batch: usize,
    pub(super) grid: [usize; 2],
    pub(super) step: [usize; 2],
    pub(super) source: [usize; 2],
    /// The number of channels of a source pixel.
    pub(super) channels: usize,
    pub(super) span: usize,
    pub(super) taps: Vec<(isize, isize)>,
}

impl Geometry {
    /// Makes the geometry of a forward convolution.
    pub(super) fn forward(s: &ConvShape, lanes: usize) -> Self {
        let (grid, window) = (s.places(), s.window);
        if window.as_square() == Some([1, 1, 0]) {
            return Self::identity(s.batch * grid[0] * grid[1], s.in_channels);
        }
        let [kernel_height, kernel_width] = window.kernel;
        // A row with gaps is not contiguous.
        let row_planes = (kernel_width * s.in_channels).div_ceil(lanes);
        let is_short = row_planes == 1 || 2 * s.in_channels <= lanes;
        let span = if is_short && row_planes < kernel_width && window.dilation[1] == 1 {
            kernel_width
        } else {
            1
        };
        let distance = move |axis: usize, tap: usize| {
            (tap * window.dilation[axis]).cast_signed() - window.padding[axis][0].cast_signed()
        };
        let columns = (0..kernel_width).step_by(span);
        let taps = (0..kernel_height)
            .flat_map(|a| {
                columns
                    .clone()
                    .map(move |b| (distance(0, a), distance(1, b)))
            })
            .collect();
        Self {
            batch: s.batch,
            grid,
            step: window.stride,
            source: [s.height, s.width],
            channels: s.in_channels,
            span,
            taps,
        }
    }

    /// Makes the geometry in which every pixel sees itself.
    pub(super) fn identity(pixels: usize, channels: usize) -> Self {
        let grid = [1, pixels];
        Self {
            batch: 1,
            grid,
            step: [1; 2],
            source: grid,
            channels,
            span: 1,
            taps: vec![(0, 0)],
        }
    }

    /// Whether every pixel sees itself and nothing else: its values lie together already.
    pub(super) fn is_identity(&self) -> bool {
        self.step == [1; 2] && self.span == 1 && self.taps == [(0, 0)] && self.source == self.grid
    }

    pub(super) fn pixels(&self) -> usize {
        self.batch * self.grid[0] * self.grid[1]
    }

    /// Values per tap.
    pub(super) fn tap_values(&self) -> usize {
        self.span * self.channels
    }

    /// Vectors per tap.
    pub(super) fn tap_planes(&self, lanes: usize) -> usize {
        self.tap_values().div_ceil(lanes)
    }

    /// Planes of a patch.
    pub(super) fn planes(&self, lanes: usize) -> usize {
        self.taps.len() * self.tap_planes(lanes)
    }

    /// Values in plane `plane`: all lanes but in the last of a tap.
    pub(super) fn plane_values(&self, plane: usize, lanes: usize) -> usize {
        (self.tap_values() - plane % self.tap_planes(lanes) * lanes).min(lanes)
    }
}

/// Floats from one plane to the next. Odd in cache lines, so that the planes of a pixel do not fall on the same cache set.
pub(super) fn plane_stride(pixels: usize, lanes: usize) -> usize {
    (pixels | 1) * lanes
}

/// Which patches are gathered, and where they go.
pub(super) struct Block {
    pub(super) pixels: Range<usize>,
    pub(super) planes: Range<usize>,
    pub(super) out: *mut f32,
    /// Floats from one plane to the next, see [`plane_stride`].
    pub(super) stride: usize,
}

/// Some planes of one tap.
struct Tap {
    /// Where the source pixel lies.
    down: isize,
    right: isize,
    /// The first value of the first plane.
    first: usize,
    planes: usize,
    /// The columns of the grid that see only source columns that exist.
    inside: Range<usize>,
}

/// Pixels side by side in one row of the grid, and the place for the first of them in the first plane.
struct Line {
    image: usize,
    row: usize,
    columns: Range<usize>,
    place: *mut f32,
}

/// Copies the patches of a block into planes, normalised if the source says so. Lanes beyond a plane's values hold anything.
///
/// # Safety
/// The processor has `S`. `source` is as `geometry` says; `out` has room for the block's pixels in each of its planes.
#[inline(always)]
pub(super) unsafe fn gather<S: Simd>(geometry: &Geometry, source: Input, block: Block) {
    debug_assert!(source.norm.is_none() || geometry.span == 1);
    let Block {
        pixels,
        planes,
        out,
        stride,
    } = block;
    let tap_planes = geometry.tap_planes(S::LANES);
    let [height, width] = geometry.grid;
    let source_width = geometry.source[1].cast_signed();
    let (step, span) = (geometry.step[1].cast_signed(), geometry.span.cast_signed());
    let mut plane = planes.start;
    while plane < planes.end {
        let (down, right) = geometry.taps[plane / tap_planes];
        // Columns that see only source columns that exist: 0 <= step j + right <= source_width - span.
        let low = (-right + step - 1)
            .div_euclid(step)
            .clamp(0, width.cast_signed())
            .cast_unsigned();
        let high = ((source_width - span - right).div_euclid(step) + 1)
            .clamp(low.cast_signed(), width.cast_signed())
            .cast_unsigned();
        let tap = Tap {
            down,
            right,
            first: plane % tap_planes * S::LANES,
            planes: (tap_planes - plane % tap_planes).min(planes.end - plane),
            inside: low..high,
        };
        let mut pixel = pixels.start;
        while pixel < pixels.end {
            let (row, start) = (pixel / width, pixel % width);
            let line = Line {
                image: row / height,
                row: row % height,
                columns: start..width.min(start + pixels.end - pixel),
                place: out.wrapping_add(
                    (plane - planes.start) * stride + (pixel - pixels.start) * S::LANES,
                ),
            };
            // SAFETY: the line's pixels of these planes are within the room promised by the caller.
            unsafe { gather_line::<S>(geometry, source, &tap, &line, stride) };
            pixel += line.columns.len();
        }
        plane += tap.planes;
    }
}

/// Copies what the pixels of a line see at a tap.
///
/// # Safety
/// The processor has `S`. `source` is as `geometry` says; there is room for the line's pixels in the tap's planes, `stride` apart.
#[inline(always)]
unsafe fn gather_line<S: Simd>(
    geometry: &Geometry,
    source: Input,
    tap: &Tap,
    line: &Line,
    stride: usize,
) {
    let [source_height, source_width] = geometry.source.map(usize::cast_signed);
    let ([down, step], channels) = (geometry.step.map(usize::cast_signed), geometry.channels);
    let Range { start, end } = line.columns;
    let source_row = down * line.row.cast_signed() + tap.down;
    let inside = (0..source_height).contains(&source_row);
    let (low, high) = if inside {
        let Range {
            start: low,
            end: high,
        } = tap.inside;
        (low.clamp(start, end), high.clamp(start, end))
    } else {
        (end, end)
    };
    let row = line.image.cast_signed() * source_height + source_row;
    let base = row * source_width + tap.right;
    for j in (start..low).chain(high..end) {
        let first = step * j.cast_signed();
        for plane in 0..tap.planes {
            let mut value = [0f32; 16];
            if geometry.span > 1 && inside {
                let values = tap.first + plane * S::LANES..geometry.tap_values();
                for (at, value) in values.take(S::LANES).zip(&mut value) {
                    let column = first + tap.right + (at / channels).cast_signed();
                    if (0..source_width).contains(&column) {
                        let from = (base + first) * channels.cast_signed() + at.cast_signed();
                        *value = source.values[from.cast_unsigned()];
                    }
                }
            }
            // SAFETY: a pixel of the line, within the room promised by the caller.
            unsafe {
                let place = line.place.add(plane * stride + (j - start) * S::LANES);
                S::store(place, S::load(value.as_ptr()));
            };
        }
    }
    if low < high {
        let first = (base + step * low.cast_signed()).cast_unsigned();
        let run = Run {
            from: first * channels + tap.first,
            advance: geometry.step[1] * channels,
            pixels: high - low,
            planes: tap.planes,
            values: geometry.tap_values() - tap.first,
            first: tap.first,
        };
        let place = line.place.wrapping_add((low - start) * S::LANES);
        // SAFETY: these pixels see source pixels that exist, and their rows of the planes are within the room promised by the caller.
        unsafe {
            match source.norm {
                None => copy::<S>(&run, source.values, place, stride),
                Some(norm) => copy_normalised::<S>(&run, source.values, norm, place, stride),
            }
        };
    }
}

/// Pixels that see only existing source pixels, the same distance apart.
struct Run {
    /// Index of the first one's values.
    from: usize,
    /// Floats to the next one's.
    advance: usize,
    pixels: usize,
    planes: usize,
    /// Values of each; at most `planes` vectors.
    values: usize,
    /// The channel of the first value.
    first: usize,
}

/// Copies a run into planes.
///
/// # Safety
/// The processor has `S`; `source` holds the run's values, and `out` is the place for the first pixel in the first of the planes, `stride` apart.
#[inline(always)]
unsafe fn copy<S: Simd>(run: &Run, source: &[f32], out: *mut f32, stride: usize) {
    // Whole vectors may be read as long as they end inside the source, even if the pixel's values end earlier.
    let room = (source.len() + run.advance).saturating_sub(run.from + run.planes * S::LANES);
    let whole = (room / run.advance).min(run.pixels);
    let read = source.as_ptr().wrapping_add(run.from);
    for pixel in 0..whole {
        let (read, out) = (
            read.wrapping_add(pixel * run.advance),
            out.wrapping_add(pixel * S::LANES),
        );
        // SAFETY: the vectors end inside the source.
        unsafe {
            S::store(out, S::load(read));
            for plane in 1..run.planes {
                S::store(out.add(plane * stride), S::load(read.add(plane * S::LANES)));
            }
        }
    }
    for pixel in whole..run.pixels {
        let (read, out) = (
            read.wrapping_add(pixel * run.advance),
            out.wrapping_add(pixel * S::LANES),
        );
        for plane in 0..run.planes {
            // SAFETY: the values exist.
            unsafe {
                S::store(
                    out.add(plane * stride),
                    S::load_partial(read.add(plane * S::LANES), run.values - plane * S::LANES),
                );
            };
        }
    }
}

/// Copies a run into planes, normalised.
///
/// # Safety
/// As [`copy`]; the values of a pixel are channels of `norm`.
#[inline(always)]
unsafe fn copy_normalised<S: Simd>(
    run: &Run,
    source: &[f32],
    norm: Normalise,
    out: *mut f32,
    stride: usize,
) {
    let mut plane = 0;
    // SAFETY: these planes are the run's; the rest is the caller's promise.
    unsafe {
        while (plane + 4) * S::LANES <= run.values && plane + 4 <= run.planes {
            copy_planes::<S, 4>(run, source, norm, plane, out, stride);
            plane += 4;
        }
        while plane < run.planes {
            copy_planes::<S, 1>(run, source, norm, plane, out, stride);
            plane += 1;
        }
    }
}

/// `N` planes of a run from `plane` on, normalised; what the channels need stays in registers.
///
/// # Safety
/// As [`copy_normalised`]; more planes than one are whole.
#[inline(always)]
unsafe fn copy_planes<S: Simd, const N: usize>(
    run: &Run,
    source: &[f32],
    norm: Normalise,
    plane: usize,
    out: *mut f32,
    stride: usize,
) {
    let at = plane * S::LANES;
    let read = source.as_ptr().wrapping_add(run.from + at);
    let out = out.wrapping_add(plane * stride);
    let (norm, activation) = norm.split();
    // SAFETY: the values exist, and so do their channels.
    unsafe {
        let mut norms = [norm.vectors::<S>(run.first + at); N];
        for n in 1..N {
            norms[n] = norm.vectors::<S>(run.first + at + n * S::LANES);
        }
        for pixel in 0..run.pixels {
            let read = read.add(pixel * run.advance);
            let out = out.add(pixel * S::LANES);
            for n in 0..N {
                let lanes = run.values - at - n * S::LANES;
                let x = S::load_partial(read.add(n * S::LANES), lanes);
                let [y] = norms[n].apply([x]);
                S::store(out.add(n * stride), y);
            }
        }
        if let Some(activation) = activation {
            for n in 0..N {
                activate_rows::<S>(activation, out.add(n * stride), run.pixels, S::LANES);
            }
        }
    }
}
