//! Glass, motion, zoom and Gaussian blur. Defocus blur has a file of its own.

use crate::corruptor::Kernel;
use crate::gaussian::Gaussian;
use crate::motion::MotionBlur;
use crate::pixel::{Border, to_byte, to_byte_f32};
use crate::random::Random;
use crate::size::Size;
use crate::zoom::CentralZoom;

/// Blur, random displacement of pixels, blur.
#[derive(Clone)]
pub(crate) struct Glass {
    blur: Gaussian,
    delta: u32,
    iterations: u32,
    size: Size,
    unit_scale: Vec<f64>,
}

impl Glass {
    pub(crate) fn new((sigma, delta, iterations): (f64, u32, u32), size: Size) -> Self {
        let blur = Gaussian::new(sigma, 4.0, Border::Nearest, size, 3);
        Self {
            blur,
            delta,
            iterations,
            size,
            unit_scale: Vec::new(),
        }
    }
}

impl Kernel for Glass {
    fn apply(&mut self, image: &mut [u8], random: &mut impl Random) {
        blur_bytes(&mut self.blur, &mut self.unit_scale, image);
        let delta = self.delta as usize;
        let Size { height, width } = self.size;
        for _ in 0..self.iterations {
            for row in (delta + 1..=height - delta).rev() {
                for column in (delta + 1..=width - delta).rev() {
                    let (dx, dy) = random.shift(self.delta);
                    let from =
                        3 * (row.wrapping_add_signed(dy) * width + column.wrapping_add_signed(dx));
                    // A copy, not the swap it was meant to be: the recipe swaps two views of the same array.
                    image.copy_within(from..from + 3, 3 * (row * width + column));
                }
            }
        }
        blur_bytes(&mut self.blur, &mut self.unit_scale, image);
    }
}

fn blur_bytes(blur: &mut Gaussian, unit_scale: &mut Vec<f64>, image: &mut [u8]) {
    unit_scale.clear();
    unit_scale.extend(image.iter().map(|&byte| f64::from(byte) / 255.0));
    blur.apply(unit_scale);
    for (byte, &value) in image.iter_mut().zip(&*unit_scale) {
        *byte = to_byte(value);
    }
}

#[derive(Clone)]
pub(crate) struct GaussianBlur {
    blur: Gaussian,
    unit_scale: Vec<f64>,
}

impl GaussianBlur {
    pub(crate) fn new(sigma: f64, size: Size) -> Self {
        Self {
            blur: Gaussian::new(sigma, 4.0, Border::Nearest, size, 3),
            unit_scale: Vec::new(),
        }
    }
}

impl Kernel for GaussianBlur {
    fn apply(&mut self, image: &mut [u8], _: &mut impl Random) {
        blur_bytes(&mut self.blur, &mut self.unit_scale, image);
    }
}

/// Motion blur along an angle within 45 degrees of the horizontal.
#[derive(Clone)]
pub(crate) struct Motion(MotionBlur);

impl Motion {
    pub(crate) fn new(radius: f64, sigma: f64, size: Size) -> Self {
        Self(MotionBlur::new(radius, sigma, size, 3))
    }
}

impl Kernel for Motion {
    fn apply(&mut self, image: &mut [u8], random: &mut impl Random) {
        self.0.apply(image, random.uniform(-45.0, 45.0));
    }
}

/// Mean of the image and of its zooms.
#[derive(Clone)]
pub(crate) struct Zoom {
    zooms: Vec<CentralZoom>,
    image: Vec<f32>,
    sum: Vec<f32>,
}

impl Zoom {
    pub(crate) fn new((end, step): (f64, f64), size: Size) -> Self {
        let zooms = zoom_factors(end, step)
            .map(|factor| CentralZoom::new(size, factor))
            .collect();
        Self {
            zooms,
            image: Vec::new(),
            sum: Vec::new(),
        }
    }
}

/// 1, 1 + step, ... below `end`, with the count and the steps that floating-point ranges have in the recipe: the
/// nominal end is sometimes among them.
fn zoom_factors(end: f64, step: f64) -> impl Iterator<Item = f64> {
    let count = ((end - 1.0) / step).ceil() as u32;
    let step = (1.0 + step) - 1.0;
    (0..count).map(move |index| 1.0 + f64::from(index) * step)
}

impl Kernel for Zoom {
    fn apply(&mut self, image: &mut [u8], _: &mut impl Random) {
        self.image.clear();
        self.image
            .extend(image.iter().map(|&byte| (f64::from(byte) / 255.0) as f32));
        self.sum.clear();
        self.sum.resize(image.len(), 0.0);
        for zoom in &mut self.zooms {
            zoom.add_to(&self.image, &mut self.sum);
        }
        let count = (self.zooms.len() + 1) as f32;
        for ((byte, &value), &sum) in image.iter_mut().zip(&self.image).zip(&self.sum) {
            *byte = to_byte_f32((value + sum) / count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::ZOOM_BLUR;
    use crate::replay::{applied, picture};

    #[test]
    fn zoom_counts_follow_the_floating_point_ranges() {
        let counts =
            |ranges: [(f64, f64); 5]| ranges.map(|(end, step)| zoom_factors(end, step).count());
        assert_eq!(counts(ZOOM_BLUR.small), [7, 12, 16, 21, 26]);
        assert_eq!(counts(ZOOM_BLUR.large), [12, 16, 11, 13, 11]);
        let last = zoom_factors(1.26, 0.01).last().unwrap();
        assert!((last - 1.25).abs() < 1e-12);
    }

    #[test]
    fn zooming_by_one_alone_is_the_identity() {
        let size = Size::new(8, 8).unwrap();
        let before = picture(size, 1, 251);
        let image = applied(Zoom::new((1.005, 0.01), size), &before, 0);
        let once = |byte: &u8| ((f32::from(*byte) / 255.0) * 255.0) as u8;
        assert_eq!(image, before.iter().map(once).collect::<Vec<_>>());
    }

    #[test]
    fn glass_without_shifts_and_with_a_tiny_sigma_is_the_identity() {
        let size = Size::new(16, 16).unwrap();
        let before = picture(size, 7, 256);
        let image = applied(Glass::new((0.05, 1, 0), size), &before, 0);
        let twice = |byte: &u8| to_byte(f64::from(to_byte(f64::from(*byte) / 255.0)) / 255.0);
        assert_eq!(image, before.iter().map(twice).collect::<Vec<_>>());
    }
}
