//! ModelNet: shapes of furniture and other things, as clouds of points.
//!
//! | name | files |
//! |---|---|
//! | `modelnet40` | `ply_data_{train,test}N.h5` with `data` `[n, p, 3]`, `p` at least 1,024, and `label`, or the resampled text files in class folders |
//! | `modelnet40-c` | `data_CORRUPTION_SEVERITY.npy`, `[n, points, 3]`, and `label.npy` |
//! | `modelnet10-derived` | occupancy grids `modelnet10_voxels32.npz`; points are drawn on the faces of the voxels, so these are not ModelNet10's own clouds |

mod corrupted;
mod hdf5;
mod npz;
mod text;
mod voxels;

use std::path::Path;

use super::clouds::{batch, problem, to_unit_ball};
use super::problem::{absent, check_folder, contents, damaged};
use super::{Clouds, Dataset, InMemory, Split};
use crate::{Error, Result};

pub use corrupted::open_modelnet40_c;
pub use hdf5::open_modelnet40_hdf5;
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

/// Reads the first `points` points of every cloud of a split of ModelNet40, in whichever of its two layouts a
/// folder holds it.
pub fn open_modelnet40(root: &Path, split: Split, points: usize) -> Result<Box<dyn Dataset>> {
    check_folder("modelnet40", root)?;
    if hdf5::file(root, split, 0).is_file() {
        return Ok(Box::new(open_modelnet40_hdf5(root, split, points)?));
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

/// Refuses arrays with a cloud of which nothing can be learned; says which.
fn check(data: &'static str, path: &Path, clouds: &Clouds) -> Result<(), Error> {
    for (index, cloud) in clouds.each().enumerate() {
        if let Some(problem) = problem(cloud) {
            return Err(damaged(data, path, format!("cloud {index}: {problem}")));
        }
    }
    Ok(())
}
