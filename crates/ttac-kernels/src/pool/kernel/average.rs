//! The mean over windows, forward and backward.

use super::{PoolShape, seen_by};
use crate::Context;
use crate::core::parallel::filled_rows;
use crate::core::shape::{check_len, padded};

/// The number by which an average pool divides the sum of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Divisor {
    /// The number of pixels of the window that lie on the padded image. Only a window that stands for a remainder hangs over it.
    #[default]
    Padded,
    /// The number of pixels of the window that lie on the image.
    Image,
    /// This number, whatever the window covers.
    Number(usize),
}

/// Computes the mean over each window; the border counts as zeros.
///
/// # Panics
/// If the length does not fit, the window has a dilation, or the divisor is 0.
pub fn average_pool_forward(
    context: &Context,
    x: &[f32],
    shape: &PoolShape,
    divisor: Divisor,
) -> Vec<f32> {
    check(shape, divisor);
    let what = "input of an average pool";
    check_len(what, x.len(), &shape.in_shape(), shape);
    let [_, len] = shape.lens();
    if len == 0 {
        return context.take(0);
    }
    let seen = [shape.seen(0), shape.seen(1)];
    let counts = Counts::new(shape, divisor, &seen);
    let source = Source {
        values: x,
        size: [shape.height, shape.width],
        channels: shape.channels,
    };
    average(context, &source, len, &seen, |i, j| counts.scale(i, j))
}

/// Computes the gradient of [`average_pool_forward`]'s input.
///
/// # Panics
/// If the length does not fit, the window has a dilation, or the divisor is 0.
pub fn average_pool_backward(
    context: &Context,
    dy: &[f32],
    shape: &PoolShape,
    divisor: Divisor,
) -> Vec<f32> {
    check(shape, divisor);
    let what = "output gradient of an average pool";
    check_len(what, dy.len(), &shape.out_shape(), shape);
    let [len, _] = shape.lens();
    if len == 0 {
        return context.take(0);
    }
    let (seen, size) = ([shape.seen(0), shape.seen(1)], shape.places());
    let counts = Counts::new(shape, divisor, &seen);
    let seen_by = [
        seen_by(&seen[0], shape.height),
        seen_by(&seen[1], shape.width),
    ];
    let source = |values| Source {
        values,
        size,
        channels: shape.channels,
    };
    if let Some(scale) = counts.common_scale() {
        return average(context, &source(dy), len, &seen_by, |_, _| scale);
    }
    // Each window has its own divisor, so that the gradients are divided before they are added.
    let row = size[1] * shape.channels;
    // SAFETY: every pixel of a row is written.
    let divided = unsafe {
        filled_rows(context, dy.len(), row, |i, out| {
            let pixels = dy[i * row..][..row].chunks_exact(shape.channels);
            for (j, (out, dy)) in out.chunks_exact_mut(shape.channels).zip(pixels).enumerate() {
                let scale = counts.scale(i % size[0], j);
                for (out, dy) in out.iter_mut().zip(dy) {
                    out.write(dy * scale);
                }
            }
        })
    };
    let dx = average(context, &source(&divided), len, &seen_by, |_, _| 1.);
    context.recycle(divided);
    dx
}

fn check(shape: &PoolShape, divisor: Divisor) {
    shape.check();
    assert!(
        shape.window.dilation == [1; 2],
        "an average pool has no dilation, found {shape:?}"
    );
    assert!(
        divisor != Divisor::Number(0),
        "an average pool needs a divisor of at least 1, for {shape:?}"
    );
}

/// The numbers of pixels by which the sums are divided: the product of that of a window's row and that of its column.
struct Counts {
    rows: Vec<usize>,
    columns: Vec<usize>,
}

impl Counts {
    /// Counts for each place of the window; `seen` are the coordinates on the image.
    fn new(shape: &PoolShape, divisor: Divisor, seen: &[Vec<Vec<usize>>; 2]) -> Self {
        let edges = [shape.height, shape.width];
        let along = |axis: usize| -> Vec<usize> {
            let window = &shape.window;
            let end = padded(edges[axis], window.padding[axis]);
            let count = |(place, on_image): (usize, &Vec<usize>)| match divisor {
                Divisor::Padded => window.kernel[axis].min(end - place * window.stride[axis]),
                Divisor::Image => on_image.len(),
                Divisor::Number(number) if axis == 0 => number,
                Divisor::Number(_) => 1,
            };
            seen[axis].iter().enumerate().map(count).collect()
        };
        Self {
            rows: along(0),
            columns: along(1),
        }
    }

    /// Returns the factor of a window's sum. Where there is nothing to add up it is 0.
    fn scale(&self, i: usize, j: usize) -> f32 {
        match self.rows[i] * self.columns[j] {
            0 => 0.,
            count => 1. / count as f32,
        }
    }

    /// Returns the factor of all sums, if it is the same.
    fn common_scale(&self) -> Option<f32> {
        let alike = |counts: &[usize]| counts.windows(2).all(|pair| pair[0] == pair[1]);
        let some = !self.rows.is_empty() && !self.columns.is_empty();
        (some && alike(&self.rows) && alike(&self.columns)).then(|| self.scale(0, 0))
    }
}

/// What an average reads.
struct Source<'a> {
    values: &'a [f32],
    /// The height and width of an image.
    size: [usize; 2],
    channels: usize,
}

/// Computes for each pixel of a grid the sum over the source's pixels that it sees, times `scale(row, column)`. A list of the source's rows belongs to each row
/// of the grid, a list of its columns to each column; the grids of all images have `len` values.
fn average(
    context: &Context,
    source: &Source,
    len: usize,
    [rows, columns]: &[Vec<Vec<usize>>; 2],
    scale: impl Fn(usize, usize) -> f32 + Sync,
) -> Vec<f32> {
    let Source {
        values,
        size: [height, width],
        channels,
    } = *source;
    let row_len = columns.len() * channels;
    // SAFETY: every pixel of a row is written.
    unsafe {
        filled_rows(context, len, row_len, |row, out| {
            let (n, i) = (row / rows.len(), row % rows.len());
            let mut sums = vec![0f32; channels];
            for (j, out) in out.chunks_exact_mut(channels).enumerate() {
                sums.fill(0.);
                for &h in &rows[i] {
                    for &w in &columns[j] {
                        let pixel = ((n * height + h) * width + w) * channels;
                        for (sum, value) in sums.iter_mut().zip(&values[pixel..][..channels]) {
                            *sum += value;
                        }
                    }
                }
                let scale = scale(i, j);
                for (out, sum) in out.iter_mut().zip(&sums) {
                    out.write(sum * scale);
                }
            }
        })
    }
}
