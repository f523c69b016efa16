//! Batch norm with residual addition and ReLU in one pass: `y = relu(gamma (x - mean) / sqrt(variance + epsilon) + beta + residual)`.
//!
//! All of it is bound by memory. So a tensor is walked as one flat array, a vector at a time, and what belongs to a channel is repeated up to
//! a *period*, a common multiple of channels and lanes, so that any number of channels runs on full vectors.

use super::simd::{Isa, Kernel, Simd};
use super::{Normalise, Out, filled};
use rayon::prelude::*;

/// Floats summed in `f32` before they are added up in `f64`: they fit the first-level cache, unless there are so many channels that the adding up
/// would take longer than the sums.
const CHUNK: usize = 8 * 1024;
const CHUNK_ROWS: usize = 64;
/// Floats per task.
const TASK: usize = 16 * CHUNK;

/// What the normalisation of each channel needs.
#[derive(Clone, Copy, Debug)]
pub struct NormParams<'a> {
    /// Mean per channel.
    pub mean: &'a [f32],
    /// Biased variance per channel.
    pub variance: &'a [f32],
    /// Scale per channel.
    pub gamma: &'a [f32],
    /// Shift per channel.
    pub beta: &'a [f32],
    /// Added to the variance.
    pub epsilon: f32,
    /// Whether negative results become 0.
    pub relu: bool,
}

impl NormParams<'_> {
    fn channels(&self) -> usize {
        self.mean.len()
    }

    fn check(&self, len: usize) {
        let c = self.channels();
        let found = [self.variance.len(), self.gamma.len(), self.beta.len()];
        assert!(
            found == [c; 3],
            "variance, gamma and beta of a batch norm: expected the shape [{c}] of the mean, found the lengths {found:?}"
        );
        check_rows(len, c);
    }

    /// `1 / sqrt(variance + epsilon)`, in `f64`.
    fn inverse_deviation(&self, channel: usize) -> f64 {
        1. / (f64::from(self.variance[channel]) + f64::from(self.epsilon)).sqrt()
    }

    fn scale(&self, channel: usize) -> f64 {
        f64::from(self.gamma[channel]) * self.inverse_deviation(channel)
    }

    fn shift(&self, channel: usize) -> f64 {
        f64::from(self.beta[channel]) - f64::from(self.mean[channel]) * self.scale(channel)
    }

    /// Scale and shift per channel: the norm is `scale x + shift`, then perhaps ReLU.
    pub fn affine(&self) -> (Vec<f32>, Vec<f32>) {
        let channels = 0..self.channels();
        (
            channels.clone().map(|c| self.scale(c) as f32).collect(),
            channels.map(|c| self.shift(c) as f32).collect(),
        )
    }
}

fn check_rows(len: usize, channels: usize) {
    assert!(
        channels > 0 && len.is_multiple_of(channels),
        "input of a batch norm: expected the shape [.., {channels}], found {len} values"
    );
}

fn check_same(what: &str, found: usize, expected: usize) {
    assert!(
        found == expected,
        "{what} of a batch norm: expected {expected} values as in the input, found {found}"
    );
}

/// How a tensor is cut: whole rows of channels per chunk and per task, and per-channel values repeated.
#[derive(Clone, Copy)]
pub(super) struct Walk {
    channels: usize,
    /// Common multiple of channels and lanes, of at least eight vectors so that sums kept in memory do not wait for each other.
    period: usize,
    chunk: usize,
    task: usize,
}

impl Walk {
    pub(super) fn new(channels: usize, isa: Isa) -> Self {
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

    /// One period of a value per channel.
    pub(super) fn repeat(&self, value: impl Fn(usize) -> f32) -> Vec<f32> {
        let mut all: Vec<f32> = (0..self.channels).map(value).collect();
        all.reserve(self.period - self.channels);
        while all.len() < self.period {
            all.extend_from_within(..self.channels);
        }
        all
    }

    /// Adds a period of partial sums to the channels' totals, in order, and clears it.
    fn fold(&self, partial: &mut [f32], totals: &mut [f64]) {
        for row in partial.chunks_exact_mut(self.channels) {
            for (total, partial) in totals.iter_mut().zip(row) {
                *total += f64::from(*partial);
                *partial = 0.;
            }
        }
    }

    fn tasks(&self, len: usize) -> usize {
        len.div_ceil(self.task)
    }
}

/// What is done with every vector of a tensor, and `SUMS` sums over those that are a period apart.
trait EachVector<S: Simd, const SUMS: usize> {
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
unsafe fn walk<S: Simd, const SUMS: usize, const ABREAST: usize>(
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
unsafe fn walk_sums<S: Simd, const SUMS: usize>(
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

    /// Those of `x`, whole rows. Each chunk is read twice while it is in the cache: for its mean, then for the deviations from it.
    pub(super) fn of(x: &[f32], walk: &Walk, isa: Isa) -> Self {
        let channels = walk.channels;
        let mut all = Self::none(channels);
        let (mut sums, mut squares) = (vec![0.; walk.period], vec![0.; walk.period]);
        for chunk in x.chunks(walk.chunk) {
            isa.run(PlainSums {
                x: chunk,
                sums: &mut sums,
            });
            let mut part = Self::none(channels);
            part.count = (chunk.len() / channels) as f64;
            let count = part.count;
            walk.fold(&mut sums, &mut part.mean);
            let shift = walk.repeat(|c| (part.mean[c] / count) as f32);
            isa.run(DeviationSums {
                x: chunk,
                shift: &shift,
                sums: &mut sums,
                squares: &mut squares,
            });
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
    type Output = ();

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
    type Output = ();

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

/// Mean and biased variance per channel of `x`, `[.., channels]`. Without any rows both are 0.
///
/// Chunks that fit the cache are read twice and merged in `f64`. That is as good as two passes over the data, without cancellation however far the mean
/// lies from zero.
///
/// # Panics
/// If `x` does not consist of whole rows.
pub fn batch_statistics(x: &[f32], channels: usize) -> (Vec<f32>, Vec<f32>) {
    check_rows(x.len(), channels);
    let isa = Isa::current();
    let walk = Walk::new(channels, isa);
    let parts: Vec<Moments> = x
        .par_chunks(walk.task)
        .map(|task| Moments::of(task, &walk, isa))
        .collect();
    let mut total = Moments::none(channels);
    for part in &parts {
        total.merge(part);
    }
    let mean = total.mean.iter().map(|&m| m as f32).collect();
    let variance = total
        .squares
        .iter()
        .map(|&s| (s.max(0.) / total.count.max(1.)) as f32)
        .collect();
    (mean, variance)
}

/// `y = scale x + shift [+ residual]`, then perhaps ReLU; `x` and `y` may be the same.
pub(super) struct Affine<'a> {
    pub(super) x: *const f32,
    pub(super) y: *mut f32,
    pub(super) len: usize,
    pub(super) residual: Option<&'a [f32]>,
    pub(super) scale: &'a [f32],
    pub(super) shift: &'a [f32],
    pub(super) relu: bool,
}

impl Kernel for Affine<'_> {
    type Output = ();

    /// # Safety
    /// `x` and `y` are valid for `len` floats, and so is the residual.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise; scales and shifts are as long as the period.
        unsafe { walk::<S, 0, 8>(&self, [], self.len, self.scale.len()) }
    }
}

impl<S: Simd> EachVector<S, 0> for Affine<'_> {
    #[inline(always)]
    unsafe fn step(&self, none: [S::V; 0], at: usize, phase: usize, n: usize) -> [S::V; 0] {
        // SAFETY: the caller's promise.
        unsafe {
            let x = S::load_partial(self.x.add(at), n);
            let mut y = S::fma(
                S::load(self.scale.as_ptr().add(phase)),
                x,
                S::load(self.shift.as_ptr().add(phase)),
            );
            if let Some(residual) = self.residual {
                y = S::add(y, S::load_partial(residual.as_ptr().add(at), n));
            }
            if self.relu {
                y = S::relu(y);
            }
            S::store_partial(self.y.add(at), y, n);
        }
        none
    }
}

/// Normalises `len` floats from `x` to `y`.
///
/// # Safety
/// Both are valid for `len` floats; they may be the same.
unsafe fn normalise(
    x: Out<f32>,
    y: Out<f32>,
    len: usize,
    residual: Option<&[f32]>,
    norm: Normalise,
) {
    let isa = Isa::current();
    let walk = Walk::new(norm.scale.len(), isa);
    let scales = walk.repeat(|c| norm.scale[c]);
    let shifts = walk.repeat(|c| norm.shift[c]);
    // Backwards: what the statistics read last is still in the cache.
    (0..walk.tasks(len)).into_par_iter().rev().for_each(|task| {
        let range = task * walk.task..((task + 1) * walk.task).min(len);
        isa.run(Affine {
            x: x.at(range.start),
            y: y.at(range.start),
            len: range.len(),
            residual: residual.map(|r| &r[range.clone()]),
            scale: &scales,
            shift: &shifts,
            relu: norm.relu,
        });
    });
}

/// `x` normalised into a new buffer.
pub(super) fn normalised(x: &[f32], residual: Option<&[f32]>, norm: Normalise) -> Vec<f32> {
    let data = Out(x.as_ptr().cast_mut());
    // SAFETY: the tasks cover all of `x`, which is only read, and of the new buffer.
    unsafe { filled(x.len(), |y| normalise(data, y, x.len(), residual, norm)) }
}

/// Normalises into a new buffer.
///
/// # Panics
/// If the lengths do not fit.
pub fn norm_forward(x: &[f32], residual: Option<&[f32]>, p: &NormParams) -> Vec<f32> {
    p.check(x.len());
    if let Some(residual) = residual {
        check_same("residual", residual.len(), x.len());
    }
    let (scale, shift) = p.affine();
    let norm = Normalise {
        scale: &scale,
        shift: &shift,
        relu: p.relu,
    };
    normalised(x, residual, norm)
}

/// Normalises `x` itself.
///
/// # Panics
/// If the lengths do not fit.
pub fn norm_forward_in_place(x: &mut [f32], residual: Option<&[f32]>, p: &NormParams) {
    p.check(x.len());
    if let Some(residual) = residual {
        check_same("residual", residual.len(), x.len());
    }
    let (scale, shift) = p.affine();
    let norm = Normalise {
        scale: &scale,
        shift: &shift,
        relu: p.relu,
    };
    let data = Out(x.as_mut_ptr());
    // SAFETY: `x` is borrowed mutably, and each task has its own part.
    unsafe { normalise(data, data, x.len(), residual, norm) };
}

/// What the backward pass needs from the forward pass.
#[derive(Clone, Copy, Debug)]
pub struct NormBackward<'a> {
    /// The input.
    pub x: &'a [f32],
    /// The output, if there were both a residual and a ReLU: it gives the mask. Without a residual the mask comes from `x`, which is read anyway.
    pub y: Option<&'a [f32]>,
    /// As in the forward pass.
    pub params: NormParams<'a>,
    /// Whether mean and variance were computed from `x` (and so pass gradients on) or were constants.
    pub batch_statistics: bool,
    /// Whether `dy` is to be overwritten by the gradient of `x`.
    pub want_dx: bool,
    /// A gradient that `x` has from elsewhere; it is added.
    pub other: Option<&'a [f32]>,
    /// Whether the gradient of the residual is wanted.
    pub want_residual: bool,
}

/// The gradients of a batch norm; that of its input overwrites `dy`.
#[derive(Clone, Debug)]
pub struct NormGradients {
    /// Of the scale.
    pub gamma: Vec<f32>,
    /// Of the shift.
    pub beta: Vec<f32>,
    /// Of the residual, if wanted.
    pub residual: Option<Vec<f32>>,
}

/// Where the mask of the ReLU comes from.
#[derive(Clone, Copy)]
pub(super) enum Mask<'a> {
    /// There is no ReLU.
    None,
    /// The output.
    Output(&'a [f32]),
    /// The input, normalised again by the operation of the forward pass and so to the same bits: less to read, and less to keep.
    Input { scale: &'a [f32], shift: &'a [f32] },
}

impl Mask<'_> {
    fn part(self, range: std::ops::Range<usize>) -> Self {
        match self {
            Self::Output(y) => Self::Output(&y[range]),
            other => other,
        }
    }

    /// `g` behind the ReLU.
    ///
    /// # Safety
    /// `at + min(n, LANES)` is at most the length of the output, `phase + LANES` that of the period.
    #[inline(always)]
    unsafe fn gate<S: Simd>(&self, at: usize, phase: usize, n: usize, x: S::V, g: S::V) -> S::V {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::None => g,
                Self::Output(y) => S::gate(S::load_partial(y.as_ptr().add(at), n), g),
                Self::Input { scale, shift } => {
                    let scale = S::load(scale.as_ptr().add(phase));
                    let shift = S::load(shift.as_ptr().add(phase));
                    S::gate(S::fma(scale, x, shift), g)
                }
            }
        }
    }
}

/// Adds up `g` and `g (x - mean)` over a chunk, per place in the period; `g` is `dy` behind the ReLU.
struct GradientSums<'a> {
    dy: &'a [f32],
    x: &'a [f32],
    mask: Mask<'a>,
    mean: &'a [f32],
    sums: &'a mut [f32],
    products: &'a mut [f32],
}

impl Kernel for GradientSums<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (len, period) = (self.x.len(), self.mean.len());
        let work = GradientWork {
            dy: self.dy.as_ptr(),
            x: self.x.as_ptr(),
            mask: self.mask,
            mean: self.mean.as_ptr(),
        };
        let totals = [self.sums.as_mut_ptr(), self.products.as_mut_ptr()];
        // SAFETY: the lengths are those of the slices.
        unsafe { walk_sums::<S, 2>(&work, totals, len, period) }
    }
}

struct GradientWork<'a> {
    dy: *const f32,
    x: *const f32,
    mask: Mask<'a>,
    mean: *const f32,
}

impl<S: Simd> EachVector<S, 2> for GradientWork<'_> {
    #[inline(always)]
    unsafe fn step(
        &self,
        [sum, product]: [S::V; 2],
        at: usize,
        phase: usize,
        n: usize,
    ) -> [S::V; 2] {
        // SAFETY: the caller's promise; the means are as long as the period.
        unsafe {
            let x = S::load_partial(self.x.add(at), n);
            let g = S::load_partial(self.dy.add(at), n);
            // Lanes past the end have g = 0.
            let g = self.mask.gate::<S>(at, phase, n, x, g);
            let d = S::sub(x, S::load(self.mean.add(phase)));
            [S::add(sum, g), S::fma(g, d, product)]
        }
    }
}

/// `dx = scale g + slope (x - mean) + shift [+ other]` over `dy`, and `g` to the residual's gradient.
pub(super) struct GradientApply<'a> {
    pub(super) dy: *mut f32,
    /// As long as `dy`.
    pub(super) x: &'a [f32],
    pub(super) mask: Mask<'a>,
    /// Null if not wanted.
    pub(super) residual: *mut f32,
    pub(super) want_dx: bool,
    /// Added to `dx`; as long as `dy`.
    pub(super) other: Option<&'a [f32]>,
    /// False with constant statistics: `slope` and `shift` are 0.
    pub(super) statistics: bool,
    pub(super) mean: &'a [f32],
    pub(super) scale: &'a [f32],
    pub(super) slope: &'a [f32],
    pub(super) shift: &'a [f32],
}

impl Kernel for GradientApply<'_> {
    type Output = ();

    /// # Safety
    /// `dy` and, unless null, `residual` are valid for as many floats as `x` has.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise; means, scales, slopes and shifts are as long as the period.
        unsafe { walk::<S, 0, 8>(&self, [], self.x.len(), self.mean.len()) }
    }
}

impl<S: Simd> EachVector<S, 0> for GradientApply<'_> {
    #[inline(always)]
    unsafe fn step(&self, none: [S::V; 0], at: usize, phase: usize, n: usize) -> [S::V; 0] {
        // With constant statistics the input is looked at for the mask only.
        let read_x = self.statistics || matches!(self.mask, Mask::Input { .. });
        // SAFETY: the caller's promise.
        unsafe {
            let x = if read_x {
                S::load_partial(self.x.as_ptr().add(at), n)
            } else {
                S::splat(0.)
            };
            let g = S::load_partial(self.dy.add(at), n);
            let g = self.mask.gate::<S>(at, phase, n, x, g);
            if !self.residual.is_null() {
                S::store_partial(self.residual.add(at), g, n);
            }
            if self.want_dx {
                let mut dx = S::mul(S::load(self.scale.as_ptr().add(phase)), g);
                if self.statistics {
                    let d = S::sub(x, S::load(self.mean.as_ptr().add(phase)));
                    dx = S::add(
                        dx,
                        S::fma(
                            S::load(self.slope.as_ptr().add(phase)),
                            d,
                            S::load(self.shift.as_ptr().add(phase)),
                        ),
                    );
                }
                if let Some(other) = self.other {
                    dx = S::add(dx, S::load_partial(other.as_ptr().add(at), n));
                }
                S::store_partial(self.dy.add(at), dx, n);
            }
        }
        none
    }
}

/// The gradients of a batch norm with its residual addition and ReLU. `dy` becomes `dx` if that is wanted.
///
/// With `g` the gradient behind the ReLU, `z = (x - mean) / deviation` and averages over all rows,
/// `dgamma = sum g z`, `dbeta = sum g`, `dx = gamma / deviation (g - average g - z average(g z))`; with constant statistics the averages are absent.
///
/// # Panics
/// If the lengths do not fit.
pub fn norm_backward(dy: &mut [f32], saved: &NormBackward) -> NormGradients {
    let p = &saved.params;
    p.check(dy.len());
    check_same("saved input", saved.x.len(), dy.len());
    if let Some(y) = saved.y {
        check_same("saved output", y.len(), dy.len());
    }
    if let Some(other) = saved.other {
        check_same("other gradient", other.len(), dy.len());
    }
    let isa = Isa::current();
    let walk = Walk::new(p.channels(), isa);
    let scales = walk.repeat(|c| p.scale(c) as f32);
    let forward_shifts = walk.repeat(|c| p.shift(c) as f32);
    let mask = match saved.y {
        _ if !p.relu => Mask::None,
        Some(y) => Mask::Output(y),
        None => Mask::Input {
            scale: &scales,
            shift: &forward_shifts,
        },
    };
    let means = walk.repeat(|c| p.mean[c]);
    let sums = gradient_sums(dy, saved.x, mask, &means, &walk, isa);

    let rows = (dy.len() / p.channels()).max(1) as f64;
    let slopes = walk.repeat(|c| {
        (-p.scale(c) * p.inverse_deviation(c).powi(2) * sums.products[c] / rows) as f32
    });
    let shifts = walk.repeat(|c| (-p.scale(c) * sums.g[c] / rows) as f32);
    let len = dy.len();
    let dy = Out(dy.as_mut_ptr());
    let apply = |residual: Out| {
        // Backwards, as in the forward pass.
        (0..walk.tasks(len)).into_par_iter().rev().for_each(|task| {
            let range = task * walk.task..((task + 1) * walk.task).min(len);
            isa.run(GradientApply {
                dy: dy.at(range.start),
                x: &saved.x[range.clone()],
                residual: if residual.0.is_null() {
                    residual.0
                } else {
                    residual.at(range.start)
                },
                other: saved.other.map(|other| &other[range.clone()]),
                mask: mask.part(range),
                want_dx: saved.want_dx,
                statistics: saved.batch_statistics,
                mean: &means,
                scale: &scales,
                slope: &slopes,
                shift: &shifts,
            });
        });
    };
    let residual = if saved.want_residual {
        // SAFETY: the tasks cover the whole tensor.
        Some(unsafe { filled(len, apply) })
    } else {
        if saved.want_dx {
            apply(Out(std::ptr::null_mut()));
        }
        None
    };
    NormGradients {
        gamma: sums
            .products
            .iter()
            .enumerate()
            .map(|(c, s)| (s * p.inverse_deviation(c)) as f32)
            .collect(),
        beta: sums.g.iter().map(|&s| s as f32).collect(),
        residual,
    }
}

/// Per channel, the sums of `g` and of `g (x - mean)`.
pub(super) struct Sums {
    pub(super) g: Vec<f64>,
    pub(super) products: Vec<f64>,
}

impl Sums {
    fn none(channels: usize) -> Self {
        Self {
            g: vec![0.; channels],
            products: vec![0.; channels],
        }
    }

    /// Those of some rows; `mean` is repeated up to the period.
    pub(super) fn of(
        dy: &[f32],
        x: &[f32],
        mask: Mask,
        mean: &[f32],
        walk: &Walk,
        isa: Isa,
    ) -> Self {
        let mut all = Self::none(walk.channels);
        let (mut sums, mut products) = (vec![0.; walk.period], vec![0.; walk.period]);
        for at in (0..dy.len()).step_by(walk.chunk) {
            let range = at..(at + walk.chunk).min(dy.len());
            isa.run(GradientSums {
                dy: &dy[range.clone()],
                x: &x[range.clone()],
                mask: mask.part(range),
                mean,
                sums: &mut sums,
                products: &mut products,
            });
            walk.fold(&mut sums, &mut all.g);
            walk.fold(&mut products, &mut all.products);
        }
        all
    }
}

/// As [`Sums::of`], in parallel.
fn gradient_sums(dy: &[f32], x: &[f32], mask: Mask, mean: &[f32], walk: &Walk, isa: Isa) -> Sums {
    let parts: Vec<_> = (0..walk.tasks(dy.len()))
        .into_par_iter()
        .map(|task| {
            let range = task * walk.task..((task + 1) * walk.task).min(dy.len());
            let (dy, x) = (&dy[range.clone()], &x[range.clone()]);
            Sums::of(dy, x, mask.part(range), mean, walk, isa)
        })
        .collect();
    let mut total = Sums::none(walk.channels);
    for part in &parts {
        for c in 0..walk.channels {
            total.g[c] += part.g[c];
            total.products[c] += part.products[c];
        }
    }
    total
}
