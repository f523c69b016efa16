//! Small grey images under one contract, so that MNIST, Fashion-MNIST and USPS fit the same model.
//!
//! Every set brings 28 x 28 bytes per image, 0 for the background. They are handed out as RGB with the
//! three channels equal, in the middle of a black square of the model's size: 28 pixels become 32 by a
//! border of two zeros on every side. Nothing is scaled.

use std::fmt;

use super::memory::pick;
use super::{Batch, Dataset, Images, SampleId, SetInfo};
use crate::{Error, Result};

/// Rows and columns of a stored image.
pub(super) const SIDE: usize = 28;

/// Small grey images in memory, handed out as RGB in the middle of a black square of the model's size.
pub struct GreyImages {
    info: SetInfo,
    /// `[count, 28, 28]`.
    pixels: Vec<u8>,
    /// `[count]`.
    labels: Vec<usize>,
    /// Rows and columns of what is handed out.
    size: usize,
}

impl fmt::Debug for GreyImages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "GreyImages({}, {} images)",
            self.info.name, self.info.len
        )
    }
}

impl GreyImages {
    /// Fails for sizes that a border cannot reach without drowning the image.
    pub(super) fn new(
        data: &'static str,
        classes: &[&str],
        pixels: Vec<u8>,
        labels: &[u8],
        size: usize,
    ) -> Result<Self> {
        assert_eq!(pixels.len(), labels.len() * SIDE * SIDE, "one label each");
        if !(SIDE..=2 * SIDE).contains(&size) {
            return Err(Error::Mismatch {
                what: format!("image size of {data}"),
                expected: format!("a model for {SIDE} to {} pixels", 2 * SIDE),
                found: format!("a model for {size}"),
            });
        }
        Ok(Self {
            info: SetInfo::new(data, labels.len(), classes.iter().copied()),
            pixels,
            labels: labels.iter().map(|&label| label.into()).collect(),
            size,
        })
    }
}

impl Dataset for GreyImages {
    fn info(&self) -> &SetInfo {
        &self.info
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
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
        let images = Images {
            height: size,
            width: size,
            pixels,
        };
        Ok(Batch {
            ids: ids.to_vec(),
            samples: images.into(),
            labels: Some(pick(&self.labels, ids)),
        })
    }

    fn labels(&self) -> Result<Option<Vec<usize>>> {
        Ok(Some(self.labels.clone()))
    }
}
