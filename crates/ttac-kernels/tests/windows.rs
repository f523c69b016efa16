//! Convolutions with windows that are not square, differ by axis and side, or have gaps, against plain loops in `f64`.

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

/// A sum of products in `f32` is off by at most its length times half an ulp, and by the root of its length in practice; the lengths here stay below a thousand,
/// which makes 30 half ulps.
const TOLERANCE: f64 = 2e-6;

fn window(kernel: [usize; 2], stride: [usize; 2], padding: [[usize; 2]; 2]) -> Window {
    Window {
        kernel,
        stride,
        dilation: [1; 2],
        padding,
    }
}

fn dilated(kernel: usize, stride: usize, dilation: usize, padding: usize) -> Window {
    Window {
        dilation: [dilation; 2],
        ..Window::square(kernel, stride, padding)
    }
}

/// Windows as networks have them, and worse ones.
fn awkward() -> Vec<ConvShape> {
    let same = |kernel: [usize; 2]| window(kernel, [1; 2], kernel.map(|k| [k / 2; 2]));
    let all = [
        ([1, 9, 8, 5], 18, same([1, 7])),
        ([2, 9, 8, 20], 17, same([7, 1])),
        ([1, 4, 5, 33], 6, same([1, 3])),
        ([1, 6, 5, 2], 7, same([1, 5])), // a row of the kernel is one load
        ([1, 6, 5, 16], 16, same([3, 1])),
        ([1, 7, 7, 3], 9, window([3; 2], [2; 2], [[0, 1]; 2])), // "same" of TensorFlow
        ([1, 6, 9, 3], 8, window([4, 2], [3, 1], [[2, 0], [0, 3]])),
        ([2, 5, 8, 4], 5, window([2, 3], [1, 2], [[0, 0], [1, 1]])), // strides by axis
        ([2, 8, 5, 4], 5, window([3, 2], [2, 1], [[1, 1], [0, 0]])),
        ([1, 6, 6, 3], 4, window([3, 3], [1, 4], [[1, 1], [1, 0]])), // pixels without gradient
        ([1, 3, 3, 2], 3, window([2; 2], [1; 2], [[5, 0], [0, 4]])), // places that see padding only
        ([1, 9, 10, 6], 20, dilated(3, 1, 2, 2)),
        ([1, 12, 9, 3], 8, dilated(3, 1, 3, 3)), // few channels, but rows with gaps
        ([2, 11, 10, 5], 6, dilated(3, 2, 2, 2)), // only every second remainder meets a tap
        ([1, 9, 9, 4], 4, dilated(2, 3, 2, 1)),
        ([1, 7, 6, 8], 40, dilated(1, 1, 4, 0)), // the dilation of one tap is nothing
        ([2, 12, 12, 3], 20, Window::square(6, 6, 0)), // patches: a row is several vectors
        ([1, 9, 10, 3], 70, Window::square(4, 4, 0)), // a remainder that no patch sees
        ([1, 32, 32, 3], 9, Window::square(16, 16, 0)), // as transformers embed them
        ([1, 12, 14, 3], 18, Window::square(7, 2, 3)), // rows that hang over both ends
        ([1, 6, 8, 2], 4, window([3, 9], [1, 2], [[1; 2], [8, 5]])),
        ([1, 8, 8, 1], 5, Window::square(4, 4, 2)),
        ([1, 3, 3, 4], 4, dilated(3, 1, 2, 0)), // the kernel does not fit
        ([0, 3, 3, 4], 4, dilated(3, 1, 2, 2)), // no images
    ];
    all.map(|(input, outputs, window)| ConvShape::new(input, outputs, window))
        .into()
}

/// The forward pass with everything behind it, and both gradients, on every instruction set.
fn check_conv(s: &ConvShape) {
    let (x, w) = (values(s.in_len(), 1), values(s.weight_len(), 2));
    let (dy, residual) = (values(s.out_len(), 3), values(s.out_len(), 4));
    let bias = values(s.out_channels, 5);
    let epilogue = Epilogue {
        bias: Some(&bias),
        residual: Some(&residual),
        activation: Activation::Relu,
    };
    let exact = [
        oracle::conv_forward(&x, &w, s, &epilogue),
        oracle::conv_input_gradient(&dy, &w, s),
        oracle::conv_weight_gradient(&x, &dy, s),
    ];
    for isa in Isa::available() {
        let context = &Context::new().with_isa(isa);
        // What no other algorithm can do runs as the direct one.
        let algorithm = Algorithm::Winograd4.resolve(s);
        let found = [
            conv_forward(context, &x, &w, s, algorithm, &epilogue),
            conv_input_gradient(context, &dy, &w, s, algorithm, None),
            conv_weight_gradient(context, &x, &dy, s, algorithm),
        ];
        let tolerance = if algorithm == Algorithm::Direct {
            TOLERANCE
        } else {
            5. * TOLERANCE // as documented: F(4x4, 3x3) is coarser
        };
        for (what, (found, exact)) in ["forward", "dx", "dw"].iter().zip(found.iter().zip(&exact)) {
            let error = error(found, exact);
            assert!(error < tolerance, "{what}, {isa:?}, {s:?}: {error:.1e}");
        }
        // Another gradient is added last: to the bit what adding afterwards gives.
        let mut sum = found[1].clone();
        add_in_place(context, &mut sum, &x);
        let added = conv_input_gradient(context, &dy, &w, s, algorithm, Some(&x));
        assert_eq!(added, sum, "{isa:?}, {s:?}");
        check_normalised(context, s);
    }
}

/// A norm on the way in gives the bits of its stored result; the padding is not normalised.
fn check_normalised(context: &Context, s: &ConvShape) {
    let (x, w) = (values(s.in_len(), 1), values(s.weight_len(), 2));
    let dy = values(s.out_len(), 3);
    let (mean, beta) = (values(s.in_channels, 6), values(s.in_channels, 7));
    let (gamma, variance) = (values(s.in_channels, 8), vec![0.7; s.in_channels]);
    let params = NormParams {
        activation: Activation::Relu,
        ..NormParams::new([&mean, &variance], [&gamma, &beta])
    };
    let stored = norm_forward(context, &x, None, &params);
    let (scale, shift) = params.affine();
    let input = Input {
        values: &x,
        norm: Some(params.normalise(&scale, &shift)),
    };
    let (auto, plain) = (Algorithm::Auto, Epilogue::default());
    assert_eq!(
        conv_forward(context, input, &w, s, auto, &plain),
        conv_forward(context, &stored, &w, s, auto, &plain),
        "{s:?}"
    );
    assert_eq!(
        conv_weight_gradient(context, input, &dy, s, auto),
        conv_weight_gradient(context, &stored, &dy, s, auto),
        "{s:?}"
    );
}

#[test]
fn convolutions_of_awkward_windows() {
    for s in awkward() {
        assert_eq!(Algorithm::Winograd2.resolve(&s), Algorithm::Direct, "{s:?}");
        check_conv(&s);
    }
}

#[test]
fn only_a_square_window_without_gaps_is_for_winograd() {
    let input = [2, 8, 8, 16];
    let plain = Window::square(3, 1, 1);
    let resolved = |window, groups| {
        let shape = ConvShape {
            groups,
            ..ConvShape::new(input, 16, window)
        };
        Algorithm::Winograd4.resolve(&shape)
    };
    assert_eq!(resolved(plain, 1), Algorithm::Winograd4);
    assert_eq!(resolved(plain, 2), Algorithm::Direct);
    let padding = [[1, 1], [1, 0]];
    for other in [
        window([3, 1], [1; 2], plain.padding),
        window([3; 2], [1, 2], plain.padding),
        window([3; 2], [1; 2], padding),
        dilated(3, 1, 2, 1),
    ] {
        assert_eq!(resolved(other, 1), Algorithm::Direct, "{other:?}");
    }
}

prop_compose! {
    fn windows(most: usize)(
        kernel in [1..most, 1..most], stride in [1..4usize, 1..4usize], dilation in [1..4usize, 1..4usize],
        padding in [[0..4usize, 0..4usize], [0..4usize, 0..4usize]],
    ) -> Window {
        Window { kernel, stride, dilation, padding }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, rng_seed: prop::test_runner::RngSeed::Fixed(5), ..ProptestConfig::default() })]

    #[test]
    fn convolutions_equal_the_oracle(
        batch in 0..3usize, size in [1..12usize, 1..12usize], inputs in 1..24usize, outputs in 1..40usize, window in windows(6),
    ) {
        check_conv(&ConvShape::new([batch, size[0], size[1], inputs], outputs, window));
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let shapes = [
        ConvShape::new(
            [6, 24, 20, 16],
            32,
            window([1, 7], [1; 2], [[0; 2], [3; 2]]),
        ),
        ConvShape::new([6, 24, 20, 9], 20, dilated(3, 2, 2, 2)),
        ConvShape::new([6, 23, 20, 3], 20, window([3; 2], [2; 2], [[0, 1], [0, 1]])),
    ];
    for s in shapes {
        let (x, w) = (values(s.in_len(), 1), values(s.weight_len(), 2));
        let dy = values(s.out_len(), 3);
        let all = |threads: usize| -> Vec<u32> {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let (context, auto) = (&Context::default(), Algorithm::Auto);
            let results = pool.expect("a pool").install(|| {
                [
                    conv_forward(context, &x, &w, &s, auto, &Epilogue::default()),
                    conv_input_gradient(context, &dy, &w, &s, auto, None),
                    conv_weight_gradient(context, &x, &dy, &s, auto),
                ]
            });
            results.iter().flatten().map(|v| v.to_bits()).collect()
        };
        let one = all(1);
        assert!(one == all(2) && one == all(3), "{s:?}");
    }
}
