//! Images made larger and smaller exactly as Pillow does it, so that a model sees the bytes that its
//! PyTorch original saw.
//!
//! A new pixel is a weighted mean of old ones. The weights fall off linearly from its centre over one
//! pixel, or, when shrinking, over as many old pixels as become one (antialiasing). They are rounded to
//! 22 bits, rows are done before columns, and bytes are rounded in between: other libraries do one of
//! these otherwise and differ in the last bit.

/// RGB bytes `[height, width, 3]`.
pub(super) struct Rgb {
    pub height: usize,
    pub width: usize,
    pub pixels: Vec<u8>,
}

/// Where the middle of a length is cut out, rounded as torchvision does it: half to even.
fn centre(length: usize, size: usize) -> usize {
    let margin = length - size;
    margin / 2 + usize::from(margin % 4 == 3)
}

/// The middle `size` x `size` pixels after the shorter side was made 8/7 of that: 256 and 224 pixels
/// for ImageNet. An image that has the wanted size already, as those of ImageNet-C, is left alone.
pub(super) fn shrink_and_crop(image: Rgb, size: usize) -> Vec<u8> {
    let (height, width) = (image.height, image.width);
    if (height, width) == (size, size) {
        return image.pixels;
    }
    let shorter = size * 8 / 7;
    let scaled = |length: usize| shorter * length / height.min(width);
    let (new_height, new_width) = (scaled(height), scaled(width));
    let pixels = if (new_height, new_width) == (height, width) {
        image.pixels
    } else {
        let from = [height, width];
        bilinear::<3>(&image.pixels, from, [new_height, new_width])
    };
    let (top, left) = (centre(new_height, size), centre(new_width, size));
    pixels
        .chunks_exact(3 * new_width)
        .skip(top)
        .take(size)
        .flat_map(|row| &row[3 * left..3 * (left + size)])
        .copied()
        .collect()
}

/// Square grey images `[count, from, from]` as `[count, to, to]`.
pub(super) fn resize_grey(pixels: &[u8], from: usize, to: usize) -> Vec<u8> {
    let images = pixels.chunks_exact(from * from);
    images
        .flat_map(|image| bilinear::<1>(image, [from, from], [to, to]))
        .collect()
}

/// An image `[height, width, CHANNELS]` from one `[height, width]` to another.
pub(super) fn bilinear<const CHANNELS: usize>(
    pixels: &[u8],
    from: [usize; 2],
    to: [usize; 2],
) -> Vec<u8> {
    let [height, width] = from;
    let [new_height, new_width] = to;
    let columns = Weights::new(width, new_width);
    let mut narrow = vec![0; height * new_width * CHANNELS];
    let rows = pixels.chunks_exact(width * CHANNELS);
    for (row, new_row) in rows.zip(narrow.chunks_exact_mut(new_width * CHANNELS)) {
        let row = row.as_chunks::<CHANNELS>().0;
        let new_row = new_row.as_chunks_mut::<CHANNELS>().0;
        for (new_pixel, (first, weights)) in new_row.iter_mut().zip(columns.iter()) {
            let mut sums = [HALF; CHANNELS];
            for (weight, pixel) in weights.iter().zip(&row[first..first + weights.len()]) {
                for (sum, byte) in sums.iter_mut().zip(pixel) {
                    *sum += weight * i32::from(*byte);
                }
            }
            *new_pixel = sums.map(to_byte);
        }
    }
    let mut result = Vec::with_capacity(new_height * new_width * CHANNELS);
    let mut sums = vec![0; new_width * CHANNELS];
    for (first, weights) in Weights::new(height, new_height).iter() {
        sums.fill(HALF);
        let rows = narrow.chunks_exact(new_width * CHANNELS).skip(first);
        for (weight, row) in weights.iter().zip(rows) {
            for (sum, byte) in sums.iter_mut().zip(row) {
                *sum += weight * i32::from(*byte);
            }
        }
        result.extend(sums.iter().map(|sum| to_byte(*sum)));
    }
    result
}

/// Bits behind the binary point of a weight.
const PRECISION: u32 = 22;

const HALF: i32 = 1 << (PRECISION - 1);

fn to_byte(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// How much old pixels count for new ones, along one axis.
struct Weights {
    /// For every new pixel, the first old one that counts.
    firsts: Vec<usize>,
    /// As many for every new pixel: for the first old one and those behind it.
    weights: Vec<i32>,
}

impl Weights {
    fn new(from: usize, to: usize) -> Self {
        let scale = from as f64 / to as f64;
        let support = scale.max(1.0);
        let range = |index: usize| {
            let centre = (index as f64 + 0.5) * scale;
            // Casting cuts off below zero.
            let first = (centre - support + 0.5) as usize;
            let last = ((centre + support + 0.5) as usize).min(from);
            (centre, first, last)
        };
        let counts = (0..to).map(range).map(|(_, first, last)| last - first);
        let count = counts.max().unwrap_or(0);
        let mut firsts = Vec::with_capacity(to);
        let mut weights = vec![0; to * count];
        let mut raw = vec![0.0; count];
        for (index, weights) in weights.chunks_exact_mut(count).enumerate() {
            let (centre, first, last) = range(index);
            let distance = |at: usize| ((at as f64 - centre + 0.5) / support).abs();
            for at in first..last {
                raw[at - first] = (1.0 - distance(at)).max(0.0);
            }
            let raw = &raw[..last - first];
            let sum: f64 = raw.iter().sum();
            let unit = f64::from(1 << PRECISION);
            // Where fewer count, zeros fill up, before them so that none is behind the last pixel.
            let start = first.min(from - count);
            for (weight, w) in weights[first - start..].iter_mut().zip(raw) {
                *weight = (w / sum * unit + 0.5) as i32;
            }
            firsts.push(start);
        }
        Self { firsts, weights }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let weights = self
            .weights
            .chunks_exact(self.weights.len() / self.firsts.len());
        self.firsts.iter().copied().zip(weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers by Pillow 13.0: `Image.resize(.., Image.BILINEAR)` of a ramp, once smaller, once larger.
    #[test]
    fn resizing_is_that_of_pillow() {
        let ramp: Vec<u8> = (0..35_u32).map(|i| (i * i * 37 % 251) as u8).collect();
        assert_eq!(bilinear::<1>(&ramp, [5, 7], [3, 4]), PILLOW_SMALLER);
        let square = &ramp[..9];
        assert_eq!(resize_grey(square, 3, 5), PILLOW_LARGER);
    }

    const PILLOW_SMALLER: [u8; 12] = [50, 146, 134, 133, 110, 172, 148, 152, 128, 194, 161, 126];
    #[rustfmt::skip]
    const PILLOW_LARGER: [u8; 25] = [
        0, 15, 37, 104, 148,
        33, 43, 58, 118, 158,
        82, 85, 90, 139, 172,
        79, 75, 70, 108, 134,
        77, 69, 56, 88, 109,
    ];

    #[test]
    fn the_middle_is_that_of_torchvision() {
        // `int(round((length - size) / 2.0))`
        let cases = [
            (224, 0),
            (225, 0),
            (226, 1),
            (227, 2),
            (228, 2),
            (229, 2),
            (231, 4),
        ];
        for (length, expected) in cases {
            assert_eq!(centre(length, 224), expected, "{length}");
        }
    }
}
