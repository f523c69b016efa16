//! The entropy of an opinion: a prediction that may keep a share for "I do not know".

use burn::tensor::{Tensor, activation::log_softmax};
use serde::{Deserialize, Serialize};

use super::entropies;

/// The number added to a share before its logarithm.
const EPSILON: f64 = 1e-7;

/// By which measure predictions are uncertain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Uncertainty {
    /// The entropy of the softmax.
    #[default]
    Entropy,
    /// The entropy of the opinion, which is [`opinion_entropies`].
    Opinion,
}

impl Uncertainty {
    /// Computes the uncertainty of each prediction: `[batch, classes]` to `[batch, 1]`.
    pub fn of(self, logits: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Entropy => entropies(logits),
            Self::Opinion => opinion_entropies(logits),
        }
    }
}

/// Computes the entropy of each opinion (COME, Zhang et al., 2025). Besides the classes, with evidence `exp(z_k)`, an opinion has a share
/// for not knowing, with as much evidence as there are classes:
///
/// `-sum_v (v + 1e-7) ln(v + 1e-7)` over `v = exp(z_k) / (S + K)` and `v = K / (S + K)`, `S = sum_k exp(z_k)`.
///
/// The length of the logits gets no gradient, so that predictions do not become certain by growing alone.
///
/// Maps `[batch, classes]` to `[batch, 1]`.
pub fn opinion_entropies(logits: Tensor<2>) -> Tensor<2> {
    let [count, classes] = logits.dims();
    // Logits of zero have a length whose gradient is not a number.
    let length = (logits.clone().square().sum_dim(1) + 1e-24).sqrt();
    let held = logits / length.clone() * length.detach();
    let doubt = Tensor::full([count, 1], (classes as f64).ln(), &held.device());
    let shares = log_softmax(Tensor::cat(vec![held, doubt], 1), 1).exp() + EPSILON;
    -(shares.clone() * shares.log()).sum_dim(1)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn an_opinion_keeps_a_share_for_doubt() {
        let logits = Tensor::<2>::from_data([[2.0_f32, 0.0, -1.0]], &Device::flex());
        let found = opinion_entropies(logits).into_scalar::<f32>();
        // The expected value has six decimals.
        assert!((found - 0.958_433).abs() < 2e-6, "{found}");
        let equal = Tensor::<2>::from_data([[0.0_f32, 0.0, 0.0]], &Device::flex());
        assert!(opinion_entropies(equal).into_scalar::<f32>().is_finite());
    }

    #[test]
    fn longer_logits_are_not_rewarded() {
        let device = Device::flex().autodiff();
        let values = [2.0_f32, 0.0, -1.0];
        let logits = Tensor::<2>::from_data([values], &device).require_grad();
        let gradients = opinion_entropies(logits.clone()).sum().backward();
        let gradient = logits.grad(&gradients).unwrap().to_data();
        let gradient = gradient.try_to_vec::<f32>().unwrap();
        let along: f32 = gradient.iter().zip(values).map(|(g, z)| g * z).sum();
        // Zero but for single precision.
        assert!(along.abs() < 1e-6, "{gradient:?}");
        assert!(gradient.iter().any(|slope| slope.abs() > 1e-3));
    }
}
