//! Depthwise and grouped convolutions against naive `f64` loops, on every instruction set this machine has.

#![allow(missing_docs)]

mod activation_oracle;
mod comparison;
mod kernels_oracle;

use comparison::{error, values};
use kernels_oracle as oracle;
use proptest::prelude::*;
use ttac_kernels::Activation;
use ttac_kernels::Context;
use ttac_kernels::kernels::*;

/// A sum of products in `f32` is off by at most its length times half an ulp, and by the root of its length in practice; the lengths here stay
/// below a thousand, which makes 30 half ulps.
const DIRECT: f64 = 2e-6;
/// F(4x4, 3x3), which a group of many channels may be computed with, has factors from 0.4 to 3.4, whose sums leave the rounding of larger values.
const WINOGRAD4: f64 = 1e-5;

const ALGORITHMS: [(Algorithm, f64); 3] = [
    (Algorithm::Direct, DIRECT),
    (Algorithm::Winograd4, WINOGRAD4),
    (Algorithm::Auto, WINOGRAD4),
];

/// `[groups, channels of a group's input, of its output]`.
fn grouped(
    [batch, height, width]: [usize; 3],
    [groups, inputs, outputs]: [usize; 3],
    window: Window,
) -> ConvShape {
    ConvShape {
        groups,
        ..ConvShape::new(
            [batch, height, width, groups * inputs],
            groups * outputs,
            window,
        )
    }
}

/// A window of everything: kernel, stride, dilation, and padding before and after, the latter one more.
fn uneven(kernel: [usize; 2], stride: [usize; 2], dilation: [usize; 2], padding: usize) -> Window {
    Window {
        kernel,
        stride,
        dilation,
        padding: [[padding, padding + 1], [padding + 1, padding]],
    }
}

/// A norm on the way into a convolution: to the bit what the norm's stored result gives.
fn check_normalised(context: &Context, s: &ConvShape, algorithm: Algorithm, data: [&[f32]; 3]) {
    let [x, w, dy] = data;
    let (mean, beta) = (values(s.in_channels, 6), values(s.in_channels, 7));
    let (gamma, variance) = (values(s.in_channels, 8), vec![0.7; s.in_channels]);
    let params = NormParams {
        activation: Activation::HardSwish,
        ..NormParams::new([&mean, &variance], [&gamma, &beta])
    };
    let stored = norm_forward(context, x, None, &params);
    let (scale, shift) = params.affine();
    let input = Input {
        values: x,
        norm: Some(Normalise {
            scale: &scale,
            shift: &shift,
            activation: Activation::HardSwish,
        }),
    };
    let plain = Epilogue::default();
    assert_eq!(
        conv_forward(context, input, w, s, algorithm, &plain),
        conv_forward(context, &stored, w, s, algorithm, &plain),
        "normalised input, {algorithm:?}, {s:?}"
    );
    assert_eq!(
        conv_weight_gradient(context, input, dy, s, algorithm),
        conv_weight_gradient(context, &stored, dy, s, algorithm),
        "weight gradient of a normalised input, {algorithm:?}, {s:?}"
    );
}

/// All three passes, every algorithm, every instruction set, with and without an epilogue, with and without a norm before.
fn check(s: &ConvShape) {
    let (x, w) = (values(s.in_len(), 1), values(s.weight_len(), 2));
    let (dy, bias) = (values(s.out_len(), 3), values(s.out_channels, 4));
    let residual = values(s.out_len(), 5);
    let plain = Epilogue::default();
    let epilogue = Epilogue {
        bias: Some(&bias),
        residual: Some(&residual),
        activation: Activation::HardSwish,
    };
    let y = oracle::conv_forward(&x, &w, s, &plain);
    let finished = oracle::conv_forward(&x, &w, s, &epilogue);
    let dx = oracle::conv_input_gradient(&dy, &w, s);
    let dw = oracle::conv_weight_gradient(&x, &dy, s);
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
            let found = conv_forward(context, &x, &w, s, algorithm, &plain);
            within("forward", &found, &y);
            let found = conv_forward(context, &x, &w, s, algorithm, &epilogue);
            within("forward with epilogue", &found, &finished);
            let mut found = conv_input_gradient(context, &dy, &w, s, algorithm, None);
            within("input gradient", &found, &dx);
            // Another gradient is added as the last operation: to the bit what adding afterwards gives.
            add_in_place(context, &mut found, &x);
            let added = conv_input_gradient(context, &dy, &w, s, algorithm, Some(&x));
            assert_eq!(added, found, "{algorithm:?}, {isa:?}, {s:?}");
            let found = conv_weight_gradient(context, &x, &dy, s, algorithm);
            within("weight gradient", &found, &dw);
            check_normalised(context, s, algorithm, [&x, &w, &dy]);
        }
    }
}

#[test]
fn depthwise_convolutions_of_awkward_shapes() {
    for (size, channels, window) in [
        ([2, 9, 7], [32, 1, 1], Window::square(3, 1, 1)),
        ([2, 9, 8], [21, 1, 1], Window::square(3, 2, 1)), // channels that fill no vector
        ([1, 14, 14], [24, 1, 1], Window::square(5, 1, 2)),
        ([2, 14, 13], [16, 1, 1], Window::square(5, 2, 2)),
        ([1, 7, 7], [40, 1, 1], Window::square(7, 1, 3)), // ConvNeXt's last stage
        ([1, 15, 11], [9, 1, 1], Window::square(7, 2, 3)),
        ([1, 9, 12], [17, 1, 1], Window::square(9, 1, 4)),
        ([3, 1, 1], [5, 1, 1], Window::square(3, 1, 1)), // one pixel
        ([0, 8, 8], [16, 1, 1], Window::square(3, 1, 1)), // empty batch
        ([1, 2, 2], [2, 1, 1], Window::square(5, 1, 1)), // the kernel does not fit
        ([1, 4, 4], [3, 1, 1], Window::square(3, 1, 3)), // more padding than kernel
        ([1, 6, 6], [8, 1, 1], Window::square(1, 2, 0)), // pixels without gradient
        ([1, 3, 4], [8, 1, 1], Window::square(3, 7, 2)), // a stride beyond the image
        ([2, 12, 10], [18, 1, 1], uneven([3, 3], [1, 1], [2, 3], 2)),
        ([2, 12, 10], [18, 1, 1], uneven([3, 5], [2, 1], [1, 2], 1)),
        ([1, 10, 11], [20, 1, 1], uneven([1, 7], [1, 3], [1, 1], 0)),
        ([1, 9, 12], [33, 1, 1], uneven([5, 3], [3, 2], [2, 1], 3)),
        ([2, 9, 8], [11, 1, 2], Window::square(3, 1, 1)), // two outputs for each input
        ([2, 9, 8], [7, 1, 3], Window::square(5, 2, 2)),
    ] {
        check(&grouped(size, channels, window));
    }
}

#[test]
fn grouped_convolutions_of_awkward_shapes() {
    let long = Window {
        kernel: [1, 3],
        padding: [[0, 0], [33_000, 33_000]],
        ..Window::square(1, 7, 0)
    };
    for (size, channels, window) in [
        ([2, 9, 8], [8, 4, 4], Window::square(3, 1, 1)), // ResNeXt
        ([2, 9, 8], [5, 4, 4], Window::square(3, 2, 1)),
        ([1, 7, 9], [6, 8, 8], Window::square(3, 1, 1)),
        ([2, 8, 6], [3, 8, 8], Window::square(3, 2, 1)), // RegNet
        ([1, 9, 9], [3, 16, 16], Window::square(3, 1, 1)),
        ([3, 6, 6], [2, 24, 24], Window::square(3, 2, 1)),
        ([3, 6, 7], [2, 32, 32], Window::square(3, 1, 1)),
        ([2, 6, 7], [2, 64, 64], Window::square(3, 1, 1)),
        ([2, 5, 6], [3, 10, 4], Window::square(1, 1, 0)), // ShuffleNet's 1x1
        ([1, 5, 6], [7, 2, 2], Window::square(3, 1, 1)),
        ([1, 5, 6], [3, 5, 5], Window::square(3, 1, 1)),
        ([1, 5, 6], [2, 3, 6], Window::square(5, 2, 2)),
        ([1, 9, 8], [2, 2, 1], Window::square(3, 1, 1)),
        ([0, 5, 6], [4, 8, 8], Window::square(3, 1, 1)),
        ([1, 10, 9], [3, 4, 4], uneven([3, 5], [2, 1], [1, 2], 1)),
        ([1, 10, 9], [2, 6, 5], uneven([3, 2], [1, 2], [2, 1], 1)),
        ([2, 5, 4], [2, 70, 66], Window::square(3, 1, 1)), // each group a dense convolution
        ([1, 5, 6], [3, 66, 70], Window::square(3, 2, 1)),
        ([1, 1, 5], [3, 1, 1], long), // a row that is too long for the cache
    ] {
        check(&grouped(size, channels, window));
    }
}

fn window() -> impl Strategy<Value = Window> {
    let axis = || (1..8usize, 1..4usize, 1..3usize, [0..4usize, 0..4usize]);
    [axis(), axis()].prop_map(|axes| Window {
        kernel: axes.map(|axis| axis.0),
        stride: axes.map(|axis| axis.1),
        dilation: axes.map(|axis| axis.2),
        padding: axes.map(|axis| axis.3),
    })
}

/// Windows that have a micro-kernel of their own.
fn common_window() -> impl Strategy<Value = Window> {
    (
        prop::sample::select(vec![3usize, 3, 5, 7]),
        1..3usize,
        0..4usize,
    )
        .prop_map(|(kernel, stride, padding)| Window::square(kernel, stride, padding))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, rng_seed: prop::test_runner::RngSeed::Fixed(5), ..ProptestConfig::default() })]

    #[test]
    fn depthwise_convolutions_equal_the_oracle(
        size in [0..3usize, 1..18usize, 1..18usize], channels in 2..50usize, multiplier in prop::sample::select(vec![1usize, 1, 1, 2, 3]), window in common_window(),
    ) {
        check(&grouped(size, [channels, 1, multiplier], window));
    }

    #[test]
    fn depthwise_convolutions_of_any_window_equal_the_oracle(
        size in [0..3usize, 1..18usize, 1..18usize], channels in 2..40usize, window in window(),
    ) {
        check(&grouped(size, [channels, 1, 1], window));
    }

    #[test]
    fn groups_of_equal_width_equal_the_oracle(
        size in [0..3usize, 1..10usize, 1..10usize], groups in 2..8usize, width in prop::sample::select(vec![2usize, 4, 4, 8, 8, 16]), window in common_window(),
    ) {
        check(&grouped(size, [groups, width, width], window));
    }

    #[test]
    fn groups_of_any_width_equal_the_oracle(
        size in [0..3usize, 1..8usize, 1..8usize], channels in [2..5usize, 1..12usize, 1..12usize], window in window(),
    ) {
        check(&grouped(size, channels, window));
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let bits = |s: &ConvShape| {
        let context = &Context::default();
        let (x, w) = (values(s.in_len(), 1), values(s.weight_len(), 2));
        let dy = values(s.out_len(), 3);
        let auto = Algorithm::Auto;
        let results = [
            conv_forward(context, &x, &w, s, auto, &Epilogue::default()),
            conv_input_gradient(context, &dy, &w, s, auto, None),
            conv_weight_gradient(context, &x, &dy, s, auto),
        ];
        results.map(|r| r.iter().map(|v| v.to_bits()).collect::<Vec<_>>())
    };
    for s in [
        grouped([9, 28, 28], [72, 1, 1], Window::square(3, 1, 1)),
        grouped([5, 28, 27], [48, 1, 1], Window::square(5, 2, 2)),
        grouped([6, 14, 14], [40, 1, 2], Window::square(3, 1, 1)),
        grouped([6, 14, 14], [32, 4, 4], Window::square(3, 1, 1)),
        grouped([6, 14, 14], [3, 16, 16], Window::square(3, 2, 1)),
        grouped([24, 14, 14], [2, 64, 64], Window::square(3, 1, 1)),
    ] {
        let [one, two, three] = [1, 2, 3].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            pool.build().expect("a pool").install(|| bits(&s))
        });
        assert!(one == two && two == three, "{s:?}");
    }
}

#[test]
#[should_panic(expected = "a convolution needs groups that divide its channels")]
fn groups_that_do_not_divide_the_channels_are_refused() {
    let s = ConvShape {
        groups: 3,
        ..ConvShape::new([1, 4, 4, 6], 8, Window::square(3, 1, 1))
    };
    let (x, w) = (values(s.in_len(), 1), values(s.weight_len(), 2));
    let context = &Context::default();
    conv_forward(context, &x, &w, &s, Algorithm::Auto, &Epilogue::default());
}
