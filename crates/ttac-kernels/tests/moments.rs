//! Mean and variance of every image's every channel: the kernel against a plain loop in `f64` and against the statistics of a batch, then the op on tensors.

#![allow(missing_docs)]

mod comparison;

use comparison::values;
use ttac_kernels::Context;
use ttac_kernels::kernels::{Isa, batch_statistics, image_moments};

/// Of the deviation: a mean is corrected by the average of deviations, whose sums of at most 256 values in `f32` are off by some 16 half ulps.
const MEAN: f64 = 1e-6;
/// Of the mean itself: it is rounded once, by at most half an ulp of 6e-8.
const ROUNDING: f64 = 1e-7;
/// Of the variance: sums of at most 256 squares in `f32` are off by some 16 half ulps. The offset does not matter: `f32` values subtract exactly where they are close.
const VARIANCE: f64 = 2e-6;

/// `[batch, height, width, channels]`
type Shape = [usize; 4];

/// One value, few or many of everything, images of several chunks and of several tasks.
fn shapes() -> Vec<Shape> {
    let mut all = Vec::new();
    for channels in [1, 3, 17, 64] {
        for [height, width] in [[1, 1], [7, 5]] {
            all.extend([1, 5].map(|batch| [batch, height, width, channels]));
        }
    }
    all.extend([[2, 32, 32, 16], [3, 2, 2, 3000], [2, 200, 150, 9]]);
    all
}

/// Values of deviation 1 around an offset.
fn around(offset: f32, shape: Shape) -> Vec<f32> {
    let uniform = values(shape.iter().product(), 5);
    uniform.iter().map(|v| 3f32.sqrt() * v + offset).collect()
}

fn kernel(context: &Context, x: &[f32], shape: Shape) -> (Vec<f32>, Vec<f32>) {
    let [batch, height, width, channels] = shape;
    image_moments(context, x, [batch, height * width, channels])
}

/// Compares with sums straight from the definition.
fn check(context: &Context, offset: f32, shape: Shape) {
    let x = around(offset, shape);
    let [batch, height, width, channels] = shape;
    let (pixels, isa) = (height * width, context.isa());
    let (means, variances) = kernel(context, &x, shape);
    assert_eq!(
        [means.len(), variances.len()],
        [batch * channels; 2],
        "{shape:?}"
    );
    for at in 0..batch * channels {
        let (image, channel) = (at / channels, at % channels);
        let of_channel = |pixel: usize| f64::from(x[(image * pixels + pixel) * channels + channel]);
        let average = |f: &dyn Fn(f64) -> f64| {
            (0..pixels).map(|p| f(of_channel(p))).sum::<f64>() / pixels as f64
        };
        let mean = average(&|x| x);
        let variance = average(&|x| (x - mean).powi(2));
        for (what, found, exact, bound) in [
            (
                "mean",
                means[at],
                mean,
                ROUNDING * mean.abs() + MEAN * variance.sqrt(),
            ),
            ("variance", variances[at], variance, VARIANCE * variance),
        ] {
            let difference = (f64::from(found) - exact).abs();
            assert!(
                difference <= bound,
                "{what} of image {image}, channel {channel} of {shape:?} around {offset}, {isa:?}: {found} for {exact}, off by {difference:.1e}"
            );
        }
    }
}

#[test]
fn moments_are_those_of_a_plain_loop() {
    for isa in Isa::available() {
        let context = Context::new().with_isa(isa);
        for shape in shapes() {
            check(&context, 0.3, shape);
        }
    }
}

/// Where `E[x^2] - E[x]^2` in `f32` would be off by as much as the variance.
#[test]
fn a_large_offset_does_not_cancel() {
    for isa in Isa::available() {
        let context = Context::new().with_isa(isa);
        for shape in shapes() {
            check(&context, 1e3, shape);
        }
    }
}

#[test]
fn one_pixel_is_its_mean_and_does_not_vary() {
    let shape = [5, 1, 1, 17];
    let x = around(1e3, shape);
    let (mean, variance) = kernel(&Context::default(), &x, shape);
    assert_eq!(mean, x);
    assert_eq!(variance, [0.; 5 * 17]);
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn an_image_is_a_batch_of_its_own() {
    let context = &Context::default();
    for shape in shapes() {
        let (x, channels) = (around(0.3, shape), shape[3]);
        let (mean, variance) = kernel(context, &x, shape);
        let images = x.chunks(x.len() / shape[0]);
        for (n, image) in images.enumerate() {
            let range = n * channels..(n + 1) * channels;
            let alone = batch_statistics(context, image, channels);
            assert_eq!(bits(&mean[range.clone()]), bits(&alone.0), "{shape:?}");
            assert_eq!(bits(&variance[range]), bits(&alone.1), "{shape:?}");
        }
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    for shape in shapes() {
        let x = around(0.3, shape);
        let found = [1, 2, 3].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            let work = || kernel(&Context::default(), &x, shape);
            let (mean, variance) = pool.build().unwrap().install(work);
            [bits(&mean), bits(&variance)]
        });
        assert!(found[0] == found[1] && found[1] == found[2], "{shape:?}");
    }
}

#[test]
fn what_is_not_finite_stays_in_its_image_and_channel() {
    let shape = [3, 7, 5, 4];
    let clean = around(0.3, shape);
    let (clean_mean, clean_variance) = kernel(&Context::default(), &clean, shape);
    for broken in [f32::NAN, f32::INFINITY] {
        let mut x = clean.clone();
        x[(35 + 20) * 4 + 2] = broken;
        let (mean, variance) = kernel(&Context::default(), &x, shape);
        for at in 0..12 {
            if at == 4 + 2 {
                assert!(!mean[at].is_finite() && variance[at].is_nan());
            } else {
                assert_eq!(mean[at], clean_mean[at]);
                assert_eq!(variance[at], clean_variance[at]);
            }
        }
    }
}

#[test]
fn nothing_has_moments_of_zero() {
    let context = &Context::default();
    assert_eq!(image_moments(context, &[], [0, 4, 3]), (vec![], vec![]));
    assert_eq!(image_moments(context, &[], [2, 4, 0]), (vec![], vec![]));
    let zeros = || vec![0.; 6];
    assert_eq!(image_moments(context, &[], [2, 0, 3]), (zeros(), zeros()));
}

#[test]
#[should_panic(expected = "input of image moments: expected the shape [2, 4, 3], found 23 values")]
fn an_input_of_the_wrong_length_is_refused() {
    image_moments(&Context::default(), &[0.; 23], [2, 4, 3]);
}

#[cfg(feature = "burn")]
mod tensors {
    use burn::tensor::{Device, Tensor, TensorData};
    use ttac_kernels::{Context, Implementation, composed, image_moments};

    use super::{Shape, around, kernel, shapes};

    /// Of the largest value: Burn adds up an image of up to 30,000 pixels in `f32`, in an order of its own.
    const TOLERANCE: f32 = 2e-5;

    fn implementations() -> [Context; 2] {
        let composed = Context::new().with_implementation(Implementation::Composed);
        [Context::new(), composed]
    }

    fn read<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_to_vec().unwrap()
    }

    fn images(shape: Shape, device: &Device) -> Tensor<4> {
        Tensor::from_data(TensorData::new(around(0.3, shape), shape), device)
    }

    fn compare(what: &str, found: (Tensor<2>, Tensor<2>), expected: (Tensor<2>, Tensor<2>)) {
        for (found, expected) in [(found.0, expected.0), (found.1, expected.1)] {
            assert_eq!(found.dims(), expected.dims(), "{what}");
            let (found, expected) = (read(found), read(expected));
            let largest = expected.iter().fold(1f32, |m, e| m.max(e.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                let error = (found - expected).abs() / largest;
                assert!(error < TOLERANCE, "{what}: {found} for {expected}");
            }
        }
    }

    #[test]
    fn the_op_is_the_kernel_and_agrees_with_burns_ops() {
        for shape in shapes() {
            let x = images(shape, &Device::flex());
            let found = image_moments(x.clone());
            let expected = kernel(&Context::default(), &around(0.3, shape), shape);
            assert_eq!(
                (read(found.0.clone()), read(found.1.clone())),
                expected,
                "{shape:?}"
            );
            compare(&format!("{shape:?}"), found, composed::image_moments(x));
        }
    }

    #[test]
    fn a_view_has_the_moments_of_what_it_shows() {
        // [batch, channels, height, width], as PyTorch keeps images.
        let stored = images([5, 17, 7, 6], &Device::flex());
        let view = stored.permute([0, 2, 3, 1]).narrow(2, 1, 5);
        let expected = composed::image_moments(view.clone());
        compare("view", image_moments(view), expected);
    }

    /// Gradients of a loss are those with the moments as constants, for a leaf and for a result.
    #[test]
    fn moments_are_outside_the_graph() {
        let shape = [2, 7, 5, 3];
        for context in implementations() {
            for is_leaf in [true, false] {
                let leaf = images(shape, &Device::flex().autodiff()).require_grad();
                let x = if is_leaf {
                    leaf.clone()
                } else {
                    leaf.clone() * 2.
                };
                let (mean, variance) = context.scope(|| image_moments(x));
                assert!(!mean.is_require_grad() && !variance.is_require_grad());
                let sum = mean + variance;
                let other = sum.ones_like().require_grad();
                let gradients = (sum.clone() * other.clone()).sum().backward();
                assert!(leaf.grad(&gradients).is_none());
                assert_eq!(read(other.grad(&gradients).unwrap()), read(sum.inner()));
            }
        }
    }
}
