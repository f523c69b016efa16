//! Generalised cross-entropy, which bounds what a sample with a wrong label can cost.

use burn::tensor::{Tensor, activation::log_softmax};

/// Computes for each prediction the generalised cross-entropy against its own class, `(1 - p_c^q) / q` with `p = softmax(logits)` and
/// `c = argmax p` (Zhang and Sabuncu, 2018). As `q` goes to zero it becomes the cross-entropy `-ln p_c`, and with `q = 1` it is `1 - p_c`.
///
/// Maps `[batch, classes]` to `[batch, 1]`.
pub fn generalised_cross_entropies(logits: Tensor<2>, q: f64) -> Tensor<2> {
    let powers = (log_softmax(logits, 1).max_dim(1) * q).exp();
    (-powers + 1.0) / q
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn a_certain_prediction_costs_less() {
        let logits = [[0.7_f32, 0.2, 0.1].map(f32::ln)];
        let logits = Tensor::<2>::from_data(logits, &Device::flex());
        let found = generalised_cross_entropies(logits.clone(), 0.8).into_scalar::<f32>();
        // The expected value has six decimals.
        assert!((found - 0.310_302).abs() < 2e-6, "{found}");
        let last = generalised_cross_entropies(logits, 1.0).into_scalar::<f32>();
        assert!((last - 0.3).abs() < 1e-6, "{last}");
    }

    #[test]
    fn the_gradient_is_that_of_the_cross_entropy_times_a_power() {
        let device = Device::flex().autodiff();
        let p = [0.7_f32, 0.2, 0.1];
        let logits = Tensor::<2>::from_data([p.map(f32::ln)], &device).require_grad();
        let loss = generalised_cross_entropies(logits.clone(), 0.8).sum();
        let gradient = logits.grad(&loss.backward()).unwrap().to_data();
        let gradient = gradient.try_to_vec::<f32>().unwrap();
        let power = 0.7_f32.powf(0.8);
        let expected = [p[0] - 1.0, p[1], p[2]].map(|slope| power * slope);
        for (found, expected) in gradient.iter().zip(expected) {
            // Single precision.
            assert!((found - expected).abs() < 1e-6, "{gradient:?}");
        }
    }
}
