use std::fmt;
use std::sync::{Arc, OnceLock};

use rayon::prelude::*;

use crate::blur::{GaussianBlur, Glass, Motion, Zoom};
use crate::defocus::Defocus;
use crate::digital::{Contrast, Pixelate, Recolour};
use crate::elastic::Elastic;
use crate::error::Error;
use crate::frost::{Frost, FrostTextures};
use crate::jpeg::Jpeg;
use crate::noise::{Channel, Noise};
use crate::parameters as constants;
use crate::parameters::{Parameters, Table};
use crate::random::{Random, Stream};
use crate::size::Size;
use crate::spatter::Spatter;
use crate::weather::{Fog, Snow};
use crate::{Corruption, Severity};

/// A corruption with its constants for one image size. Prepared once for a call, cloned for every worker, it owns the
/// buffers it works in.
pub(crate) trait Kernel: Clone + Send + Sync {
    fn apply(&mut self, image: &mut [u8], random: &mut impl Random);
}

/// Takes a prepared kernel.
pub(crate) trait Visitor {
    fn visit(self, kernel: impl Kernel);
}

/// Corrupts images, reproducibly.
///
/// The image at position `i` of a set draws its random numbers from a stream of its own, made of the seed, the
/// corruption, the severity and `i`. Neither the number of threads nor the way a set is cut into calls changes a bit.
///
/// ```
/// use ttac_corrupt::{Corruption, Corruptor, Severity};
///
/// let images = vec![128; 10 * 32 * 32 * 3]; // [count, height, width, 3]
/// let corruptor = Corruptor::new(42);
/// let noisy = corruptor.apply(Corruption::GaussianNoise, Severity::STRONGEST, &images, 32, 32, 0)?;
/// assert_eq!(noisy.len(), images.len());
///
/// // The last image alone: the same bits as within the set.
/// let image = 32 * 32 * 3;
/// let last = corruptor.apply(Corruption::GaussianNoise, Severity::STRONGEST, &images[9 * image..], 32, 32, 9)?;
/// assert_eq!(last, noisy[9 * image..]);
/// # Ok::<(), ttac_corrupt::Error>(())
/// ```
#[derive(Clone)]
pub struct Corruptor {
    seed: u64,
    frost: Option<FrostTextures>,
    /// Tables of the four noises, by noise, table and severity. They take a millisecond each to make.
    channels: Arc<[OnceLock<Channel>; 40]>,
}

impl Corruptor {
    /// Makes a corruptor with a seed. Frost uses the procedural texture until [photographs](Self::with_frost) are given.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            frost: None,
            channels: Arc::new([const { OnceLock::new() }; 40]),
        }
    }

    /// Uses other frost textures.
    ///
    /// ```no_run
    /// use ttac_corrupt::{Corruptor, FrostTextures};
    ///
    /// let corruptor = Corruptor::new(42).with_frost(FrostTextures::load("photographs")?);
    /// # Ok::<(), ttac_corrupt::Error>(())
    /// ```
    #[must_use]
    pub fn with_frost(mut self, textures: FrostTextures) -> Self {
        self.frost = Some(textures);
        self
    }

    /// Returns the seed of all streams.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns what the results of this corruptor are to be called: the corruption's name, except that frost without
    /// its photographs is `frost-like`.
    pub fn name_of(&self, corruption: Corruption) -> &'static str {
        let photographs = self
            .frost
            .as_ref()
            .is_some_and(FrostTextures::are_photographs);
        if corruption == Corruption::Frost && !photographs {
            "frost-like"
        } else {
            corruption.name()
        }
    }

    /// Corrupts a dense array of RGB images, [count, height, width, 3], and returns an array of the same shape.
    ///
    /// `first_index` is the position of the first image in its set: image `i` of the call uses stream
    /// `first_index + i`. The sides may be 8 to 8192 pixels; which constants apply is told in the
    /// [crate's documentation](crate#sizes).
    pub fn apply(
        &self,
        corruption: Corruption,
        severity: Severity,
        images: &[u8],
        height: usize,
        width: usize,
        first_index: u64,
    ) -> Result<Vec<u8>, Error> {
        let mut out = images.to_vec();
        self.apply_in_place(corruption, severity, &mut out, height, width, first_index)?;
        Ok(out)
    }

    /// Does what [`apply`](Self::apply) does, in the images themselves.
    pub fn apply_in_place(
        &self,
        corruption: Corruption,
        severity: Severity,
        images: &mut [u8],
        height: usize,
        width: usize,
        first_index: u64,
    ) -> Result<(), Error> {
        let index = |image: u64| first_index.wrapping_add(image);
        self.apply_by(corruption, severity, images, height, width, index)
    }

    /// Does what [`apply_in_place`](Self::apply_in_place) does for images from anywhere in their set: `indices` has the
    /// position of each.
    ///
    /// # Panics
    /// If there are not as many indices as images.
    pub fn apply_each(
        &self,
        corruption: Corruption,
        severity: Severity,
        images: &mut [u8],
        height: usize,
        width: usize,
        indices: &[u64],
    ) -> Result<(), Error> {
        let bytes = height * width * 3;
        assert_eq!(images.len(), indices.len() * bytes, "images and indices");
        let index = |image: u64| indices[image as usize];
        self.apply_by(corruption, severity, images, height, width, index)
    }

    fn apply_by(
        &self,
        corruption: Corruption,
        severity: Severity,
        images: &mut [u8],
        height: usize,
        width: usize,
        position: impl Fn(u64) -> u64 + Sync,
    ) -> Result<(), Error> {
        let size = Size::new(height, width)?;
        if !images.len().is_multiple_of(size.bytes()) {
            return Err(Error::BufferLength {
                found: images.len(),
                height,
                width,
            });
        }
        let stream = |index: u64| Stream::new(self.seed, corruption, severity, position(index));
        self.prepare(
            corruption,
            severity,
            size,
            OverImages {
                images,
                bytes: size.bytes(),
                stream,
            },
        );
        Ok(())
    }

    /// Hands the kernel of a corruption to `visitor`.
    pub(crate) fn prepare(
        &self,
        corruption: Corruption,
        severity: Severity,
        size: Size,
        visitor: impl Visitor,
    ) {
        let table = size.table();
        let at = Place { table, severity };
        match corruption {
            Corruption::GaussianNoise => visitor.visit(self.channel(0, at)),
            Corruption::ShotNoise => visitor.visit(self.channel(1, at)),
            Corruption::ImpulseNoise => visitor.visit(self.channel(2, at)),
            Corruption::SpeckleNoise => visitor.visit(self.channel(3, at)),
            Corruption::DefocusBlur => {
                let (radius, alias_sigma) = at.of(&constants::DEFOCUS_BLUR);
                match table {
                    Table::Small => visitor.visit(Defocus::<f64>::new(radius, alias_sigma, size)),
                    Table::Large => visitor.visit(Defocus::<f32>::new(radius, alias_sigma, size)),
                }
            }
            Corruption::GlassBlur => visitor.visit(Glass::new(at.of(&constants::GLASS_BLUR), size)),
            Corruption::MotionBlur => {
                let (radius, sigma) = at.of(&constants::MOTION_BLUR);
                visitor.visit(Motion::new(radius, sigma, size));
            }
            Corruption::ZoomBlur => visitor.visit(Zoom::new(at.of(&constants::ZOOM_BLUR), size)),
            Corruption::Snow => visitor.visit(Snow::new(at.of(&constants::SNOW), size)),
            Corruption::Frost => {
                let weights = at.of(&constants::FROST);
                match &self.frost {
                    Some(textures) => visitor.visit(Frost::new(weights, textures, size)),
                    None => visitor.visit(Frost::new(weights, &FrostTextures::procedural(), size)),
                }
            }
            Corruption::Fog => visitor.visit(Fog::new(at.of(&constants::FOG), size)),
            Corruption::Brightness => {
                let amount = at.of(&constants::BRIGHTNESS);
                visitor.visit(Recolour::Brightness { amount });
            }
            Corruption::Saturate => {
                let (gain, offset) = at.of(&constants::SATURATE);
                visitor.visit(Recolour::Saturate { gain, offset });
            }
            Corruption::Contrast => {
                let gain = at.of(&constants::CONTRAST);
                visitor.visit(Contrast { gain });
            }
            Corruption::ElasticTransform => {
                let unit = constants::elastic_unit(table, size.shorter());
                let (amplitude, sigma, affine) = at.of(&constants::ELASTIC_TRANSFORM);
                let scaled = (unit * amplitude, unit * sigma, unit * affine);
                visitor.visit(Elastic::new(scaled, size));
            }
            Corruption::Pixelate => visitor.visit(Pixelate::new(at.of(&constants::PIXELATE), size)),
            Corruption::JpegCompression => {
                visitor.visit(Jpeg::new(at.of(&constants::JPEG_QUALITY), size));
            }
            Corruption::GaussianBlur => {
                visitor.visit(GaussianBlur::new(
                    at.of(&constants::GAUSSIAN_BLUR_SIGMA),
                    size,
                ));
            }
            Corruption::Spatter => visitor.visit(Spatter::new(at.of(&constants::SPATTER), size)),
        }
    }

    /// Returns the table of a noise, which is made when it is first needed.
    fn channel(&self, noise: usize, at: Place) -> &Channel {
        let large = usize::from(at.table == Table::Large);
        let index = (noise * 2 + large) * 5 + at.severity.index();
        self.channels[index].get_or_init(|| {
            Channel::new(match noise {
                0 => Noise::Gaussian {
                    sigma: at.of(&constants::GAUSSIAN_NOISE_SIGMA),
                },
                1 => Noise::Shot {
                    rate: at.of(&constants::SHOT_NOISE_RATE),
                },
                2 => Noise::Impulse {
                    amount: at.of(&constants::IMPULSE_NOISE_AMOUNT),
                },
                _ => Noise::Speckle {
                    sigma: at.of(&constants::SPECKLE_NOISE_SIGMA),
                },
            })
        })
    }
}

/// Where in the recipe's tables the constants of a call stand.
#[derive(Clone, Copy)]
struct Place {
    table: Table,
    severity: Severity,
}

impl Place {
    fn of<T: Copy>(self, parameters: &Parameters<T>) -> T {
        *parameters.get(self.table, self.severity)
    }
}

impl fmt::Debug for Corruptor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Corruptor")
            .field("seed", &self.seed)
            .field("frost", &self.frost)
            .finish_non_exhaustive()
    }
}

/// Applies a kernel to every image of a buffer, in parallel.
struct OverImages<'a, S> {
    images: &'a mut [u8],
    bytes: usize,
    stream: S,
}

impl<S: Fn(u64) -> Stream + Sync> Visitor for OverImages<'_, S> {
    fn visit(self, kernel: impl Kernel) {
        self.images
            .par_chunks_exact_mut(self.bytes)
            .enumerate()
            .for_each_init(
                || kernel.clone(),
                |kernel, (index, image)| kernel.apply(image, &mut (self.stream)(index as u64)),
            );
    }
}
