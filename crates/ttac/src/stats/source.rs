//! Source statistics: the anchors, with everything that says whose they are.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Covariance, CovarianceKind, Gaussian};
use crate::archive::{self, Array, Arrays, Kind};
use crate::checkpoint::Augmentation;
use crate::{Error, Result};

/// Version of the header. A file with another one is refused.
const FORMAT: u32 = 1;

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

/// How the statistics were made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Fingerprint of the network that made the features.
    pub backbone: String,
    /// Name of the data set.
    pub data: String,
    /// How many samples.
    pub samples: u64,
    /// How the images were varied.
    pub transform: Augmentation,
    /// Where classes come from.
    pub labels: SourceLabels,
    /// Seed of the variation and of the order.
    pub seed: u64,
}

/// Mean and covariance of a layer's outputs, and the natural scales of two losses on them: what
/// TTT++ and TFA align with (METHODS 6.3).
#[derive(Clone, Debug, PartialEq)]
pub struct Alignment {
    /// `[D]`.
    pub mean: Vec<f64>,
    /// `[D, D]`, divided by one less than the number of samples.
    pub covariance: Vec<f64>,
    /// Mean distance of covariances between two batches of source samples.
    pub covariance_scale: f64,
    /// Mean distance of means between two batches of source samples.
    pub mean_scale: f64,
    /// Samples in such a batch.
    pub batch: usize,
}

/// What is known of the source: one Gaussian for every class and one for all features.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceStatistics {
    /// How they were made.
    pub origin: Origin,
    /// Of all features.
    pub global: Gaussian,
    /// Of the features of every class.
    pub classes: Vec<Gaussian>,
    /// How many samples every class had.
    pub counts: Vec<u64>,
    /// Of all outputs of the projection head, where there is one.
    pub projection: Option<Gaussian>,
    /// For feature alignment, where there were enough samples.
    pub alignment: Option<Alignment>,
    /// The same for the outputs of the projection head.
    pub projection_alignment: Option<Alignment>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: u32,
    origin: Origin,
    features: usize,
    projection: Option<usize>,
    counts: Vec<u64>,
    class_covariance: CovarianceName,
    alignment_batch: Option<usize>,
}

/// How class covariances are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CovarianceName {
    Full,
    Diagonal,
    LowRank,
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

    /// Length of a feature vector.
    pub fn num_features(&self) -> usize {
        self.global.dimension()
    }

    /// Bytes of a file with such statistics, of which the matrices are nearly all: 4 for a number
    /// of the classes and of the global covariance, 8 for the rest.
    pub fn estimated_bytes(classes: usize, features: usize, kind: CovarianceKind) -> u64 {
        let (k, d) = (classes as u64, features as u64);
        let per_class = match kind {
            CovarianceKind::Full => d * d,
            CovarianceKind::Diagonal => d,
        };
        4 * k * (d + per_class) + 4 * d * d + 8 * (d + d * d)
    }

    /// Writes them, atomically.
    pub fn save(&self, path: &Path) -> Result<()> {
        let (header, arrays) = self.to_parts();
        archive::save(path, Kind::Anchors, &header, &arrays)
    }

    /// Reads and checks them.
    pub fn load(path: &Path) -> Result<Self> {
        let (header, arrays): (Header, _) = archive::load(path, Kind::Anchors)?;
        if header.format != FORMAT {
            return Err(Error::Format {
                path: path.to_owned(),
                expected: Kind::Anchors.description(),
                problem: format!("header version {}, expected {FORMAT}", header.format),
                hint: Some("make the anchors again with `ttac anchors`".to_owned()),
            });
        }
        Self::from_parts(header, arrays)
    }

    fn to_parts(&self) -> (Header, Arrays) {
        let mut arrays = Arrays::default();
        let features = self.num_features();
        let name = match self.classes.first().map(Gaussian::covariance) {
            Some(Covariance::Diagonal(_)) => CovarianceName::Diagonal,
            Some(Covariance::LowRank { .. }) => CovarianceName::LowRank,
            _ => CovarianceName::Full,
        };
        insert(&mut arrays, "global", &self.global);
        for (class, gaussian) in self.classes.iter().enumerate() {
            insert(&mut arrays, &format!("class.{class}"), gaussian);
        }
        if let Some(projection) = &self.projection {
            insert(&mut arrays, "projection", projection);
        }
        let alignments = [
            ("alignment", &self.alignment),
            ("projection_alignment", &self.projection_alignment),
        ];
        for (name, alignment) in alignments {
            if let Some(alignment) = alignment {
                alignment.insert(&mut arrays, name);
            }
        }
        let header = Header {
            format: FORMAT,
            origin: self.origin.clone(),
            features,
            projection: self.projection.as_ref().map(Gaussian::dimension),
            counts: self.counts.clone(),
            class_covariance: name,
            alignment_batch: self.alignment.as_ref().map(|alignment| alignment.batch),
        };
        (header, arrays)
    }

    fn from_parts(header: Header, mut arrays: Arrays) -> Result<Self> {
        let d = header.features;
        let classes = (0..header.counts.len()).map(|class| {
            take(
                &mut arrays,
                &format!("class.{class}"),
                d,
                header.class_covariance,
            )
        });
        let classes = classes.collect::<Result<_>>()?;
        let alignment = |arrays: &mut Arrays, name: &str, size: Option<usize>| {
            let (Some(batch), Some(size)) = (header.alignment_batch, size) else {
                return Ok(None);
            };
            Alignment::take(arrays, name, size, batch).map(Some)
        };
        Ok(Self {
            global: take(&mut arrays, "global", d, CovarianceName::Full)?,
            classes,
            projection: header
                .projection
                .map(|size| take(&mut arrays, "projection", size, CovarianceName::Full))
                .transpose()?,
            alignment: alignment(&mut arrays, "alignment", Some(d))?,
            projection_alignment: alignment(
                &mut arrays,
                "projection_alignment",
                header.projection,
            )?,
            origin: header.origin,
            counts: header.counts,
        })
    }
}

impl Alignment {
    fn insert(&self, arrays: &mut Arrays, name: &str) {
        let d = self.mean.len();
        let scales = vec![self.covariance_scale, self.mean_scale];
        arrays.insert(
            format!("{name}.mean"),
            Array::F64(vec![d], self.mean.clone()),
        );
        let covariance = Array::F64(vec![d, d], self.covariance.clone());
        arrays.insert(format!("{name}.covariance"), covariance);
        arrays.insert(format!("{name}.scales"), Array::F64(vec![2], scales));
    }

    fn take(arrays: &mut Arrays, name: &str, size: usize, batch: usize) -> Result<Self> {
        let scales = arrays.f64(&format!("{name}.scales"), 2)?;
        Ok(Self {
            mean: arrays.f64(&format!("{name}.mean"), size)?,
            covariance: arrays.f64(&format!("{name}.covariance"), size * size)?,
            covariance_scale: scales[0],
            mean_scale: scales[1],
            batch,
        })
    }
}

/// Single precision: a relative 6e-8, far below what a thousand samples know of a covariance.
fn insert(arrays: &mut Arrays, name: &str, gaussian: &Gaussian) {
    let single = |shape: Vec<usize>, values: &[f64]| {
        Array::F32(shape, values.iter().map(|&value| value as f32).collect())
    };
    let d = gaussian.dimension();
    arrays.insert(format!("{name}.mean"), single(vec![d], gaussian.mean()));
    match gaussian.covariance() {
        Covariance::Full(matrix) => {
            arrays.insert(format!("{name}.covariance"), single(vec![d, d], matrix));
        }
        Covariance::Diagonal(variances) => {
            arrays.insert(format!("{name}.variance"), single(vec![d], variances));
        }
        Covariance::LowRank { factors, ridge } => {
            let shape = vec![factors.len() / d, d];
            arrays.insert(format!("{name}.factors"), single(shape, factors));
            arrays.insert(format!("{name}.ridge"), Array::F64(vec![1], vec![*ridge]));
        }
    }
}

fn take(
    arrays: &mut Arrays,
    name: &str,
    dimension: usize,
    kind: CovarianceName,
) -> Result<Gaussian> {
    let mut parts: BTreeMap<String, _> = arrays.tensors(&format!("{name}."));
    let mut double = |part: &str, count: Option<usize>| -> Result<Vec<f64>> {
        let values = parts
            .remove(part)
            .and_then(|data| data.try_to_vec::<f32>().ok());
        let fits = |values: &Vec<f32>| match count {
            Some(count) => values.len() == count,
            None => values.len().is_multiple_of(dimension),
        };
        let values = values.filter(fits).ok_or_else(|| Error::Mismatch {
            what: format!("array `{name}.{part}` of the anchors"),
            expected: count.map_or("rows".to_owned(), |count| format!("{count} numbers")),
            found: "another number, or nothing".to_owned(),
        })?;
        Ok(values.into_iter().map(f64::from).collect())
    };
    let mean = double("mean", Some(dimension))?;
    let covariance = match kind {
        CovarianceName::Full => {
            Covariance::Full(double("covariance", Some(dimension * dimension))?)
        }
        CovarianceName::Diagonal => Covariance::Diagonal(double("variance", Some(dimension))?),
        CovarianceName::LowRank => Covariance::LowRank {
            factors: double("factors", None)?,
            ridge: arrays.f64(&format!("{name}.ridge"), 1)?[0],
        },
    };
    Gaussian::new(mean, covariance)
}
