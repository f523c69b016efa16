//! Deformation by radial basis functions: 125 control points move, the space between them follows.

use std::f64::consts::PI;

use super::pose::norm;
use super::{Cloud, Point};
use crate::random::Random;

/// Control points along an axis.
const SIDE: usize = 5;
const CONTROLS: usize = SIDE * SIDE * SIDE;
/// Unknowns: a weight for every control point and an affine map.
const UNKNOWNS: usize = CONTROLS + 4;
/// Square of the radius of the kernels.
const RADIUS_SQUARED: f64 = 0.25;

/// Which function of the distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Basis {
    /// sqrt(r^2 + 1/4).
    Multiquadric,
    /// 1 / sqrt(r^2 + 1/4).
    Inverse,
}

impl Basis {
    fn of(self, p: &Point, q: &Point) -> f64 {
        let [x, y, z] = std::array::from_fn(|axis| p[axis] - q[axis]);
        let root = (x * x + y * y + z * z + RADIUS_SQUARED).sqrt();
        match self {
            Self::Multiquadric => root,
            Self::Inverse => 1.0 / root,
        }
    }
}

/// Interpolation from the control points, `s(p) = sum of w_i phi(|p - q_i|) + c_0 + C p`, where `s(q_i)` is where control
/// point `q_i` moves and the weights are orthogonal to all affine maps.
pub(super) struct Radial {
    basis: Basis,
    /// Inverse of the symmetric matrix [[Phi, P], [P', 0]], which is the same for all clouds.
    inverse: Vec<f64>,
}

impl Radial {
    pub(super) fn new(basis: Basis) -> Self {
        let mut matrix = vec![0.0; UNKNOWNS * UNKNOWNS];
        for i in 0..CONTROLS {
            let p = control(i);
            for j in 0..CONTROLS {
                matrix[i * UNKNOWNS + j] = basis.of(&p, &control(j));
            }
            for (j, value) in affine(&p).into_iter().enumerate() {
                matrix[i * UNKNOWNS + CONTROLS + j] = value;
                matrix[(CONTROLS + j) * UNKNOWNS + i] = value;
            }
        }
        Self {
            basis,
            inverse: invert(matrix, UNKNOWNS),
        }
    }

    /// Every control point moves by length c in a direction of two random angles.
    pub(super) fn distort(&self, cloud: Cloud, c: f64, random: &mut impl Random) -> Cloud {
        let mut targets: [Point; CONTROLS] = std::array::from_fn(control);
        for target in &mut targets {
            let (sin_a, cos_a) = libm::sincos(random.uniform(-PI, PI));
            let (sin_g, cos_g) = libm::sincos(random.uniform(-PI, PI));
            target[0] += c * cos_a * sin_g;
            target[1] += c * sin_a * sin_g;
            target[2] += c * cos_g;
        }
        norm(self.interpolate(cloud, &targets))
    }

    fn interpolate(&self, mut cloud: Cloud, targets: &[Point; CONTROLS]) -> Cloud {
        let mut weights = [[0.0; 3]; UNKNOWNS];
        for (weight, row) in weights.iter_mut().zip(self.inverse.chunks_exact(UNKNOWNS)) {
            for (factor, target) in row.iter().zip(targets) {
                for axis in 0..3 {
                    weight[axis] += factor * target[axis];
                }
            }
        }
        let controls: [Point; CONTROLS] = std::array::from_fn(control);
        for point in &mut cloud {
            let near = controls.iter().map(|q| self.basis.of(point, q));
            let mut sum = [0.0; 3];
            for (value, weight) in near.chain(affine(point)).zip(&weights) {
                for axis in 0..3 {
                    sum[axis] += value * weight[axis];
                }
            }
            *point = sum;
        }
        cloud
    }
}

fn control(index: usize) -> Point {
    let place = |i: usize| i as f64 * 0.5 - 1.0;
    [index / (SIDE * SIDE), index / SIDE % SIDE, index % SIDE].map(place)
}

fn affine(&[x, y, z]: &Point) -> [f64; 4] {
    [1.0, x, y, z]
}

/// Gauss and Jordan with the largest pivot of each column, `[n, n]`.
fn invert(mut matrix: Vec<f64>, n: usize) -> Vec<f64> {
    let mut inverse = vec![0.0; n * n];
    for i in 0..n {
        inverse[i * n + i] = 1.0;
    }
    for column in 0..n {
        let size = |row: usize| matrix[row * n + column].abs();
        let pivot = (column..n).max_by(|&a, &b| size(a).total_cmp(&size(b)));
        let pivot = pivot.expect("columns are below n");
        for j in 0..n {
            matrix.swap(column * n + j, pivot * n + j);
            inverse.swap(column * n + j, pivot * n + j);
        }
        let scale = 1.0 / matrix[column * n + column];
        for j in 0..n {
            matrix[column * n + j] *= scale;
            inverse[column * n + j] *= scale;
        }
        for row in (0..n).filter(|&row| row != column) {
            let factor = matrix[row * n + column];
            for j in 0..n {
                matrix[row * n + j] -= factor * matrix[column * n + j];
                inverse[row * n + j] -= factor * inverse[column * n + j];
            }
        }
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_points_arrive_and_nothing_moved_is_the_identity() {
        for basis in [Basis::Multiquadric, Basis::Inverse] {
            let radial = Radial::new(basis);
            let controls: [Point; CONTROLS] = std::array::from_fn(control);
            let mut moved = controls;
            for (index, value) in moved.as_flattened_mut().iter_mut().enumerate() {
                *value += 0.1 * ((index * 7 % 11) as f64 / 5.0 - 1.0);
            }
            for targets in [controls, moved] {
                let found = radial.interpolate(controls.to_vec(), &targets);
                for (a, b) in found.as_flattened().iter().zip(targets.as_flattened()) {
                    assert!((a - b).abs() < 1e-9, "{basis:?}: {a} for {b}");
                }
            }
            let inside = vec![[0.1, -0.7, 0.33], [-0.95, 0.2, 0.01]];
            let same = radial.interpolate(inside.clone(), &controls);
            for (a, b) in inside.as_flattened().iter().zip(same.as_flattened()) {
                assert!((a - b).abs() < 1e-9, "{basis:?}");
            }
        }
    }
}
