//! `ply_data_train0.h5` to `..4.h5` and `ply_data_test0.h5`, `..1.h5`.

use std::path::{Path, PathBuf};

use hdf5_pure::File;

use super::super::problem::{absent, check_label, contents, damaged};
use super::{Clouds, InMemory, MODELNET40_CLASSES, Split, check};
use crate::{Error, Result};

const NAME: &str = "modelnet40";

/// Points that the published files have of each cloud.
const STORED: u64 = 2048;
/// More clouds than a file has, so that a lying shape is refused before memory is asked for.
const MAX_CLOUDS: u64 = 20_000;

pub(super) fn file(root: &Path, split: Split, index: usize) -> PathBuf {
    root.join(format!("ply_data_{split}{index}.h5"))
}

/// Reads the first `points` points, at most 2,048, of every cloud of a split of ModelNet40 from its HDF5 files.
pub fn open_modelnet40_hdf5(root: &Path, split: Split, points: usize) -> Result<InMemory> {
    if points as u64 > STORED {
        return Err(Error::Invalid {
            what: "points",
            problem: format!("clouds of `{NAME}` have {STORED} points, {points} were asked for"),
        });
    }
    let (mut all, mut labels) = (Vec::new(), Vec::new());
    let mut index = 0;
    while file(root, split, index).is_file() {
        let path = file(root, split, index);
        let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
        let (clouds, found) = parse(bytes).map_err(|problem| damaged(NAME, &path, problem))?;
        for (record, &label) in found.iter().enumerate() {
            check_label(NAME, &path, record, label, MODELNET40_CLASSES.len())?;
        }
        let first = clouds
            .chunks_exact(3 * STORED as usize)
            .flat_map(|cloud| &cloud[..3 * points])
            .copied();
        let values = first.collect();
        let clouds = Clouds { points, values };
        check(NAME, &path, &clouds)?;
        all.extend(clouds.values);
        labels.extend(found.iter().map(|&label| label as usize));
        index += 1;
    }
    if index == 0 {
        let problem = format!("expected `ply_data_{split}0.h5`, {}", contents(root));
        return Err(absent(NAME, root, problem));
    }
    let values = all;
    let clouds = Clouds { points, values };
    InMemory::new(NAME, MODELNET40_CLASSES, clouds, Some(labels))
}

/// `data`, floats `[n, 2048, 3]`, and `label`, integers `[n, 1]`.
fn parse(file: Vec<u8>) -> Result<(Vec<f32>, Vec<i64>), String> {
    let file = File::from_bytes(file).map_err(|e| format!("not an HDF5 file: {e}"))?;
    let open = |name: &str| {
        let array = file
            .dataset(name)
            .map_err(|e| format!("no `{name}`: {e}"))?;
        let shape = array.shape().map_err(|e| format!("`{name}`: {e}"))?;
        Ok::<_, String>((array, shape))
    };
    let (array, shape) = open("data")?;
    let count = match shape[..] {
        [count, STORED, 3] if count <= MAX_CLOUDS => count,
        _ => {
            return Err(format!(
                "`data`: expected floats [n, {STORED}, 3], found {shape:?}"
            ));
        }
    };
    let values = array.read_f32().map_err(|e| format!("`data`: {e}"))?;
    if values.len() as u64 != count * STORED * 3 {
        return Err(format!(
            "`data`: expected {shape:?}, found {} values",
            values.len()
        ));
    }
    let (array, shape) = open("label")?;
    let labels = array.read_i64().map_err(|e| format!("`label`: {e}"))?;
    if labels.len() as u64 != count || shape[0] != count {
        return Err(format!(
            "`label`: expected {count} of them, found {shape:?}"
        ));
    }
    Ok((values, labels))
}
