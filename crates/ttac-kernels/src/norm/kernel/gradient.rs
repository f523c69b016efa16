//! The gradients that batch norm and group norm share.

use std::ops::Range;

use rayon::prelude::*;

use super::affine::walk_long;
use crate::activation::kernel::{Activation, Function, with_function};
use crate::core::simd::{Isa, Kernel, Simd};
use crate::core::walk::{EachVector, Walk, walk, walk_sums};

/// Where the argument of the activation comes from, for its derivative.
#[derive(Clone, Copy)]
pub(super) enum Argument<'a> {
    /// There is no activation, so nobody asks.
    None,
    /// The output does as well, if [the slope shows in it](crate::Activation::slope_shows_in_result).
    Output(&'a [f32]),
    /// The input, normalised again by the operation of the forward pass and so to the same bits, and the residual: less to read, and less to keep.
    Input {
        scale: &'a [f32],
        shift: &'a [f32],
        residual: Option<&'a [f32]>,
    },
}

impl Argument<'_> {
    pub(super) fn part(self, range: Range<usize>) -> Self {
        match self {
            Self::None => self,
            Self::Output(y) => Self::Output(&y[range]),
            Self::Input {
                scale,
                shift,
                residual,
            } => Self::Input {
                scale,
                shift,
                residual: residual.map(|residual| &residual[range]),
            },
        }
    }

    /// The gradient before the activation, of the one behind it.
    ///
    /// # Safety
    /// `at + min(n, LANES)` is at most the length of output and residual, `phase + LANES` that of the period.
    #[inline(always)]
    unsafe fn gradient<S: Simd>(
        &self,
        function: impl Function,
        [at, phase, n]: [usize; 3],
        x: S::V,
        g: S::V,
    ) -> S::V {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::None => g,
                Self::Output(y) => {
                    function.gradient::<S>(S::load_partial(y.as_ptr().add(at), n), g)
                }
                Self::Input {
                    scale,
                    shift,
                    residual,
                } => {
                    let scale = S::load(scale.as_ptr().add(phase));
                    let shift = S::load(shift.as_ptr().add(phase));
                    let mut z = S::fma(scale, x, shift);
                    if let Some(residual) = residual {
                        z = S::add(z, S::load_partial(residual.as_ptr().add(at), n));
                    }
                    function.gradient::<S>(z, g)
                }
            }
        }
    }
}

/// What the sums of a gradient are made of, for some rows.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    /// The gradient of the result.
    pub(super) dy: &'a [f32],
    /// The input, as long as the gradient.
    pub(super) x: &'a [f32],
    pub(super) argument: Argument<'a>,
    /// The mean of each channel, repeated up to the period.
    pub(super) mean: &'a [f32],
}

impl Source<'_> {
    fn part(&self, range: Range<usize>) -> Self {
        Self {
            dy: &self.dy[range.clone()],
            x: &self.x[range.clone()],
            argument: self.argument.part(range),
            mean: self.mean,
        }
    }
}

/// Adds up `g` and `g (x - mean)` over a chunk, per place in the period; `g` is `dy` before the activation.
struct GradientSums<'a, F> {
    function: F,
    source: Source<'a>,
    sums: &'a mut [f32],
    products: &'a mut [f32],
}

impl<F: Function> Kernel for GradientSums<'_, F> {
    /// # Safety
    /// The gradient is as long as `x`, and so are output and residual in the argument. There are whole vectors of means, and as many sums and products.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Source {
            dy,
            x,
            argument,
            mean,
        } = self.source;
        let (len, period) = (x.len(), mean.len());
        let work = GradientWork {
            dy: dy.as_ptr(),
            x: x.as_ptr(),
            argument,
            mean: mean.as_ptr(),
            function: self.function,
        };
        let totals = [self.sums.as_mut_ptr(), self.products.as_mut_ptr()];
        // SAFETY: the lengths are those of the slices.
        unsafe {
            if F::LONG {
                walk::<S, 2, 2>(&work, totals, len, period);
            } else {
                walk_sums::<S, 2>(&work, totals, len, period);
            }
        }
    }
}

struct GradientWork<'a, F> {
    dy: *const f32,
    x: *const f32,
    argument: Argument<'a>,
    mean: *const f32,
    function: F,
}

impl<S: Simd, F: Function> EachVector<S, 2> for GradientWork<'_, F> {
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
            let g = self
                .argument
                .gradient::<S>(self.function, [at, phase, n], x, g);
            let d = S::sub(x, S::load(self.mean.add(phase)));
            [S::add(sum, g), S::fma(g, d, product)]
        }
    }
}

/// `dx = scale g + slope (x - mean) + shift [+ other]` over `dy`, and `g` to the residual's gradient.
pub(super) struct GradientApply<'a, F> {
    pub(super) function: F,
    pub(super) dy: *mut f32,
    /// The input, as long as `dy`.
    pub(super) x: &'a [f32],
    pub(super) argument: Argument<'a>,
    /// The gradient of the residual; null if it is not wanted.
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

impl<F: Function> Kernel for GradientApply<'_, F> {
    /// # Safety
    /// `dy` and, unless null, `residual` are valid for as many floats as `x` has, and nobody else uses them. `other`, and output and residual in the argument, are as long.
    /// There are whole vectors of means, and as many scales, slopes and shifts.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise; means, scales, slopes and shifts are as long as the period.
        unsafe { walk_long::<S, F>(&self, self.x.len(), self.mean.len()) }
    }
}

impl<S: Simd, F: Function> EachVector<S, 0> for GradientApply<'_, F> {
    #[inline(always)]
    unsafe fn step(&self, none: [S::V; 0], at: usize, phase: usize, n: usize) -> [S::V; 0] {
        // With constant statistics the input is looked at for the activation only.
        let read_x = self.statistics || matches!(self.argument, Argument::Input { .. });
        // SAFETY: the caller's promise.
        unsafe {
            let x = if read_x {
                S::load_partial(self.x.as_ptr().add(at), n)
            } else {
                S::splat(0.)
            };
            let g = S::load_partial(self.dy.add(at), n);
            let g = self
                .argument
                .gradient::<S>(self.function, [at, phase, n], x, g);
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

/// Per channel, the sums of `g` and of `g (x - mean)`.
pub(super) struct Sums {
    pub(super) g: Vec<f64>,
    pub(super) products: Vec<f64>,
}

impl Sums {
    pub(super) fn none(channels: usize) -> Self {
        Self {
            g: vec![0.; channels],
            products: vec![0.; channels],
        }
    }

    /// Adds up some rows.
    pub(super) fn of(source: Source, activation: Activation, walk: &Walk, isa: Isa) -> Self {
        let len = source.dy.len();
        assert!(
            source.x.len() == len && source.mean.len() == walk.period,
            "input and gradient are as long as each other, and the means are repeated"
        );
        let mut all = Self::none(walk.channels);
        let (mut sums, mut products) = (vec![0.; walk.period], vec![0.; walk.period]);
        for at in (0..len).step_by(walk.chunk) {
            with_function!(activation, function => {
                let add = GradientSums {
                    function,
                    source: source.part(at..(at + walk.chunk).min(len)),
                    sums: &mut sums,
                    products: &mut products,
                };
                // SAFETY: all parts are of the same range; means, sums and products are a period long, which is whole vectors.
                unsafe { isa.run(add) };
            });
            walk.fold(&mut sums, &mut all.g);
            walk.fold(&mut products, &mut all.products);
        }
        all
    }

    /// Adds up all rows, in parallel.
    pub(super) fn of_all(source: Source, activation: Activation, walk: &Walk, isa: Isa) -> Self {
        let len = source.dy.len();
        let parts: Vec<_> = (0..walk.tasks(len))
            .into_par_iter()
            .map(|task| Self::of(source.part(walk.range(task, len)), activation, walk, isa))
            .collect();
        let mut total = Self::none(walk.channels);
        for part in &parts {
            for c in 0..walk.channels {
                total.g[c] += part.g[c];
                total.products[c] += part.products[c];
            }
        }
        total
    }
}
