use std::path::PathBuf;

use crate::Corruption;
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

    /// A severity outside 1 to 5.
    #[error("severity is out of range: expected 1 to 5, found `{found}`")]
    SeverityOutOfRange {
        /// The severity as given.
        found: String,
    },

    /// Images smaller or larger than the corruptions are made for.
    #[error(
        "image size is not supported: expected sides of {MIN_SIDE} to {MAX_SIDE} pixels, found {height} x {width}"
    )]
    ImageSize {
        /// Rows of an image.
        height: usize,
        /// Columns of an image.
        width: usize,
    },

    /// The buffer does not hold a whole number of images of the stated size.
    #[error(
        "pixel buffer does not hold whole images: expected a multiple of {} bytes ({height} x {width} x 3), found {found}",
        height * width * 3
    )]
    BufferLength {
        /// Bytes found.
        found: usize,
        /// Rows of an image.
        height: usize,
        /// Columns of an image.
        width: usize,
    },

    /// A frost photograph is missing or cannot be decoded.
    #[error("cannot read the frost photograph `{}`", path.display())]
    FrostPhotograph {
        /// The file.
        path: PathBuf,
        /// Why it could not be read.
        #[source]
        source: image::ImageError,
    },
}

impl Error {
    /// Advice for the person who sees the message, where there is any.
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
        }
    }
}
