//! Images or clouds of points with labels, one file per format.
//!
//! A [`Dataset`] hands out RGB bytes, or [clouds](Images::from_clouds); what a network makes of them (mean, standard deviation, size)
//! is the [`InputContract`] of its checkpoint. Labels travel beside the [`Samples`], never inside
//! them, because a method that adapts may not see them.

mod augment;
mod cifar;
mod cifar10;
mod cifar100;
mod cifar10_1;
mod cifar_c;
mod clouds;
mod corrupted;
mod corrupted_clouds;
mod dice;
mod grey;
mod idx;
mod image_folder;
mod modelnet;
mod npy;
mod open;
mod part;
mod problem;
mod resize;
mod shapes10;
mod solids10;
mod split;
mod usps;

use std::path::PathBuf;

use burn::tensor::{Device, Tensor, TensorData};
use ttac_corrupt::points::Mesh;

pub use augment::{Adjustment, Crop, Draw, Variation, augment, rotate};
pub use cifar_c::CifarC;
pub use cifar10::{CIFAR10_CLASSES, Cifar10};
pub use cifar10_1::Cifar10Dot1;
pub use cifar100::{CIFAR100_CLASSES, Cifar100};
pub use corrupted::Corrupted;
pub use corrupted_clouds::CorruptedClouds;
pub use idx::{DIGIT_CLASSES, FASHION_MNIST_CLASSES, Idx};
pub use image_folder::ImageFolder;
pub use modelnet::{
    MODELNET10_CLASSES, MODELNET40_CLASSES, ModelNet10Voxels, ModelNet40, ModelNet40C,
    ModelNet40Text, open_modelnet40,
};
pub use open::{DATA_NAMES, OpenOptions, open};
pub use part::Part;
pub use shapes10::{SHAPES10_CLASSES, Shapes10};
pub use solids10::{SOLIDS10_CLASSES, Solids10};
pub use split::Split;
pub use usps::Usps;

use crate::checkpoint::{InputContract, InputKind};
use crate::{Error, Result};

/// Position of a sample in its data set.
pub type SampleId = u64;

/// RGB images of one size as bytes; or [clouds](Self::from_clouds), which travel the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// Rows of an image.
    pub height: usize,
    /// Columns of an image.
    pub width: usize,
    /// `[count, height, width, 3]`, row-major.
    pub pixels: Vec<u8>,
}

impl Images {
    /// How many images.
    pub fn count(&self) -> usize {
        self.pixels.len() / (self.height * self.width * 3)
    }
}

/// What a method may see of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Samples {
    /// Which samples these are.
    pub ids: Vec<SampleId>,
    /// Their images, in the same order.
    pub images: Images,
}

/// Samples and, for scoring only, their labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// What a method may see.
    pub samples: Samples,
    /// The true classes, in the order of the samples.
    pub labels: Vec<usize>,
}

/// A labelled set of images or clouds that can be read in any order.
pub trait Dataset: Send + Sync {
    /// Its name, as on the command line.
    fn name(&self) -> &'static str;

    /// How many samples.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names of the classes, in the order of the labels.
    fn classes(&self) -> Vec<String>;

    /// The samples with the given ids.
    ///
    /// # Panics
    /// If an id is not below [`len`](Self::len).
    fn batch(&self, ids: &[SampleId]) -> Result<Batch>;

    /// The true classes of all samples. Reads everything, unless a format knows better.
    fn labels(&self) -> Result<Vec<usize>> {
        let ids: Vec<SampleId> = (0..self.len() as SampleId).collect();
        let batches = ids.chunks(512).map(|ids| Ok(self.batch(ids)?.labels));
        Ok(batches.collect::<Result<Vec<_>>>()?.concat())
    }

    /// Whether the true classes are known. Where they are not, labels are zeros that nobody may count,
    /// and there are no [`classes`](Self::classes).
    fn is_labelled(&self) -> bool {
        true
    }

    /// What a sample is called where it comes from, e.g. its file; none if it has only its number.
    fn sample_name(&self, _id: SampleId) -> Option<String> {
        None
    }

    /// What was done to the images, in the words of a protocol card; none if nothing was.
    fn corruption(&self) -> Option<String> {
        None
    }

    /// The surfaces of samples, where a set of clouds has them.
    fn meshes(&self, _ids: &[SampleId]) -> Option<Vec<Mesh>> {
        None
    }

    /// How many samples were left out because they could not be read; only where that was asked for.
    fn skipped(&self) -> usize {
        0
    }
}

impl InputContract {
    /// The contract that makes the images of a data set, at their own size, zero in mean and one in
    /// standard deviation per channel. Measured on at most `limit` images, spread over the set. Clouds
    /// are taken as they are.
    pub fn measured(data: &dyn Dataset, limit: usize) -> Result<Self> {
        let count = data.len().min(limit);
        if count == 0 {
            return Err(Error::Invalid {
                what: "data",
                problem: format!("`{}` has no images to measure", data.name()),
            });
        }
        let ids: Vec<SampleId> = (0..count)
            .map(|i| (i * data.len() / count) as SampleId)
            .collect();
        let (mut sum, mut squares, mut pixels) = ([0_u64; 3], [0_u64; 3], 0_u64);
        let (mut height, mut width) = (0, 0);
        for ids in ids.chunks(256) {
            let images = data.batch(ids)?.samples.images;
            if images.width == Images::CLOUD_WIDTH {
                return Ok(Self::points(images.height, 1));
            }
            (height, width) = (images.height, images.width);
            for pixel in images.pixels.as_chunks::<3>().0 {
                for channel in 0..3 {
                    let value = u64::from(pixel[channel]);
                    sum[channel] += value;
                    squares[channel] += value * value;
                }
                pixels += 1;
            }
        }
        let n = pixels as f64;
        let mean = sum.map(|s| s as f64 / n);
        let std: [f32; 3] = std::array::from_fn(|channel| {
            let variance = squares[channel] as f64 / n - mean[channel] * mean[channel];
            // A channel that never changes would be divided by zero.
            (variance.max(1.0).sqrt() / 255.0) as f32
        });
        Ok(Self {
            kind: InputKind::Image,
            height,
            width,
            mean: mean.map(|m| (m / 255.0) as f32),
            std,
        })
    }

    /// Samples as a network wants them: of images `(x / 255 - mean) / std`, `[count, height, width, 3]`; of clouds
    /// the coordinates, `[count, points, 1, 3]`, of any number of points.
    pub fn normalise(&self, images: &Images, device: &Device) -> Result<Tensor<4>> {
        if let InputKind::Points { fewest } = self.kind {
            return coordinates(images, fewest, device);
        }
        if (images.height, images.width) != (self.height, self.width) {
            let found = match images.width {
                Images::CLOUD_WIDTH => images.describe(),
                width => format!("{} x {width}", images.height),
            };
            return Err(Error::Mismatch {
                what: "image size".to_owned(),
                expected: format!("{} x {} pixels for this model", self.height, self.width),
                found: format!("{found} in the data"),
            });
        }
        // One table of 256 values per channel; the arithmetic is that of torchvision in f32.
        let table: [[f32; 256]; 3] = std::array::from_fn(|channel| {
            std::array::from_fn(|byte| {
                (byte as f32 / 255.0 - self.mean[channel]) / self.std[channel]
            })
        });
        let values: Vec<f32> = images
            .pixels
            .as_chunks::<3>()
            .0
            .iter()
            .flat_map(|&[r, g, b]| {
                [
                    table[0][r as usize],
                    table[1][g as usize],
                    table[2][b as usize],
                ]
            })
            .collect();
        let shape = [images.count(), images.height, images.width, 3];
        Ok(Tensor::from_data(TensorData::new(values, shape), device))
    }
}

/// Clouds as they are, checked.
fn coordinates(images: &Images, fewest: usize, device: &Device) -> Result<Tensor<4>> {
    let values = images.to_clouds().ok_or_else(|| Error::Mismatch {
        what: "input".to_owned(),
        expected: "clouds of points for this model".to_owned(),
        found: format!("{} in the data", images.describe()),
    })?;
    if images.height < fewest {
        return Err(Error::Mismatch {
            what: "points of a cloud".to_owned(),
            expected: format!("at least {fewest}, the neighbours that this model looks at"),
            found: format!("{} in the data", images.height),
        });
    }
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        let (cloud, point) = (at / (3 * images.height), at / 3 % images.height);
        return Err(Error::Invalid {
            what: "cloud",
            problem: format!(
                "point {point} of cloud {cloud} of the batch is {}",
                values[at]
            ),
        });
    }
    let shape = [images.count(), images.height, 1, 3];
    Ok(Tensor::from_data(TensorData::new(values, shape), device))
}

/// The folder data sets live in: `$TTAC_DATA`, else `ttac/data` in the user's cache folder.
pub fn default_root() -> PathBuf {
    if let Some(root) = std::env::var_os("TTAC_DATA") {
        return root.into();
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| ".".into())).join(".cache"),
        PathBuf::from,
    );
    cache.join("ttac").join("data")
}
