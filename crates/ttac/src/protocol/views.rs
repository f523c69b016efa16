//! The varied copies of samples that self-supervised methods learn from.

use burn::tensor::{Device, Tensor, TensorData};
use rand::RngExt;

use crate::checkpoint::Augmentation;
use crate::data::{
    BatchVariation, Crop, Draw, Images, MixedVariation, SampleId, Samples, StrongVariation,
    Variation, augment, rotate, shuffle_patches,
};
use crate::input::InputContract;
use crate::method::{Views, Wants};
use crate::{Error, Result};

/// Refuses samples of which the wanted copies cannot be made.
pub(crate) fn check(wants: Wants, input: &InputContract) -> Result<()> {
    if wants == Wants::Nothing {
        return Ok(());
    }
    // All kinds of copies are made of pictures.
    Augmentation::Simclr.check(input)?;
    match *input {
        InputContract::Images { height, width, .. }
            if height != width && matches!(wants, Wants::Turned(_)) =>
        {
            Err(Error::Mismatch {
                what: "images that are turned".to_owned(),
                expected: "as many rows as columns".to_owned(),
                found: format!("{height} x {width} pixels"),
            })
        }
        _ => Ok(()),
    }
}

/// Samples with their ids.
type Known<'a> = (&'a [SampleId], &'a Samples);

/// Makes varied copies: what is drawn depends on `seed`, `draw`, the number of the copy and the sample's id.
pub(crate) struct Copies<'a> {
    pub input: &'a InputContract,
    pub device: &'a Device,
    pub seed: u64,
}

impl Copies<'_> {
    /// Makes the copies that a method wants of some samples.
    pub fn make(&self, wants: Wants, of: Known<'_>, draw: u64) -> Result<Option<Views>> {
        let (ids, samples) = of;
        let draw = |view: u64| Draw {
            seed: self.seed,
            epoch: draw,
            view,
        };
        match wants {
            Wants::Nothing => Ok(None),
            Wants::Contrastive => {
                let mut views = augment(ids, samples, Augmentation::Simclr, draw(0))?;
                views.append(augment(ids, samples, Augmentation::Simclr, draw(1))?)?;
                Ok(Some(Views {
                    images: self.normalise(&views)?,
                    turns: Vec::new(),
                }))
            }
            Wants::Turned(copies) => {
                let turned = self.turned(copies, ids, samples, draw)?;
                Ok(Some(turned))
            }
            Wants::Shuffled(patches) => {
                let images = samples.as_images()?;
                let size = [images.height, images.width];
                let pairs = ids.iter().zip(images.each());
                let pixels = pairs.flat_map(|(&id, image)| {
                    shuffle_patches(image, size, patches, &mut draw(0).rng(id))
                });
                let shuffled = Images {
                    pixels: pixels.collect(),
                    ..*images
                };
                Ok(Some(Views {
                    images: self.normalise(&Samples::Images(shuffled))?,
                    turns: Vec::new(),
                }))
            }
            Wants::WeakAndStrong { flips } => {
                let images = samples.as_images()?;
                let size = [images.height, images.width];
                let weak = ids.iter().zip(images.each()).flat_map(|(&id, image)| {
                    let variation = Variation {
                        crop: Crop::Whole,
                        flip: draw(0).rng(id).random_bool(0.5) && flips,
                        colour: Vec::new(),
                    };
                    variation.apply(image, size)
                });
                let strong = ids.iter().zip(images.each()).flat_map(|(&id, image)| {
                    let rng = &mut draw(1).rng(id);
                    StrongVariation::draw(size, flips, rng).apply(image, size)
                });
                let both = Images {
                    pixels: weak.chain(strong).collect(),
                    ..*images
                };
                Ok(Some(Views {
                    images: self.normalise(&Samples::Images(both))?,
                    turns: Vec::new(),
                }))
            }
            Wants::Mixed { copies, flips } => {
                let images = samples.as_images()?;
                let size = [images.height, images.width];
                let pairs = ids.iter().zip(images.each());
                let mixed = pairs.flat_map(|(&id, image)| {
                    (0..copies as u64).flat_map(move |copy| {
                        let rng = &mut draw(copy).rng(id);
                        MixedVariation::draw(size, flips, rng).apply(image, size)
                    })
                });
                Ok(Some(Views {
                    images: self.scaled(mixed.collect(), size),
                    turns: Vec::new(),
                }))
            }
            Wants::Augmented(copies, augmentation) => {
                let images = samples.as_images()?;
                let size = [images.height, images.width];
                let values = images.pixels.iter().map(|&byte| f32::from(byte) / 255.0);
                let values: Vec<f32> = values.collect();
                let copies = (0..copies as u64).flat_map(|copy| {
                    let draw = draw(copy);
                    let mut rng = draw.batch_rng(0);
                    BatchVariation::draw(augmentation, size, &mut rng).apply(&values, size, draw)
                });
                Ok(Some(Views {
                    images: self.scaled(copies.collect(), size),
                    turns: Vec::new(),
                }))
            }
        }
    }

    fn turned(
        &self,
        copies: usize,
        ids: &[SampleId],
        samples: &Samples,
        draw: impl Fn(u64) -> Draw,
    ) -> Result<Views> {
        let mut size = (0, 0);
        let mut pixels = vec![Vec::new(); ids.len()];
        for copy in 0..copies as u64 {
            let varied = augment(ids, samples, Augmentation::PadCropFlip, draw(copy))?;
            let images = varied.into_images()?;
            size = (images.height, images.width);
            let each = images.pixels.chunks_exact(size.0 * size.1 * 3);
            for (own, image) in pixels.iter_mut().zip(each) {
                own.extend_from_slice(image);
            }
        }
        // A view number that no crop uses.
        let turns = ids.iter().flat_map(|&id| {
            let mut rng = draw(u64::MAX).rng(id);
            (0..copies)
                .map(move |_| rng.random_range(0..4_u8))
                .collect::<Vec<_>>()
        });
        let turns: Vec<u8> = turns.collect();
        let copies = Images {
            height: size.0,
            width: size.1,
            pixels: pixels.concat(),
        };
        let images = Samples::Images(rotate(&copies, &turns));
        Ok(Views {
            images: self.normalise(&images)?,
            turns: turns.into_iter().map(usize::from).collect(),
        })
    }

    /// Normalises images whose values are from 0 to 1, `[count, height, width, 3]`.
    fn scaled(&self, mut values: Vec<f32>, [height, width]: [usize; 2]) -> Tensor<4> {
        if let InputContract::Images { mean, std, .. } = self.input {
            for pixel in values.as_chunks_mut::<3>().0 {
                for channel in 0..3 {
                    pixel[channel] = (pixel[channel] - mean[channel]) / std[channel];
                }
            }
        }
        let count = values.len() / (3 * height * width).max(1);
        Tensor::from_data(
            TensorData::new(values, [count, height, width, 3]),
            self.device,
        )
    }

    fn normalise(&self, samples: &Samples) -> Result<Tensor<4>> {
        self.input.normalise(samples, self.device)
    }
}
