//! Ten surfaces of triangles.

use ttac_corrupt::points::Mesh;

use super::super::dice::Dice;

/// Sides of what is round.
const ROUND: usize = 24;

/// The mesh of a class in a random pose. z is up.
pub(super) fn mesh(class: usize, dice: &mut Dice) -> Mesh {
    let mut mesh = match class {
        0 => turned(ROUND, &half_circle(1.0, 0.0)),
        1 => extruded(&circle(4).collect::<Vec<_>>(), [0.0, 0.0]),
        2 => turned(ROUND, &[[0.0, -1.0], [1.0, -1.0], [1.0, 1.0], [0.0, 1.0]]),
        3 => turned(ROUND, &[[0.0, -1.0], [1.0, -1.0], [0.0, 1.0]]),
        4 => {
            let thin = dice.uniform(0.2, 0.45);
            let ring: Vec<[f64; 2]> = circle(12)
                .map(|[x, y]| [1.0 - thin + thin * x, thin * y])
                .collect();
            // The profile closes: its first point comes again.
            turned(ROUND, &[&ring[..], &ring[..1]].concat())
        }
        5 => turned(4, &[[0.0, -1.0], [1.0, -1.0], [0.0, 1.0]]),
        6 => {
            let long = dice.uniform(0.6, 1.2);
            turned(ROUND, &half_circle(0.6, long))
        }
        7 => {
            let inner = dice.uniform(0.35, 0.5);
            let star = circle(10).enumerate().map(|(i, [x, y])| {
                let radius = if i % 2 == 0 { 1.0 } else { inner };
                [radius * x, radius * y]
            });
            extruded(&star.collect::<Vec<_>>(), [0.0, 0.0])
        }
        8 => stairs(2 + dice.below(3)),
        _ => {
            let waist = dice.uniform(0.1, 0.35);
            turned(
                ROUND,
                &[
                    [0.0, -1.0],
                    [1.0, -1.0],
                    [waist, 0.0],
                    [1.0, 1.0],
                    [0.0, 1.0],
                ],
            )
        }
    };
    pose(&mut mesh, dice);
    mesh
}

/// Points of the unit circle at equal distances, counter-clockwise from (1, 0); 4, 10, 12 or 24 of them. Cosine and sine of
/// the first are roots of whole numbers, the others follow by turning.
fn circle(sides: usize) -> impl Iterator<Item = [f64; 2]> {
    let cos = match sides {
        4 => 0.0,
        10 => (1.0 + 5_f64.sqrt()) / 4.0,
        12 => 3_f64.sqrt() / 2.0,
        24 => (6_f64.sqrt() + 2_f64.sqrt()) / 4.0,
        _ => unreachable!("no circle of {sides} points is drawn"),
    };
    let sin = (1.0_f64 - cos * cos).sqrt();
    let turn = move |&[x, y]: &[f64; 2]| Some([x * cos - y * sin, x * sin + y * cos]);
    std::iter::successors(Some([1.0, 0.0]), turn).take(sides)
}

/// The outline (radius, z) of a ball of a radius, cut at its middle and pulled apart by twice `apart`; from below.
fn half_circle(radius: f64, apart: f64) -> Vec<[f64; 2]> {
    let round: Vec<[f64; 2]> = circle(ROUND).take(ROUND / 4 + 1).collect();
    let upper = round.iter().map(|[x, y]| [radius * x, radius * y + apart]);
    let lower = round
        .iter()
        .rev()
        .map(|[x, y]| [radius * x, -radius * y - apart]);
    // At apart = 0 the middle is there twice, which makes triangles without area that nobody sees.
    lower.chain(upper).collect()
}

/// The surface that a profile (radius, z) leaves when it is turned about the z axis.
fn turned(sides: usize, profile: &[[f64; 2]]) -> Mesh {
    let round: Vec<[f64; 2]> = circle(sides).collect();
    let mut mesh = Mesh::default();
    for [radius, z] in profile {
        let ring = round.iter().map(|[x, y]| [radius * x, radius * y, *z]);
        mesh.vertices
            .extend(ring.map(|point| point.map(|value| value as f32)));
    }
    for step in 0..profile.len() as u32 - 1 {
        for side in 0..sides as u32 {
            let next = (side + 1) % sides as u32;
            let [a, b] = [side, next].map(|side| step * sides as u32 + side);
            let [c, d] = [a, b].map(|corner| corner + sides as u32);
            mesh.faces.extend([[a, b, d], [a, d, c]]);
        }
    }
    mesh
}

/// A prism from z = -1 to 1 on a polygon, all of which can be seen from `centre`.
fn extruded(polygon: &[[f64; 2]], centre: [f64; 2]) -> Mesh {
    let mut mesh = Mesh::default();
    let corners = polygon.len() as u32;
    for z in [-1.0, 1.0] {
        for [x, y] in polygon.iter().chain([&centre]) {
            mesh.vertices.push([*x, *y, z].map(|value| value as f32));
        }
    }
    let upper = corners + 1;
    for corner in 0..corners {
        let next = (corner + 1) % corners;
        mesh.faces.extend([
            [corner, next, corners],
            [upper + corner, upper + next, upper + corners],
            [corner, next, upper + next],
            [corner, upper + next, upper + corner],
        ]);
    }
    mesh
}

/// Steps up to a wall, seen from the side and made as wide as high.
fn stairs(steps: usize) -> Mesh {
    let height = |i: usize| 2.0 * i as f64 / steps as f64 - 1.0;
    let mut outline = vec![[-1.0, -1.0]];
    for step in 0..steps {
        let right = -height(step);
        outline.extend([[right, height(step)], [right, height(step + 1)]]);
    }
    outline.push([-1.0, 1.0]);
    let mut mesh = extruded(&outline, [-1.0, -1.0]);
    // The outline was drawn lying; now it stands.
    for [_, y, z] in &mut mesh.vertices {
        (*y, *z) = (-*z, *y);
    }
    mesh
}

/// Random proportions, a turn about the vertical and a lean.
fn pose(mesh: &mut Mesh, dice: &mut Dice) {
    let scale: [f64; 3] = std::array::from_fn(|_| dice.uniform(0.55, 1.0));
    let [cos, sin] = dice.direction();
    let lean: [f64; 2] = std::array::from_fn(|_| dice.uniform(-0.3, 0.3));
    for vertex in &mut mesh.vertices {
        let [x, y, z]: [f64; 3] = std::array::from_fn(|axis| scale[axis] * f64::from(vertex[axis]));
        let (x, y) = (x * cos - y * sin, x * sin + y * cos);
        *vertex = [x + lean[0] * z, y + lean[1] * z, z].map(|value| value as f32);
    }
}

/// Points spread evenly over a surface, `[points, 3]`, with y up: (-x, z, y) of the mesh.
pub(super) fn sample(mesh: &Mesh, points: usize, dice: &mut Dice) -> Vec<f32> {
    let corner = |index: u32| mesh.vertices[index as usize].map(f64::from);
    let mut total = 0.0;
    let up_to: Vec<f64> = mesh
        .faces
        .iter()
        .map(|&[a, b, c]| {
            total += area(corner(a), corner(b), corner(c));
            total
        })
        .collect();
    let mut cloud = Vec::with_capacity(3 * points);
    for _ in 0..points {
        let place = dice.unit() * total;
        let face = up_to
            .partition_point(|&end| end <= place)
            .min(up_to.len() - 1);
        let [a, b, c] = mesh.faces[face].map(corner);
        // Evenly in a triangle: a square root for the distance from the first corner.
        let (root, along) = (dice.unit().sqrt(), dice.unit());
        let weights = [1.0 - root, root * (1.0 - along), root * along];
        let [x, y, z]: [f64; 3] = std::array::from_fn(|axis| {
            weights[0] * a[axis] + weights[1] * b[axis] + weights[2] * c[axis]
        });
        cloud.extend([-x, z, y].map(|value| value as f32));
    }
    cloud
}

fn area(a: [f64; 3], b: [f64; 3], c: [f64; 3]) -> f64 {
    let [u, v]: [[f64; 3]; 2] = [b, c].map(|p| std::array::from_fn(|axis| p[axis] - a[axis]));
    let cross = [
        u[1] * v[2] - u[2] * v[1],
        u[2] * v[0] - u[0] * v[2],
        u[0] * v[1] - u[1] * v[0],
    ];
    0.5 * (cross[0] * cross[0] + cross[1] * cross[1] + cross[2] * cross[2]).sqrt()
}
