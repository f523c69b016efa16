//! Small grey images under one contract, so that MNIST, Fashion-MNIST and USPS fit the same model.
//!
//! Every set brings 28 x 28 bytes per image, 0 for the background. They are handed out as RGB with the
//! three channels equal, in the middle of a black square of the model's size: 28 pixels become 32 by a
//! border of two zeros on every side. Nothing is scaled.

use super::{Batch, Images, SampleId, Samples};
use crate::{Error, Result};

/// Rows and columns of a stored image.
pub(super) const SIDE: usize = 28;

/// Grey images and labels in memory.
pub(super) struct Grey {
    /// `[count, 28, 28]`.
    pixels: Vec<u8>,
    /// `[count]`.
    labels: Vec<u8>,
    /// Rows and columns of what is handed out.
    size: usize,
}

impl Grey {
    /// Fails for sizes that a border cannot reach without drowning the image.
    pub fn new(data: &'static str, pixels: Vec<u8>, labels: Vec<u8>, size: usize) -> Result<Self> {
        assert_eq!(pixels.len(), labels.len() * SIDE * SIDE, "one label each");
        if !(SIDE..=2 * SIDE).contains(&size) {
            return Err(Error::Mismatch {
                what: format!("image size of {data}"),
                expected: format!("a model for {SIDE} to {} pixels", 2 * SIDE),
                found: format!("a model for {size}"),
            });
        }
        Ok(Self {
            pixels,
            labels,
            size,
        })
    }

    pub fn len(&self) -> usize {
        self.labels.len()
    }

    pub fn batch(&self, ids: &[SampleId]) -> Batch {
        let (size, border) = (self.size, (self.size - SIDE) / 2);
        let mut pixels = vec![0; ids.len() * size * size * 3];
        for (&id, image) in ids.iter().zip(pixels.chunks_exact_mut(size * size * 3)) {
            let start = id as usize * SIDE * SIDE;
            let rows = self.pixels[start..start + SIDE * SIDE].chunks_exact(SIDE);
            for (y, row) in rows.enumerate() {
                let at = ((y + border) * size + border) * 3;
                let target = image[at..at + 3 * SIDE].as_chunks_mut::<3>().0;
                for (rgb, &grey) in target.iter_mut().zip(row) {
                    *rgb = [grey; 3];
                }
            }
        }
        let label = |&id: &SampleId| self.labels[id as usize] as usize;
        Batch {
            samples: Samples {
                ids: ids.to_vec(),
                images: Images {
                    height: size,
                    width: size,
                    pixels,
                },
            },
            labels: ids.iter().map(label).collect(),
        }
    }
}
