//! The file that keeps source statistics.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Alignment, Origin, SourceStatistics};
use crate::archive::{self, Array, Arrays, Kind};
use crate::gate::{Calibration, CalibrationImages, Measure, PayoffGroup, Score};
use crate::norms::{LayerMoments, NormKeys, NormReference};
use crate::stats::{Covariance, Gaussian, Importance};
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
    /// Files of older versions have none of the following.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    norms: Option<NormsHeader>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    calibration: Option<CalibrationHeader>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    importance: Option<ImportanceHeader>,
}

/// What the header says of the importance of scales and shifts.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ImportanceHeader {
    images: u64,
    parameters: usize,
}

/// What the header says of the norms' reference moments.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NormsHeader {
    images: u64,
    layers: Vec<NormHeader>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NormHeader {
    keys: NormKeys,
    epsilon: f64,
    channels: usize,
    groups: usize,
}

/// What the header says of the calibration.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CalibrationHeader {
    data: String,
    images: CalibrationImages,
    samples: u64,
    labelled: bool,
    counts: Vec<u64>,
    measures: Vec<MeasureHeader>,
    entropies: usize,
    nearness: f64,
}

/// What the header says of one score.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasureHeader {
    score: Score,
    kept: Vec<usize>,
    pooled: usize,
    groups: Vec<PayoffGroup>,
    limit: f64,
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
        let norms = self
            .norms
            .as_ref()
            .map(|norms| insert_norms(&mut arrays, norms));
        let calibration = self.calibration.as_ref();
        let calibration = calibration.map(|found| insert_calibration(&mut arrays, found));
        let importance = self.importance.as_ref().map(|found| {
            let parameters = found.values.len();
            let values = Array::F32(vec![parameters], found.values.clone());
            arrays.insert("importance", values);
            ImportanceHeader {
                images: found.images,
                parameters,
            }
        });
        let header = AnchorHeader {
            format: FORMAT,
            origin: self.origin.clone(),
            features,
            projection: self.projection.as_ref().map(Gaussian::dimension),
            counts: self.counts.clone(),
            class_covariance: name,
            alignment_batch: self.alignment.as_ref().map(|alignment| alignment.batch),
            norms,
            calibration,
            importance,
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
        let norms = header.norms.as_ref();
        let norms = norms.map(|found| take_norms(&mut arrays, found, header.counts.len()));
        let calibration = header.calibration;
        let calibration = calibration.map(|found| take_calibration(&mut arrays, found));
        let importance = header.importance;
        let importance = importance.map(|found| take_importance(&mut arrays, &found));
        Ok(Self {
            importance: importance.transpose()?,
            norms: norms.transpose()?,
            calibration: calibration.transpose()?,
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

/// Stores the reference moments. Those of classes are in single precision, because a class has at most some thousand images; re-basing
/// is exact for whatever moments it is given.
fn take_importance(arrays: &mut Arrays, header: &ImportanceHeader) -> Result<Importance> {
    let invalid = |problem: String| Error::Invalid {
        what: "anchors",
        problem,
    };
    match arrays.0.remove("importance") {
        Some(Array::F32(shape, values)) if shape == [header.parameters] => Ok(Importance {
            images: header.images,
            values,
        }),
        Some(found) => Err(invalid(format!(
            "`importance`: expected {} numbers, found {:?}",
            header.parameters,
            found.shape()
        ))),
        None => Err(invalid("they have no `importance`".to_owned())),
    }
}

fn insert_norms(arrays: &mut Arrays, norms: &NormReference) -> NormsHeader {
    let shares = Array::F64(vec![norms.shares.len()], norms.shares.clone());
    arrays.insert("norms.shares", shares);
    let layers = norms.layers.iter().enumerate();
    let layers = layers.map(|(place, layer)| {
        let shape = vec![layer.groups(), layer.channels];
        let parts = [("means", &layer.means), ("variances", &layer.variances)];
        for (part, values) in parts {
            let values = values.iter().map(|&value| value as f32).collect();
            arrays.insert(
                format!("norms.{place}.{part}"),
                Array::F32(shape.clone(), values),
            );
        }
        NormHeader {
            keys: layer.keys.clone(),
            epsilon: layer.epsilon,
            channels: layer.channels,
            groups: layer.groups(),
        }
    });
    NormsHeader {
        layers: layers.collect(),
        images: norms.images,
    }
}

fn take_norms(arrays: &mut Arrays, header: &NormsHeader, classes: usize) -> Result<NormReference> {
    let shares = arrays.f64("norms.shares", classes)?;
    let layers = header.layers.iter().enumerate().map(|(place, layer)| {
        let fits = layer.channels > 0 && (layer.groups == 1 || layer.groups == classes);
        let size = layer.channels.checked_mul(layer.groups).filter(|_| fits);
        let size = size.ok_or_else(|| Error::Mismatch {
            what: format!("reference moments of `{}`", layer.keys.mean),
            expected: format!("one group or {classes}, and at least one channel"),
            found: format!("{} groups of {} channels", layer.groups, layer.channels),
        })?;
        Ok(LayerMoments {
            keys: layer.keys.clone(),
            epsilon: layer.epsilon,
            channels: layer.channels,
            means: doubles(arrays, &format!("norms.{place}.means"), size)?,
            variances: doubles(arrays, &format!("norms.{place}.variances"), size)?,
        })
    });
    Ok(NormReference {
        images: header.images,
        layers: layers.collect::<Result<_>>()?,
        shares,
    })
}

fn insert_calibration(arrays: &mut Arrays, calibration: &Calibration) -> CalibrationHeader {
    let entropies = calibration.entropies.clone();
    let shape = vec![entropies.len()];
    arrays.insert("calibration.entropies", Array::F32(shape, entropies));
    let measures = calibration.measures.iter().enumerate();
    let measures = measures.map(|(place, measure)| {
        let mut insert = |part, values: Vec<f32>| {
            let name = format!("calibration.{place}.{part}");
            arrays.insert(name, Array::F32(vec![values.len()], values));
        };
        insert("scores", measure.scores.concat());
        insert("pooled", measure.pooled.clone());
        MeasureHeader {
            score: measure.score,
            kept: measure.scores.iter().map(Vec::len).collect(),
            pooled: measure.pooled.len(),
            groups: measure.groups.clone(),
            limit: measure.limit,
        }
    });
    CalibrationHeader {
        data: calibration.data.clone(),
        images: calibration.images,
        samples: calibration.samples,
        labelled: calibration.labelled,
        counts: calibration.counts.clone(),
        entropies: calibration.entropies.len(),
        measures: measures.collect(),
        nearness: calibration.nearness,
    }
}

fn take_calibration(arrays: &mut Arrays, header: CalibrationHeader) -> Result<Calibration> {
    let measures = header.measures.into_iter().enumerate();
    let measures = measures.map(|(place, measure)| {
        let name = |part| format!("calibration.{place}.{part}");
        let all = singles(arrays, &name("scores"), measure.kept.iter().sum())?;
        let mut rest = all.as_slice();
        let scores = measure.kept.iter().map(|&count| {
            let (own, others) = rest.split_at(count);
            rest = others;
            own.to_vec()
        });
        Ok(Measure {
            score: measure.score,
            scores: scores.collect(),
            pooled: singles(arrays, &name("pooled"), measure.pooled)?,
            groups: measure.groups,
            limit: measure.limit,
        })
    });
    let calibration = Calibration {
        measures: measures.collect::<Result<_>>()?,
        entropies: singles(arrays, "calibration.entropies", header.entropies)?,
        data: header.data,
        images: header.images,
        samples: header.samples,
        labelled: header.labelled,
        counts: header.counts,
        nearness: header.nearness,
    };
    calibration.validate()?;
    Ok(calibration)
}

/// Reads an array of single precision that has to have this many finite values.
fn singles(arrays: &mut Arrays, name: &str, count: usize) -> Result<Vec<f32>> {
    let found = match arrays.0.remove(name) {
        Some(Array::F32(_, values)) => Some(values),
        _ => None,
    };
    let fits = |values: &Vec<f32>| values.len() == count && values.iter().all(|v| v.is_finite());
    found.filter(fits).ok_or_else(|| Error::Mismatch {
        what: format!("array `{name}` of the anchors"),
        expected: format!("{count} finite numbers"),
        found: "others, or nothing".to_owned(),
    })
}

/// Reads an array of single precision as doubles.
fn doubles(arrays: &mut Arrays, name: &str, count: usize) -> Result<Vec<f64>> {
    let values = singles(arrays, name, count)?;
    Ok(values.into_iter().map(f64::from).collect())
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
