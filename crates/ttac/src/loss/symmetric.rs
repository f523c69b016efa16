//! Symmetric cross-entropy between two predictions of the same sample.

use burn::tensor::{Tensor, activation::log_softmax};

/// Computes for each row half the cross-entropy of `a` against `b` plus half that of `b` against `a`:
/// `-1/2 sum_k (q_k ln p_k + p_k ln q_k)` with `p = softmax(a)` and `q = softmax(b)` (Wang et al., 2019). Gradients pass through both.
///
/// Maps two `[batch, classes]` to `[batch, 1]`.
pub fn symmetric_cross_entropies(a: Tensor<2>, b: Tensor<2>) -> Tensor<2> {
    let (log_p, log_q) = (log_softmax(a, 1), log_softmax(b, 1));
    let both = log_q.clone().exp() * log_p.clone() + log_p.exp() * log_q;
    both.sum_dim(1) * -0.5
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn neither_prediction_comes_first() {
        let logits = |probabilities: [f32; 3]| {
            Tensor::<2>::from_data([probabilities.map(f32::ln)], &Device::flex())
        };
        let (p, q) = ([0.7, 0.2, 0.1], [0.5, 0.4, 0.1]);
        for (a, b) in [(p, q), (q, p)] {
            let found = symmetric_cross_entropies(logits(a), logits(b)).into_scalar::<f32>();
            // The expected value has six decimals.
            assert!((found - 0.975_545).abs() < 2e-6, "{found}");
        }
    }
}
