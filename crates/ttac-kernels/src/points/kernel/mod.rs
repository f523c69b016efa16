//! Clouds of points: nearest neighbours, the edge convolution of DGCNN, and pooling over a cloud.
//!
//! An edge convolution makes an edge from a point i to each of its k neighbours j, with the value `W1 (x_j - x_i) + W2 x_i`,
//! normalises over all edges, applies a leaky ReLU and takes the maximum over the neighbours. The product is linear, so
//!
//! ```text
//! e_ij = a_j + b_i,   a = W1 x,   b = (W2 - W1) x:
//! ```
//!
//! one product for a point instead of k for its edges. What follows it rises or falls with e, so the maximum over j is where
//! `a_j` is largest (smallest, where the scale of the norm is negative). Mean and variance of all edges, and the gradients, need
//! sums over the neighbours only. Nothing of the size of the edges is ever stored.
//!
//! Tasks are clouds, or rows of one; sums over tasks are added in their order.
//!
//! | file | what |
//! |---|---|
//! | `nearest` | nearest neighbours |
//! | `edge` | the edge convolution behind its product |
//! | `edge_gradient` | the gradients of that |
//! | `cloud` | pooling over a cloud |

mod cloud;
mod edge;
mod edge_gradient;
mod nearest;

pub use cloud::{CloudBackward, CloudGradients, CloudPooled, cloud_pool, cloud_pool_backward};
pub use edge::{EdgePooled, EdgeShape, edge_pool};
pub use edge_gradient::{EdgeBackward, EdgeGradients, edge_pool_backward};
pub use nearest::nearest;

/// The parameters of the norm and the activation behind the product.
#[derive(Clone, Copy, Debug)]
pub struct LeakyNorm<'a> {
    /// The scale of each channel.
    pub gamma: &'a [f32],
    /// The shift of each channel.
    pub beta: &'a [f32],
    /// A small number that is added to the variance under the square root.
    pub epsilon: f32,
    /// The slope of the activation below zero; it is above 0.
    pub slope: f32,
}

impl LeakyNorm<'_> {
    /// Panics unless all that belongs to channels is as long.
    fn check(&self, what: &str, mean: &[f32], variance: &[f32], channels: usize) {
        let found = [self.gamma, self.beta, mean, variance].map(<[f32]>::len);
        assert!(
            found == [channels; 4],
            "scale, shift, mean and variance of {what}: expected {channels} values each, found {found:?}"
        );
    }

    /// The derivative of `leaky` at `z`.
    #[inline(always)]
    fn slope_at(&self, z: f32) -> f32 {
        if z > 0.0 { 1.0 } else { self.slope }
    }

    fn inverse_deviations(&self, variance: &[f32]) -> Vec<f32> {
        let inverse = |&variance| inverse_deviation(variance, self.epsilon) as f32;
        variance.iter().map(inverse).collect()
    }
}

fn inverse_deviation(variance: f32, epsilon: f32) -> f64 {
    1.0 / (f64::from(variance) + f64::from(epsilon)).sqrt()
}

/// The gradients of shift and scale, added up over the clouds in their order.
struct Totals {
    beta: Vec<f64>,
    gamma: Vec<f64>,
}

impl Totals {
    fn of(parts: &[[Vec<f64>; 2]], channels: usize) -> Self {
        let total = |which: usize| -> Vec<f64> {
            (0..channels)
                .map(|c| parts.iter().map(|part| part[which][c]).sum())
                .collect()
        };
        Self {
            beta: total(0),
            gamma: total(1),
        }
    }

    /// What each of `count` normalised values passes on through mean and variance, by shift and by scale; nothing if the statistics were given.
    fn shares(&self, count: f64, batch_statistics: bool) -> [Vec<f32>; 2] {
        let count = if batch_statistics {
            count
        } else {
            f64::INFINITY
        };
        [&self.beta, &self.gamma].map(|sums| sums.iter().map(|&sum| (sum / count) as f32).collect())
    }

    /// The gradients of scale and shift.
    fn narrow(self) -> (Vec<f32>, Vec<f32>) {
        let narrow = |sums: Vec<f64>| sums.into_iter().map(|sum| sum as f32).collect();
        (narrow(self.gamma), narrow(self.beta))
    }
}
