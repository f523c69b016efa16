//! JPEG compression without the file: what is lost is lost in colour conversion, in halving the chroma, in the rounding
//! of the transforms and in quantisation. The entropy coding between compressor and decompressor loses nothing, so it
//! is left out. The integer arithmetic is that of libjpeg's accurate transform with baseline tables, 4:2:0 chroma and
//! smooth upsampling, which is what the recipe's library uses.

use crate::corruptor::Kernel;
use crate::dct::{Lanes, forward, inverse};
use crate::random::Random;
use crate::size::Size;
use crate::wide::wide;

#[rustfmt::skip]
const LUMA_TABLE: [u32; 64] = [
    16, 11, 10, 16,  24,  40,  51,  61,
    12, 12, 14, 19,  26,  58,  60,  55,
    14, 13, 16, 24,  40,  57,  69,  56,
    14, 17, 22, 29,  51,  87,  80,  62,
    18, 22, 37, 56,  68, 109, 103,  77,
    24, 35, 55, 64,  81, 104, 113,  92,
    49, 64, 78, 87, 103, 121, 120, 101,
    72, 92, 95, 98, 112, 100, 103,  99,
];

/// The table for chroma has large steps of 99 everywhere but in the corner of the low frequencies.
const CHROMA_TABLE: [u32; 64] = {
    let corner = [
        [17, 18, 24, 47],
        [18, 21, 26, 66],
        [24, 26, 56, 99],
        [47, 66, 99, 99],
    ];
    let mut table = [99; 64];
    let mut index = 0;
    while index < 16 {
        let (row, column) = (index / 4, index % 4);
        table[8 * row + column] = corner[row][column];
        index += 1;
    }
    table
};

#[derive(Clone)]
pub(crate) struct Jpeg {
    luma_steps: Steps,
    chroma_steps: Steps,
    size: Size,
    luma: Plane,
    /// Blue and red difference at full size, then at half size.
    full_chroma: [Vec<u8>; 2],
    chroma: [Plane; 2],
    /// One row of each chroma plane, upsampled.
    upsampled: [Vec<u8>; 2],
    /// Vertical sums of one chroma row, with one more at either end.
    sums: Vec<u16>,
    /// One row of each colour.
    colours: [Vec<u8>; 3],
}

/// Samples padded to whole blocks.
#[derive(Clone)]
struct Plane {
    height: usize,
    width: usize,
    stride: usize,
    samples: Vec<u8>,
}

impl Plane {
    fn new(height: usize, width: usize) -> Self {
        let stride = width.next_multiple_of(8);
        Self {
            height,
            width,
            stride,
            samples: vec![0; stride * height.next_multiple_of(8)],
        }
    }

    fn row_mut(&mut self, row: usize) -> &mut [u8] {
        &mut self.samples[row * self.stride..][..self.stride]
    }

    fn row(&self, row: usize) -> &[u8] {
        &self.samples[row * self.stride..][..self.width]
    }

    /// Repeats the last row down to the end of the blocks.
    fn pad_rows(&mut self) {
        let last = (self.height - 1) * self.stride;
        for start in (self.height * self.stride..self.samples.len()).step_by(self.stride) {
            self.samples.copy_within(last..last + self.stride, start);
        }
    }

    /// Sends every block through transform, quantisation and back.
    #[inline(always)]
    fn quantise(&mut self, steps: &Steps) {
        let stride = self.stride;
        for band in self.samples.chunks_exact_mut(8 * stride) {
            for left in (0..stride).step_by(8) {
                let mut block = [[0; 8]; 8];
                for (line, row) in block.iter_mut().zip(band.chunks_exact(stride)) {
                    for (value, &sample) in line.iter_mut().zip(&row[left..left + 8]) {
                        *value = i16::from(sample) - 128;
                    }
                }
                forward(&mut block);
                steps.quantise(&mut block);
                inverse(&mut block);
                for (line, row) in block.iter().zip(band.chunks_exact_mut(stride)) {
                    let samples = line.map(|value| value.clamp(-128, 127) as u8 ^ 0x80);
                    row[left..left + 8].copy_from_slice(&samples);
                }
            }
        }
    }
}

/// Quantisation steps of a quality.
#[derive(Clone)]
struct Steps {
    steps: [Lanes; 8],
    /// One over eight steps: coefficients come out of the transform eight times too large.
    reciprocals: [[f32; 8]; 8],
}

impl Steps {
    fn new(table: &[u32; 64], quality: u32) -> Self {
        let percent = if quality < 50 {
            5000 / quality
        } else {
            200 - 2 * quality
        };
        let step = |index: usize| ((table[index] * percent + 50) / 100).clamp(1, 255) as i16;
        let steps = std::array::from_fn(|row| std::array::from_fn(|column| step(8 * row + column)));
        Self::from_steps(steps)
    }

    fn from_steps(steps: [Lanes; 8]) -> Self {
        Self {
            steps,
            reciprocals: steps.map(|row| row.map(|step| 1.0 / (8.0 * f32::from(step)))),
        }
    }

    /// Rounds every coefficient to a multiple of its step: |c| + 4 step, divided by 8 step, without the fraction.
    #[inline(always)]
    fn quantise(&self, block: &mut [Lanes; 8]) {
        /// Numbers from here on have no bits for a fraction, and count up in the lowest bits.
        const WHOLE: f32 = (1 << 23) as f32;
        let steps = self.steps.iter().zip(&self.reciprocals);
        for (line, (steps, reciprocals)) in block.iter_mut().zip(steps) {
            for lane in 0..8 {
                let (value, step) = (line[lane], steps[lane]);
                // The half in the dividend keeps the quotient off whole numbers, so that taking a half from it and
                // rounding is the same as truncating it, in single precision too.
                let dividend = f32::from(value).abs() + (4.0 * f32::from(step) + 0.5);
                let rounded = (dividend * reciprocals[lane] - 0.5) + WHOLE;
                let multiple = rounded.to_bits().wrapping_sub(WHOLE.to_bits()) as i16;
                let magnitude = multiple.wrapping_mul(step);
                line[lane] = if value < 0 { -magnitude } else { magnitude };
            }
        }
    }
}

impl Jpeg {
    pub(crate) fn new(quality: u32, size: Size) -> Self {
        let Size { height, width } = size;
        let chroma = Plane::new(height.div_ceil(2), width.div_ceil(2));
        // Chroma is halved from columns padded to two whole blocks, and from an even number of rows.
        let full = vec![0; 2 * chroma.stride * 2 * chroma.height];
        Self {
            luma_steps: Steps::new(&LUMA_TABLE, quality),
            chroma_steps: Steps::new(&CHROMA_TABLE, quality),
            size,
            luma: Plane::new(height, width),
            full_chroma: [full.clone(), full],
            upsampled: [vec![0; 2 * width + 2], vec![0; 2 * width + 2]],
            chroma: [chroma.clone(), chroma],
            sums: vec![0; width.div_ceil(2) + 2],
            colours: std::array::from_fn(|_| vec![0; width]),
        }
    }

    /// RGB to luma and full-size chroma, padded.
    #[inline(always)]
    fn convert(&mut self, image: &[u8]) {
        let width = self.size.width;
        let full_stride = 2 * self.chroma[0].stride;
        let [blue_plane, red_plane] = &mut self.full_chroma;
        for (y, row) in image.chunks_exact(3 * width).enumerate() {
            let luma = self.luma.row_mut(y);
            let blues = &mut blue_plane[y * full_stride..][..full_stride];
            let reds = &mut red_plane[y * full_stride..][..full_stride];
            let [red_row, green_row, blue_row] = &mut self.colours;
            let colours = red_row
                .iter_mut()
                .zip(green_row.iter_mut())
                .zip(blue_row.iter_mut());
            for (pixel, ((red, green), blue)) in row.chunks_exact(3).zip(colours) {
                (*red, *green, *blue) = (pixel[0], pixel[1], pixel[2]);
            }
            let colours = red_row.iter().zip(&*green_row).zip(&*blue_row);
            let outputs = luma.iter_mut().zip(blues.iter_mut()).zip(reds.iter_mut());
            for (((&red, &green), &blue), ((luma, to_blue), to_red)) in colours.zip(outputs) {
                let [red, green, blue] = [red, green, blue].map(i32::from);
                *luma = ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16) as u8;
                *to_blue = ((-11059 * red - 21709 * green + 32768 * blue + (128 << 16) + 32767)
                    >> 16) as u8;
                *to_red =
                    ((32768 * red - 27439 * green - 5329 * blue + (128 << 16) + 32767) >> 16) as u8;
            }
            for line in [luma, blues, reds] {
                let last = line[width - 1];
                line[width..].fill(last);
            }
        }
        self.luma.pad_rows();
    }

    /// Means of two by two, rounded up and down in turn.
    #[inline(always)]
    fn halve_chroma(&mut self) {
        for (plane, full) in self.chroma.iter_mut().zip(&mut self.full_chroma) {
            let full_stride = 2 * plane.stride;
            if !self.size.height.is_multiple_of(2) {
                let last = (self.size.height - 1) * full_stride;
                full.copy_within(last..last + full_stride, last + full_stride);
            }
            for (y, rows) in full.chunks_exact(2 * full_stride).enumerate() {
                let (upper, lower) = rows.split_at(full_stride);
                let pairs = upper.chunks_exact(2).zip(lower.chunks_exact(2));
                for (x, (out, (upper, lower))) in plane.row_mut(y).iter_mut().zip(pairs).enumerate()
                {
                    let sum = [upper[0], upper[1], lower[0], lower[1]]
                        .map(u32::from)
                        .iter()
                        .sum::<u32>();
                    *out = ((sum + 1 + (x as u32 & 1)) >> 2) as u8;
                }
            }
            plane.pad_rows();
        }
    }

    /// Luma and upsampled chroma back to RGB.
    #[inline(always)]
    fn restore(&mut self, image: &mut [u8]) {
        for (y, row) in image.chunks_exact_mut(3 * self.size.width).enumerate() {
            for (plane, out) in self.chroma.iter().zip(&mut self.upsampled) {
                let near = y / 2;
                let far = if y % 2 == 0 {
                    near.saturating_sub(1)
                } else {
                    (near + 1).min(plane.height - 1)
                };
                upsample(plane.row(near), plane.row(far), &mut self.sums, out);
            }
            let [blues, reds] = &self.upsampled;
            let samples = self.luma.row(y).iter().zip(blues).zip(reds);
            let [red_row, green_row, blue_row] = &mut self.colours;
            let colours = red_row
                .iter_mut()
                .zip(green_row.iter_mut())
                .zip(blue_row.iter_mut());
            for (((red, green), blue), ((&luma, &to_blue), &to_red)) in colours.zip(samples) {
                let (luma, to_blue, to_red) = (
                    i32::from(luma),
                    i32::from(to_blue) - 128,
                    i32::from(to_red) - 128,
                );
                *red = (luma + ((91881 * to_red + 32768) >> 16)).clamp(0, 255) as u8;
                *green = (luma + ((-22554 * to_blue - 46802 * to_red + 32768) >> 16)).clamp(0, 255)
                    as u8;
                *blue = (luma + ((116_130 * to_blue + 32768) >> 16)).clamp(0, 255) as u8;
            }
            let colours = red_row.iter().zip(&*green_row).zip(&*blue_row);
            for (pixel, ((&red, &green), &blue)) in row.chunks_exact_mut(3).zip(colours) {
                pixel.copy_from_slice(&[red, green, blue]);
            }
        }
    }
}

/// One row of twice the width: three parts of the nearer sample and one of the farther, in both directions.
#[inline(always)]
fn upsample(near: &[u8], far: &[u8], sums: &mut [u16], out: &mut [u8]) {
    let last = near.len() + 1;
    for ((sum, &near), &far) in sums[1..last].iter_mut().zip(near).zip(far) {
        *sum = 3 * u16::from(near) + u16::from(far);
    }
    (sums[0], sums[last]) = (sums[1], sums[last - 1]);
    let neighbours = sums.iter().zip(&sums[1..]).zip(&sums[2..=last]);
    for (pair, ((&before, &here), &after)) in out.chunks_exact_mut(2).zip(neighbours) {
        pair[0] = ((3 * here + before + 8) >> 4) as u8;
        pair[1] = ((3 * here + after + 7) >> 4) as u8;
    }
}

impl Kernel for Jpeg {
    fn apply(&mut self, image: &mut [u8], _: &mut impl Random) {
        wide(
            #[inline(always)]
            || {
                self.convert(image);
                self.halve_chroma();
            },
        );
        wide(
            #[inline(always)]
            || self.luma.quantise(&self.luma_steps),
        );
        for plane in &mut self.chroma {
            wide(
                #[inline(always)]
                || plane.quantise(&self.chroma_steps),
            );
        }
        wide(
            #[inline(always)]
            || self.restore(image),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_one_only_round() {
        let mut block: [Lanes; 8] = std::array::from_fn(|row| {
            std::array::from_fn(|column| ((row * 31 + column * 17) % 256) as i16 - 128)
        });
        let before = block;
        forward(&mut block);
        Steps::new(&LUMA_TABLE, 100).quantise(&mut block);
        inverse(&mut block);
        for (found, expected) in block.as_flattened().iter().zip(before.as_flattened()) {
            assert!((found - expected).abs() <= 1, "{found} {expected}");
        }
    }

    #[test]
    fn quantisation_equals_division() {
        for step in [1, 2, 7, 99, 255] {
            let steps = Steps::from_steps([[step as i16; 8]; 8]);
            for value in -16400i32..16400 {
                let mut block = [[value as i16; 8]; 8];
                steps.quantise(&mut block);
                let magnitude = (value.abs() + 4 * step) / (8 * step) * step;
                let expected = if value < 0 { -magnitude } else { magnitude };
                assert_eq!(i32::from(block[3][5]), expected, "{value} by {step}");
            }
        }
    }
}
