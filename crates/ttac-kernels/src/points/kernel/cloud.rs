//! Pooling over a cloud.

use rayon::prelude::*;

use super::{LeakyNorm, Totals, inverse_deviation};
use crate::Context;
use crate::core::parallel::{Out, filled};
use crate::core::shape::{check_len, elements};

/// The result of [`cloud_pool`], and what its backward pass needs.
#[derive(Clone, Debug)]
pub struct CloudPooled {
    /// The maximum, then the mean over the points: `[batch, 2 channels]`.
    pub y: Vec<f32>,
    /// Which point is the largest, `[batch, channels]`.
    pub winners: Vec<u32>,
}

/// A norm per channel as `z = x scale + shift`.
struct Folded {
    scale: Vec<f32>,
    shift: Vec<f32>,
}

impl Folded {
    fn new(mean: &[f32], variance: &[f32], norm: LeakyNorm<'_>) -> Self {
        let scale =
            |c: usize| f64::from(norm.gamma[c]) * inverse_deviation(variance[c], norm.epsilon);
        let shift = |c: usize| f64::from(norm.beta[c]) - f64::from(mean[c]) * scale(c);
        Self {
            scale: (0..mean.len()).map(|c| scale(c) as f32).collect(),
            shift: (0..mean.len()).map(|c| shift(c) as f32).collect(),
        }
    }
}

/// Takes maximum and mean over the points of `leaky(gamma (x - mean) / sqrt(variance + epsilon) + beta)`; `x` is
/// `[batch, points, channels]`. What is pooled is never stored.
///
/// # Panics
/// If `x` is no whole number of clouds.
pub fn cloud_pool(
    context: &Context,
    x: &[f32],
    points: usize,
    mean: &[f32],
    variance: &[f32],
    norm: LeakyNorm<'_>,
) -> CloudPooled {
    let channels = mean.len();
    let size = elements("input of a cloud pool", &[points, channels]);
    assert!(
        size > 0 && x.len().is_multiple_of(size),
        "cloud pool: {} values for {points} points of {channels} channels",
        x.len()
    );
    norm.check("a cloud pool", mean, variance, channels);
    let Folded { scale, shift } = Folded::new(mean, variance, norm);
    let isa = context.isa();
    let batch = x.len() / size;
    let mut y = vec![0.0; batch * 2 * channels];
    let mut winners = vec![0; batch * channels];
    y.par_chunks_exact_mut(2 * channels)
        .zip(winners.par_chunks_exact_mut(channels))
        .zip(x.par_chunks_exact(size))
        .for_each(|((y, winners), x)| {
            isa.vectorise(|| {
                let (best, sum) = y.split_at_mut(channels);
                best.fill(f32::NEG_INFINITY);
                for (i, row) in x.chunks_exact(channels).enumerate() {
                    for c in 0..channels {
                        let z = row[c] * scale[c] + shift[c];
                        let z = if z > 0.0 { z } else { norm.slope * z };
                        sum[c] += z;
                        let larger = z > best[c];
                        best[c] = if larger { z } else { best[c] };
                        winners[c] = if larger { i as u32 } else { winners[c] };
                    }
                }
                for sum in sum {
                    *sum /= points as f32;
                }
            });
        });
    CloudPooled { y, winners }
}

/// What the backward pass of a pooling over clouds reads.
#[derive(Clone, Copy, Debug)]
pub struct CloudBackward<'a> {
    /// The input, `[batch, points, channels]`.
    pub x: &'a [f32],
    /// The number of points of a cloud.
    pub points: usize,
    /// The field of [`CloudPooled`] of this name.
    pub winners: &'a [u32],
    /// The mean that was used, `[channels]`.
    pub mean: &'a [f32],
    /// The variance that was used, `[channels]`.
    pub variance: &'a [f32],
    /// Whether mean and variance were those of `x`, and are differentiated through.
    pub batch_statistics: bool,
}

/// The gradients of [`cloud_pool`].
#[derive(Clone, Debug)]
pub struct CloudGradients {
    /// `[batch, points, channels]`.
    pub x: Vec<f32>,
    /// `[channels]`.
    pub gamma: Vec<f32>,
    /// `[channels]`.
    pub beta: Vec<f32>,
}

/// Computes the gradients of [`cloud_pool`] from that of its result, `[batch, 2 channels]`.
///
/// # Panics
/// If the lengths do not fit together.
pub fn cloud_pool_backward(
    context: &Context,
    dy: &[f32],
    saved: &CloudBackward<'_>,
    norm: LeakyNorm<'_>,
) -> CloudGradients {
    let (points, channels) = (saved.points, saved.mean.len());
    let size = elements("input of a cloud pool", &[points, channels]);
    assert!(
        size > 0 && saved.x.len().is_multiple_of(size),
        "cloud pool, backward: {} values for {points} points of {channels} channels",
        saved.x.len()
    );
    let batch = saved.x.len() / size;
    let whole = [batch, points, channels];
    let what = "output gradient of a cloud pool";
    check_len(what, dy.len(), &[batch, 2, channels], &whole);
    let what = "winners of a cloud pool";
    check_len(what, saved.winners.len(), &[batch, channels], &whole);
    norm.check("a cloud pool", saved.mean, saved.variance, channels);
    let gradient = Gradient {
        saved,
        dy,
        norm,
        folded: Folded::new(saved.mean, saved.variance, norm),
        inverse: norm.inverse_deviations(saved.variance),
    };
    let isa = context.isa();
    let parts: Vec<[Vec<f64>; 2]> = (0..batch)
        .into_par_iter()
        .map(|task| isa.vectorise(|| gradient.sums(task)))
        .collect();
    let totals = Totals::of(&parts, channels);
    let shares = totals.shares((batch * points) as f64, saved.batch_statistics);
    let write = |out: Out| {
        (0..batch).into_par_iter().for_each(|task| {
            // SAFETY: the result has room for all clouds, and this is the only task with this one.
            let dx = unsafe { std::slice::from_raw_parts_mut(out.at(task * size), size) };
            isa.vectorise(|| gradient.apply(task, &shares, dx));
        });
    };
    // SAFETY: each task writes its cloud of `size` values, all of them.
    let x = unsafe { filled(context, batch * size, write) };
    let (gamma, beta) = totals.narrow();
    CloudGradients { x, gamma, beta }
}

/// What the gradients of all clouds are made of.
struct Gradient<'a> {
    saved: &'a CloudBackward<'a>,
    dy: &'a [f32],
    norm: LeakyNorm<'a>,
    folded: Folded,
    inverse: Vec<f32>,
}

/// One cloud: its input, the gradients of its maxima and means, and the points of the maxima.
struct Cloud<'a> {
    x: &'a [f32],
    of_max: &'a [f32],
    of_mean: &'a [f32],
    winners: &'a [u32],
    /// The share of a point in the mean.
    even: f32,
}

impl Gradient<'_> {
    #[inline(always)]
    fn cloud(&self, task: usize) -> Cloud<'_> {
        let channels = self.inverse.len();
        let size = self.saved.points * channels;
        let dy = &self.dy[task * 2 * channels..][..2 * channels];
        let (of_max, of_mean) = dy.split_at(channels);
        Cloud {
            x: &self.saved.x[task * size..][..size],
            of_max,
            of_mean,
            winners: &self.saved.winners[task * channels..][..channels],
            even: 1.0 / self.saved.points as f32,
        }
    }

    /// A cloud's part of the gradients of shift and scale.
    #[inline(always)]
    fn sums(&self, task: usize) -> [Vec<f64>; 2] {
        let cloud = self.cloud(task);
        let (scale, shift) = (&self.folded.scale, &self.folded.shift);
        let (mean, inverse, norm) = (self.saved.mean, &self.inverse, self.norm);
        let channels = mean.len();
        // Sums over the cloud of the activation's slope, and of slope times normalised value.
        let (mut slopes, mut products) = (vec![0.0_f64; channels], vec![0.0_f64; channels]);
        // Few rows in `f32` before they are added up in `f64`.
        for rows in cloud.x.chunks(32 * channels) {
            let (mut s, mut p) = (vec![0.0_f32; channels], vec![0.0_f32; channels]);
            for row in rows.chunks_exact(channels) {
                for c in 0..channels {
                    let slope = norm.slope_at(row[c] * scale[c] + shift[c]);
                    s[c] += slope;
                    p[c] += slope * ((row[c] - mean[c]) * inverse[c]);
                }
            }
            for c in 0..channels {
                slopes[c] += f64::from(s[c]);
                products[c] += f64::from(p[c]);
            }
        }
        for c in 0..channels {
            let value = cloud.x[cloud.winners[c] as usize * channels + c];
            let slope = norm.slope_at(value * scale[c] + shift[c]);
            let g = f64::from(slope * cloud.of_max[c]);
            let share = f64::from(cloud.of_mean[c] * cloud.even);
            slopes[c] = slopes[c] * share + g;
            products[c] = products[c] * share + g * f64::from((value - mean[c]) * inverse[c]);
        }
        [slopes, products]
    }

    /// Writes the gradient of a cloud's input.
    #[inline(always)]
    fn apply(&self, task: usize, [of_beta, of_gamma]: &[Vec<f32>; 2], dx: &mut [f32]) {
        let Cloud {
            x,
            of_max,
            of_mean,
            winners,
            even,
        } = self.cloud(task);
        let Folded { scale, shift } = &self.folded;
        let (mean, inverse, norm) = (self.saved.mean, &self.inverse, self.norm);
        let channels = mean.len();
        for (dx, row) in dx.chunks_exact_mut(channels).zip(x.chunks_exact(channels)) {
            for c in 0..channels {
                let slope = norm.slope_at(row[c] * scale[c] + shift[c]);
                let normalised = (row[c] - mean[c]) * inverse[c];
                let g = slope * (of_mean[c] * even);
                dx[c] = scale[c] * (g - of_beta[c] - normalised * of_gamma[c]);
            }
        }
        for c in 0..channels {
            let at = winners[c] as usize * channels + c;
            let slope = norm.slope_at(x[at] * scale[c] + shift[c]);
            dx[at] += scale[c] * slope * of_max[c];
        }
    }
}
