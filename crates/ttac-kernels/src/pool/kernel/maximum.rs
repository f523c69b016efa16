//! The maximum over windows, forward and backward.

use rayon::prelude::*;

use super::PoolShape;
use crate::Context;
use crate::core::parallel::{filled_rows, filled_slice};
use crate::core::shape::check_len;

/// The pixel that a maximum over no pixel at all came from. Only a window with a dilation can miss the image.
pub const NO_PIXEL: u32 = u32::MAX;

/// Computes the maximum over each window, and for each the pixel it came from, `row * width + column` inside its image. The first of equals wins, row by row;
/// NaN wins over all. A window that sees no pixel has the maximum `-inf`, from [`NO_PIXEL`].
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
    if len == 0 {
        return (context.take(0), Vec::new());
    }
    let (rows, columns) = (shape.seen(0), shape.seen(1));
    let row_len = columns.len() * shape.channels;
    let mut from = vec![NO_PIXEL; len];
    // SAFETY: every pixel of a row is written.
    let y = unsafe {
        filled_slice(context, len, |out| {
            out.par_chunks_mut(row_len)
                .zip(from.par_chunks_mut(row_len))
                .enumerate()
                .for_each(|(row, (out, from))| {
                    let (n, i) = (row / rows.len(), row % rows.len());
                    let image = shape.height * shape.width * shape.channels;
                    let seen = Seen {
                        image: &x[n * image..][..image],
                        width: shape.width,
                        rows: &rows[i],
                    };
                    let mut best = vec![0f32; shape.channels];
                    let pixels = out.chunks_exact_mut(shape.channels);
                    let from = from.chunks_exact_mut(shape.channels);
                    for ((out, from), columns) in pixels.zip(from).zip(&columns) {
                        seen.maximum(columns, &mut best, from);
                        for (out, best) in out.iter_mut().zip(&best) {
                            out.write(*best);
                        }
                    }
                });
        })
    };
    (y, from)
}

/// The rows of an image that a row of windows sees.
struct Seen<'a> {
    image: &'a [f32],
    width: usize,
    rows: &'a [usize],
}

impl Seen<'_> {
    /// Finds the maximum of each channel over some columns, and where it is.
    fn maximum(&self, columns: &[usize], best: &mut [f32], from: &mut [u32]) {
        let channels = best.len();
        best.fill(f32::NEG_INFINITY);
        if let (Some(row), Some(column)) = (self.rows.first(), columns.first()) {
            // Where all values are -inf, which is greater than none, the first pixel wins.
            from.fill((row * self.width + column) as u32);
        }
        for h in self.rows {
            for w in columns {
                let pixel = h * self.width + w;
                let x = &self.image[pixel * channels..][..channels];
                for ((best, from), &x) in best.iter_mut().zip(&mut *from).zip(x) {
                    if x > *best || x.is_nan() {
                        *best = x;
                        *from = pixel as u32;
                    }
                }
            }
        }
    }
}

/// Computes the gradient of [`max_pool_forward`]'s input, from its pixels.
///
/// # Panics
/// If the lengths do not fit, or a pixel lies outside its image and is not [`NO_PIXEL`].
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
                if from != NO_PIXEL {
                    dx[from as usize * c + k % c] += dy;
                }
            }
            for (out, dx) in out.iter_mut().zip(dx) {
                out.write(dx);
            }
        })
    }
}
