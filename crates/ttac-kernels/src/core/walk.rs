//! Walking over a tensor as one flat array, a vector at a time.

use std::ops::Range;

use super::simd::{Isa, Simd};

/// Floats summed in `f32` before they are added up in `f64`: they fit the first-level cache, unless there are so many channels that the adding up
/// would take longer than the sums.
const CHUNK: usize = 8 * 1024;
const CHUNK_ROWS: usize = 64;
/// Floats per task.
const TASK: usize = 16 * CHUNK;

/// How a tensor is cut: whole rows of channels per chunk and per task, and per-channel values repeated.
#[derive(Clone, Copy)]
pub(crate) struct Walk {
    pub(crate) channels: usize,
    /// Common multiple of channels and lanes, of at least eight vectors so that sums kept in memory do not wait for each other.
    pub(crate) period: usize,
    pub(crate) chunk: usize,
    pub(crate) task: usize,
}

impl Walk {
    pub(crate) fn new(channels: usize, isa: Isa) -> Self {
        let lanes = isa.lanes();
        let mut common = channels;
        while !common.is_multiple_of(lanes) {
            common += channels;
        }
        let whole_rows = |floats: usize| (floats / channels).max(1) * channels;
        let chunk = whole_rows(CHUNK).max(CHUNK_ROWS * channels);
        Self {
            channels,
            period: common * (8 * lanes).div_ceil(common),
            chunk,
            task: chunk * (TASK / chunk).max(1),
        }
    }

    /// Repeats a value per channel over one period.
    pub(crate) fn repeat(&self, value: impl Fn(usize) -> f32) -> Vec<f32> {
        let mut all: Vec<f32> = (0..self.channels).map(value).collect();
        all.reserve(self.period - self.channels);
        while all.len() < self.period {
            all.extend_from_within(..self.channels);
        }
        all
    }

    /// Adds a period of partial sums to the channels' totals, in order, and clears it.
    pub(crate) fn fold(&self, partial: &mut [f32], totals: &mut [f64]) {
        for row in partial.chunks_exact_mut(self.channels) {
            for (total, partial) in totals.iter_mut().zip(row) {
                *total += f64::from(*partial);
                *partial = 0.;
            }
        }
    }

    pub(crate) fn tasks(&self, len: usize) -> usize {
        len.div_ceil(self.task)
    }

    /// The floats of a task.
    pub(crate) fn range(&self, task: usize, len: usize) -> Range<usize> {
        task * self.task..((task + 1) * self.task).min(len)
    }
}

/// What is done with every vector of a tensor, and `SUMS` sums over those that are a period apart.
pub(crate) trait EachVector<S: Simd, const SUMS: usize> {
    /// Works on the vector at `at`, of which `n` floats exist if they are fewer than `LANES`; the sums with its share.
    ///
    /// # Safety
    /// `at + min(n, LANES)` is at most the tensor's length, `phase + LANES` at most the period.
    unsafe fn step(&self, sums: [S::V; SUMS], at: usize, phase: usize, n: usize) -> [S::V; SUMS];
}

/// Walks `len` floats and adds to `totals`, each as long as the period. `ABREAST` vectors of the period go side by side: their sums stay in registers, and none waits for another. Every place in the
/// period adds up its vectors in their order, whatever `ABREAST` is.
///
/// # Safety
/// `len` and `period` are those that `work` can do, the latter a multiple of `LANES`, and nobody else touches the totals.
#[inline(always)]
pub(crate) unsafe fn walk<S: Simd, const SUMS: usize, const ABREAST: usize>(
    work: &impl EachVector<S, SUMS>,
    totals: [*mut f32; SUMS],
    len: usize,
    period: usize,
) {
    let whole = len - len % period;
    let mut phase = 0;
    // SAFETY: `at < whole` is followed by the rest of its period; the last loop says how many floats are left.
    unsafe {
        let load = |phase: usize| totals.map(|total| S::load(total.add(phase)));
        let keep = |phase: usize, sums: [S::V; SUMS]| {
            for (total, sum) in totals.iter().zip(sums) {
                S::store(total.add(phase), sum);
            }
        };
        while phase + ABREAST * S::LANES <= period {
            let place = |i: usize| phase + i * S::LANES;
            let mut sums: [_; ABREAST] = std::array::from_fn(|i| load(place(i)));
            let mut start = 0;
            while start < whole {
                for (i, sums) in sums.iter_mut().enumerate() {
                    *sums = work.step(*sums, start + place(i), place(i), S::LANES);
                }
                start += period;
            }
            for (i, sums) in sums.into_iter().enumerate() {
                keep(place(i), sums);
            }
            phase += ABREAST * S::LANES;
        }
        while phase < period {
            let mut sums = load(phase);
            let mut start = 0;
            while start < whole {
                sums = work.step(sums, start + phase, phase, S::LANES);
                start += period;
            }
            keep(phase, sums);
            phase += S::LANES;
        }
        for phase in (0..len - whole).step_by(S::LANES) {
            let left = len - whole - phase;
            keep(phase, work.step(load(phase), whole + phase, phase, left));
        }
    }
}

/// [`walk`] for work with sums: as many abreast as there are registers for.
///
/// # Safety
/// As for [`walk`].
#[inline(always)]
pub(crate) unsafe fn walk_sums<S: Simd, const SUMS: usize>(
    work: &impl EachVector<S, SUMS>,
    totals: [*mut f32; SUMS],
    len: usize,
    period: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if S::SUMS >= 24 {
            walk::<S, SUMS, 8>(work, totals, len, period);
        } else {
            walk::<S, SUMS, 4>(work, totals, len, period);
        }
    }
}
