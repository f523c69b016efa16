//! Every kernel on the portable instruction set with shapes of a few values, against plain loops: small enough for Miri and Valgrind, which find accesses that
//! are not allowed. The shapes still reach every branch that moves a pointer: channels that fill no vector, tiles that hang over, rows that are left over.

#![allow(missing_docs)]

mod comparison;
mod kernels_oracle;

use comparison::{error, values};
use kernels_oracle as oracle;
use ttac_kernels::Context;
use ttac_kernels::kernels::*;

/// The bound of F(4x4, 3x3), the coarsest of all.
const TOLERANCE: f64 = 1e-5;

fn portable() -> Context {
    Context::new().with_isa(Isa::PORTABLE)
}

fn within(what: &str, found: &[f32], expected: &[f64]) {
    let error = error(found, expected);
    assert!(error < TOLERANCE, "{what}: error {error:.1e}");
}

/// All three passes with everything before and after them.
fn check_conv(s: &ConvShape, algorithm: Algorithm) {
    let context = &portable();
    assert_eq!(algorithm.resolve(s), algorithm, "the shape is for it");
    let (x, w) = (values(s.in_len(), 1), values(s.weight_len(), 2));
    let (dy, bias) = (values(s.out_len(), 3), values(s.out_channels, 4));
    let epilogue = Epilogue {
        bias: Some(&bias),
        residual: Some(&dy),
        relu: true,
    };
    let found = conv_forward(context, &x, &w, s, algorithm, &epilogue);
    within(
        "forward",
        &found,
        &oracle::conv_forward(&x, &w, s, &epilogue),
    );
    let found = conv_input_gradient(context, &dy, &w, s, algorithm, None);
    within("input", &found, &oracle::conv_input_gradient(&dy, &w, s));
    let found = conv_weight_gradient(context, &x, &dy, s, algorithm);
    within("weights", &found, &oracle::conv_weight_gradient(&x, &dy, s));

    // A norm on the way in, as if its result had been stored.
    let (scale, shift) = (values(s.in_channels, 5), values(s.in_channels, 6));
    let norm = Normalise {
        scale: &scale,
        shift: &shift,
        relu: true,
    };
    let places = x.iter().enumerate().map(|(k, x)| (k % s.in_channels, x));
    let seen: Vec<f32> = places
        .map(|(c, x)| (scale[c] * x + shift[c]).max(0.))
        .collect();
    let input = Input {
        values: &x,
        norm: Some(norm),
    };
    let plain = Epilogue::default();
    let found = conv_forward(context, input, &w, s, algorithm, &plain);
    let expected = oracle::conv_forward(&seen, &w, s, &plain);
    within("normalised", &found, &expected);
    let found = conv_weight_gradient(context, input, &dy, s, algorithm);
    let expected = oracle::conv_weight_gradient(&seen, &dy, s);
    within("weights, normalised", &found, &expected);
}

fn conv([height, width]: [usize; 2], channels: [usize; 2], window: [usize; 3]) -> ConvShape {
    ConvShape::new([1, height, width, channels[0]], channels[1], window)
}

#[test]
fn direct_convolutions() {
    for shape in [
        conv([3, 2], [1, 3], [3, 1, 1]), // a row of the kernel is one load
        conv([2, 3], [5, 6], [1, 1, 0]), // nothing to gather
        conv([3, 4], [5, 9], [3, 2, 1]), // stride, two panels
        conv([2, 2], [4, 4], [1, 2, 0]), // quads, pixels without gradient
    ] {
        check_conv(&shape, Algorithm::Direct);
    }
}

#[test]
fn winograd_convolutions_of_two_by_two_tiles() {
    check_conv(&conv([3, 3], [4, 3], [3, 1, 1]), Algorithm::Winograd2);
    check_conv(&conv([3, 4], [5, 9], [3, 1, 0]), Algorithm::Winograd2);
}

#[test]
fn winograd_convolutions_of_four_by_four_tiles() {
    check_conv(&conv([3, 5], [2, 5], [3, 1, 1]), Algorithm::Winograd4);
}

#[test]
fn batch_norms() {
    let context = &portable();
    let (rows, channels) = (7, 5);
    let (x, residual) = (values(rows * channels, 1), values(rows * channels, 2));
    let (dy, gamma) = (values(rows * channels, 3), values(channels, 4));
    let beta = values(channels, 5);
    let (mean, variance) = batch_statistics(context, &x, channels);
    let (exact_mean, exact_variance) = oracle::batch_statistics(&x, channels);
    within("mean", &mean, &exact_mean);
    within("variance", &variance, &exact_variance);
    let params = NormParams {
        relu: true,
        ..NormParams::new([&mean, &variance], [&gamma, &beta])
    };
    for add in [false, true] {
        let residual = add.then_some(&residual[..]);
        let y = norm_forward(context, &x, residual, &params);
        let mut in_place = x.clone();
        norm_forward_in_place(context, &mut in_place, residual, &params);
        assert_eq!(in_place, y);
        let saved = NormBackward {
            y: add.then_some(&y[..]),
            want_residual: add,
            ..NormBackward::new(&x, params)
        };
        let exact = oracle::norm_backward(&dy, &y, &saved);
        let mut dx = dy.clone();
        let found = norm_backward(context, &mut dx, &saved);
        within("dx", &dx, &exact.dx);
        within("gamma", &found.gamma, &exact.gamma);
        within("beta", &found.beta, &exact.beta);
        if let Some(found) = found.residual {
            within("residual", &found, &exact.residual);
        }
    }
}

#[test]
fn group_norms() {
    let context = &portable();
    let shape = GroupShape {
        batch: 2,
        pixels: 3,
        channels: 6,
        groups: 2,
    };
    let (x, dy) = (values(36, 1), values(36, 2));
    let (gamma, beta) = (values(6, 3), values(6, 4));
    let params = GroupParams {
        shape,
        gamma: &gamma,
        beta: &beta,
        epsilon: 0.01,
        relu: true,
    };
    let (y, statistics) = group_norm_forward(context, &x, &params);
    let exact = oracle::group_norm(&x, &dy, &y, &params);
    within("y", &y, &exact.y);
    let mut in_place = x.clone();
    group_norm_forward_in_place(context, &mut in_place, &params);
    assert_eq!(in_place, y);
    let saved = GroupBackward::new(&x, &statistics, params);
    let mut dx = dy.clone();
    let (dgamma, dbeta) = group_norm_backward(context, &mut dx, &saved);
    within("dx", &dx, &exact.dx);
    within("gamma", &dgamma, &exact.gamma);
    within("beta", &dbeta, &exact.beta);
}

#[test]
fn pools_and_shortcuts() {
    let context = &portable();
    let s = PoolShape::new([2, 3, 4, 3], [2, 2, 1]);
    let out_len = s.batch * s.out_height() * s.out_width() * s.channels;
    let (x, dy) = (values(72, 1), values(out_len, 2));
    let (mut mean, mut dx) = (vec![0.; out_len], vec![0.; 72]);
    oracle::windows(&s, |i, o, _| {
        mean[o] += f64::from(x[i]) / 4.;
        dx[i] += f64::from(dy[o]) / 4.;
    });
    within("mean", &average_pool_forward(context, &x, &s), &mean);
    within("dx", &average_pool_backward(context, &dy, &s), &dx);
    let (y, from) = max_pool_forward(context, &x, &s);
    assert!(y.iter().all(|y| x.contains(y)));
    let dx = max_pool_backward(context, &dy, &from, &s);
    let total = |values: &[f32]| values.iter().map(|v| f64::from(*v)).sum::<f64>();
    assert!(
        (total(&dx) - total(&dy)).abs() < 1e-4,
        "no gradient is lost"
    );
    let pooled = global_average_forward(context, &x, [2, 12, 3]);
    let back = global_average_backward(context, &pooled, [2, 12, 3]);
    assert!((total(&back) - total(&pooled)).abs() < 1e-4);
    let shape = ShortcutShape::new([2, 3, 4, 3], 6, 2);
    let y = shortcut_a_forward(context, &x, &shape);
    let back = shortcut_a_backward(context, &y, &shape);
    assert!(back.iter().zip(&x).all(|(b, x)| *b == 0. || b == x));
}

#[test]
fn clouds_of_points() {
    let context = &portable();
    let shape = EdgeShape {
        batch: 2,
        points: 6,
        k: 2,
        channels: 3,
    };
    let x = values(2 * 6 * 3, 1);
    let neighbours = nearest(context, &x, 6, 3, 2);
    assert!(
        neighbours
            .chunks_exact(2)
            .enumerate()
            .all(|(i, near)| near[0] as usize == i % 6)
    );
    let (ab, dy) = (values(2 * 6 * 6, 2), values(2 * 6 * 3, 3));
    let (gamma, beta) = (values(3, 4), values(3, 5));
    let norm = LeakyNorm {
        gamma: &gamma,
        beta: &beta,
        epsilon: 1e-5,
        slope: 0.2,
    };
    let pooled = edge_pool(context, &ab, &neighbours, shape, None, norm);
    let given = Some((&pooled.mean[..], &pooled.variance[..]));
    let again = edge_pool(context, &ab, &neighbours, shape, given, norm);
    assert_eq!(again.y, pooled.y);
    let saved = EdgeBackward::new(&ab, &neighbours, &pooled);
    let gradients = edge_pool_backward(context, &dy, &saved, shape, norm);
    // A shift of all edges changes nothing: their gradients add up to 0.
    let sum: f32 = gradients.ab.chunks_exact(6).map(|row| row[0]).sum();
    assert!(sum.abs() < 1e-4, "{sum}");
    let (mean, variance) = (&pooled.mean, &pooled.variance);
    let clouds = cloud_pool(context, &x, 6, mean, variance, norm);
    let saved = CloudBackward {
        x: &x,
        points: 6,
        winners: &clouds.winners,
        mean,
        variance,
        batch_statistics: true,
    };
    let gradients = cloud_pool_backward(context, &clouds.y, &saved, norm);
    assert!(gradients.x.iter().all(|g| g.is_finite()));
}

#[test]
fn tokens() {
    let context = &portable();
    let s = AttentionShape {
        batch: 1,
        tokens: 6,
        queries: 3,
        heads: 2,
        head_width: 5,
    };
    let (qkv, dy) = (values(s.in_len(), 1), values(s.out_len(), 2));
    let (y, softmax) = attention_forward(context, &qkv, &s);
    let gradient = attention_backward(context, &dy, &qkv, &softmax, &s);
    // Queries that were not asked for have no gradient.
    assert!(gradient[3 * 3 * 10..][..10].iter().all(|g| *g == 0.));
    let (gamma, beta) = (values(10, 3), values(10, 4));
    let (normed, statistics) = layer_norm_forward(context, &y, &gamma, &beta, 1e-5);
    let saved = LayerNormBackward::new(&y, &statistics, &gamma);
    let gradients = layer_norm_backward(context, &normed, &saved);
    assert_eq!(gradients.dx.unwrap().len(), y.len());
    let shape = LinearShape {
        rows: 3,
        inputs: 10,
        outputs: 6,
    };
    let weight = values(60, 5);
    let z = linear_forward(context, &normed, &weight, &[0.; 6], None, &shape);
    let mut dx = linear_input_gradient(context, &z, &weight, &shape);
    let activated = gelu_backward(context, &normed, &mut dx);
    assert_eq!(activated, gelu_forward(context, &normed));
    let (dw, sums) = linear_weight_gradient(context, &activated, &z, &shape);
    assert_eq!(dw.len(), 60);
    let expected: Vec<f64> = sums.iter().map(|&sum| f64::from(sum)).collect();
    within("bias", &column_sums(context, &z, 6), &expected);
}

#[test]
fn elementwise_work() {
    let context = &portable();
    let (mut x, y) = (values(7, 1), values(7, 2));
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    add_in_place(context, &mut x, &y);
    assert_eq!(x, expected);
    let constants = SgdConstants {
        learning_rate: 0.1,
        momentum: 0.9,
        weight_decay: 1e-4,
    };
    let mut velocity = values(7, 3);
    for direction in [
        Direction::Gradient(&y),
        Direction::Velocity(&y, &mut velocity),
    ] {
        sgd_step(context, &mut x, direction, constants);
    }
    sgd_step(context, &mut x, Direction::First(&mut velocity), constants);
    assert!(multiply_adds(context, 2) > 0.);
    context.clear();
}
