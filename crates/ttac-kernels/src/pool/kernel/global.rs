//! The mean over all pixels of an image, forward and backward.

use crate::Context;
use crate::core::parallel::filled_rows;
use crate::core::shape::{check_len, elements};

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
