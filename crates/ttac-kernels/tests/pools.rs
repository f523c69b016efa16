//! Pools with every option, against plain loops in `f64` that follow the definitions of PyTorch.

#![allow(missing_docs)]

mod comparison;

use comparison::{error, values};
use proptest::prelude::*;
use ttac_kernels::Context;
use ttac_kernels::kernels::*;

/// Sums of at most a few dozen values in `f32`, and one rounding of the factor: a few ulps.
const TOLERANCE: f64 = 2e-6;

const DIVISORS: [Divisor; 3] = [Divisor::Padded, Divisor::Image, Divisor::Number(5)];

/// A window at one of its places: which values of the input it sees (index, pixel of the image), and how many taps lie on the padded image.
struct Place {
    seen: Vec<(usize, u32)>,
    on_padded: usize,
}

/// Along one axis: how many places a window has.
fn places(s: &PoolShape, axis: usize) -> usize {
    let (edge, window) = ([s.height, s.width][axis], &s.window);
    let [before, after] = window.padding[axis];
    let (stride, span) = (window.stride[axis], window.span(axis));
    let rounding = if s.ceil { stride - 1 } else { 0 };
    (0..edge + before + after)
        .filter(|place| place * stride + span <= edge + before + after + rounding)
        .filter(|place| !s.ceil || place * stride < edge + before)
        .count()
}

/// All windows in the order of the output's values.
fn windows(s: &PoolShape) -> Vec<Place> {
    let [rows, columns] = [places(s, 0), places(s, 1)];
    let window = &s.window;
    let mut all = Vec::new();
    for k in 0..s.batch * rows * columns * s.channels {
        let (channel, at) = (k % s.channels, k / s.channels);
        let (n, i, j) = (at / columns / rows, at / columns % rows, at % columns);
        let mut place = Place {
            seen: Vec::new(),
            on_padded: 0,
        };
        for (a, b) in (0..window.kernel[0]).flat_map(|a| (0..window.kernel[1]).map(move |b| (a, b)))
        {
            let h = i * window.stride[0] + a * window.dilation[0];
            let w = j * window.stride[1] + b * window.dilation[1];
            let [[top, bottom], [left, right]] = window.padding;
            if h < top + s.height + bottom && w < left + s.width + right {
                place.on_padded += 1;
            }
            if h >= top && w >= left && h < top + s.height && w < left + s.width {
                let pixel = (h - top) * s.width + w - left;
                let index = (n * s.height * s.width + pixel) * s.channels + channel;
                place.seen.push((index, pixel as u32));
            }
        }
        all.push(place);
    }
    all
}

fn in_len(s: &PoolShape) -> usize {
    s.batch * s.height * s.width * s.channels
}

fn check_average(s: &PoolShape) {
    let context = &Context::default();
    let places = windows(s);
    let (x, dy) = (values(in_len(s), 1), values(places.len(), 2));
    for divisor in DIVISORS {
        let (mut y, mut dx) = (vec![0.; places.len()], vec![0.; x.len()]);
        for (o, place) in places.iter().enumerate() {
            let by = match divisor {
                Divisor::Padded => place.on_padded,
                Divisor::Image => place.seen.len(),
                Divisor::Number(number) => number,
            };
            for &(i, _) in &place.seen {
                y[o] += f64::from(x[i]) / by as f64;
                dx[i] += f64::from(dy[o]) / by as f64;
            }
        }
        let found = average_pool_forward(context, &x, s, divisor);
        assert!(error(&found, &y) < TOLERANCE, "y, {divisor:?}, {s:?}");
        let found = average_pool_backward(context, &dy, s, divisor);
        assert!(error(&found, &dx) < TOLERANCE, "dx, {divisor:?}, {s:?}");
    }
}

/// `levels` are the different values of the input: with few of them many are equal.
fn check_maximum(s: &PoolShape, levels: f32) {
    let context = &Context::default();
    let places = windows(s);
    let x = values(in_len(s), 1).into_iter();
    let x: Vec<f32> = x.map(|x| (x * levels).round()).collect();
    let dy = values(places.len(), 2);
    let (mut y, mut from) = (Vec::new(), Vec::new());
    let mut dx = vec![0.; x.len()];
    for (place, dy) in places.iter().zip(&dy) {
        let first =
            place.seen.iter().copied().reduce(
                |best, other| {
                    if x[other.0] > x[best.0] { other } else { best }
                },
            );
        y.push(first.map_or(f32::NEG_INFINITY, |(i, _)| x[i]));
        from.push(first.map_or(NO_PIXEL, |(_, pixel)| pixel));
        if let Some((i, _)) = first {
            dx[i] += f64::from(*dy);
        }
    }
    assert_eq!(max_pool_forward(context, &x, s), (y, from.clone()), "{s:?}");
    let found = max_pool_backward(context, &dy, &from, s);
    assert!(error(&found, &dx) < TOLERANCE, "dx, {s:?}");
}

fn row(edge: usize, channels: usize) -> PoolShape {
    let window = Window {
        kernel: [1, 3],
        stride: [1, 2],
        dilation: [1; 2],
        padding: [[0; 2], [1; 2]],
    };
    PoolShape {
        ceil: true,
        ..PoolShape::new([1, 1, edge, channels], window)
    }
}

/// Worked out by hand after PyTorch's documentation: the third window has one pixel of the image, one of the padding, and one that is neither.
#[test]
fn a_row_of_four_pixels() {
    let (context, s) = (&Context::default(), row(4, 1));
    let x = [1., 2., 3., 4.];
    for (divisor, expected) in [
        (Divisor::Padded, [1., 3., 2.]),
        (Divisor::Image, [1.5, 3., 4.]),
        (Divisor::Number(4), [0.75, 2.25, 1.]),
    ] {
        let found = average_pool_forward(context, &x, &s, divisor);
        assert!(
            error(&found, &expected) < TOLERANCE,
            "{divisor:?}: {found:?}"
        );
    }
    let (y, from) = max_pool_forward(context, &x, &s);
    assert_eq!((y, from), (vec![2., 4., 4.], vec![1, 3, 3]));
}

#[test]
fn the_first_of_equal_values_wins_and_nan_wins_over_all() {
    let (context, s) = (&Context::default(), row(4, 2));
    let nan = f32::NAN;
    let x = [5., 1., 5., nan, 5., 7., 5., 7.];
    let (y, from) = max_pool_forward(context, &x, &s);
    assert_eq!(from, [0, 1, 1, 1, 3, 3]);
    assert!(y[1].is_nan() && y[3].is_nan());
    assert_eq!([y[0], y[2], y[4], y[5]], [5., 5., 5., 7.]);
    let lowest = [f32::NEG_INFINITY; 8];
    let (_, from) = max_pool_forward(context, &lowest, &s);
    assert_eq!(from, [0, 0, 1, 1, 3, 3]);
}

/// With taps so far apart that the image of one pixel lies between them.
#[test]
fn a_window_that_sees_nothing_has_no_gradient() {
    let context = &Context::default();
    let window = Window {
        kernel: [1, 2],
        dilation: [1, 2],
        padding: [[0; 2], [1; 2]],
        ..Window::square(1, 1, 0)
    };
    let s = PoolShape::new([1, 1, 1, 1], window);
    let (y, from) = max_pool_forward(context, &[3.], &s);
    assert_eq!((y, &from[..]), (vec![f32::NEG_INFINITY], &[NO_PIXEL][..]));
    assert_eq!(max_pool_backward(context, &[1.], &from, &s), [0.]);
}

prop_compose! {
    fn shapes(most_dilation: usize)(
        batch in 0..3usize, size in [1..10usize, 1..10usize], channels in 1..20usize,
        kernel in [1..5usize, 1..5usize], stride in [1..5usize, 1..5usize], dilation in [1..=most_dilation, 1..=most_dilation],
        padding in [[0..4usize, 0..4usize], [0..4usize, 0..4usize]], ceil in any::<bool>(),
    ) -> PoolShape {
        let mut window = Window { kernel, stride, dilation, padding };
        for axis in 0..2 {
            window.padding[axis] = padding[axis].map(|side| side.min(window.span(axis) - 1));
        }
        PoolShape { ceil, ..PoolShape::new([batch, size[0], size[1], channels], window) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, rng_seed: prop::test_runner::RngSeed::Fixed(7), ..ProptestConfig::default() })]

    #[test]
    fn averages_equal_their_definition(s in shapes(1)) {
        check_average(&s);
    }

    #[test]
    fn maxima_equal_their_definition(s in shapes(3), levels in prop::sample::select(vec![1f32, 3., 1e6])) {
        check_maximum(&s, levels);
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let s = PoolShape {
        ceil: true,
        ..PoolShape::new([3, 24, 20, 9], Window::square(3, 2, 1))
    };
    let x = values(in_len(&s), 1);
    let dy = values(windows(&s).len(), 2);
    let all = |threads: usize| -> Vec<u32> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let context = &Context::default();
        let results = pool.expect("a pool").install(|| {
            let (y, from) = max_pool_forward(context, &x, &s);
            [
                max_pool_backward(context, &dy, &from, &s),
                y,
                average_pool_forward(context, &x, &s, Divisor::Image),
                average_pool_backward(context, &dy, &s, Divisor::Image),
            ]
        });
        results.iter().flatten().map(|v| v.to_bits()).collect()
    };
    let one = all(1);
    assert!(one == all(2) && one == all(3));
}

#[test]
#[should_panic(expected = "a pooling needs a padding that is smaller than the window")]
fn a_padding_as_large_as_the_window_is_refused() {
    let shape = PoolShape::new([1, 4, 4, 1], Window::square(2, 1, 2));
    max_pool_forward(&Context::default(), &[0.; 16], &shape);
}

#[test]
#[should_panic(expected = "an average pool has no dilation")]
fn a_dilation_of_an_average_is_refused() {
    let mut shape = PoolShape::new([1, 4, 4, 1], Window::square(2, 1, 0));
    shape.window.dilation = [1, 2];
    average_pool_forward(&Context::default(), &[0.; 16], &shape, Divisor::Image);
}
