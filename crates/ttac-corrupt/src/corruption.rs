use std::fmt;
use std::str::FromStr;

use crate::Error;

/// One of the nineteen corruptions.
///
/// Names are spelt as the files of CIFAR-10-C are:
///
/// ```
/// use ttac_corrupt::Corruption;
///
/// assert_eq!(Corruption::JpegCompression.name(), "jpeg_compression");
/// assert_eq!("jpeg-compression".parse::<Corruption>()?, Corruption::JpegCompression);
/// assert_eq!(Corruption::STANDARD.len() + Corruption::HELD_OUT.len(), Corruption::ALL.len());
/// # Ok::<(), ttac_corrupt::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Corruption {
    /// Normal noise on every channel of every pixel.
    GaussianNoise,
    /// Poisson noise: the light arrives in few photons.
    ShotNoise,
    /// Salt and pepper, on single channels.
    ImpulseNoise,
    /// Blur by a disk, as of a lens out of focus.
    DefocusBlur,
    /// Pixels displaced at random between two blurs, as behind frosted glass.
    GlassBlur,
    /// Blur along a random direction.
    MotionBlur,
    /// Average over growing zooms.
    ZoomBlur,
    /// Streaks of white on a whitened image.
    Snow,
    /// A photograph of ice blended in. Without photographs the result is `frost-like`: see
    /// [`FrostTextures`](crate::FrostTextures).
    Frost,
    /// A plasma cloud blended in.
    Fog,
    /// More value in hue, saturation, value.
    Brightness,
    /// Less contrast.
    Contrast,
    /// A random affine map, then a random smooth displacement.
    ElasticTransform,
    /// Shrunk and enlarged again.
    Pixelate,
    /// JPEG at low quality.
    JpegCompression,
    /// Held out: normal noise proportional to the value.
    SpeckleNoise,
    /// Held out: Gaussian blur.
    GaussianBlur,
    /// Held out: drops of water (severities 1 to 3) or mud (4 and 5).
    Spatter,
    /// Held out: less (severities 1 and 2) or more saturation.
    Saturate,
}

use Corruption::{
    Brightness, Contrast, DefocusBlur, ElasticTransform, Fog, Frost, GaussianBlur, GaussianNoise,
    GlassBlur, ImpulseNoise, JpegCompression, MotionBlur, Pixelate, Saturate, ShotNoise, Snow,
    Spatter, SpeckleNoise, ZoomBlur,
};

impl Corruption {
    /// The fifteen that results are reported on, in the usual order.
    pub const STANDARD: [Self; 15] = [
        GaussianNoise,
        ShotNoise,
        ImpulseNoise,
        DefocusBlur,
        GlassBlur,
        MotionBlur,
        ZoomBlur,
        Snow,
        Frost,
        Fog,
        Brightness,
        Contrast,
        ElasticTransform,
        Pixelate,
        JpegCompression,
    ];

    /// The four that are kept for choosing constants.
    pub const HELD_OUT: [Self; 4] = [SpeckleNoise, GaussianBlur, Spatter, Saturate];

    /// [`STANDARD`](Self::STANDARD), then [`HELD_OUT`](Self::HELD_OUT).
    pub const ALL: [Self; 19] = [
        GaussianNoise,
        ShotNoise,
        ImpulseNoise,
        DefocusBlur,
        GlassBlur,
        MotionBlur,
        ZoomBlur,
        Snow,
        Frost,
        Fog,
        Brightness,
        Contrast,
        ElasticTransform,
        Pixelate,
        JpegCompression,
        SpeckleNoise,
        GaussianBlur,
        Spatter,
        Saturate,
    ];

    /// The name in the spelling of the CIFAR-10-C files. What was made without frost photographs must be called by
    /// [`Corruptor::name_of`](crate::Corruptor::name_of) instead.
    pub const fn name(self) -> &'static str {
        match self {
            GaussianNoise => "gaussian_noise",
            ShotNoise => "shot_noise",
            ImpulseNoise => "impulse_noise",
            DefocusBlur => "defocus_blur",
            GlassBlur => "glass_blur",
            MotionBlur => "motion_blur",
            ZoomBlur => "zoom_blur",
            Snow => "snow",
            Frost => "frost",
            Fog => "fog",
            Brightness => "brightness",
            Contrast => "contrast",
            ElasticTransform => "elastic_transform",
            Pixelate => "pixelate",
            JpegCompression => "jpeg_compression",
            SpeckleNoise => "speckle_noise",
            GaussianBlur => "gaussian_blur",
            Spatter => "spatter",
            Saturate => "saturate",
        }
    }

    /// Whether the result depends on the seed.
    pub const fn is_random(self) -> bool {
        !matches!(
            self,
            DefocusBlur
                | ZoomBlur
                | Brightness
                | Contrast
                | Pixelate
                | JpegCompression
                | GaussianBlur
                | Saturate
        )
    }
}

impl fmt::Display for Corruption {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Corruption {
    type Err = Error;

    /// Accepts `-` for `_` and any case.
    fn from_str(text: &str) -> Result<Self, Error> {
        let nearest = match by_name(&Self::ALL, Self::name, text) {
            Ok(found) => return Ok(found),
            Err(nearest) => nearest,
        };
        Err(Error::UnknownCorruption {
            name: text.to_owned(),
            nearest,
        })
    }
}

/// The one of `known` that is called `text`, with `-` for `_` and in any case; else the one whose name is most like it, if any is.
pub(crate) fn by_name<T: Copy>(
    known: &[T],
    name: impl Fn(T) -> &'static str,
    text: &str,
) -> Result<T, Option<T>> {
    let spelt = text.trim().to_lowercase().replace(['-', ' '], "_");
    if let Some(&found) = known.iter().find(|&&one| name(one) == spelt) {
        return Ok(found);
    }
    let likeness = |one: T| strsim::normalized_damerau_levenshtein(&spelt, name(one));
    let nearest = known.iter().copied();
    let nearest = nearest.max_by(|&a, &b| likeness(a).total_cmp(&likeness(b)));
    Err(nearest.filter(|&one| likeness(one) >= 0.4))
}
