//! Group norm with ReLU in one pass: `y = relu(gamma (x - mean) / sqrt(variance + epsilon) + beta)`, mean and variance of each image and group.
//!
//! An image is a task, and is in the second-level cache when it is read again. Sums are made per channel as in batch norm ([`super::norm`]) and
//! then added up over the channels of a group.

use super::norm::{Affine, GradientApply, Mask, Moments, Sums, Walk};
use super::simd::Isa;
use super::{Out, filled};
use rayon::prelude::*;

/// The extent of a group norm: `[batch][pixels][channels]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupShape {
    /// Number of images.
    pub batch: usize,
    /// Height times width.
    pub pixels: usize,
    /// Number of channels.
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
        let Self {
            batch,
            pixels,
            channels,
            groups,
        } = *self;
        assert!(
            groups > 0 && channels.is_multiple_of(groups),
            "channels of a group norm: expected a multiple of {groups} groups, found {channels}"
        );
        assert!(
            found == batch * pixels * channels,
            "{what} of a group norm: expected the shape [{batch}, {pixels}, {channels}], found {found} values"
        );
    }
}

/// What the normalisation needs besides the input.
#[derive(Clone, Copy, Debug)]
pub struct GroupParams<'a> {
    /// The extent.
    pub shape: GroupShape,
    /// Scale per channel.
    pub gamma: &'a [f32],
    /// Shift per channel.
    pub beta: &'a [f32],
    /// Added to the variance.
    pub epsilon: f32,
    /// Whether negative results become 0.
    pub relu: bool,
}

impl GroupParams<'_> {
    fn check(&self, len: usize) {
        self.shape.check("input", len);
        let (c, found) = (self.shape.channels, [self.gamma.len(), self.beta.len()]);
        assert!(
            found == [c; 2],
            "gamma and beta of a group norm: expected the shape [{c}], found the lengths {found:?}"
        );
    }

    /// Factor and summand of each channel of an image, repeated up to the period.
    fn affine(&self, statistics: &[Statistics], walk: &Walk) -> (Vec<f32>, Vec<f32>) {
        let of = |c: usize| &statistics[c / self.shape.per_group()];
        let scale = |c: usize| f64::from(self.gamma[c]) * of(c).inverse_deviation(self.epsilon);
        let shift = |c: usize| f64::from(self.beta[c]) - f64::from(of(c).mean) * scale(c);
        (
            walk.repeat(|c| scale(c) as f32),
            walk.repeat(|c| shift(c) as f32),
        )
    }
}

/// Mean and biased variance of one group of one image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// Mean.
    pub mean: f32,
    /// Biased variance.
    pub variance: f32,
}

impl Statistics {
    fn inverse_deviation(self, epsilon: f32) -> f64 {
        1. / (f64::from(self.variance) + f64::from(epsilon)).sqrt()
    }

    /// Those of every group of an image.
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
/// Both are valid for the shape's floats; they may be the same.
unsafe fn normalise(x: Out, y: Out, p: &GroupParams) -> Vec<Statistics> {
    let isa = Isa::current();
    let (shape, walk) = (&p.shape, Walk::new(p.shape.channels, isa));
    let image = shape.image();
    let parts: Vec<Vec<Statistics>> = (0..shape.batch)
        .into_par_iter()
        .map(|n| {
            // SAFETY: the caller's promise; nobody writes to this image before the statistics are known.
            let values = unsafe { std::slice::from_raw_parts(x.at(n * image), image) };
            let statistics = Statistics::of(values, shape, &walk, isa);
            let (scale, shift) = p.affine(&statistics, &walk);
            isa.run(Affine {
                x: x.at(n * image),
                y: y.at(n * image),
                len: image,
                residual: None,
                scale: &scale,
                shift: &shift,
                relu: p.relu,
            });
            statistics
        })
        .collect();
    parts.concat()
}

/// Normalises into a new buffer; also the statistics, `[batch][groups]`.
///
/// # Panics
/// If the lengths do not fit.
pub fn group_norm_forward(x: &[f32], p: &GroupParams) -> (Vec<f32>, Vec<Statistics>) {
    p.check(x.len());
    let mut statistics = Vec::new();
    // SAFETY: the images cover all of `x` and of the new buffer.
    let y = unsafe {
        filled(x.len(), |y| {
            statistics = normalise(Out(x.as_ptr().cast_mut()), y, p);
        })
    };
    (y, statistics)
}

/// Normalises `x` itself.
///
/// # Panics
/// If the lengths do not fit.
pub fn group_norm_forward_in_place(x: &mut [f32], p: &GroupParams) {
    p.check(x.len());
    let data = Out(x.as_mut_ptr());
    // SAFETY: `x` is borrowed mutably, and each task has its own image.
    unsafe { normalise(data, data, p) };
}

/// What the backward pass needs from the forward pass.
#[derive(Clone, Copy, Debug)]
pub struct GroupBackward<'a> {
    /// The input.
    pub x: &'a [f32],
    /// As the forward pass returned them.
    pub statistics: &'a [Statistics],
    /// As in the forward pass.
    pub params: GroupParams<'a>,
    /// Whether `dy` is to be overwritten by the gradient of `x`.
    pub want_dx: bool,
    /// A gradient that `x` has from elsewhere; it is added.
    pub other: Option<&'a [f32]>,
}

/// The gradients of scale and shift, `[channels]`; that of the input overwrites `dy` if it is wanted.
///
/// With `g` the gradient behind the ReLU, `z = (x - mean) / deviation` and averages over a group of an image, `dgamma = sum g z`, `dbeta = sum g`,
/// `dx = (gamma g - average(gamma g) - z average(gamma g z)) / deviation`.
///
/// # Panics
/// If the lengths do not fit.
pub fn group_norm_backward(dy: &mut [f32], saved: &GroupBackward) -> (Vec<f32>, Vec<f32>) {
    let GroupBackward {
        x,
        statistics,
        params: p,
        want_dx,
        other,
    } = saved;
    let shape = &p.shape;
    p.check(x.len());
    shape.check("output gradient", dy.len());
    if let Some(other) = other {
        shape.check("other gradient", other.len());
    }
    let (expected, found) = (shape.batch * shape.groups, statistics.len());
    assert!(
        found == expected,
        "statistics of a group norm: expected {expected} for {shape:?}, found {found}"
    );
    let isa = Isa::current();
    let walk = Walk::new(shape.channels, isa);
    let (image, per_group) = (shape.image(), shape.per_group());
    let dy = Out(dy.as_mut_ptr());
    let parts: Vec<Sums> = (0..shape.batch)
        .into_par_iter()
        .map(|n| {
            let x = &x[n * image..(n + 1) * image];
            let statistics = &statistics[n * shape.groups..(n + 1) * shape.groups];
            let (scale, forward_shift) = p.affine(statistics, &walk);
            let mask = if p.relu {
                Mask::Input {
                    scale: &scale,
                    shift: &forward_shift,
                }
            } else {
                Mask::None
            };
            let mean = walk.repeat(|c| statistics[c / per_group].mean);
            // SAFETY: `dy` is borrowed mutably and this is the only task with this image; the slice is gone before it is overwritten below.
            let g = unsafe { std::slice::from_raw_parts(dy.at(n * image), image) };
            let mut sums = Sums::of(g, x, mask, &mean, &walk, isa);
            if *want_dx {
                let inverse = |group: usize| statistics[group].inverse_deviation(p.epsilon);
                // Per group, the average of `gamma times the sum`.
                let averages = |sums: &[f64]| -> Vec<f64> {
                    let terms = sums
                        .chunks_exact(per_group)
                        .zip(p.gamma.chunks_exact(per_group));
                    terms
                        .map(|(sums, gamma)| {
                            let products = sums.iter().zip(gamma).map(|(s, g)| s * f64::from(*g));
                            products.sum::<f64>() / shape.count()
                        })
                        .collect()
                };
                let (average_g, average_gd) = (averages(&sums.g), averages(&sums.products));
                let slope = |group: usize| -inverse(group).powi(3) * average_gd[group];
                let shift = |group: usize| -inverse(group) * average_g[group];
                isa.run(GradientApply {
                    dy: dy.at(n * image),
                    x,
                    mask,
                    residual: std::ptr::null_mut(),
                    want_dx: true,
                    other: other.map(|other| &other[n * image..(n + 1) * image]),
                    statistics: true,
                    mean: &mean,
                    scale: &scale,
                    slope: &walk.repeat(|c| slope(c / per_group) as f32),
                    shift: &walk.repeat(|c| shift(c / per_group) as f32),
                });
            }
            for (c, product) in sums.products.iter_mut().enumerate() {
                *product *= statistics[c / per_group].inverse_deviation(p.epsilon);
            }
            sums
        })
        .collect();
    // In the order of the images.
    let total = |sums: fn(&Sums) -> &[f64]| -> Vec<f32> {
        (0..shape.channels)
            .map(|c| parts.iter().map(|part| sums(part)[c]).sum::<f64>() as f32)
            .collect()
    };
    (total(|sums| &sums.products), total(|sums| &sums.g))
}
