//! The edge convolution behind its product.

use rayon::prelude::*;

use super::{LeakyNorm, inverse_deviation};
use crate::Context;
use crate::core::parallel::{Out, filled};
use crate::core::shape::check_len;
use crate::core::simd::Isa;

/// Sizes of an edge convolution's second half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeShape {
    /// The number of clouds.
    pub batch: usize,
    /// The number of points of a cloud.
    pub points: usize,
    /// The number of neighbours of a point.
    pub k: usize,
    /// The number of output channels.
    pub channels: usize,
}

impl EdgeShape {
    /// Panics if a slice is not as long as the sizes say. So no product of some of the sizes wraps afterwards.
    pub(super) fn check(&self, ab: &[f32], neighbours: &[u32]) {
        let (batch, points) = (self.batch, self.points);
        let product = [batch, points, 2, self.channels];
        check_len("product of an edge convolution", ab.len(), &product, self);
        let edges = [batch, points, self.k];
        let what = "neighbours of an edge convolution";
        check_len(what, neighbours.len(), &edges, self);
        assert!(
            (1..=255).contains(&self.k),
            "an edge convolution has 1 to 255 neighbours, found {self:?}"
        );
    }

    pub(super) fn edges(&self) -> f64 {
        (self.batch * self.points * self.k) as f64
    }

    /// Values of a cloud.
    pub(super) fn cloud(&self) -> usize {
        self.points * self.channels
    }
}

/// The result of [`edge_pool`], and what its backward pass needs.
#[derive(Clone, Debug)]
pub struct EdgePooled {
    /// The result, `[batch, points, channels]`.
    pub y: Vec<f32>,
    /// Which of the neighbours is the largest, `[batch, points, channels]`.
    pub winners: Vec<u8>,
    /// Sum over the neighbours of `a_j`, `[batch, points, channels]`; empty if the statistics were given.
    pub sums: Vec<f32>,
    /// Mean of all edges that was used, `[channels]`.
    pub mean: Vec<f32>,
    /// Biased variance of all edges that was used, `[channels]`.
    pub variance: Vec<f32>,
}

/// Normalises and pools: `y_i = max over j of leaky(gamma (a_j + b_i - mean) / sqrt(variance + epsilon) + beta)`.
///
/// `ab` is `[batch, points, 2 channels]`, a before b; `neighbours` `[batch, points, k]` as [`nearest`](super::nearest()) finds them. Without
/// `statistics` mean and variance are those of all edges.
///
/// # Panics
/// If the lengths do not fit the shape. A neighbour that is no point of its cloud is caught too.
pub fn edge_pool(
    context: &Context,
    ab: &[f32],
    neighbours: &[u32],
    shape: EdgeShape,
    statistics: Option<(&[f32], &[f32])>,
    norm: LeakyNorm<'_>,
) -> EdgePooled {
    shape.check(ab, neighbours);
    let (isa, channels) = (context.isa(), shape.channels);
    let (mean, variance) = statistics.unwrap_or((norm.gamma, norm.gamma));
    norm.check("an edge convolution", mean, variance, channels);
    let mean: Vec<f32> = match statistics {
        Some((mean, _)) => mean.to_vec(),
        None => edge_mean(ab, neighbours, shape, isa),
    };
    let mut largest = all_largest(
        context,
        ab,
        neighbours,
        shape,
        &mean,
        norm.gamma,
        statistics.is_none(),
    );
    let variance: Vec<f32> = match statistics {
        Some((_, variance)) => variance.to_vec(),
        None => (0..channels)
            .map(|c| {
                let squares = largest.squares.iter().map(|cloud| cloud[c]);
                (squares.sum::<f64>() / shape.edges()) as f32
            })
            .collect(),
    };
    let scale: Vec<f32> = (0..channels)
        .map(|c| (f64::from(norm.gamma[c]) * inverse_deviation(variance[c], norm.epsilon)) as f32)
        .collect();
    let (size, beta, slope) = (shape.cloud(), norm.beta, norm.slope);
    if size > 0 {
        let clouds = largest.y.par_chunks_exact_mut(size);
        clouds
            .zip(ab.par_chunks_exact(2 * size))
            .for_each(|(y, ab)| {
                isa.vectorise(|| {
                    for (y, ab) in y
                        .chunks_exact_mut(channels)
                        .zip(ab.chunks_exact(2 * channels))
                    {
                        let b = &ab[channels..];
                        for c in 0..channels {
                            let z = (y[c] + (b[c] - mean[c])) * scale[c] + beta[c];
                            y[c] = if z > 0.0 { z } else { slope * z };
                        }
                    }
                });
            });
    }
    EdgePooled {
        y: largest.y,
        winners: largest.winners,
        sums: largest.sums,
        mean,
        variance,
    }
}

/// What [`largest`] finds in all clouds.
struct Largest {
    /// The largest `a_j`, `[batch, points, channels]`.
    y: Vec<f32>,
    winners: Vec<u8>,
    /// Empty if not wanted.
    sums: Vec<f32>,
    /// The squared deviations of each cloud, per channel.
    squares: Vec<Vec<f64>>,
}

/// Calls [`largest`] for every cloud, in parallel.
fn all_largest(
    context: &Context,
    ab: &[f32],
    neighbours: &[u32],
    shape: EdgeShape,
    mean: &[f32],
    gamma: &[f32],
    want_sums: bool,
) -> Largest {
    let EdgeShape {
        batch, points, k, ..
    } = shape;
    let (isa, size) = (context.isa(), shape.cloud());
    let sign = |&g: &f32| if g < 0.0 { -1.0 } else { 1.0 };
    let signs: Vec<f32> = gamma.iter().map(sign).collect();
    let mut winners = vec![0_u8; batch * size];
    let mut squares = vec![vec![0.0_f64; shape.channels]; batch];
    let mut sums = Vec::new();
    let mut run = |y: Out, sums: Option<Out>| {
        if size == 0 {
            return;
        }
        winners
            .par_chunks_exact_mut(size)
            .zip(&mut squares)
            .enumerate()
            .for_each(|(cloud, (winners, squares))| {
                // SAFETY: both buffers have room for all clouds, and this is the only task with this one.
                let part = |out: Out| unsafe {
                    std::slice::from_raw_parts_mut(out.at(cloud * size), size)
                };
                let (y, sums) = (part(y), sums.map(part));
                let ab = &ab[cloud * 2 * size..][..2 * size];
                let neighbours = &neighbours[cloud * points * k..][..points * k];
                isa.vectorise(|| {
                    largest(ab, neighbours, k, &signs, mean, y, winners, sums, squares);
                });
            });
    };
    // SAFETY: each task writes its cloud of `size` values, all of them; so does the inner call to the sums, if they are wanted.
    let y = unsafe {
        filled(context, batch * size, |y| {
            if want_sums {
                sums = filled(context, batch * size, |sums| run(y, Some(sums)));
            } else {
                run(y, None);
            }
        })
    };
    Largest {
        y,
        winners,
        sums,
        squares,
    }
}

/// How often every point of every cloud is a neighbour.
pub(super) fn degrees(neighbours: &[u32], points: usize) -> Vec<f32> {
    let mut degrees = vec![0.0; points];
    for &j in neighbours {
        degrees[j as usize] += 1.0;
    }
    degrees
}

/// Mean over all edges of `a_j + b_i`, per channel: every `a_j` counts as often as j is a neighbour, every `b_i` k times.
fn edge_mean(ab: &[f32], neighbours: &[u32], shape: EdgeShape, isa: Isa) -> Vec<f32> {
    let EdgeShape {
        points,
        k,
        channels,
        ..
    } = shape;
    let parts: Vec<Vec<f64>> = ab
        .par_chunks_exact(points * 2 * channels)
        .zip(neighbours.par_chunks_exact(points * k))
        .map(|(ab, neighbours)| {
            let degrees = degrees(neighbours, points);
            let mut sums = vec![0.0_f64; channels];
            isa.vectorise(|| {
                for (row, degree) in ab.chunks_exact(2 * channels).zip(degrees) {
                    let (a, b) = row.split_at(channels);
                    for c in 0..channels {
                        sums[c] += f64::from(degree * a[c] + k as f32 * b[c]);
                    }
                }
            });
            sums
        })
        .collect();
    (0..channels)
        .map(|c| (parts.iter().map(|part| part[c]).sum::<f64>() / shape.edges()) as f32)
        .collect()
}

/// Channels that are worked on together: they fit registers for the running maximum, its place and two sums.
const TOGETHER: usize = 32;

/// For every point and channel the largest `sign a_j` (as `a_j`), its place, and if there is room for them the sum of `a_j`;
/// with it the squares of all edges' deviations from the mean are added up per channel.
#[expect(
    clippy::too_many_arguments,
    reason = "a loop over one cloud, with all it reads and writes"
)]
#[inline(always)]
fn largest(
    ab: &[f32],
    neighbours: &[u32],
    k: usize,
    signs: &[f32],
    mean: &[f32],
    y: &mut [f32],
    winners: &mut [u8],
    mut sums: Option<&mut [f32]>,
    squares: &mut [f64],
) {
    let channels = signs.len();
    let mut first = 0;
    while first < channels {
        let width = TOGETHER.min(channels - first);
        for (i, neighbours) in neighbours.chunks_exact(k).enumerate() {
            let mut best = [f32::NEG_INFINITY; TOGETHER];
            let mut place = [0_u32; TOGETHER];
            let mut sum = [0.0_f32; TOGETHER];
            let mut square = [0.0_f32; TOGETHER];
            let mut sign = [1.0_f32; TOGETHER];
            let mut own = [0.0_f32; TOGETHER];
            sign[..width].copy_from_slice(&signs[first..][..width]);
            let b = &ab[i * 2 * channels + channels + first..][..width];
            for c in 0..width {
                own[c] = b[c] - mean[first + c];
            }
            for (slot, &j) in neighbours.iter().enumerate() {
                let row = &ab[j as usize * 2 * channels + first..][..width];
                // A full group has a length that the compiler knows.
                let mut a = [0.0_f32; TOGETHER];
                if let Ok(full) = <&[f32; TOGETHER]>::try_from(row) {
                    a = *full;
                } else {
                    a[..width].copy_from_slice(row);
                }
                for c in 0..TOGETHER {
                    let key = sign[c] * a[c];
                    let larger = key > best[c];
                    best[c] = if larger { key } else { best[c] };
                    place[c] = if larger { slot as u32 } else { place[c] };
                }
                if sums.is_some() {
                    for c in 0..TOGETHER {
                        let edge = a[c] + own[c];
                        sum[c] += a[c];
                        square[c] += edge * edge;
                    }
                }
            }
            let at = i * channels + first;
            for c in 0..width {
                y[at + c] = sign[c] * best[c];
                winners[at + c] = place[c] as u8;
            }
            if let Some(sums) = &mut sums {
                sums[at..][..width].copy_from_slice(&sum[..width]);
                for c in 0..width {
                    squares[first + c] += f64::from(square[c]);
                }
            }
        }
        first += width;
    }
}
