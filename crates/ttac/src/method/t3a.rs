//! T3A: the classifier's rows replaced by prototypes of confident target features.

use std::collections::BTreeMap;

use burn::tensor::{Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::learner::{from_bytes, rows, to_bytes};
use super::{Learned, Method, Minibatch, Stage, Statistics};
use crate::archive::Arrays;
use crate::backbone::{Backbone, NormMode, tensors};
use crate::{Result, best};

/// Constants of [`T3a`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct T3aConfig {
    /// Supports that each class keeps; none for all.
    pub supports: Option<usize>,
    /// Norm statistics of the forward passes. The TTAC paper's row can only be explained by
    /// statistics of the target.
    pub statistics: Statistics,
}

impl Default for T3aConfig {
    fn default() -> Self {
        Self {
            supports: Some(100),
            statistics: Statistics::Batch,
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
/// Keeps, for each class, the features that were classified into it with the least entropy, the
/// classifier's own rows first, and classifies by the angle to their sum. No parameter moves.
///
/// # When to use
/// Where backpropagation is too dear. It does not undo a shift of the features, only of the classes.
///
/// # Objective
/// `score_k = z . c_k / |c_k|`, `c_k` the sum of the supports of class `k`, each of unit length.
///
/// # State it keeps
/// The supports.
///
/// # Deviations
/// Without a bound on the supports all are kept; the public program then drops one of each class at
/// every call.
///
/// # Which logits are scored
/// Those after the batch has been inserted (adapt-first), or before (predict-first).
///
/// # References
/// METHODS 9.4.
#[derive(Clone, Debug)]
pub struct T3a<B: Backbone> {
    config: T3aConfig,
    network: B,
    supports: Vec<Vec<Support>>,
}

impl<B: Backbone> T3a<B> {
    /// Of a trained network.
    pub fn new(network: B, config: T3aConfig) -> Self {
        let supports = vec![Vec::new(); network.num_classes()];
        let mut new = Self {
            config,
            network,
            supports,
        };
        new.start();
        new
    }

    /// The classifier's rows, each in the class it is classified into.
    fn start(&mut self) {
        self.supports.iter_mut().for_each(Vec::clear);
        self.insert(&self.network.head_weights());
    }

    fn insert(&mut self, features: &Tensor<2>) {
        let logits = rows(&self.network.logits(features.clone()));
        let values = rows(features);
        let classes = self.supports.len();
        let pairs = values
            .chunks_exact(self.network.num_features())
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
        let size = self.network.num_features();
        let mut prototypes = Vec::with_capacity(self.supports.len() * size);
        for supports in &self.supports {
            let mut sum = vec![0.0; size];
            for support in supports {
                for (sum, value) in sum.iter_mut().zip(&support.direction) {
                    *sum += value;
                }
            }
            prototypes.extend(unit(&sum));
        }
        let shape = [self.supports.len(), size];
        let prototypes = TensorData::new(prototypes, shape);
        let prototypes = Tensor::<2>::from_data(prototypes, &features.device());
        features.matmul(prototypes.transpose())
    }
}

/// The class with the largest score, and the entropy of the prediction.
fn judge(logits: &[f32]) -> (usize, f32) {
    let (class, largest) = best(logits);
    let sum: f32 = logits.iter().map(|z| (z - largest).exp()).sum();
    let entropy = logits.iter().map(|z| {
        let log_probability = z - largest - sum.ln();
        -log_probability.exp() * log_probability
    });
    (class, entropy.sum())
}

/// Of length one, or zero if it was.
fn unit(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
    vector.iter().map(|x| x / length).collect()
}

impl<B: Backbone + 'static> Method for T3a<B> {
    fn name(&self) -> &'static str {
        "t3a"
    }

    fn rehearses(&self) -> bool {
        false
    }

    fn learn(&mut self, minibatch: &Minibatch, _: &Stage) -> Result<Learned> {
        let features = self.features(minibatch.images.clone());
        self.insert(&features);
        Ok(Learned::nothing())
    }

    fn predict(&self, images: Tensor<4>) -> Tensor<2> {
        self.scores(self.features(images))
    }

    fn features(&self, images: Tensor<4>) -> Tensor<2> {
        let mode = match self.config.statistics {
            Statistics::Batch => NormMode::Batch,
            Statistics::Running => NormMode::Running,
        };
        self.network.features(images, mode)
    }

    fn learn_then_predict(
        &mut self,
        arriving: &Minibatch,
        _: &Stage,
    ) -> Result<(Tensor<2>, Learned)> {
        let features = self.features(arriving.images.clone());
        self.insert(&features);
        Ok((self.scores(features), Learned::nothing()))
    }

    fn reset(&mut self) {
        self.start();
    }

    fn weights(&self) -> BTreeMap<String, TensorData> {
        tensors(&self.network)
    }

    fn save(&self, arrays: &mut Arrays) -> Result<()> {
        arrays.insert("supports", to_bytes(&self.supports));
        Ok(())
    }

    fn load(&mut self, arrays: &mut Arrays) -> Result<()> {
        self.supports = from_bytes(&arrays.u8("supports")?)?;
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}
