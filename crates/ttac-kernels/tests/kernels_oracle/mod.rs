//! Naive versions of the kernels in `f64`: a few loops each, straight from the definition.

#![allow(dead_code)] // not every test needs all of it

use ttac_kernels::kernels::{ConvShape, Epilogue, GroupParams, NormBackward, PoolShape, Window};

use crate::activation_oracle::{derivative, value};

/// Calls `f(input pixel, tap, output pixel)` for every input pixel that lies under a place of a window. Pixels count from the first of the batch.
fn under_windows(
    batch: usize,
    [height, width]: [usize; 2],
    [out_height, out_width]: [usize; 2],
    window: &Window,
    mut f: impl FnMut(usize, usize, usize),
) {
    for place in 0..batch * out_height * out_width {
        let (row, j) = (place / out_width, place % out_width);
        let (n, i) = (row / out_height, row % out_height);
        let [kernel_height, kernel_width] = window.kernel;
        for tap in 0..kernel_height * kernel_width {
            let at = |axis: usize, place: usize, tap: usize| {
                (place * window.stride[axis] + tap * window.dilation[axis])
                    .wrapping_sub(window.padding[axis][0])
            };
            let (h, w) = (at(0, i, tap / kernel_width), at(1, j, tap % kernel_width));
            if h < height && w < width {
                f((n * height + h) * width + w, tap, place);
            }
        }
    }
}

/// Calls `f(input index, weight index, output index)` for every product of a convolution.
fn products(s: &ConvShape, mut f: impl FnMut(usize, usize, usize)) {
    let (input, output) = ([s.height, s.width], [s.out_height(), s.out_width()]);
    let (inputs, outputs) = (s.in_channels / s.groups, s.out_channels / s.groups);
    let taps = s.window.kernel[0] * s.window.kernel[1];
    under_windows(s.batch, input, output, &s.window, |from, tap, to| {
        for o in 0..s.out_channels {
            for c in 0..inputs {
                let channel = o / outputs * inputs + c;
                let weight = (o * inputs + c) * taps + tap;
                f(
                    from * s.in_channels + channel,
                    weight,
                    to * s.out_channels + o,
                );
            }
        }
    });
}

pub fn conv_forward(x: &[f32], w: &[f32], s: &ConvShape, e: &Epilogue) -> Vec<f64> {
    let mut y = vec![0.; s.out_len()];
    products(s, |i, k, o| y[o] += f64::from(x[i]) * f64::from(w[k]));
    for (k, y) in y.iter_mut().enumerate() {
        *y += e.bias.map_or(0., |b| f64::from(b[k % s.out_channels]))
            + e.residual.map_or(0., |r| f64::from(r[k]));
        *y = value(e.activation, *y);
    }
    y
}

pub fn conv_input_gradient(dy: &[f32], w: &[f32], s: &ConvShape) -> Vec<f64> {
    let mut dx = vec![0.; s.in_len()];
    products(s, |i, k, o| dx[i] += f64::from(dy[o]) * f64::from(w[k]));
    dx
}

pub fn conv_weight_gradient(x: &[f32], dy: &[f32], s: &ConvShape) -> Vec<f64> {
    let mut dw = vec![0.; s.weight_len()];
    products(s, |i, k, o| dw[k] += f64::from(x[i]) * f64::from(dy[o]));
    dw
}

pub fn batch_statistics(x: &[f32], channels: usize) -> (Vec<f64>, Vec<f64>) {
    let rows = (x.len() / channels).max(1) as f64;
    let average = |f: &dyn Fn(usize, f64) -> f64| -> Vec<f64> {
        let mut sums = vec![0.; channels];
        for (k, &x) in x.iter().enumerate() {
            sums[k % channels] += f(k % channels, f64::from(x)) / rows;
        }
        sums
    };
    let mean = average(&|_, x| x);
    let variance = average(&|c, x| (x - mean[c]).powi(2));
    (mean, variance)
}

pub struct Norm {
    pub dx: Vec<f64>,
    pub gamma: Vec<f64>,
    pub beta: Vec<f64>,
    pub residual: Vec<f64>,
}

/// `argument` is what the activation was applied to, as computed: next to a kink a rounding decides.
pub fn norm_backward(dy: &[f32], argument: &[f32], saved: &NormBackward) -> Norm {
    let p = &saved.params;
    let c = p.mean.len();
    let rows = (dy.len() / c).max(1) as f64;
    let deviation = |k: usize| (f64::from(p.variance[k % c]) + f64::from(p.epsilon)).sqrt();
    let z = |k: usize| (f64::from(saved.x[k]) - f64::from(p.mean[k % c])) / deviation(k);
    let g: Vec<f64> = (0..dy.len())
        .map(|k| f64::from(dy[k]) * derivative(p.activation, f64::from(argument[k])))
        .collect();
    let (mut gamma, mut beta) = (vec![0.; c], vec![0.; c]);
    for (k, g) in g.iter().enumerate() {
        gamma[k % c] += g * z(k);
        beta[k % c] += g;
    }
    let dx = g
        .iter()
        .enumerate()
        .map(|(k, g)| {
            let through = if saved.batch_statistics {
                (beta[k % c] + z(k) * gamma[k % c]) / rows
            } else {
                0.
            };
            f64::from(p.gamma[k % c]) / deviation(k) * (g - through)
        })
        .collect();
    Norm {
        dx,
        gamma,
        beta,
        residual: g,
    }
}

/// A group norm: its result, and the gradients of `sum(y * dy)`.
pub struct GroupNorm {
    pub y: Vec<f64>,
    pub dx: Vec<f64>,
    pub gamma: Vec<f64>,
    pub beta: Vec<f64>,
}

/// `argument` is what the activation was applied to, as computed: next to a kink a rounding decides.
pub fn group_norm(x: &[f32], dy: &[f32], argument: &[f32], p: &GroupParams) -> GroupNorm {
    let (c, groups) = (p.shape.channels, p.shape.groups);
    let group = |k: usize| k / (p.shape.pixels * c) * groups + k % c / (c / groups);
    let count = (p.shape.pixels * c / groups) as f64;
    let average = |f: &dyn Fn(usize) -> f64| -> Vec<f64> {
        let mut sums = vec![0.; p.shape.batch * groups];
        for k in 0..x.len() {
            sums[group(k)] += f(k) / count;
        }
        sums
    };
    let mean = average(&|k| f64::from(x[k]));
    let variance = average(&|k| (f64::from(x[k]) - mean[group(k)]).powi(2));
    let deviation = |k: usize| (variance[group(k)] + f64::from(p.epsilon)).sqrt();
    let z = |k: usize| (f64::from(x[k]) - mean[group(k)]) / deviation(k);
    let scale = |k: usize| f64::from(p.gamma[k % c]);
    let y = |k: usize| {
        let y = z(k) * scale(k) + f64::from(p.beta[k % c]);
        value(p.activation, y)
    };
    let g = |k: usize| f64::from(dy[k]) * derivative(p.activation, f64::from(argument[k]));
    let (mut gamma, mut beta) = (vec![0.; c], vec![0.; c]);
    for k in 0..x.len() {
        gamma[k % c] += g(k) * z(k);
        beta[k % c] += g(k);
    }
    let average_g = average(&|k| scale(k) * g(k));
    let average_gz = average(&|k| scale(k) * g(k) * z(k));
    let dx =
        |k| (scale(k) * g(k) - average_g[group(k)] - z(k) * average_gz[group(k)]) / deviation(k);
    GroupNorm {
        y: (0..x.len()).map(y).collect(),
        dx: (0..x.len()).map(dx).collect(),
        gamma,
        beta,
    }
}

/// Calls `f(input index, output index, pixel)` for every input under every window; the pixel is counted inside its image.
pub fn windows(s: &PoolShape, mut f: impl FnMut(usize, usize, usize)) {
    let (input, output) = ([s.height, s.width], [s.out_height(), s.out_width()]);
    under_windows(s.batch, input, output, &s.window, |from, _, to| {
        for c in 0..s.channels {
            let pixel = from % (s.height * s.width);
            f(from * s.channels + c, to * s.channels + c, pixel);
        }
    });
}
