//! Ops on clouds of points, `[batch, points, channels]`.

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};

use super::burn::PointOps;
use super::composed;
use super::kernel::nearest;
use crate::core::buffer::{dense, values};
use crate::core::extension::{StatisticsSource, flex, kernels_for};
use crate::norm::ops::Normalised;
use crate::{Context, ConvOptions, conv2d};

/// Settings of the norm and the activation behind a product on clouds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeakyNormOptions {
    /// A small number that is added to the variance under the square root.
    pub epsilon: f32,
    /// Slope of the activation below zero, above 0: `leaky(z) = max(z, slope z)`.
    pub slope: f32,
}

/// The nearest neighbours of every point, as [`edge_conv`] wants them.
#[derive(Clone, Debug)]
pub struct Neighbours(Found);

#[derive(Clone, Debug)]
enum Found {
    Host(HostNeighbours),
    Device(Tensor<3, Int>),
}

/// Neighbours in main memory: positions within each cloud, `[batch, points, k]`.
#[derive(Clone, Debug)]
pub struct HostNeighbours {
    pub(super) k: usize,
    pub(super) indices: Arc<Vec<u32>>,
}

impl Neighbours {
    /// Finds the `k` nearest points of every point of `x`, `[batch, points, channels]`, by Euclidean distance, itself included.
    ///
    /// # Panics
    /// If there are fewer points than `k`, or `k` is not 1 to 255.
    pub fn nearest(x: &Tensor<3>, k: usize) -> Self {
        let [_, points, channels] = x.dims();
        assert!(
            (1..=255).contains(&k) && k <= points,
            "nearest: {k} neighbours among {points} points"
        );
        let Some(context) = kernels_for(x) else {
            return Self(Found::Device(composed::nearest(x.clone(), k)));
        };
        let x = dense(flex(x.clone().detach().without_autodiff()));
        let indices = Arc::new(nearest(&context, values(&x), points, channels, k));
        Self(Found::Host(HostNeighbours { k, indices }))
    }

    /// Returns the positions within each cloud, `[batch, points, k]` in row-major order, for tests.
    pub fn to_vec(&self) -> Vec<u32> {
        match &self.0 {
            Found::Host(host) => host.indices.to_vec(),
            Found::Device(indices) => {
                let data = indices.to_data().convert::<i64>();
                let indices = data.try_to_vec::<i64>().expect("indices are integers");
                indices.into_iter().map(|index| index as u32).collect()
            }
        }
    }
}

/// Does an edge convolution (Wang et al., 2019) with the norm, activation and pooling that follow it:
///
/// `y_i = max over neighbours j of leaky(norm(W [x_j - x_i, x_i]))`.
///
/// Without `statistics`, mean and biased variance over all edges of the batch are used and differentiated through; given
/// statistics are constants. Which points are neighbours is not differentiated.
///
/// # Shapes
/// - `x`: `[batch, points, in_channels]`
/// - `weight`: `[out_channels, 2 in_channels]`
/// - `gamma`, `beta`, `mean`, `variance`: `[out_channels]`
/// - `y`: `[batch, points, out_channels]`
///
/// # Panics
/// If the shapes do not fit together.
pub fn edge_conv(
    x: Tensor<3>,
    weight: Tensor<2>,
    neighbours: &Neighbours,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    statistics: Option<(Tensor<1>, Tensor<1>)>,
    options: LeakyNormOptions,
) -> Normalised<3> {
    let ([batch, points, inputs], [outputs, width]) = (x.dims(), weight.dims());
    assert!(
        width == 2 * inputs && gamma.dims() == [outputs] && beta.dims() == [outputs],
        "edge_conv: input {:?} does not fit weight {:?} and scale {:?}",
        x.dims(),
        weight.dims(),
        gamma.dims()
    );
    let host = match &neighbours.0 {
        Found::Device(indices) => {
            let (indices, affine) = (indices.clone(), (gamma, beta));
            return composed::edge_conv(x, weight, indices, affine, statistics, options);
        }
        Found::Host(host) => host.clone(),
    };
    // W [x_j - x_i, x_i] = W1 x_j + (W2 - W1) x_i, see `points::kernel`.
    let near = weight.clone().slice_dim(1, 0..inputs);
    let own = weight.slice_dim(1, inputs..2 * inputs) - near.clone();
    let weight = Tensor::cat(vec![near, own], 0).reshape([2 * outputs, inputs, 1, 1]);
    let rows = x.reshape([1, batch, points, inputs]);
    let once = ConvOptions::square(1, 0);
    let ab = conv2d(rows, weight, once).reshape([batch, points, 2 * outputs]);
    Normalised::from_dispatch(Dispatch::fast_edge_pool(
        ab.into_dispatch(),
        gamma.into_dispatch(),
        beta.into_dispatch(),
        StatisticsSource::new(statistics),
        host,
        options,
        Context::current(),
    ))
}

/// Takes maximum and mean over the points of `leaky(norm(x))`, side by side. Statistics as in [`edge_conv`], over all points.
///
/// # Shapes
/// - `x`: `[batch, points, channels]`
/// - `gamma`, `beta`, `mean`, `variance`: `[channels]`
/// - `y`: `[batch, 2 channels]`
///
/// # Panics
/// If the shapes do not fit together.
pub fn cloud_pool(
    x: Tensor<3>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    statistics: Option<(Tensor<1>, Tensor<1>)>,
    options: LeakyNormOptions,
) -> Normalised<2> {
    let [_, points, channels] = x.dims();
    assert!(
        points > 0 && gamma.dims() == [channels] && beta.dims() == [channels],
        "cloud_pool: input {:?} does not fit scale {:?}",
        x.dims(),
        gamma.dims()
    );
    let Some(context) = kernels_for(&x) else {
        return composed::cloud_pool(x, (gamma, beta), statistics, options);
    };
    Normalised::from_dispatch(Dispatch::fast_cloud_pool(
        x.into_dispatch(),
        gamma.into_dispatch(),
        beta.into_dispatch(),
        StatisticsSource::new(statistics),
        options,
        context,
    ))
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    const OPTIONS: LeakyNormOptions = LeakyNormOptions {
        epsilon: 1e-5,
        slope: 0.2,
    };

    /// Largest difference over largest magnitude, of single-precision sums of some hundred terms in different orders.
    const TOLERANCE: f32 = 2e-5;

    fn numbers<const D: usize>(seed: u32, shape: [usize; D], device: &Device) -> Tensor<D> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 0.9
        };
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
        Tensor::from_data(TensorData::new(values, shape), device)
    }

    fn close<const D: usize>(what: &str, found: &Tensor<D>, expected: &Tensor<D>) {
        assert_eq!(found.dims(), expected.dims(), "{what}");
        let values = |tensor: &Tensor<D>| tensor.to_data().try_to_vec::<f32>().unwrap();
        let (found, expected) = (values(found), values(expected));
        let largest = expected
            .iter()
            .fold(f32::MIN_POSITIVE, |a, b| a.max(b.abs()));
        let differences = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        let worst = differences.fold(0.0, f32::max);
        assert!(worst <= TOLERANCE * largest, "{what}: {worst} of {largest}");
    }

    /// Result, mean, variance and gradients of input, scale and shift.
    struct Outcome {
        y: Tensor<2>,
        vectors: [Tensor<1>; 4],
        dx: Tensor<3>,
        dw: Option<Tensor<2>>,
    }

    impl Outcome {
        fn compare(&self, what: &str, expected: &Self) {
            close(&format!("{what}: result"), &self.y, &expected.y);
            let names = ["mean", "variance", "scale gradient", "shift gradient"];
            for (name, (found, expected)) in
                names.iter().zip(self.vectors.iter().zip(&expected.vectors))
            {
                close(&format!("{what}: {name}"), found, expected);
            }
            close(&format!("{what}: input gradient"), &self.dx, &expected.dx);
            if let (Some(found), Some(expected)) = (&self.dw, &expected.dw) {
                close(&format!("{what}: weight gradient"), found, expected);
            }
        }
    }

    fn statistics(given: bool, channels: usize, device: &Device) -> Option<(Tensor<1>, Tensor<1>)> {
        given.then(|| {
            let variance = numbers(9, [channels], device).abs() + 0.5;
            (numbers(8, [channels], device), variance)
        })
    }

    fn vectors(statistics: [Tensor<1>; 2], gradients: [Tensor<1>; 2]) -> [Tensor<1>; 4] {
        let ([mean, variance], [gamma, beta]) = (statistics, gradients);
        [
            mean.without_autodiff(),
            variance.without_autodiff(),
            gamma,
            beta,
        ]
    }

    fn edges(kernels: bool, given: bool) -> Outcome {
        let device = Device::flex().autodiff();
        // Odd sizes: neither points nor channels fill vectors.
        let (points, inputs, outputs, k) = (37, 5, 39, 7);
        let x = numbers(1, [3, points, inputs], &device).require_grad();
        let weight = numbers(2, [outputs, 2 * inputs], &device).require_grad();
        // Scales of both signs: where it is negative, the largest edge has the smallest product.
        let gamma = numbers(3, [outputs], &device).require_grad();
        let beta = numbers(4, [outputs], &device).require_grad();
        let neighbours = if kernels {
            Neighbours::nearest(&x, k)
        } else {
            Neighbours(Found::Device(composed::nearest(x.clone(), k)))
        };
        let (w, g, b) = (weight.clone(), gamma.clone(), beta.clone());
        let given = statistics(given, outputs, &device);
        let out = edge_conv(x.clone(), w, &neighbours, g, b, given, OPTIONS);
        let loss = (out.y.clone() * numbers(5, [3, points, outputs], &device)).sum();
        let grads = loss.backward();
        let affine = [gamma, beta].map(|leaf| leaf.grad(&grads).unwrap());
        Outcome {
            y: out.y.without_autodiff().reshape([3 * points, outputs]),
            vectors: vectors([out.mean, out.variance], affine),
            dx: x.grad(&grads).unwrap(),
            dw: weight.grad(&grads),
        }
    }

    fn pool(kernels: bool, given: bool) -> Outcome {
        let device = Device::flex().autodiff();
        let (points, channels) = (41, 21);
        let x = numbers(1, [3, points, channels], &device).require_grad();
        let gamma = numbers(3, [channels], &device).require_grad();
        let beta = numbers(4, [channels], &device).require_grad();
        let given = statistics(given, channels, &device);
        let (input, affine) = (x.clone(), (gamma.clone(), beta.clone()));
        let out = if kernels {
            cloud_pool(input, affine.0, affine.1, given, OPTIONS)
        } else {
            composed::cloud_pool(input, affine, given, OPTIONS)
        };
        let loss = (out.y.clone() * numbers(5, [3, 2 * channels], &device)).sum();
        let grads = loss.backward();
        let affine = [gamma, beta].map(|leaf| leaf.grad(&grads).unwrap());
        Outcome {
            y: out.y.without_autodiff(),
            vectors: vectors([out.mean, out.variance], affine),
            dx: x.grad(&grads).unwrap(),
            dw: None,
        }
    }

    #[test]
    fn kernels_equal_the_compositions() {
        for given in [false, true] {
            let what = |op: &str| format!("{op}, statistics given: {given}");
            edges(true, given).compare(&what("edge convolution"), &edges(false, given));
            pool(true, given).compare(&what("pooling"), &pool(false, given));
        }
    }
}
