//! CIFAR-10.1 version 6: 2,000 newer photographs of CIFAR-10's classes, in two `.npy` files.

use std::fmt;
use std::path::Path;

use super::cifar::SIDE;
use super::npy::{ImageArray, read_labels};
use super::problem::{absent, contents, damaged};
use super::{Batch, CIFAR10_CLASSES, Dataset, Images, SampleId, Samples};
use crate::Result;

const NAME: &str = "cifar10.1";
const IMAGES: &str = "cifar10.1_v6_data.npy";
const LABELS: &str = "cifar10.1_v6_labels.npy";

/// The test images of CIFAR-10.1; there are no training images.
pub struct Cifar10Dot1 {
    images: ImageArray,
    labels: Vec<u8>,
}

impl fmt::Debug for Cifar10Dot1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cifar10Dot1({} images)", self.labels.len())
    }
}

impl Cifar10Dot1 {
    /// Opens the two files of a folder; images are read batch by batch.
    pub fn open(root: &Path) -> Result<Self> {
        if !root.is_dir() {
            return Err(absent(NAME, root, "no such folder".to_owned()));
        }
        // The authors' repository keeps them in a folder of its own.
        let nested = root.join("datasets");
        let folder = [root, &nested]
            .into_iter()
            .find(|folder| folder.join(IMAGES).is_file())
            .ok_or_else(|| {
                absent(
                    NAME,
                    root,
                    format!("expected `{IMAGES}`, {}", contents(root)),
                )
            })?;
        let images = ImageArray::open(NAME, &folder.join(IMAGES))?;
        let path = folder.join(LABELS);
        let labels = read_labels(NAME, &path, CIFAR10_CLASSES.len())?;
        if labels.len() != images.count {
            let (expected, found) = (images.count, labels.len());
            let problem = format!("expected {expected} labels for `{IMAGES}`, found {found}");
            return Err(damaged(NAME, &path, problem));
        }
        Ok(Self { images, labels })
    }
}

impl Dataset for Cifar10Dot1 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn classes(&self) -> Vec<String> {
        CIFAR10_CLASSES.map(str::to_owned).to_vec()
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        Ok(Batch {
            samples: Samples {
                ids: ids.to_vec(),
                images: Images {
                    height: SIDE,
                    width: SIDE,
                    pixels: self.images.read(ids.iter().map(|&id| id as usize))?,
                },
            },
            labels: (ids.iter())
                .map(|&id| self.labels[id as usize].into())
                .collect(),
        })
    }
}
