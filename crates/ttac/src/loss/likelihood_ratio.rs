//! The soft likelihood ratio, a loss that goes on rewarding predictions which are certain already.

use burn::tensor::{Tensor, activation::softmax};

/// Probabilities are clipped here, so that ratios stay finite.
const LARGEST: f64 = 0.99;

/// The number added to a ratio before its logarithm.
const EPSILON: f64 = 1e-5;

/// Computes for each prediction `-sum_k q_k ln(q_k / (1 - q_k) + 1e-5)`, where `q = min(softmax(logits), 0.99)` (Mummadi et al.,
/// 2021). Where the entropy of a certain prediction has hardly any gradient, the likelihood ratio still has one.
///
/// Maps `[batch, classes]` to `[batch, 1]`.
pub fn soft_likelihood_ratios(logits: Tensor<2>) -> Tensor<2> {
    let clipped = softmax(logits, 1).clamp_max(LARGEST);
    let ratio = clipped.clone() / (-clipped.clone() + 1.0);
    -(clipped * (ratio + EPSILON).log()).sum_dim(1)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    /// Logarithms of probabilities are logits of them.
    fn ratio(probabilities: [f32; 3]) -> f32 {
        let logits = Tensor::<2>::from_data([probabilities.map(f32::ln)], &Device::flex());
        soft_likelihood_ratios(logits).into_scalar()
    }

    #[test]
    fn certain_predictions_are_rewarded_most() {
        // The expected values have six decimals.
        assert!((ratio([0.7, 0.2, 0.1]) + 0.096_147).abs() < 2e-6);
        assert!((ratio([0.999, 0.0005, 0.0005]) + 4.541_588).abs() < 2e-5);
    }
}
