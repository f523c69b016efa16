//! ModelNet: shapes of furniture and other things, as clouds of points.
//!
//! | name | files |
//! |---|---|
//! | `modelnet40` | `ply_data_{train,test}N.h5` with `data` `[n, 2048, 3]` and `label`, or the resampled text files in class folders |
//! | `modelnet40-c` | `data_CORRUPTION_SEVERITY.npy`, `[n, points, 3]`, and `label.npy` |
//! | `modelnet10-derived` | occupancy grids `modelnet10_voxels32.npz`; points are drawn on the faces of the voxels, so these are not ModelNet10's own clouds |

mod corrupted;
mod hdf5;
mod npz;
mod text;
mod voxels;

use std::path::Path;

use super::problem::{absent, contents, damaged};
use super::{Batch, Dataset, Images, SampleId, Samples, Split, clouds};
use crate::{Error, Result};

pub use corrupted::ModelNet40C;
pub use text::ModelNet40Text;
pub use voxels::{MODELNET10_CLASSES, ModelNet10Voxels};

/// Names of the forty classes, in the order of the labels.
pub const MODELNET40_CLASSES: [&str; 40] = [
    "airplane",
    "bathtub",
    "bed",
    "bench",
    "bookshelf",
    "bottle",
    "bowl",
    "car",
    "chair",
    "cone",
    "cup",
    "curtain",
    "desk",
    "door",
    "dresser",
    "flower_pot",
    "glass_box",
    "guitar",
    "keyboard",
    "lamp",
    "laptop",
    "mantel",
    "monitor",
    "night_stand",
    "person",
    "piano",
    "plant",
    "radio",
    "range_hood",
    "sink",
    "sofa",
    "stairs",
    "stool",
    "table",
    "tent",
    "toilet",
    "tv_stand",
    "vase",
    "wardrobe",
    "xbox",
];

/// One split of ModelNet40 in memory, from its HDF5 files.
#[derive(Debug)]
pub struct ModelNet40 {
    points: usize,
    values: Vec<f32>,
    labels: Vec<u8>,
}

impl ModelNet40 {
    /// The first `points` points, at most 2,048, of every cloud of a split.
    pub fn open(root: &Path, split: Split, points: usize) -> Result<Self> {
        let (values, labels) = hdf5::read(root, split, points)?;
        Ok(Self {
            points,
            values,
            labels,
        })
    }
}

impl Dataset for ModelNet40 {
    fn name(&self) -> &'static str {
        "modelnet40"
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn classes(&self) -> Vec<String> {
        MODELNET40_CLASSES.map(str::to_owned).to_vec()
    }

    fn labels(&self) -> Result<Vec<usize>> {
        Ok(self.labels.iter().map(|&label| label.into()).collect())
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        Ok(batch(&self.values, &self.labels, self.points, ids))
    }
}

/// ModelNet40 in whichever of its two layouts a folder holds it.
pub fn open_modelnet40(root: &Path, split: Split, points: usize) -> Result<Box<dyn Dataset>> {
    if !root.is_dir() {
        return Err(absent("modelnet40", root, "no such folder".to_owned()));
    }
    if hdf5::file(root, split, 0).is_file() {
        return Ok(Box::new(ModelNet40::open(root, split, points)?));
    }
    if MODELNET40_CLASSES
        .iter()
        .any(|class| root.join(class).is_dir())
    {
        return Ok(Box::new(ModelNet40Text::open(root, split, points)?));
    }
    let expected = "expected `ply_data_test0.h5` and its like, or folders named after the classes";
    let problem = format!("{expected}, {}", contents(root));
    Err(absent("modelnet40", root, problem))
}

/// A batch out of arrays of all clouds and labels.
fn batch(values: &[f32], labels: &[u8], points: usize, ids: &[SampleId]) -> Batch {
    Batch {
        samples: Samples {
            ids: ids.to_vec(),
            images: Images::from_clouds(points, &clouds::gather(values, points, ids)),
        },
        labels: ids.iter().map(|&id| labels[id as usize].into()).collect(),
    }
}

/// Refuses arrays with a cloud of which nothing can be learned; says which.
fn check(data: &'static str, path: &Path, values: &[f32], points: usize) -> Result<(), Error> {
    for (index, cloud) in values.chunks_exact(3 * points).enumerate() {
        if let Some(problem) = clouds::problem(cloud) {
            return Err(damaged(data, path, format!("cloud {index}: {problem}")));
        }
    }
    Ok(())
}
