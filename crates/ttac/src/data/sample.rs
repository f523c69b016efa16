//! What a data set hands out: images or clouds of points, and their labels where they are known.

use std::fmt;

pub use ttac_corrupt::points::Clouds;

use crate::{Error, Result};

/// Position of a sample in its data set.
pub type SampleId = u64;

/// RGB images of one size, as bytes.
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
    /// Returns how many images there are.
    pub fn count(&self) -> usize {
        self.each().len()
    }

    /// Iterates over the images, each `[height, width, 3]`.
    pub fn each(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.pixels.chunks_exact(self.image_bytes().max(1))
    }

    fn image_bytes(&self) -> usize {
        self.height * self.width * 3
    }
}

/// Samples of one kind and one size.
///
/// ```
/// use ttac::data::{Images, Samples};
///
/// let grey = Images { height: 1, width: 2, pixels: vec![1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4] };
/// let samples = Samples::from(grey);
/// assert_eq!(samples.count(), 2);
/// assert_eq!(samples.describe(), "images of 1 x 2 pixels");
/// let second = samples.pick(&[1]).into_images()?;
/// assert_eq!(second.pixels, [3, 3, 3, 4, 4, 4]);
/// # Ok::<(), ttac::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Samples {
    /// Pictures.
    Images(Images),
    /// Clouds of points.
    Clouds(Clouds),
}

impl Samples {
    /// Returns how many samples there are.
    pub fn count(&self) -> usize {
        match self {
            Self::Images(images) => images.count(),
            Self::Clouds(clouds) => clouds.count(),
        }
    }

    /// Returns whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Says what each sample is: `images of 32 x 32 pixels` or `clouds of 1024 points`.
    pub fn describe(&self) -> String {
        self.form().to_string()
    }

    /// Returns whether two sets of samples can be put into one batch: they are of the same kind and
    /// size.
    pub fn same_form(&self, other: &Self) -> bool {
        self.form() == other.form()
    }

    /// Returns the memory that the values take, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Images(images) => images.pixels.len(),
            Self::Clouds(clouds) => size_of_val(clouds.values.as_slice()),
        }
    }

    /// Adds samples of the same kind and size behind these.
    pub fn append(&mut self, more: Self) -> Result<()> {
        let mismatch = Error::Mismatch {
            what: "sizes of samples in one batch".to_owned(),
            expected: self.describe(),
            found: more.describe(),
        };
        if !self.same_form(&more) {
            return Err(mismatch);
        }
        match (self, more) {
            (Self::Images(images), Self::Images(more)) => images.pixels.extend(more.pixels),
            (Self::Clouds(clouds), Self::Clouds(more)) => clouds.values.extend(more.values),
            _ => return Err(mismatch),
        }
        Ok(())
    }

    /// Returns the samples at some places, in the order of the places.
    ///
    /// # Panics
    /// If a place is not below [`count`](Self::count).
    pub fn pick(&self, places: &[usize]) -> Self {
        match self {
            Self::Images(images) => Self::Images(Images {
                pixels: rows(&images.pixels, images.image_bytes(), places),
                ..*images
            }),
            Self::Clouds(clouds) => Self::Clouds(Clouds {
                values: rows(&clouds.values, 3 * clouds.points, places),
                ..*clouds
            }),
        }
    }

    /// Returns the images, or an error if these are clouds.
    pub fn as_images(&self) -> Result<&Images> {
        match self {
            Self::Images(images) => Ok(images),
            Self::Clouds(_) => Err(self.mismatch("images")),
        }
    }

    /// Returns the clouds, or an error if these are images.
    pub fn as_clouds(&self) -> Result<&Clouds> {
        match self {
            Self::Clouds(clouds) => Ok(clouds),
            Self::Images(_) => Err(self.mismatch("clouds of points")),
        }
    }

    /// Turns into the images, or an error if these are clouds.
    pub fn into_images(self) -> Result<Images> {
        match self {
            Self::Images(images) => Ok(images),
            Self::Clouds(_) => Err(self.mismatch("images")),
        }
    }

    /// Turns into the clouds, or an error if these are images.
    pub fn into_clouds(self) -> Result<Clouds> {
        match self {
            Self::Clouds(clouds) => Ok(clouds),
            Self::Images(_) => Err(self.mismatch("clouds of points")),
        }
    }

    fn mismatch(&self, expected: &str) -> Error {
        Error::Mismatch {
            what: "samples".to_owned(),
            expected: expected.to_owned(),
            found: self.describe(),
        }
    }

    fn form(&self) -> Form {
        match *self {
            Self::Images(Images { height, width, .. }) => Form::Images { height, width },
            Self::Clouds(Clouds { points, .. }) => Form::Clouds { points },
        }
    }
}

impl From<Images> for Samples {
    fn from(images: Images) -> Self {
        Self::Images(images)
    }
}

impl From<Clouds> for Samples {
    fn from(clouds: Clouds) -> Self {
        Self::Clouds(clouds)
    }
}

/// Kind and size of a sample.
#[derive(PartialEq, Eq)]
enum Form {
    Images { height: usize, width: usize },
    Clouds { points: usize },
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Images { height, width } => write!(f, "images of {height} x {width} pixels"),
            Self::Clouds { points } => write!(f, "clouds of {points} points"),
        }
    }
}

/// Rows of `length` values at some places of an array.
fn rows<T: Copy>(values: &[T], length: usize, places: &[usize]) -> Vec<T> {
    let mut picked = Vec::with_capacity(places.len() * length);
    for &place in places {
        picked.extend_from_slice(&values[place * length..][..length]);
    }
    picked
}

/// Samples of a data set with their ids and, for scoring only, their labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Which samples these are.
    pub ids: Vec<SampleId>,
    /// The samples, in the order of the ids.
    pub samples: Samples,
    /// The true classes, in the order of the ids; none where they are not known.
    pub labels: Option<Vec<usize>>,
}
