//! ModelNet40-C: `data_CORRUPTION_SEVERITY.npy` and `label.npy`.

use std::path::Path;

use ttac_corrupt::points::PointCorruption;

use super::super::corrupted::invalid;
use super::super::npy::{read_floats, read_labels};
use super::super::problem::{absent, contents, damaged};
use super::{Clouds, InMemory, MODELNET40_CLASSES, check};
use crate::Result;

const NAME: &str = "modelnet40-c";

/// Reads the clouds of the test split of ModelNet40 under one corruption at one severity; `original` has none.
pub fn open_modelnet40_c(root: &Path, corruption: &str, severity: u8) -> Result<InMemory> {
    let file = if corruption == "original" {
        "data_original.npy".to_owned()
    } else {
        let known: PointCorruption = corruption.parse().map_err(|error| invalid(&error))?;
        format!("data_{known}_{severity}.npy")
    };
    let path = root.join(&file);
    let label_path = root.join("label.npy");
    for (path, file) in [(&path, file.as_str()), (&label_path, "label.npy")] {
        if !path.is_file() {
            let problem = format!("expected `{file}`, {}", contents(root));
            return Err(absent(NAME, root, problem));
        }
    }
    let (shape, values) = read_floats(NAME, &path)?;
    let points = match shape[..] {
        [_, points, 3] if points > 0 => points as usize,
        _ => {
            let problem = format!("expected clouds [n, points, 3], found {shape:?}");
            return Err(damaged(NAME, &path, problem));
        }
    };
    let clouds = Clouds { points, values };
    check(NAME, &path, &clouds)?;
    let labels = read_labels(NAME, &label_path, MODELNET40_CLASSES.len())?;
    if labels.len() != clouds.count() {
        let (expected, found) = (clouds.count(), labels.len());
        let problem = format!("expected {expected} labels for the clouds, found {found}");
        return Err(damaged(NAME, &label_path, problem));
    }
    let set = InMemory::new(NAME, MODELNET40_CLASSES, clouds, Some(labels))?;
    Ok(set.with_corruption(format!("{corruption} {severity}, from its file")))
}
