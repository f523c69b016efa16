//! Naive versions of the kernels in `f64`: a few loops each, straight from the definition.

use ttac_kernels::kernels::{ConvShape, Epilogue, GroupParams, NormBackward, PoolShape};

/// Calls `f(input pixel, tap, output pixel)` for every input pixel that lies under a place of a square window. Pixels count from the first of the batch.
fn under_windows(
    batch: usize,
    [height, width]: [usize; 2],
    [out_height, out_width]: [usize; 2],
    [kernel, stride, padding]: [usize; 3],
    mut f: impl FnMut(usize, usize, usize),
) {
    for place in 0..batch * out_height * out_width {
        let (row, j) = (place / out_width, place % out_width);
        let (n, i) = (row / out_height, row % out_height);
        for tap in 0..kernel * kernel {
            let h = (i * stride + tap / kernel).wrapping_sub(padding);
            let w = (j * stride + tap % kernel).wrapping_sub(padding);
            if h < height && w < width {
                f((n * height + h) * width + w, tap, place);
            }
        }
    }
}

/// Calls `f(input index, weight index, output index)` for every product of a convolution.
fn products(s: &ConvShape, mut f: impl FnMut(usize, usize, usize)) {
    let (input, output) = ([s.height, s.width], [s.out_height(), s.out_width()]);
    let window = [s.kernel, s.stride, s.padding];
    under_windows(s.batch, input, output, window, |from, tap, to| {
        for c in 0..s.in_channels {
            for o in 0..s.out_channels {
                let weight = (o * s.in_channels + c) * s.kernel * s.kernel + tap;
                f(from * s.in_channels + c, weight, to * s.out_channels + o);
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
        if e.relu {
            *y = y.max(0.);
        }
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

pub fn norm_backward(dy: &[f32], y: &[f32], saved: &NormBackward) -> Norm {
    let p = &saved.params;
    let c = p.mean.len();
    let rows = (dy.len() / c).max(1) as f64;
    let deviation = |k: usize| (f64::from(p.variance[k % c]) + f64::from(p.epsilon)).sqrt();
    let z = |k: usize| (f64::from(saved.x[k]) - f64::from(p.mean[k % c])) / deviation(k);
    let g: Vec<f64> = (0..dy.len())
        .map(|k| {
            if p.relu && y[k] <= 0. {
                0.
            } else {
                f64::from(dy[k])
            }
        })
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

/// `mask` says where the ReLU lets gradients pass, by the sign of the computed output: at zero a rounding may decide.
pub fn group_norm(x: &[f32], dy: &[f32], mask: &[f32], p: &GroupParams) -> GroupNorm {
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
        if p.relu { y.max(0.) } else { y }
    };
    let g = |k: usize| {
        if p.relu && mask[k] <= 0. {
            0.
        } else {
            f64::from(dy[k])
        }
    };
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
    let window = [s.kernel, s.stride, s.padding];
    under_windows(s.batch, input, output, window, |from, _, to| {
        for c in 0..s.channels {
            let pixel = from % (s.height * s.width);
            f(from * s.channels + c, to * s.channels + c, pixel);
        }
    });
}
