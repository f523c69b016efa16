//! Colours changed as Pillow does it: on bytes, with its order of roundings.

use rand::Rng;

use super::{chance, uniform};
use crate::rng::shuffle;

/// How likely the colours of an image are changed at all.
const JITTER: f32 = 0.8;
/// Least and largest factor of brightness, contrast and saturation.
const FACTOR: (f32, f32) = (0.6, 1.4);
/// Largest turn of the hue, either way.
const HUE: f32 = 0.1;
/// How likely an image loses its colours.
const GREY: f32 = 0.2;

/// A change of the colours of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Adjustment {
    /// Away from black by this factor.
    Brightness(f32),
    /// Away from the mean of the grey image by this factor.
    Contrast(f32),
    /// Away from the grey image by this factor.
    Saturation(f32),
    /// The hue is turned by this part of the circle, -0.5 to 0.5.
    Hue(f32),
    /// Every pixel becomes the grey of its brightness.
    Grey,
}

impl Adjustment {
    /// The colour jitter of SimCLR, if at all, in random order, and greyscale in a fifth of the cases.
    pub(super) fn draw(rng: &mut impl Rng) -> Vec<Self> {
        let mut adjustments = Vec::with_capacity(5);
        if chance(JITTER, rng) {
            let mut factor = || uniform(FACTOR.0, FACTOR.1, rng);
            adjustments.extend([
                Self::Brightness(factor()),
                Self::Contrast(factor()),
                Self::Saturation(factor()),
                Self::Hue(uniform(-HUE, HUE, rng)),
            ]);
            shuffle(&mut adjustments, rng);
        }
        if chance(GREY, rng) {
            adjustments.push(Self::Grey);
        }
        adjustments
    }

    /// Changes RGB bytes `[height, width, 3]`.
    pub(super) fn apply(self, image: &mut [u8]) {
        let pixels = image.as_chunks_mut::<3>().0;
        match self {
            Self::Brightness(factor) => away_from(0, factor, pixels),
            Self::Contrast(factor) => away_from(mean_grey(pixels), factor, pixels),
            Self::Saturation(factor) => {
                for pixel in pixels {
                    let grey = grey(*pixel);
                    *pixel = pixel.map(|byte| blend(grey, byte, factor));
                }
            }
            Self::Hue(turn) => turn_hue(turn, pixels),
            Self::Grey => {
                for pixel in pixels {
                    *pixel = [grey(*pixel); 3];
                }
            }
        }
    }
}

/// `Image.blend`: in single precision, cut off at both ends, not rounded.
pub(super) fn blend(from: u8, to: u8, factor: f32) -> u8 {
    let distance = f32::from(i16::from(to) - i16::from(from));
    (f32::from(from) + factor * distance) as u8
}

/// `Image.blend` with one colour for all pixels.
fn away_from(centre: u8, factor: f32, pixels: &mut [[u8; 3]]) {
    let table: [u8; 256] = std::array::from_fn(|byte| blend(centre, byte as u8, factor));
    for byte in pixels.as_flattened_mut() {
        *byte = table[usize::from(*byte)];
    }
}

/// `convert("L")`: the weights of ITU-R 601 in 16 bits.
fn grey([red, green, blue]: [u8; 3]) -> u8 {
    let weighted = 19_595 * u32::from(red) + 38_470 * u32::from(green) + 7_471 * u32::from(blue);
    ((weighted + 0x8000) >> 16) as u8
}

fn mean_grey(pixels: &[[u8; 3]]) -> u8 {
    let sum: u64 = pixels.iter().map(|pixel| u64::from(grey(*pixel))).sum();
    (sum as f64 / pixels.len() as f64 + 0.5) as u8
}

/// There and back by way of hue, saturation and value in bytes, as torchvision does it. That is not
/// exact, not even for a turn of zero. Pillow computes in floats of both sizes; where there are integers
/// or single precision here, the bytes are the same for every colour. Nothing branches on the colour, as
/// colours are hard to predict.
fn turn_hue(turn: f32, pixels: &mut [[u8; 3]]) {
    let turn = (f64::from(turn) * 255.0) as i32 as u8;
    for pixel in pixels {
        let [hue, saturation, value] = to_hsv(*pixel);
        *pixel = to_rgb([hue.wrapping_add(turn), saturation, value]);
    }
}

/// Hue, saturation and value.
fn to_hsv([red, green, blue]: [u8; 3]) -> [u8; 3] {
    let largest = red.max(green).max(blue);
    let smallest = red.min(green).min(blue);
    let middle = red.max(green).min(red.min(green).max(blue));
    let range = largest - smallest;
    let saturation = 255 * u32::from(range) / u32::from(largest).max(1);
    let order =
        usize::from(red >= green) | usize::from(green >= blue) << 1 | usize::from(red >= blue) << 2;
    let (mixed, direction) = SIXTHS[order];
    let share = FLOATS[usize::from(largest - middle)] / FLOATS[usize::from(range.max(1))];
    let turns = (mixed + direction * share) / 6.0;
    let hue = turns + if turns < 0.0 { 1.0 } else { 0.0 };
    [(hue * 255.0) as u8, saturation as u8, largest]
}

/// Where in the circle the hue of a pixel is whose middle value equals the largest, and to which side it
/// moves as that falls. From red at 0 by green at 2 and blue at 4 to red at 6. Two of the eight orders
/// cannot be; grey is in the last, where its hue does not matter.
const SIXTHS: [(f32, f32); 8] = [
    (3.0, 1.0),
    (5.0, -1.0),
    (3.0, -1.0),
    (0.0, 0.0),
    (0.0, 0.0),
    (-1.0, 1.0),
    (1.0, 1.0),
    (1.0, -1.0),
];

/// Every byte as a float. The instruction that converts would wait for the pixel before.
const FLOATS: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = byte as f32;
        byte += 1;
    }
    table
};

fn to_rgb([hue, saturation, value]: [u8; 3]) -> [u8; 3] {
    let (share, shifts) = HUES[usize::from(hue)];
    let (saturation, value) = (u32::from(saturation), u32::from(value));
    let smallest = (value * (255 - saturation) + 127) / 255;
    let middle = (value * (255 * 255 - saturation * share) + 255 * 255 / 2) / (255 * 255);
    let values = value | middle << 8 | smallest << 16;
    shifts.map(|shift| (values >> shift) as u8)
}

/// For every hue, how far the middle value is from the largest if the smallest is 255 from it, and at
/// which bit of these three red, green and blue are found.
const HUES: [(u32, [u8; 3]); 256] = {
    let shifts = [
        [0, 8, 16],
        [8, 0, 16],
        [16, 0, 8],
        [16, 8, 0],
        [8, 16, 0],
        [0, 16, 8],
    ];
    let mut table = [(0, [0; 3]); 256];
    let mut hue = 0;
    while hue < 256 {
        let (sixth, rest) = (6 * hue / 255, 6 * hue % 255);
        let share = if sixth % 2 == 1 { rest } else { 255 - rest };
        table[hue] = (share as u32, shifts[sixth % 6]);
        hue += 1;
    }
    table
};
