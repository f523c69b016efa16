//! What a network expects of its input, and how samples are made into it.

use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::data::{Clouds, Dataset, DatasetExt, Images, SampleId, Samples};
use crate::{Error, Result};

/// The most rows, columns or points that a header may ask for.
const LARGEST: usize = 10_000;

/// What a network expects of its input.
///
/// ```
/// use burn::tensor::Device;
/// use ttac::data::{Images, Samples};
/// use ttac::input::InputContract;
/// # use ttac::burn;
///
/// let contract = InputContract::Images { height: 1, width: 1, mean: [0.5; 3], std: [0.5; 3] };
/// let white = Samples::from(Images { height: 1, width: 1, pixels: vec![255; 3] });
/// let input = contract.normalise(&white, &Device::flex())?;
/// assert_eq!(input.to_data().try_to_vec::<f32>().unwrap(), [1.0; 3]);
/// # Ok::<(), ttac::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum InputContract {
    /// RGB images of one size, scaled to `[0, 1]`, then `(x - mean) / std` by channel.
    Images {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// Mean per channel.
        mean: [f32; 3],
        /// Standard deviation per channel.
        std: [f32; 3],
    },
    /// Clouds of points, their coordinates as they are.
    Clouds {
        /// Points of the clouds that the network was trained with. Any number from `fewest` on will do.
        points: usize,
        /// The fewest points of a cloud: as many as the network takes for neighbours.
        fewest: usize,
    },
}

impl InputContract {
    /// Mean and standard deviation by name: `imagenet`, `cifar10`, `cifar100`, `none`.
    pub const NORMALISATIONS: [(&'static str, [f32; 3], [f32; 3]); 4] = [
        ("imagenet", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        (
            "cifar10",
            [0.4914, 0.4822, 0.4465],
            [0.2023, 0.1994, 0.2010],
        ),
        (
            "cifar100",
            [0.5071, 0.4867, 0.4408],
            [0.2675, 0.2565, 0.2761],
        ),
        ("none", [0.0; 3], [1.0; 3]),
    ];

    /// Says what the network looks at: `images of 32 x 32 pixels` or `clouds of 1024 points`.
    pub fn describe(&self) -> String {
        match self {
            Self::Images { height, width, .. } => format!("images of {height} x {width} pixels"),
            Self::Clouds { points, .. } => format!("clouds of {points} points"),
        }
    }

    /// Returns the memory that one sample takes before it is normalised, in bytes.
    pub fn sample_bytes(&self) -> usize {
        match self {
            Self::Images { height, width, .. } => 3 * height * width,
            Self::Clouds { points, .. } => 3 * points * size_of::<f32>(),
        }
    }

    /// Measures the contract that makes the images of a data set, at their own size, zero in mean and one in
    /// standard deviation per channel. At most `limit` images are read, spread over the set. Clouds are taken as they
    /// are, and need a single point.
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
        let mut sums = ChannelSums::default();
        let (mut height, mut width) = (0, 0);
        for ids in ids.chunks(256) {
            let images = match data.batch(ids)?.samples {
                Samples::Images(images) => images,
                Samples::Clouds(Clouds { points, .. }) => {
                    return Ok(Self::Clouds { points, fewest: 1 });
                }
            };
            (height, width) = (images.height, images.width);
            sums.add(&images);
        }
        let (mean, std) = sums.mean_and_deviation();
        Ok(Self::Images {
            height,
            width,
            mean,
            std,
        })
    }

    /// Makes samples into what the network wants: of images `(x / 255 - mean) / std`, `[count, height, width, 3]`; of
    /// clouds the coordinates, `[count, points, 1, 3]`.
    ///
    /// Samples that do not [fit](Self::check) are refused.
    pub fn normalise(&self, samples: &Samples, device: &Device) -> Result<Tensor<4>> {
        self.check(samples)?;
        let tensor = match (self, samples) {
            (Self::Images { mean, std, .. }, Samples::Images(images)) => {
                let shape = [images.count(), images.height, images.width, 3];
                TensorData::new(scaled(images, mean, std), shape)
            }
            (_, Samples::Clouds(clouds)) => {
                let shape = [clouds.count(), clouds.points, 1, 3];
                TensorData::new(clouds.values.clone(), shape)
            }
            (Self::Clouds { .. }, Samples::Images(_)) => unreachable!("the kind was checked"),
        };
        Ok(Tensor::from_data(tensor, device))
    }

    /// Refuses samples of the other kind or of another size, clouds with too few points or with coordinates that are not finite, and
    /// an empty batch.
    pub fn check(&self, samples: &Samples) -> Result<()> {
        match (self, samples) {
            (Self::Images { .. }, Samples::Images(images)) => {
                self.check_size(images)?;
                let each = 3 * images.height * images.width;
                check_values(samples, images.pixels.len(), each)
            }
            (Self::Images { height, width, .. }, Samples::Clouds(_)) => Err(Error::Mismatch {
                what: "image size".to_owned(),
                expected: format!("{height} x {width} pixels for this model"),
                found: format!("{} in the data", samples.describe()),
            }),
            (Self::Clouds { fewest, .. }, Samples::Clouds(clouds)) => {
                check_points(clouds, *fewest)?;
                check_values(samples, clouds.values.len(), 3 * clouds.points)?;
                check_finite(clouds)
            }
            (Self::Clouds { .. }, Samples::Images(_)) => Err(Error::Mismatch {
                what: "input".to_owned(),
                expected: "clouds of points for this model".to_owned(),
                found: format!("{} in the data", samples.describe()),
            }),
        }
    }

    /// Lists everything that is wrong with the contract.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let too_large = |side: usize| side == 0 || side > LARGEST;
        match self {
            Self::Images {
                height,
                width,
                mean,
                std,
            } => {
                if too_large(*height) || too_large(*width) {
                    problems.push(self.describe());
                }
                if !mean.iter().all(|m| m.is_finite()) {
                    problems.push(format!("mean {mean:?} is not finite"));
                }
                if !std.iter().all(|s| s.is_finite() && *s > 0.0) {
                    problems.push(format!("standard deviation {std:?} is not positive"));
                }
            }
            Self::Clouds { points, .. } => {
                if too_large(*points) {
                    problems.push(self.describe());
                }
            }
        }
        problems
    }

    fn check_size(&self, images: &Images) -> Result<()> {
        let Self::Images { height, width, .. } = self else {
            return Ok(());
        };
        if (images.height, images.width) == (*height, *width) {
            return Ok(());
        }
        Err(Error::Mismatch {
            what: "image size".to_owned(),
            expected: format!("{height} x {width} pixels for this model"),
            found: format!("{} x {} in the data", images.height, images.width),
        })
    }
}

/// `(x / 255 - mean) / std` for all pixels.
fn scaled(images: &Images, mean: &[f32; 3], std: &[f32; 3]) -> Vec<f32> {
    // One table of 256 values per channel; the arithmetic is that of torchvision in f32.
    let table: [[f32; 256]; 3] = std::array::from_fn(|channel| {
        std::array::from_fn(|byte| (byte as f32 / 255.0 - mean[channel]) / std[channel])
    });
    images
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
        .collect()
}

/// Refuses an empty batch, and one that ends within a sample.
fn check_values(samples: &Samples, found: usize, each: usize) -> Result<()> {
    let form = samples.describe();
    let problem = if found == 0 {
        format!("expected at least one of {form}, found none")
    } else if !found.is_multiple_of(each) {
        format!("expected {each} values for each of {form}, found {found} in all")
    } else {
        return Ok(());
    };
    Err(Error::Invalid {
        what: "batch",
        problem,
    })
}

fn check_points(clouds: &Clouds, fewest: usize) -> Result<()> {
    let fewest = fewest.max(1);
    if clouds.points >= fewest {
        return Ok(());
    }
    Err(Error::Mismatch {
        what: "points of a cloud".to_owned(),
        expected: format!("at least {fewest}, the neighbours that this model looks at"),
        found: format!("{} in the data", clouds.points),
    })
}

fn check_finite(clouds: &Clouds) -> Result<()> {
    let values = &clouds.values;
    let Some(at) = values.iter().position(|value| !value.is_finite()) else {
        return Ok(());
    };
    let (cloud, point) = (at / (3 * clouds.points), at / 3 % clouds.points);
    Err(Error::Invalid {
        what: "cloud",
        problem: format!(
            "point {point} of cloud {cloud} of the batch is {}, expected finite coordinates",
            values[at]
        ),
    })
}

/// Sums over the pixels of each channel.
#[derive(Default)]
struct ChannelSums {
    sum: [u64; 3],
    squares: [u64; 3],
    pixels: u64,
}

impl ChannelSums {
    fn add(&mut self, images: &Images) {
        for pixel in images.pixels.as_chunks::<3>().0 {
            for channel in 0..3 {
                let value = u64::from(pixel[channel]);
                self.sum[channel] += value;
                self.squares[channel] += value * value;
            }
            self.pixels += 1;
        }
    }

    /// Of values scaled to `[0, 1]`.
    fn mean_and_deviation(&self) -> ([f32; 3], [f32; 3]) {
        let n = self.pixels as f64;
        let mean = self.sum.map(|s| s as f64 / n);
        let std = std::array::from_fn(|channel| {
            let variance = self.squares[channel] as f64 / n - mean[channel] * mean[channel];
            // A channel that never changes would be divided by zero.
            (variance.max(1.0).sqrt() / 255.0) as f32
        });
        (mean.map(|m| (m / 255.0) as f32), std)
    }
}

// --------------------------------------------------------------------------------------- in files

/// The contract as headers of format 1 have it. Clouds were once rows of four RGB columns, and their files still say so.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default, skip_serializing_if = "WrittenKind::is_image")]
    kind: WrittenKind,
    height: usize,
    width: usize,
    mean: [f32; 3],
    std: [f32; 3],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WrittenKind {
    #[default]
    Image,
    Points {
        fewest: usize,
    },
}

impl WrittenKind {
    fn is_image(&self) -> bool {
        *self == Self::Image
    }
}

/// What the columns, means and deviations of clouds are in every file.
const CLOUD_WIDTH: usize = 4;
const CLOUD_MEAN: [f32; 3] = [0.0; 3];
const CLOUD_STD: [f32; 3] = [1.0; 3];

impl From<InputContract> for Written {
    fn from(contract: InputContract) -> Self {
        match contract {
            InputContract::Images {
                height,
                width,
                mean,
                std,
            } => Self {
                kind: WrittenKind::Image,
                height,
                width,
                mean,
                std,
            },
            InputContract::Clouds { points, fewest } => Self {
                kind: WrittenKind::Points { fewest },
                height: points,
                width: CLOUD_WIDTH,
                mean: CLOUD_MEAN,
                std: CLOUD_STD,
            },
        }
    }
}

impl TryFrom<Written> for InputContract {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let Written {
            kind,
            height,
            width,
            mean,
            std,
        } = written;
        match kind {
            WrittenKind::Image => Ok(Self::Images {
                height,
                width,
                mean,
                std,
            }),
            WrittenKind::Points { fewest } => {
                if (width, mean, std) != (CLOUD_WIDTH, CLOUD_MEAN, CLOUD_STD) {
                    return Err(format!(
                        "clouds of points: expected width {CLOUD_WIDTH}, mean {CLOUD_MEAN:?} and std {CLOUD_STD:?}, \
                         found {width}, {mean:?} and {std:?}"
                    ));
                }
                Ok(Self::Clouds {
                    points: height,
                    fewest,
                })
            }
        }
    }
}
