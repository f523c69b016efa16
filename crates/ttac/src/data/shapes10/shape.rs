//! The outlines, as distances to them.

use super::paint::{Point, dot, length, minus};
use super::{Dice, SHAPES10_CLASSES};

/// What is drawn, in coordinates of its own: about one unit from the centre to the farthest points.
/// `distance` is negative inside; it is exact near the outline, which is all that matters.
pub(super) enum Shape {
    Disk {
        radius: f32,
    },
    Ring {
        radius: f32,
        half_width: f32,
    },
    Polygon {
        edges: [Edge; 10],
        count: usize,
    },
    Cross {
        arm: f32,
        half_width: f32,
    },
    /// A disk without another one.
    Crescent {
        bite: f32,
        offset: f32,
    },
    /// A square on its corner and two half disks.
    Heart,
    /// Half circles around two centres in turn.
    Spiral {
        half_width: f32,
    },
}

impl Shape {
    pub fn new(label: usize, dice: &mut Dice) -> Self {
        let polygon = |outline: &[Point]| {
            let edge =
                |i: usize| Edge::new(outline[i % outline.len()], outline[(i + 1) % outline.len()]);
            Self::Polygon {
                edges: std::array::from_fn(edge),
                count: outline.len(),
            }
        };
        match SHAPES10_CLASSES[label] {
            "disk" => Self::Disk { radius: 0.85 },
            "ring" => {
                let half_width = dice.uniform((0.12, 0.22));
                Self::Ring {
                    radius: 0.95 - half_width,
                    half_width,
                }
            }
            "square" => {
                let half = 0.75;
                polygon(&[[-half, -half], [half, -half], [half, half], [-half, half]])
            }
            "triangle" => polygon(&[[0.0, -1.0], [0.866, 0.5], [-0.866, 0.5]]),
            "star" => {
                // Sines and cosines of multiples of 36 degrees.
                const TIPS: [Point; 5] = [
                    [0.0, -1.0],
                    [0.951_056_5, -0.309_017],
                    [0.587_785_24, 0.809_017],
                    [-0.587_785_24, 0.809_017],
                    [-0.951_056_5, -0.309_017],
                ];
                let inner = dice.uniform((0.36, 0.48));
                let mut outline = [[0.0; 2]; 10];
                for i in 0..5 {
                    outline[2 * i] = TIPS[i].map(|x| 1.08 * x);
                    // The opposite tip, turned around, lies between two tips.
                    outline[2 * i + 1] = TIPS[(i + 3) % 5].map(|x| -inner * x);
                }
                polygon(&outline)
            }
            "cross" => Self::Cross {
                arm: 0.95,
                half_width: dice.uniform((0.2, 0.3)),
            },
            "crescent" => Self::Crescent {
                bite: dice.uniform((0.7, 0.8)),
                offset: dice.uniform((0.4, 0.55)),
            },
            "heart" => Self::Heart,
            "arrow" => {
                let shaft = dice.uniform((0.14, 0.22));
                let (neck, head) = (dice.uniform((-0.1, 0.2)), dice.uniform((0.55, 0.75)));
                polygon(&[
                    [1.0, 0.0],
                    [neck, head],
                    [neck, shaft],
                    [-1.0, shaft],
                    [-1.0, -shaft],
                    [neck, -shaft],
                    [neck, -head],
                ])
            }
            _ => Self::Spiral {
                half_width: dice.uniform((0.09, 0.12)),
            },
        }
    }

    pub fn distance(&self, p: Point) -> f32 {
        match self {
            Self::Disk { radius } => length(p) - radius,
            Self::Ring { radius, half_width } => (length(p) - radius).abs() - half_width,
            Self::Polygon { edges, count } => polygon_distance(&edges[..*count], p),
            Self::Cross { arm, half_width } => {
                box_distance(p, [*arm, *half_width]).min(box_distance(p, [*half_width, *arm]))
            }
            Self::Crescent { bite, offset } => {
                let [x, y] = p;
                let p = [x - 0.25, y];
                (length(p) - 0.95).max(bite - length([p[0] - offset, p[1]]))
            }
            Self::Heart => {
                // Side of the square 1; its corner points down, the disks sit on the upper sides.
                const HALF: f32 = 0.5;
                let diagonal = std::f32::consts::FRAC_1_SQRT_2;
                let [x, y] = [p[0].abs() * 0.95, (p[1] + 0.05) * 0.95];
                let turned = [diagonal * (x - y), diagonal * (x + y)];
                let square = box_distance(turned, [HALF, HALF]);
                let disk = length([turned[0] - HALF, turned[1]]) - HALF;
                square.min(disk)
            }
            Self::Spiral { half_width } => {
                let [x, y] = [p[0] + 0.2, p[1]];
                let (centre, radii) = if y < 0.0 {
                    (0.0, [0.2, 0.6])
                } else {
                    (0.2, [0.4, 0.8])
                };
                let away = length([x - centre, y]);
                let arc = |radius: f32| (away - radius).abs() - half_width;
                arc(radii[0]).min(arc(radii[1]))
            }
        }
    }
}

/// Distance to the box `[-a, a] x [-b, b]`.
fn box_distance([x, y]: Point, [a, b]: Point) -> f32 {
    let (x, y) = (x.abs() - a, y.abs() - b);
    length([x.max(0.0), y.max(0.0)]) + x.max(y).min(0.0)
}

/// One side of a polygon.
pub(super) struct Edge {
    from: Point,
    along: Point,
    /// One over the squared length.
    inverse: f32,
    /// Columns per row.
    slope: f32,
}

impl Edge {
    fn new(from: Point, to: Point) -> Self {
        let along = minus(to, from);
        Self {
            from,
            along,
            inverse: 1.0 / dot(along, along),
            slope: along[0] / along[1],
        }
    }
}

/// Distance to a closed polygon: that to the nearest edge, negative inside by the even-odd rule.
fn polygon_distance(edges: &[Edge], p: Point) -> f32 {
    let mut square = f32::MAX;
    let mut inside = false;
    for edge in edges {
        let away = minus(p, edge.from);
        let share = (dot(away, edge.along) * edge.inverse).clamp(0.0, 1.0);
        let off = minus(away, edge.along.map(|x| x * share));
        square = square.min(dot(off, off));
        let crosses = (away[1] < 0.0) != (away[1] < edge.along[1]);
        inside ^= crosses && away[0] < away[1] * edge.slope;
    }
    if inside {
        -square.sqrt()
    } else {
        square.sqrt()
    }
}
