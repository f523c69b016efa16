use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::corruptor::Kernel;
use crate::error::Error;
use crate::parameters::Table;
use crate::random::Random;
use crate::size::Size;
use crate::weather::Plasma;

/// The environment variable that names the directory of the frost photographs.
pub const FROST_VARIABLE: &str = "TTAC_FROST";

/// The recipe draws from the first five of its six photographs.
const PHOTOGRAPHS: [&str; 5] = [
    "frost1.png",
    "frost2.png",
    "frost3.png",
    "frost4.jpg",
    "frost5.jpg",
];

/// The pictures of ice that the frost corruption blends in.
///
/// The recipe uses photographs that are not part of this crate: `frost1.png` to `frost5.jpg`, as found in the recipe's
/// repository and in the Python package `imagecorruptions`. Without them [`FrostTextures::procedural`] stands in. What
/// comes out then is *frost-like*: of the same kind, but with other numbers than frost, and it must not carry its name.
///
/// ```
/// use ttac_corrupt::{Corruption, Corruptor, FrostTextures};
///
/// let corruptor = Corruptor::new(7).with_frost(FrostTextures::procedural());
/// assert_eq!(corruptor.name_of(Corruption::Frost), "frost-like");
/// ```
#[derive(Clone)]
pub struct FrostTextures {
    textures: Arc<[Texture]>,
    photographs: bool,
}

/// RGB bytes [height, width, 3].
pub(crate) struct Texture {
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) pixels: Vec<u8>,
}

impl FrostTextures {
    /// Reads the photographs from `directory`. An alpha channel is ignored.
    pub fn load(directory: impl AsRef<Path>) -> Result<Self, Error> {
        let read = |name: &&str| {
            let path = directory.as_ref().join(name);
            match image::ImageReader::open(&path)
                .map_err(image::ImageError::from)
                .and_then(image::ImageReader::decode)
            {
                Ok(picture) => Ok(Texture::from(&picture.to_rgb8())),
                Err(source) => Err(Error::FrostPhotograph { path, source }),
            }
        };
        let textures = PHOTOGRAPHS.iter().map(read).collect::<Result<_, _>>()?;
        Ok(Self {
            textures,
            photographs: true,
        })
    }

    /// Finds the photographs in `directory`; if that is not given, in the directory that the variable `TTAC_FROST`
    /// names; if there is no such variable, the procedural texture is used. A directory that is named must be complete.
    pub fn find(directory: Option<&Path>) -> Result<Self, Error> {
        let named = std::env::var_os(FROST_VARIABLE)
            .filter(|name| !name.is_empty())
            .map(PathBuf::from);
        match directory.map(Path::to_path_buf).or(named) {
            Some(directory) => Self::load(directory),
            None => Ok(Self::procedural()),
        }
    }

    /// Draws ice by a program; it is always the same.
    pub fn procedural() -> Self {
        static DRAWN: OnceLock<Arc<[Texture]>> = OnceLock::new();
        let textures = DRAWN.get_or_init(|| (0..5).map(draw).collect()).clone();
        Self {
            textures,
            photographs: false,
        }
    }

    /// Tells whether these are the recipe's photographs.
    pub fn are_photographs(&self) -> bool {
        self.photographs
    }

    /// The textures at the scale that suits images of `size`: the recipe shrinks them by five for 32 x 32 and takes
    /// them as they are for 224 x 224. Between, the scale follows the shorter side; beyond, they are enlarged as far as
    /// a crop needs.
    pub(crate) fn scaled_for(&self, size: Size) -> Arc<[Texture]> {
        let usual = match size.table() {
            Table::Small => 0.2 * size.shorter() as f64 / Table::Small.side() as f64,
            Table::Large => 1.0,
        };
        let needed = |texture: &Texture| {
            let rows = (size.height + 1) as f64 / texture.height as f64;
            rows.max((size.width + 1) as f64 / texture.width as f64)
        };
        if usual >= 1.0 && self.textures.iter().all(|texture| needed(texture) <= 1.0) {
            return Arc::clone(&self.textures);
        }
        self.textures
            .iter()
            .map(|texture| texture.scaled(usual.max(needed(texture))))
            .collect()
    }
}

impl fmt::Debug for FrostTextures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.photographs {
            "photographs"
        } else {
            "procedural"
        };
        write!(formatter, "FrostTextures({kind})")
    }
}

impl From<&image::RgbImage> for Texture {
    fn from(picture: &image::RgbImage) -> Self {
        let (width, height) = picture.dimensions();
        Self {
            height: height as usize,
            width: width as usize,
            pixels: picture.as_raw().clone(),
        }
    }
}

impl Texture {
    /// Bilinear between pixel centres, without antialiasing.
    fn scaled(&self, factor: f64) -> Self {
        let side = |length: usize| (length as f64 * factor).round_ties_even() as usize;
        let (height, width) = (side(self.height), side(self.width));
        let axis = |from: usize, to: usize| -> Vec<(usize, usize, f64)> {
            let place = |index: usize| {
                let position = ((index as f64 + 0.5) / factor - 0.5).clamp(0.0, (from - 1) as f64);
                let first = position as usize;
                (first, (first + 1).min(from - 1), position - first as f64)
            };
            (0..to).map(place).collect()
        };
        let (rows, columns) = (axis(self.height, height), axis(self.width, width));
        let mut pixels = Vec::with_capacity(3 * height * width);
        for (upper, lower, down) in rows {
            for &(left, right, across) in &columns {
                for channel in 0..3 {
                    let at = |row: usize, column: usize| {
                        f64::from(self.pixels[3 * (row * self.width + column) + channel])
                    };
                    let above = at(upper, left) * (1.0 - across) + at(upper, right) * across;
                    let below = at(lower, left) * (1.0 - across) + at(lower, right) * across;
                    pixels.push((above * (1.0 - down) + below * down).round() as u8);
                }
            }
        }
        Self {
            height,
            width,
            pixels,
        }
    }
}

/// One procedural texture: veins along the contours of a cloud, and a second cloud for the grain, in a cold tint.
fn draw(index: u64) -> Texture {
    const SIDE: usize = 512;
    /// Mean colours in the range of the photographs.
    const TINTS: [[f64; 3]; 5] = [
        [80.0, 148.0, 165.0],
        [200.0, 205.0, 214.0],
        [190.0, 200.0, 212.0],
        [138.0, 153.0, 165.0],
        [112.0, 124.0, 136.0],
    ];
    let mut random = crate::random::Stream::new(
        index,
        crate::Corruption::Frost,
        crate::Severity::STRONGEST,
        u64::MAX,
    );
    let mut cloud = |decay: f64| {
        let mut cloud = Plasma::new(SIDE, decay);
        let (lowest, span) = cloud.generate(&mut random);
        for height in &mut cloud.heights {
            *height = (*height - lowest) / span;
        }
        cloud.heights
    };
    let (shape, grain) = (cloud(1.6), cloud(1.15));
    let mut pixels = Vec::with_capacity(3 * SIDE * SIDE);
    for (shape, grain) in shape.iter().zip(&grain) {
        let vein = (shape * 24.0).fract();
        let vein = 1.0 - 2.0 * (vein - 0.5).abs();
        let light = 70.0 * (vein - 0.5) + 120.0 * (grain - 0.5);
        pixels.extend(TINTS[index as usize].map(|tint| (tint + light) as u8));
    }
    Texture {
        height: SIDE,
        width: SIDE,
        pixels,
    }
}

/// A crop of a frost texture, blended in.
#[derive(Clone)]
pub(crate) struct Frost {
    textures: Arc<[Texture]>,
    /// Byte times weight, of the image and of the texture.
    keep: Box<[f64; 256]>,
    add: Box<[f64; 256]>,
    size: Size,
}

impl Frost {
    pub(crate) fn new((keep, add): (f64, f64), textures: &FrostTextures, size: Size) -> Self {
        let times = |weight: f64| Box::new(std::array::from_fn(|byte| weight * byte as f64));
        Self {
            textures: textures.scaled_for(size),
            keep: times(keep),
            add: times(add),
            size,
        }
    }
}

impl Kernel for Frost {
    fn apply(&mut self, image: &mut [u8], random: &mut impl Random) {
        let texture = &self.textures[random.below(self.textures.len())];
        let Size { height, width } = self.size;
        let top = random.below(texture.height - height);
        let left = random.below(texture.width - width);
        for (y, row) in image.chunks_exact_mut(3 * width).enumerate() {
            let crop = &texture.pixels[3 * ((top + y) * texture.width + left)..][..3 * width];
            for (byte, &ice) in row.iter_mut().zip(crop) {
                // Conversion to a byte truncates and clips.
                *byte = (self.keep[usize::from(*byte)] + self.add[usize::from(ice)]) as u8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_takes_every_fifth_pixel() {
        let texture = Texture {
            height: 20,
            width: 30,
            pixels: crate::replay::picture(Size::new(20, 30).unwrap(), 7, 256),
        };
        let small = texture.scaled(0.2);
        assert_eq!((small.height, small.width), (4, 6));
        for row in 0..4 {
            for column in 0..6 {
                let at = 3 * ((5 * row + 2) * 30 + 5 * column + 2);
                assert_eq!(
                    small.pixels[3 * (row * 6 + column)..][..3],
                    texture.pixels[at..at + 3]
                );
            }
        }
    }

    #[test]
    fn scaled_textures_leave_room_for_a_crop() {
        let textures = FrostTextures::procedural();
        for (height, width) in [
            (8, 8),
            (32, 32),
            (64, 200),
            (84, 84),
            (224, 224),
            (600, 700),
            (8, 900),
        ] {
            for texture in textures
                .scaled_for(Size::new(height, width).unwrap())
                .iter()
            {
                assert!(
                    texture.height > height && texture.width > width,
                    "{height} x {width}"
                );
            }
        }
    }
}
