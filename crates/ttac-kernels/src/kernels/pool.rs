//! Pooling and the parameter-free shortcut, forward and backward, on NHWC.

use super::filled_slice;
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// The sizes of a pooling with a square window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolShape {
    /// Images.
    pub batch: usize,
    /// Rows of the input.
    pub height: usize,
    /// Columns of the input.
    pub width: usize,
    /// Channels.
    pub channels: usize,
    /// Edge of the window.
    pub kernel: usize,
    /// Distance between windows.
    pub stride: usize,
    /// Border around the input, at most half the window: zeros for the average, nothing for the maximum.
    pub padding: usize,
}

impl PoolShape {
    /// Rows of the output.
    pub fn out_height(&self) -> usize {
        self.places(self.height)
    }

    /// Columns of the output.
    pub fn out_width(&self) -> usize {
        self.places(self.width)
    }

    fn places(&self, edge: usize) -> usize {
        let padded = edge + 2 * self.padding;
        if padded < self.kernel {
            0
        } else {
            (padded - self.kernel) / self.stride + 1
        }
    }

    fn in_shape(&self) -> [usize; 4] {
        [self.batch, self.height, self.width, self.channels]
    }

    fn out_shape(&self) -> [usize; 4] {
        [
            self.batch,
            self.out_height(),
            self.out_width(),
            self.channels,
        ]
    }

    fn check(&self) {
        assert!(
            self.kernel > 0 && self.stride > 0 && 2 * self.padding <= self.kernel,
            "a pooling needs a window and a stride of at least 1 and a padding of at most half the window, found {self:?}"
        );
    }

    /// The part of window `place` that lies on the input's edge of length `edge`.
    fn window(&self, place: usize, edge: usize) -> std::ops::Range<usize> {
        let start = place * self.stride;
        start.saturating_sub(self.padding)
            ..(start + self.kernel).saturating_sub(self.padding).min(edge)
    }

    /// The windows that cover coordinate `at`, of `places`.
    fn windows_over(&self, at: usize, places: usize) -> std::ops::Range<usize> {
        let shifted = at + self.padding;
        let first = (shifted + 1)
            .saturating_sub(self.kernel)
            .div_ceil(self.stride);
        first..(shifted / self.stride + 1).min(places).max(first)
    }
}

fn check_len(what: &str, found: usize, expected: &[usize]) {
    assert!(
        found == expected.iter().product::<usize>(),
        "{what}: expected the shape {expected:?}, found {found} values"
    );
}

/// `len` floats made of rows of `row`, each written by `fill(row index, row)`, in parallel.
///
/// # Safety
/// `fill` must write every element of its row.
unsafe fn by_rows(
    len: usize,
    row: usize,
    fill: impl Fn(usize, &mut [MaybeUninit<f32>]) + Sync,
) -> Vec<f32> {
    // SAFETY: the rows cover the buffer.
    unsafe {
        filled_slice(len, |out| {
            if len > 0 {
                out.par_chunks_mut(row)
                    .enumerate()
                    .for_each(|(i, row)| fill(i, row));
            }
        })
    }
}

/// The mean over the pixels of each image: `[batch, pixels, channels]` to `[batch, channels]`. Without pixels it is 0.
///
/// # Panics
/// If the length does not fit.
pub fn global_average_forward(x: &[f32], batch: usize, pixels: usize, channels: usize) -> Vec<f32> {
    check_len(
        "input of a global average pool",
        x.len(),
        &[batch, pixels, channels],
    );
    let scale = 1. / pixels.max(1) as f32;
    // SAFETY: every channel of an image's row is written.
    unsafe {
        by_rows(batch * channels, channels, |n, out| {
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

/// The gradient of [`global_average_forward`]'s input.
///
/// # Panics
/// If the length does not fit.
pub fn global_average_backward(
    dy: &[f32],
    batch: usize,
    pixels: usize,
    channels: usize,
) -> Vec<f32> {
    check_len(
        "output gradient of a global average pool",
        dy.len(),
        &[batch, channels],
    );
    let scale = 1. / pixels.max(1) as f32;
    // SAFETY: every pixel of an image is written.
    unsafe {
        by_rows(batch * pixels * channels, pixels * channels, |n, out| {
            let dy = &dy[n * channels..][..channels];
            for pixel in out.chunks_exact_mut(channels) {
                for (out, dy) in pixel.iter_mut().zip(dy) {
                    out.write(dy * scale);
                }
            }
        })
    }
}

/// The mean over each window; the border counts as zeros.
///
/// # Panics
/// If the length does not fit.
pub fn average_pool_forward(x: &[f32], shape: &PoolShape) -> Vec<f32> {
    shape.check();
    check_len("input of an average pool", x.len(), &shape.in_shape());
    let (c, scale) = (shape.channels, 1. / (shape.kernel * shape.kernel) as f32);
    let (height, width) = (shape.out_height(), shape.out_width());
    // SAFETY: every pixel of a row is written.
    unsafe {
        by_rows(shape.out_shape().iter().product(), width * c, |row, out| {
            let (n, i) = (row / height, row % height);
            let mut sums = vec![0f32; c];
            for (j, out) in out.chunks_exact_mut(c).enumerate() {
                sums.fill(0.);
                for h in shape.window(i, shape.height) {
                    for w in shape.window(j, shape.width) {
                        let x = &x[((n * shape.height + h) * shape.width + w) * c..][..c];
                        for (sum, x) in sums.iter_mut().zip(x) {
                            *sum += x;
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

/// The gradient of [`average_pool_forward`]'s input.
///
/// # Panics
/// If the length does not fit.
pub fn average_pool_backward(dy: &[f32], shape: &PoolShape) -> Vec<f32> {
    shape.check();
    check_len(
        "output gradient of an average pool",
        dy.len(),
        &shape.out_shape(),
    );
    let (c, scale) = (shape.channels, 1. / (shape.kernel * shape.kernel) as f32);
    let (height, width) = (shape.out_height(), shape.out_width());
    // SAFETY: every pixel of a row is written.
    unsafe {
        by_rows(
            shape.in_shape().iter().product(),
            shape.width * c,
            |row, out| {
                let (n, h) = (row / shape.height, row % shape.height);
                let mut sums = vec![0f32; c];
                for (w, out) in out.chunks_exact_mut(c).enumerate() {
                    sums.fill(0.);
                    for i in shape.windows_over(h, height) {
                        for j in shape.windows_over(w, width) {
                            let dy = &dy[((n * height + i) * width + j) * c..][..c];
                            for (sum, dy) in sums.iter_mut().zip(dy) {
                                *sum += dy;
                            }
                        }
                    }
                    for (out, sum) in out.iter_mut().zip(&sums) {
                        out.write(sum * scale);
                    }
                }
            },
        )
    }
}

/// The maximum over each window, and for each the pixel it came from, `row * width + column` inside its image. The first of equals wins; NaN wins over all.
///
/// # Panics
/// If the length does not fit.
pub fn max_pool_forward(x: &[f32], shape: &PoolShape) -> (Vec<f32>, Vec<u32>) {
    shape.check();
    check_len("input of a max pool", x.len(), &shape.in_shape());
    assert!(
        u32::try_from(shape.height * shape.width).is_ok(),
        "a max pool counts the pixels of an image in 32 bits, found {shape:?}"
    );
    let c = shape.channels;
    let (height, width) = (shape.out_height(), shape.out_width());
    let len = shape.out_shape().iter().product();
    let mut from = vec![0u32; len];
    // SAFETY: every pixel of a row is written.
    let y = unsafe {
        filled_slice(len, |out| {
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

/// The gradient of [`max_pool_forward`]'s input, from its pixels.
///
/// # Panics
/// If the lengths do not fit, or a pixel lies outside its image.
pub fn max_pool_backward(dy: &[f32], from: &[u32], shape: &PoolShape) -> Vec<f32> {
    shape.check();
    check_len(
        "output gradient of a max pool",
        dy.len(),
        &shape.out_shape(),
    );
    check_len("saved pixels of a max pool", from.len(), &shape.out_shape());
    let c = shape.channels;
    let image = shape.height * shape.width * c;
    let out_image = shape.out_height() * shape.out_width() * c;
    // SAFETY: every image is filled with zeros first.
    unsafe {
        by_rows(shape.batch * image, image, |n, out| {
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

/// The sizes of a shortcut without parameters, checked.
struct Shortcut {
    height: usize,
    width: usize,
    out_height: usize,
    out_width: usize,
    /// Zero channels in front.
    front: usize,
}

impl Shortcut {
    fn new(
        height: usize,
        width: usize,
        channels: usize,
        out_channels: usize,
        stride: usize,
    ) -> Self {
        assert!(
            stride > 0 && out_channels >= channels,
            "a shortcut adds channels and skips pixels: expected a stride of at least 1 and at least {channels} output channels, found {stride} and {out_channels}"
        );
        Self {
            height,
            width,
            out_height: height.div_ceil(stride),
            out_width: width.div_ceil(stride),
            front: (out_channels - channels) / 2,
        }
    }
}

/// The shortcut "option A" of He et al.: every `stride`-th pixel, with zero channels in front and behind (half each, the odd one behind).
///
/// # Panics
/// If the length does not fit.
pub fn shortcut_a_forward(
    x: &[f32],
    batch: usize,
    height: usize,
    width: usize,
    channels: usize,
    out_channels: usize,
    stride: usize,
) -> Vec<f32> {
    let s = Shortcut::new(height, width, channels, out_channels, stride);
    check_len(
        "input of a shortcut",
        x.len(),
        &[batch, height, width, channels],
    );
    // SAFETY: every channel of every pixel of a row is written.
    unsafe {
        by_rows(
            batch * s.out_height * s.out_width * out_channels,
            s.out_width * out_channels,
            |row, out| {
                let (n, i) = (row / s.out_height, row % s.out_height);
                let x =
                    &x[(n * s.height + i * stride) * s.width * channels..][..s.width * channels];
                for (j, out) in out.chunks_exact_mut(out_channels).enumerate() {
                    out.fill(MaybeUninit::new(0.));
                    out[s.front..s.front + channels]
                        .write_copy_of_slice(&x[j * stride * channels..][..channels]);
                }
            },
        )
    }
}

/// The gradient of [`shortcut_a_forward`]'s input.
///
/// # Panics
/// If the length does not fit.
pub fn shortcut_a_backward(
    dy: &[f32],
    batch: usize,
    height: usize,
    width: usize,
    channels: usize,
    out_channels: usize,
    stride: usize,
) -> Vec<f32> {
    let s = Shortcut::new(height, width, channels, out_channels, stride);
    check_len(
        "output gradient of a shortcut",
        dy.len(),
        &[batch, s.out_height, s.out_width, out_channels],
    );
    // SAFETY: every pixel of a row is written.
    unsafe {
        by_rows(
            batch * height * width * channels,
            width * channels,
            |row, out| {
                let (n, h) = (row / height, row % height);
                out.fill(MaybeUninit::new(0.));
                if !h.is_multiple_of(stride) {
                    return;
                }
                let dy = &dy[(n * s.out_height + h / stride) * s.out_width * out_channels..]
                    [..s.out_width * out_channels];
                for (out, dy) in out
                    .chunks_mut(stride * channels)
                    .zip(dy.chunks_exact(out_channels))
                {
                    out[..channels].write_copy_of_slice(&dy[s.front..][..channels]);
                }
            },
        )
    }
}
