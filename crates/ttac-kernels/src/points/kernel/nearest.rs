//! Nearest neighbours.

use rayon::prelude::*;

use crate::Context;
use crate::core::parallel::Out;
use crate::core::recycle::Scratch;
use crate::core::shape::elements;
use crate::core::simd::{Kernel, Simd};

/// Rows of a cloud whose distances are made together.
const ROWS: usize = 32;

/// Scores that are compared with the worst of the best at once.
const STRIDE: usize = 32;

/// Finds the `k` nearest points of every point by Euclidean distance, itself included, nearest first: `[batch, points, k]`,
/// positions within the cloud. Of two that are equally far the first comes first.
///
/// `x` is `[batch, points, channels]`. Points are compared by `|x_j|^2 / 2 - x_i x_j`, which is half the squared distance but
/// for a term that is the same for all j.
///
/// # Panics
/// If there are fewer than `k` points, or `x` is no whole number of clouds.
pub fn nearest(context: &Context, x: &[f32], points: usize, channels: usize, k: usize) -> Vec<u32> {
    let cloud = elements("cloud of points", &[points, channels]);
    assert!(
        (1..=points).contains(&k) && cloud > 0 && x.len().is_multiple_of(cloud),
        "nearest: {k} neighbours of {points} points with {channels} channels in {} values",
        x.len()
    );
    let isa = context.isa();
    let padded = points.next_multiple_of((4 * isa.lanes()).max(STRIDE));
    let batch = x.len() / cloud;
    // Channels first, points padded to whole tiles and strides; the last row has half the squared lengths.
    let mut planes = Scratch::new(context, &[batch, channels + 1, padded]);
    let plane = (channels + 1) * padded;
    let out = Out(planes.as_mut_ptr());
    x.par_chunks_exact(cloud).enumerate().for_each(|(task, x)| {
        // SAFETY: plane `task` lies within the scratch buffer, and no other task touches it.
        unsafe { fill_plane(out.at(task * plane), x, channels, padded) };
    });
    let mut found = vec![0; elements("neighbours", &[batch, points, k])];
    let blocks = points.div_ceil(ROWS);
    let tasks: Vec<(usize, &mut [u32])> = found
        .chunks_exact_mut(points * k)
        .flat_map(|cloud| cloud.chunks_mut(ROWS * k))
        .enumerate()
        .collect();
    tasks.into_par_iter().for_each(|(task, found)| {
        let (cloud_index, first) = (task / blocks, task % blocks * ROWS);
        let rows = found.len() / k;
        let mut distances = Scratch::new(context, &[ROWS, padded]);
        let scores = distances.as_mut_ptr();
        let distances = Distances {
            x: x[cloud_index * cloud + first * channels..].as_ptr(),
            plane: out.at(cloud_index * plane),
            rows,
            channels,
            padded,
            out: scores,
        };
        // SAFETY: the plane was filled above; the rows are points of the cloud; the scratch buffer has room for `ROWS` rows, of which `rows` are written
        // here and read below.
        let scores = unsafe {
            isa.run(distances);
            std::slice::from_raw_parts(scores, rows * padded)
        };
        isa.vectorise(|| {
            let mut best = vec![0.0; k];
            for (scores, found) in scores.chunks_exact(padded).zip(found.chunks_exact_mut(k)) {
                select(scores, &mut best, found);
            }
        });
    });
    drop(planes); // not before: the tasks read it through `out`
    found
}

/// Writes the points of a cloud channel by channel, and half their squared lengths.
///
/// # Safety
/// `plane` has room for `channels + 1` rows of `padded` floats, and nobody else uses them.
unsafe fn fill_plane(plane: *mut f32, x: &[f32], channels: usize, padded: usize) {
    let points = x.len() / channels;
    // SAFETY: the caller's promise.
    unsafe {
        for c in 0..channels {
            for p in 0..padded {
                let value = if p < points { x[p * channels + c] } else { 0.0 };
                *plane.add(c * padded + p) = value;
            }
        }
        for p in 0..padded {
            // Places behind the last point are infinitely far, so that they are never among the nearest.
            let half = if p < points {
                let squares = x[p * channels..][..channels].iter().map(|v| v * v);
                0.5 * squares.sum::<f32>()
            } else {
                f32::INFINITY
            };
            *plane.add(channels * padded + p) = half;
        }
    }
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
