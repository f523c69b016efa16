//! One variation for all images of a batch: colours, a small turn and shift, blur, a flip, noise.
//!
//! Methods that compare a network's answers on a batch and on a varied copy of it draw one variation for the whole batch.
//! The arithmetic is that of torchvision on tensors of floating-point numbers.

use std::f32::consts::TAU;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Draw, chance, uniform};
use crate::rng::{Purpose, shuffle};

/// Which parts the variation of a batch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchAugmentation {
    /// What is seen beyond the edge of an image that was turned and shifted.
    pub padding: Padding,
    /// Whether images are blurred a little.
    pub blur: bool,
    /// Whether a little noise is added.
    pub noise: bool,
}

impl BatchAugmentation {
    /// The variation of CoTTA, RoTTA and TRIBE.
    pub const FULL: Self = Self {
        padding: Padding::Edge,
        blur: true,
        noise: true,
    };

    /// The variation of ROID and CMF, which has neither blur nor noise.
    pub const PLAIN: Self = Self {
        padding: Padding::Reflection,
        blur: false,
        noise: false,
    };
}

impl Default for BatchAugmentation {
    fn default() -> Self {
        Self::FULL
    }
}

/// What is seen beyond the edge of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Padding {
    /// The nearest pixel of the image.
    Edge,
    /// The mirrored image; the pixel at the edge is not repeated.
    Reflection,
}

impl Padding {
    /// Finds the pixel of an image that a place stands for, which lies at most half a side beyond its edge.
    pub(super) fn place(self, at: i64, side: usize) -> usize {
        let last = side as i64 - 1;
        let inside = match self {
            Self::Reflection if at < 0 => -at,
            Self::Reflection if at > last => 2 * last - at,
            Self::Edge | Self::Reflection => at,
        };
        inside.clamp(0, last) as usize
    }
}

/// A change of colours, of values from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tone {
    /// Values are multiplied by a factor.
    Brightness(f32),
    /// The distance of values from the mean grey of the image is multiplied by a factor.
    Contrast(f32),
    /// The distance of colours from their grey is multiplied by a factor.
    Saturation(f32),
    /// Hues are turned by this share of the colour circle.
    Hue(f32),
    /// Values are raised to this power.
    Gamma(f32),
}

/// What happens to every image of a batch, in the order of the fields.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchVariation {
    /// The changes of colours, one after the other.
    pub tones: Vec<Tone>,
    /// What is seen beyond the edge.
    pub padding: Padding,
    /// By how many degrees images are turned about their centre.
    pub degrees: f32,
    /// By how many rows and columns they are shifted.
    pub shift: [i32; 2],
    /// By which factor they grow.
    pub scale: f32,
    /// The standard deviation of a Gaussian blur over five by five pixels; none for no blur.
    pub blur: Option<f32>,
    /// Whether left and right change places.
    pub flip: bool,
    /// The standard deviation of noise; zero for none.
    pub noise: f32,
}

/// How far a Gaussian blur reaches.
const REACH: i64 = 2;

/// The standard deviation of the noise, where there is some.
const NOISE: f32 = 0.005;

/// A pixel as a sum over four pixels of the image, each with its place and its share.
type Blend = [(usize, f32); 4];

impl BatchVariation {
    /// Changes nothing.
    pub fn neutral() -> Self {
        Self {
            tones: Vec::new(),
            padding: Padding::Edge,
            degrees: 0.0,
            shift: [0; 2],
            scale: 1.0,
            blur: None,
            flip: false,
            noise: 0.0,
        }
    }

    /// Draws a variation for images of `size`, `[height, width]`.
    pub fn draw(augmentation: BatchAugmentation, size: [usize; 2], rng: &mut impl Rng) -> Self {
        let mut tones = vec![
            Tone::Brightness(uniform(0.6, 1.4, rng)),
            Tone::Contrast(uniform(0.7, 1.3, rng)),
            Tone::Saturation(uniform(0.5, 1.5, rng)),
            Tone::Hue(uniform(-0.06, 0.06, rng)),
            Tone::Gamma(uniform(0.7, 1.3, rng)),
        ];
        shuffle(&mut tones, rng);
        let degrees = uniform(-15.0, 15.0, rng);
        let shift = size.map(|side| {
            let farthest = (side + 2 * (side / 2)) as f32 / 16.0;
            uniform(-farthest, farthest, rng).round() as i32
        });
        let scale = uniform(0.9, 1.1, rng);
        let blur = uniform(0.001, 0.5, rng);
        Self {
            tones,
            padding: augmentation.padding,
            degrees,
            shift,
            scale,
            blur: augmentation.blur.then_some(blur),
            flip: chance(0.5, rng),
            noise: if augmentation.noise { NOISE } else { 0.0 },
        }
    }

    /// Varies images `[count, height, width, 3]` of `size`, `[height, width]`, whose values are from 0 to 1; values beyond are
    /// clipped. The result has the same shape. Noise comes from `draw`.
    ///
    /// # Panics
    /// If the values are not whole images.
    pub fn apply(&self, images: &[f32], size: [usize; 2], draw: Draw) -> Vec<f32> {
        let each = 3 * size[0] * size[1];
        let (values, count) = (images.len(), images.len() / each.max(1));
        assert_eq!(values, count * each, "images of {size:?}");
        let blends = self.blends(size);
        let mut result = vec![0.0; images.len()];
        let pairs = result
            .par_chunks_mut(each)
            .zip(images.par_chunks(each))
            .enumerate();
        pairs.for_each(|(place, (result, image))| {
            let mut image: Vec<f32> = image.iter().map(|value| value.clamp(0.0, 1.0)).collect();
            for tone in &self.tones {
                tone.apply(&mut image);
            }
            let margin = self.margin();
            let wide = gather(&image, &blends);
            let moved = match self.blur {
                Some(deviation) => blurred(&wide, size.map(|s| s + 2 * margin), deviation),
                None => wide,
            };
            result.copy_from_slice(&moved);
            if self.flip {
                for row in result.chunks_exact_mut(3 * size[1]) {
                    row.as_chunks_mut::<3>().0.reverse();
                }
            }
            if self.noise > 0.0 {
                let mut rng = draw.batch_rng(1 + place as u64);
                for value in result.iter_mut() {
                    *value += self.noise * normal(&mut rng);
                }
            }
            for value in result.iter_mut() {
                *value = value.clamp(0.0, 1.0);
            }
        });
        result
    }

    /// Returns how many pixels around an image the blur needs.
    fn margin(&self) -> usize {
        if self.blur.is_some() {
            REACH as usize
        } else {
            0
        }
    }

    /// Finds for each pixel of the turned and shifted image, with a margin for the blur, the pixels that it is made of. It is the same
    /// for all images and channels.
    ///
    /// Images are thought of as padded by half their side. Beyond that there is black, which only images much longer than wide can
    /// reach.
    fn blends(&self, [height, width]: [usize; 2]) -> Vec<Blend> {
        let margin = self.margin() as i64;
        let (rows, columns) = (height as i64, width as i64);
        let (sine, cosine) = f64::from(self.degrees).to_radians().sin_cos();
        let scale = f64::from(self.scale);
        let centre = [height as f64 / 2.0, width as f64 / 2.0];
        let [down, right] = self.shift.map(f64::from);
        let mut blends = Vec::new();
        for y in -margin..rows + margin {
            for x in -margin..columns + margin {
                let y = within_padding(y, height) as f64 + 0.5 - centre[0] - down;
                let x = within_padding(x, width) as f64 + 0.5 - centre[1] - right;
                let column = (cosine * x + sine * y) / scale + centre[1] - 0.5;
                let row = (cosine * y - sine * x) / scale + centre[0] - 0.5;
                let (top, left) = (row.floor(), column.floor());
                let (below, beside) = (row - top, column - left);
                let corner = |dy: i64, dx: i64| {
                    let (y, x) = (top as i64 + dy, left as i64 + dx);
                    let part = |share: f64, step: i64| if step == 0 { 1.0 - share } else { share };
                    let share = part(below, dy) * part(beside, dx);
                    let is_seen = in_padding(y, height) && in_padding(x, width);
                    let place =
                        self.padding.place(y, height) * width + self.padding.place(x, width);
                    (place, if is_seen { share as f32 } else { 0.0 })
                };
                blends.push([corner(0, 0), corner(0, 1), corner(1, 0), corner(1, 1)]);
            }
        }
        blends
    }
}

impl Draw {
    /// Returns random numbers of a whole batch, a function of seed, epoch and view alone.
    pub(crate) fn batch_rng(&self, index: u64) -> ChaCha8Rng {
        Purpose::new(*b"batches1................")
            .with(8, self.seed.to_le_bytes())
            .with(16, self.epoch.to_le_bytes())
            .stream(self.view, index)
    }
}

/// Whether a place lies in an image or in its padding.
fn in_padding(at: i64, side: usize) -> bool {
    let padding = (side / 2) as i64;
    (-padding..side as i64 + padding).contains(&at)
}

/// Mirrors a place of a blur's margin at the end of the padding, where an image is too small to have that much of it.
fn within_padding(at: i64, side: usize) -> i64 {
    let padding = (side / 2) as i64;
    let (first, last) = (-padding, side as i64 + padding - 1);
    let mirrored = if at < first {
        2 * first - at
    } else if at > last {
        2 * last - at
    } else {
        at
    };
    mirrored.clamp(first, last)
}

/// Makes each pixel from four of an image.
fn gather(image: &[f32], blends: &[Blend]) -> Vec<f32> {
    let pixels = image.as_chunks::<3>().0;
    let made = blends.iter().flat_map(|blend| {
        let mut sum = [0.0; 3];
        for &(place, share) in blend {
            for (sum, value) in sum.iter_mut().zip(pixels[place]) {
                *sum += share * value;
            }
        }
        sum
    });
    made.collect()
}

/// Blurs an image of `size`, `[height, width]`, by a Gaussian over five by five pixels, and takes off the margin that this needs.
fn blurred(image: &[f32], [height, width]: [usize; 2], deviation: f32) -> Vec<f32> {
    let reach = REACH as usize;
    let weights = (-REACH..=REACH).map(|x| (-0.5 * (x as f32 / deviation).powi(2)).exp());
    let weights: Vec<f32> = weights.collect();
    let sum: f32 = weights.iter().sum();
    let pixels = image.as_chunks::<3>().0;
    let along = |pixels: &[[f32; 3]], first: usize, step: usize| {
        let mut blend = [0.0; 3];
        for (nth, weight) in weights.iter().enumerate() {
            for (blend, value) in blend.iter_mut().zip(pixels[first + nth * step]) {
                *blend += weight / sum * value;
            }
        }
        blend
    };
    let columns = width - 2 * reach;
    // [height, columns], then [height - 2 reach, columns]
    let rows: Vec<[f32; 3]> = (0..height * columns)
        .map(|at| along(pixels, at / columns * width + at % columns, 1))
        .collect();
    let inner = (height - 2 * reach) * columns;
    let both = (0..inner).flat_map(|at| along(&rows, at, columns));
    both.collect()
}

/// Draws from the standard normal distribution, by the method of Box and Muller.
fn normal(rng: &mut impl Rng) -> f32 {
    let radius = (-2.0 * (1.0 - uniform(0.0, 1.0, rng)).ln()).sqrt();
    radius * uniform(0.0, TAU, rng).cos()
}

/// Shares of red, green and blue in a grey.
const GREY: [f32; 3] = [0.2989, 0.587, 0.114];

fn grey(pixel: [f32; 3]) -> f32 {
    GREY.iter()
        .zip(pixel)
        .map(|(share, value)| share * value)
        .sum()
}

/// Mixes a value with another one and clips.
fn mixed(factor: f32, value: f32, other: f32) -> f32 {
    (factor * value + (1.0 - factor) * other).clamp(0.0, 1.0)
}

impl Tone {
    /// Changes the colours of an image `[height, width, 3]`.
    fn apply(self, image: &mut [f32]) {
        let pixels = image.as_chunks_mut::<3>().0;
        match self {
            Self::Brightness(factor) => {
                for pixel in pixels {
                    *pixel = pixel.map(|value| mixed(factor, value, 0.0));
                }
            }
            Self::Contrast(factor) => {
                let sum: f64 = pixels.iter().map(|&pixel| f64::from(grey(pixel))).sum();
                let mean = (sum / pixels.len() as f64) as f32;
                for pixel in pixels {
                    *pixel = pixel.map(|value| mixed(factor, value, mean));
                }
            }
            Self::Saturation(factor) => {
                for pixel in pixels {
                    let grey = grey(*pixel);
                    *pixel = pixel.map(|value| mixed(factor, value, grey));
                }
            }
            Self::Hue(turn) => {
                for pixel in pixels {
                    *pixel = turned(*pixel, turn);
                }
            }
            Self::Gamma(power) => {
                for pixel in pixels {
                    *pixel = pixel.map(|value| value.clamp(1e-8, 1.0).powf(power).clamp(0.0, 1.0));
                }
            }
        }
    }
}

/// Turns the hue of a colour by a share of the circle. Lightest and darkest channel keep their values.
fn turned(pixel: [f32; 3], turn: f32) -> [f32; 3] {
    let [red, green, blue] = pixel;
    let (most, least) = (red.max(green).max(blue), red.min(green).min(blue));
    if most <= least {
        return pixel;
    }
    let range = most - least;
    // The hue, in sixths of the circle.
    let hue = if red == most {
        (green - blue) / range
    } else if green == most {
        2.0 + (blue - red) / range
    } else {
        4.0 + (red - green) / range
    };
    let hue = (hue + 6.0 * turn).rem_euclid(6.0);
    // A channel is highest within a sixth of its own hue, lowest beyond two sixths, and goes straight in between.
    let channel = |own: f32| {
        let way = (hue - own).rem_euclid(6.0);
        let distance = way.min(6.0 - way);
        least + range * (2.0 - distance).clamp(0.0, 1.0)
    };
    [channel(0.0), channel(2.0), channel(4.0)]
}
