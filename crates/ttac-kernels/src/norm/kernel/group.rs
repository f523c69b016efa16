//! Group norm with activation in one pass: `y = f(gamma (x - mean) / sqrt(variance + epsilon) + beta)`, mean and variance of each image and group.
//!
//! An image is a task, and is in the second-level cache when it is read again. Sums are made per channel as in batch norm and
//! then added up over the channels of a group.

use rayon::prelude::*;

use super::affine::Affine;
use super::gradient::{Argument, GradientApply, Source, Sums};
use super::statistics::Moments;
use crate::Context;
use crate::activation::kernel::{Activation, with_function};
use crate::core::parallel::{Out, filled};
use crate::core::shape::{check_len, elements};
use crate::core::simd::Isa;
use crate::core::walk::Walk;

/// The extent of a group norm: `[batch][pixels][channels]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupShape {
    /// The number of images.
    pub batch: usize,
    /// The number of pixels of an image.
    pub pixels: usize,
    /// The number of channels.
    pub channels: usize,
    /// Number of groups; neighbouring channels share one.
    pub groups: usize,
}

impl GroupShape {
    fn image(&self) -> usize {
        self.pixels * self.channels
    }

    fn per_group(&self) -> usize {
        self.channels / self.groups
    }

    /// Values that share a mean.
    fn count(&self) -> f64 {
        (self.pixels * self.per_group()).max(1) as f64
    }

    fn check(&self, what: &str, found: usize) {
        let (channels, groups) = (self.channels, self.groups);
        assert!(
            groups > 0 && channels.is_multiple_of(groups),
            "channels of a group norm: expected a multiple of {groups} groups, found {channels}"
        );
        let expected = [self.batch, self.pixels, channels];
        check_len(what, found, &expected, self);
    }
}

/// The sizes and parameters of a group norm.
#[derive(Clone, Copy, Debug)]
pub struct GroupParams<'a> {
    /// The sizes of the tensor.
    pub shape: GroupShape,
    /// The scale of each channel.
    pub gamma: &'a [f32],
    /// The shift of each channel.
    pub beta: &'a [f32],
    /// A small number that is added to the variance under the square root.
    pub epsilon: f32,
    /// What is applied to the result.
    pub activation: Activation,
}

impl GroupParams<'_> {
    fn check(&self, len: usize) {
        self.shape.check("input of a group norm", len);
        let (c, found) = (self.shape.channels, [self.gamma.len(), self.beta.len()]);
        assert!(
            found == [c; 2],
            "gamma and beta of a group norm: expected the shape [{c}], found the lengths {found:?}"
        );
    }

    /// Factor and summand of each channel of an image, repeated up to the period.
    fn affine(&self, statistics: &[GroupStatistics], walk: &Walk) -> (Vec<f32>, Vec<f32>) {
        let of = |c: usize| &statistics[c / self.shape.per_group()];
        let scale = |c: usize| f64::from(self.gamma[c]) * of(c).inverse_deviation(self.epsilon);
        let shift = |c: usize| f64::from(self.beta[c]) - f64::from(of(c).mean) * scale(c);
        (
            walk.repeat(|c| scale(c) as f32),
            walk.repeat(|c| shift(c) as f32),
        )
    }

    /// For each group, the average of `gamma` times a sum per channel.
    fn averages(&self, sums: &[f64]) -> Vec<f64> {
        let (per_group, count) = (self.shape.per_group(), self.shape.count());
        let terms = sums
            .chunks_exact(per_group)
            .zip(self.gamma.chunks_exact(per_group));
        terms
            .map(|(sums, gamma)| {
                let products = sums.iter().zip(gamma).map(|(s, g)| s * f64::from(*g));
                products.sum::<f64>() / count
            })
            .collect()
    }
}

/// Mean and biased variance of one group of one image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupStatistics {
    /// The mean of the group's values.
    pub mean: f32,
    /// The biased variance of the group's values.
    pub variance: f32,
}

impl GroupStatistics {
    fn inverse_deviation(self, epsilon: f32) -> f64 {
        1. / (f64::from(self.variance) + f64::from(epsilon)).sqrt()
    }

    /// Computes the statistics of every group of an image.
    fn of(x: &[f32], shape: &GroupShape, walk: &Walk, isa: Isa) -> Vec<Self> {
        let moments = Moments::of(x, walk, isa);
        let per_group = shape.per_group();
        (0..shape.groups)
            .map(|group| {
                let channels = group * per_group..(group + 1) * per_group;
                let (means, squares) =
                    (&moments.mean[channels.clone()], &moments.squares[channels]);
                let mean = means.iter().sum::<f64>() / per_group as f64;
                // Within the channels, and of the channels' means around that of the group.
                let squares: f64 = squares.iter().sum::<f64>()
                    + moments.count * means.iter().map(|m| (m - mean).powi(2)).sum::<f64>();
                Self {
                    mean: mean as f32,
                    variance: (squares.max(0.) / shape.count()) as f32,
                }
            })
            .collect()
    }
}

/// Normalises from `x` to `y` and returns the statistics, image by image.
///
/// # Safety
/// Both are valid for the shape's floats; they may be the same. Nobody else uses `y`.
unsafe fn normalise(context: &Context, [x, y]: [Out; 2], p: &GroupParams) -> Vec<GroupStatistics> {
    let isa = context.isa();
    let (shape, walk) = (&p.shape, Walk::new(p.shape.channels, isa));
    let image = shape.image();
    let parts: Vec<Vec<GroupStatistics>> = (0..shape.batch)
        .into_par_iter()
        .map(|n| {
            // SAFETY: the caller's promise; nobody writes to this image before the statistics are known.
            let values = unsafe { std::slice::from_raw_parts(x.at(n * image), image) };
            let statistics = GroupStatistics::of(values, shape, &walk, isa);
            let (scale, shift) = p.affine(&statistics, &walk);
            with_function!(p.activation, function => {
                let affine = Affine {
                    x: x.at(n * image),
                    y: y.at(n * image),
                    len: image,
                    residual: None,
                    scale: &scale,
                    shift: &shift,
                    function,
                };
                // SAFETY: the caller's promise, for this task's image, which no other task has; scale and shift are a period long.
                unsafe { isa.run(affine) };
            });
            statistics
        })
        .collect();
    parts.concat()
}

/// Normalises into a new buffer, and returns the statistics too, `[batch][groups]`.
///
/// # Panics
/// If the lengths do not fit.
pub fn group_norm_forward(
    context: &Context,
    x: &[f32],
    p: &GroupParams,
) -> (Vec<f32>, Vec<GroupStatistics>) {
    p.check(x.len());
    let mut statistics = Vec::new();
    // SAFETY: the images cover all of `x`, which is only read, and of the new buffer.
    let y = unsafe {
        filled(context, x.len(), |y| {
            statistics = normalise(context, [Out(x.as_ptr().cast_mut()), y], p);
        })
    };
    (y, statistics)
}

/// Normalises `x` itself.
///
/// # Panics
/// If the lengths do not fit.
pub fn group_norm_forward_in_place(context: &Context, x: &mut [f32], p: &GroupParams) {
    p.check(x.len());
    let data = Out(x.as_mut_ptr());
    // SAFETY: `x` is borrowed mutably and as long as the shape says.
    unsafe { normalise(context, [data, data], p) };
}

/// What the backward pass needs besides the gradient of the result.
#[derive(Clone, Copy, Debug)]
pub struct GroupBackward<'a> {
    /// The input of the forward pass.
    pub x: &'a [f32],
    /// The statistics that the forward pass returned.
    pub statistics: &'a [GroupStatistics],
    /// The parameters of the forward pass.
    pub params: GroupParams<'a>,
    /// Whether `dy` is to be overwritten by the gradient of `x`.
    pub want_dx: bool,
    /// A gradient that `x` has from elsewhere; it is added.
    pub other: Option<&'a [f32]>,
}

/// Computes the gradients of scale and shift, `[channels]`; that of the input overwrites `dy` if it is wanted.
///
/// With `g` the gradient before the activation, `z = (x - mean) / deviation` and averages over a group of an image, `dgamma = sum g z`, `dbeta = sum g`,
/// `dx = (gamma g - average(gamma g) - z average(gamma g z)) / deviation`.
///
/// # Panics
/// If the lengths do not fit.
pub fn group_norm_backward(
    context: &Context,
    dy: &mut [f32],
    saved: &GroupBackward,
) -> (Vec<f32>, Vec<f32>) {
    let p = &saved.params;
    let shape = &p.shape;
    p.check(saved.x.len());
    shape.check("output gradient of a group norm", dy.len());
    if let Some(other) = saved.other {
        shape.check("other gradient of a group norm", other.len());
    }
    let what = "statistics of a group norm";
    let (expected, found) = (
        elements(what, &[shape.batch, shape.groups]),
        saved.statistics.len(),
    );
    assert!(
        found == expected,
        "{what}: expected {expected} for {shape:?}, found {found}"
    );
    let walk = Walk::new(shape.channels, context.isa());
    let image = shape.image();
    let parts: Vec<Sums> = if image == 0 {
        let none = |_| Sums::none(shape.channels);
        (0..shape.batch).map(none).collect()
    } else {
        dy.par_chunks_exact_mut(image)
            .enumerate()
            .map(|(n, dy)| saved.image(n, dy, &walk, context.isa()))
            .collect()
    };
    // In the order of the images.
    let total = |sums: fn(&Sums) -> &[f64]| -> Vec<f32> {
        (0..shape.channels)
            .map(|c| parts.iter().map(|part| sums(part)[c]).sum::<f64>() as f32)
            .collect()
    };
    (total(|sums| &sums.products), total(|sums| &sums.g))
}

impl<'a> GroupBackward<'a> {
    /// Asks for all gradients, with the statistics that the forward pass returned.
    pub fn new(x: &'a [f32], statistics: &'a [GroupStatistics], params: GroupParams<'a>) -> Self {
        Self {
            x,
            statistics,
            params,
            want_dx: true,
            other: None,
        }
    }

    /// One image's part of the gradients of scale and shift; `dy` becomes the gradient of the image if that is wanted.
    fn image(&self, n: usize, dy: &mut [f32], walk: &Walk, isa: Isa) -> Sums {
        let p = &self.params;
        let shape = &p.shape;
        let (image, per_group) = (shape.image(), shape.per_group());
        let range = n * image..(n + 1) * image;
        let x = &self.x[range.clone()];
        let statistics = &self.statistics[n * shape.groups..(n + 1) * shape.groups];
        let (scale, forward_shift) = p.affine(statistics, walk);
        let argument = if p.activation == Activation::None {
            Argument::None
        } else {
            Argument::Input {
                scale: &scale,
                shift: &forward_shift,
                residual: None,
            }
        };
        let mean = walk.repeat(|c| statistics[c / per_group].mean);
        let inverse = |group: usize| statistics[group].inverse_deviation(p.epsilon);
        let source = Source {
            dy,
            x,
            argument,
            mean: &mean,
        };
        let mut sums = Sums::of(source, p.activation, walk, isa);
        if self.want_dx {
            let (average_g, average_gd) = (p.averages(&sums.g), p.averages(&sums.products));
            let slope = |group: usize| -inverse(group).powi(3) * average_gd[group];
            let shift = |group: usize| -inverse(group) * average_g[group];
            with_function!(p.activation, function => {
                let gradient = GradientApply {
                    function,
                    dy: dy.as_mut_ptr(),
                    x,
                    argument,
                    residual: std::ptr::null_mut(),
                    want_dx: true,
                    other: self.other.map(|other| &other[range]),
                    statistics: true,
                    mean: &mean,
                    scale: &scale,
                    slope: &walk.repeat(|c| slope(c / per_group) as f32),
                    shift: &walk.repeat(|c| shift(c / per_group) as f32),
                };
                // SAFETY: `dy` is borrowed mutably, and it is as long as `x`, and `other` too; what is repeated is a period long.
                unsafe { isa.run(gradient) };
            });
        }
        for (c, product) in sums.products.iter_mut().enumerate() {
            *product *= inverse(c / per_group);
        }
        sums
    }
}
