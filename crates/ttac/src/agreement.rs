//! Predictions of a batch that agree with those of similar samples: Laplacian adjusted maximum-likelihood estimation (LAME, Boudiaf et al.,
//! 2022), as a method of its own and as the last stage of any method.

use burn::tensor::{Tensor, TensorData, activation::softmax};
use serde::{Deserialize, Serialize};

/// How alike two samples of a batch are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Affinity {
    /// A Gaussian of the distance between features, as wide as the mean distance of a sample to its last neighbour.
    #[default]
    Rbf,
    /// One for the nearest other samples, zero for the rest.
    Nearest,
    /// The cosine between features.
    Linear,
}

/// How far predictions are moved to those of similar samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Agreement {
    /// How alike two samples are.
    pub affinity: Affinity,
    /// How many neighbours a sample has. With `rbf` the sample itself is the first of them.
    pub neighbours: usize,
    /// The mean sum of a row of affinities, to which they are scaled, so that the pull does not grow with the batch; none leaves them
    /// as they are.
    pub pull: Option<f64>,
    /// How often predictions are moved, at most.
    pub iterations: usize,
}

impl Default for Agreement {
    fn default() -> Self {
        Self {
            affinity: Affinity::Nearest,
            neighbours: 5,
            pull: Some(4.0),
            iterations: 100,
        }
    }
}

impl Agreement {
    /// Lists what is wrong with the numbers.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.neighbours == 0 {
            problems.push("`neighbours` must be at least 1, found 0".to_owned());
        }
        if let Some(pull) = self.pull.filter(|pull| !(0.0..=1e6).contains(pull)) {
            problems.push(format!("`pull` must be 0 to 1000000, found {pull}"));
        }
        problems
    }

    /// Moves the predictions of scores, `[batch, classes]`, to those of samples whose features, `[batch, D]`, are alike, and returns
    /// their logarithms. `strength` scales affinities once more; at zero predictions stay.
    pub(crate) fn apply(self, scores: Tensor<2>, features: &Tensor<2>, strength: f64) -> Tensor<2> {
        let [count, classes] = scores.dims();
        let [_, length] = features.dims();
        let device = scores.device();
        let mut affinities = Affinities::of(&self, &rows(features), length);
        for value in &mut affinities.values {
            *value *= strength;
        }
        let predictions = rows(&softmax(scores, 1)).into_iter().map(f64::from);
        let predictions: Vec<f64> = predictions.collect();
        let moved = affinities.agree(&predictions, classes, self.iterations);
        let moved: Vec<f32> = moved.into_iter().map(|log| log as f32).collect();
        Tensor::from_data(TensorData::new(moved, [count, classes]), &device)
    }
}

fn rows(matrix: &Tensor<2>) -> Vec<f32> {
    matrix.to_data().try_to_vec().expect("tensors are f32")
}

/// How much each sample of a batch is drawn to each other one, `[n, n]`.
struct Affinities {
    count: usize,
    values: Vec<f64>,
}

impl Affinities {
    /// Compares samples by their features, `[n, length]`.
    fn of(config: &Agreement, features: &[f32], length: usize) -> Self {
        let units: Vec<Vec<f64>> = features.chunks_exact(length.max(1)).map(unit).collect();
        let count = units.len();
        let values = match config.affinity {
            Affinity::Linear => pairwise(&units, |a, b| a.iter().zip(b).map(|(a, b)| a * b).sum()),
            Affinity::Rbf => gaussian(&pairwise(&units, distance), count, config.neighbours),
            Affinity::Nearest => nearest(&pairwise(&units, distance), count, config.neighbours),
        };
        let mut affinities = Self { count, values };
        if let Some(pull) = config.pull {
            affinities.scale(pull);
        }
        affinities
    }

    /// Scales affinities so that their rows have this sum on average.
    fn scale(&mut self, pull: f64) {
        let mean = self.values.iter().sum::<f64>() / self.count.max(1) as f64;
        // Cosines may cancel each other out, or worse.
        if mean > f64::EPSILON {
            for value in &mut self.values {
                *value *= pull / mean;
            }
        }
    }

    /// Sums the predictions of the samples that each one is drawn to, `[n, K]`.
    fn gather(&self, predictions: &[f64], classes: usize) -> Vec<f64> {
        let mut sums = vec![0.0; predictions.len()];
        let rows = self.values.chunks_exact(self.count.max(1));
        for (sum, row) in sums.chunks_exact_mut(classes).zip(rows) {
            for (affinity, prediction) in row.iter().zip(predictions.chunks_exact(classes)) {
                for (sum, value) in sum.iter_mut().zip(prediction) {
                    *sum += affinity * value;
                }
            }
        }
        sums
    }

    /// Moves predictions, `[n, K]`, until they agree with those of similar samples; returns their logarithms.
    fn agree(&self, predictions: &[f64], classes: usize, iterations: usize) -> Vec<f64> {
        let unary: Vec<f64> = predictions.iter().map(|p| (p + 1e-10).ln()).collect();
        let mut moved = predictions.to_vec();
        let mut logarithms: Vec<f64> = moved.iter().map(|p| p.max(1e-45).ln()).collect();
        let mut before = f64::INFINITY;
        for iteration in 0..iterations {
            let sums = self.gather(&moved, classes);
            let pulled = unary.iter().zip(&sums).map(|(unary, sum)| unary + sum);
            logarithms = pulled.collect();
            for row in logarithms.chunks_exact_mut(classes) {
                normalise(row);
            }
            moved = logarithms.iter().map(|log| log.exp()).collect();
            let parts = moved.iter().zip(&unary).zip(&sums);
            let energy: f64 = parts
                .map(|((y, unary), sum)| y * (y.max(1e-20).ln() - unary - sum))
                .sum();
            // The energy of the first two iterations is not looked at.
            if iteration >= 2 && (energy - before).abs() <= 1e-8 * before.abs() {
                break;
            }
            before = energy;
        }
        logarithms
    }
}

/// Takes off the logarithm of the sum of exponentials, so that the exponentials add up to one.
fn normalise(row: &mut [f64]) {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = row.iter().map(|value| (value - largest).exp()).sum();
    for value in row.iter_mut() {
        *value -= largest + sum.ln();
    }
}

/// Scales a feature to length one; a feature of zeros stays zero.
fn unit(feature: &[f32]) -> Vec<f64> {
    let values = || feature.iter().map(|&value| f64::from(value));
    let length = values().map(|value| value * value).sum::<f64>().sqrt();
    values().map(|value| value / length.max(1e-12)).collect()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    let squares = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b));
    squares.sum::<f64>().sqrt()
}

fn pairwise(units: &[Vec<f64>], compare: impl Fn(&[f64], &[f64]) -> f64) -> Vec<f64> {
    let pairs = units.iter().flat_map(|a| units.iter().map(move |b| (a, b)));
    pairs.map(|(a, b)| compare(a, b)).collect()
}

/// Makes distances, `[n, n]`, values of a Gaussian as wide as the mean distance to the last of `neighbours`.
fn gaussian(distances: &[f64], count: usize, neighbours: usize) -> Vec<f64> {
    let last = neighbours.clamp(1, count.max(1)) - 1;
    let farthest = distances.chunks_exact(count.max(1)).map(|row| {
        let mut row = row.to_vec();
        row.sort_by(f64::total_cmp);
        row[last]
    });
    let width = farthest.sum::<f64>() / count.max(1) as f64;
    let value = |&distance: &f64| {
        if width > 0.0 {
            (-0.5 * (distance / width).powi(2)).exp()
        } else {
            f64::from(u8::from(distance == 0.0))
        }
    };
    distances.iter().map(value).collect()
}

/// Gives one to the nearest others of each sample, and zero to the rest. Of equally near ones the first count.
fn nearest(distances: &[f64], count: usize, neighbours: usize) -> Vec<f64> {
    let mut values = vec![0.0; distances.len()];
    let rows = distances.chunks_exact(count.max(1)).enumerate();
    for (own, row) in rows {
        let mut others: Vec<usize> = (0..count).filter(|&other| other != own).collect();
        others.sort_by(|&a, &b| row[a].total_cmp(&row[b]));
        for &other in others.iter().take(neighbours) {
            values[own * count + other] = 1.0;
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREDICTIONS: [f64; 4] = [0.6, 0.4, 0.3, 0.7];

    fn moved(values: [f64; 4], iterations: usize) -> Vec<f64> {
        let affinities = Affinities {
            count: 2,
            values: values.to_vec(),
        };
        let moved = affinities.agree(&PREDICTIONS, 2, iterations);
        moved.into_iter().map(f64::exp).collect()
    }

    #[test]
    fn without_affinities_predictions_stay() {
        for (found, expected) in moved([0.0; 4], 100).iter().zip(PREDICTIONS) {
            // Predictions are raised by 1e-10 before their logarithm.
            assert!((found - expected).abs() < 1e-9);
        }
    }

    #[test]
    fn two_samples_agree() {
        let affinities = [1.0, 0.6, 0.6, 1.0];
        let first = moved(affinities, 1);
        // The expected values have six decimals, those of the fixed point four.
        assert!((first[0] - 0.590_363).abs() < 1e-6 && (first[2] - 0.244_660).abs() < 1e-6);
        let last = moved(affinities, 100);
        assert!((last[0] - 0.5172).abs() < 1e-4 && (last[2] - 0.1907).abs() < 1e-4);
    }

    #[test]
    fn a_gaussian_is_as_wide_as_the_distance_to_the_last_neighbour() {
        // Three points on a line at 0, 1 and 3; the second neighbour counts the point itself.
        let distances = [0.0, 1.0, 3.0, 1.0, 0.0, 2.0, 3.0, 2.0, 0.0];
        let found = gaussian(&distances, 3, 2);
        let width: f64 = (1.0 + 1.0 + 2.0) / 3.0;
        let expected = (-0.5 * (1.0 / width).powi(2)).exp();
        assert!((found[1] - expected).abs() < 1e-12, "the same formula");
        assert_eq!(found[0], 1.0, "a sample is its own neighbour");
    }

    #[test]
    fn one_sample_and_equal_samples_have_finite_affinities() {
        for affinity in [Affinity::Rbf, Affinity::Nearest, Affinity::Linear] {
            let config = Agreement {
                affinity,
                pull: None,
                ..Agreement::default()
            };
            for features in [vec![1.0, 2.0], vec![0.0; 6], [1.0, 2.0].repeat(9)] {
                let found = Affinities::of(&config, &features, 2).values;
                assert!(found.iter().all(|value| value.is_finite()), "{affinity:?}");
            }
        }
    }

    #[test]
    fn the_nearest_are_others_and_need_not_be_mutual() {
        let distances = [0.0, 1.0, 3.0, 1.0, 0.0, 2.0, 3.0, 2.0, 0.0];
        let found = nearest(&distances, 3, 1);
        assert_eq!(found, [0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    }

    #[test]
    fn a_pull_is_the_mean_sum_of_a_row() {
        let mut affinities = Affinities {
            count: 2,
            values: vec![1.0, 0.5, 0.5, 1.0],
        };
        affinities.scale(3.0);
        assert_eq!(affinities.values, [2.0, 1.0, 1.0, 2.0]);
    }
}
