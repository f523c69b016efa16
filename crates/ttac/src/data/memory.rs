//! Samples that are in memory already.

use super::{Batch, Dataset, SampleId, Samples, SetInfo};
use crate::{Error, Result};

/// A data set whose samples are in memory. Most readers of small sets return one, and it is the shortest way to a
/// data set of one's own.
///
/// ```
/// use ttac::data::{Dataset, DatasetExt, Images, InMemory};
///
/// let images = Images { height: 2, width: 2, pixels: vec![0; 3 * 12] };
/// let data = InMemory::new("mine", ["cat", "dog"], images, Some(vec![0, 1, 1]))?;
/// assert_eq!((data.name(), data.len()), ("mine", 3));
/// assert_eq!(data.batch(&[2, 0])?.labels, Some(vec![1, 0]));
/// # Ok::<(), ttac::Error>(())
/// ```
#[derive(Debug)]
pub struct InMemory {
    info: SetInfo,
    samples: Samples,
    labels: Option<Vec<usize>>,
}

impl InMemory {
    /// Makes a data set of samples and their labels. Without labels there are no classes either.
    pub fn new(
        name: impl Into<String>,
        classes: impl IntoIterator<Item: Into<String>>,
        samples: impl Into<Samples>,
        labels: Option<Vec<usize>>,
    ) -> Result<Self> {
        let samples = samples.into();
        let mut info = SetInfo::new(name, samples.count(), classes);
        let mismatch = |expected: String, found: String| {
            let what = format!("labels of `{}`", info.name);
            Err(Error::Mismatch {
                what,
                expected,
                found,
            })
        };
        let Some(given) = &labels else {
            info.classes.clear();
            return Ok(Self {
                info,
                samples,
                labels,
            });
        };
        if given.len() != info.len {
            return mismatch(
                format!("{}, one for every sample", info.len),
                given.len().to_string(),
            );
        }
        let classes = info.classes.len();
        if let Some(stray) = given.iter().find(|label| **label >= classes) {
            return mismatch(
                format!("numbers below {classes}, the classes"),
                stray.to_string(),
            );
        }
        Ok(Self {
            info,
            samples,
            labels,
        })
    }

    /// Says what was done to the samples, in the words of a protocol card.
    pub fn with_corruption(mut self, corruption: impl Into<String>) -> Self {
        self.info.corruption = Some(corruption.into());
        self
    }
}

impl Dataset for InMemory {
    fn info(&self) -> &SetInfo {
        &self.info
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let places: Vec<usize> = ids.iter().map(|&id| id as usize).collect();
        Ok(Batch {
            ids: ids.to_vec(),
            samples: self.samples.pick(&places),
            labels: self.labels.as_ref().map(|labels| pick(labels, ids)),
        })
    }

    fn labels(&self) -> Result<Option<Vec<usize>>> {
        Ok(self.labels.clone())
    }
}

/// The labels of some samples, out of those of all.
///
/// # Panics
/// If an id is none.
pub(super) fn pick(labels: &[usize], ids: &[SampleId]) -> Vec<usize> {
    ids.iter().map(|&id| labels[id as usize]).collect()
}
