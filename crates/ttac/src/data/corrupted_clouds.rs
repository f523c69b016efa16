//! Clouds of a data set, corrupted as they are read.

use ttac_corrupt::Severity;
use ttac_corrupt::points::{PointCorruption, PointCorruptor};

use super::corrupted::invalid;
use super::{Batch, Dataset, Images, SampleId};
use crate::{Error, Result};

/// The clouds of a data set under one corruption, made when they are asked for. Occlusion and LiDAR are made from the
/// set's meshes; the others from its points, of which there should be more than a model takes.
pub struct CorruptedClouds {
    clean: Box<dyn Dataset>,
    corruptor: PointCorruptor,
    corruption: PointCorruption,
    severity: Severity,
}

impl CorruptedClouds {
    /// A data set under a corruption of severity 1 to 5, which starts from `points` points.
    pub fn new(
        clean: Box<dyn Dataset>,
        corruption: &str,
        severity: u8,
        seed: u64,
        points: usize,
    ) -> Result<Self> {
        let corruption: PointCorruption = corruption.parse().map_err(|error| invalid(&error))?;
        if corruption.needs_meshes() && clean.meshes(&[]).is_none() {
            let error = ttac_corrupt::Error::NeedsMeshes { corruption };
            return Err(invalid(&error));
        }
        Ok(Self {
            clean,
            corruptor: PointCorruptor::new(seed).with_points(points),
            corruption,
            severity: Severity::try_from(severity).map_err(|error| invalid(&error))?,
        })
    }
}

impl Dataset for CorruptedClouds {
    fn name(&self) -> &'static str {
        self.clean.name()
    }

    fn len(&self) -> usize {
        self.clean.len()
    }

    fn classes(&self) -> Vec<String> {
        self.clean.classes()
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let mut batch = self.clean.batch(ids)?;
        let images = &mut batch.samples.images;
        let corrupted = if self.corruption.needs_meshes() {
            let meshes = self.clean.meshes(ids).unwrap_or_default();
            self.corruptor
                .apply_to_meshes(self.corruption, self.severity, &meshes, ids)
        } else {
            let clouds = images.to_clouds().ok_or_else(|| Error::Mismatch {
                what: format!("samples of `{}`", self.clean.name()),
                expected: "clouds of points".to_owned(),
                found: images.describe(),
            })?;
            let points = images.height;
            self.corruptor
                .apply(self.corruption, self.severity, &clouds, points, ids)
        };
        let corrupted = corrupted.map_err(|error| invalid(&error))?;
        *images = Images::from_clouds(corrupted.points, &corrupted.values);
        Ok(batch)
    }

    fn labels(&self) -> Result<Vec<usize>> {
        self.clean.labels()
    }

    fn corruption(&self) -> Option<String> {
        let (name, severity, seed) = (self.corruption, self.severity, self.corruptor.seed());
        Some(format!(
            "{name} {severity}, made on the fly with seed {seed}"
        ))
    }

    fn skipped(&self) -> usize {
        self.clean.skipped()
    }
}
