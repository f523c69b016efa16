//! Brightness, contrast, saturation and pixelation. The elastic transform and JPEG have files of their own.

use std::sync::Arc;

use crate::colour::Hsv;
use crate::corruptor::Kernel;
use crate::pixel::to_byte;
use crate::random::Random;
use crate::size::Size;

/// A change of value or of saturation.
#[derive(Clone, Copy)]
pub(crate) enum Recolour {
    Brightness { amount: f64 },
    Saturate { gain: f64, offset: f64 },
}

impl Kernel for Recolour {
    fn apply(&mut self, image: &mut [u8], _: &mut impl Random) {
        for pixel in image.chunks_exact_mut(3) {
            let mut hsv =
                Hsv::from_rgb([pixel[0], pixel[1], pixel[2]].map(|byte| f64::from(byte) / 255.0));
            match *self {
                Self::Brightness { amount } => hsv.value = (hsv.value + amount).clamp(0.0, 1.0),
                Self::Saturate { gain, offset } => {
                    hsv.saturation = (hsv.saturation * gain + offset).clamp(0.0, 1.0);
                }
            }
            pixel.copy_from_slice(&hsv.to_rgb().map(to_byte));
        }
    }
}

/// Values drawn together around each channel's mean.
#[derive(Clone, Copy)]
pub(crate) struct Contrast {
    pub(crate) gain: f64,
}

impl Kernel for Contrast {
    fn apply(&mut self, image: &mut [u8], _: &mut impl Random) {
        let mut sums = [0u64; 3];
        for pixel in image.chunks_exact(3) {
            for (sum, &byte) in sums.iter_mut().zip(pixel) {
                *sum += u64::from(byte);
            }
        }
        let count = (image.len() / 3) as f64;
        let tables = sums.map(|sum| {
            let mean = sum as f64 / 255.0 / count;
            std::array::from_fn::<u8, 256, _>(|byte| {
                to_byte((byte as f64 / 255.0 - mean) * self.gain + mean)
            })
        });
        for pixel in image.chunks_exact_mut(3) {
            for (byte, table) in pixel.iter_mut().zip(&tables) {
                *byte = table[usize::from(*byte)];
            }
        }
    }
}

/// Shrunk by a box filter, then enlarged by repeating pixels, in the fixed-point arithmetic of the recipe's library.
#[derive(Clone)]
pub(crate) struct Pixelate {
    columns: Arc<BoxFilter>,
    rows: Arc<BoxFilter>,
    narrow: Vec<u8>,
    small: Vec<u8>,
    sums: Vec<u32>,
}

impl Pixelate {
    pub(crate) fn new(factor: f64, size: Size) -> Self {
        let shrink = |side: usize| Arc::new(BoxFilter::new(side, (side as f64 * factor) as usize));
        Self {
            columns: shrink(size.width),
            rows: shrink(size.height),
            narrow: Vec::new(),
            small: Vec::new(),
            sums: Vec::new(),
        }
    }
}

/// One axis of a box resize down and of the box resize back up.
struct BoxFilter {
    windows: Vec<Window>,
    /// For each input: the output that covers it when enlarged again.
    owners: Vec<usize>,
}

/// Samples that are averaged, all with the same weight.
struct Window {
    first: usize,
    count: usize,
    /// Scaled by 2^22.
    weight: u32,
}

const WEIGHT_BITS: u32 = 22;

impl BoxFilter {
    fn new(from: usize, to: usize) -> Self {
        let windows = (0..to).map(|index| Window::new(from, to, index)).collect();
        let owners = (0..from)
            .map(|index| Window::new(to, from, index).first)
            .collect();
        Self { windows, owners }
    }
}

impl Window {
    /// The samples within half an output pixel of the centre of output `index`.
    fn new(from: usize, to: usize, index: usize) -> Self {
        let scale = from as f64 / to as f64;
        let reach = scale.max(1.0);
        let centre = (index as f64 + 0.5) * scale;
        let first = (centre - 0.5 * reach + 0.5) as usize;
        let end = ((centre + 0.5 * reach + 0.5) as usize).min(from);
        let inside = |&sample: &usize| {
            let distance = (sample as f64 - centre + 0.5) / reach;
            distance > -0.5 && distance <= 0.5
        };
        let first = (first..end).find(inside).unwrap_or(first);
        let count = (first..end).filter(inside).count();
        Self {
            first,
            count,
            weight: ((1.0 / count as f64) * f64::from(1 << WEIGHT_BITS) + 0.5) as u32,
        }
    }

    /// The average, rounded, from the sum of the samples.
    fn average(&self, sum: u32) -> u8 {
        ((sum * self.weight + (1 << (WEIGHT_BITS - 1))) >> WEIGHT_BITS).min(255) as u8
    }
}

impl Kernel for Pixelate {
    fn apply(&mut self, image: &mut [u8], _: &mut impl Random) {
        let (wide, narrow) = (
            3 * self.columns.owners.len(),
            3 * self.columns.windows.len(),
        );
        self.narrow.resize(self.rows.owners.len() * narrow, 0);
        for (row, out) in image
            .chunks_exact(wide)
            .zip(self.narrow.chunks_exact_mut(narrow))
        {
            for (window, out) in self.columns.windows.iter().zip(out.chunks_exact_mut(3)) {
                let mut sums = [0; 3];
                for pixel in row[3 * window.first..][..3 * window.count].chunks_exact(3) {
                    for (sum, &byte) in sums.iter_mut().zip(pixel) {
                        *sum += u32::from(byte);
                    }
                }
                out.copy_from_slice(&sums.map(|sum| window.average(sum)));
            }
        }
        self.small.resize(self.rows.windows.len() * narrow, 0);
        self.sums.resize(narrow, 0);
        for (window, out) in self
            .rows
            .windows
            .iter()
            .zip(self.small.chunks_exact_mut(narrow))
        {
            self.sums.fill(0);
            for row in
                self.narrow[window.first * narrow..][..window.count * narrow].chunks_exact(narrow)
            {
                for (sum, &byte) in self.sums.iter_mut().zip(row) {
                    *sum += u32::from(byte);
                }
            }
            for (out, &sum) in out.iter_mut().zip(&self.sums) {
                *out = window.average(sum);
            }
        }
        for (y, &owner) in self.rows.owners.iter().enumerate() {
            let (done, row) = image[..(y + 1) * wide].split_at_mut(y * wide);
            if y > 0 && self.rows.owners[y - 1] == owner {
                row.copy_from_slice(&done[(y - 1) * wide..]);
                continue;
            }
            let small = &self.small[owner * narrow..][..narrow];
            for (owner, pixel) in self.columns.owners.iter().zip(row.chunks_exact_mut(3)) {
                pixel.copy_from_slice(&small[3 * owner..3 * owner + 3]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::{PIXELATE, Table};
    use crate::replay::{applied, picture};

    #[test]
    fn pixelating_by_one_is_the_identity() {
        let size = Size::new(9, 11).unwrap();
        let before = picture(size, 5, 256);
        assert_eq!(applied(Pixelate::new(1.0, size), &before, 0), before);
    }

    #[test]
    fn pixelate_shrinks_to_the_sides_of_the_recipe() {
        let side = Table::Small.side() as f64;
        assert_eq!(
            PIXELATE.small.map(|factor| (side * factor) as usize),
            [30, 28, 27, 24, 20]
        );
        let side = Table::Large.side() as f64;
        assert_eq!(
            PIXELATE.large.map(|factor| (side * factor) as usize),
            [134, 112, 89, 67, 56]
        );
    }

    #[test]
    fn contrast_of_one_and_a_flat_image_change_nothing() {
        let flat = [30, 60, 90].repeat(64);
        let image = applied(Contrast { gain: 0.05 }, &flat, 0);
        // Truncation may take one level.
        assert!(
            image
                .iter()
                .zip(&flat)
                .all(|(found, before)| before - found <= 1)
        );
    }
}
