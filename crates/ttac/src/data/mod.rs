//! Images or clouds of points with labels, one file per format.
//!
//! A [`Dataset`] hands out [`Samples`]: RGB bytes, or clouds. What a network makes of them (mean, standard deviation,
//! size) is the [`InputContract`](crate::input::InputContract) of its checkpoint. Labels travel beside the samples, never
//! inside them, because a method that adapts may not see them; where they are not known, there are none.

mod augment;
mod cifar;
mod cifar10;
mod cifar100;
mod cifar10_1;
mod cifar_c;
mod clouds;
mod corrupted;
mod corrupted_clouds;
mod dataset;
mod dice;
mod grey;
mod idx;
mod image_folder;
mod memory;
mod modelnet;
mod npy;
mod open;
mod part;
mod picture;
mod problem;
mod resize;
mod sample;
mod shapes10;
mod solids10;
mod split;
mod usps;

use std::path::PathBuf;

pub use augment::{
    Adjustment, BatchAugmentation, BatchVariation, Crop, Draw, MixedVariation, Operation, Padding,
    Sampling, StrongVariation, Tone, Variation, augment, rotate, shuffle_patches,
};
pub use cifar_c::{cifar_c_corruptions, open_cifar10_c, open_cifar100_c};
pub use cifar10::{CIFAR10_CLASSES, open_cifar10};
pub use cifar10_1::open_cifar10_1;
pub use cifar100::{CIFAR100_CLASSES, open_cifar100};
pub use corrupted::Corrupted;
pub use corrupted_clouds::CorruptedClouds;
pub use dataset::{Dataset, DatasetExt, Meshes, SetInfo};
pub use grey::GreyImages;
pub use idx::{DIGIT_CLASSES, FASHION_MNIST_CLASSES, open_fashion_mnist, open_mnist};
pub use image_folder::ImageFolder;
pub use memory::InMemory;
pub use modelnet::{
    MODELNET10_CLASSES, MODELNET40_CLASSES, ModelNet10Voxels, ModelNet40Text, open_modelnet40,
    open_modelnet40_c, open_modelnet40_hdf5,
};
pub use npy::NpyImages;
pub use open::{DATA_SETS, NamedSet, OpenOptions, data_names, open};
pub use part::Part;
pub use picture::{Picture, PictureLimits};
pub use sample::{Batch, Clouds, Images, SampleId, Samples};
pub use shapes10::{SHAPES10_CLASSES, Shapes10};
pub use solids10::{SOLIDS10_CLASSES, Solids10};
pub use split::Split;
pub use usps::open_usps;

/// Returns the folder that data sets live in: `$TTAC_DATA`, else `ttac/data` in the user's cache folder. A variable
/// that is empty counts as not set.
pub fn default_root() -> PathBuf {
    let folder = |variable: &str| {
        let value = std::env::var_os(variable).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    };
    folder("TTAC_DATA").unwrap_or_else(|| {
        let home = || folder("HOME").unwrap_or_else(|| ".".into());
        let cache = folder("XDG_CACHE_HOME").unwrap_or_else(|| home().join(".cache"));
        cache.join("ttac").join("data")
    })
}
