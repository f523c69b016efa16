//! Pooling and the parameter-free shortcut, forward and backward, on NHWC.

use std::mem::MaybeUninit;
use std::ops::Range;

use rayon::prelude::*;

use crate::Context;
use crate::core::parallel::{filled_rows, filled_slice};
use crate::core::shape::{check_len, check_window, elements, places};

/// The sizes of a pooling with a square window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolShape {
    /// The number of images.
    pub batch: usize,
    /// The height of the input, in pixels.
    pub height: usize,
    /// The width of the input, in pixels.
    pub width: usize,
    /// The number of channels.
    pub channels: usize,
    /// The edge of the square window, in pixels.
    pub kernel: usize,
    /// The distance between neighbouring windows, in pixels.
    pub stride: usize,
    /// Border around the input, at most half the window: zeros for the average, nothing for the maximum.
    pub padding: usize,
}

impl PoolShape {
    /// Makes the shape of a pooling of `[batch, height, width, channels]` with `[kernel, stride, padding]`.
    pub fn new(
        [batch, height, width, channels]: [usize; 4],
        [kernel, stride, padding]: [usize; 3],
    ) -> Self {
        Self {
            batch,
            height,
            width,
            channels,
            kernel,
            stride,
            padding,
        }
    }

    /// Returns the height of the output, in pixels.
    pub fn out_height(&self) -> usize {
        self.places(self.height)
    }

    /// Returns the width of the output, in pixels.
    pub fn out_width(&self) -> usize {
        self.places(self.width)
    }

    fn window_sizes(&self) -> [usize; 3] {
        [self.kernel, self.stride, self.padding]
    }

    fn places(&self, edge: usize) -> usize {
        places(edge, self.window_sizes())
    }

    pub(super) fn in_shape(&self) -> [usize; 4] {
        [self.batch, self.height, self.width, self.channels]
    }

    pub(super) fn out_shape(&self) -> [usize; 4] {
        [
            self.batch,
            self.out_height(),
            self.out_width(),
            self.channels,
        ]
    }

    /// Panics if a size of the window is absurd.
    fn check(&self) {
        check_window("a pooling", self.window_sizes(), self);
        assert!(
            2 * self.padding <= self.kernel,
            "a pooling needs a padding of at most half the window, found {self:?}"
        );
    }

    /// The lengths of input and output.
    ///
    /// # Panics
    /// If a slice could not hold one of them. So no product of some of the sizes wraps afterwards.
    fn lens(&self) -> [usize; 2] {
        [
            elements("input of a pooling", &self.in_shape()),
            elements("output of a pooling", &self.out_shape()),
        ]
    }

    /// The part of window `place` that lies on the input's edge of length `edge`.
    fn window(&self, place: usize, edge: usize) -> Range<usize> {
        let start = place * self.stride;
        start.saturating_sub(self.padding)
            ..(start + self.kernel).saturating_sub(self.padding).min(edge)
    }

    /// The windows that cover coordinate `at`, of `places`.
    fn windows_over(&self, at: usize, places: usize) -> Range<usize> {
        let shifted = at + self.padding;
        let first = (shifted + 1)
            .saturating_sub(self.kernel)
            .div_ceil(self.stride);
        first..(shifted / self.stride + 1).min(places).max(first)
    }
}

/// Computes the mean over the pixels of each image: `[batch, pixels, channels]` to `[batch, channels]`. Without pixels it is 0.
///
/// # Panics
/// If the length does not fit.
pub fn global_average_forward(
    context: &Context,
    x: &[f32],
    [batch, pixels, channels]: [usize; 3],
) -> Vec<f32> {
    let shape = [batch, pixels, channels];
    check_len("input of a global average pool", x.len(), &shape, &shape);
    let scale = 1. / pixels.max(1) as f32;
    // SAFETY: every channel of an image's row is written.
    unsafe {
        filled_rows(context, batch * channels, channels, |n, out| {
            let mut sums = vec![0f32; channels];
            for pixel in x[n * pixels * channels..][..pixels * channels].chunks_exact(channels) {
                for (sum, x) in sums.iter_mut().zip(pixel) {
                    *sum += x;
                }
            }
            for (out, sum) in out.iter_mut().zip(sums) {
                out.write(sum * scale);
            }
        })
    }
}

/// Computes the gradient of [`global_average_forward`]'s input.
///
/// # Panics
/// If the length does not fit.
pub fn global_average_backward(
    context: &Context,
    dy: &[f32],
    [batch, pixels, channels]: [usize; 3],
) -> Vec<f32> {
    let (what, shape) = (
        "gradient of a global average pool",
        [batch, pixels, channels],
    );
    check_len(what, dy.len(), &[batch, channels], &shape);
    let len = elements(what, &shape);
    let scale = 1. / pixels.max(1) as f32;
    // SAFETY: every pixel of an image is written.
    unsafe {
        filled_rows(context, len, pixels * channels, |n, out| {
            let dy = &dy[n * channels..][..channels];
            for pixel in out.chunks_exact_mut(channels) {
                for (out, dy) in pixel.iter_mut().zip(dy) {
                    out.write(dy * scale);
                }
            }
        })
    }
}

/// Computes the mean over each window; the border counts as zeros.
///
/// # Panics
/// If the length does not fit.
pub fn average_pool_forward(context: &Context, x: &[f32], shape: &PoolShape) -> Vec<f32> {
    shape.check();
    let what = "input of an average pool";
    check_len(what, x.len(), &shape.in_shape(), shape);
    let [_, len] = shape.lens();
    let [_, height, width, _] = shape.out_shape();
    average(context, x, shape, (len, [height, width]), |i, j| {
        let rows = shape.window(i, shape.height);
        (
            rows,
            shape.window(j, shape.width),
            shape.height,
            shape.width,
        )
    })
}

/// Computes the gradient of [`average_pool_forward`]'s input.
///
/// # Panics
/// If the length does not fit.
pub fn average_pool_backward(context: &Context, dy: &[f32], shape: &PoolShape) -> Vec<f32> {
    shape.check();
    let what = "output gradient of an average pool";
    check_len(what, dy.len(), &shape.out_shape(), shape);
    let [len, _] = shape.lens();
    let [_, height, width, _] = shape.out_shape();
    average(
        context,
        dy,
        shape,
        (len, [shape.height, shape.width]),
        |h, w| {
            let rows = shape.windows_over(h, height);
            (rows, shape.windows_over(w, width), height, width)
        },
    )
}

/// For each pixel of a grid, the sum over the source's pixels that it sees, over the size of a window. `seen` returns the rows and the columns of these
/// pixels, and the height and the width of the source.
fn average(
    context: &Context,
    source: &[f32],
    shape: &PoolShape,
    (len, [rows, columns]): (usize, [usize; 2]),
    seen: impl Fn(usize, usize) -> (Range<usize>, Range<usize>, usize, usize) + Sync,
) -> Vec<f32> {
    let (c, scale) = (shape.channels, 1. / (shape.kernel * shape.kernel) as f32);
    // SAFETY: every pixel of a row is written.
    unsafe {
        filled_rows(context, len, columns * c, |row, out| {
            let (n, i) = (row / rows, row % rows);
            let mut sums = vec![0f32; c];
            for (j, out) in out.chunks_exact_mut(c).enumerate() {
                sums.fill(0.);
                let (rows, columns, height, width) = seen(i, j);
                for h in rows {
                    for w in columns.clone() {
                        let pixel = &source[((n * height + h) * width + w) * c..][..c];
                        for (sum, value) in sums.iter_mut().zip(pixel) {
                            *sum += value;
                        }
                    }
                }
                for (out, sum) in out.iter_mut().zip(&sums) {
                    out.write(sum * scale);
                }
            }
        })
    }
}

/// Computes the maximum over each window, and for each the pixel it came from, `row * width + column` inside its image. The first of equals wins; NaN wins over all.
///
/// # Panics
/// If the length does not fit.
pub fn max_pool_forward(context: &Context, x: &[f32], shape: &PoolShape) -> (Vec<f32>, Vec<u32>) {
    shape.check();
    check_len("input of a max pool", x.len(), &shape.in_shape(), shape);
    let [_, len] = shape.lens();
    assert!(
        u32::try_from(shape.height * shape.width).is_ok(),
        "a max pool counts the pixels of an image in 32 bits, found {shape:?}"
    );
    let c = shape.channels;
    let (height, width) = (shape.out_height(), shape.out_width());
    let mut from = vec![0u32; len];
    // SAFETY: every pixel of a row is written.
    let y = unsafe {
        filled_slice(context, len, |out| {
            if len == 0 {
                return;
            }
            out.par_chunks_mut(width * c)
                .zip(from.par_chunks_mut(width * c))
                .enumerate()
                .for_each(|(row, (out, from))| {
                    let (n, i) = (row / height, row % height);
                    let mut best = vec![0f32; c];
                    for (j, (out, from)) in out
                        .chunks_exact_mut(c)
                        .zip(from.chunks_exact_mut(c))
                        .enumerate()
                    {
                        best.fill(f32::NEG_INFINITY);
                        let (rows, columns) =
                            (shape.window(i, shape.height), shape.window(j, shape.width));
                        from.fill((rows.start * shape.width + columns.start) as u32);
                        for h in rows {
                            for w in columns.clone() {
                                let pixel = h * shape.width + w;
                                let x = &x[(n * shape.height * shape.width + pixel) * c..][..c];
                                for ((best, from), &x) in best.iter_mut().zip(&mut *from).zip(x) {
                                    if x > *best || x.is_nan() {
                                        *best = x;
                                        *from = pixel as u32;
                                    }
                                }
                            }
                        }
                        for (out, best) in out.iter_mut().zip(&best) {
                            out.write(*best);
                        }
                    }
                });
        })
    };
    (y, from)
}

/// Computes the gradient of [`max_pool_forward`]'s input, from its pixels.
///
/// # Panics
/// If the lengths do not fit, or a pixel lies outside its image.
pub fn max_pool_backward(
    context: &Context,
    dy: &[f32],
    from: &[u32],
    shape: &PoolShape,
) -> Vec<f32> {
    shape.check();
    let out_shape = shape.out_shape();
    check_len("output gradient of a max pool", dy.len(), &out_shape, shape);
    check_len("saved pixels of a max pool", from.len(), &out_shape, shape);
    let [in_len, _] = shape.lens();
    let c = shape.channels;
    let image = shape.height * shape.width * c;
    let out_image = shape.out_height() * shape.out_width() * c;
    // SAFETY: every image is filled with zeros first.
    unsafe {
        filled_rows(context, in_len, image, |n, out| {
            let mut dx = vec![0f32; image];
            let part = n * out_image..(n + 1) * out_image;
            for (k, (dy, &from)) in dy[part.clone()].iter().zip(&from[part]).enumerate() {
                dx[from as usize * c + k % c] += dy;
            }
            for (out, dx) in out.iter_mut().zip(dx) {
                out.write(dx);
            }
        })
    }
}

/// The sizes of the shortcut "option A" of He et al.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShortcutShape {
    /// The number of images.
    pub batch: usize,
    /// The height of the input, in pixels.
    pub height: usize,
    /// The width of the input, in pixels.
    pub width: usize,
    /// The number of channels of the input.
    pub channels: usize,
    /// The number of channels of the output, at least that of the input.
    pub out_channels: usize,
    /// The distance between the pixels that are kept.
    pub stride: usize,
}

impl ShortcutShape {
    /// Makes the shape of a shortcut from `[batch, height, width, channels]`.
    pub fn new(
        [batch, height, width, channels]: [usize; 4],
        out_channels: usize,
        stride: usize,
    ) -> Self {
        Self {
            batch,
            height,
            width,
            channels,
            out_channels,
            stride,
        }
    }

    /// Returns the height of the output, in pixels.
    pub fn out_height(&self) -> usize {
        self.height.div_ceil(self.stride)
    }

    /// Returns the width of the output, in pixels.
    pub fn out_width(&self) -> usize {
        self.width.div_ceil(self.stride)
    }

    pub(super) fn in_shape(&self) -> [usize; 4] {
        [self.batch, self.height, self.width, self.channels]
    }

    pub(super) fn out_shape(&self) -> [usize; 4] {
        let (height, width) = (self.out_height(), self.out_width());
        [self.batch, height, width, self.out_channels]
    }

    /// Zero channels in front.
    fn front(&self) -> usize {
        (self.out_channels - self.channels) / 2
    }

    fn check(&self) {
        let (stride, channels) = (self.stride, self.channels);
        let out_channels = self.out_channels;
        assert!(
            stride > 0 && out_channels >= channels,
            "a shortcut adds channels and skips pixels: expected a stride of at least 1 and at least {channels} output channels, found {stride} and {out_channels}"
        );
        check_window("a shortcut", [1, stride, 0], self);
    }
}

/// Computes the shortcut "option A" of He et al.: every `stride`-th pixel, with zero channels in front and behind (half each, the odd one behind).
///
/// # Panics
/// If the length does not fit.
pub fn shortcut_a_forward(context: &Context, x: &[f32], s: &ShortcutShape) -> Vec<f32> {
    s.check();
    check_len("input of a shortcut", x.len(), &s.in_shape(), s);
    let len = elements("output of a shortcut", &s.out_shape());
    let (height, row_len) = (s.out_height(), s.out_width() * s.out_channels);
    let (front, channels) = (s.front(), s.channels);
    // SAFETY: every channel of every pixel of a row is written.
    unsafe {
        filled_rows(context, len, row_len, |row, out| {
            let (n, i) = (row / height, row % height);
            let x = &x[(n * s.height + i * s.stride) * s.width * channels..][..s.width * channels];
            for (j, out) in out.chunks_exact_mut(s.out_channels).enumerate() {
                out.fill(MaybeUninit::new(0.));
                out[front..front + channels]
                    .write_copy_of_slice(&x[j * s.stride * channels..][..channels]);
            }
        })
    }
}

/// Computes the gradient of [`shortcut_a_forward`]'s input.
///
/// # Panics
/// If the length does not fit.
pub fn shortcut_a_backward(context: &Context, dy: &[f32], s: &ShortcutShape) -> Vec<f32> {
    s.check();
    check_len("output gradient of a shortcut", dy.len(), &s.out_shape(), s);
    let len = elements("input of a shortcut", &s.in_shape());
    let (out_height, row_len) = (s.out_height(), s.out_width() * s.out_channels);
    let (front, channels) = (s.front(), s.channels);
    // SAFETY: every pixel of a row is written.
    unsafe {
        filled_rows(context, len, s.width * channels, |row, out| {
            let (n, h) = (row / s.height, row % s.height);
            out.fill(MaybeUninit::new(0.));
            if !h.is_multiple_of(s.stride) {
                return;
            }
            let dy = &dy[(n * out_height + h / s.stride) * row_len..][..row_len];
            for (out, dy) in out
                .chunks_mut(s.stride * channels)
                .zip(dy.chunks_exact(s.out_channels))
            {
                out[..channels].write_copy_of_slice(&dy[front..][..channels]);
            }
        })
    }
}
