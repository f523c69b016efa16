//! The shortcut without parameters, forward and backward.

use std::mem::MaybeUninit;

use crate::Context;
use crate::core::parallel::filled_rows;
use crate::core::shape::{check_len, check_window, elements};

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

    pub(in crate::pool) fn in_shape(&self) -> [usize; 4] {
        [self.batch, self.height, self.width, self.channels]
    }

    pub(in crate::pool) fn out_shape(&self) -> [usize; 4] {
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
        check_window("a shortcut", [1, stride, 1], [0; 2], self);
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
