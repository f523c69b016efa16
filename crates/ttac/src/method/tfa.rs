//! TFA and TTT++: feature moments aligned with the source's, with or without contrastive learning.

use burn::tensor::{Tensor, TensorData};
use faer::MatRef;
use serde::{Deserialize, Serialize};
use ttac_kernels::loss_with_gradient;

use super::entry::{Entry, Variant};
use super::learner::{from_bytes, rows, to_bytes};
use super::terms::Terms;
use super::{
    FirstPasses, Head, Learned, Learner, LearnerConfig, Lesson, Method, Minibatch, Needs,
    NormUpdates, Stage, Wants,
};
use crate::optim::OptimiserConfig;
use crate::stats::{Alignment, Covariance, CovarianceKind, Moments, SourceStatistics};
use crate::{Error, Result};

pub(super) const ENTRY: Entry<TfaConfig> = Entry {
    variants: &[
        Variant {
            name: "tfa",
            about: "feature moments aligned with the anchors'",
            preset: |preset, _| TfaConfig {
                norm: NormUpdates::of(preset),
                ..TfaConfig::default()
            },
        },
        Variant {
            name: "ttt++",
            about: "the same with contrastive learning; needs a joint model",
            preset: |preset, _| TfaConfig {
                norm: NormUpdates::of(preset),
                ..TfaConfig::ttt_plus_plus()
            },
        },
    ],
    needs: |config| Needs {
        anchors: true,
        head: config.contrastive.then_some(Head::Projection),
        views: if config.contrastive {
            Wants::Contrastive
        } else {
            Wants::Nothing
        },
        // A single sample has no covariance.
        fewest_samples: 2,
        first_passes: FirstPasses {
            norms: 2,
            contrastive: usize::from(config.contrastive),
        },
        ..Needs::NETWORK
    },
    build: |config, _, anchors| {
        let learner = LearnerConfig {
            norm: config.norm,
            ..LearnerConfig::stepping(config.optimiser, config.learning_rate)
        };
        let anchors = anchors.expect("needs were checked");
        Ok((learner, Box::new(Tfa::new(config, anchors)?)))
    },
};

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
    /// Returns the constants of TTT++: contrastive learning, and alignment of features and projections.
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
/// It draws mean and covariance of the target's features to those of the source. TTT++ adds the
/// contrastive loss that the source was trained with, and aligns its projections too.
///
/// # When to use
/// Use TFA for a plain source model with anchors; TTT++ for one trained jointly.
///
/// # Objective
/// `s / a_c * |C_s - C_t|_F^2 / 4D^2 + s / 2a_m * |mu_s - mu_t|^2 / D`, with `a_c` and `a_m` the mean of either
/// distance between batches of the source. `C_t` is divided by `n - 1`.
///
/// # State it keeps
/// It keeps a ring of past features; the learner keeps weights, momentum and running norm statistics.
///
/// # Which logits are scored
/// Those of a forward pass with running statistics.
///
/// # References
/// `docs/methods.md`, TFA and TTT++.
#[derive(Clone, Debug)]
pub struct Tfa {
    config: TfaConfig,
    features: Layer,
    projections: Option<Layer>,
}

/// A layer whose outputs are aligned: the source's moments, and past outputs of the target.
#[derive(Clone, Debug)]
struct Layer {
    source: Alignment,
    ring: Ring,
    weight: f64,
    /// Names of its covariance and mean terms.
    names: [&'static str; 2],
}

impl Tfa {
    /// Builds the method around the source's alignment moments.
    fn new(config: TfaConfig, anchors: &SourceStatistics) -> Result<Self> {
        let absent = |what: &'static str| Error::NoAlignment { layer: what };
        let source = anchors.alignment.clone();
        let features = Layer {
            source: source.ok_or_else(|| absent("features"))?,
            ring: Ring::default(),
            weight: config.feature_weight,
            names: ["feature_covariance", "feature_mean"],
        };
        let projections = if config.projection_weight > 0.0 {
            let source = anchors.projection_alignment.clone();
            Some(Layer {
                source: source.ok_or_else(|| absent("projections"))?,
                ring: Ring::default(),
                weight: config.projection_weight,
                names: ["projection_covariance", "projection_mean"],
            })
        } else {
            None
        };
        Ok(Self {
            config,
            features,
            projections,
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

/// Computes both distances of a minibatch joined with its ring, weighted, and their gradient, `[b, D]`.
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

impl Layer {
    /// Adds the loss of a layer's outputs, `[batch, size]`, and keeps the outputs.
    fn align(&mut self, outputs: Tensor<2>, length: usize, terms: &mut Terms) {
        let [count, size] = outputs.dims();
        let values = rows(&outputs);
        let (covariance, mean, gradient) = align(&values, &self.ring, &self.source, self.weight);
        self.ring.push(&values, size, length);
        terms.losses.push((self.names[0], covariance));
        terms.losses.push((self.names[1], mean));
        let gradient = TensorData::new(gradient, [count, size]);
        let gradient = Tensor::from_data(gradient, &outputs.device());
        terms.join(loss_with_gradient(
            outputs,
            gradient,
            (covariance + mean) as f32,
        ));
    }
}

impl Method for Tfa {
    fn learn(
        &mut self,
        learner: &mut Learner,
        batch: &Minibatch,
        stage: &Stage,
    ) -> Result<Learned> {
        if stage.lesson == Lesson::Norms {
            // On the images or views that the method learns from.
            let images = batch.views.as_ref().map_or(&batch.images, |v| &v.images);
            learner.follow_norms(images.clone());
            return Ok(Learned::nothing());
        }
        let mut terms = Terms::default();
        if let Some(views) = &batch.views {
            terms.add_contrastive(learner, views);
        }
        if stage.lesson == Lesson::Contrastive {
            return Ok(terms.step(learner));
        }
        let length = self.config.ring_length;
        let features = learner.features(batch.images.clone());
        self.features.align(features, length, &mut terms);
        if let Some(layer) = &mut self.projections {
            // A second pass, which moves the running statistics once more, as published.
            let features = learner.features(batch.images.clone());
            let outputs = learner.network().projection(features);
            layer.align(outputs.expect("needs were checked"), length, &mut terms);
        }
        Ok(terms.step(learner))
    }

    fn state(&self) -> Vec<u8> {
        let projections = self.projections.as_ref().map(|layer| &layer.ring);
        to_bytes(&(&self.features.ring, projections))
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let (features, projections): (Ring, Option<Ring>) = from_bytes(state)?;
        self.features.ring = features;
        if let (Some(layer), Some(ring)) = (&mut self.projections, projections) {
            layer.ring = ring;
        }
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}
