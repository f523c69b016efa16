//! Gathering patches: which source pixels an output pixel sees, and copying them into planes for the micro-kernels.

use super::ConvShape;
use super::input::{Input, Normalise};
use crate::kernels::simd::Simd;
use std::ops::Range;

/// Which source pixels each pixel of an output grid sees.
///
/// Pixel `(i, j)` of the grid sees, at tap `t`, the `span` source pixels from `(step i + taps[t].0, step j + taps[t].1)` to the right, with zeros
/// outside the source. `span` is 1, unless a row of the kernel fits one vector (the first layer of a network, with its three channels): then a whole row
/// is one tap, and as it is contiguous in NHWC, one load brings it.
pub(super) struct Geometry {
    pub(super) batch: usize,
    pub(super) grid: [usize; 2],
    pub(super) step: usize,
    pub(super) source: [usize; 2],
    /// Of a source pixel.
    pub(super) channels: usize,
    pub(super) span: usize,
    pub(super) taps: Vec<(isize, isize)>,
}

impl Geometry {
    /// The patches of a forward convolution.
    pub(super) fn forward(s: &ConvShape, lanes: usize) -> Self {
        let grid = [s.out_height(), s.out_width()];
        if (s.kernel, s.stride, s.padding) == (1, 1, 0) {
            return Self::identity(s.batch * grid[0] * grid[1], s.in_channels);
        }
        let span = if s.kernel * s.in_channels <= lanes {
            s.kernel
        } else {
            1
        };
        let padding = s.padding.cast_signed();
        let taps = (0..s.kernel)
            .flat_map(|a| {
                (0..s.kernel)
                    .step_by(span)
                    .map(move |b| (a.cast_signed() - padding, b.cast_signed() - padding))
            })
            .collect();
        Self {
            batch: s.batch,
            grid,
            step: s.stride,
            source: [s.height, s.width],
            channels: s.in_channels,
            span,
            taps,
        }
    }

    /// Every pixel sees itself.
    pub(super) fn identity(pixels: usize, channels: usize) -> Self {
        let grid = [1, pixels];
        Self {
            batch: 1,
            grid,
            step: 1,
            source: grid,
            channels,
            span: 1,
            taps: vec![(0, 0)],
        }
    }

    /// Whether every pixel sees itself and nothing else: its values lie together already.
    pub(super) fn is_identity(&self) -> bool {
        self.step == 1 && self.span == 1 && self.taps == [(0, 0)] && self.source == self.grid
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

/// Copies the patches of pixels `pixels` into planes, normalised if the source says so; `planes` selects which. Lanes beyond a plane's values hold anything.
///
/// # Safety
/// The processor has `S`. `source` is as `geometry` says; `out` has room for the planes at [`plane_stride`] of `room` pixels.
#[inline(always)]
pub(super) unsafe fn gather<S: Simd>(
    geometry: &Geometry,
    source: Input,
    pixels: Range<usize>,
    planes: Range<usize>,
    out: *mut f32,
    room: usize,
) {
    let Input {
        values: source,
        norm,
    } = source;
    debug_assert!(norm.is_none() || geometry.span == 1);
    let tap_planes = geometry.tap_planes(S::LANES);
    let stride = plane_stride(room, S::LANES);
    let [height, width] = geometry.grid;
    let [source_height, source_width] = geometry.source.map(usize::cast_signed);
    let (step, span) = (geometry.step.cast_signed(), geometry.span.cast_signed());
    let mut plane = planes.start;
    while plane < planes.end {
        // The planes of one tap.
        let (down, right) = geometry.taps[plane / tap_planes];
        let first = plane % tap_planes * S::LANES;
        let count = (tap_planes - plane % tap_planes).min(planes.end - plane);
        // Columns `low..high` see only source columns that exist: 0 <= step j + right <= source_width - span.
        let low = (-right + step - 1)
            .div_euclid(step)
            .clamp(0, width.cast_signed())
            .cast_unsigned();
        let high = ((source_width - span - right).div_euclid(step) + 1)
            .clamp(low.cast_signed(), width.cast_signed())
            .cast_unsigned();
        let mut pixel = pixels.start;
        while pixel < pixels.end {
            // One run of pixels in a row of the grid.
            let (row, start) = (pixel / width, pixel % width);
            let end = width.min(start + pixels.end - pixel);
            let (image, i) = (row / height, row % height);
            let source_row = step * i.cast_signed() + down;
            let inside = (0..source_height).contains(&source_row);
            let (low, high) = if inside {
                (low.clamp(start, end), high.clamp(start, end))
            } else {
                (end, end)
            };
            let base = (image.cast_signed() * source_height + source_row) * source_width + right;
            let place = out
                .wrapping_add((plane - planes.start) * stride + (pixel - pixels.start) * S::LANES);
            for j in (start..low).chain(high..end) {
                let mut value = [0f32; 16];
                if span > 1 && inside {
                    for (at, value) in value.iter_mut().enumerate().take(geometry.tap_values()) {
                        let column =
                            step * j.cast_signed() + right + (at / geometry.channels).cast_signed();
                        if (0..source_width).contains(&column) {
                            let from = (base + step * j.cast_signed())
                                * geometry.channels.cast_signed()
                                + at.cast_signed();
                            *value = source[from.cast_unsigned()];
                        }
                    }
                }
                for plane in 0..count {
                    // SAFETY: row `pixel + j - start` of the plane is within the room promised by the caller.
                    unsafe {
                        S::store(
                            place.add(plane * stride + (j - start) * S::LANES),
                            S::load(value.as_ptr()),
                        );
                    };
                }
            }
            if low < high {
                let from =
                    (base + step * low.cast_signed()).cast_unsigned() * geometry.channels + first;
                let run = Run {
                    from,
                    advance: geometry.step * geometry.channels,
                    pixels: high - low,
                    planes: count,
                    values: geometry.tap_values() - first,
                    first,
                };
                // SAFETY: these pixels see source pixels that exist, and their rows of the planes are within the room promised by the caller.
                unsafe {
                    let place = place.wrapping_add((low - start) * S::LANES);
                    match norm {
                        None => copy::<S>(&run, source, place, stride),
                        Some(norm) => copy_normalised::<S>(&run, source, norm, place, stride),
                    }
                };
            }
            pixel += end - start;
        }
        plane += count;
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
    }
}
