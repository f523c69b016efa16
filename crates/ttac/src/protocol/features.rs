//! Features before and after: what a picture of the clusters is made of.

use std::path::{Path, PathBuf};

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::Stream;
use super::many_passes::PREDICTION_BATCH;
use crate::archive::{self, Array, Arrays, Kind};
use crate::backbone::{Backbone, NormMode};
use crate::session::Session;
use crate::stream::Arrival;
use crate::{Error, Result};

/// Features of some samples of a stream, by the source and by an adapted method.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureRecord {
    /// The true class of each sample, for display only.
    pub labels: Vec<usize>,
    /// How many features a sample has.
    pub dimension: usize,
    /// By the source network with its own norm statistics, `[samples, dimension]`.
    pub before: Vec<f32>,
    /// By the method as the run left it, `[samples, dimension]`.
    pub after: Vec<f32>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FeatureHeader {
    dimension: usize,
    labels: Vec<usize>,
}

impl FeatureRecord {
    /// Computes features of `count` samples, spread evenly over the stream; of all if there are fewer.
    pub fn measure<B: Backbone + Sync + 'static>(
        stream: &Stream<'_>,
        session: &Session<B>,
        count: usize,
    ) -> Result<Self> {
        let source = session.source();
        let arrivals = stream.plan.batches.concat();
        let count = count.min(arrivals.len());
        let chosen = (0..count).map(|i| arrivals[i * arrivals.len() / count]);
        let chosen: Vec<Arrival> = chosen.collect();
        let mut record = Self {
            labels: Vec::with_capacity(count),
            dimension: source.network.num_features(),
            before: Vec::new(),
            after: Vec::new(),
        };
        // Parts of equal size: norm statistics of a small rest would be poor ones.
        let parts = count.div_ceil(PREDICTION_BATCH).max(1);
        for part in chosen.chunks(count.div_ceil(parts).max(1)) {
            let batch = stream.batch(part)?;
            let images = session.normalise(&batch.samples)?;
            let before = source.network.features(images.clone(), NormMode::Running);
            record.before.extend(values(&before));
            record
                .after
                .extend(values(&session.adapter().features(images)));
            let labels = batch.labels.ok_or_else(|| Error::Invalid {
                what: "features",
                problem: "they are drawn by class, and these samples have no labels".to_owned(),
            })?;
            record.labels.extend(labels);
        }
        Ok(record)
    }

    /// Names the file of the features that belong to a record in a JSON file.
    pub fn path_beside(record: &Path) -> PathBuf {
        record.with_extension("features.safetensors")
    }

    /// Writes the features to a file, atomically.
    pub fn save(&self, path: &Path) -> Result<()> {
        let header = FeatureHeader {
            dimension: self.dimension,
            labels: self.labels.clone(),
        };
        let shape = vec![self.labels.len(), self.dimension];
        let mut arrays = Arrays::default();
        arrays.insert("before", Array::F32(shape.clone(), self.before.clone()));
        arrays.insert("after", Array::F32(shape, self.after.clone()));
        archive::save(path, Kind::Features, &header, &arrays)
    }

    /// Reads features from a file.
    pub fn load(path: &Path) -> Result<Self> {
        let (header, mut arrays): (FeatureHeader, _) = archive::load(path, Kind::Features)?;
        let count = header.labels.len() * header.dimension;
        let mut take = |name: &str| match arrays.0.remove(name) {
            Some(Array::F32(_, values)) if values.len() == count => Ok(values),
            _ => Err(Error::Format {
                path: path.to_owned(),
                expected: Kind::Features.description(),
                problem: format!("`{name}` does not have {count} values"),
                hint: None,
            }),
        };
        Ok(Self {
            before: take("before")?,
            after: take("after")?,
            labels: header.labels,
            dimension: header.dimension,
        })
    }
}

fn values(features: &Tensor<2>) -> Vec<f32> {
    let data = features.to_data();
    data.try_to_vec().expect("features are f32")
}
