//! Scaling channels: `y[n, r, c] = x[n, r, c] scale[n, c] [+ residual[n, r, c]]`.
//!
//! With the pixels of an image as rows this is the last step of squeeze-and-excitation, with a batch of one it is layer scale.

use std::ops::Range;

use rayon::prelude::*;

use crate::Context;
use crate::core::parallel::{Out, filled};
use crate::core::shape::check_len;
use crate::core::simd::{Isa, Kernel, Simd};
use crate::core::walk::{EachVector, Walk, walk, walk_sums};

/// The sizes of a scaled tensor, `[batch][rows][channels]`; each image has its own factors, `[batch][channels]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleShape {
    /// The number of images.
    pub batch: usize,
    /// The number of rows of an image.
    pub rows: usize,
    /// The number of channels.
    pub channels: usize,
}

impl ScaleShape {
    fn image(&self) -> usize {
        self.rows * self.channels
    }

    fn check(&self, what: &str, found: usize) {
        check_len(what, found, &[self.batch, self.rows, self.channels], self);
    }

    fn check_scale(&self, found: usize) {
        let what = "factors of a scaled tensor";
        check_len(what, found, &[self.batch, self.channels], self);
    }

    /// Cuts every image into tasks, by the shape alone: image and range of the whole tensor.
    fn tasks(&self, walk: &Walk) -> Vec<(usize, Range<usize>)> {
        let image = self.image();
        let parts = |n: usize| {
            (0..walk.tasks(image)).map(move |task| {
                let range = walk.range(task, image);
                (n, n * image + range.start..n * image + range.end)
            })
        };
        (0..self.batch).flat_map(parts).collect()
    }

    /// The factors of an image, repeated up to the period.
    fn factors(&self, scale: &[f32], n: usize, walk: &Walk) -> Vec<f32> {
        walk.repeat(|c| scale[n * self.channels + c])
    }
}

/// Scales into a new buffer.
///
/// # Panics
/// If a slice is not as long as the shape says.
pub fn scale_forward(
    context: &Context,
    x: &[f32],
    scale: &[f32],
    residual: Option<&[f32]>,
    shape: &ScaleShape,
) -> Vec<f32> {
    let data = Out(x.as_ptr().cast_mut());
    shape.check("scaled tensor", x.len());
    // SAFETY: `x` is only read and as long as the shape says, as is the new buffer, which the tasks cover.
    unsafe {
        filled(context, x.len(), |y| {
            forward(context, [data, y], scale, residual, shape);
        })
    }
}

/// Scales `x` itself.
///
/// # Panics
/// If a slice is not as long as the shape says.
pub fn scale_forward_in_place(
    context: &Context,
    x: &mut [f32],
    scale: &[f32],
    residual: Option<&[f32]>,
    shape: &ScaleShape,
) {
    shape.check("scaled tensor", x.len());
    let data = Out(x.as_mut_ptr());
    // SAFETY: `x` is borrowed mutably and as long as the shape says.
    unsafe { forward(context, [data, data], scale, residual, shape) };
}

/// # Safety
/// `x` and `y` are valid for the shape's floats; they may be the same. Nobody else uses `y`.
unsafe fn forward(
    context: &Context,
    [x, y]: [Out; 2],
    scale: &[f32],
    residual: Option<&[f32]>,
    shape: &ScaleShape,
) {
    shape.check_scale(scale.len());
    if let Some(residual) = residual {
        shape.check("residual of a scaled tensor", residual.len());
    }
    if shape.channels == 0 {
        return;
    }
    let isa = context.isa();
    let walk = Walk::new(shape.channels, isa);
    shape.tasks(&walk).into_par_iter().for_each(|(n, range)| {
        let scaled = Scaled {
            x: x.at(range.start),
            y: y.at(range.start),
            len: range.len(),
            scale: &shape.factors(scale, n, &walk),
            residual: residual.map(|residual| &residual[range]),
        };
        // SAFETY: the caller's promise, for this task's range, which no other task has; the factors are a period long.
        unsafe { isa.run(scaled) };
    });
}

struct Scaled<'a> {
    x: *const f32,
    y: *mut f32,
    len: usize,
    scale: &'a [f32],
    residual: Option<&'a [f32]>,
}

impl Kernel for Scaled<'_> {
    /// # Safety
    /// `x` and `y` are valid for `len` floats, and so is the residual; nobody else uses `y`. There are whole vectors of factors.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise; the factors are as long as the period.
        unsafe { walk::<S, 0, 8>(&self, [], self.len, self.scale.len()) }
    }
}

impl<S: Simd> EachVector<S, 0> for Scaled<'_> {
    #[inline(always)]
    unsafe fn step(&self, none: [S::V; 0], at: usize, phase: usize, n: usize) -> [S::V; 0] {
        // SAFETY: the caller's promise.
        unsafe {
            let x = S::load_partial(self.x.add(at), n);
            let scale = S::load(self.scale.as_ptr().add(phase));
            let y = match self.residual {
                Some(residual) => S::fma(scale, x, S::load_partial(residual.as_ptr().add(at), n)),
                None => S::mul(scale, x),
            };
            S::store_partial(self.y.add(at), y, n);
        }
        none
    }
}

/// What the backward pass needs besides the gradient of the result.
#[derive(Clone, Copy, Debug)]
pub struct ScaleBackward<'a> {
    /// The tensor that was scaled; without it the gradient of the factors is not computed.
    pub x: Option<&'a [f32]>,
    /// The factors, `[batch][channels]`; without them that of `x` is not.
    pub scale: Option<&'a [f32]>,
    /// A gradient that `x` has from elsewhere; it is added.
    pub other: Option<&'a [f32]>,
    /// The sizes of the tensor.
    pub shape: ScaleShape,
}

/// The gradients of a scaled tensor. That of a residual is the gradient of the result itself.
#[derive(Clone, Debug)]
pub struct ScaleGradients {
    /// The gradient of the tensor, `dy scale [+ other]`, if there were factors.
    pub x: Option<Vec<f32>>,
    /// The gradient of the factors, the sum over rows of `dy x`, `[batch][channels]`, if there was a tensor.
    pub scale: Option<Vec<f32>>,
}

/// Computes the gradients of a scaled tensor in one pass over `dy`.
///
/// # Panics
/// If a slice is not as long as the shape says.
pub fn scale_backward(context: &Context, dy: &[f32], saved: &ScaleBackward) -> ScaleGradients {
    let shape = &saved.shape;
    shape.check("gradient of a scaled tensor", dy.len());
    for (what, values) in [("scaled tensor", saved.x), ("other gradient", saved.other)] {
        if let Some(values) = values {
            shape.check(what, values.len());
        }
    }
    if let Some(scale) = saved.scale {
        shape.check_scale(scale.len());
    }
    let mut sums = vec![0f64; shape.batch * shape.channels];
    let mut run = |dx: Out| {
        if shape.channels == 0 {
            return;
        }
        let walk = Walk::new(shape.channels, context.isa());
        let tasks = shape.tasks(&walk);
        let parts: Vec<Vec<f64>> = tasks
            .par_iter()
            .map(|(n, range)| saved.part(dy, dx, *n, range.clone(), &walk, context.isa()))
            .collect();
        // In the order of the tasks.
        for ((n, _), part) in tasks.iter().zip(&parts) {
            let totals = &mut sums[n * shape.channels..(n + 1) * shape.channels];
            for (total, sum) in totals.iter_mut().zip(part) {
                *total += sum;
            }
        }
    };
    let x = if saved.scale.is_some() {
        // SAFETY: the tasks cover the whole tensor, and write it as there are factors.
        Some(unsafe { filled(context, dy.len(), &mut run) })
    } else {
        run(Out(std::ptr::null_mut()));
        None
    };
    let scale = saved
        .x
        .map(|_| sums.iter().map(|&sum| sum as f32).collect());
    ScaleGradients { x, scale }
}

impl ScaleBackward<'_> {
    /// One task: writes its part of the gradient to `dx`, unless that is null, and returns its sums for each channel.
    fn part(
        &self,
        dy: &[f32],
        dx: Out,
        n: usize,
        range: Range<usize>,
        walk: &Walk,
        isa: Isa,
    ) -> Vec<f64> {
        let factors = self.scale.map(|scale| self.shape.factors(scale, n, walk));
        let mut totals = vec![0f64; walk.channels];
        let mut sums = vec![0f32; walk.period];
        for start in range.clone().step_by(walk.chunk) {
            let chunk = start..(start + walk.chunk).min(range.end);
            let part = |values: Option<&'_ [f32]>| -> *const f32 {
                values.map_or(std::ptr::null(), |values| values[chunk.clone()].as_ptr())
            };
            let work = Gradients {
                dy: &dy[chunk.clone()],
                x: part(self.x),
                other: part(self.other),
                scale: factors.as_deref(),
                dx: if dx.0.is_null() { dx.0 } else { dx.at(start) },
                sums: &mut sums,
            };
            // SAFETY: all parts are of this chunk, which no other task has; factors and sums are a period long.
            unsafe { isa.run(work) };
            walk.fold(&mut sums, &mut totals);
        }
        totals
    }
}

/// `dx = dy scale [+ other]`, and sums of `dy x` for each place in the period. Null pointers: not there.
struct Gradients<'a> {
    dy: &'a [f32],
    x: *const f32,
    other: *const f32,
    scale: Option<&'a [f32]>,
    dx: *mut f32,
    sums: &'a mut [f32],
}

impl Kernel for Gradients<'_> {
    /// # Safety
    /// `x`, `other` and `dx` are null or valid for as many floats as `dy` has, and nobody else uses `dx`, which is there if the factors are. There are whole
    /// vectors of sums, and as many factors.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (len, period) = (self.dy.len(), self.sums.len());
        let work = GradientWork {
            dy: self.dy.as_ptr(),
            x: self.x,
            other: self.other,
            scale: self.scale.map_or(std::ptr::null(), <[f32]>::as_ptr),
            dx: self.dx,
        };
        // SAFETY: the lengths are those of the slices.
        unsafe { walk_sums::<S, 1>(&work, [self.sums.as_mut_ptr()], len, period) }
    }
}

struct GradientWork {
    dy: *const f32,
    x: *const f32,
    other: *const f32,
    scale: *const f32,
    dx: *mut f32,
}

impl<S: Simd> EachVector<S, 1> for GradientWork {
    #[inline(always)]
    unsafe fn step(&self, [mut sum]: [S::V; 1], at: usize, phase: usize, n: usize) -> [S::V; 1] {
        // SAFETY: the caller's promise; the factors are as long as the period.
        unsafe {
            // Lanes past the end are 0.
            let g = S::load_partial(self.dy.add(at), n);
            if !self.x.is_null() {
                sum = S::fma(g, S::load_partial(self.x.add(at), n), sum);
            }
            if !self.scale.is_null() {
                let mut dx = S::mul(g, S::load(self.scale.add(phase)));
                if !self.other.is_null() {
                    dx = S::add(dx, S::load_partial(self.other.add(at), n));
                }
                S::store_partial(self.dx.add(at), dx, n);
            }
        }
        [sum]
    }
}
