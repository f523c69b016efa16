//! T3A: the classifier's rows replaced by prototypes of confident target features.

use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Variant};
use super::learner::{from_bytes, rows, to_bytes};
use super::{
    Classifier, Layers, Learned, Learner, LearnerConfig, Method, Minibatch, Needs, NormSource,
    Observed, Prediction, Stage,
};
use crate::backbone::NormMode;
use crate::{Error, Result, best};

pub(super) const ENTRY: Entry<T3aConfig> = Entry {
    variants: &[Variant {
        name: "t3a",
        about: "classifier adjusted by confident target features",
        preset: |_, _| T3aConfig::default(),
    }],
    needs: |_| Needs {
        layers: Some(Layers::LinearClassifier),
        rehearses: false,
        ..Needs::NETWORK
    },
    build: |config, network, _| {
        let learner = LearnerConfig {
            predicts: config.statistics.mode(),
            ..LearnerConfig::default()
        };
        Ok((learner, Box::new(T3a::new(config, network))))
    },
};

/// Constants of [`T3a`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct T3aConfig {
    /// Supports that each class keeps; none for all.
    pub supports: Option<usize>,
    /// Norm statistics of the forward passes. The TTAC paper's row can only be explained by
    /// statistics of the target.
    pub statistics: NormSource,
}

impl Default for T3aConfig {
    fn default() -> Self {
        Self {
            supports: Some(100),
            statistics: NormSource::Batch,
        }
    }
}

/// A feature that stands for its class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Support {
    /// Scaled to unit length, `[D]`.
    direction: Vec<f32>,
    entropy: f32,
}

/// Test-time template adjuster (Iwasawa and Matsuo, 2021).
///
/// # What it does
/// It keeps, for each class, the features that were classified into it with the least entropy, the
/// classifier's own rows first, and classifies by the angle to their sum. No parameter moves.
///
/// # When to use
/// Use it where backpropagation is too dear. It does not undo a shift of the features, only of the classes.
///
/// # Objective
/// `score_k = z . c_k / |c_k|`, `c_k` the sum of the supports of class `k`, each of unit length.
///
/// # State it keeps
/// It keeps the supports.
///
/// # Deviations
/// Without a bound on the supports all are kept; the public program then drops one of each class at
/// every call.
///
/// # Which logits are scored
/// Those after the batch has been inserted (adapt-first), or before (predict-first).
///
/// # References
/// `docs/methods.md`, T3A.
#[derive(Clone, Debug)]
pub struct T3a {
    config: T3aConfig,
    features: usize,
    supports: Vec<Vec<Support>>,
}

impl T3a {
    /// Starts from the classifier's rows, each in the class it is classified into.
    fn new(config: T3aConfig, network: &dyn Classifier) -> Self {
        let mut new = Self {
            config,
            features: network.num_features(),
            supports: vec![Vec::new(); network.num_classes()],
        };
        let rows = network.head_weights();
        new.insert(network, &rows.expect("needs were checked"));
        new
    }

    fn insert(&mut self, network: &dyn Classifier, features: &Tensor<2>) {
        let logits = rows(&network.logits(features.clone()));
        let values = rows(features);
        let classes = self.supports.len();
        let pairs = values
            .chunks_exact(self.features)
            .zip(logits.chunks_exact(classes));
        for (feature, logits) in pairs {
            let (class, entropy) = judge(logits);
            self.supports[class].push(Support {
                direction: unit(feature),
                entropy,
            });
        }
        let Some(most) = self.config.supports else {
            return;
        };
        for supports in &mut self.supports {
            // Stable: of equal entropies the older one stays.
            supports.sort_by(|a, b| a.entropy.total_cmp(&b.entropy));
            supports.truncate(most);
        }
    }

    fn scores(&self, features: Tensor<2>) -> Tensor<2> {
        let mut prototypes = Vec::with_capacity(self.supports.len() * self.features);
        for supports in &self.supports {
            let mut sum = vec![0.0; self.features];
            for support in supports {
                for (sum, value) in sum.iter_mut().zip(&support.direction) {
                    *sum += value;
                }
            }
            prototypes.extend(unit(&sum));
        }
        let shape = [self.supports.len(), self.features];
        let prototypes = TensorData::new(prototypes, shape);
        let prototypes = Tensor::<2>::from_data(prototypes, &features.device());
        features.matmul(prototypes.transpose())
    }
}

/// Finds the class with the largest score, and the entropy of the prediction.
fn judge(logits: &[f32]) -> (usize, f32) {
    let (class, largest) = best(logits);
    let sum: f32 = logits.iter().map(|z| (z - largest).exp()).sum();
    let entropy = logits.iter().map(|z| {
        let log_probability = z - largest - sum.ln();
        -log_probability.exp() * log_probability
    });
    (class, entropy.sum())
}

/// Scales a vector to length one; a vector of zeros stays zero.
fn unit(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
    vector.iter().map(|x| x / length).collect()
}

impl Method for T3a {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        let network = learner.frozen();
        let features = network.features(batch.images.clone(), learner.predicts());
        self.insert(network.as_ref(), &features);
        Ok(Learned::nothing())
    }

    fn predict(&self, network: &dyn Classifier, mode: NormMode, images: Tensor<4>) -> Tensor<2> {
        self.scores(network.features(images, mode))
    }

    fn observe(&mut self, learner: &mut Learner, batch: &Minibatch, order: Prediction) -> Observed {
        let network = learner.frozen();
        let features = network.features(batch.images.clone(), learner.predicts());
        let before = (order == Prediction::PredictFirst).then(|| self.scores(features.clone()));
        self.insert(network.as_ref(), &features);
        let scores = before.unwrap_or_else(|| self.scores(features));
        Ok((scores, Learned::nothing()))
    }

    fn state(&self) -> Vec<u8> {
        to_bytes(&self.supports)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let supports: Vec<Vec<Support>> = from_bytes(state)?;
        if supports.len() != self.supports.len() {
            return Err(Error::Mismatch {
                what: "saved supports".to_owned(),
                expected: format!("{} classes", self.supports.len()),
                found: format!("{} classes", supports.len()),
            });
        }
        self.supports = supports;
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}
