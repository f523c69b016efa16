//! Scores corrected by how often each class is predicted in the batch: the output stage of ROID.

use burn::tensor::{Tensor, activation::softmax};

/// Multiplies the scores of each class by its smoothed share in the batch, `[batch, classes]`:
/// `pi' = (pi + s) / (1 + s K)`, where `pi` is the mean prediction and `s = max(1/n, 1/K) / max_k pi_k`.
pub(super) fn corrected(scores: Tensor<2>) -> Tensor<2> {
    let [count, classes] = scores.dims();
    let shares = softmax(scores.clone(), 1).mean_dim(0);
    let least = (1.0 / count.max(1) as f64).max(1.0 / classes.max(1) as f64);
    let smoothing = shares.clone().max_dim(1).recip() * least;
    let smoothed = (shares + smoothing.clone()) / (smoothing * classes as f64 + 1.0);
    scores * smoothed
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn scores_are_multiplied_by_smoothed_shares() {
        let scores = [[2.0_f32, 0.0, -1.0], [1.5, 1.4, -2.0]];
        let found = corrected(Tensor::from_data(scores, &Device::flex())).to_data();
        let found = found.try_to_vec::<f32>().unwrap();
        let shares = [0.441_590, 0.320_094, 0.238_316];
        for (place, value) in found.iter().enumerate() {
            let expected = scores[place / 3][place % 3] * shares[place % 3];
            // The expected shares have six decimals, and scores are at most two.
            assert!((value - expected).abs() < 3e-6, "{value}, not {expected}");
        }
    }

    /// The released program multiplies, where Bayes' rule would add logarithms.
    #[test]
    fn a_small_share_raises_a_negative_score() {
        let sure = [[3.0_f32, -3.0]; 4].concat();
        let scores = [sure, vec![-1.0, -1.05]].concat();
        let scores = burn::tensor::TensorData::new(scores, [5, 2]);
        let found = corrected(Tensor::from_data(scores, &Device::flex())).to_data();
        let found = found.try_to_vec::<f32>().unwrap();
        assert!(found[8] < found[9], "the second class is the rarer one");
    }

    #[test]
    fn one_sample_and_equal_scores_stay_finite() {
        for scores in [[[0.0_f32, 0.0, 0.0]], [[100.0, -100.0, 0.0]]] {
            let found = corrected(Tensor::from_data(scores, &Device::flex())).to_data();
            let found = found.try_to_vec::<f32>().unwrap();
            assert!(found.iter().all(|value| value.is_finite()), "{found:?}");
        }
    }
}
