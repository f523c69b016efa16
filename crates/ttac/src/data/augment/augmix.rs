//! AugMix (Hendrycks et al., 2020), as MEMO uses it: an image mixed with chains of small changes of itself.

use rand::Rng;

use super::operation::{Operation, Sampling};
use super::{Crop, chance, uniform};
use crate::rng::below;

/// How many chains of changes are mixed.
const CHAINS: usize = 3;

/// What happens to one image.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedVariation {
    /// The part that is kept, before anything else.
    pub crop: Crop,
    /// Whether left and right change places.
    pub flip: bool,
    /// The chains of changes, each with its share in their mixture.
    pub chains: Vec<(f32, Vec<Operation>)>,
    /// The share of the image itself; the mixture of the chains has the rest.
    pub own: f32,
}

impl MixedVariation {
    /// Draws a variation for an image of `size`, `[height, width]`: a padded crop, a flip if `flips`, three chains of one to three changes,
    /// shares of the chains from a flat Dirichlet distribution, and a uniform share of the image itself.
    pub fn draw(size: [usize; 2], flips: bool, rng: &mut impl Rng) -> Self {
        let crop = Crop::draw_padded(rng);
        let flip = chance(0.5, rng) && flips;
        // A flat Dirichlet distribution: exponential numbers over their sum.
        let weights: [f32; CHAINS] = std::array::from_fn(|_| -(1.0 - uniform(0.0, 1.0, rng)).ln());
        let sum: f32 = weights.iter().sum();
        let own = uniform(0.0, 1.0, rng);
        let chains = weights.map(|weight| {
            let length = 1 + below(3, rng);
            let chain = (0..length).map(|_| draw_operation(size, rng)).collect();
            // All three may be zero, though hardly ever.
            let share = if sum > 0.0 {
                weight / sum
            } else {
                1.0 / CHAINS as f32
            };
            (share, chain)
        });
        Self {
            crop,
            flip,
            chains: chains.into(),
            own,
        }
    }

    /// Does it to an image `[height, width, 3]` of `size`, `[height, width]`. The result has the same shape, with values from 0 to 1.
    pub fn apply(&self, image: &[u8], size: [usize; 2]) -> Vec<f32> {
        let mut start = self.crop.apply(image, size);
        if self.flip {
            super::flip(&mut start, size[1]);
        }
        let mut result: Vec<f32> = start
            .iter()
            .map(|&byte| self.own * f32::from(byte))
            .collect();
        for (share, chain) in &self.chains {
            let mut changed = start.clone();
            for operation in chain {
                operation.apply(&mut changed, size, Sampling::Bilinear);
            }
            for (sum, byte) in result.iter_mut().zip(changed) {
                *sum += (1.0 - self.own) * share * f32::from(byte);
            }
        }
        for value in &mut result {
            *value = (*value / 255.0).clamp(0.0, 1.0);
        }
        result
    }
}

/// Draws one of nine small changes with a strength from 0.1 to 1; each change is as likely.
fn draw_operation([height, width]: [usize; 2], rng: &mut impl Rng) -> Operation {
    let kind = below(9, rng);
    let strength = f64::from(uniform(0.1, 1.0, rng));
    let negative = chance(0.5, rng);
    let signed = |value: f64| if negative { -value } else { value };
    // A thirtieth of a side, rounded down: at most one of 32 pixels.
    let pixels = |side: usize| signed((strength * side as f64 / 30.0).floor()) as i32;
    match kind {
        0 => Operation::AutoContrast,
        1 => Operation::Equalise,
        2 => Operation::Rotate(signed((3.0 * strength).floor())),
        3 => Operation::Solarise(256 - (25.6 * strength) as u32),
        4 => Operation::ShearRows(signed(0.03 * strength)),
        5 => Operation::ShearColumns(signed(0.03 * strength)),
        6 => Operation::Translate([0, pixels(width)]),
        7 => Operation::Translate([pixels(height), 0]),
        _ => Operation::Posterise(4),
    }
}
