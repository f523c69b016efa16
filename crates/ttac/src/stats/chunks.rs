//! Chunks of source images, whose features several machines can compute.

use burn::tensor::Device;
use rand::seq::SliceRandom;

use super::AnchorConfig;
use super::collect::{draw, finite_rows};
use crate::Result;
use crate::backbone::{Backbone, NormMode};
use crate::checkpoint::InputContract;
use crate::data::{Dataset, DatasetExt, SampleId, augment};
use crate::rng::seeded;

/// About how many images belong to a chunk.
const CHUNK_IMAGES: usize = 6144;

/// The order in which source images are looked at, cut into chunks whose features several machines can compute.
///
/// The features of a chunk need less room than their moments where a network has more features than a chunk has images for each, and
/// statistics that are made of them in the order of the chunks have the same bits whoever computed them.
pub struct AnchorChunks {
    pub(super) order: Vec<SampleId>,
    images: usize,
}

impl AnchorChunks {
    /// Cuts a data set. A chunk holds whole forward passes, so it does not change what is computed.
    pub fn new(data: &dyn Dataset, config: &AnchorConfig) -> Self {
        // A data set that is sorted by class would give batches that are not alike.
        let mut order: Vec<SampleId> = (0..data.len() as SampleId).collect();
        order.shuffle(&mut seeded(config.seed, 0));
        Self {
            order,
            images: (CHUNK_IMAGES / config.batch_size).max(1) * config.batch_size,
        }
    }

    /// Returns the number of chunks.
    pub fn count(&self) -> usize {
        self.order.len().div_ceil(self.images)
    }

    /// Returns the first chunk that may be computed elsewhere. In those before it the moments of the norms' inputs are taken as well, by
    /// whoever collects.
    pub fn first_elsewhere<B: Backbone>(&self, network: &B, config: &AnchorConfig) -> usize {
        if network.has_batch_norm() {
            config.reference_images.div_ceil(self.images)
        } else {
            0
        }
    }

    /// Returns the ids of a chunk's images, in order.
    pub(super) fn ids(&self, chunk: usize) -> &[SampleId] {
        let rest = &self.order[chunk * self.images..];
        &rest[..rest.len().min(self.images)]
    }

    /// Computes the features of a chunk, `[images, features]`, row-major.
    pub fn features<B: Backbone>(
        &self,
        network: &B,
        input: &InputContract,
        data: &dyn Dataset,
        config: &AnchorConfig,
        chunk: usize,
        device: &Device,
    ) -> Result<Vec<f32>> {
        config.transform.check(input)?;
        let mut rows = Vec::new();
        for ids in self.ids(chunk).chunks(config.batch_size) {
            let batch = data.batch(ids)?;
            let samples = augment(ids, &batch.samples, config.transform, draw(config))?;
            let found = network.features(input.normalise(&samples, device)?, NormMode::Running);
            rows.extend(finite_rows(&found, ids)?);
        }
        Ok(rows)
    }
}
