//! A part of a data set.

use super::{Batch, Dataset, SampleId, SetInfo};
use crate::Result;

/// The first samples of a data set.
pub struct Part {
    info: SetInfo,
    whole: Box<dyn Dataset>,
}

impl Part {
    /// Takes the first `count` samples, or all if there are fewer.
    pub fn first(whole: Box<dyn Dataset>, count: usize) -> Self {
        let mut info = whole.info().clone();
        info.len = count.min(info.len);
        Self { info, whole }
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
        self.whole.batch(ids)
    }

    fn labels(&self) -> Result<Option<Vec<usize>>> {
        let mut labels = self.whole.labels()?;
        if let Some(labels) = &mut labels {
            labels.truncate(self.info.len);
        }
        Ok(labels)
    }
}
