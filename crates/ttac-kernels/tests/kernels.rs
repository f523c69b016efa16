//! The kernels against naive `f64` versions of themselves, on every instruction set this machine has.

#![allow(missing_docs)]

mod activation_oracle;
mod comparison;
mod kernels_oracle;

use activation_oracle::value;
use comparison::{error, values};
use kernels_oracle as oracle;
use proptest::prelude::*;
use ttac_kernels::Context;
use ttac_kernels::kernels::*;

/// Whether a case of so many operations is run: all are, except under Miri, which is ten thousand times slower.
fn is_feasible(operations: usize) -> bool {
    !cfg!(miri) || operations < 1_000
}

/// A sum of products in `f32` is off by at most its length times half an ulp, and by the root of its length in practice; the lengths here stay
/// below a thousand, which makes 30 half ulps.
const DIRECT: f64 = 2e-6;
/// F(2x2, 3x3) adds up four values before and nine after the multiplication; all its factors are 1 or 1/2.
const WINOGRAD2: f64 = 2e-6;
/// F(4x4, 3x3) has factors from 0.4 to 3.4, whose sums cancel in exact arithmetic and here leave the rounding of larger values.
const WINOGRAD4: f64 = 1e-5;
/// Elementwise work: a few roundings; sums are made in `f64`.
const ELEMENTWISE: f64 = 2e-6;

const ALGORITHMS: [(Algorithm, f64); 4] = [
    (Algorithm::Direct, DIRECT),
    (Algorithm::Winograd2, WINOGRAD2),
    (Algorithm::Winograd4, WINOGRAD4),
    (Algorithm::Auto, WINOGRAD4),
];

fn conv(
    batch: usize,
    [height, width]: [usize; 2],
    [in_channels, out_channels]: [usize; 2],
    kernel: usize,
    stride: usize,
    padding: usize,
) -> ConvShape {
    ConvShape::new(
        [batch, height, width, in_channels],
        out_channels,
        Window::square(kernel, stride, padding),
    )
}

/// A norm on the way into a convolution: to the bit what the norm's stored result gives.
fn check_normalised(
    context: &Context,
    x: &[f32],
    w: &[f32],
    dy: &[f32],
    s: &ConvShape,
    algorithm: Algorithm,
) {
    let (mean, beta) = (values(s.in_channels, 6), values(s.in_channels, 7));
    let (gamma, variance) = (values(s.in_channels, 8), vec![0.7; s.in_channels]);
    for activation in [Activation::Relu, Activation::None, Activation::Sigmoid] {
        let params = NormParams {
            activation,
            ..NormParams::new([&mean, &variance], [&gamma, &beta])
        };
        let stored = norm_forward(context, x, None, &params);
        let (scale, shift) = params.affine();
        let input = Input {
            values: x,
            norm: Some(Normalise {
                scale: &scale,
                shift: &shift,
                activation,
            }),
        };
        let epilogue = Epilogue::default();
        assert_eq!(
            conv_forward(context, input, w, s, algorithm, &epilogue),
            conv_forward(context, &stored, w, s, algorithm, &epilogue),
            "normalised input, {activation:?}, {algorithm:?}, {s:?}"
        );
        assert_eq!(
            conv_weight_gradient(context, input, dy, s, algorithm),
            conv_weight_gradient(context, &stored, dy, s, algorithm),
            "weight gradient of a normalised input, {activation:?}, {algorithm:?}, {s:?}"
        );
    }
}

/// All three passes, every algorithm, every instruction set, with and without an epilogue, with and without a norm before.
fn check_conv(s: &ConvShape) {
    let (x, w, dy) = (
        values(s.in_len(), 1),
        values(s.weight_len(), 2),
        values(s.out_len(), 3),
    );
    let (bias, residual) = (values(s.out_channels, 4), values(s.out_len(), 5));
    let epilogue = Epilogue {
        bias: Some(&bias),
        residual: Some(&residual),
        activation: Activation::Relu,
    };
    let silu = Epilogue {
        activation: Activation::Silu,
        ..epilogue
    };
    let y = oracle::conv_forward(&x, &w, s, &Epilogue::default());
    let finished = [epilogue, silu].map(|epilogue| oracle::conv_forward(&x, &w, s, &epilogue));
    let (dx, dw) = (
        oracle::conv_input_gradient(&dy, &w, s),
        oracle::conv_weight_gradient(&x, &dy, s),
    );
    for isa in Isa::available() {
        let context = &Context::new().with_isa(isa);
        for (algorithm, tolerance) in ALGORITHMS {
            let within = |what: &str, found: &[f32], expected: &[f64]| {
                let error = error(found, expected);
                assert!(
                    error < tolerance,
                    "{what}, {algorithm:?}, {isa:?}, {s:?}: error {error:.1e}"
                );
            };
            within(
                "forward",
                &conv_forward(context, &x, &w, s, algorithm, &Epilogue::default()),
                &y,
            );
            for (epilogue, finished) in [epilogue, silu].iter().zip(&finished) {
                let found = conv_forward(context, &x, &w, s, algorithm, epilogue);
                within("forward with epilogue", &found, finished);
            }
            let found = conv_input_gradient(context, &dy, &w, s, algorithm, None);
            within("input gradient", &found, &dx);
            // Another gradient is added as the last operation: to the bit what adding afterwards gives.
            let mut sum = found;
            add_in_place(context, &mut sum, &x);
            let added = conv_input_gradient(context, &dy, &w, s, algorithm, Some(&x));
            assert_eq!(added, sum, "{algorithm:?}, {isa:?}, {s:?}");
            within(
                "weight gradient",
                &conv_weight_gradient(context, &x, &dy, s, algorithm),
                &dw,
            );
            if s.in_channels > 0 {
                check_normalised(context, &x, &w, &dy, s, algorithm);
            }
        }
    }
}

#[test]
fn convolutions_of_awkward_shapes() {
    for s in [
        conv(2, [9, 7], [3, 16], 3, 1, 1),   // a stem, odd sizes
        conv(1, [1, 1], [1, 1], 3, 1, 1),    // one of everything
        conv(1, [1, 1], [5, 7], 1, 1, 0),    // one pixel
        conv(0, [8, 8], [16, 16], 3, 1, 1),  // empty batch
        conv(2, [8, 8], [16, 32], 3, 2, 1),  // stride 2, even
        conv(2, [7, 5], [20, 33], 3, 2, 1),  // stride 2, odd, channels that fill no vector
        conv(1, [6, 6], [8, 40], 1, 2, 0), // 1x1 stride 2: three quarters of the input get no gradient
        conv(1, [11, 12], [4, 6], 5, 1, 2), // 5x5
        conv(1, [16, 15], [3, 8], 7, 2, 3), // ImageNet stem
        conv(1, [7, 7], [3, 5], 3, 3, 0),  // stride 3, no padding
        conv(1, [4, 4], [2, 3], 3, 1, 3),  // more padding than kernel
        conv(1, [2, 2], [2, 2], 5, 1, 1),  // the kernel does not fit
        conv(2, [6, 10], [32, 48], 3, 1, 0), // Winograd without padding
        conv(3, [8, 8], [64, 70], 3, 1, 1),
        conv(1, [4, 4], [100, 128], 3, 1, 1), // a long reduction
        conv(14, [4, 4], [64, 128], 1, 1, 0), // several blocks of pixels
        conv(1, [3, 3], [0, 4], 3, 1, 1),     // no input channels
        conv(1, [5, 6], [4, 5], 3, 1, 1),     // Winograd at its smallest
    ] {
        if is_feasible(s.in_len() * s.weight_len() / s.in_channels.max(1)) {
            check_conv(&s);
        }
    }
}

/// The reduction of 2304 values is cut into several pieces, and there are several panels; the largest errors are found here.
#[test]
fn a_deep_convolution() {
    check_conv(&conv(1, [4, 4], [256, 192], 3, 1, 1));
}

/// Enough tiles that every algorithm cuts them into independent tasks, with edges that no tile divides.
#[test]
fn a_convolution_of_many_tiles() {
    check_conv(&conv(18, [31, 30], [16, 16], 3, 1, 1));
}

fn small_conv() -> impl Strategy<Value = ConvShape> {
    (
        0..3usize,
        (1..12usize, 1..12usize),
        (1..40usize, 1..40usize),
        prop::sample::select(vec![1usize, 3, 3, 3, 5, 7]),
        1..4usize,
        0..4usize,
    )
        .prop_map(|(batch, (h, w), (ci, co), kernel, stride, padding)| {
            conv(batch, [h, w], [ci, co], kernel, stride, padding)
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, rng_seed: prop::test_runner::RngSeed::Fixed(3), ..ProptestConfig::default() })]

    #[test]
    fn convolutions_equal_the_oracle(s in small_conv()) {
        check_conv(&s);
    }

    #[test]
    fn norms_equal_the_oracle(rows in 0..400usize, channels in 1..70usize, seed in 0..1000u64) {
        check_norm(rows, channels, seed);
    }

    #[test]
    fn group_norms_equal_the_oracle(batch in 0..4usize, pixels in 1..80usize, groups in 1..9usize, per_group in 1..9usize, seed in 0..1000u64) {
        check_group_norm(grouped(batch, pixels, groups, per_group), 1., seed);
    }

    #[test]
    fn pools_equal_the_oracle(
        batch in 0..3usize, height in 1..9usize, width in 1..9usize, channels in 1..20usize, kernel in 1..4usize, stride in 1..4usize, pad in 0..2usize,
    ) {
        check_pools(&PoolShape::new([batch, height, width, channels], Window::square(kernel, stride, pad.min(kernel / 2))));
    }

    #[test]
    fn shortcuts_equal_their_definition(
        batch in 0..3usize, height in 1..8usize, width in 1..8usize, channels in 1..9usize, more in 0..9usize, stride in 1..4usize,
    ) {
        check_shortcut(batch, [height, width], channels, channels + more, stride);
    }
}

/// Statistics, forward in both forms and backward in all variants.
fn check_norm(rows: usize, channels: usize, seed: u64) {
    let len = rows * channels;
    // Far from zero, where E[x^2] - E[x]^2 would lose everything.
    let x: Vec<f32> = values(len, seed).iter().map(|x| 0.5 * x + 30.).collect();
    let (residual, dy) = (values(len, seed + 1), values(len, seed + 2));
    // Wide enough for both kinks of every activation.
    let wide = |seed: u64| -> Vec<f32> { values(channels, seed).iter().map(|v| 4. * v).collect() };
    let (gamma, beta) = (wide(seed + 3), wide(seed + 4));
    for isa in Isa::available() {
        let context = &Context::new().with_isa(isa);
        let (mean, variance) = batch_statistics(context, &x, channels);
        let (exact_mean, exact_variance) = oracle::batch_statistics(&x, channels);
        assert!(error(&mean, &exact_mean) < ELEMENTWISE, "mean, {isa:?}");
        assert!(
            error(&variance, &exact_variance) < ELEMENTWISE,
            "variance, {isa:?}"
        );
        let norm = NormParams::new([&mean, &variance], [&gamma, &beta]);
        for (activation, variant) in Activation::ALL
            .iter()
            .flat_map(|a| (0..8).map(move |v| (*a, v)))
        {
            let [add, batch_statistics, want_dx] = [1, 2, 4].map(|bit| variant & bit != 0);
            let residual = add.then_some(&residual[..]);
            check_norm_pass(
                context,
                [&x, &dy],
                residual,
                NormParams { activation, ..norm },
                [batch_statistics, want_dx],
            );
        }
    }
}

/// One forward pass in both forms, and its backward pass.
fn check_norm_pass(
    context: &Context,
    [x, dy]: [&[f32]; 2],
    residual: Option<&[f32]>,
    params: NormParams,
    [batch_statistics, want_dx]: [bool; 2],
) {
    let what = format!("{:?}, {:?}", params.activation, context.isa());
    let channels = params.mean.len();
    let y = norm_forward(context, x, residual, &params);
    let plain = NormParams {
        activation: Activation::None,
        ..params
    };
    let argument = norm_forward(context, x, residual, &plain);
    let exact: Vec<f64> = (0..x.len())
        .map(|k| {
            let c = k % channels;
            let z = (f64::from(x[k]) - f64::from(params.mean[c]))
                / (f64::from(params.variance[c]) + 1e-5f32 as f64).sqrt();
            z * f64::from(params.gamma[c])
                + f64::from(params.beta[c])
                + residual.map_or(0., |r| f64::from(r[k]))
        })
        .collect();
    // The shift is about 30 times the result: five bits of the result are lost to it.
    let found = error(&argument, &exact);
    assert!(found < 100. * ELEMENTWISE, "forward, {what}: {found}");
    let exact: Vec<f64> = argument
        .iter()
        .map(|&z| value(params.activation, f64::from(z)))
        .collect();
    let found = error(&y, &exact);
    assert!(found < ELEMENTWISE, "activation, {what}: {found}");
    let mut in_place = x.to_vec();
    norm_forward_in_place(context, &mut in_place, residual, &params);
    assert_eq!(in_place, y);

    let saved = NormBackward {
        x,
        y: None,
        residual,
        params,
        batch_statistics,
        want_dx,
        other: None,
        want_residual: residual.is_some(),
    };
    let mut dx = dy.to_vec();
    let found = norm_backward(context, &mut dx, &saved);
    if params.activation.slope_shows_in_result() {
        // The slope is the same from the input and from the output.
        let (mut other, saved) = (
            dy.to_vec(),
            NormBackward {
                y: Some(&y),
                residual: None,
                ..saved
            },
        );
        let from_output = norm_backward(context, &mut other, &saved);
        assert_eq!((&dx, &found.gamma), (&other, &from_output.gamma));
    }
    if want_dx {
        let (mut sum, mut added) = (dx.clone(), dy.to_vec());
        add_in_place(context, &mut sum, x);
        let other = Some(x);
        norm_backward(context, &mut added, &NormBackward { other, ..saved });
        assert_eq!(added, sum);
    }
    let exact = oracle::norm_backward(dy, &argument, &saved);
    let within = |what: String, found: &[f32], exact: &[f64], tolerance: f64| {
        let error = error(found, exact);
        assert!(error <= tolerance, "{what}: {error:.1e}");
    };
    let tolerance = 10. * ELEMENTWISE; // sums of chunks in f32
    within(
        format!("gamma, {what}"),
        &found.gamma,
        &exact.gamma,
        tolerance,
    );
    within(format!("beta, {what}"), &found.beta, &exact.beta, tolerance);
    if want_dx {
        within(format!("dx, {what}"), &dx, &exact.dx, tolerance);
    } else {
        assert_eq!(dx, dy);
    }
    assert_eq!(found.residual.is_some(), residual.is_some());
    if let Some(found) = found.residual {
        // A gradient passes whole or not at all, or is multiplied once.
        let exactly = params.activation.slope_shows_in_result();
        let tolerance = if exactly { 0. } else { ELEMENTWISE };
        within(
            format!("residual, {what}"),
            &found,
            &exact.residual,
            tolerance,
        );
    }
}

/// Forward in both forms and backward in all variants.
fn check_group_norm(shape: GroupShape, offset: f32, seed: u64) {
    let len = shape.batch * shape.pixels * shape.channels;
    let x: Vec<f32> = values(len, seed).iter().map(|x| 0.5 * x + offset).collect();
    let dy = values(len, seed + 1);
    let (gamma, beta) = (
        values(shape.channels, seed + 2),
        values(shape.channels, seed + 3),
    );
    // The shift is `2 offset` times the result, which loses as many of its digits; then come a few roundings and sums of chunks in f32.
    let tolerance = 10. * ELEMENTWISE * (1. + 2. * f64::from(offset.abs()));
    for (isa, activation) in Isa::available()
        .into_iter()
        .flat_map(|isa| Activation::ALL.map(|activation| (isa, activation)))
    {
        let context = &Context::new().with_isa(isa);
        let params = GroupParams {
            shape,
            gamma: &gamma,
            beta: &beta,
            // With few values in a group the deviation may be near 0, and an ordinary epsilon would magnify every rounding.
            epsilon: 0.01,
            activation,
        };
        let (y, statistics) = group_norm_forward(context, &x, &params);
        let plain = GroupParams {
            activation: Activation::None,
            ..params
        };
        let (argument, _) = group_norm_forward(context, &x, &plain);
        assert_eq!(statistics.len(), shape.batch * shape.groups);
        let mut in_place = x.clone();
        group_norm_forward_in_place(context, &mut in_place, &params);
        assert_eq!(in_place, y);
        let exact = oracle::group_norm(&x, &dy, &argument, &params);
        let within = |what: &str, found: &[f32], expected: &[f64]| {
            let error = error(found, expected);
            assert!(
                error < tolerance,
                "{what}, {isa:?}, {activation:?}, {shape:?}: error {error:.1e}"
            );
        };
        within("forward", &y, &exact.y);
        for want_dx in [true, false] {
            let saved = GroupBackward {
                x: &x,
                statistics: &statistics,
                params,
                want_dx,
                other: None,
            };
            let mut dx = dy.clone();
            let (gamma, beta) = group_norm_backward(context, &mut dx, &saved);
            if want_dx {
                let (mut sum, mut added) = (dx.clone(), dy.clone());
                add_in_place(context, &mut sum, &x);
                let other = Some(&x[..]);
                group_norm_backward(context, &mut added, &GroupBackward { other, ..saved });
                assert_eq!(added, sum);
            }
            within("gamma", &gamma, &exact.gamma);
            within("beta", &beta, &exact.beta);
            if want_dx {
                within("dx", &dx, &exact.dx);
            } else {
                assert_eq!(dx, dy);
            }
        }
    }
}

fn grouped(batch: usize, pixels: usize, groups: usize, per_group: usize) -> GroupShape {
    GroupShape {
        batch,
        pixels,
        channels: groups * per_group,
        groups,
    }
}

#[test]
fn group_norms_of_awkward_shapes() {
    for shape in [
        grouped(1, 1, 1, 1),    // one of everything
        grouped(0, 64, 8, 2),   // empty batch
        grouped(2, 0, 8, 2),    // no pixels
        grouped(3, 1, 4, 5),    // one pixel
        grouped(2, 35, 17, 1),  // one channel per group
        grouped(2, 35, 1, 17),  // one group
        grouped(1, 3, 3, 3000), // channels of several chunks
        grouped(2, 1024, 8, 2), // images of several chunks
        grouped(1, 9000, 8, 3),
    ] {
        if is_feasible(shape.batch * shape.pixels * shape.channels) {
            for offset in [0., 30.] {
                check_group_norm(shape, offset, 7);
            }
        }
    }
}

/// Central differences of `sum(y * dy)` in every direction of a small group norm.
#[test]
fn gradients_of_a_group_norm_are_its_differences() {
    let context = &Context::default();
    let shape = grouped(2, 6, 3, 2);
    let (x, dy) = (values(72, 1), values(72, 2));
    let (gamma, beta) = (values(6, 3), values(6, 4));
    let objective = |x: &[f32], gamma: &[f32], beta: &[f32]| -> f64 {
        let params = GroupParams {
            shape,
            gamma,
            beta,
            epsilon: 1e-5,
            activation: Activation::None,
        };
        let (y, _) = group_norm_forward(context, x, &params);
        let products = y
            .iter()
            .zip(&dy)
            .map(|(y, d)| f64::from(*y) * f64::from(*d));
        products.sum()
    };
    let params = GroupParams {
        shape,
        gamma: &gamma,
        beta: &beta,
        epsilon: 1e-5,
        activation: Activation::None,
    };
    let (_, statistics) = group_norm_forward(context, &x, &params);
    let mut dx = dy.clone();
    let saved = GroupBackward::new(&x, &statistics, params);
    let (dgamma, dbeta) = group_norm_backward(context, &mut dx, &saved);
    // A step of 1/64: the cubic term and the rounding of f32 are both below a thousandth.
    let step = 1. / 64.;
    let difference = |which: usize, k: usize| {
        let moved = |by: f32| {
            let mut arrays = [x.clone(), gamma.clone(), beta.clone()];
            arrays[which][k] += by;
            objective(&arrays[0], &arrays[1], &arrays[2])
        };
        (moved(step) - moved(-step)) / (2. * f64::from(step))
    };
    for (which, gradient) in [dx, dgamma, dbeta].iter().enumerate() {
        for (k, found) in gradient.iter().enumerate() {
            let expected = difference(which, k);
            let error = (f64::from(*found) - expected).abs();
            assert!(error < 5e-3, "{which}, {k}: {found} for {expected}");
        }
    }
}

#[test]
fn norms_of_awkward_shapes() {
    for (rows, channels) in [(1, 1), (0, 4), (5, 3), (3, 9000), (2000, 16), (9000, 17)] {
        if is_feasible(rows * channels) {
            check_norm(rows, channels, 7);
        }
    }
}

fn check_pools(s: &PoolShape) {
    let context = &Context::default();
    let len = s.batch * s.height * s.width * s.channels;
    let out_len = s.batch * s.out_height() * s.out_width() * s.channels;
    let (x, dy) = (values(len, 1), values(out_len, 2));
    let scale = 1. / (s.window.kernel[0] * s.window.kernel[1]) as f64;
    let (mut mean, mut dx) = (vec![0.; out_len], vec![0.; len]);
    let (mut max, mut from) = (vec![f32::NEG_INFINITY; out_len], vec![0; out_len]);
    let mut source = vec![0; out_len];
    oracle::windows(s, |i, o, pixel| {
        mean[o] += f64::from(x[i]) * scale;
        dx[i] += f64::from(dy[o]) * scale;
        if x[i] > max[o] {
            (max[o], from[o], source[o]) = (x[i], pixel as u32, i);
        }
    });
    assert!(
        error(
            &average_pool_forward(context, &x, s, Divisor::Padded),
            &mean
        ) < ELEMENTWISE
    );
    assert!(
        error(
            &average_pool_backward(context, &dy, s, Divisor::Padded),
            &dx
        ) < ELEMENTWISE
    );
    assert_eq!(max_pool_forward(context, &x, s), (max, from.clone()));
    let mut dx = vec![0.; len];
    for (o, i) in source.iter().enumerate() {
        dx[*i] += f64::from(dy[o]);
    }
    assert!(error(&max_pool_backward(context, &dy, &from, s), &dx) < ELEMENTWISE);

    let pixels = s.height * s.width;
    let (mut mean, dy) = (
        vec![0.; s.batch * s.channels],
        values(s.batch * s.channels, 3),
    );
    for (k, x) in x.iter().enumerate() {
        mean[k / (pixels * s.channels) * s.channels + k % s.channels] +=
            f64::from(*x) / pixels as f64;
    }
    assert!(
        error(
            &global_average_forward(context, &x, [s.batch, pixels, s.channels]),
            &mean
        ) < ELEMENTWISE
    );
    let dx = global_average_backward(context, &dy, [s.batch, pixels, s.channels]);
    let exact: Vec<f64> = (0..len)
        .map(|k| {
            f64::from(dy[k / (pixels * s.channels) * s.channels + k % s.channels]) / pixels as f64
        })
        .collect();
    assert!(error(&dx, &exact) < ELEMENTWISE);
}

fn check_shortcut(
    batch: usize,
    [height, width]: [usize; 2],
    channels: usize,
    out_channels: usize,
    stride: usize,
) {
    let (out_height, out_width) = (height.div_ceil(stride), width.div_ceil(stride));
    let front = (out_channels - channels) / 2;
    let context = &Context::default();
    let shape = ShortcutShape::new([batch, height, width, channels], out_channels, stride);
    let (len, out_len) = (
        batch * height * width * channels,
        batch * out_height * out_width * out_channels,
    );
    let (x, dy) = (values(len, 1), values(out_len, 2));
    let (mut y, mut dx) = (vec![0.; out_len], vec![0.; len]);
    for n in 0..batch {
        for i in 0..out_height {
            for j in 0..out_width {
                for c in 0..channels {
                    let a = ((n * height + i * stride) * width + j * stride) * channels + c;
                    let b = ((n * out_height + i) * out_width + j) * out_channels + front + c;
                    y[b] = x[a];
                    dx[a] = dy[b];
                }
            }
        }
    }
    assert_eq!(shortcut_a_forward(context, &x, &shape), y);
    assert_eq!(shortcut_a_backward(context, &dy, &shape), dx);
}

/// Elementwise and rounded in the same order: the same bits as plain loops.
#[test]
fn a_step_of_gradient_descent_has_the_bits_of_its_definition() {
    for len in [0, 1, 7, 16, 33, 200_001] {
        let (parameter, gradient, velocity) = (values(len, 1), values(len, 2), values(len, 3));
        for (isa, weight_decay) in Isa::available()
            .into_iter()
            .flat_map(|isa| [(isa, 0.), (isa, 5e-4)])
        {
            let constants = SgdConstants {
                learning_rate: 0.1,
                momentum: 0.9,
                weight_decay,
            };
            let g = |k: usize| {
                if weight_decay > 0. {
                    parameter[k] * weight_decay + gradient[k]
                } else {
                    gradient[k]
                }
            };
            let next = |k: usize| g(k) + velocity[k] * 0.9;
            let moved = |v: &dyn Fn(usize) -> f32| -> Vec<f32> {
                (0..len).map(|k| parameter[k] - v(k) * 0.1).collect()
            };
            let context = &Context::new().with_isa(isa);
            let mut p = parameter.clone();
            sgd_step(context, &mut p, Direction::Gradient(&gradient), constants);
            assert_eq!(p, moved(&g), "plain, {isa:?}");

            let (mut p, mut v) = (parameter.clone(), gradient.clone());
            sgd_step(context, &mut p, Direction::First(&mut v), constants);
            assert_eq!(p, moved(&g), "first, {isa:?}");
            assert_eq!(v, (0..len).map(g).collect::<Vec<_>>(), "first, {isa:?}");

            let (mut p, mut v) = (parameter.clone(), velocity.clone());
            sgd_step(
                context,
                &mut p,
                Direction::Velocity(&gradient, &mut v),
                constants,
            );
            assert_eq!(p, moved(&next), "later, {isa:?}");
            assert_eq!(v, (0..len).map(next).collect::<Vec<_>>(), "later, {isa:?}");
        }
    }
}

/// The bits of every kernel's results.
fn all_bits(s: &ConvShape) -> Vec<Vec<u32>> {
    let context = &Context::default();
    let (x, w, dy) = (
        values(s.in_len(), 1),
        values(s.weight_len(), 2),
        values(s.out_len(), 3),
    );
    let mut results = Vec::new();
    for (algorithm, _) in ALGORITHMS {
        results.push(conv_forward(
            context,
            &x,
            &w,
            s,
            algorithm,
            &Epilogue::default(),
        ));
        results.push(conv_input_gradient(context, &dy, &w, s, algorithm, None));
        results.push(conv_weight_gradient(context, &x, &dy, s, algorithm));
    }
    let (mean, variance) = batch_statistics(context, &x, s.in_channels);
    let ones = vec![1.; s.in_channels];
    let params = NormParams::new([&mean, &variance], [&ones, &ones]);
    for activation in Activation::ALL {
        let params = NormParams {
            activation,
            ..params
        };
        let y = norm_forward(context, &x, None, &params);
        let mut dx = values(x.len(), 6);
        let gradients = norm_backward(context, &mut dx, &NormBackward::new(&x, params));
        results.extend([y, dx, gradients.gamma, gradients.beta]);
    }
    results.extend([mean.clone(), variance.clone()]);
    let params = GroupParams {
        shape: grouped(s.batch, s.height * s.width, s.in_channels, 1),
        gamma: &ones,
        beta: &ones,
        epsilon: 1e-5,
        activation: Activation::Relu,
    };
    let (y, statistics) = group_norm_forward(context, &x, &params);
    let mut dx = values(x.len(), 7);
    let saved = GroupBackward::new(&x, &statistics, params);
    let (gamma, beta) = group_norm_backward(context, &mut dx, &saved);
    results.extend([y, dx, gamma, beta]);
    results
        .iter()
        .map(|r| r.iter().map(|v| v.to_bits()).collect())
        .collect()
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    for s in [
        conv(24, [16, 16], [16, 32], 3, 1, 1),
        conv(16, [32, 32], [16, 16], 3, 1, 1),
        conv(6, [17, 15], [9, 20], 3, 2, 1),
        conv(4, [4, 4], [160, 192], 3, 1, 1),
    ] {
        let bits = [1, 2, 3].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .expect("a pool");
            pool.install(|| all_bits(&s))
        });
        assert!(bits[0] == bits[1] && bits[1] == bits[2], "{s:?}");
    }
}

fn forward(x: &[f32], w: &[f32], s: &ConvShape) -> Vec<f32> {
    let context = &Context::default();
    conv_forward(context, x, w, s, Algorithm::Auto, &Epilogue::default())
}

#[test]
#[should_panic(
    expected = "input of a convolution: expected the shape [2, 4, 4, 3], found 95 values"
)]
fn an_input_of_the_wrong_length_is_refused() {
    let s = conv(2, [4, 4], [3, 5], 3, 1, 1);
    let (x, w) = (vec![0.; 95], vec![0.; s.weight_len()]);
    forward(&x, &w, &s);
}

#[test]
#[should_panic(
    expected = "weights of a convolution: expected the shape [5, 3, 3, 3], found 134 values"
)]
fn weights_of_the_wrong_length_are_refused() {
    let s = conv(2, [4, 4], [3, 5], 3, 1, 1);
    let (context, dy) = (Context::default(), vec![0.; s.out_len()]);
    conv_input_gradient(&context, &dy, &[0.; 134], &s, Algorithm::Auto, None);
}

#[test]
#[should_panic(
    expected = "output gradient of a convolution: expected the shape [2, 4, 4, 5], found 161 values"
)]
fn a_gradient_of_the_wrong_length_is_refused() {
    let s = conv(2, [4, 4], [3, 5], 3, 1, 1);
    let x = vec![0.; s.in_len()];
    conv_weight_gradient(&Context::default(), &x, &[0.; 161], &s, Algorithm::Auto);
}

#[test]
#[should_panic(expected = "expected the shape [.., 4], found 7 values")]
fn a_norm_of_broken_rows_is_refused() {
    batch_statistics(&Context::default(), &[0.; 7], 4);
}

#[test]
#[should_panic(expected = "expected the shape [2, 4, 6], found 47 values")]
fn a_group_norm_of_the_wrong_length_is_refused() {
    let params = GroupParams {
        shape: grouped(2, 4, 3, 2),
        gamma: &[1.; 6],
        beta: &[0.; 6],
        epsilon: 1e-5,
        activation: Activation::None,
    };
    group_norm_forward(&Context::default(), &[0.; 47], &params);
}

#[test]
#[should_panic(expected = "velocity of a step: expected 4 values as in the parameter, found 5")]
fn a_velocity_of_the_wrong_length_is_refused() {
    let constants = SgdConstants {
        learning_rate: 0.1,
        momentum: 0.9,
        weight_decay: 0.,
    };
    let direction = Direction::Velocity(&[0.; 4], &mut [0.; 5]);
    sgd_step(&Context::default(), &mut [0.; 4], direction, constants);
}

#[test]
#[should_panic(expected = "expected the shape [1, 2, 2, 3], found 13 values")]
fn a_pool_of_the_wrong_length_is_refused() {
    average_pool_forward(
        &Context::default(),
        &[0.; 13],
        &PoolShape::new([1, 2, 2, 3], Window::square(2, 2, 0)),
        Divisor::Padded,
    );
}
