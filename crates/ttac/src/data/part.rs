//! A part of a data set.

use super::{Batch, Dataset, SampleId};
use crate::Result;

/// The first samples of a data set.
pub struct Part {
    whole: Box<dyn Dataset>,
    count: usize,
}

impl Part {
    /// The first `count` samples, or all if there are fewer.
    pub fn first(whole: Box<dyn Dataset>, count: usize) -> Self {
        let count = count.min(whole.len());
        Self { whole, count }
    }
}

impl Dataset for Part {
    fn name(&self) -> &'static str {
        self.whole.name()
    }

    fn len(&self) -> usize {
        self.count
    }

    fn classes(&self) -> Vec<String> {
        self.whole.classes()
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let stray = ids.iter().find(|&&id| id >= self.count as SampleId);
        assert!(stray.is_none(), "sample {stray:?} of {}", self.count);
        self.whole.batch(ids)
    }

    fn corruption(&self) -> Option<String> {
        self.whole.corruption()
    }

    fn meshes(&self, ids: &[SampleId]) -> Option<Vec<ttac_corrupt::points::Mesh>> {
        self.whole.meshes(ids)
    }

    fn skipped(&self) -> usize {
        self.whole.skipped()
    }
}
