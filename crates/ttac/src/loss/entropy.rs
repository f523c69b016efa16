//! Entropies of predictions.

use burn::tensor::{Tensor, activation::log_softmax};

/// The number added to a mean probability before its logarithm.
const LOG_EPSILON: f64 = 1e-5;

/// Computes the mean entropy of the predictions in a batch, `-sum_k p_k log p_k` with `p = softmax(logits)`. It is between 0 and `ln K`.
///
/// Maps `[batch, classes]` to `[1]`.
pub fn entropy(logits: Tensor<2>) -> Tensor<1> {
    entropies(logits).mean()
}

/// Computes the entropy of each prediction, `-sum_k p_k log p_k` with `p = softmax(logits)`.
///
/// Maps `[batch, classes]` to `[batch, 1]`.
pub fn entropies(logits: Tensor<2>) -> Tensor<2> {
    let log_probabilities = log_softmax(logits, 1);
    let probabilities = log_probabilities.clone().exp();
    -(probabilities * log_probabilities).sum_dim(1)
}

/// Computes the entropy of the mean of some predictions, `-sum_k q_k ln q_k` with `q = mean_i exp(l_i)`, from their logarithms `l`. It is
/// small if all predictions are certain of the same class.
///
/// Maps `[batch, classes]` to `[1]`.
pub fn entropy_of_mean(log_probabilities: Tensor<2>) -> Tensor<1> {
    let [count, _] = log_probabilities.dims();
    // By way of the largest, so that no probability is rounded to zero before its logarithm.
    let largest = log_probabilities.clone().detach().max_dim(0);
    let sum = (log_probabilities - largest.clone()).exp().sum_dim(0);
    let logarithms = sum.log() + largest - (count as f64).ln();
    -(logarithms.clone().exp() * logarithms).sum()
}

/// Computes the loss of information maximisation (SHOT), which is small if each prediction is certain and all classes occur in the batch:
/// `mean_i H(p_i) + sum_k q_k log(q_k + 1e-5)`, where `q` is the mean of the `p_i`.
///
/// Maps `[batch, classes]` to `[1]`.
pub fn information_maximisation(logits: Tensor<2>) -> Tensor<1> {
    let mean = log_softmax(logits.clone(), 1).exp().mean_dim(0);
    let diversity = (mean.clone() * (mean + LOG_EPSILON).log()).sum();
    entropy(logits) + diversity
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn certain_predictions_of_different_classes_are_uncertain_together() {
        let of = |rows: [[f32; 2]; 2]| {
            let logs = rows.map(|row| row.map(f32::ln));
            let logs = Tensor::<2>::from_data(logs, &Device::flex());
            entropy_of_mean(logs).into_scalar::<f32>()
        };
        // Single precision.
        assert!((of([[0.9, 0.1], [0.1, 0.9]]) - 2.0_f32.ln()).abs() < 1e-6);
        let alike = -(0.9 * 0.9_f32.ln() + 0.1 * 0.1_f32.ln());
        assert!((of([[0.9, 0.1], [0.9, 0.1]]) - alike).abs() < 1e-6);
        assert!(of([[1.0, 1e-30], [1.0, 1e-30]]).abs() < 1e-6);
    }
}
