//! Points, colours, and how colours vary over an image.

use super::{Dice, SIDE};

pub(super) type Point = [f32; 2];
pub(super) type Colour = [f32; 3];

pub(super) fn dot([a, b]: Point, [c, d]: Point) -> f32 {
    a * c + b * d
}

pub(super) fn length(p: Point) -> f32 {
    dot(p, p).sqrt()
}

pub(super) fn minus([a, b]: Point, [c, d]: Point) -> Point {
    [a - c, b - d]
}

pub(super) fn mix(a: Colour, b: Colour, t: f32) -> Colour {
    std::array::from_fn(|channel| a[channel] + t * (b[channel] - a[channel]))
}

/// A colour at about the given distance, within the colours that exist.
pub(super) fn colour_away_from(from: Colour, distance: f32, dice: &mut Dice) -> Colour {
    loop {
        let direction = dice.direction::<3>();
        let to: Colour =
            std::array::from_fn(|channel| from[channel] + distance * direction[channel]);
        if to.iter().all(|value| (0.0..=1.0).contains(value)) {
            return to;
        }
    }
}

/// Two colours and how they are mixed over the image.
pub(super) struct Paint {
    from: Colour,
    to: Colour,
    pattern: Pattern,
}

enum Pattern {
    /// Along a direction.
    Gradient {
        direction: Point,
    },
    /// Around a point.
    Radial {
        centre: Point,
    },
    Stripes {
        direction: Point,
        phase: f32,
    },
    Checks {
        direction: Point,
        phase: f32,
    },
    /// Smooth bumps: centre and squared radius.
    Blobs {
        bumps: [(Point, f32); 4],
    },
    /// Random values at the corners of cells, smooth between.
    Cloud {
        cells: f32,
        corners: Box<[[f32; 10]; 10]>,
    },
}

impl Paint {
    /// A paint of a mean colour whose two colours are `distance` apart.
    pub fn new(mean: Colour, distance: f32, dice: &mut Dice) -> Self {
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

    pub fn at(&self, p: Point) -> Colour {
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
                corners: Box::new(std::array::from_fn(|_| {
                    std::array::from_fn(|_| dice.unit())
                })),
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
