//! CIFAR-10.1 version 6: 2,000 newer photographs of CIFAR-10's classes, in two `.npy` files.

use std::path::Path;

use super::CIFAR10_CLASSES;
use super::npy::{ImageArray, NpyImages, read_labels};
use super::problem::{absent, check_folder, contents, damaged, folder_with};
use crate::Result;

const NAME: &str = "cifar10.1";
const IMAGES: &str = "cifar10.1_v6_data.npy";
const LABELS: &str = "cifar10.1_v6_labels.npy";

/// Opens the two files of CIFAR-10.1 in a folder. There are test images only.
pub fn open_cifar10_1(root: &Path) -> Result<NpyImages> {
    check_folder(NAME, root)?;
    // The authors' repository keeps them in a folder of its own.
    let folder = folder_with(root, "datasets", IMAGES).ok_or_else(|| {
        let problem = format!("expected `{IMAGES}`, {}", contents(root));
        absent(NAME, root, problem)
    })?;
    let images = ImageArray::open(NAME, &folder.join(IMAGES))?;
    let path = folder.join(LABELS);
    let labels = read_labels(NAME, &path, CIFAR10_CLASSES.len())?;
    if labels.len() != images.count {
        let (expected, found) = (images.count, labels.len());
        let problem = format!("expected {expected} labels for `{IMAGES}`, found {found}");
        return Err(damaged(NAME, &path, problem));
    }
    Ok(NpyImages::new(NAME, &CIFAR10_CLASSES, images, 0, labels))
}
