//! Single changes of an image, as Pillow makes them on bytes, of which RandAugment and AugMix are put together.

use super::Adjustment;

/// A change of an image `[height, width, 3]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    /// Each channel is stretched, so that its darkest value becomes 0 and its brightest 255.
    AutoContrast,
    /// Each channel is changed so that its values are spread as evenly as possible.
    Equalise,
    /// Each value keeps this many of its leading bits, 1 to 8.
    Posterise(u32),
    /// Values from this threshold on are turned to their negative, 0 to 256.
    Solarise(u32),
    /// The image moves away from its smoothed copy by this factor; below one it is smoothed.
    Sharpness(f32),
    /// A change of brightness, contrast or colours.
    Colour(Adjustment),
    /// The image is turned about its centre, counter-clockwise, by this many degrees.
    Rotate(f64),
    /// Each row is shifted to the left by this share of its distance from the top.
    ShearRows(f64),
    /// Each column is shifted upwards by this share of its distance from the left.
    ShearColumns(f64),
    /// The image is shifted upwards and to the left by this many rows and columns.
    Translate([i32; 2]),
}

/// How pixels are found that lie between those of the image, and what is seen beyond its edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// The nearest pixel; black beyond the edge.
    Nearest,
    /// A blend of the four nearest pixels; grey beyond the edge.
    Bilinear,
}

/// Maps the place of a pixel in the result to that in the image: `x' = a x + b y + c`, `y' = d x + e y + f`.
type Affine = [f64; 6];

impl Operation {
    /// Changes an image `[height, width, 3]` of `size`, `[height, width]`.
    pub fn apply(self, image: &mut [u8], size: [usize; 2], sampling: Sampling) {
        let affine = match self {
            Self::AutoContrast => return each_channel(image, stretched),
            Self::Equalise => return each_channel(image, equalised),
            Self::Posterise(bits) => {
                let mask = !((1_u32 << (8 - bits.clamp(1, 8))) - 1) as u8;
                for byte in image {
                    *byte &= mask;
                }
                return;
            }
            Self::Solarise(threshold) => {
                for byte in image {
                    if u32::from(*byte) >= threshold {
                        *byte = 255 - *byte;
                    }
                }
                return;
            }
            Self::Sharpness(factor) => {
                let smooth = smoothed(image, size);
                for (byte, smooth) in image.iter_mut().zip(smooth) {
                    *byte = super::colour::blend(smooth, *byte, factor);
                }
                return;
            }
            Self::Colour(adjustment) => return adjustment.apply(image),
            Self::Rotate(degrees) => rotation(degrees, size),
            Self::ShearRows(share) => [1.0, share, 0.0, 0.0, 1.0, 0.0],
            Self::ShearColumns(share) => [1.0, 0.0, 0.0, share, 1.0, 0.0],
            Self::Translate([rows, columns]) => {
                [1.0, 0.0, f64::from(columns), 0.0, 1.0, f64::from(rows)]
            }
        };
        let moved = match sampling {
            Sampling::Nearest => nearest(image, size, affine),
            Sampling::Bilinear => bilinear(image, size, affine),
        };
        image.copy_from_slice(&moved);
    }
}

/// Replaces the values of each channel by a table that is made of how often each value occurs.
fn each_channel(image: &mut [u8], table: fn(&[usize; 256]) -> [u8; 256]) {
    for channel in 0..3 {
        let mut counts = [0; 256];
        for byte in image.iter().skip(channel).step_by(3) {
            counts[usize::from(*byte)] += 1;
        }
        let table = table(&counts);
        for byte in image.iter_mut().skip(channel).step_by(3) {
            *byte = table[usize::from(*byte)];
        }
    }
}

/// `ImageOps.autocontrast`, without a cut-off.
fn stretched(counts: &[usize; 256]) -> [u8; 256] {
    let unchanged = std::array::from_fn(|byte| byte as u8);
    let occurs = |count: &usize| *count > 0;
    let (Some(low), Some(high)) = (
        counts.iter().position(occurs),
        counts.iter().rposition(occurs),
    ) else {
        return unchanged;
    };
    if high <= low {
        return unchanged;
    }
    let scale = 255.0 / (high - low) as f64;
    let offset = -(low as f64) * scale;
    std::array::from_fn(|byte| (byte as f64 * scale + offset) as u8)
}

/// `ImageOps.equalize`.
fn equalised(counts: &[usize; 256]) -> [u8; 256] {
    let unchanged = std::array::from_fn(|byte| byte as u8);
    let Some(last) = counts.iter().rposition(|&count| count > 0) else {
        return unchanged;
    };
    let all: usize = counts.iter().sum();
    // Zero as well where there is a single value.
    let step = (all - counts[last]) / 255;
    if step == 0 {
        return unchanged;
    }
    let mut sum = step / 2;
    std::array::from_fn(|byte| {
        let value = (sum / step).min(255) as u8;
        sum += counts[byte];
        value
    })
}

/// `ImageFilter.SMOOTH`: the pixel counts five times, its eight neighbours once. The pixels at the edge stay.
fn smoothed(image: &[u8], [height, width]: [usize; 2]) -> Vec<u8> {
    let mut result = image.to_vec();
    for y in 1..height.saturating_sub(1) {
        for x in 1..width.saturating_sub(1) {
            for channel in 0..3 {
                let value = |y: usize, x: usize| u32::from(image[3 * (y * width + x) + channel]);
                let neighbours = (y - 1..=y + 1).flat_map(|y| (x - 1..=x + 1).map(move |x| (y, x)));
                let sum: u32 = neighbours.map(|(y, x)| value(y, x)).sum::<u32>() + 4 * value(y, x);
                // Thirteenths, rounded; no sum of whole numbers lies in the middle of two.
                result[3 * (y * width + x) + channel] = ((2 * sum + 13) / 26) as u8;
            }
        }
    }
    result
}

/// The map of `Image.rotate`.
fn rotation(degrees: f64, [height, width]: [usize; 2]) -> Affine {
    let digits = |value: f64| (value * 1e15).round() / 1e15;
    let (sine, cosine) = (-degrees).to_radians().sin_cos();
    let (sine, cosine) = (digits(sine), digits(cosine));
    let [y, x] = [height as f64 / 2.0, width as f64 / 2.0];
    [
        cosine,
        sine,
        x - cosine * x - sine * y,
        -sine,
        cosine,
        y + sine * x - cosine * y,
    ]
}

/// Takes the nearest pixel, in the fixed-point arithmetic of Pillow.
fn nearest(image: &[u8], [height, width]: [usize; 2], affine: Affine) -> Vec<u8> {
    let fixed = |value: f64| (value * 65536.0 + 0.5).floor() as i64;
    let [a, b, c, d, e, f] = affine;
    let steps = [a, b, d, e].map(fixed);
    let mut column = fixed(c + a * 0.5 + b * 0.5);
    let mut row = fixed(f + d * 0.5 + e * 0.5);
    let mut result = vec![0; image.len()];
    for target in result.chunks_exact_mut(3 * width) {
        let (mut x, mut y) = (column, row);
        for pixel in target.as_chunks_mut::<3>().0 {
            let (from_x, from_y) = (x >> 16, y >> 16);
            if (0..width as i64).contains(&from_x) && (0..height as i64).contains(&from_y) {
                let place = 3 * (from_y as usize * width + from_x as usize);
                pixel.copy_from_slice(&image[place..place + 3]);
            }
            x += steps[0];
            y += steps[2];
        }
        column += steps[1];
        row += steps[3];
    }
    result
}

/// What is seen beyond the edge where pixels are blended.
const GREY: u8 = 128;

/// Blends the four nearest pixels, those at the edge with themselves.
fn bilinear(image: &[u8], [height, width]: [usize; 2], affine: Affine) -> Vec<u8> {
    let [a, b, c, d, e, f] = affine;
    let mut result = vec![GREY; image.len()];
    for (place, pixel) in result.as_chunks_mut::<3>().0.iter_mut().enumerate() {
        let (x, y) = ((place % width) as f64 + 0.5, (place / width) as f64 + 0.5);
        let (from_x, from_y) = (a * x + b * y + c, d * x + e * y + f);
        let inside = |at: f64, side: usize| at >= 0.0 && at < side as f64;
        if !inside(from_x, width) || !inside(from_y, height) {
            continue;
        }
        let (from_x, from_y) = (from_x - 0.5, from_y - 0.5);
        let (left, top) = (from_x.floor(), from_y.floor());
        let (beside, below) = (from_x - left, from_y - top);
        let column = |step: i64| (left as i64 + step).clamp(0, width as i64 - 1) as usize;
        let row = |step: i64| (top as i64 + step).clamp(0, height as i64 - 1) as usize;
        for (channel, byte) in pixel.iter_mut().enumerate() {
            let value = |y: usize, x: usize| f64::from(image[3 * (y * width + x) + channel]);
            let along = |y: usize| {
                let (one, other) = (value(y, column(0)), value(y, column(1)));
                one + (other - one) * beside
            };
            let (upper, lower) = (along(row(0)), along(row(1)));
            *byte = (upper + (lower - upper) * below) as u8;
        }
    }
    result
}
