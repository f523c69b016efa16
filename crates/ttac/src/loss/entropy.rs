//! Entropies of predictions.

use burn::tensor::{Tensor, activation::log_softmax};

/// Added to a mean probability before its logarithm.
const LOG_EPSILON: f64 = 1e-5;

/// Mean over the batch of `-sum_k p_k log p_k` with `p = softmax(logits)`; between 0 and `ln K`.
///
/// `[batch, classes]` to `[1]`.
pub fn entropy(logits: Tensor<2>) -> Tensor<1> {
    let log_probabilities = log_softmax(logits, 1);
    let probabilities = log_probabilities.clone().exp();
    -(probabilities * log_probabilities).sum_dim(1).mean()
}

/// Certain on each sample, diverse over the batch (SHOT):
/// `mean_i H(p_i) + sum_k q_k log(q_k + 1e-5)` with `q` the mean of the `p_i`.
///
/// `[batch, classes]` to `[1]`.
pub fn information_maximisation(logits: Tensor<2>) -> Tensor<1> {
    let mean = log_softmax(logits.clone(), 1).exp().mean_dim(0);
    let diversity = (mean.clone() * (mean + LOG_EPSILON).log()).sum();
    entropy(logits) + diversity
}
