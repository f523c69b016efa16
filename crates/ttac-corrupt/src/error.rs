use std::path::PathBuf;

use crate::Corruption;
use crate::points::{MeshProblem, PointCorruption};
use crate::size::{MAX_SIDE, MIN_SIDE};

/// What can go wrong. Every message says what was expected and what was found; [`Error::hint`] says what to try.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A corruption was asked for by a name that does not exist.
    #[error("unknown corruption `{name}`")]
    UnknownCorruption {
        /// The name as given.
        name: String,
        /// The corruption spelt most alike, if any is near.
        nearest: Option<Corruption>,
    },

    /// A severity is outside 1 to 5.
    #[error("severity is out of range: expected 1 to 5, found `{found}`")]
    SeverityOutOfRange {
        /// The severity as given.
        found: String,
    },

    /// Images are smaller or larger than the corruptions are made for.
    #[error(
        "image size is not supported: expected sides of {MIN_SIDE} to {MAX_SIDE} pixels, found {height} x {width}"
    )]
    ImageSize {
        /// The number of rows of an image.
        height: usize,
        /// The number of columns of an image.
        width: usize,
    },

    /// The buffer does not hold a whole number of images of the stated size.
    #[error(
        "pixel buffer does not hold whole images: expected a multiple of {} bytes ({height} x {width} x 3), found {found}",
        height * width * 3
    )]
    BufferLength {
        /// The number of bytes in the buffer.
        found: usize,
        /// The number of rows of an image.
        height: usize,
        /// The number of columns of an image.
        width: usize,
    },

    /// A frost photograph is missing or cannot be decoded.
    #[error("cannot read the frost photograph `{}`", path.display())]
    FrostPhotograph {
        /// The file that could not be read.
        path: PathBuf,
        /// Why it could not be read.
        #[source]
        source: image::ImageError,
    },

    /// A corruption of clouds was asked for by a name that does not exist.
    #[error("unknown corruption of point clouds `{name}`")]
    UnknownPointCorruption {
        /// The name as given.
        name: String,
        /// The corruption spelt most alike, if any is near.
        nearest: Option<PointCorruption>,
    },

    /// The buffer does not hold a whole number of clouds.
    #[error(
        "buffer does not hold whole clouds: expected a multiple of {} numbers ({points} points x 3), found {found}",
        points * 3
    )]
    CloudLength {
        /// The number of values in the buffer.
        found: usize,
        /// The number of points of a cloud.
        points: usize,
    },

    /// A cloud has fewer points than a corruption takes.
    #[error(
        "clouds are too small for `{corruption}`: expected at least {needed} points, found {found}"
    )]
    TooFewPoints {
        /// The corruption that was asked for.
        corruption: PointCorruption,
        /// The fewest points it works with.
        needed: usize,
        /// The number of points of a cloud.
        found: usize,
    },

    /// A coordinate is infinite or not a number.
    #[error("point {point} of cloud {cloud} is not finite")]
    PointNotFinite {
        /// The position of the cloud in its set.
        cloud: u64,
        /// The position of the point in the cloud.
        point: usize,
    },

    /// All points of a cloud are equal, so that it has no extent.
    #[error("all points of cloud {cloud} are equal")]
    PointsAllEqual {
        /// The position of the cloud in its set.
        cloud: u64,
    },

    /// Occlusion or LiDAR was asked for on points; they are made from meshes.
    #[error("`{corruption}` needs meshes: what hides behind a surface cannot be told from points")]
    NeedsMeshes {
        /// The corruption that was asked for.
        corruption: PointCorruption,
    },

    /// A corruption of points was asked for on meshes.
    #[error("`{corruption}` is made from points, not from meshes")]
    NeedsPoints {
        /// The corruption that was asked for.
        corruption: PointCorruption,
    },

    /// Some meshes cannot be rendered.
    #[error("{} of {total} meshes cannot be rendered: {}", problems.len(), listed(problems))]
    Meshes {
        /// The number of meshes that were looked at.
        total: usize,
        /// The position in the set and the problem of each that failed.
        problems: Vec<(u64, MeshProblem)>,
    },
}

/// Lists the first few problems.
fn listed(problems: &[(u64, MeshProblem)]) -> String {
    let first = problems.iter().take(5);
    let mut words: Vec<String> = first
        .map(|(mesh, problem)| format!("mesh {mesh} {problem}"))
        .collect();
    if problems.len() > words.len() {
        words.push(format!("and {} more", problems.len() - words.len()));
    }
    words.join(", ")
}

impl Error {
    /// Returns advice for the person who sees the message, where there is any.
    ///
    /// ```
    /// let error = "gausian-noise".parse::<ttac_corrupt::Corruption>().unwrap_err();
    /// assert_eq!(error.to_string(), "unknown corruption `gausian-noise`");
    /// assert_eq!(error.hint().unwrap(), "did you mean `gaussian_noise`?");
    /// ```
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownCorruption { nearest: Some(nearest), .. } => Some(format!("did you mean `{nearest}`?")),
            Self::UnknownCorruption { nearest: None, .. } => {
                let names: Vec<_> = Corruption::ALL.iter().map(|corruption| corruption.name()).collect();
                Some(format!("known corruptions are {}", names.join(", ")))
            }
            Self::SeverityOutOfRange { .. } => {
                Some("1 is the mildest, 5 the strongest; clean images need no corruption".to_owned())
            }
            Self::ImageSize { .. } => Some("resize or crop the images first".to_owned()),
            Self::BufferLength { .. } => {
                Some("images are dense RGB bytes in the order count, height, width, channel".to_owned())
            }
            Self::FrostPhotograph { .. } => Some(
                "the directory must hold `frost1.png`, `frost2.png`, `frost3.png`, `frost4.jpg` and `frost5.jpg`; \
                 without a directory a procedural texture is used and the result is called `frost-like`"
                    .to_owned(),
            ),
            Self::UnknownPointCorruption { nearest: Some(nearest), .. } => Some(format!("did you mean `{nearest}`?")),
            Self::UnknownPointCorruption { nearest: None, .. } => {
                Some(format!("known corruptions of clouds are {}", PointCorruption::ALL.map(PointCorruption::name).join(", ")))
            }
            Self::CloudLength { .. } => {
                Some("clouds are dense numbers in the order cloud, point, coordinate, all of one size".to_owned())
            }
            Self::TooFewPoints { .. } => Some("the public recipe starts from clouds of 2048 points".to_owned()),
            Self::PointNotFinite { .. } | Self::PointsAllEqual { .. } => {
                Some("leave the cloud out: there is no shape in it".to_owned())
            }
            Self::NeedsMeshes { .. } => {
                Some("take a set that has meshes, such as `solids10`, or the files of ModelNet40-C".to_owned())
            }
            Self::NeedsPoints { .. } => Some("sample points on the surfaces first".to_owned()),
            Self::Meshes { .. } => Some("leave these meshes out, or mend their files".to_owned()),
        }
    }
}
