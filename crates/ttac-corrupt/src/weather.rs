//! Snow and fog. Frost has a file of its own.

use crate::corruptor::Kernel;
use crate::motion::MotionBlur;
use crate::parameters::SnowParameters;
use crate::pixel::to_byte;
use crate::random::Random;
use crate::size::Size;
use crate::zoom::CentralZoom;

/// Streaks of snow over a whitened image.
#[derive(Clone)]
pub(crate) struct Snow {
    parameters: SnowParameters,
    zoom: CentralZoom,
    motion: MotionBlur,
    noise: Vec<f64>,
    layer: Vec<u8>,
}

impl Snow {
    pub(crate) fn new(parameters: SnowParameters, size: Size) -> Self {
        let zoom = CentralZoom::new(size, parameters.zoom);
        let (radius, sigma) = parameters.motion;
        let motion = MotionBlur::new(radius, sigma, size, 1);
        Self {
            parameters,
            zoom,
            motion,
            noise: vec![0.0; size.pixels()],
            layer: vec![0; size.pixels()],
        }
    }
}

impl Kernel for Snow {
    fn apply(&mut self, image: &mut [u8], random: &mut impl Random) {
        let SnowParameters {
            threshold, blend, ..
        } = self.parameters;
        self.parameters.normals.fill(&mut self.noise, random);
        let layer = &mut self.layer;
        self.zoom.layer(&self.noise, |index, flake| {
            layer[index] = if flake < threshold { 0 } else { to_byte(flake) };
        });
        self.motion.apply(layer, random.uniform(-135.0, -45.0));

        let whitened = (1.0 - f64::from(blend)) as f32;
        let turned = layer.iter().rev();
        for ((pixel, &here), &there) in image.chunks_exact_mut(3).zip(layer.iter()).zip(turned) {
            let (here, there) = (f64::from(here) / 255.0, f64::from(there) / 255.0);
            let [red, green, blue] =
                [pixel[0], pixel[1], pixel[2]].map(|byte| f32::from(byte) / 255.0);
            let white = (0.299 * red + 0.587 * green + 0.114 * blue) * 1.5 + 0.5;
            for (byte, value) in pixel.iter_mut().zip([red, green, blue]) {
                let value = blend * value + whitened * value.max(white);
                *byte = to_byte(f64::from(value) + here + there);
            }
        }
    }
}

/// A plasma cloud, blended in so that the brightest value stays.
#[derive(Clone)]
pub(crate) struct Fog {
    amount: f64,
    cloud: Plasma,
    width: usize,
}

impl Fog {
    pub(crate) fn new((amount, decay): (f64, f64), size: Size) -> Self {
        let side = size.height.max(size.width).next_power_of_two();
        Self {
            amount,
            cloud: Plasma::new(side, decay),
            width: size.width,
        }
    }
}

impl Kernel for Fog {
    fn apply(&mut self, image: &mut [u8], random: &mut impl Random) {
        let (lowest, span) = self.cloud.generate(random);
        let brightest = f64::from(image.iter().copied().max().unwrap_or(0)) / 255.0;
        let whole = brightest + self.amount;
        let side = self.cloud.side;
        for (row, heights) in image
            .chunks_exact_mut(3 * self.width)
            .zip(self.cloud.heights.chunks_exact(side))
        {
            for (pixel, height) in row.chunks_exact_mut(3).zip(heights) {
                let fog = self.amount * ((height - lowest) / span);
                for byte in pixel {
                    *byte = to_byte((f64::from(*byte) / 255.0 + fog) * brightest / whole);
                }
            }
        }
    }
}

/// A cloud by the diamond-square algorithm on a torus.
#[derive(Clone)]
pub(crate) struct Plasma {
    pub(crate) side: usize,
    decay: f64,
    pub(crate) heights: Vec<f64>,
}

impl Plasma {
    pub(crate) fn new(side: usize, decay: f64) -> Self {
        Self {
            side,
            decay,
            heights: vec![0.0; side * side],
        }
    }

    /// Fills `heights` and returns the lowest and the span from it to the highest.
    pub(crate) fn generate(&mut self, random: &mut impl Random) -> (f64, f64) {
        let side = self.side;
        let heights = &mut self.heights;
        heights[0] = 0.0;
        let mut cell = side;
        let mut roughness = 100.0;
        while cell >= 2 {
            let half = cell / 2;
            // The amplitude is the square of the roughness: the recipe multiplies twice.
            let mut jitter =
                |sum: f64| sum / 4.0 + roughness * random.uniform(-roughness, roughness);
            let next = |index: usize| (index + cell) & (side - 1);
            let at = |row: usize, column: usize| row * side + column;
            for row in (0..side).step_by(cell) {
                for column in (0..side).step_by(cell) {
                    let left = heights[at(row, column)] + heights[at(next(row), column)];
                    let right =
                        heights[at(row, next(column))] + heights[at(next(row), next(column))];
                    heights[at(row + half, column + half)] = jitter(left + right);
                }
            }
            let before = |index: usize| (index + side - half) & (side - 1);
            for row in (0..side).step_by(cell) {
                for column in (half..side).step_by(cell) {
                    let centres =
                        heights[at(row + half, column)] + heights[at(before(row), column)];
                    let corners = heights[at(row, column - half)]
                        + heights[at(row, (column + half) & (side - 1))];
                    heights[at(row, column)] = jitter(centres + corners);
                }
            }
            for row in (half..side).step_by(cell) {
                for column in (0..side).step_by(cell) {
                    let centres =
                        heights[at(row, column + half)] + heights[at(row, before(column))];
                    let corners = heights[at(row - half, column)]
                        + heights[at((row + half) & (side - 1), column)];
                    heights[at(row, column)] = jitter(centres + corners);
                }
            }
            cell = half;
            roughness /= self.decay;
        }
        let lowest = heights.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = heights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (lowest, highest - lowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Replay;

    #[test]
    fn a_cloud_uses_its_whole_range() {
        let mut cloud = Plasma::new(16, 2.0);
        let (lowest, span) = cloud.generate(&mut Replay::new(5));
        let scaled: Vec<f64> = cloud
            .heights
            .iter()
            .map(|height| (height - lowest) / span)
            .collect();
        assert!(scaled.iter().all(|height| (0.0..=1.0).contains(height)));
        assert!(scaled.contains(&0.0) && scaled.contains(&1.0));
    }

    #[test]
    fn fog_on_a_black_image_stays_black() {
        let mut image = vec![0; 8 * 8 * 3];
        Fog::new((1.5, 1.75), Size::new(8, 8).unwrap()).apply(&mut image, &mut Replay::new(1));
        assert!(image.iter().all(|&byte| byte == 0));
    }
}
