use crate::size::Size;
use crate::wide::wide;

/// One-sided blur along a direction, as `ImageMagick` does it: Gaussian weights on whole-pixel offsets, clamped at the
/// border, rounded to 16 bits and then cut to 8.
#[derive(Clone)]
pub(crate) struct MotionBlur {
    weights: Vec<f32>,
    size: Size,
    channels: usize,
    /// The image with clamped columns on both sides.
    padded: Vec<f32>,
    row: Vec<f32>,
}

impl MotionBlur {
    pub(crate) fn new(radius: f64, sigma: f64, size: Size, channels: usize) -> Self {
        let width = 2 * radius.ceil() as usize + 1;
        let shape: Vec<f64> = (0..width)
            .map(|i| (-((i * i) as f64) / (2.0 * sigma * sigma)).exp())
            .collect();
        let total: f64 = shape.iter().sum();
        // 8-bit values are held as 16-bit ones, hence 257.
        let weights = shape
            .iter()
            .map(|weight| (257.0 * weight / total) as f32)
            .collect();
        Self {
            weights,
            size,
            channels,
            padded: Vec::new(),
            row: Vec::new(),
        }
    }

    /// Blurs an image [height, width, channels] along `degrees`.
    pub(crate) fn apply(&mut self, image: &mut [u8], degrees: f64) {
        let (channels, stride) = (self.channels, self.size.width * self.channels);
        let pad = self.weights.len() * channels;
        let padded_stride = stride + 2 * pad;
        self.padded.resize(self.size.height * padded_stride, 0.0);
        for (row, padded) in image
            .chunks_exact(stride)
            .zip(self.padded.chunks_exact_mut(padded_stride))
        {
            let (left, rest) = padded.split_at_mut(pad);
            let (middle, right) = rest.split_at_mut(stride);
            for (padded, &value) in middle.iter_mut().zip(row) {
                *padded = f32::from(value);
            }
            for pixel in left.chunks_exact_mut(channels) {
                pixel.copy_from_slice(&middle[..channels]);
            }
            for pixel in right.chunks_exact_mut(channels) {
                pixel.copy_from_slice(&middle[stride - channels..]);
            }
        }

        wide(
            #[inline(always)]
            || self.smear(image, degrees),
        );
    }

    #[inline(always)]
    fn smear(&mut self, image: &mut [u8], degrees: f64) {
        let (channels, stride) = (self.channels, self.size.width * self.channels);
        let pad = self.weights.len() * channels;
        let (sine, cosine) = degrees.to_radians().sin_cos();
        let last_row = self.size.height as isize - 1;
        self.row.resize(stride, 0.0);
        for (y, out) in image.chunks_exact_mut(stride).enumerate() {
            self.row.fill(0.0);
            for (i, &weight) in self.weights.iter().enumerate() {
                let offset = |part: f64| (i as f64 * part - 0.5).ceil() as isize;
                let source = (y as isize + offset(sine)).clamp(0, last_row) as usize;
                let start = source * (stride + 2 * pad) + pad;
                let start = start.wrapping_add_signed(offset(cosine) * channels as isize);
                for (sum, value) in self.row.iter_mut().zip(&self.padded[start..start + stride]) {
                    *sum += weight * value;
                }
            }
            for (out, sum) in out.iter_mut().zip(&self.row) {
                let sixteen_bits = (sum + 0.5) as u32;
                *out = (sixteen_bits / 257).min(255) as u8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_smears_backwards_along_the_direction() {
        let size = Size::new(8, 16).unwrap();
        let mut image = vec![0; 128];
        for y in 0..8 {
            image[y * 16 + 10] = 255;
        }
        MotionBlur::new(2.0, 1e6, size, 1).apply(&mut image, 0.0);
        assert_eq!(
            &image[..16],
            &[0, 0, 0, 0, 0, 0, 51, 51, 51, 51, 51, 0, 0, 0, 0, 0]
        );
    }

    #[test]
    fn flat_images_stay_flat() {
        for value in [0, 1, 100, 254, 255] {
            let mut image = vec![value; 3 * 64];
            MotionBlur::new(9.0, 2.5, Size::new(8, 8).unwrap(), 3).apply(&mut image, -31.0);
            assert!(image.iter().all(|&found| found == value));
        }
    }
}
