//! Parts of images.

use rand::Rng;

use super::{Padding, uniform};
use crate::data::resize::bilinear;
use crate::rng::below;

/// Black pixels on every side before a padded crop.
const PADDING: usize = 4;
/// Least and largest part of the area that a resized crop keeps.
const AREA: (f32, f32) = (0.2, 1.0);
/// Widest aspect of a resized crop, width over height. The narrowest is its inverse.
const ASPECT: f64 = 4.0 / 3.0;
/// How often a resized crop that does not fit is drawn anew.
const TRIES: usize = 10;

/// The part of an image that is kept. The result has the size of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crop {
    /// All of it.
    Whole,
    /// A part as large as the image, from the image with four black pixels more on every side
    /// (torchvision's `RandomCrop(size, padding=4)`).
    Padded {
        /// Its first row, 0 to 8; the image itself begins at 4.
        top: usize,
        /// Its first column.
        left: usize,
    },
    /// The same from the image with four mirrored pixels more on every side (`padding_mode="reflect"`).
    Reflected {
        /// Its first row, 0 to 8; the image itself begins at 4.
        top: usize,
        /// Its first column.
        left: usize,
    },
    /// A part of the image, resized to the whole (torchvision's `RandomResizedCrop`).
    Resized {
        /// Its first row.
        top: usize,
        /// Its first column.
        left: usize,
        /// Its rows.
        height: usize,
        /// Its columns.
        width: usize,
    },
}

impl Crop {
    /// Every place is as likely.
    pub(super) fn draw_padded(rng: &mut impl Rng) -> Self {
        Self::Padded {
            top: below(2 * PADDING + 1, rng),
            left: below(2 * PADDING + 1, rng),
        }
    }

    /// Every place is as likely.
    pub(super) fn draw_reflected(rng: &mut impl Rng) -> Self {
        Self::Reflected {
            top: below(2 * PADDING + 1, rng),
            left: below(2 * PADDING + 1, rng),
        }
    }

    /// Area uniform from 20 to 100 % of the image, the logarithm of the aspect uniform from 3:4 to 4:3.
    /// After ten drawings that do not fit: the middle.
    pub(super) fn draw_resized(size: [usize; 2], rng: &mut impl Rng) -> Self {
        let [full_height, full_width] = size;
        for _ in 0..TRIES {
            let area = f64::from(uniform(AREA.0, AREA.1, rng)) * (full_height * full_width) as f64;
            let aspect = ASPECT.powf(f64::from(uniform(-1.0, 1.0, rng)));
            // Python rounds halves to the even neighbour.
            let width = (area * aspect).sqrt().round_ties_even() as usize;
            let height = (area / aspect).sqrt().round_ties_even() as usize;
            if (1..=full_width).contains(&width) && (1..=full_height).contains(&height) {
                return Self::Resized {
                    top: below(full_height - height + 1, rng),
                    left: below(full_width - width + 1, rng),
                    height,
                    width,
                };
            }
        }
        Self::middle(size)
    }

    /// As much of the middle as an aspect of 3:4 to 4:3 allows.
    fn middle([full_height, full_width]: [usize; 2]) -> Self {
        let longest = |length: usize| (length as f64 * ASPECT).round_ties_even() as usize;
        let height = full_height.min(longest(full_width));
        let width = full_width.min(longest(full_height));
        Self::Resized {
            top: (full_height - height) / 2,
            left: (full_width - width) / 2,
            height,
            width,
        }
    }

    /// The part of an image `[height, width, 3]`, in the same shape.
    pub(super) fn apply(self, image: &[u8], size: [usize; 2]) -> Vec<u8> {
        match self {
            Self::Whole => image.to_vec(),
            Self::Padded { top, left } => shifted(image, size, top, left),
            Self::Reflected { top, left } => reflected(image, size, [top, left]),
            Self::Resized {
                top,
                left,
                height,
                width,
            } => {
                let mut part = Vec::with_capacity(3 * height * width);
                for row in image.chunks_exact(3 * size[1]).skip(top).take(height) {
                    part.extend_from_slice(&row[3 * left..3 * (left + width)]);
                }
                bilinear::<3>(&part, [height, width], size)
            }
        }
    }
}

fn shifted(image: &[u8], [height, width]: [usize; 2], top: usize, left: usize) -> Vec<u8> {
    assert!(
        top.max(left) <= 2 * PADDING,
        "a crop at row {top}, column {left}: expected at most {}",
        2 * PADDING
    );
    // What is seen of the image along one axis: where it begins in the result, where in the image, and
    // how much it is. Nothing, if the image is smaller than the shift.
    let seen = |length: usize, offset: usize| {
        let (to, from) = (
            PADDING.saturating_sub(offset),
            offset.saturating_sub(PADDING),
        );
        (to, from, length.saturating_sub(to + from))
    };
    let (to_row, from_row, rows) = seen(height, top);
    let (to_column, from_column, columns) = seen(width, left);
    let mut result = vec![0; image.len()];
    if columns == 0 {
        return result;
    }
    let sources = image.chunks_exact(3 * width).skip(from_row);
    let targets = result.chunks_exact_mut(3 * width).skip(to_row);
    for (target, source) in targets.zip(sources).take(rows) {
        target[3 * to_column..][..3 * columns]
            .copy_from_slice(&source[3 * from_column..][..3 * columns]);
    }
    result
}

/// The image shifted by `offset` less the padding, `[rows, columns]`, with its mirror image beyond the edges.
fn reflected(image: &[u8], size: [usize; 2], offset: [usize; 2]) -> Vec<u8> {
    let from = |axis: usize, at: usize| {
        let at = at as i64 + offset[axis] as i64 - PADDING as i64;
        Padding::Reflection.place(at, size[axis])
    };
    let mut result = Vec::with_capacity(image.len());
    for y in 0..size[0] {
        let row = &image[3 * size[1] * from(0, y)..][..3 * size[1]];
        result.extend((0..size[1]).flat_map(|x| {
            let place = 3 * from(1, x);
            [row[place], row[place + 1], row[place + 2]]
        }));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_has_an_allowed_aspect() {
        // By `RandomResizedCrop.get_params` of torchvision 0.29.
        let cases = [
            ([32, 32], (0, 0, 32, 32)),
            ([10, 100], (0, 43, 10, 13)),
            ([100, 10], (43, 0, 13, 10)),
            ([30, 40], (0, 0, 30, 40)),
            ([31, 50], (0, 4, 31, 41)),
        ];
        for (size, (top, left, height, width)) in cases {
            let expected = Crop::Resized {
                top,
                left,
                height,
                width,
            };
            assert_eq!(Crop::middle(size), expected, "{size:?}");
        }
    }
}
