//! A part of a data set.

use super::{Batch, Dataset, SampleId, SetInfo};
use crate::Result;

/// Some samples of a data set.
pub struct Part {
    info: SetInfo,
    whole: Box<dyn Dataset>,
    /// Which samples of the whole, in their order.
    chosen: Vec<SampleId>,
}

impl Part {
    /// Takes the first `count` samples, or all if there are fewer.
    pub fn first(whole: Box<dyn Dataset>, count: usize) -> Self {
        let chosen = 0..whole.info().len.min(count) as SampleId;
        Self::of(whole, chosen.collect())
    }

    /// Takes the last `count` samples, or all if there are fewer.
    pub fn last(whole: Box<dyn Dataset>, count: usize) -> Self {
        let len = whole.info().len;
        let chosen = len.saturating_sub(count) as SampleId..len as SampleId;
        Self::of(whole, chosen.collect())
    }

    /// Takes `count` samples that are spread evenly over the whole, so that a set in the order of its classes keeps its shares.
    pub fn spread(whole: Box<dyn Dataset>, count: usize) -> Self {
        let len = whole.info().len as u128;
        let count = len.min(count as u128);
        let chosen = (0..count).map(|place| (place * len / count) as SampleId);
        let chosen = chosen.collect();
        Self::of(whole, chosen)
    }

    fn of(whole: Box<dyn Dataset>, chosen: Vec<SampleId>) -> Self {
        let mut info = whole.info().clone();
        info.len = chosen.len();
        Self {
            info,
            whole,
            chosen,
        }
    }
}

impl Dataset for Part {
    fn info(&self) -> &SetInfo {
        &self.info
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let count = self.info.len;
        let stray = ids.iter().find(|&&id| id >= count as SampleId);
        assert!(stray.is_none(), "sample {stray:?} of {count}");
        let ids: Vec<SampleId> = ids.iter().map(|&id| self.chosen[id as usize]).collect();
        self.whole.batch(&ids)
    }

    fn labels(&self) -> Result<Option<Vec<usize>>> {
        let labels = self.whole.labels()?;
        Ok(labels.map(|labels| {
            let chosen = self.chosen.iter();
            chosen.map(|&id| labels[id as usize]).collect()
        }))
    }
}
