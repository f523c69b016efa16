//! Images varied at random: crops, flips, colours, and the quarter turns of TTT-R.
//!
//! What happens to an image is drawn first, as a [`Variation`], and done after that. The first half is
//! random, the second is the arithmetic that torchvision does on Pillow images, to the last bit.
//!
//! ```
//! use ttac::checkpoint::Augmentation;
//! use ttac::data::{Dataset, Draw, Shapes10, Split, augment};
//!
//! # fn main() -> ttac::Result<()> {
//! let batch = Shapes10::standard(Split::Test).batch(&[3, 1, 4])?;
//! let first = Draw { seed: 0, epoch: 0, view: 0 };
//! let second = Draw { view: 1, ..first };
//! let varied = |draw| augment(&batch.ids, &batch.samples, Augmentation::Simclr, draw);
//! assert_eq!(varied(first)?.count(), 3);
//! assert_ne!(varied(first)?, varied(second)?);
//! # Ok(())
//! # }
//! ```

mod augmix;
mod cloud;
mod colour;
mod crop;
mod operation;
mod patches;
mod strong;
mod whole_batch;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{Images, SampleId, Samples};
use crate::Result;
use crate::checkpoint::Augmentation;
use crate::rng::Purpose;

pub use augmix::MixedVariation;
pub use colour::Adjustment;
pub use crop::Crop;
pub use operation::{Operation, Sampling};
pub use patches::shuffle_patches;
pub use strong::StrongVariation;
pub use whole_batch::{BatchAugmentation, BatchVariation, Padding, Tone};

/// Which of its many variations an image gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Seed of the run.
    pub seed: u64,
    /// How often the images were seen before.
    pub epoch: u64,
    /// Number of the copy, where several are made at once.
    pub view: u64,
}

impl Draw {
    /// Returns the random numbers of one sample, a function of seed, epoch, view and id alone.
    pub fn rng(&self, id: SampleId) -> ChaCha8Rng {
        Purpose::new(*b"augment1................")
            .with(8, self.seed.to_le_bytes())
            .with(16, self.epoch.to_le_bytes())
            .stream(self.view, id)
    }
}

/// What happens to one image, in the order of the fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Variation {
    /// The part that is kept.
    pub crop: Crop,
    /// Whether left and right change places.
    pub flip: bool,
    /// What happens to the colours, one after the other.
    pub colour: Vec<Adjustment>,
}

impl Variation {
    /// Draws one for an image of `size`, `[height, width]`. Where the augmentation is
    /// [`None`](Augmentation::None), [`Unknown`](Augmentation::Unknown) or one of clouds, it changes nothing.
    pub fn draw(augmentation: Augmentation, size: [usize; 2], rng: &mut impl Rng) -> Self {
        let crop = match augmentation {
            Augmentation::Unknown | Augmentation::None | Augmentation::ScaleShift => {
                return Self {
                    crop: Crop::Whole,
                    flip: false,
                    colour: Vec::new(),
                };
            }
            Augmentation::PadCropFlip => Crop::draw_padded(rng),
            Augmentation::ResizedCropFlip | Augmentation::Simclr => Crop::draw_resized(size, rng),
        };
        let flip = chance(0.5, rng);
        let colour = match augmentation {
            Augmentation::Simclr => Adjustment::draw(rng),
            _ => Vec::new(),
        };
        Self { crop, flip, colour }
    }

    /// Does it to an image `[height, width, 3]` of `size`, `[height, width]`. The result has the same
    /// shape.
    pub fn apply(&self, image: &[u8], size: [usize; 2]) -> Vec<u8> {
        let mut result = self.crop.apply(image, size);
        if self.flip {
            flip(&mut result, size[1]);
        }
        for adjustment in &self.colour {
            adjustment.apply(&mut result);
        }
        result
    }
}

/// Makes left and right change places in an image `[height, width, 3]`.
fn flip(image: &mut [u8], width: usize) {
    for row in image.chunks_exact_mut(3 * width) {
        row.as_chunks_mut::<3>().0.reverse();
    }
}

/// Varies every sample in its own way; kind, size and number stay.
///
/// A sample's variation depends on its id and on `draw` only, not on the batch it comes in: batches can
/// be cut, ordered and spread over threads in any way. This function itself uses one thread.
///
/// Samples come back as they are if the augmentation is [`None`](Augmentation::None), and also if it is
/// [`Unknown`](Augmentation::Unknown), as nothing better is known. An augmentation of images is refused for clouds, and
/// the other way round.
///
/// # Panics
/// If there are not as many ids as samples.
pub fn augment(
    ids: &[SampleId],
    samples: &Samples,
    augmentation: Augmentation,
    draw: Draw,
) -> Result<Samples> {
    let (named, count) = (ids.len(), samples.count());
    assert_eq!(named, count, "{named} ids for {count} samples");
    Ok(match augmentation {
        Augmentation::Unknown | Augmentation::None => samples.clone(),
        Augmentation::ScaleShift => cloud::augment(ids, samples.as_clouds()?, draw).into(),
        Augmentation::PadCropFlip | Augmentation::ResizedCropFlip | Augmentation::Simclr => {
            let images = samples.as_images()?;
            let size = [images.height, images.width];
            let mut pixels = Vec::with_capacity(images.pixels.len());
            for (&id, image) in ids.iter().zip(images.each()) {
                let variation = Variation::draw(augmentation, size, &mut draw.rng(id));
                pixels.extend(variation.apply(image, size));
            }
            Images { pixels, ..*images }.into()
        }
    })
}

/// Square images `[count, side, side, 3]`, each turned counter-clockwise by as many right angles as
/// `quarter_turns` says, which has one number for each image. Four are a full turn.
///
/// # Panics
/// If images are not square, or the numbers are not as many.
pub fn rotate(images: &Images, quarter_turns: &[u8]) -> Images {
    let (height, side) = (images.height, images.width);
    assert_eq!(height, side, "images of {height} x {side} cannot be turned");
    let (turns, count) = (quarter_turns.len(), images.count());
    assert_eq!(turns, count, "{turns} turns for {count} images");
    let mut pixels = Vec::with_capacity(images.pixels.len());
    for (image, turns) in images.each().zip(quarter_turns) {
        let image = image.as_chunks::<3>().0;
        for y in 0..side {
            pixels.extend((0..side).flat_map(|x| {
                let (row, column) = match turns % 4 {
                    0 => (y, x),
                    1 => (x, side - 1 - y),
                    2 => (side - 1 - y, side - 1 - x),
                    _ => (side - 1 - x, y),
                };
                image[row * side + column]
            }));
        }
    }
    Images { pixels, ..*images }
}

// Random numbers are written out, because images must not change with the version of a dependency.

/// Uniform between two numbers, in steps of 2^-24 of the distance like PyTorch's.
fn uniform(low: f32, high: f32, rng: &mut impl Rng) -> f32 {
    let unit = (rng.next_u32() >> 8) as f32 / (1 << 24) as f32;
    low + (high - low) * unit
}

fn chance(probability: f32, rng: &mut impl Rng) -> bool {
    uniform(0.0, 1.0, rng) < probability
}
