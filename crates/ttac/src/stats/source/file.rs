//! The file that keeps source statistics.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Alignment, Origin, SourceStatistics};
use crate::archive::{self, Array, Arrays, Kind};
use crate::stats::{Covariance, Gaussian};
use crate::{Error, Result};

/// The version of the header. A file with another one is refused.
const FORMAT: u32 = 1;

/// The header of an anchor file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnchorHeader {
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
    /// Writes the statistics to a file, atomically.
    pub fn save(&self, path: &Path) -> Result<()> {
        let (header, arrays) = self.to_parts();
        archive::save(path, Kind::Anchors, &header, &arrays)
    }

    /// Reads statistics from a file and checks them.
    pub fn load(path: &Path) -> Result<Self> {
        let (header, arrays): (AnchorHeader, _) = archive::load(path, Kind::Anchors)?;
        if header.format != FORMAT {
            return Err(Error::Format {
                path: path.to_owned(),
                expected: Kind::Anchors.description(),
                problem: format!("header version {}, expected {FORMAT}", header.format),
                hint: Some("make the anchors again with this version".to_owned()),
            });
        }
        Self::from_parts(header, arrays)
    }

    fn to_parts(&self) -> (AnchorHeader, Arrays) {
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
        let header = AnchorHeader {
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

    fn from_parts(header: AnchorHeader, mut arrays: Arrays) -> Result<Self> {
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

/// Stores a Gaussian in single precision. Its relative error of 6e-8 is far below what a thousand
/// samples know of a covariance.
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

/// Reads a Gaussian back.
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
