//! What every data set can do, and what is known about it without reading a sample.

use std::fmt;
use std::sync::Arc;

use ttac_corrupt::points::Mesh;

use super::{Batch, SampleId};
use crate::{Error, Result};

/// Makes the surfaces of samples, for sets of clouds that have them.
pub type Meshes = Arc<dyn Fn(&[SampleId]) -> Vec<Mesh> + Send + Sync>;

/// Everything that is known about a data set without reading its samples.
///
/// A data set that wraps another starts from a clone of the inner one's info and changes what it changes, so that
/// nothing gets lost on the way.
#[derive(Clone)]
pub struct SetInfo {
    /// The set's name, as in cards and messages.
    pub name: String,
    /// How many samples there are.
    pub len: usize,
    /// Names of the classes, in the order of the labels. Empty where the labels are not known.
    pub classes: Vec<String>,
    /// What was done to the samples, in the words of a protocol card; none if nothing was.
    pub corruption: Option<String>,
    /// How many samples were left out because they could not be read; only where that was asked for.
    pub skipped: usize,
    /// What each sample is called where it comes from, e.g. its file; none if samples have only numbers.
    pub sample_names: Option<Arc<[String]>>,
    /// The surfaces of the samples, where a set of clouds has them.
    pub meshes: Option<Meshes>,
}

impl SetInfo {
    /// Describes a set of `len` samples without a corruption, file names or surfaces. Without classes, it is
    /// unlabelled.
    pub fn new(
        name: impl Into<String>,
        len: usize,
        classes: impl IntoIterator<Item: Into<String>>,
    ) -> Self {
        Self {
            name: name.into(),
            len,
            classes: classes.into_iter().map(Into::into).collect(),
            corruption: None,
            skipped: 0,
            sample_names: None,
            meshes: None,
        }
    }

    /// Returns whether the true classes are known.
    pub fn is_labelled(&self) -> bool {
        !self.classes.is_empty()
    }

    /// Returns what a sample is called where it comes from, e.g. its file; none if it has only its number.
    pub fn sample_name(&self, id: SampleId) -> Option<&str> {
        let id = usize::try_from(id).ok().filter(|id| *id < self.len)?;
        Some(self.sample_names.as_ref()?.get(id)?)
    }
}

impl fmt::Debug for SetInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetInfo")
            .field("name", &self.name)
            .field("len", &self.len)
            .field("classes", &self.classes.len())
            .field("corruption", &self.corruption)
            .finish_non_exhaustive()
    }
}

/// A set of images or clouds that can be read in any order.
///
/// All three functions have to be written for a set of one's own; [`DatasetExt`] has what follows from them.
pub trait Dataset: Send + Sync {
    /// Returns what is known about the set without reading a sample.
    fn info(&self) -> &SetInfo;

    /// Reads the samples with the given ids, and their labels where they are known.
    ///
    /// # Panics
    /// If an id is not below [`SetInfo::len`].
    fn batch(&self, ids: &[SampleId]) -> Result<Batch>;

    /// Returns the true classes of all samples without reading the samples; none where they are not known.
    fn labels(&self) -> Result<Option<Vec<usize>>>;
}

/// Short ways to what [`Dataset::info`] says. Every data set has them, and none can change them.
pub trait DatasetExt: Dataset {
    /// Returns the set's name.
    fn name(&self) -> &str {
        &self.info().name
    }

    /// Returns how many samples there are.
    fn len(&self) -> usize {
        self.info().len
    }

    /// Returns whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the names of the classes, in the order of the labels.
    fn classes(&self) -> &[String] {
        &self.info().classes
    }

    /// Returns whether the true classes are known.
    fn is_labelled(&self) -> bool {
        self.info().is_labelled()
    }

    /// Refuses a set whose true classes are not known.
    fn check_labelled(&self) -> Result<()> {
        if self.is_labelled() {
            return Ok(());
        }
        Err(unlabelled(self.name()))
    }

    /// Returns the true classes of all samples; an error if they are not known.
    fn known_labels(&self) -> Result<Vec<usize>> {
        self.labels()?.ok_or_else(|| unlabelled(self.name()))
    }
}

impl<D: Dataset + ?Sized> DatasetExt for D {}

impl Batch {
    /// Returns the true classes; an error that names the data set if they are not known.
    pub fn known_labels(&self, data: &str) -> Result<&[usize]> {
        self.labels.as_deref().ok_or_else(|| unlabelled(data))
    }
}

/// The error of something that counts errors, or learns from classes, and is given none.
fn unlabelled(data: &str) -> Error {
    Error::Mismatch {
        what: format!("labels of `{data}`"),
        expected: "the true class of every sample".to_owned(),
        found: "samples without labels".to_owned(),
    }
}
