//! `shapes10`: ten shapes drawn by code, any number of them, no download.
//!
//! An image is 32 x 32 RGB: a shape in a random pose, colour and texture, before a textured background
//! with clutter, partly covered. Sample `i` of a split is a function of seed, split and `i` alone, so
//! sets of different sizes share their beginnings and samples can be made in any order. Every ten
//! samples in a row hold every class once.
//!
//! Drawing uses `+ - * /`, `sqrt` and `floor` in `f32`, which are exact to the last bit everywhere:
//! the set is the same on every machine.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::{Batch, Dataset, Images, SampleId, Samples, Split};
use crate::Result;

/// Names of the ten classes, in the order of the labels.
pub const SHAPES10_CLASSES: [&str; 10] = [
    "disk", "ring", "square", "triangle", "star", "cross", "crescent", "heart", "arrow", "spiral",
];

const SIDE: usize = 32;
const BYTES: usize = SIDE * SIDE * 3;
const CLASSES: usize = SHAPES10_CLASSES.len();

/// Everything that decides how hard the set is. Lengths are pixels, colours lie in `[0, 1]`.
mod difficulty {
    /// From the centre of a shape to its farthest points.
    pub const RADIUS: (f32, f32) = (6.5, 12.5);
    /// The same for the spiral, whose arms would run together.
    pub const SPIRAL_RADIUS: (f32, f32) = (9.5, 13.5);
    /// How far the centre may lie from that of the image, in each direction.
    pub const SHIFT: f32 = 6.0;
    /// Longer over shorter axis.
    pub const STRETCH: (f32, f32) = (1.0, 1.5);
    /// Distance in RGB between the mean colours of shape and background.
    pub const CONTRAST: (f32, f32) = (0.2, 0.65);
    /// Distance in RGB between the two colours of a texture.
    pub const SHAPE_TEXTURE: (f32, f32) = (0.05, 0.4);
    pub const BACKGROUND_TEXTURE: (f32, f32) = (0.1, 0.45);
    /// Pieces of clutter behind the shape, and their half widths and lengths.
    pub const CLUTTER: (u32, u32) = (2, 5);
    pub const CLUTTER_WIDTH: (f32, f32) = (0.7, 2.5);
    pub const CLUTTER_LENGTH: (f32, f32) = (0.0, 14.0);
    /// How often a bar lies over the shape, and its half width.
    pub const OCCLUSION: f32 = 0.6;
    pub const OCCLUSION_WIDTH: (f32, f32) = (0.7, 2.2);
    /// Half width of the soft edge of everything drawn.
    pub const SOFTNESS: (f32, f32) = (0.5, 0.9);
    /// Light falls off over the image by up to this factor.
    pub const SHADE: f32 = 0.3;
    /// Half width of the uniform noise on every byte.
    pub const NOISE: f32 = 0.04;
}

/// A split of `shapes10`. Takes no memory: samples are drawn when asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shapes10 {
    split: Split,
    count: usize,
    seed: u64,
}

impl Shapes10 {
    /// Samples of the training split where nobody asks for another number.
    pub const TRAIN: usize = 50_000;
    /// Samples of the test split where nobody asks for another number.
    pub const TEST: usize = 10_000;

    /// The first `count` samples of a split.
    pub fn new(split: Split, count: usize, seed: u64) -> Self {
        Self { split, count, seed }
    }

    /// The split in its usual size, seed 0.
    pub fn standard(split: Split) -> Self {
        let count = match split {
            Split::Train => Self::TRAIN,
            Split::Test => Self::TEST,
        };
        Self::new(split, count, 0)
    }

    /// The class of a sample: one of a random order of all classes for every ten samples.
    pub fn label(&self, id: SampleId) -> usize {
        let (block, place) = (id / CLASSES as u64, id as usize % CLASSES);
        let mut dice = Dice::new(self.seed, self.split, b"labels..", block);
        let mut order: [usize; CLASSES] = std::array::from_fn(|class| class);
        for last in (1..CLASSES).rev() {
            order.swap(last, dice.below(last as u32 + 1) as usize);
        }
        order[place]
    }

    /// Draws a sample, `[32, 32, 3]`.
    fn draw(&self, id: SampleId, label: usize, pixels: &mut [u8]) {
        let mut dice = Dice::new(self.seed, self.split, b"drawings", id);
        draw(label, &mut dice, pixels);
    }
}

impl Dataset for Shapes10 {
    fn name(&self) -> &'static str {
        "shapes10"
    }

    fn len(&self) -> usize {
        self.count
    }

    fn classes(&self) -> Vec<String> {
        SHAPES10_CLASSES.map(str::to_owned).to_vec()
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let mut pixels = vec![0; ids.len() * BYTES];
        let mut labels = vec![0; ids.len()];
        ids.par_iter()
            .zip(pixels.par_chunks_exact_mut(BYTES))
            .zip(&mut labels)
            .for_each(|((&id, pixels), label)| {
                assert!((id as usize) < self.count, "{id} of {} samples", self.count);
                *label = self.label(id);
                self.draw(id, *label, pixels);
            });
        Ok(Batch {
            samples: Samples {
                ids: ids.to_vec(),
                images: Images {
                    height: SIDE,
                    width: SIDE,
                    pixels,
                },
            },
            labels,
        })
    }
}

/// The random numbers of one sample.
struct Dice(ChaCha8Rng);

impl Dice {
    fn new(seed: u64, split: Split, purpose: &[u8; 8], index: u64) -> Self {
        let mut key = *b"ttac shapes10 1.................";
        key[15] = match split {
            Split::Train => 0,
            Split::Test => 1,
        };
        key[16..24].copy_from_slice(purpose);
        key[24..].copy_from_slice(&seed.to_le_bytes());
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream(index);
        Self(generator)
    }

    /// Uniform in `[0, 1)`.
    fn unit(&mut self) -> f32 {
        (self.0.next_u32() >> 8) as f32 / (1 << 24) as f32
    }

    fn uniform(&mut self, (low, high): (f32, f32)) -> f32 {
        low + (high - low) * self.unit()
    }

    /// Uniform in `[-1, 1)`.
    fn sign(&mut self) -> f32 {
        self.uniform((-1.0, 1.0))
    }

    fn below(&mut self, limit: u32) -> u32 {
        ((u64::from(self.0.next_u32()) * u64::from(limit)) >> 32) as u32
    }

    fn chance(&mut self, probability: f32) -> bool {
        self.unit() < probability
    }

    /// A point in the unit ball; for direction its length is divided out.
    fn ball<const N: usize>(&mut self) -> [f32; N] {
        loop {
            let point: [f32; N] = std::array::from_fn(|_| self.sign());
            let square: f32 = point.iter().map(|x| x * x).sum();
            if (1e-4..1.0).contains(&square) {
                return point;
            }
        }
    }

    fn direction<const N: usize>(&mut self) -> [f32; N] {
        let point = self.ball::<N>();
        let length = point.iter().map(|x| x * x).sum::<f32>().sqrt();
        point.map(|x| x / length)
    }
}

type Point = [f32; 2];
type Colour = [f32; 3];

fn dot([a, b]: Point, [c, d]: Point) -> f32 {
    a * c + b * d
}

fn length(p: Point) -> f32 {
    dot(p, p).sqrt()
}

fn minus([a, b]: Point, [c, d]: Point) -> Point {
    [a - c, b - d]
}

fn mix(a: Colour, b: Colour, t: f32) -> Colour {
    std::array::from_fn(|channel| a[channel] + t * (b[channel] - a[channel]))
}

/// A colour at about the given distance, within the colours that exist.
fn colour_away_from(from: Colour, distance: f32, dice: &mut Dice) -> Colour {
    loop {
        let direction = dice.direction::<3>();
        let to: Colour = std::array::from_fn(|channel| from[channel] + distance * direction[channel]);
        if to.iter().all(|value| (0.0..=1.0).contains(value)) {
            return to;
        }
    }
}

/// Two colours and how they are mixed over the image.
struct Paint {
    from: Colour,
    to: Colour,
    pattern: Pattern,
}

enum Pattern {
    /// Along a direction.
    Gradient { direction: Point },
    /// Around a point.
    Radial { centre: Point },
    Stripes { direction: Point, phase: f32 },
    Checks { direction: Point, phase: f32 },
    /// Smooth bumps: centre and squared radius.
    Blobs { bumps: [(Point, f32); 4] },
    /// Random values at the corners of cells, smooth between.
    Cloud { cells: f32, corners: Box<[[f32; 10]; 10]> },
}

impl Paint {
    /// A paint of a mean colour whose two colours are `distance` apart.
    fn new(mean: Colour, distance: f32, dice: &mut Dice) -> Self {
        let direction = dice.direction::<3>();
        let shifted = |sign: f32| -> Colour {
            std::array::from_fn(|channel| {
                (mean[channel] + sign * 0.5 * distance * direction[channel]).clamp(0.0, 1.0)
            })
        };
        Self {
            from: shifted(-1.0),
            to: shifted(1.0),
            pattern: Pattern::new(dice),
        }
    }

    fn at(&self, p: Point) -> Colour {
        mix(self.from, self.to, self.pattern.at(p))
    }
}

impl Pattern {
    fn new(dice: &mut Dice) -> Self {
        let scaled = |[x, y]: Point, scale: f32| [x * scale, y * scale];
        match dice.below(6) {
            0 => Self::Gradient {
                direction: scaled(dice.direction(), 1.0 / SIDE as f32),
            },
            1 => Self::Radial {
                centre: scaled(dice.ball(), 16.0),
            },
            2 => Self::Stripes {
                direction: scaled(dice.direction(), 1.0 / dice.uniform((3.0, 9.0))),
                phase: dice.unit(),
            },
            3 => Self::Checks {
                direction: scaled(dice.direction(), 1.0 / dice.uniform((5.0, 12.0))),
                phase: dice.unit(),
            },
            4 => Self::Blobs {
                bumps: std::array::from_fn(|_| {
                    let radius = dice.uniform((4.0, 12.0));
                    ([16.0 * dice.sign(), 16.0 * dice.sign()], radius * radius)
                }),
            },
            _ => Self::Cloud {
                cells: 1.0 / dice.uniform((4.0, 10.0)),
                corners: Box::new(std::array::from_fn(|_| std::array::from_fn(|_| dice.unit()))),
            },
        }
    }

    /// The share of the second colour at a place, 0 to 1.
    fn at(&self, p: Point) -> f32 {
        // Up and down between 0 and 1 with period 1, edges softened to a quarter of it.
        let wave = |t: f32| {
            let triangle = 4.0 * (t - t.floor() - 0.5).abs() - 1.0;
            (0.5 + 1.5 * triangle).clamp(0.0, 1.0)
        };
        match self {
            Self::Gradient { direction } => (0.5 + dot(p, *direction)).clamp(0.0, 1.0),
            Self::Radial { centre } => (length(minus(p, *centre)) / 24.0).min(1.0),
            Self::Stripes { direction, phase } => wave(dot(p, *direction) + phase),
            Self::Checks { direction, phase } => {
                let [x, y] = *direction;
                let (a, b) = (wave(dot(p, [x, y]) + phase), wave(dot(p, [-y, x]) + phase));
                a + b - 2.0 * a * b
            }
            Self::Blobs { bumps } => {
                let bump = |&(centre, square): &(Point, f32)| {
                    let away = minus(p, centre);
                    let height = (1.0 - dot(away, away) / square).max(0.0);
                    height * height
                };
                (1.5 * bumps.iter().map(bump).sum::<f32>()).min(1.0)
            }
            Self::Cloud { cells, corners } => {
                let place = |x: f32| {
                    let x = (x + 16.0) * cells;
                    let cell = x.floor();
                    let t = x - cell;
                    (cell as usize, t * t * (3.0 - 2.0 * t))
                };
                let ((i, s), (j, t)) = (place(p[1]), place(p[0]));
                let along = |row: &[f32; 10]| row[j] + t * (row[j + 1] - row[j]);
                let (above, below) = (along(&corners[i]), along(&corners[i + 1]));
                above + s * (below - above)
            }
        }
    }
}

/// What is drawn, in coordinates of its own: about one unit from the centre to the farthest points.
/// `distance` is negative inside; it is exact near the outline, which is all that matters.
enum Shape {
    Disk { radius: f32 },
    Ring { radius: f32, half_width: f32 },
    Polygon { edges: [Edge; 10], count: usize },
    Cross { arm: f32, half_width: f32 },
    /// A disk without another one.
    Crescent { bite: f32, offset: f32 },
    /// A square on its corner and two half disks.
    Heart,
    /// Half circles around two centres in turn.
    Spiral { half_width: f32 },
}

impl Shape {
    fn new(label: usize, dice: &mut Dice) -> Self {
        let polygon = |outline: &[Point]| {
            let edge = |i: usize| Edge::new(outline[i % outline.len()], outline[(i + 1) % outline.len()]);
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

    fn distance(&self, p: Point) -> f32 {
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
struct Edge {
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
    if inside { -square.sqrt() } else { square.sqrt() }
}

/// Where a shape lies: `own = matrix (p - centre)`, with `p` in pixels from the centre of the image.
struct Pose {
    centre: Point,
    matrix: [Point; 2],
    /// Pixels per unit of the shape.
    scale: f32,
}

impl Pose {
    fn new(radius: f32, dice: &mut Dice) -> Self {
        // A larger shape has less room to move before too much of it is cut off.
        let room = difficulty::SHIFT * (1.6 - radius / SIDE as f32 * 2.0);
        let centre = [room * dice.sign(), room * dice.sign()];
        let stretch = dice.uniform(difficulty::STRETCH).sqrt();
        let ([c, s], [e, f]) = (dice.direction::<2>(), dice.direction::<2>());
        let mirror = if dice.chance(0.5) { 1.0 } else { -1.0 };
        // Turn, stretch along an axis, turn again.
        let (across, along) = (1.0 / (radius * stretch), stretch / radius);
        let rows = [[c * across, s * across], [-s * along, c * along]];
        let turned = |a: f32, b: f32| -> Point {
            [a * rows[0][0] + b * rows[1][0], a * rows[0][1] + b * rows[1][1]]
        };
        Self {
            centre,
            matrix: [turned(e, -f), turned(f * mirror, e * mirror)],
            scale: radius,
        }
    }

    fn own(&self, p: Point) -> Point {
        let p = minus(p, self.centre);
        [dot(self.matrix[0], p), dot(self.matrix[1], p)]
    }
}

/// A straight piece with round ends.
struct Bar {
    from: Point,
    direction: Point,
    reach: f32,
    half_width: f32,
}

impl Bar {
    fn distance(&self, p: Point) -> f32 {
        let away = minus(p, self.from);
        let along = dot(away, self.direction).clamp(0.0, self.reach);
        length(minus(away, self.direction.map(|x| x * along))) - self.half_width
    }

    fn bounds(&self) -> (Point, f32) {
        let half = 0.5 * self.reach;
        let [x, y] = self.direction;
        let centre = [self.from[0] + half * x, self.from[1] + half * y];
        (centre, half * x.abs().max(y.abs()) + self.half_width)
    }
}

/// The image while it is drawn, layer upon layer.
struct Canvas {
    pixels: Box<[Colour; SIDE * SIDE]>,
    softness: f32,
}

impl Canvas {
    /// The centre of a pixel, from the centre of the image.
    fn place(row: usize, column: usize) -> Point {
        let from_middle = |i: usize| i as f32 + 0.5 - 0.5 * SIDE as f32;
        [from_middle(column), from_middle(row)]
    }

    /// Covers what lies inside, i.e. at a negative distance in pixels. Nothing of it may lie outside
    /// the square of half side `reach` around `centre`.
    fn cover(
        &mut self,
        (centre, reach): (Point, f32),
        distance: impl Fn(Point) -> f32,
        paint: impl Fn(Point) -> Colour,
    ) {
        let reach = reach + self.softness;
        // Conversion clips at zero.
        let range = |at: f32| {
            let at = at + 0.5 * SIDE as f32;
            (at - reach) as usize..((at + reach + 1.0) as usize).min(SIDE)
        };
        for row in range(centre[1]) {
            for column in range(centre[0]) {
                let p = Self::place(row, column);
                let covered = 0.5 - 0.5 * distance(p) / self.softness;
                if covered > 0.0 {
                    let pixel = &mut self.pixels[row * SIDE + column];
                    *pixel = mix(*pixel, paint(p), covered.min(1.0));
                }
            }
        }
    }
}

fn draw(label: usize, dice: &mut Dice, bytes: &mut [u8]) {
    let ground: Colour = std::array::from_fn(|_| dice.uniform((0.1, 0.9)));
    let contrast = dice.uniform(difficulty::CONTRAST);
    let mean = colour_away_from(ground, contrast, dice);
    let background = Paint::new(ground, dice.uniform(difficulty::BACKGROUND_TEXTURE), dice);
    let filling = Paint::new(mean, dice.uniform(difficulty::SHAPE_TEXTURE), dice);

    let mut canvas = Canvas {
        pixels: Box::new(std::array::from_fn(|index| {
            background.at(Canvas::place(index / SIDE, index % SIDE))
        })),
        softness: dice.uniform(difficulty::SOFTNESS),
    };
    let (fewest, most) = difficulty::CLUTTER;
    for _ in 0..fewest + dice.below(most - fewest + 1) {
        let reach = dice.uniform(difficulty::CLUTTER_LENGTH);
        let piece = Bar {
            from: [16.0 * dice.sign(), 16.0 * dice.sign()],
            direction: dice.direction(),
            reach,
            half_width: dice.uniform(difficulty::CLUTTER_WIDTH),
        };
        let colour: Colour = std::array::from_fn(|_| dice.unit());
        canvas.cover(piece.bounds(), |p| piece.distance(p), |_| colour);
    }

    let radius = match SHAPES10_CLASSES[label] {
        "spiral" => difficulty::SPIRAL_RADIUS,
        _ => difficulty::RADIUS,
    };
    let pose = Pose::new(dice.uniform(radius), dice);
    let shape = Shape::new(label, dice);
    canvas.cover(
        (pose.centre, 1.3 * pose.scale),
        |p| pose.scale * shape.distance(pose.own(p)),
        |p| filling.at(p),
    );

    if dice.chance(difficulty::OCCLUSION) {
        // A bar across the image that passes the shape's centre at some distance.
        let [x, y] = dice.direction();
        let off = pose.scale * dice.uniform((0.2, 0.9));
        let [from_x, from_y] = pose.centre;
        let bar = Bar {
            from: [from_x + off * x - 40.0 * y, from_y + off * y + 40.0 * x],
            direction: [y, -x],
            reach: 80.0,
            half_width: dice.uniform(difficulty::OCCLUSION_WIDTH),
        };
        let colour: Colour = std::array::from_fn(|_| dice.unit());
        canvas.cover(bar.bounds(), |p| bar.distance(p), |_| colour);
    }

    let light = dice
        .direction()
        .map(|x: f32| x * difficulty::SHADE / SIDE as f32);
    for (index, (pixel, bytes)) in canvas.pixels.iter().zip(bytes.chunks_exact_mut(3)).enumerate() {
        let shade = 1.0 - 0.5 * difficulty::SHADE + dot(Canvas::place(index / SIDE, index % SIDE), light);
        let grain = dice.0.next_u32().to_le_bytes();
        for channel in 0..3 {
            let noise = difficulty::NOISE * (f32::from(grain[channel]) - 127.5) / 127.5;
            bytes[channel] = (255.0 * (shade * pixel[channel] + noise) + 0.5) as u8;
        }
    }
}
