//! TFA and TTT++: feature moments aligned with the source's, with or without contrastive learning.

use std::collections::BTreeMap;

use burn::tensor::{Tensor, TensorData};
use faer::MatRef;
use serde::{Deserialize, Serialize};
use ttac_kernels::loss_with_gradient;

use super::learner::{from_bytes, rows, to_bytes, value};
use super::{FirstPasses, Learned, Learner, Lesson, Method, Minibatch, NormUpdates, Stage, Wants};
use crate::archive::Arrays;
use crate::backbone::{Adaptable, Backbone, NormMode, tensors};
use crate::loss::contrastive;
use crate::optim::OptimiserConfig;
use crate::stats::{Alignment, Covariance, CovarianceKind, Moments, SourceStatistics};
use crate::{Error, Result};

/// Constants of [`Tfa`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TfaConfig {
    /// The optimiser.
    pub optimiser: OptimiserConfig,
    /// Its learning rate.
    pub learning_rate: f64,
    /// Weight of the alignment of features.
    pub feature_weight: f64,
    /// Weight of the alignment of projections; zero for none.
    pub projection_weight: f64,
    /// Past features that join the minibatch, once there are so many.
    pub ring_length: usize,
    /// Whether the contrastive loss is added: TTT++.
    pub contrastive: bool,
    /// How the running norm statistics follow.
    pub norm: NormUpdates,
}

impl Default for TfaConfig {
    fn default() -> Self {
        Self {
            optimiser: OptimiserConfig::SGD,
            learning_rate: 0.01,
            feature_weight: 0.05,
            projection_weight: 0.0,
            ring_length: 1280,
            contrastive: false,
            norm: NormUpdates::default(),
        }
    }
}

impl TfaConfig {
    /// TTT++: contrastive learning and alignment of features and projections.
    pub fn ttt_plus_plus() -> Self {
        Self {
            contrastive: true,
            projection_weight: 0.2,
            ..Self::default()
        }
    }
}

/// Test-time feature alignment, and with `contrastive` TTT++ (Liu et al., 2021).
///
/// # What it does
/// Draws mean and covariance of the target's features to those of the source. TTT++ adds the
/// contrastive loss that the source was trained with, and aligns its projections too.
///
/// # When to use
/// TFA for a plain source model with anchors; TTT++ for one trained jointly.
///
/// # Objective
/// `s / a_c * |C_s - C_t|_F^2 / 4D^2 + s / 2a_m * |mu_s - mu_t|^2 / D`, with `a_c` and `a_m` the mean of either
/// distance between batches of the source. `C_t` is divided by `n - 1`.
///
/// # State it keeps
/// Weights, momentum, running norm statistics, a ring of past features.
///
/// # Which logits are scored
/// A forward pass with running statistics.
///
/// # References
/// METHODS 6.3, 9.7.
#[derive(Clone, Debug)]
pub struct Tfa<B: Backbone> {
    config: TfaConfig,
    learner: Learner<B>,
    features: Alignment,
    projections: Option<Alignment>,
    rings: Rings,
}

/// Past outputs of both layers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Rings {
    features: Ring,
    projections: Ring,
}

impl<B: Backbone> Tfa<B> {
    /// Of a trained network with its statistics.
    pub fn new(network: B, source: &SourceStatistics, config: TfaConfig) -> Result<Self> {
        let absent = |what: &str| Error::Invalid {
            what: "anchors",
            problem: format!(
                "they have no alignment moments of the {what}; make them of more images, or with a smaller `--alignment-batch`"
            ),
        };
        let features = source.alignment.clone().ok_or_else(|| absent("features"))?;
        let projections = if config.projection_weight > 0.0 {
            let found = source.projection_alignment.clone();
            Some(found.ok_or_else(|| absent("projections"))?)
        } else {
            None
        };
        if config.contrastive && !network.has_projection() {
            return Err(super::config::no_head(
                "ttt++",
                "a projection head",
                "simclr",
            ));
        }
        let (optimiser, rate) = (config.optimiser, config.learning_rate);
        Ok(Self {
            learner: Learner::new(network, Adaptable::Features, optimiser, rate, config.norm),
            config,
            features,
            projections,
            rings: Rings::default(),
        })
    }
}

/// Past outputs without gradients, which count only once there are enough of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Ring {
    /// `[length, D]`.
    rows: Vec<f32>,
    /// Where the next rows go.
    next: usize,
    full: bool,
}

impl Ring {
    /// Overwrites the oldest rows; what does not fit at the end is dropped, as published.
    fn push(&mut self, rows: &[f32], size: usize, length: usize) {
        self.rows.resize(length * size, 0.0);
        let count = (rows.len() / size).min(length - self.next);
        let place = self.next * size..(self.next + count) * size;
        self.rows[place].copy_from_slice(&rows[..count * size]);
        self.next = (self.next + rows.len() / size) % length;
        self.full |= self.next < rows.len() / size;
    }
}

/// Both distances of a minibatch joined with its ring, weighted, and their gradient, `[b, D]`.
fn align(rows: &[f32], ring: &Ring, source: &Alignment, weight: f64) -> (f64, f64, Vec<f32>) {
    let size = source.mean.len();
    let d = size as f64;
    let mut moments = Moments::new(size, CovarianceKind::Full);
    moments.update(rows);
    if ring.full {
        moments.update(&ring.rows);
    }
    let n = moments.count() as f64;
    let mean = moments.mean();
    let Covariance::Full(mut difference) = moments.covariance() else {
        unreachable!("alignment keeps full covariances")
    };
    for (value, source) in difference.iter_mut().zip(&source.covariance) {
        *value = *value * n / (n - 1.0) - source;
    }
    let of_covariance = weight / source.covariance_scale / (4.0 * d * d);
    let of_mean = 0.5 * weight / source.mean_scale / d;
    let covariance_loss = of_covariance * difference.iter().map(|x| x * x).sum::<f64>();
    let shift: Vec<f64> = mean.iter().zip(&source.mean).map(|(t, s)| t - s).collect();
    let mean_loss = of_mean * shift.iter().map(|x| x * x).sum::<f64>();
    // d|C_t - C_s|^2 / df_i = 4 / (n - 1) (C_t - C_s)(f_i - mean), d|mu_t - mu_s|^2 / df_i = 2 / n (mu_t - mu_s).
    let centred: Vec<f64> = rows
        .chunks_exact(size)
        .flat_map(|row| row.iter().zip(&mean).map(|(&f, m)| f64::from(f) - m))
        .collect();
    let count = rows.len() / size;
    let pulled = MatRef::from_row_major_slice(&centred, count, size)
        * MatRef::from_row_major_slice(&difference, size, size);
    let mut gradient = Vec::with_capacity(rows.len());
    for i in 0..count {
        gradient.extend((0..size).map(|j| {
            let covariance = 4.0 * of_covariance / (n - 1.0) * pulled[(i, j)];
            (covariance + 2.0 * of_mean / n * shift[j]) as f32
        }));
    }
    (covariance_loss, mean_loss, gradient)
}

/// The loss of a layer's outputs as one that autodiff understands.
fn alignment_loss(
    outputs: Tensor<2>,
    ring: &mut Ring,
    source: &Alignment,
    weight: f64,
    length: usize,
    names: [&'static str; 2],
    losses: &mut Vec<(&'static str, f64)>,
) -> Tensor<1> {
    let [count, size] = outputs.dims();
    let values = rows(&outputs);
    let (covariance, mean, gradient) = align(&values, ring, source, weight);
    ring.push(&values, size, length);
    losses.push((names[0], covariance));
    losses.push((names[1], mean));
    let gradient = TensorData::new(gradient, [count, size]);
    let gradient = Tensor::from_data(gradient, &outputs.device());
    loss_with_gradient(outputs, gradient, (covariance + mean) as f32)
}

impl<B: Backbone + 'static> Method for Tfa<B> {
    fn name(&self) -> &'static str {
        if self.config.contrastive {
            "ttt++"
        } else {
            "tfa"
        }
    }

    fn wants(&self) -> Wants {
        if self.config.contrastive {
            Wants::Contrastive
        } else {
            Wants::Nothing
        }
    }

    fn first_passes(&self) -> FirstPasses {
        FirstPasses {
            norms: 2,
            contrastive: usize::from(self.config.contrastive),
        }
    }

    fn learn(&mut self, minibatch: &Minibatch, stage: &Stage) -> Result<Learned> {
        let mut losses = Vec::new();
        let mut sum: Option<Tensor<1>> = None;
        let mut add = |loss: Tensor<1>| {
            sum = Some(match sum.take() {
                Some(sum) => sum + loss,
                None => loss,
            });
        };
        if let Some(views) = &minibatch.views {
            let mode = self.learner.updating();
            let network = self.learner.network();
            let features = network.features(Tensor::from_inner(views.images.clone()), mode);
            let projections = network.projection(features).expect("checked when made");
            let loss = contrastive(projections);
            losses.push(("contrastive", value(&loss)));
            add(loss);
        }
        let images = Tensor::from_inner(minibatch.images.clone());
        match stage.lesson {
            Lesson::Norms => {
                if !self.config.contrastive {
                    let mode = self.learner.updating();
                    self.learner.network().features(images, mode);
                }
                return Ok(Learned::nothing());
            }
            Lesson::Contrastive => {
                if let Some(loss) = &sum {
                    self.learner.step(loss);
                }
                return Ok(Learned::one_step(losses));
            }
            Lesson::All => {}
        }
        let mode = self.learner.updating();
        let features = self.learner.network().features(images.clone(), mode);
        let (weight, length) = (self.config.feature_weight, self.config.ring_length);
        let names = ["feature_covariance", "feature_mean"];
        let ring = &mut self.rings.features;
        add(alignment_loss(
            features,
            ring,
            &self.features,
            weight,
            length,
            names,
            &mut losses,
        ));
        if let Some(source) = &self.projections {
            // A second pass, which moves the running statistics once more, as published.
            let mode = self.learner.updating();
            let network = self.learner.network();
            let outputs = network.projection(network.features(images, mode));
            let outputs = outputs.expect("checked when made");
            let weight = self.config.projection_weight;
            let names = ["projection_covariance", "projection_mean"];
            let ring = &mut self.rings.projections;
            add(alignment_loss(
                outputs,
                ring,
                source,
                weight,
                length,
                names,
                &mut losses,
            ));
        }
        self.learner
            .step(&sum.expect("features are always aligned"));
        Ok(Learned::one_step(losses))
    }

    fn predict(&self, images: Tensor<4>) -> Tensor<2> {
        self.learner.frozen().forward(images, NormMode::Running)
    }

    fn features(&self, images: Tensor<4>) -> Tensor<2> {
        self.learner.frozen().features(images, NormMode::Running)
    }

    fn reset(&mut self) {
        self.learner.reset();
        self.rings = Rings::default();
    }

    fn drift(&self) -> Option<f64> {
        Some(self.learner.drift())
    }

    fn weights(&self) -> BTreeMap<String, TensorData> {
        tensors(&self.learner.frozen())
    }

    fn save(&self, arrays: &mut Arrays) -> Result<()> {
        arrays.insert("rings", to_bytes(&self.rings));
        self.learner.save(arrays)
    }

    fn load(&mut self, arrays: &mut Arrays) -> Result<()> {
        self.rings = from_bytes(&arrays.u8("rings")?)?;
        self.learner.load(arrays)
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}
