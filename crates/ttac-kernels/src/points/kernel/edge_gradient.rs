//! The gradients of the edge convolution behind its product.

use rayon::prelude::*;

use super::edge::degrees;
use super::{EdgePooled, EdgeShape, LeakyNorm, Totals};
use crate::Context;
use crate::core::parallel::{Out, filled};
use crate::core::shape::check_len;

/// What the backward pass of an edge convolution reads.
#[derive(Clone, Copy, Debug)]
pub struct EdgeBackward<'a> {
    /// The argument of [`edge_pool`](super::edge_pool) of this name.
    pub ab: &'a [f32],
    /// The argument of [`edge_pool`](super::edge_pool) of this name.
    pub neighbours: &'a [u32],
    /// The result of the forward pass, for the sign of the activation's input.
    pub y: &'a [f32],
    /// The field of [`EdgePooled`](super::EdgePooled) of this name.
    pub winners: &'a [u8],
    /// The field of [`EdgePooled`](super::EdgePooled) of this name; it is empty if the statistics were given.
    pub sums: &'a [f32],
    /// The field of [`EdgePooled`](super::EdgePooled) of this name.
    pub mean: &'a [f32],
    /// The field of [`EdgePooled`](super::EdgePooled) of this name.
    pub variance: &'a [f32],
}

/// The gradients of [`edge_pool`](super::edge_pool).
#[derive(Clone, Debug)]
pub struct EdgeGradients {
    /// `[batch, points, 2 channels]`.
    pub ab: Vec<f32>,
    /// `[channels]`.
    pub gamma: Vec<f32>,
    /// `[channels]`.
    pub beta: Vec<f32>,
}

/// Computes the gradients of [`edge_pool`](super::edge_pool) from that of its result, `[batch, points, channels]`.
///
/// With g the gradient behind the activation and e' the normalised edge, both at the winning edge of a point, and n edges,
/// `dbeta = sum g`, `dgamma = sum g e'`, and an edge has the gradient
/// `gamma / deviation (g [if it won] - dbeta / n - e' dgamma / n)`; the last two terms vanish where the statistics were given.
///
/// # Panics
/// If the lengths do not fit the shape.
pub fn edge_pool_backward(
    context: &Context,
    dy: &[f32],
    saved: &EdgeBackward<'_>,
    shape: EdgeShape,
    norm: LeakyNorm<'_>,
) -> EdgeGradients {
    saved.check(dy, shape, &norm);
    let EdgeShape {
        batch, channels, ..
    } = shape;
    let inverse = norm.inverse_deviations(saved.variance);
    let parts: Vec<[Vec<f64>; 2]> = (0..batch)
        .into_par_iter()
        .map(|cloud| {
            let mut sums = [vec![0.0; channels], vec![0.0; channels]];
            let [beta, gamma] = &mut sums;
            each_winner(saved, dy, cloud, shape, norm.slope, |c, _, g, edge| {
                beta[c] += f64::from(g);
                gamma[c] += f64::from(g * (edge - saved.mean[c]) * inverse[c]);
            });
            sums
        })
        .collect();
    let totals = Totals::of(&parts, channels);
    let batch_statistics = !saved.sums.is_empty();
    let [of_beta, of_gamma] = totals.shares(shape.edges(), batch_statistics);
    let scale: Vec<f32> = (0..channels).map(|c| norm.gamma[c] * inverse[c]).collect();
    let constants = [saved.mean, &inverse, &of_beta, &of_gamma];
    let size = 2 * shape.cloud();
    let write = |out: Out| {
        (0..batch).into_par_iter().for_each(|cloud| {
            // SAFETY: the result has room for all clouds, and this is the only task with this one.
            let dab = unsafe { std::slice::from_raw_parts_mut(out.at(cloud * size), size) };
            dab.fill(0.0);
            if batch_statistics {
                let (ab, neighbours, sums) = saved.cloud(cloud, shape);
                context.isa().vectorise(|| {
                    statistics_gradient(ab, neighbours, sums, shape.k, constants, dab);
                });
            }
            each_winner(saved, dy, cloud, shape, norm.slope, |c, [i, j], g, _| {
                dab[j * 2 * channels + c] += g;
                dab[i * 2 * channels + channels + c] += g;
            });
            context.isa().vectorise(|| {
                for row in dab.chunks_exact_mut(channels) {
                    for c in 0..channels {
                        row[c] *= scale[c];
                    }
                }
            });
        });
    };
    // SAFETY: each task writes its cloud, all of it.
    let ab = unsafe { filled(context, batch * size, write) };
    let (gamma, beta) = totals.narrow();
    EdgeGradients { ab, gamma, beta }
}

impl<'a> EdgeBackward<'a> {
    /// Takes what [`edge_pool`](super::edge_pool) left, besides what it had been given.
    pub fn new(ab: &'a [f32], neighbours: &'a [u32], pooled: &'a EdgePooled) -> Self {
        Self {
            ab,
            neighbours,
            y: &pooled.y,
            winners: &pooled.winners,
            sums: &pooled.sums,
            mean: &pooled.mean,
            variance: &pooled.variance,
        }
    }

    fn check(&self, dy: &[f32], shape: EdgeShape, norm: &LeakyNorm<'_>) {
        shape.check(self.ab, self.neighbours);
        let what = "an edge convolution";
        norm.check(what, self.mean, self.variance, shape.channels);
        let expected = [shape.batch, shape.points, shape.channels];
        for (what, found) in [
            ("output gradient of an edge convolution", dy.len()),
            ("saved output of an edge convolution", self.y.len()),
            ("saved winners of an edge convolution", self.winners.len()),
        ] {
            check_len(what, found, &expected, &shape);
        }
        if !self.sums.is_empty() {
            let what = "saved sums of an edge convolution";
            check_len(what, self.sums.len(), &expected, &shape);
        }
    }

    /// The product, the neighbours and the sums of one cloud, where there are sums.
    fn cloud(&self, cloud: usize, shape: EdgeShape) -> (&[f32], &[u32], &[f32]) {
        let (size, edges) = (shape.cloud(), shape.points * shape.k);
        (
            &self.ab[cloud * 2 * size..][..2 * size],
            &self.neighbours[cloud * edges..][..edges],
            &self.sums[cloud * size..][..size],
        )
    }
}

/// Calls `f(channel, [point, neighbour], gradient behind the activation, a_j + b_i)` for the winning edge of every point and channel.
#[inline(always)]
fn each_winner(
    saved: &EdgeBackward<'_>,
    dy: &[f32],
    cloud: usize,
    shape: EdgeShape,
    slope: f32,
    mut f: impl FnMut(usize, [usize; 2], f32, f32),
) {
    let EdgeShape {
        points,
        k,
        channels,
        ..
    } = shape;
    let size = points * channels;
    let ab = &saved.ab[cloud * 2 * size..][..2 * size];
    for i in 0..points {
        let neighbours = &saved.neighbours[(cloud * points + i) * k..][..k];
        let at = cloud * size + i * channels;
        let (dy, y) = (&dy[at..][..channels], &saved.y[at..][..channels]);
        let winners = &saved.winners[at..][..channels];
        let b = &ab[i * 2 * channels + channels..][..channels];
        for c in 0..channels {
            let j = neighbours[winners[c] as usize] as usize;
            let g = if y[c] > 0.0 { dy[c] } else { slope * dy[c] };
            f(c, [i, j], g, ab[j * 2 * channels + c] + b[c]);
        }
    }
}

/// The part of all edges' gradients that comes from mean and variance, without the scale: of an edge
/// `- of_beta - e' of_gamma`, added up over the edges of each `a_j` and each `b_i`.
#[inline(always)]
fn statistics_gradient(
    ab: &[f32],
    neighbours: &[u32],
    sums: &[f32],
    k: usize,
    [mean, inverse, of_beta, of_gamma]: [&[f32]; 4],
    dab: &mut [f32],
) {
    let channels = mean.len();
    let points = sums.len() / channels;
    // First the sum of b_i over the points i that have j as a neighbour, in the place of da_j.
    for (i, neighbours) in neighbours.chunks_exact(k).enumerate() {
        let b = &ab[i * 2 * channels + channels..][..channels];
        for &j in neighbours {
            let sum = &mut dab[j as usize * 2 * channels..][..channels];
            for c in 0..channels {
                sum[c] += b[c];
            }
        }
    }
    let degrees = degrees(neighbours, points);
    for i in 0..points {
        let (a, b) = ab[i * 2 * channels..][..2 * channels].split_at(channels);
        let (da, db) = dab[i * 2 * channels..][..2 * channels].split_at_mut(channels);
        let (sum, degree, k) = (&sums[i * channels..][..channels], degrees[i], k as f32);
        for c in 0..channels {
            let per_edge = of_gamma[c] * inverse[c];
            da[c] = -(degree * of_beta[c] + per_edge * (degree * (a[c] - mean[c]) + da[c]));
            db[c] = -(k * of_beta[c] + per_edge * (sum[c] + k * (b[c] - mean[c])));
        }
    }
}
