//! Layer norm: `y = gamma (x - mean) / sqrt(variance + epsilon) + beta` with the mean and the biased variance of each row.

use rayon::prelude::*;

use crate::Context;
use crate::core::parallel::{Out, filled};
use crate::core::simd::{Kernel, Simd};

/// Rows per task. The sums over a task's rows are made in `f32`, those over the tasks in `f64`.
const TASK: usize = 64;

fn check_rows(what: &str, len: usize, width: usize) {
    assert!(
        width > 0 && len.is_multiple_of(width),
        "{what} of a layer norm: expected the shape [.., {width}], found {len} values"
    );
}

/// Normalises every row. Returns the result, and mean and inverse deviation of each row, `[rows, 2]`.
///
/// # Panics
/// If `x` does not consist of rows as wide as `gamma` and `beta`.
pub fn layer_norm_forward(
    context: &Context,
    x: &[f32],
    gamma: &[f32],
    beta: &[f32],
    epsilon: f32,
) -> (Vec<f32>, Vec<f32>) {
    layer_norm_add_forward(context, x, gamma, beta, epsilon, None)
}

/// Normalises every row like [`layer_norm_forward`], and adds a residual, `[rows, width]`, if there is one, in the same pass.
///
/// # Panics
/// If `x` does not consist of rows as wide as `gamma` and `beta`, or the residual is not as long as `x`.
pub fn layer_norm_add_forward(
    context: &Context,
    x: &[f32],
    gamma: &[f32],
    beta: &[f32],
    epsilon: f32,
    residual: Option<&[f32]>,
) -> (Vec<f32>, Vec<f32>) {
    let width = gamma.len();
    check_rows("input", x.len(), width);
    assert!(
        residual.is_none_or(|residual| residual.len() == x.len()),
        "residual of a layer norm: expected {} values as in the input, found {:?}",
        x.len(),
        residual.map(<[f32]>::len)
    );
    assert!(
        beta.len() == width,
        "shift of a layer norm: expected {width} values as in the scale, found {}",
        beta.len()
    );
    let isa = context.isa();
    let mut statistics = vec![0f32; x.len() / width * 2];
    let write = |out: Out| {
        let tasks = statistics.par_chunks_mut(2 * TASK).enumerate();
        tasks.for_each(|(task, statistics)| {
            let rows = Forward {
                x,
                gamma,
                beta,
                epsilon,
                residual,
                first: task * TASK,
                statistics,
                out,
            };
            // SAFETY: output and residual are as long as the input; scale and shift are equally long; no other task has these rows.
            unsafe { isa.run(rows) };
        });
    };
    // SAFETY: the tasks cover all rows.
    let y = unsafe { filled(context, x.len(), write) };
    (y, statistics)
}

struct Forward<'a> {
    x: &'a [f32],
    gamma: &'a [f32],
    beta: &'a [f32],
    epsilon: f32,
    /// What is added to the result.
    residual: Option<&'a [f32]>,
    /// The first row.
    first: usize,
    /// The statistics of the task's rows.
    statistics: &'a mut [f32],
    out: Out,
}

/// The sum of a vector's lanes.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn across<S: Simd>(v: S::V) -> f64 {
    let mut lanes = [0f32; 16];
    // SAFETY: there is room for `LANES <= 16`.
    unsafe { S::store(lanes.as_mut_ptr(), v) };
    lanes.iter().map(|&lane| f64::from(lane)).sum()
}

impl Kernel for Forward<'_> {
    /// # Safety
    /// The shift is as long as the scale, the residual as the input. The output is valid where the input is, and nobody else uses these rows of it.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let width = self.gamma.len();
        let whole = width - width % S::LANES;
        let count = width as f64;
        for (i, statistics) in self
            .statistics
            .as_chunks_mut::<2>()
            .0
            .iter_mut()
            .enumerate()
        {
            let at = (self.first + i) * width;
            let x = &self.x[at..at + width];
            // SAFETY: whole vectors inside rows of `width`, which the scale and the shift have too.
            unsafe {
                let mut sum = S::splat(0.);
                for j in (0..whole).step_by(S::LANES) {
                    sum = S::add(sum, S::load(x.as_ptr().add(j)));
                }
                let rest: f64 = x[whole..].iter().map(|&x| f64::from(x)).sum();
                let mean = ((across::<S>(sum) + rest) / count) as f32;
                let (mut squares, middle) = (S::splat(0.), S::splat(mean));
                for j in (0..whole).step_by(S::LANES) {
                    let d = S::sub(S::load(x.as_ptr().add(j)), middle);
                    squares = S::fma(d, d, squares);
                }
                let rest = x[whole..].iter().map(|&x| f64::from(x - mean).powi(2));
                let variance = (across::<S>(squares) + rest.sum::<f64>()) / count;
                let inverse = (1. / (variance + f64::from(self.epsilon)).sqrt()) as f32;
                *statistics = [mean, inverse];
                let scale = S::splat(inverse);
                for j in (0..whole).step_by(S::LANES) {
                    let normal = S::mul(S::sub(S::load(x.as_ptr().add(j)), middle), scale);
                    let gamma = S::load(self.gamma.as_ptr().add(j));
                    let y = S::fma(normal, gamma, S::load(self.beta.as_ptr().add(j)));
                    let y = match self.residual {
                        Some(residual) => S::add(y, S::load(residual.as_ptr().add(at + j))),
                        None => y,
                    };
                    S::store(self.out.at(at + j), y);
                }
                for j in whole..width {
                    let y = (x[j] - mean) * inverse * self.gamma[j] + self.beta[j];
                    *self.out.at(at + j) = match self.residual {
                        Some(residual) => y + residual[at + j],
                        None => y,
                    };
                }
            }
        }
    }
}

/// What the backward pass of a layer norm needs.
#[derive(Clone, Copy, Debug)]
pub struct LayerNormBackward<'a> {
    /// The input, `[rows, width]`.
    pub x: &'a [f32],
    /// Mean and inverse deviation of each row, as [`layer_norm_forward`] gave them.
    pub statistics: &'a [f32],
    /// The scale, `[width]`.
    pub gamma: &'a [f32],
    /// Whether the gradient of the input is wanted.
    pub want_dx: bool,
}

impl<'a> LayerNormBackward<'a> {
    /// Asks for all gradients, with the statistics that the forward pass returned.
    pub fn new(x: &'a [f32], statistics: &'a [f32], gamma: &'a [f32]) -> Self {
        Self {
            x,
            statistics,
            gamma,
            want_dx: true,
        }
    }
}

/// The gradients of a layer norm.
#[derive(Clone, Debug)]
pub struct LayerNormGradients {
    /// The gradient of the input, if it is wanted.
    pub dx: Option<Vec<f32>>,
    /// The gradient of the scale.
    pub gamma: Vec<f32>,
    /// The gradient of the shift.
    pub beta: Vec<f32>,
}

/// Computes the gradients, from that of the result.
///
/// # Panics
/// If the lengths do not belong together.
pub fn layer_norm_backward(
    context: &Context,
    dy: &[f32],
    saved: &LayerNormBackward,
) -> LayerNormGradients {
    let width = saved.gamma.len();
    check_rows("input", saved.x.len(), width);
    let rows = saved.x.len() / width;
    let found = [dy.len(), saved.statistics.len()];
    assert!(
        found == [saved.x.len(), 2 * rows],
        "gradient and statistics of a layer norm: expected {} and {} values, found {found:?}",
        saved.x.len(),
        2 * rows
    );
    let isa = context.isa();
    let tasks = rows.div_ceil(TASK);
    // `[tasks][gamma, beta][width]`.
    let mut sums = vec![0f32; tasks * 2 * width];
    let mut run = |out: Option<Out>| {
        let tasks = sums.par_chunks_exact_mut(2 * width).enumerate();
        tasks.for_each(|(task, sums)| {
            let (gamma_sums, beta_sums) = sums.split_at_mut(width);
            let rows = Backward {
                dy,
                saved,
                first: task * TASK,
                last: rows.min((task + 1) * TASK),
                gamma_sums,
                beta_sums,
                out,
            };
            // SAFETY: the sums are as long as the scale; the output, if there is one, is as long as the input; no other task has these rows.
            unsafe { isa.run(rows) };
        });
    };
    let dx = if saved.want_dx {
        // SAFETY: the tasks cover all rows.
        Some(unsafe { filled(context, dy.len(), |out| run(Some(out))) })
    } else {
        run(None);
        None
    };
    let total = |part: usize| {
        let mut totals = vec![0f64; width];
        for task in sums.chunks_exact(2 * width) {
            for (total, &sum) in totals.iter_mut().zip(&task[part * width..]) {
                *total += f64::from(sum);
            }
        }
        totals.into_iter().map(|total| total as f32).collect()
    };
    LayerNormGradients {
        dx,
        gamma: total(0),
        beta: total(1),
    }
}

struct Backward<'a> {
    dy: &'a [f32],
    saved: &'a LayerNormBackward<'a>,
    first: usize,
    last: usize,
    gamma_sums: &'a mut [f32],
    beta_sums: &'a mut [f32],
    /// The gradient of the input; absent if only the sums are wanted.
    out: Option<Out>,
}

impl Kernel for Backward<'_> {
    /// # Safety
    /// The sums are as long as the scale. The output, if there is one, is valid where the input is, and nobody else uses these rows of it.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (gamma, width) = (self.saved.gamma, self.saved.gamma.len());
        let whole = width - width % S::LANES;
        let count = width as f64;
        let (gamma_sums, beta_sums) = (self.gamma_sums.as_mut_ptr(), self.beta_sums.as_mut_ptr());
        for row in self.first..self.last {
            let at = row * width;
            let (x, dy) = (&self.saved.x[at..at + width], &self.dy[at..at + width]);
            let (mean, inverse) = (
                self.saved.statistics[2 * row],
                self.saved.statistics[2 * row + 1],
            );
            // SAFETY: whole vectors inside rows of `width`, which scale and sums have too.
            unsafe {
                let (middle, scale) = (S::splat(mean), S::splat(inverse));
                let (mut plain, mut along) = (S::splat(0.), S::splat(0.));
                for j in (0..whole).step_by(S::LANES) {
                    let normal = S::mul(S::sub(S::load(x.as_ptr().add(j)), middle), scale);
                    let dy = S::load(dy.as_ptr().add(j));
                    let inner = S::mul(dy, S::load(gamma.as_ptr().add(j)));
                    plain = S::add(plain, inner);
                    along = S::fma(inner, normal, along);
                    let sum = gamma_sums.add(j);
                    S::store(sum, S::fma(dy, normal, S::load(sum)));
                    let sum = beta_sums.add(j);
                    S::store(sum, S::add(dy, S::load(sum)));
                }
                let (mut plain, mut along) = (across::<S>(plain), across::<S>(along));
                for j in whole..width {
                    let normal = (x[j] - mean) * inverse;
                    let inner = dy[j] * gamma[j];
                    plain += f64::from(inner);
                    along += f64::from(inner * normal);
                    *gamma_sums.add(j) += dy[j] * normal;
                    *beta_sums.add(j) += dy[j];
                }
                let Some(out) = self.out else { continue };
                let (plain, along) = ((plain / count) as f32, (along / count) as f32);
                let (shift, slope) = (S::splat(plain), S::splat(along));
                for j in (0..whole).step_by(S::LANES) {
                    let normal = S::mul(S::sub(S::load(x.as_ptr().add(j)), middle), scale);
                    let inner = S::mul(S::load(dy.as_ptr().add(j)), S::load(gamma.as_ptr().add(j)));
                    let dx = S::sub(S::sub(inner, shift), S::mul(normal, slope));
                    S::store(out.at(at + j), S::mul(dx, scale));
                }
                for j in whole..width {
                    let normal = (x[j] - mean) * inverse;
                    *out.at(at + j) = (dy[j] * gamma[j] - plain - normal * along) * inverse;
                }
            }
        }
    }
}
