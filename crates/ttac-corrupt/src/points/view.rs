//! Occlusion and LiDAR: what one viewpoint shows of a surface, by a depth image of 1080 x 720 pixels.

use std::f64::consts::PI;

use super::mesh::{Mesh, MeshProblem};
use super::noise::choose;
use super::pose::{Matrix, about_x, about_y, about_z, map, norm, times};
use super::{Cloud, Point};
use crate::Severity;
use crate::random::Random;

const WIDTH: usize = 1080;
const HEIGHT: usize = 720;
/// Pixels for one unit at distance one.
const FOCAL: f64 = 365.0;
/// The pixel that looks straight ahead. Centres of pixels are whole numbers.
const MIDDLE: [f64; 2] = [WIDTH as f64 / 2.0 - 0.5, HEIGHT as f64 / 2.0 - 0.5];

/// A pinhole camera that looks at the origin.
///
/// A point p of the world is (p - position) R in the camera, whose third axis looks ahead; the recipe writes the same
/// for columns, R' (p - position).
struct Camera {
    turn: Matrix,
    position: Point,
}

impl Camera {
    /// R = Rz(azimuth) Rx(tilt), at a distance from the origin.
    fn new(azimuth: f64, tilt: f64, distance: f64) -> Self {
        let (around, down) = (about_z(azimuth), about_x(tilt));
        let turn: Matrix = std::array::from_fn(|row| times(around[row], &down));
        let position = std::array::from_fn(|row| -distance * turn[row][2]);
        Self { turn, position }
    }

    fn see(&self, p: &Point) -> Point {
        times(
            std::array::from_fn(|axis| p[axis] - self.position[axis]),
            &self.turn,
        )
    }

    /// Where in the world a pixel at a depth lies.
    fn back(&self, column: usize, row: usize, depth: f64) -> Point {
        let seen = [
            (column as f64 - MIDDLE[0]) / FOCAL * depth,
            (row as f64 - MIDDLE[1]) / FOCAL * depth,
            depth,
        ];
        std::array::from_fn(|axis| {
            let [x, y, z] = self.turn[axis];
            self.position[axis] + x * seen[0] + y * seen[1] + z * seen[2]
        })
    }

    /// The points of the surface that lie on the rays through the pixels, nothing before them; by rows.
    ///
    /// The mesh lies in [-1, 1]^3 and the camera at least 3 away, so that everything is before the camera and within
    /// the image.
    fn render(&self, vertices: &[Point], faces: &[[u32; 3]]) -> Cloud {
        // Nearness is 1 / depth, which is linear in the pixels of a triangle. Nothing is infinitely far.
        let mut nearness = vec![0.0; WIDTH * HEIGHT];
        let seen: Vec<Point> = vertices
            .iter()
            .map(|vertex| {
                let [x, y, z] = self.see(vertex);
                [
                    FOCAL * x / z + MIDDLE[0],
                    FOCAL * y / z + MIDDLE[1],
                    1.0 / z,
                ]
            })
            .collect();
        for face in faces {
            draw(face.map(|corner| seen[corner as usize]), &mut nearness);
        }
        let hits = nearness.iter().enumerate().filter(|(_, near)| **near > 0.0);
        hits.map(|(pixel, near)| self.back(pixel % WIDTH, pixel / WIDTH, 1.0 / near))
            .collect()
    }
}

/// Draws a triangle of corners (column, row, nearness) where it is nearer than what is there. A pixel belongs to it if
/// its centre does, the rim included: neighbours leave no gap between them, and drawing a pixel twice does no harm.
fn draw([a, b, c]: [Point; 3], nearness: &mut [f64]) {
    let area = (b[0] - a[0]) * (c[1] - a[1]) - (c[0] - a[0]) * (b[1] - a[1]);
    if area == 0.0 {
        return; // seen edge on
    }
    let range = |axis: usize, limit: usize| {
        let low = a[axis].min(b[axis]).min(c[axis]).ceil().max(0.0) as usize;
        let high = a[axis]
            .max(b[axis])
            .max(c[axis])
            .floor()
            .min(limit as f64 - 1.0);
        low..(high + 1.0).max(0.0) as usize
    };
    for row in range(1, HEIGHT) {
        for column in range(0, WIDTH) {
            let (x, y) = (column as f64, row as f64);
            let share = |p: Point, q: Point| {
                ((q[0] - p[0]) * (y - p[1]) - (x - p[0]) * (q[1] - p[1])) / area
            };
            let (of_c, of_a) = (share(a, b), share(b, c));
            let of_b = 1.0 - of_a - of_c;
            if of_a >= 0.0 && of_b >= 0.0 && of_c >= 0.0 {
                let near = of_a * a[2] + of_b * b[2] + of_c * c[2];
                let pixel = &mut nearness[row * WIDTH + column];
                *pixel = f64::max(*pixel, near);
            }
        }
    }
}

/// What a depth camera sees from one of five sides and from above, `points` points of it.
pub(super) fn occlusion(
    mesh: &Mesh,
    side: Severity,
    points: usize,
    random: &mut impl Random,
) -> Result<Cloud, MeshProblem> {
    let tilt = random.uniform(PI * 2.0 / 3.0, PI * 5.0 / 6.0);
    let camera = Camera::new(azimuth(side, random), tilt, 3.0);
    let seen = look(mesh, &camera, points, random)?;
    Ok(norm(upright(seen)))
}

/// What a scanner sees from one of five sides: its rays lie on cones of one degree's distance, so that a surface shows as
/// rings. Three quarters of `points` points, drawn with replacement.
pub(super) fn lidar(
    mesh: &Mesh,
    side: Severity,
    points: usize,
    random: &mut impl Random,
) -> Result<Cloud, MeshProblem> {
    let camera = Camera::new(azimuth(side, random), PI * 5.0 / 8.0, 5.0);
    let seen = look(mesh, &camera, points, random)?;
    let rings = rings(seen, &camera.position);
    if rings.is_empty() {
        return Err(MeshProblem::EmptyDepth);
    }
    let drawn = (0..points * 3 / 4).map(|_| rings[random.below(rings.len())]);
    Ok(upright(drawn.collect()))
}

/// U((2 s - 1) pi / 5, (2 s + 1) pi / 5) for side s.
fn azimuth(side: Severity, random: &mut impl Random) -> f64 {
    let middle = 2.0 * PI * f64::from(side.get()) / 5.0;
    random.uniform(middle - PI / 5.0, middle + PI / 5.0)
}

/// `points` of the points a camera sees of a mesh. The recipe shuffles them, then keeps every so-many-th: that is a
/// random choice. If there are too few, they are drawn with replacement.
fn look(
    mesh: &Mesh,
    camera: &Camera,
    points: usize,
    random: &mut impl Random,
) -> Result<Cloud, MeshProblem> {
    let seen = camera.render(&norm(mesh.checked()?), &mesh.faces);
    if seen.is_empty() {
        return Err(MeshProblem::EmptyDepth);
    }
    if seen.len() < points {
        return Ok((0..points)
            .map(|_| seen[random.below(seen.len())])
            .collect());
    }
    let chosen = choose(seen.len(), points, random);
    Ok(chosen.into_iter().map(|index| seen[index]).collect())
}

/// Points by their angle from the vertical through the scanner, in steps of one degree from the smallest: those in the
/// middle half of a step are moved to its middle, the others are dropped.
fn rings(seen: Cloud, scanner: &Point) -> Cloud {
    let polar: Vec<[f64; 3]> = seen
        .into_iter()
        .map(|point| {
            let [x, y, z]: Point = std::array::from_fn(|axis| point[axis] - scanner[axis]);
            let flat = x * x + y * y;
            [
                (flat + z * z).sqrt(),
                libm::atan2(flat.sqrt(), z),
                libm::atan2(y, x),
            ]
        })
        .collect();
    let first = polar.iter().map(|p| p[1]).fold(f64::INFINITY, f64::min);
    let step = 1.0_f64.to_radians();
    // Ring by ring, as the recipe goes through them, and in the old order within a ring.
    let mut by_ring: Vec<(u32, Point)> = Vec::new();
    for [radius, angle, around] in polar {
        let steps = (angle - first) / step;
        let ring = steps.floor();
        if (0.25..0.75).contains(&(steps - ring)) {
            let (sin_angle, cos_angle) = libm::sincos(first + (ring + 0.5) * step);
            let (sin_around, cos_around) = libm::sincos(around);
            let point = [
                scanner[0] + radius * sin_angle * cos_around,
                scanner[1] + radius * sin_angle * sin_around,
                scanner[2] + radius * cos_angle,
            ];
            by_ring.push((ring as u32, point));
        }
    }
    by_ring.sort_by_key(|(ring, _)| *ring);
    by_ring.into_iter().map(|(_, point)| point).collect()
}

/// Meshes of ModelNet40 stand on the xy plane, its clouds do not: p Rx(-pi/2) Ry(0) Rz(pi).
fn upright(cloud: Cloud) -> Cloud {
    let turns = [about_x(-PI / 2.0), about_y(0.0), about_z(PI)];
    turns.iter().fold(cloud, map)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn square(z: f32) -> Mesh {
        Mesh {
            vertices: vec![
                [-1.0, -1.0, z],
                [1.0, -1.0, z],
                [1.0, 1.0, z],
                [-1.0, 1.0, z],
            ],
            faces: vec![[0, 1, 2], [0, 2, 3]],
        }
    }

    #[test]
    fn a_square_seen_from_above_has_its_area_and_its_depth() {
        // Tilted by half a turn the camera looks straight down from z = 3.
        let camera = Camera::new(0.3, PI, 3.0);
        assert!((camera.position[2] - 3.0).abs() < 1e-12);
        let mesh = square(0.0);
        let seen = camera.render(&mesh.checked().unwrap(), &mesh.faces);
        let expected = (2.0 * FOCAL / 3.0).powi(2);
        assert!(
            (seen.len() as f64 / expected - 1.0).abs() < 0.01,
            "{} pixels",
            seen.len()
        );
        for [x, y, z] in seen {
            assert!(z.abs() < 1e-9 && x.abs() <= 1.0 + 1e-9 && y.abs() <= 1.0 + 1e-9);
        }
    }

    #[test]
    fn what_lies_behind_is_hidden_in_either_order() {
        let (near, far) = (square(0.5), square(-0.5));
        let camera = Camera::new(1.0, PI, 3.0);
        for (first, second) in [(&near, &far), (&far, &near)] {
            let mut mesh = first.clone();
            mesh.vertices.extend(&second.vertices);
            mesh.faces.extend([[4, 5, 6], [4, 6, 7]]);
            let seen = camera.render(&mesh.checked().unwrap(), &mesh.faces);
            // The near one is larger in the image and covers all of the far one.
            assert!(seen.iter().all(|point| (point[2] - 0.5).abs() < 1e-9));
        }
    }

    #[test]
    fn rings_lie_on_cones_of_one_degree() {
        let cloud: Cloud = (0..500)
            .map(|i| {
                [
                    0.3,
                    f64::from(i) * 0.001 - 0.25,
                    f64::from(i * 37 % 500) * 0.004 - 1.0,
                ]
            })
            .collect();
        let scanner = [3.0, 2.0, 1.5];
        let kept = rings(cloud.clone(), &scanner);
        assert!(
            kept.len() > 200 && kept.len() < 300,
            "{} of 500",
            kept.len()
        );
        let mut angles: Vec<f64> = kept
            .iter()
            .map(|p| libm::atan2((p[0] - 3.0).hypot(p[1] - 2.0), p[2] - 1.5).to_degrees())
            .collect();
        angles.sort_by(f64::total_cmp);
        for pair in angles.windows(2) {
            let apart = pair[1] - pair[0];
            assert!((apart - apart.round()).abs() < 1e-9);
        }
    }
}
