//! Every kernel on the portable instruction set with shapes of a few values, against plain loops: small enough for Miri and Valgrind, which find accesses that
//! are not allowed. The shapes still reach every branch that moves a pointer: channels that fill no vector, tiles that hang over, rows that are left over.

#![allow(missing_docs)]

mod activation_oracle;
mod attention_oracle;
mod comparison;
mod kernels_oracle;

use attention_oracle::{Case, Exact};
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
        ..Epilogue::default()
    };
    for activation in [Activation::Relu, Activation::HardSwish] {
        let epilogue = Epilogue {
            activation,
            ..epilogue
        };
        let found = conv_forward(context, &x, &w, s, algorithm, &epilogue);
        let expected = oracle::conv_forward(&x, &w, s, &epilogue);
        within("forward", &found, &expected);
    }
    let found = conv_input_gradient(context, &dy, &w, s, algorithm, None);
    within("input", &found, &oracle::conv_input_gradient(&dy, &w, s));
    let found = conv_weight_gradient(context, &x, &dy, s, algorithm);
    within("weights", &found, &oracle::conv_weight_gradient(&x, &dy, s));

    for activation in [Activation::Relu, Activation::Sigmoid] {
        check_normalised(context, s, [&x, &w, &dy], activation, algorithm);
    }
}

/// A norm on the way in, as if its result had been stored.
fn check_normalised(
    context: &Context,
    s: &ConvShape,
    [x, w, dy]: [&[f32]; 3],
    activation: Activation,
    algorithm: Algorithm,
) {
    let (scale, shift) = (values(s.in_channels, 5), values(s.in_channels, 6));
    let norm = Normalise {
        scale: &scale,
        shift: &shift,
        activation,
    };
    let places = x.iter().enumerate().map(|(k, x)| (k % s.in_channels, x));
    let seen: Vec<f32> = places
        .map(|(c, x)| activation.value(scale[c] * x + shift[c]))
        .collect();
    let input = Input {
        values: x,
        norm: Some(norm),
    };
    let plain = Epilogue::default();
    let found = conv_forward(context, input, w, s, algorithm, &plain);
    let expected = oracle::conv_forward(&seen, w, s, &plain);
    within("normalised", &found, &expected);
    let found = conv_weight_gradient(context, input, dy, s, algorithm);
    let expected = oracle::conv_weight_gradient(&seen, dy, s);
    within("weights, normalised", &found, &expected);
}

fn conv(
    [height, width]: [usize; 2],
    channels: [usize; 2],
    [kernel, stride, padding]: [usize; 3],
) -> ConvShape {
    let window = Window::square(kernel, stride, padding);
    ConvShape::new([1, height, width, channels[0]], channels[1], window)
}

#[test]
fn direct_convolutions() {
    for shape in [
        conv([3, 2], [1, 3], [3, 1, 1]), // a row of the kernel is one load
        conv([2, 3], [5, 6], [1, 1, 0]), // nothing to gather
        conv([3, 4], [5, 9], [3, 2, 1]), // stride, two panels
        conv([2, 2], [4, 4], [1, 2, 0]), // quads, pixels without gradient
        conv([2, 3], [2, 2], [5, 1, 2]), // a row of the kernel is several vectors, and hangs over
        conv([4, 4], [1, 3], [4, 4, 0]), // patches side by side
    ] {
        check_conv(&shape, Algorithm::Direct);
    }
    // A window that differs by axis and side, with gaps, on few channels (no row of it is one load) and on more than a vector has.
    let window = Window {
        kernel: [2, 3],
        stride: [2, 1],
        dilation: [1, 2],
        padding: [[1, 0], [0, 2]],
    };
    for channels in [1, 9] {
        let shape = ConvShape::new([1, 4, 4, channels], 3, window);
        check_conv(&shape, Algorithm::Direct);
    }
}

#[test]
fn depthwise_and_grouped_convolutions() {
    let dilated = Window {
        dilation: [1, 2],
        padding: [[1, 0], [2, 1]],
        ..Window::square(2, 1, 0)
    };
    for (size, [groups, inputs, outputs], window) in [
        ([3, 5], [5, 1, 1], Window::square(3, 1, 1)), // a tile that hangs over, lanes that are left over
        ([4, 3], [3, 1, 1], Window::square(3, 2, 1)), // gradients of two kinds of pixels
        ([2, 3], [2, 1, 1], Window::square(1, 2, 0)), // pixels without gradient
        ([3, 3], [2, 1, 1], dilated),
        ([2, 3], [3, 1, 2], Window::square(3, 1, 1)), // two outputs for each input
        ([3, 3], [3, 2, 2], Window::square(3, 1, 1)), // lanes that change places, of which some are left over
        ([2, 3], [2, 4, 4], Window::square(3, 2, 1)),
        ([2, 2], [2, 3, 5], Window::square(1, 1, 0)), // dense groups
    ] {
        let shape = conv(size, [groups * inputs, groups * outputs], [1, 1, 0]);
        let shape = ConvShape {
            groups,
            window,
            ..shape
        };
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
    let plain = NormParams::new([&mean, &variance], [&gamma, &beta]);
    for (activation, add) in [
        (Activation::Relu, false),
        (Activation::Relu6, true),
        (Activation::Silu, true),
        (Activation::Gelu, false),
    ] {
        let params = NormParams {
            activation,
            ..plain
        };
        let residual = add.then_some(&residual[..]);
        let y = norm_forward(context, &x, residual, &params);
        let argument = norm_forward(context, &x, residual, &plain);
        let mut in_place = x.clone();
        norm_forward_in_place(context, &mut in_place, residual, &params);
        assert_eq!(in_place, y);
        let shows = activation.slope_shows_in_result();
        let saved = NormBackward {
            y: (add && shows).then_some(&y[..]),
            residual: residual.filter(|_| !shows),
            want_residual: add,
            ..NormBackward::new(&x, params)
        };
        let exact = oracle::norm_backward(&dy, &argument, &saved);
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
fn moments_of_images() {
    let (pixels, channels) = (7, 5);
    let x = values(2 * pixels * channels, 1);
    let (mean, variance) = image_moments(&portable(), &x, [2, pixels, channels]);
    for (n, image) in x.chunks(pixels * channels).enumerate() {
        let (exact_mean, exact_variance) = oracle::batch_statistics(image, channels);
        within("mean", &mean[n * channels..][..channels], &exact_mean);
        let variance = &variance[n * channels..][..channels];
        within("variance", variance, &exact_variance);
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
        activation: Activation::HardSwish,
    };
    let (y, statistics) = group_norm_forward(context, &x, &params);
    let plain = GroupParams {
        activation: Activation::None,
        ..params
    };
    let (argument, _) = group_norm_forward(context, &x, &plain);
    let exact = oracle::group_norm(&x, &dy, &argument, &params);
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
    let s = PoolShape::new([2, 3, 4, 3], Window::square(2, 2, 1));
    let out_len = s.batch * s.out_height() * s.out_width() * s.channels;
    let (x, dy) = (values(72, 1), values(out_len, 2));
    let (mut mean, mut dx) = (vec![0.; out_len], vec![0.; 72]);
    oracle::windows(&s, |i, o, _| {
        mean[o] += f64::from(x[i]) / 4.;
        dx[i] += f64::from(dy[o]) / 4.;
    });
    within(
        "mean",
        &average_pool_forward(context, &x, &s, Divisor::Padded),
        &mean,
    );
    within(
        "dx",
        &average_pool_backward(context, &dy, &s, Divisor::Padded),
        &dx,
    );
    // Remainders have windows of their own, each with its own divisor; the taps of the maximum are apart.
    let remainders = PoolShape {
        ceil: true,
        ..PoolShape::new([2, 3, 4, 3], Window::square(2, 2, 0))
    };
    let mean = average_pool_forward(context, &x, &remainders, Divisor::Image);
    let back = average_pool_backward(context, &mean, &remainders, Divisor::Image);
    let total = |values: &[f32]| values.iter().map(|v| f64::from(*v)).sum::<f64>();
    assert!((total(&back) - total(&mean)).abs() < 1e-4);
    let mut apart = remainders;
    apart.window.dilation = [1, 2];
    let (y, from) = max_pool_forward(context, &x, &apart);
    let back = max_pool_backward(context, &y, &from, &apart);
    assert!((total(&back) - total(&y)).abs() < 1e-4);
    let (y, from) = max_pool_forward(context, &x, &s);
    assert!(y.iter().all(|y| x.contains(y)));
    let dx = max_pool_backward(context, &dy, &from, &s);
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
    let z = linear_forward(context, &normed, &weight, Some(&[0.; 6]), None, &shape);
    let mut dx = linear_input_gradient(context, &z, &weight, &shape);
    let activated = gelu_backward(context, &normed, &mut dx);
    assert_eq!(activated, gelu_forward(context, &normed));
    let tanh = gelu_tanh_backward(context, &normed, &mut dx.clone());
    assert_eq!(tanh, gelu_tanh_forward(context, &normed));
    let (dw, sums) = linear_weight_gradient(context, &activated, &z, &shape);
    assert_eq!(dw.len(), 60);
    let expected: Vec<f64> = sums.iter().map(|&sum| f64::from(sum)).collect();
    within("bias", &column_sums(context, &z, 6), &expected);
}

#[test]
fn attention_with_a_mask() {
    let context = &portable();
    let case = Case {
        shape: ScaledDotProductShape {
            batch: 2,
            heads: 2,
            queries: 3,
            tokens: 6,
            width: 5,
            value_width: 3,
        },
        mask: Some([1, 2]),
        scale: 0.5,
        tokens_first: true,
    };
    let (s, buffers) = (case.shape, case.buffers(1));
    let (input, dy) = (case.input(&buffers), values(s.out_len(), 5));
    let exact = Exact::new(&input, &dy, &s);
    let (y, softmax) = scaled_dot_product_forward(context, &input, &s);
    within("y", &y, &exact.y);
    let orders = [AxisOrder::HeadsFirst; 3];
    let found = scaled_dot_product_backward(context, &dy, &input, &softmax, &s, orders, true);
    within("query", &found.query, &exact.query);
    within("key", &found.key, &exact.key);
    within("value", &found.value, &exact.value);
    within("mask", &found.mask.unwrap(), &exact.mask);
    let y = softmax_forward(context, &dy, 3);
    let sum: f32 = softmax_backward(context, &dy, &y, 3).iter().sum();
    assert!(sum.abs() < 1e-5, "a shift of a row changes nothing: {sum}");
}

#[test]
fn copies_in_another_order() {
    let context = &portable();
    let x = values(3 * 34 * 2, 1);
    // [3, 34, 2] turned round.
    let turned = copy_strided(context, &x, &[2, 34, 3], &[1, 2, 68]);
    assert_eq!(copy_strided(context, &turned, &[3, 34, 2], &[1, 3, 102]), x);
    let swapped = copy_strided(context, &x, &[34, 3, 2], &[2, 68, 1]);
    assert_eq!(copy_strided(context, &swapped, &[3, 34, 2], &[2, 6, 1]), x);
}

#[test]
fn elementwise_work() {
    let context = &portable();
    let (mut x, y) = (values(7, 1), values(7, 2));
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    add_in_place(context, &mut x, &y);
    assert_eq!(x, expected);
    for activation in Activation::ALL {
        let z = activate_forward(context, &x, Some(&y), activation);
        let sums = x.iter().zip(&y).map(|(x, y)| f64::from(x + y));
        let expected: Vec<f64> = sums
            .map(|sum| activation_oracle::value(activation, sum))
            .collect();
        within("activation", &z, &expected);
        let mut dx = z.clone();
        activate_backward(context, &mut dx, &x, Some(&y), Some(&z), activation);
        assert!(dx.iter().all(|dx| dx.is_finite()));
    }
    let mut dx = x.clone();
    let dy = multiply_backward(context, &mut dx, [&x, &y], Some(&y));
    assert_eq!(dy, multiply(context, &x, &x));
    let shape = ScaleShape {
        batch: 2,
        rows: 3,
        channels: 5,
    };
    let (tensor, scale) = (values(30, 4), values(10, 5));
    let scaled = scale_forward(context, &tensor, &scale, Some(&tensor), &shape);
    let saved = ScaleBackward {
        x: Some(&tensor),
        scale: Some(&scale),
        other: Some(&tensor),
        shape,
    };
    // The gradient of a sum with a residual is that of the scale, plus the other one: the same operation.
    let gradients = scale_backward(context, &tensor, &saved);
    assert_eq!(gradients.x, Some(scaled));
    assert_eq!(gradients.scale.map(|scale| scale.len()), Some(10));
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
