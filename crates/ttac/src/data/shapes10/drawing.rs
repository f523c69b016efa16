//! An image, layer upon layer.

use rand::Rng;

use super::paint::{Colour, Paint, Point, colour_away_from, dot, length, minus, mix};
use super::shape::Shape;
use super::{Dice, SHAPES10_CLASSES, SIDE};

/// Everything that decides how hard the set is. Lengths are pixels, colours lie in `[0, 1]`.
mod difficulty {
    /// From the centre of a shape to its farthest points.
    pub const RADIUS: (f32, f32) = (8.0, 12.5);
    /// The same for the spiral, whose arms would run together.
    pub const SPIRAL_RADIUS: (f32, f32) = (9.5, 13.5);
    /// How far the centre may lie from that of the image, in each direction.
    pub const SHIFT: f32 = 4.0;
    /// Longer over shorter axis.
    pub const STRETCH: (f32, f32) = (1.0, 1.3);
    /// Distance in RGB between the mean colours of shape and background.
    pub const CONTRAST: (f32, f32) = (0.3, 0.75);
    /// Distance in RGB between the two colours of a texture.
    pub const SHAPE_TEXTURE: (f32, f32) = (0.05, 0.25);
    pub const BACKGROUND_TEXTURE: (f32, f32) = (0.05, 0.3);
    /// Pieces of clutter behind the shape, and their half widths and lengths.
    pub const CLUTTER: (u32, u32) = (0, 3);
    pub const CLUTTER_WIDTH: (f32, f32) = (0.7, 2.5);
    pub const CLUTTER_LENGTH: (f32, f32) = (0.0, 8.0);
    /// How often a bar lies over the shape, and its half width.
    pub const OCCLUSION: f32 = 0.2;
    pub const OCCLUSION_WIDTH: (f32, f32) = (0.7, 1.5);
    /// Half width of the soft edge of everything drawn.
    pub const SOFTNESS: (f32, f32) = (0.5, 0.9);
    /// Light falls off over the image by up to this factor.
    pub const SHADE: f32 = 0.3;
    /// Half width of the uniform noise on every byte.
    pub const NOISE: f32 = 0.02;
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
            [
                a * rows[0][0] + b * rows[1][0],
                a * rows[0][1] + b * rows[1][1],
            ]
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

pub(super) fn draw(label: usize, dice: &mut Dice, bytes: &mut [u8]) {
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
    for (index, (pixel, bytes)) in canvas
        .pixels
        .iter()
        .zip(bytes.chunks_exact_mut(3))
        .enumerate()
    {
        let shade =
            1.0 - 0.5 * difficulty::SHADE + dot(Canvas::place(index / SIDE, index % SIDE), light);
        let grain = dice.0.next_u32().to_le_bytes();
        for channel in 0..3 {
            let noise = difficulty::NOISE * (f32::from(grain[channel]) - 127.5) / 127.5;
            bytes[channel] = (255.0 * (shade * pixel[channel] + noise) + 0.5) as u8;
        }
    }
}
