//! The strong variation of FixMatch: a reflected crop, two changes by RandAugment, and a grey square.

use rand::Rng;

use super::operation::{Operation, Sampling};
use super::{Adjustment, Crop, chance, uniform};
use crate::rng::below;

/// How likely each of the two changes is made.
const MADE: f32 = 0.5;
/// The weakest and the strongest level of a change.
const LEVELS: [usize; 2] = [1, 9];
/// The grey of the square.
const GREY: u8 = 127;

/// What happens to one image, in the order of the fields.
#[derive(Clone, Debug, PartialEq)]
pub struct StrongVariation {
    /// The part that is kept.
    pub crop: Crop,
    /// Whether left and right change places.
    pub flip: bool,
    /// The changes, one after the other.
    pub operations: Vec<Operation>,
    /// The first and the last row and column of the grey square, `[[top, bottom], [left, right]]`; those beyond the image are left out.
    pub square: Option<[[usize; 2]; 2]>,
}

impl StrongVariation {
    /// Draws a variation for an image of `size`, `[height, width]`. `flips` says whether images may be flipped.
    pub fn draw(size: [usize; 2], flips: bool, rng: &mut impl Rng) -> Self {
        let crop = Crop::draw_reflected(rng);
        let flip = chance(0.5, rng) && flips;
        let operations = (0..2).filter_map(|_| {
            let operation = draw_operation(size, rng);
            chance(MADE, rng).then_some(operation)
        });
        let operations = operations.collect();
        let square = size.map(|side| {
            let half = side as f32 / 2.0;
            let centre = uniform(0.0, side as f32, rng);
            let first = (centre - half / 2.0).max(0.0);
            [first as usize, (first + half).min(side as f32) as usize]
        });
        Self {
            crop,
            flip,
            operations,
            square: Some(square),
        }
    }

    /// Does it to an image `[height, width, 3]` of `size`, `[height, width]`. The result has the same shape.
    pub fn apply(&self, image: &[u8], size: [usize; 2]) -> Vec<u8> {
        let mut result = self.crop.apply(image, size);
        if self.flip {
            super::flip(&mut result, size[1]);
        }
        for operation in &self.operations {
            operation.apply(&mut result, size, Sampling::Nearest);
        }
        if let Some([[top, bottom], [left, right]]) = self.square {
            let rows = result.chunks_exact_mut(3 * size[1]);
            for row in rows.take(bottom + 1).skip(top) {
                let columns = row.as_chunks_mut::<3>().0.iter_mut();
                for pixel in columns.take(right + 1).skip(left) {
                    *pixel = [GREY; 3];
                }
            }
        }
        result
    }
}

/// Draws one of fourteen changes at one of nine levels; each is as likely.
fn draw_operation([height, width]: [usize; 2], rng: &mut impl Rng) -> Operation {
    let kind = below(14, rng);
    let level = LEVELS[0] + below(LEVELS[1] - LEVELS[0] + 1, rng);
    let negative = chance(0.5, rng);
    let signed = |value: f64| if negative { -value } else { value };
    let factor = 0.05 + 0.09 * level as f32;
    let pixels = |side: usize| {
        // Whole numbers, because 0.03 times a level and a side may be a little less than one.
        let pixels = (3 * level * side / 100) as i32;
        if negative { -pixels } else { pixels }
    };
    match kind {
        0 => Operation::AutoContrast,
        1 => Operation::Colour(Adjustment::Brightness(factor)),
        2 => Operation::Colour(Adjustment::Saturation(factor)),
        3 => Operation::Colour(Adjustment::Contrast(factor)),
        4 => Operation::Equalise,
        // Nothing: all eight bits are kept.
        5 => Operation::Posterise(8),
        6 => Operation::Posterise(4 + 2 * level as u32 / 5),
        7 => Operation::Rotate(signed((3 * level) as f64)),
        8 => Operation::Sharpness(factor),
        9 => Operation::ShearRows(signed(0.03 * level as f64)),
        10 => Operation::ShearColumns(signed(0.03 * level as f64)),
        11 => Operation::Solarise(256 - 256 * level as u32 / 10),
        12 => Operation::Translate([0, pixels(width)]),
        _ => Operation::Translate([pixels(height), 0]),
    }
}
