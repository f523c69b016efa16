//! How unlike the average prediction a sample is predicted, and how certainly: the weights of ROID.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The average prediction of a stream, `[K]`, and the weights of samples by it:
///
/// ```text
/// w_i = exp(sharpness a_i c_i),    a_i = 1 - cos(q, p_i),    c_i = -H(p_i)
/// ```
///
/// `a` and `c` are scaled to 0 to 1 over the batch. After a batch the average moves, `q <- q + share (mean_i p_i - q)`; it starts uniform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct AveragePrediction(Vec<f64>);

/// The weight of each sample of a batch, and how diverse it is, from 0 to 1.
pub(super) struct Weights {
    pub weights: Vec<f32>,
    pub diversity: Vec<f64>,
}

impl AveragePrediction {
    /// Starts with all classes alike.
    pub fn uniform(classes: usize) -> Self {
        Self(vec![1.0 / classes as f64; classes])
    }

    /// Weighs samples by their probabilities, `[batch, K]`.
    pub fn weigh(&self, probabilities: &[f32], sharpness: f64) -> Weights {
        let predictions = || probabilities.chunks_exact(self.0.len());
        let diversity = scaled(predictions().map(|row| 1.0 - self.likeness(row)).collect());
        let certainty = scaled(predictions().map(|row| -entropy(row)).collect());
        let pairs = diversity.iter().zip(certainty);
        let weights = pairs.map(|(diverse, certain)| (sharpness * diverse * certain).exp() as f32);
        Weights {
            weights: weights.collect(),
            diversity,
        }
    }

    /// Returns the cosine between a prediction and the average one.
    fn likeness(&self, prediction: &[f32]) -> f64 {
        let prediction = || prediction.iter().map(|&p| f64::from(p));
        let product: f64 = self.0.iter().zip(prediction()).map(|(q, p)| q * p).sum();
        let lengths: f64 =
            self.0.iter().map(|q| q * q).sum::<f64>() * prediction().map(|p| p * p).sum::<f64>();
        product / lengths.sqrt()
    }

    /// Moves the average by all samples of a batch.
    pub fn follow(&mut self, probabilities: &[f32], share: f64) {
        let classes = self.0.len();
        let count = (probabilities.len() / classes).max(1) as f64;
        for (class, average) in self.0.iter_mut().enumerate() {
            let own = probabilities.iter().skip(class).step_by(classes);
            let mean = own.map(|&p| f64::from(p)).sum::<f64>() / count;
            *average = (1.0 - share) * *average + share * mean;
        }
    }

    /// Refuses a saved average of another number of classes.
    pub fn check_saved(&self, saved: &Self) -> Result<()> {
        if saved.0.len() == self.0.len() {
            return Ok(());
        }
        Err(Error::Mismatch {
            what: "saved average prediction".to_owned(),
            expected: format!("{} classes", self.0.len()),
            found: format!("{} classes", saved.0.len()),
        })
    }
}

/// Scales values to 0 to 1; values that are all equal become zero.
fn scaled(values: Vec<f64>) -> Vec<f64> {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let range = most - least;
    let scaled = |value: f64| {
        if range > 0.0 {
            (value - least) / range
        } else {
            0.0
        }
    };
    values.into_iter().map(scaled).collect()
}

/// Computes the entropy of a prediction.
fn entropy(prediction: &[f32]) -> f64 {
    let parts = prediction.iter().map(|&p| f64::from(p));
    // A probability of zero has no part in it.
    -parts.filter(|&p| p > 0.0).map(|p| p * p.ln()).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two alike samples of class 0, a certain and an uncertain one of class 1.
    const BATCH: [f32; 12] = [
        0.8, 0.1, 0.1, //
        0.8, 0.1, 0.1, //
        0.01, 0.98, 0.01, //
        0.2, 0.5, 0.3,
    ];

    #[test]
    fn unlike_and_certain_samples_count_most() {
        let average = AveragePrediction(vec![0.9, 0.05, 0.05]);
        let Weights { weights, diversity } = average.weigh(&BATCH, 3.0);
        assert_eq!(diversity[..2], [0.0, 0.0]);
        // The most diverse sample is the most certain one too, so both are scaled to one.
        assert!((weights[2] - 3.0_f32.exp()).abs() < 1e-4, "{weights:?}");
        // Samples like the average and the least certain one have a scaled value of zero.
        assert_eq!([weights[0], weights[1], weights[3]], [1.0; 3]);
    }

    #[test]
    fn a_batch_of_equals_has_finite_weights() {
        let average = AveragePrediction::uniform(3);
        for prediction in [[0.8, 0.1, 0.1], [1.0, 0.0, 0.0]] {
            let weights = average.weigh(&prediction.repeat(4), 3.0).weights;
            assert_eq!(weights, [1.0; 4], "nothing tells them apart");
        }
    }

    #[test]
    fn the_average_is_of_all_samples_and_starts_uniform() {
        let mut average = AveragePrediction::uniform(3);
        average.follow(&BATCH, 0.1);
        let means = [1.81 / 4.0, 1.68 / 4.0, 0.51 / 4.0];
        for (found, mean) in average.0.iter().zip(means) {
            // Probabilities are single precision.
            assert!((found - (0.9 / 3.0 + 0.1 * mean)).abs() < 1e-7);
        }
    }

    #[test]
    fn an_average_of_other_classes_is_refused() {
        let average = AveragePrediction::uniform(3);
        average.check_saved(&AveragePrediction::uniform(3)).unwrap();
        for classes in [0, 2, 4] {
            let saved = AveragePrediction::uniform(classes);
            assert!(average.check_saved(&saved).is_err(), "{classes}");
        }
    }
}
