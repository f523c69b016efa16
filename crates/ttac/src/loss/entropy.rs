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

/// Computes the loss of information maximisation (SHOT), which is small if each prediction is certain and all classes occur in the batch:
/// `mean_i H(p_i) + sum_k q_k log(q_k + 1e-5)`, where `q` is the mean of the `p_i`.
///
/// Maps `[batch, classes]` to `[1]`.
pub fn information_maximisation(logits: Tensor<2>) -> Tensor<1> {
    let mean = log_softmax(logits.clone(), 1).exp().mean_dim(0);
    let diversity = (mean.clone() * (mean + LOG_EPSILON).log()).sum();
    entropy(logits) + diversity
}
