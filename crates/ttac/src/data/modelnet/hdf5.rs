//! `ply_data_train0.h5` to `..4.h5` and `ply_data_test0.h5`, `..1.h5`.

use std::path::{Path, PathBuf};

use hdf5_pure::File;

use super::super::problem::{absent, check_label, contents, damaged};
use super::{Clouds, InMemory, MODELNET40_CLASSES, Split, check};
use crate::{Error, Result};

const NAME: &str = "modelnet40";

/// The fewest points that a file may have of each cloud: as many as networks are trained with. The published files have 2,048.
const FEWEST_POINTS: u64 = 1024;
/// More points than a file has of each cloud.
const MOST_POINTS: u64 = 65_536;
/// More clouds than a file has, so that a lying shape is refused before memory is asked for.
const MAX_CLOUDS: u64 = 20_000;

pub(super) fn file(root: &Path, split: Split, index: usize) -> PathBuf {
    root.join(format!("ply_data_{split}{index}.h5"))
}

/// Reads the first points of every cloud of a split of ModelNet40 from its HDF5 files: `points` of them, or as many as all files have if that
/// is fewer. The published files have 2,048 of each cloud; others may have any number from 1,024 on.
pub fn open_modelnet40_hdf5(root: &Path, split: Split, points: usize) -> Result<InMemory> {
    let (mut parts, mut labels) = (Vec::new(), Vec::new());
    let mut points = points;
    let mut index = 0;
    while file(root, split, index).is_file() {
        let path = file(root, split, index);
        let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
        let part = parse(bytes).map_err(|problem| damaged(NAME, &path, problem))?;
        for (record, &label) in part.labels.iter().enumerate() {
            check_label(NAME, &path, record, label, MODELNET40_CLASSES.len())?;
        }
        points = points.min(part.points);
        labels.extend(part.labels.iter().map(|&label| label as usize));
        parts.push((path, part));
        index += 1;
    }
    let mut all = Vec::new();
    for (path, part) in parts {
        let first = part
            .values
            .chunks_exact(3 * part.points)
            .flat_map(|cloud| &cloud[..3 * points])
            .copied();
        let values = first.collect();
        let clouds = Clouds { points, values };
        check(NAME, &path, &clouds)?;
        all.extend(clouds.values);
    }
    if index == 0 {
        let problem = format!("expected `ply_data_{split}0.h5`, {}", contents(root));
        return Err(absent(NAME, root, problem));
    }
    let values = all;
    let clouds = Clouds { points, values };
    InMemory::new(NAME, MODELNET40_CLASSES, clouds, Some(labels))
}

/// What a file holds.
struct Part {
    /// How many points each cloud has.
    points: usize,
    /// Coordinates, `[clouds, points, 3]`.
    values: Vec<f32>,
    labels: Vec<i64>,
}

/// Reads `data`, floats `[n, p, 3]`, and `label`, integers `[n, 1]`.
fn parse(file: Vec<u8>) -> Result<Part, String> {
    let file = File::from_bytes(file).map_err(|e| format!("not an HDF5 file: {e}"))?;
    let open = |name: &str| {
        let array = file
            .dataset(name)
            .map_err(|e| format!("no `{name}`: {e}"))?;
        let shape = array.shape().map_err(|e| format!("`{name}`: {e}"))?;
        Ok::<_, String>((array, shape))
    };
    let (array, shape) = open("data")?;
    let (count, points) = match shape[..] {
        [count, points @ FEWEST_POINTS..=MOST_POINTS, 3] if count <= MAX_CLOUDS => (count, points),
        _ => {
            return Err(format!(
                "`data`: expected floats [n, p, 3] with at least {FEWEST_POINTS} points p, found {shape:?}"
            ));
        }
    };
    let values = array.read_f32().map_err(|e| format!("`data`: {e}"))?;
    if values.len() as u64 != count * points * 3 {
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
    Ok(Part {
        points: points as usize,
        values,
        labels,
    })
}
