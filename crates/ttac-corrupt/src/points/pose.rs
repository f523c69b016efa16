//! Linear maps of whole clouds. Points are rows: a map M takes p to p M.

use super::noise::sign;
use super::{Cloud, Point};
use crate::random::Random;

pub(super) type Matrix = [[f64; 3]; 3];

/// Moves the middle of the bounding box to the origin and makes its longest side 2.
///
/// A cloud whose points are all equal has no longest side; callers refuse it before they come here.
pub(super) fn norm(mut cloud: Cloud) -> Cloud {
    let mut low = [f64::INFINITY; 3];
    let mut high = [f64::NEG_INFINITY; 3];
    for point in &cloud {
        for axis in 0..3 {
            low[axis] = low[axis].min(point[axis]);
            high[axis] = high[axis].max(point[axis]);
        }
    }
    let longest = (0..3)
        .map(|axis| high[axis] - low[axis])
        .fold(0.0, f64::max);
    for point in &mut cloud {
        for axis in 0..3 {
            point[axis] = (point[axis] - f64::midpoint(high[axis], low[axis])) * (2.0 / longest);
        }
    }
    cloud
}

/// About each axis by U(c - 2.5, c + 2.5) degrees, one way or the other.
pub(super) fn rotation(cloud: Cloud, c: f64, random: &mut impl Random) -> Cloud {
    let mut angle = || (random.uniform(c - 2.5, c + 2.5) * sign(random)).to_radians();
    let turns = [about_x(angle()), about_y(angle()), about_z(angle())];
    norm(turns.iter().fold(cloud, map))
}

/// p [[1, 0, b], [d, 1, e], [f, 0, 1]], each of b, d, e, f from U(c - .05, c + .05), one way or the other.
pub(super) fn shear(cloud: Cloud, c: f64, random: &mut impl Random) -> Cloud {
    let mut lean = || random.uniform(c - 0.05, c + 0.05) * sign(random);
    let (b, d, e, f) = (lean(), lean(), lean(), lean());
    norm(map(cloud, &[[1.0, 0.0, b], [d, 1.0, e], [f, 0.0, 1.0]]))
}

pub(super) fn map(mut cloud: Cloud, matrix: &Matrix) -> Cloud {
    for point in &mut cloud {
        *point = times(*point, matrix);
    }
    cloud
}

/// p M.
pub(super) fn times(p: Point, matrix: &Matrix) -> Point {
    std::array::from_fn(|axis| {
        p[0] * matrix[0][axis] + p[1] * matrix[1][axis] + p[2] * matrix[2][axis]
    })
}

// The three turns as they stand in textbooks, for columns.

pub(super) fn about_x(angle: f64) -> Matrix {
    let (sin, cos) = libm::sincos(angle);
    [[1.0, 0.0, 0.0], [0.0, cos, -sin], [0.0, sin, cos]]
}

pub(super) fn about_y(angle: f64) -> Matrix {
    let (sin, cos) = libm::sincos(angle);
    [[cos, 0.0, sin], [0.0, 1.0, 0.0], [-sin, 0.0, cos]]
}

pub(super) fn about_z(angle: f64) -> Matrix {
    let (sin, cos) = libm::sincos(angle);
    [[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]]
}
