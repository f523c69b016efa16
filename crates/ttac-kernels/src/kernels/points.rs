//! Clouds of points: nearest neighbours, the edge convolution of DGCNN, and pooling over a cloud.
//!
//! An edge convolution makes an edge from a point i to each of its k neighbours j, with the value `W1 (x_j - x_i) + W2 x_i`,
//! normalises over all edges, applies a leaky ReLU and takes the maximum over the neighbours. The product is linear, so
//!
//! ```text
//! e_ij = a_j + b_i,   a = W1 x,   b = (W2 - W1) x:
//! ```
//!
//! one product for a point instead of k for its edges. What follows it rises or falls with e, so the maximum over j is where
//! `a_j` is largest (smallest, where the scale of the norm is negative). Mean and variance of all edges, and the gradients, need
//! sums over the neighbours only. Nothing of the size of the edges is ever stored.
//!
//! Tasks are clouds, or rows of one; sums over tasks are added in their order.

use rayon::prelude::*;

use super::recycle::Scratch;
use super::simd::{Isa, Kernel, Simd};
use super::{Out, filled};

/// Rows of a cloud whose distances are made together.
const ROWS: usize = 32;

/// Scores that are compared with the worst of the best at once.
const STRIDE: usize = 32;

/// Runs plain loops as compiled for an instruction set.
#[inline(always)]
fn wide<R>(isa: Isa, work: impl FnOnce() -> R) -> R {
    struct Work<F>(F);
    impl<R, F: FnOnce() -> R> Kernel for Work<F> {
        type Output = R;
        #[inline(always)]
        unsafe fn run<S: Simd>(self) -> R {
            (self.0)()
        }
    }
    isa.run(Work(work))
}

/// The `k` nearest points of every point by Euclidean distance, itself included, nearest first: `[batch, points, k]`,
/// positions within the cloud. Of two that are equally far the first comes first.
///
/// `x` is `[batch, points, channels]`. Points are compared by `|x_j|^2 / 2 - x_i x_j`, which is half the squared distance but
/// for a term that is the same for all j.
///
/// # Panics
/// If there are fewer than `k` points, or `x` is no whole number of clouds.
pub fn nearest(x: &[f32], points: usize, channels: usize, k: usize) -> Vec<u32> {
    let cloud = points * channels;
    assert!(
        (1..=points).contains(&k) && cloud > 0 && x.len().is_multiple_of(cloud),
        "nearest: {k} neighbours of {points} points with {channels} channels in {} values",
        x.len()
    );
    let isa = Isa::current();
    let padded = points.next_multiple_of((4 * isa.lanes()).max(STRIDE));
    let batch = x.len() / cloud;
    // Channels first, points padded to whole tiles and strides; the last row has half the squared lengths.
    let plane = (channels + 1) * padded;
    let mut planes = Scratch::new(batch * plane);
    let out = Out(planes.as_mut_ptr());
    x.par_chunks_exact(cloud).enumerate().for_each(|(task, x)| {
        // SAFETY: plane `task` lies within the scratch buffer, and no other task touches it. Every float is written before any is read.
        unsafe {
            let plane = out.at(task * plane);
            for c in 0..channels {
                for p in 0..padded {
                    let value = if p < points { x[p * channels + c] } else { 0.0 };
                    *plane.add(c * padded + p) = value;
                }
            }
            for p in 0..padded {
                // What is no point is infinitely far.
                let half = if p < points {
                    let squares = x[p * channels..][..channels].iter().map(|v| v * v);
                    0.5 * squares.sum::<f32>()
                } else {
                    f32::INFINITY
                };
                *plane.add(channels * padded + p) = half;
            }
        }
    });
    let mut found = vec![0; batch * points * k];
    let blocks = points.div_ceil(ROWS);
    let tasks: Vec<(usize, &mut [u32])> = found
        .chunks_exact_mut(points * k)
        .flat_map(|cloud| cloud.chunks_mut(ROWS * k))
        .enumerate()
        .collect();
    tasks.into_par_iter().for_each(|(task, found)| {
        let (cloud_index, first) = (task / blocks, task % blocks * ROWS);
        let rows = found.len() / k;
        let mut distances = Scratch::new(ROWS * padded);
        let scores = distances.as_mut_ptr();
        // SAFETY: the plane was filled above; the rows are points of the cloud; the scratch buffer has room for `ROWS` rows, of which
        // `rows` are written here and read below.
        let scores = unsafe {
            isa.run(Distances {
                x: x.as_ptr().add(cloud_index * cloud + first * channels),
                plane: out.at(cloud_index * plane),
                rows,
                channels,
                padded,
                out: scores,
            });
            std::slice::from_raw_parts(scores, rows * padded)
        };
        wide(isa, || {
            let mut best = vec![0.0; k];
            for (scores, found) in scores.chunks_exact(padded).zip(found.chunks_exact_mut(k)) {
                select(scores, &mut best, found);
            }
        });
    });
    drop(planes); // not before: the tasks read it through `out`
    found
}

/// `out[r][j] = half[j] - x_r x_j` for some rows and all columns.
struct Distances {
    x: *const f32,
    plane: *const f32,
    rows: usize,
    channels: usize,
    padded: usize,
    out: *mut f32,
}

impl Kernel for Distances {
    type Output = ();

    /// # Safety
    /// Besides the instruction set: `x` has `rows` rows of `channels`, `plane` has `channels + 1` rows of `padded`, `out` has `rows` rows
    /// of `padded`, which is a multiple of four vectors.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let step = S::PANEL * S::LANES;
        let mut column = 0;
        while column < self.padded {
            let mut row = 0;
            // SAFETY: these rows and columns exist; the rest is the caller's promise.
            unsafe {
                while row + 4 <= self.rows {
                    match S::PANEL {
                        4 => self.tile::<S, 4, 4>(row, column),
                        _ => self.tile::<S, 4, 2>(row, column),
                    }
                    row += 4;
                }
                while row < self.rows {
                    match S::PANEL {
                        4 => self.tile::<S, 1, 4>(row, column),
                        _ => self.tile::<S, 1, 2>(row, column),
                    }
                    row += 1;
                }
            }
            column += step;
        }
    }
}

impl Distances {
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const N: usize>(&self, row: usize, column: usize) {
        // SAFETY: the caller vouches for rows `row .. row + R` and columns `column .. column + N * LANES`.
        unsafe {
            let half = self.plane.add(self.channels * self.padded + column);
            let mut sums = [[S::splat(0.0); N]; R];
            for sums in &mut sums {
                for n in 0..N {
                    sums[n] = S::load(half.add(n * S::LANES));
                }
            }
            let x = self.x.add(row * self.channels);
            let mut w = self.plane.add(column);
            for c in 0..self.channels {
                let mut columns = [S::splat(0.0); N];
                for n in 0..N {
                    columns[n] = S::load(w.add(n * S::LANES));
                }
                for r in 0..R {
                    let negative = S::splat(-*x.add(r * self.channels + c));
                    for n in 0..N {
                        sums[r][n] = S::fma(negative, columns[n], sums[r][n]);
                    }
                }
                w = w.add(self.padded);
            }
            for r in 0..R {
                for n in 0..N {
                    S::store(
                        self.out
                            .add((row + r) * self.padded + column + n * S::LANES),
                        sums[r][n],
                    );
                }
            }
        }
    }
}

/// Positions of the smallest scores, smallest first. `best` is room for as many scores.
#[inline(always)]
fn select(scores: &[f32], best: &mut [f32], found: &mut [u32]) {
    let k = best.len();
    best.fill(f32::INFINITY);
    found.fill(0);
    for (block, chunk) in scores.chunks_exact(STRIDE).enumerate() {
        let worst = best[k - 1];
        let mut any = false;
        for &score in chunk {
            any |= score < worst;
        }
        if !any {
            continue;
        }
        for (place, &score) in chunk.iter().enumerate() {
            if score < best[k - 1] {
                let mut at = k - 1;
                while at > 0 && score < best[at - 1] {
                    best[at] = best[at - 1];
                    found[at] = found[at - 1];
                    at -= 1;
                }
                best[at] = score;
                found[at] = (block * STRIDE + place) as u32;
            }
        }
    }
}

/// Sizes of an edge convolution's second half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeShape {
    /// Clouds.
    pub batch: usize,
    /// Points of a cloud.
    pub points: usize,
    /// Neighbours of a point.
    pub k: usize,
    /// Output channels.
    pub channels: usize,
}

impl EdgeShape {
    fn check(&self, ab: usize, neighbours: usize) {
        let rows = self.batch * self.points;
        assert!(
            ab == rows * 2 * self.channels
                && neighbours == rows * self.k
                && (1..=255).contains(&self.k),
            "edge convolution: {ab} values and {neighbours} neighbours for {self:?}"
        );
    }

    fn edges(&self) -> f64 {
        (self.batch * self.points * self.k) as f64
    }
}

/// Scale, shift and slope of what follows the product.
#[derive(Clone, Copy, Debug)]
pub struct LeakyNorm<'a> {
    /// Scale per channel.
    pub gamma: &'a [f32],
    /// Shift per channel.
    pub beta: &'a [f32],
    /// Added to the variance.
    pub epsilon: f32,
    /// Slope of the activation below zero, above 0.
    pub slope: f32,
}

/// What the forward pass of an edge convolution leaves.
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

/// `y_i = max over j of leaky(gamma (a_j + b_i - mean) / sqrt(variance + epsilon) + beta)`.
///
/// `ab` is `[batch, points, 2 channels]`, a before b; `neighbours` `[batch, points, k]` as [`nearest`] finds them. Without
/// `statistics` mean and variance are those of all edges.
///
/// # Panics
/// If the lengths do not fit the shape. A neighbour that is no point of its cloud is caught too.
pub fn edge_pool(
    ab: &[f32],
    neighbours: &[u32],
    shape: EdgeShape,
    statistics: Option<(&[f32], &[f32])>,
    norm: LeakyNorm<'_>,
) -> EdgePooled {
    shape.check(ab.len(), neighbours.len());
    let EdgeShape {
        batch,
        points,
        k,
        channels,
    } = shape;
    let isa = Isa::current();
    let size = points * channels;
    let given = statistics.is_some();
    let mean: Vec<f32> = match statistics {
        Some((mean, _)) => mean.to_vec(),
        None => edge_mean(ab, neighbours, shape, isa),
    };
    let signs: Vec<f32> = norm
        .gamma
        .iter()
        .map(|&g| if g < 0.0 { -1.0 } else { 1.0 })
        .collect();
    let mut winners = vec![0_u8; batch * size];
    let mut squares = vec![vec![0.0_f64; channels]; batch];
    let mut sums = Vec::new();
    // SAFETY: each task writes its cloud of `size` values, all of them; so does the outer call to the sums, if there are any.
    let mut y = unsafe {
        filled(batch * size, |y| {
            let mut run = |sums: Option<Out>| {
                winners
                    .par_chunks_exact_mut(size)
                    .zip(&mut squares)
                    .enumerate()
                    .for_each(|(cloud, (winners, squares))| {
                        let y = std::slice::from_raw_parts_mut(y.at(cloud * size), size);
                        let sums = sums.map(|sums| {
                            std::slice::from_raw_parts_mut(sums.at(cloud * size), size)
                        });
                        let ab = &ab[cloud * 2 * size..][..2 * size];
                        let neighbours = &neighbours[cloud * points * k..][..points * k];
                        wide(isa, || {
                            largest(ab, neighbours, k, &signs, &mean, y, winners, sums, squares);
                        });
                    });
            };
            if given {
                run(None);
            } else {
                sums = filled(batch * size, |sums| run(Some(sums)));
            }
        })
    };
    let variance: Vec<f32> = match statistics {
        Some((_, variance)) => variance.to_vec(),
        None => (0..channels)
            .map(|c| (squares.iter().map(|cloud| cloud[c]).sum::<f64>() / shape.edges()) as f32)
            .collect(),
    };
    let scale: Vec<f32> = (0..channels)
        .map(|c| (f64::from(norm.gamma[c]) * inverse_deviation(variance[c], norm.epsilon)) as f32)
        .collect();
    y.par_chunks_exact_mut(size)
        .enumerate()
        .for_each(|(cloud, y)| {
            let ab = &ab[cloud * 2 * size..][..2 * size];
            wide(isa, || {
                for (y, ab) in y
                    .chunks_exact_mut(channels)
                    .zip(ab.chunks_exact(2 * channels))
                {
                    let b = &ab[channels..];
                    for c in 0..channels {
                        let z = (y[c] + (b[c] - mean[c])) * scale[c] + norm.beta[c];
                        y[c] = if z > 0.0 { z } else { norm.slope * z };
                    }
                }
            });
        });
    EdgePooled {
        y,
        winners,
        sums,
        mean,
        variance,
    }
}

fn inverse_deviation(variance: f32, epsilon: f32) -> f64 {
    1.0 / (f64::from(variance) + f64::from(epsilon)).sqrt()
}

/// How often every point of every cloud is a neighbour.
fn degrees(neighbours: &[u32], points: usize) -> Vec<f32> {
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
            wide(isa, || {
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

/// What the backward pass of an edge convolution reads.
#[derive(Clone, Copy, Debug)]
pub struct EdgeBackward<'a> {
    /// As in [`edge_pool`].
    pub ab: &'a [f32],
    /// As in [`edge_pool`].
    pub neighbours: &'a [u32],
    /// The result of the forward pass, for the sign of the activation's input.
    pub y: &'a [f32],
    /// As in [`EdgePooled`].
    pub winners: &'a [u8],
    /// As in [`EdgePooled`]; empty if the statistics were given.
    pub sums: &'a [f32],
    /// As in [`EdgePooled`].
    pub mean: &'a [f32],
    /// As in [`EdgePooled`].
    pub variance: &'a [f32],
}

/// Gradients of [`edge_pool`].
#[derive(Clone, Debug)]
pub struct EdgeGradients {
    /// `[batch, points, 2 channels]`.
    pub ab: Vec<f32>,
    /// `[channels]`.
    pub gamma: Vec<f32>,
    /// `[channels]`.
    pub beta: Vec<f32>,
}

/// The gradients of [`edge_pool`] from that of its result, `[batch, points, channels]`.
///
/// With g the gradient behind the activation and e' the normalised edge, both at the winning edge of a point, and n edges,
/// `dbeta = sum g`, `dgamma = sum g e'`, and an edge has the gradient
/// `gamma / deviation (g [if it won] - dbeta / n - e' dgamma / n)`; the last two terms vanish where the statistics were given.
///
/// # Panics
/// If the lengths do not fit the shape.
pub fn edge_pool_backward(
    dy: &[f32],
    saved: &EdgeBackward<'_>,
    shape: EdgeShape,
    norm: LeakyNorm<'_>,
) -> EdgeGradients {
    shape.check(saved.ab.len(), saved.neighbours.len());
    let EdgeShape {
        batch,
        points,
        k,
        channels,
    } = shape;
    let size = points * channels;
    assert!(
        [dy.len(), saved.y.len(), saved.winners.len()] == [batch * size; 3],
        "edge convolution, backward: {} gradients for {shape:?}",
        dy.len()
    );
    let isa = Isa::current();
    let inverse: Vec<f32> = saved
        .variance
        .iter()
        .map(|&variance| inverse_deviation(variance, norm.epsilon) as f32)
        .collect();
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
    let total = |which: usize| -> Vec<f64> {
        (0..channels)
            .map(|c| parts.iter().map(|part| part[which][c]).sum())
            .collect()
    };
    let (beta, gamma) = (total(0), total(1));
    let batch_statistics = !saved.sums.is_empty();
    let share = |sum: &[f64]| -> Vec<f32> {
        let edges = if batch_statistics {
            shape.edges()
        } else {
            f64::INFINITY
        };
        sum.iter().map(|&sum| (sum / edges) as f32).collect()
    };
    let (of_beta, of_gamma) = (share(&beta), share(&gamma));
    let scale: Vec<f32> = (0..channels).map(|c| norm.gamma[c] * inverse[c]).collect();
    // SAFETY: each task writes its cloud of `2 size` values, all of them.
    let dab = unsafe {
        filled(2 * batch * size, |out| {
            (0..batch).into_par_iter().for_each(|cloud| {
                let dab = std::slice::from_raw_parts_mut(out.at(cloud * 2 * size), 2 * size);
                dab.fill(0.0);
                let ab = &saved.ab[cloud * 2 * size..][..2 * size];
                let neighbours = &saved.neighbours[cloud * points * k..][..points * k];
                if batch_statistics {
                    let sums = &saved.sums[cloud * size..][..size];
                    wide(isa, || {
                        statistics_gradient(
                            ab,
                            neighbours,
                            sums,
                            k,
                            [saved.mean, &inverse, &of_beta, &of_gamma],
                            dab,
                        );
                    });
                }
                each_winner(saved, dy, cloud, shape, norm.slope, |c, [i, j], g, _| {
                    dab[j * 2 * channels + c] += g;
                    dab[i * 2 * channels + channels + c] += g;
                });
                wide(isa, || {
                    for row in dab.chunks_exact_mut(channels) {
                        for c in 0..channels {
                            row[c] *= scale[c];
                        }
                    }
                });
            });
        })
    };
    let narrow = |sums: Vec<f64>| sums.into_iter().map(|sum| sum as f32).collect();
    EdgeGradients {
        ab: dab,
        gamma: narrow(gamma),
        beta: narrow(beta),
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

/// What pooling over a cloud leaves.
#[derive(Clone, Debug)]
pub struct CloudPooled {
    /// Maximum, then mean over the points: `[batch, 2 channels]`.
    pub y: Vec<f32>,
    /// Which point is the largest, `[batch, channels]`.
    pub winners: Vec<u32>,
}

/// Per channel `z = x scale + shift`, with the norm in both.
fn folded(mean: &[f32], variance: &[f32], norm: LeakyNorm<'_>) -> (Vec<f32>, Vec<f32>) {
    let channels = mean.len();
    let scale = |c: usize| f64::from(norm.gamma[c]) * inverse_deviation(variance[c], norm.epsilon);
    let shift = |c: usize| f64::from(norm.beta[c]) - f64::from(mean[c]) * scale(c);
    (
        (0..channels).map(|c| scale(c) as f32).collect(),
        (0..channels).map(|c| shift(c) as f32).collect(),
    )
}

/// Maximum and mean over the points of `leaky(gamma (x - mean) / sqrt(variance + epsilon) + beta)`; `x` is
/// `[batch, points, channels]`. What is pooled is never stored.
///
/// # Panics
/// If `x` is no whole number of clouds.
pub fn cloud_pool(
    x: &[f32],
    points: usize,
    mean: &[f32],
    variance: &[f32],
    norm: LeakyNorm<'_>,
) -> CloudPooled {
    let channels = mean.len();
    let size = points * channels;
    assert!(
        size > 0 && x.len().is_multiple_of(size),
        "cloud pool: {} values for {points} points",
        x.len()
    );
    let (scale, shift) = folded(mean, variance, norm);
    let isa = Isa::current();
    let batch = x.len() / size;
    let mut y = vec![0.0; batch * 2 * channels];
    let mut winners = vec![0; batch * channels];
    y.par_chunks_exact_mut(2 * channels)
        .zip(winners.par_chunks_exact_mut(channels))
        .zip(x.par_chunks_exact(size))
        .for_each(|((y, winners), x)| {
            wide(isa, || {
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

/// Gradients of [`cloud_pool`].
#[derive(Clone, Debug)]
pub struct CloudGradients {
    /// `[batch, points, channels]`.
    pub x: Vec<f32>,
    /// `[channels]`.
    pub gamma: Vec<f32>,
    /// `[channels]`.
    pub beta: Vec<f32>,
}

/// The gradients of [`cloud_pool`] from that of its result, `[batch, 2 channels]`. With `batch_statistics` mean and variance were
/// those of `x`, and are differentiated through.
///
/// # Panics
/// If the lengths do not fit together.
#[expect(
    clippy::too_many_arguments,
    reason = "they are those of the forward pass and what it left"
)]
pub fn cloud_pool_backward(
    dy: &[f32],
    x: &[f32],
    winners: &[u32],
    points: usize,
    mean: &[f32],
    variance: &[f32],
    norm: LeakyNorm<'_>,
    batch_statistics: bool,
) -> CloudGradients {
    let channels = mean.len();
    let size = points * channels;
    let batch = x.len() / size;
    assert!(
        x.len() == batch * size
            && dy.len() == batch * 2 * channels
            && winners.len() == batch * channels,
        "cloud pool, backward: {} gradients for {} values of {points} points",
        dy.len(),
        x.len()
    );
    let (scale, shift) = folded(mean, variance, norm);
    let isa = Isa::current();
    let inverse: Vec<f32> = variance
        .iter()
        .map(|&variance| inverse_deviation(variance, norm.epsilon) as f32)
        .collect();
    let cloud = |task: usize| {
        let x = &x[task * size..][..size];
        let (of_max, of_mean) = dy[task * 2 * channels..][..2 * channels].split_at(channels);
        (x, of_max, of_mean, &winners[task * channels..][..channels])
    };
    let even = 1.0 / points as f32;
    // Sum over a cloud of the activation's slope, and of slope times normalised value.
    let parts: Vec<[Vec<f64>; 2]> = (0..batch)
        .into_par_iter()
        .map(|task| {
            let (x, of_max, of_mean, winners) = cloud(task);
            let mut sums = [vec![0.0_f64; channels], vec![0.0_f64; channels]];
            wide(isa, || {
                let [slopes, products] = &mut sums;
                // Few rows in `f32` before they are added up in `f64`.
                for rows in x.chunks(32 * channels) {
                    let (mut s, mut p) = (vec![0.0_f32; channels], vec![0.0_f32; channels]);
                    for row in rows.chunks_exact(channels) {
                        for c in 0..channels {
                            let z = row[c] * scale[c] + shift[c];
                            let slope = if z > 0.0 { 1.0 } else { norm.slope };
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
                    let value = x[winners[c] as usize * channels + c];
                    let slope = if value * scale[c] + shift[c] > 0.0 {
                        1.0
                    } else {
                        norm.slope
                    };
                    let g = f64::from(slope * of_max[c]);
                    let share = f64::from(of_mean[c] * even);
                    slopes[c] = slopes[c] * share + g;
                    products[c] =
                        products[c] * share + g * f64::from((value - mean[c]) * inverse[c]);
                }
            });
            sums
        })
        .collect();
    let total = |which: usize| -> Vec<f64> {
        (0..channels)
            .map(|c| parts.iter().map(|part| part[which][c]).sum())
            .collect()
    };
    let (beta, gamma) = (total(0), total(1));
    let share = |sum: &[f64]| -> Vec<f32> {
        let count = if batch_statistics {
            (batch * points) as f64
        } else {
            f64::INFINITY
        };
        sum.iter().map(|&sum| (sum / count) as f32).collect()
    };
    let (of_beta, of_gamma) = (share(&beta), share(&gamma));
    // SAFETY: each task writes its cloud of `size` values, all of them.
    let dx = unsafe {
        filled(batch * size, |out| {
            (0..batch).into_par_iter().for_each(|task| {
                let (x, of_max, of_mean, winners) = cloud(task);
                let dx = std::slice::from_raw_parts_mut(out.at(task * size), size);
                wide(isa, || {
                    for (dx, row) in dx.chunks_exact_mut(channels).zip(x.chunks_exact(channels)) {
                        for c in 0..channels {
                            let z = row[c] * scale[c] + shift[c];
                            let slope = if z > 0.0 { 1.0 } else { norm.slope };
                            let normalised = (row[c] - mean[c]) * inverse[c];
                            let g = slope * (of_mean[c] * even);
                            dx[c] = scale[c] * (g - of_beta[c] - normalised * of_gamma[c]);
                        }
                    }
                    for c in 0..channels {
                        let at = winners[c] as usize * channels + c;
                        let slope = if x[at] * scale[c] + shift[c] > 0.0 {
                            1.0
                        } else {
                            norm.slope
                        };
                        dx[at] += scale[c] * slope * of_max[c];
                    }
                });
            });
        })
    };
    let narrow = |sums: Vec<f64>| sums.into_iter().map(|sum| sum as f32).collect();
    CloudGradients {
        x: dx,
        gamma: narrow(gamma),
        beta: narrow(beta),
    }
}
