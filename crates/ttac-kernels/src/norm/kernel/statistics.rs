//! Mean and variance of each channel, of a batch and of every image.

use rayon::prelude::*;

use super::batch::check_rows;
use crate::Context;
use crate::core::shape::check_len;
use crate::core::simd::{Isa, Kernel, Simd};
use crate::core::walk::{EachVector, Walk, walk_sums};

/// Mean and sum of squared deviations per channel, of `count` values each.
pub(super) struct Moments {
    pub(super) count: f64,
    pub(super) mean: Vec<f64>,
    pub(super) squares: Vec<f64>,
}

impl Moments {
    fn none(channels: usize) -> Self {
        Self {
            count: 0.,
            mean: vec![0.; channels],
            squares: vec![0.; channels],
        }
    }

    /// Computes the moments of whole rows. Each chunk is read twice while it is in the cache: for its mean, then for the deviations from it.
    pub(super) fn of(x: &[f32], walk: &Walk, isa: Isa) -> Self {
        let channels = walk.channels;
        let mut all = Self::none(channels);
        let (mut sums, mut squares) = (vec![0.; walk.period], vec![0.; walk.period]);
        for chunk in x.chunks(walk.chunk) {
            let plain = PlainSums {
                x: chunk,
                sums: &mut sums,
            };
            // SAFETY: the sums are a period long, which is whole vectors.
            unsafe { isa.run(plain) };
            let mut part = Self::none(channels);
            part.count = (chunk.len() / channels) as f64;
            let count = part.count;
            walk.fold(&mut sums, &mut part.mean);
            let shift = walk.repeat(|c| (part.mean[c] / count) as f32);
            let deviations = DeviationSums {
                x: chunk,
                shift: &shift,
                sums: &mut sums,
                squares: &mut squares,
            };
            // SAFETY: shifts, sums and squares are a period long, which is whole vectors.
            unsafe { isa.run(deviations) };
            part.mean.fill(0.);
            walk.fold(&mut sums, &mut part.mean);
            walk.fold(&mut squares, &mut part.squares);
            for (c, (mean, square)) in part.mean.iter_mut().zip(&mut part.squares).enumerate() {
                // `mean` is still the sum of the deviations; it would be 0 in exact arithmetic.
                *square -= *mean * *mean / count;
                *mean = f64::from(shift[c]) + *mean / count;
            }
            all.merge(&part);
        }
        all
    }

    /// Computes the moments of whole rows in tasks, which are merged in their order.
    fn of_all(x: &[f32], walk: &Walk, isa: Isa) -> Self {
        let parts: Vec<Self> = x
            .par_chunks(walk.task)
            .map(|task| Self::of(task, walk, isa))
            .collect();
        let mut total = Self::none(walk.channels);
        for part in &parts {
            total.merge(part);
        }
        total
    }

    /// Merges by the rule of Chan, Golub and `LeVeque`.
    fn merge(&mut self, other: &Self) {
        let count = self.count + other.count;
        if count == 0. {
            return;
        }
        let (share, cross) = (other.count / count, self.count * other.count / count);
        for (i, (mean, squares)) in self.mean.iter_mut().zip(&mut self.squares).enumerate() {
            let delta = other.mean[i] - *mean;
            *mean += delta * share;
            *squares += other.squares[i] + delta * delta * cross;
        }
        self.count = count;
    }
}

/// Adds up `x` over a chunk, per place in the period.
struct PlainSums<'a> {
    x: &'a [f32],
    sums: &'a mut [f32],
}

impl Kernel for PlainSums<'_> {
    /// # Safety
    /// There are whole vectors of sums.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (len, period) = (self.x.len(), self.sums.len());
        let work = PlainWork { x: self.x.as_ptr() };
        let totals = [self.sums.as_mut_ptr()];
        // SAFETY: the lengths are those of the slices.
        unsafe { walk_sums::<S, 1>(&work, totals, len, period) }
    }
}

struct PlainWork {
    x: *const f32,
}

impl<S: Simd> EachVector<S, 1> for PlainWork {
    #[inline(always)]
    unsafe fn step(&self, [sum]: [S::V; 1], at: usize, _: usize, n: usize) -> [S::V; 1] {
        // SAFETY: the caller's promise.
        unsafe { [S::add(sum, S::load_partial(self.x.add(at), n))] }
    }
}

/// Adds up `x - shift` and `(x - shift)^2` over a chunk, per place in the period.
struct DeviationSums<'a> {
    x: &'a [f32],
    shift: &'a [f32],
    sums: &'a mut [f32],
    squares: &'a mut [f32],
}

impl Kernel for DeviationSums<'_> {
    /// # Safety
    /// There are whole vectors of shifts, and as many sums and squares.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (len, period) = (self.x.len(), self.shift.len());
        let work = DeviationWork {
            x: self.x.as_ptr(),
            shift: self.shift.as_ptr(),
        };
        let totals = [self.sums.as_mut_ptr(), self.squares.as_mut_ptr()];
        // SAFETY: the lengths are those of the slices.
        unsafe { walk_sums::<S, 2>(&work, totals, len, period) }
    }
}

struct DeviationWork {
    x: *const f32,
    shift: *const f32,
}

impl<S: Simd> EachVector<S, 2> for DeviationWork {
    #[inline(always)]
    unsafe fn step(
        &self,
        [sum, square]: [S::V; 2],
        at: usize,
        phase: usize,
        n: usize,
    ) -> [S::V; 2] {
        // SAFETY: the caller's promise; the shifts are as long as the period.
        unsafe {
            // Lanes past the end would count as `-shift`, if that were not 0 there too.
            let shift = S::load_partial(self.shift.add(phase), n);
            let d = S::sub(S::load_partial(self.x.add(at), n), shift);
            [S::add(sum, d), S::fma(d, d, square)]
        }
    }
}

/// Computes mean and biased variance per channel of `x`, `[.., channels]`. Without any rows both are 0.
///
/// Chunks that fit the cache are read twice and merged in `f64`. That is as good as two passes over the data, without cancellation however far the mean
/// lies from zero.
///
/// # Panics
/// If `x` does not consist of whole rows.
pub fn batch_statistics(context: &Context, x: &[f32], channels: usize) -> (Vec<f32>, Vec<f32>) {
    check_rows(x.len(), channels);
    let isa = context.isa();
    let walk = Walk::new(channels, isa);
    let total = Moments::of_all(x, &walk, isa);
    let mean = total.mean.iter().map(|&m| m as f32).collect();
    let variance = total
        .squares
        .iter()
        .map(|&s| (s.max(0.) / total.count.max(1.)) as f32)
        .collect();
    (mean, variance)
}

/// Computes mean and biased variance of every image's every channel of `x`, `[batch, pixels, channels]`; each is `[batch, channels]`. Without pixels both are 0.
///
/// They are those of [`batch_statistics`] of the image alone, to the bit. What is not finite has a variance of NaN.
///
/// # Panics
/// If the length does not fit.
pub fn image_moments(
    context: &Context,
    x: &[f32],
    [batch, pixels, channels]: [usize; 3],
) -> (Vec<f32>, Vec<f32>) {
    let shape = [batch, pixels, channels];
    check_len("input of image moments", x.len(), &shape, &shape);
    let mut means = vec![0.; batch * channels];
    let mut variances = means.clone();
    if x.is_empty() {
        return (means, variances);
    }
    let isa = context.isa();
    let walk = Walk::new(channels, isa);
    let results = means
        .par_chunks_exact_mut(channels)
        .zip(variances.par_chunks_exact_mut(channels));
    x.par_chunks_exact(pixels * channels)
        .zip(results)
        .for_each(|(image, (means, variances))| {
            // Most images are one task, and stay on this thread; the tasks of large ones are for all threads.
            let moments = Moments::of_all(image, &walk, isa);
            for (mean, exact) in means.iter_mut().zip(&moments.mean) {
                *mean = *exact as f32;
            }
            for (variance, squares) in variances.iter_mut().zip(&moments.squares) {
                // A rounding may leave less than 0; unlike `max`, this keeps NaN.
                *variance = (squares.clamp(0., f64::INFINITY) / moments.count) as f32;
            }
        });
    (means, variances)
}
