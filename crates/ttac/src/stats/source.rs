//! Source statistics, called anchors.

mod file;

use serde::{Deserialize, Serialize};

use super::{CovarianceKind, Gaussian, Importance};
use crate::checkpoint::Augmentation;
use crate::gate::Calibration;
use crate::norms::NormReference;
use crate::{Error, Result};

/// Where the class of a source sample comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceLabels {
    /// The network's own prediction, as in the released program.
    #[default]
    Predicted,
    /// The label of the data set.
    True,
}

/// How source statistics were made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The fingerprint of the network that made the features.
    pub backbone: String,
    /// The name of the data set.
    pub data: String,
    /// The number of samples.
    pub samples: u64,
    /// How the images were varied.
    pub transform: Augmentation,
    /// Where the class of each sample came from.
    pub labels: SourceLabels,
    /// The seed of the variation and of the order.
    pub seed: u64,
}

/// The mean and covariance of a layer's outputs, and the natural scales of two losses on them.
///
/// TTT++ and TFA align features with these: see "Alignment moments" in `docs/methods.md`.
#[derive(Clone, Debug, PartialEq)]
pub struct Alignment {
    /// The mean, `[D]`.
    pub mean: Vec<f64>,
    /// The covariance, `[D, D]`, divided by one less than the number of samples.
    pub covariance: Vec<f64>,
    /// The mean distance of covariances between two batches of source samples.
    pub covariance_scale: f64,
    /// The mean distance of means between two batches of source samples.
    pub mean_scale: f64,
    /// The number of samples in such a batch.
    pub batch: usize,
}

/// The statistics of the source's features: one Gaussian for every class and one for all features.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceStatistics {
    /// How the statistics were made.
    pub origin: Origin,
    /// The Gaussian of all features.
    pub global: Gaussian,
    /// The Gaussian of the features of every class.
    pub classes: Vec<Gaussian>,
    /// The number of samples that every class had.
    pub counts: Vec<u64>,
    /// The Gaussian of all outputs of the projection head, where there is one.
    pub projection: Option<Gaussian>,
    /// The moments that feature alignment needs, if there were enough samples.
    pub alignment: Option<Alignment>,
    /// The same for the outputs of the projection head.
    pub projection_alignment: Option<Alignment>,
    /// What the batch norms see of source images as they are; files of older versions have none.
    pub norms: Option<NormReference>,
    /// What the source's scores look like on images it should answer well; `None` without a calibration.
    pub calibration: Option<Calibration>,
    /// How much each scale and shift of the norms matters to the source; files of older versions have none.
    pub importance: Option<Importance>,
}

impl SourceStatistics {
    /// Refuses statistics of another network.
    pub fn check_backbone(&self, fingerprint: &str) -> Result<()> {
        if self.origin.backbone == fingerprint {
            return Ok(());
        }
        Err(Error::Mismatch {
            what: "anchors do not belong to this model: fingerprint".to_owned(),
            expected: format!("`{fingerprint}` of the model"),
            found: format!("`{}` in the anchors", self.origin.backbone),
        })
    }

    /// Returns the length of a feature vector.
    pub fn num_features(&self) -> usize {
        self.global.dimension()
    }

    /// Estimates the size of a file with such statistics in bytes. Matrices are nearly all of it: 4
    /// bytes for a number of the classes and of the global covariance, 8 for the rest.
    pub fn estimated_bytes(classes: usize, features: usize, kind: CovarianceKind) -> u64 {
        let (k, d) = (classes as u64, features as u64);
        let per_class = match kind {
            CovarianceKind::Full => d * d,
            CovarianceKind::Diagonal => d,
        };
        4 * k * (d + per_class) + 4 * d * d + 8 * (d + d * d)
    }
}
