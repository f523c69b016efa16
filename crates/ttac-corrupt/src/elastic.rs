use std::ops::{Mul, Sub};

use crate::corruptor::Kernel;
use crate::gaussian::Gaussian;
use crate::pixel::{Border, to_byte_f32};
use crate::random::Random;
use crate::size::Size;

/// A random affine map, then a random smooth displacement.
#[derive(Clone)]
pub(crate) struct Elastic {
    /// How far each of three points may move, in pixels.
    affine: f64,
    amplitude: f64,
    smooth: Gaussian,
    size: Size,
    image: Vec<f32>,
    moved: Vec<f32>,
    across: Vec<f64>,
    down: Vec<f64>,
}

impl Elastic {
    pub(crate) fn new((amplitude, sigma, affine): (f64, f64, f64), size: Size) -> Self {
        let smooth = Gaussian::new(sigma, 3.0, Border::Reflect, size, 1);
        let (image, moved) = (Vec::new(), vec![0.0; size.bytes()]);
        let (across, down) = (vec![0.0; size.pixels()], vec![0.0; size.pixels()]);
        Self {
            affine,
            amplitude,
            smooth,
            size,
            image,
            moved,
            across,
            down,
        }
    }

    /// The map from output to input that takes three points around the centre to their displaced places.
    fn affine_map(&self, random: &mut impl Random) -> Affine {
        let Size { height, width } = self.size;
        // The recipe has the image's height where x belongs, which matters only for images that are not square.
        let centre = [(height / 2) as f64, (width / 2) as f64];
        let reach = (self.size.shorter() / 3) as f64;
        let source = [
            [centre[0] + reach, centre[1] + reach],
            [centre[0] + reach, centre[1] - reach],
            [centre[0] - reach, centre[1] - reach],
        ];
        let target = source.map(|point| {
            point.map(|coordinate| {
                let moved = coordinate as f32 + random.uniform(-self.affine, self.affine) as f32;
                f64::from(moved)
            })
        });
        Affine::taking(source, target).inverted()
    }
}

/// x' = a x + b y + c and y' = d x + e y + f
#[derive(Clone, Copy, Debug)]
struct Affine([[f64; 3]; 2]);

impl Affine {
    /// The map that takes each source point to its target. The corners of a right angle along the axes make it short.
    fn taking(source: [[f64; 2]; 3], target: [[f64; 2]; 3]) -> Self {
        let [_, corner, _] = source;
        let side_x = corner[0] - source[2][0];
        let side_y = source[0][1] - corner[1];
        let row = |axis: usize| {
            let along_x = (target[1][axis] - target[2][axis]) / side_x;
            let along_y = (target[0][axis] - target[1][axis]) / side_y;
            [
                along_x,
                along_y,
                target[1][axis] - along_x * corner[0] - along_y * corner[1],
            ]
        };
        Self([row(0), row(1)])
    }

    fn inverted(self) -> Self {
        let [[a, b, c], [d, e, f]] = self.0;
        let determinant = a * e - b * d;
        let scale = if determinant == 0.0 {
            0.0
        } else {
            1.0 / determinant
        };
        let (a, b, d, e) = (e * scale, -b * scale, -d * scale, a * scale);
        Self([[a, b, -a * c - b * f], [d, e, -d * c - e * f]])
    }
}

/// Bits of the fraction of a pixel that the recipe's library keeps in an affine map.
const FRACTION_BITS: u32 = 5;
/// Bits of the fraction with which it adds up coordinates.
const COORDINATE_BITS: u32 = 10;

/// Returns the places of the four pixels around a point, from the starts of two rows and two columns.
fn corners(row: impl Fn(isize) -> usize, column: impl Fn(isize) -> usize) -> [usize; 4] {
    [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(down, across)| row(down) + column(across))
}

/// Returns the weights of the same pixels, from the distances of the point to the first of them.
fn weights<T>(right: T, below: T) -> [T; 4]
where
    T: Copy + From<u8> + Sub<Output = T> + Mul<Output = T>,
{
    let one = T::from(1);
    [
        (one - below) * (one - right),
        (one - below) * right,
        below * (one - right),
        below * right,
    ]
}

/// Warps an image bilinearly, with coordinates in units of 1/32 pixel.
fn warp(image: &[f32], Affine([x_row, y_row]): Affine, size: Size, out: &mut [f32]) {
    let Size { height, width } = size;
    let fixed = |value: f64| (value * f64::from(1 << COORDINATE_BITS)).round_ties_even() as i64;
    let half = 1 << (COORDINATE_BITS - FRACTION_BITS - 1);
    let whole = |coordinate: i64| (coordinate >> FRACTION_BITS) as isize;
    let fraction = |coordinate: i64| {
        (coordinate & ((1 << FRACTION_BITS) - 1)) as f32 / (1 << FRACTION_BITS) as f32
    };
    for y in 0..height {
        let start = |row: [f64; 3]| fixed(row[1] * y as f64 + row[2]) + half;
        let (x_start, y_start) = (start(x_row), start(y_row));
        for x in 0..width {
            let at = |start: i64, slope: f64| {
                (start + fixed(slope * x as f64)) >> (COORDINATE_BITS - FRACTION_BITS)
            };
            let (x_at, y_at) = (at(x_start, x_row[0]), at(y_start, y_row[0]));
            let (right, below) = (fraction(x_at), fraction(y_at));
            let column = |step: isize| Border::Reflect101.index(whole(x_at) + step, width);
            let row = |step: isize| Border::Reflect101.index(whole(y_at) + step, height) * width;
            let (corners, weights) = (corners(row, column), weights(right, below));
            for channel in 0..3 {
                let value = |corner: usize| image[3 * corners[corner] + channel] * weights[corner];
                out[3 * (y * width + x) + channel] = value(0) + value(1) + value(2) + value(3);
            }
        }
    }
}

impl Kernel for Elastic {
    fn apply(&mut self, image: &mut [u8], random: &mut impl Random) {
        let map = self.affine_map(random);
        self.image.clear();
        self.image
            .extend(image.iter().map(|&byte| f32::from(byte) / 255.0));
        warp(&self.image, map, self.size, &mut self.moved);
        for field in [&mut self.across, &mut self.down] {
            field.fill_with(|| random.uniform(-1.0, 1.0));
            // Amplitude and sigma are zero together.
            if self.amplitude > 0.0 {
                self.smooth.apply(field);
            }
            for value in field {
                *value = f64::from((*value * self.amplitude) as f32);
            }
        }

        let Size { height, width } = self.size;
        for y in 0..height {
            for x in 0..width {
                let pixel = y * width + x;
                let (to_x, to_y) = (x as f64 + self.across[pixel], y as f64 + self.down[pixel]);
                let (left, top) = (to_x.floor(), to_y.floor());
                let (right, below) = (to_x - left, to_y - top);
                let column = |step: isize| Border::Reflect.index(left as isize + step, width);
                let row = |step: isize| Border::Reflect.index(top as isize + step, height) * width;
                let (corners, weights) = (corners(row, column), weights(right, below));
                for channel in 0..3 {
                    let value = |corner: usize| {
                        f64::from(self.moved[3 * corners[corner] + channel]) * weights[corner]
                    };
                    image[3 * pixel + channel] =
                        to_byte_f32((value(0) + value(1) + value(2) + value(3)) as f32);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::{applied, picture};

    #[test]
    fn an_affine_map_takes_the_points_to_their_targets() {
        let source = [[26.0, 26.0], [26.0, 6.0], [6.0, 6.0]];
        let target = [[27.5, 25.0], [25.0, 7.25], [5.5, 4.0]];
        let Affine(rows) = Affine::taking(source, target);
        let back = Affine(rows).inverted();
        for (from, to) in source.into_iter().zip(target) {
            for axis in 0..2 {
                let forth = |[x, y]: [f64; 2], row: [f64; 3]| row[0] * x + row[1] * y + row[2];
                assert!((forth(from, rows[axis]) - to[axis]).abs() < 1e-12);
                assert!((forth(to, back.0[axis]) - from[axis]).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn nothing_moves_without_amplitude_and_reach() {
        let size = Size::new(12, 10).unwrap();
        let before = picture(size, 3, 256);
        let image = applied(Elastic::new((0.0, 0.0, 0.0), size), &before, 3);
        let once = |byte: &u8| to_byte_f32(f32::from(*byte) / 255.0);
        assert_eq!(image, before.iter().map(once).collect::<Vec<_>>());
    }
}
