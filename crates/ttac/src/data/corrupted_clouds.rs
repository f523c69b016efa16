//! Clouds of a data set, corrupted as they are read.

use ttac_corrupt::Severity;
use ttac_corrupt::points::{PointCorruption, PointCorruptor};

use super::corrupted::{invalid, on_the_fly};
use super::{Batch, Clouds, Dataset, SampleId, SetInfo};
use crate::Result;

/// The clouds of a data set under one corruption, made when they are asked for. Occlusion and LiDAR are made from the
/// set's meshes; the others from its points, of which there should be more than a model takes.
pub struct CorruptedClouds {
    info: SetInfo,
    clean: Box<dyn Dataset>,
    corruptor: PointCorruptor,
    corruption: (PointCorruption, Severity),
}

impl CorruptedClouds {
    /// Puts a data set under a corruption of severity 1 to 5, which starts from `points` points.
    pub fn new(
        clean: Box<dyn Dataset>,
        corruption: &str,
        severity: u8,
        seed: u64,
        points: usize,
    ) -> Result<Self> {
        let corruption: PointCorruption = corruption.parse().map_err(|error| invalid(&error))?;
        if corruption.needs_meshes() && clean.info().meshes.is_none() {
            let error = ttac_corrupt::Error::NeedsMeshes { corruption };
            return Err(invalid(&error));
        }
        let severity = Severity::try_from(severity).map_err(|error| invalid(&error))?;
        let mut info = clean.info().clone();
        info.corruption = Some(on_the_fly(corruption, severity, seed));
        Ok(Self {
            info,
            clean,
            corruptor: PointCorruptor::new(seed).with_points(points),
            corruption: (corruption, severity),
        })
    }
}

impl Dataset for CorruptedClouds {
    fn info(&self) -> &SetInfo {
        &self.info
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let mut batch = self.clean.batch(ids)?;
        let (corruption, severity) = self.corruption;
        let meshes = self.info.meshes.as_ref();
        let corrupted = if let Some(meshes) = meshes.filter(|_| corruption.needs_meshes()) {
            let meshes = meshes(ids);
            self.corruptor
                .apply_to_meshes(corruption, severity, &meshes, ids)
        } else {
            let Clouds { points, values } = batch.samples.as_clouds()?;
            self.corruptor
                .apply(corruption, severity, values, *points, ids)
        };
        batch.samples = corrupted.map_err(|error| invalid(&error))?.into();
        Ok(batch)
    }

    fn labels(&self) -> Result<Option<Vec<usize>>> {
        self.clean.labels()
    }
}
