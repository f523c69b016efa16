//! Batch norm with residual addition and activation in one pass: `y = f(gamma (x - mean) / sqrt(variance + epsilon) + beta + residual)`.

use rayon::prelude::*;

use super::affine::{Normalise, normalise, normalised};
use super::gradient::{Argument, GradientApply, Source, Sums};
use crate::Context;
use crate::activation::kernel::{Activation, with_function};
use crate::core::parallel::{Out, filled};
use crate::core::walk::Walk;

/// The statistics and parameters of a batch norm.
#[derive(Clone, Copy, Debug)]
pub struct NormParams<'a> {
    /// The mean of each channel.
    pub mean: &'a [f32],
    /// The biased variance of each channel.
    pub variance: &'a [f32],
    /// The scale of each channel.
    pub gamma: &'a [f32],
    /// The shift of each channel.
    pub beta: &'a [f32],
    /// A small number that is added to the variance under the square root.
    pub epsilon: f32,
    /// What is applied to the result.
    pub activation: Activation,
}

impl<'a> NormParams<'a> {
    /// Makes the parameters of a norm without an activation, with `[mean, variance]`, `[gamma, beta]` and PyTorch's epsilon of 1e-5.
    pub fn new([mean, variance]: [&'a [f32]; 2], [gamma, beta]: [&'a [f32]; 2]) -> Self {
        Self {
            mean,
            variance,
            gamma,
            beta,
            epsilon: 1e-5,
            activation: Activation::None,
        }
    }

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

    fn check_with(&self, len: usize, residual: Option<&[f32]>) {
        self.check(len);
        if let Some(residual) = residual {
            check_same("residual", residual.len(), len);
        }
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

    /// Returns scale and shift per channel: the norm is `scale x + shift`, then the activation.
    pub fn affine(&self) -> (Vec<f32>, Vec<f32>) {
        let channels = 0..self.channels();
        (
            channels.clone().map(|c| self.scale(c) as f32).collect(),
            channels.map(|c| self.shift(c) as f32).collect(),
        )
    }

    /// The norm in the form that a convolution can apply; scale and shift are those of [`affine`](Self::affine).
    pub fn normalise<'b>(&self, scale: &'b [f32], shift: &'b [f32]) -> Normalise<'b> {
        Normalise {
            scale,
            shift,
            activation: self.activation,
        }
    }
}

pub(super) fn check_rows(len: usize, channels: usize) {
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

/// Normalises into a new buffer.
///
/// # Panics
/// If the lengths do not fit.
pub fn norm_forward(
    context: &Context,
    x: &[f32],
    residual: Option<&[f32]>,
    p: &NormParams,
) -> Vec<f32> {
    p.check_with(x.len(), residual);
    let (scale, shift) = p.affine();
    normalised(context, x, residual, p.normalise(&scale, &shift))
}

/// Normalises `x` itself.
///
/// # Panics
/// If the lengths do not fit.
pub fn norm_forward_in_place(
    context: &Context,
    x: &mut [f32],
    residual: Option<&[f32]>,
    p: &NormParams,
) {
    p.check_with(x.len(), residual);
    let (scale, shift) = p.affine();
    let data = Out(x.as_mut_ptr());
    let norm = p.normalise(&scale, &shift);
    // SAFETY: `x` is borrowed mutably; the length of the residual was checked.
    unsafe { normalise(context, [data, data], x.len(), residual, norm) };
}

/// What the backward pass needs besides the gradient of the result.
#[derive(Clone, Copy, Debug)]
pub struct NormBackward<'a> {
    /// The input of the forward pass.
    pub x: &'a [f32],
    /// The output, if there was a residual and [the activation's slope shows in its result](Activation::slope_shows_in_result); it is then used in place
    /// of the residual. Without a residual the slope comes from `x`, which is read anyway.
    pub y: Option<&'a [f32]>,
    /// The residual, if there was one and the output does not do: the sum is made again for the slope of the activation.
    pub residual: Option<&'a [f32]>,
    /// The parameters of the forward pass.
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

impl<'a> NormBackward<'a> {
    /// Asks for all gradients of a norm with the statistics of its batch and without a residual.
    pub fn new(x: &'a [f32], params: NormParams<'a>) -> Self {
        Self {
            x,
            y: None,
            residual: None,
            params,
            batch_statistics: true,
            want_dx: true,
            other: None,
            want_residual: false,
        }
    }

    fn check(&self, len: usize) {
        self.params.check(len);
        check_same("saved input", self.x.len(), len);
        if let Some(y) = self.y {
            check_same("saved output", y.len(), len);
            let activation = self.params.activation;
            assert!(
                activation.slope_shows_in_result(),
                "saved output of a batch norm: it does not show the slope of {activation:?}, which needs the residual"
            );
        }
        if let Some(residual) = self.residual {
            check_same("saved residual", residual.len(), len);
        }
        if let Some(other) = self.other {
            check_same("other gradient", other.len(), len);
        }
    }
}

/// The gradients of a batch norm; that of its input overwrites `dy`.
#[derive(Clone, Debug)]
pub struct NormGradients {
    /// The gradient of the scale.
    pub gamma: Vec<f32>,
    /// The gradient of the shift.
    pub beta: Vec<f32>,
    /// The gradient of the residual, if it is wanted.
    pub residual: Option<Vec<f32>>,
}

/// Computes the gradients of a batch norm with its residual addition and activation. `dy` becomes `dx` if that is wanted.
///
/// With `g` the gradient before the activation, `z = (x - mean) / deviation` and averages over all rows,
/// `dgamma = sum g z`, `dbeta = sum g`, `dx = gamma / deviation (g - average g - z average(g z))`; with constant statistics the averages are absent.
///
/// # Panics
/// If the lengths do not fit.
pub fn norm_backward(context: &Context, dy: &mut [f32], saved: &NormBackward) -> NormGradients {
    let p = &saved.params;
    saved.check(dy.len());
    let isa = context.isa();
    let walk = Walk::new(p.channels(), isa);
    let scales = walk.repeat(|c| p.scale(c) as f32);
    let forward_shifts = walk.repeat(|c| p.shift(c) as f32);
    let argument = match saved.y {
        _ if p.activation == Activation::None => Argument::None,
        Some(y) => Argument::Output(y),
        None => Argument::Input {
            scale: &scales,
            shift: &forward_shifts,
            residual: saved.residual,
        },
    };
    let means = walk.repeat(|c| p.mean[c]);
    let source = Source {
        dy,
        x: saved.x,
        argument,
        mean: &means,
    };
    let sums = Sums::of_all(source, p.activation, &walk, isa);

    let rows = (dy.len() / p.channels()).max(1) as f64;
    let slopes = walk.repeat(|c| {
        (-p.scale(c) * p.inverse_deviation(c).powi(2) * sums.products[c] / rows) as f32
    });
    let shifts = walk.repeat(|c| (-p.scale(c) * sums.g[c] / rows) as f32);
    let len = dy.len();
    let dy = Out(dy.as_mut_ptr());
    let apply = |residual: Out| {
        with_function!(p.activation, function => {
            // Backwards, as in the forward pass.
            (0..walk.tasks(len)).into_par_iter().rev().for_each(|task| {
                let range = walk.range(task, len);
                let gradient = GradientApply {
                    function,
                    dy: dy.at(range.start),
                    x: &saved.x[range.clone()],
                    residual: if residual.0.is_null() {
                        residual.0
                    } else {
                        residual.at(range.start)
                    },
                    other: saved.other.map(|other| &other[range.clone()]),
                    argument: argument.part(range),
                    want_dx: saved.want_dx,
                    statistics: saved.batch_statistics,
                    mean: &means,
                    scale: &scales,
                    slope: &slopes,
                    shift: &shifts,
                };
                // SAFETY: `dy` is borrowed mutably and the residual's gradient, if wanted, is as long; no other task has this range. The lengths of
                // the rest were checked, and what is repeated is a period long.
                unsafe { isa.run(gradient) };
            });
        });
    };
    let residual = if saved.want_residual {
        // SAFETY: the tasks cover the whole tensor.
        Some(unsafe { filled(context, len, apply) })
    } else {
        if saved.want_dx {
            apply(Out(std::ptr::null_mut()));
        }
        None
    };
    let products = sums.products.iter().enumerate();
    NormGradients {
        gamma: products
            .map(|(c, s)| (s * p.inverse_deviation(c)) as f32)
            .collect(),
        beta: sums.g.iter().map(|&s| s as f32).collect(),
        residual,
    }
}
