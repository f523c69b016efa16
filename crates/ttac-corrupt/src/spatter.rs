//! Drops of water or mud.

use crate::corruptor::Kernel;
use crate::gaussian::Gaussian;
use crate::parameters::{Liquid, SpatterParameters};
use crate::pixel::{Border, to_byte_f32};
use crate::random::Random;
use crate::size::Size;

const WATER: [f64; 3] = [175.0 / 255.0, 238.0 / 255.0, 238.0 / 255.0];
const MUD: [f64; 3] = [63.0 / 255.0, 42.0 / 255.0, 20.0 / 255.0];

#[derive(Clone)]
pub(crate) struct Spatter {
    parameters: SpatterParameters,
    smooth: Gaussian,
    cover: Cover,
    layer: Vec<f64>,
}

#[derive(Clone)]
enum Cover {
    Water {
        relief: Relief,
        strength: f32,
        mask: Vec<f32>,
    },
    Mud {
        soften: Gaussian,
    },
}

impl Spatter {
    pub(crate) fn new(parameters: SpatterParameters, size: Size) -> Self {
        let gaussian = |sigma: f64| Gaussian::new(sigma, 4.0, Border::Nearest, size, 1);
        let cover = match parameters.liquid {
            Liquid::Water { strength } => Cover::Water {
                relief: Relief::new(size),
                strength,
                mask: Vec::new(),
            },
            Liquid::Mud { sigma } => Cover::Mud {
                soften: gaussian(sigma),
            },
        };
        Self {
            parameters,
            smooth: gaussian(parameters.sigma),
            cover,
            layer: vec![0.0; size.pixels()],
        }
    }
}

impl Kernel for Spatter {
    fn apply(&mut self, image: &mut [u8], random: &mut impl Random) {
        let threshold = self.parameters.threshold;
        let layer = &mut self.layer;
        self.parameters.normals.fill(layer, random);
        self.smooth.apply(layer);
        let unit = |byte: u8| f32::from(byte) / 255.0;
        match &mut self.cover {
            Cover::Water {
                relief,
                strength,
                mask,
            } => {
                let drop = |&value: &f64| {
                    if value < threshold {
                        0
                    } else {
                        (value * 255.0) as u8
                    }
                };
                relief.liquid.clear();
                relief.liquid.extend(layer.iter().map(drop));
                relief.shade();
                mask.clear();
                mask.extend(
                    relief
                        .liquid
                        .iter()
                        .zip(&relief.shaded)
                        .map(|(&a, &b)| f32::from(a) * f32::from(b)),
                );
                let highest = mask.iter().copied().fold(0.0, f32::max);
                if highest == 0.0 {
                    // Not a drop. The recipe divides by zero here.
                    return;
                }
                for (pixel, mask) in image.chunks_exact_mut(3).zip(mask) {
                    let mask = *mask / highest * *strength;
                    for (byte, colour) in pixel.iter_mut().zip(WATER) {
                        *byte = to_byte_f32(unit(*byte) + mask * colour as f32);
                    }
                }
            }
            Cover::Mud { soften } => {
                for value in &mut *layer {
                    *value = if *value > threshold { 1.0 } else { 0.0 };
                }
                soften.apply_between(layer, round_to_single);
                for (pixel, mask) in image.chunks_exact_mut(3).zip(layer) {
                    let mask = *mask as f32;
                    if mask < 0.8 {
                        continue;
                    }
                    for (byte, colour) in pixel.iter_mut().zip(MUD) {
                        *byte = to_byte_f32(unit(*byte) * (1.0 - mask) + colour as f32 * mask);
                    }
                }
            }
        }
    }
}

/// The recipe blurs the mask of mud in single precision.
fn round_to_single(values: &mut [f64]) {
    for value in values {
        *value = f64::from(*value as f32);
    }
}

/// The light on drops of water: edges, distance from them, equalised, embossed and softened.
#[derive(Clone)]
struct Relief {
    size: Size,
    liquid: Vec<u8>,
    shaded: Vec<u8>,
    gradients: Vec<(i32, i32)>,
    magnitudes: Vec<i32>,
    distances: Vec<i32>,
    bytes: Vec<u8>,
    pending: Vec<usize>,
}

/// Distances are counted in these.
const DISTANCE_ONE: i32 = 1 << 16;
const DISTANCE_DIAGONAL: i32 = 91750; // 1.4
const DISTANCE_KNIGHT: i32 = 143_976; // 2.1969
const DISTANCE_FAR: i32 = i32::MAX >> 2;

/// Canny's thresholds, and the mark of what lies between them.
const EDGE_LOW: i32 = 50;
const EDGE_HIGH: i32 = 150;
const EDGE_WEAK: i32 = -1;

impl Relief {
    fn new(size: Size) -> Self {
        let (height, width) = (size.height + 2, size.width + 2);
        Self {
            size,
            liquid: Vec::new(),
            shaded: vec![0; size.pixels()],
            gradients: Vec::new(),
            magnitudes: vec![0; height * width],
            distances: vec![DISTANCE_FAR; (height + 2) * (width + 2)],
            bytes: vec![0; size.pixels()],
            pending: Vec::new(),
        }
    }

    fn shade(&mut self) {
        self.find_edges();
        self.measure_distances();
        self.soften_distances();
        equalise(&mut self.bytes);
        let emboss = [-2, -1, 0, -1, 1, 1, 0, 1, 2];
        self.neighbourhoods(|around| {
            let sum: i32 = around
                .iter()
                .zip(emboss)
                .map(|(&byte, weight)| i32::from(byte) * weight)
                .sum();
            sum.clamp(0, 255) as u8
        });
        std::mem::swap(&mut self.bytes, &mut self.shaded);
        self.neighbourhoods(|around| {
            ((around.iter().map(|&byte| u32::from(byte)).sum::<u32>() + 4) / 9) as u8
        });
    }

    /// Canny's edges of the liquid. Leaves 0 in `distances` at edges and far elsewhere.
    fn find_edges(&mut self) {
        self.measure_gradients();
        self.distances.fill(DISTANCE_FAR);
        self.pending.clear();
        let Size { height, width } = self.size;
        let wide = width + 4;
        for y in 0..height {
            for x in 0..width {
                let cell = (y + 2) * wide + x + 2;
                let magnitude = self.magnitudes[(y + 1) * (width + 2) + x + 1];
                if magnitude <= EDGE_LOW || !self.is_ridge(y, x) {
                    continue;
                }
                self.distances[cell] = EDGE_WEAK;
                if magnitude > EDGE_HIGH {
                    self.distances[cell] = 0;
                    self.pending.push(cell);
                }
            }
        }
        // Weak ridges count if they touch an edge.
        while let Some(edge) = self.pending.pop() {
            let rows = [edge - wide, edge, edge + wide];
            for neighbour in rows.into_iter().flat_map(|cell| [cell - 1, cell, cell + 1]) {
                if self.distances[neighbour] == EDGE_WEAK {
                    self.distances[neighbour] = 0;
                    self.pending.push(neighbour);
                }
            }
        }
        for distance in &mut self.distances {
            if *distance == EDGE_WEAK {
                *distance = DISTANCE_FAR;
            }
        }
    }

    /// Sobel's derivatives and the sum of their magnitudes.
    fn measure_gradients(&mut self) {
        let Size { height, width } = self.size;
        self.gradients.clear();
        for y in 0..height {
            let rows = Border::Nearest.three(y, height).map(|row| row * width);
            for x in 0..width {
                let columns = Border::Nearest.three(x, width);
                let at = |dy: usize, dx: usize| i32::from(self.liquid[rows[dy] + columns[dx]]);
                let across = at(0, 2) - at(0, 0) + 2 * (at(1, 2) - at(1, 0)) + at(2, 2) - at(2, 0);
                let down = at(2, 0) - at(0, 0) + 2 * (at(2, 1) - at(0, 1)) + at(2, 2) - at(0, 2);
                self.gradients.push((across, down));
                self.magnitudes[(y + 1) * (width + 2) + x + 1] = across.abs() + down.abs();
            }
        }
    }

    /// Whether the magnitude is largest across the edge, along the nearest of four directions.
    fn is_ridge(&self, y: usize, x: usize) -> bool {
        /// Tangent of 22.5 degrees with 15 bits of fraction.
        const TANGENT: i64 = 13573;
        let stride = self.size.width + 2;
        let here = (y + 1) * stride + x + 1;
        let at = |index: usize| self.magnitudes[index];
        let magnitude = at(here);
        let (across, down) = self.gradients[y * self.size.width + x];
        let (run, rise) = (i64::from(across.abs()), i64::from(down.abs()) << 15);
        if rise < run * TANGENT {
            magnitude > at(here - 1) && magnitude >= at(here + 1)
        } else if rise > run * TANGENT + (run << 16) {
            magnitude > at(here - stride) && magnitude >= at(here + stride)
        } else if (across ^ down) < 0 {
            magnitude > at(here - stride + 1) && magnitude > at(here + stride - 1)
        } else {
            magnitude > at(here - stride - 1) && magnitude > at(here + stride + 1)
        }
    }

    /// Chamfer distance to the nearest edge with steps to 16 neighbours, one pass from either corner.
    fn measure_distances(&mut self) {
        let Size { height, width } = self.size;
        let wide = width + 4;
        let steps = [
            (1, DISTANCE_ONE),
            (wide, DISTANCE_ONE),
            (wide - 1, DISTANCE_DIAGONAL),
            (wide + 1, DISTANCE_DIAGONAL),
            (wide - 2, DISTANCE_KNIGHT),
            (wide + 2, DISTANCE_KNIGHT),
            (2 * wide - 1, DISTANCE_KNIGHT),
            (2 * wide + 1, DISTANCE_KNIGHT),
        ];
        let cells =
            || (0..height).flat_map(move |y| (0..width).map(move |x| (y + 2) * wide + x + 2));
        for cell in cells() {
            let nearest = steps
                .iter()
                .map(|&(back, cost)| self.distances[cell - back] + cost)
                .min();
            self.distances[cell] = nearest.unwrap_or(0).min(self.distances[cell]);
        }
        for cell in cells().rev() {
            let nearest = steps
                .iter()
                .map(|&(ahead, cost)| self.distances[cell + ahead] + cost)
                .min();
            self.distances[cell] = nearest.unwrap_or(0).min(self.distances[cell]);
        }
    }

    /// Mean over three by three of the distances, none counted beyond 20.
    fn soften_distances(&mut self) {
        let Size { height, width } = self.size;
        let wide = width + 4;
        for y in 0..height {
            let row =
                |step: isize| (Border::Reflect101.index(y as isize + step, height) + 2) * wide + 2;
            let rows = [row(-1), row(0), row(1)];
            for x in 0..width {
                let column = |step: isize| Border::Reflect101.index(x as isize + step, width);
                let columns = [column(-1), column(0), column(1)];
                let distance = |cell: usize| {
                    f64::from((self.distances[cell] as f32 / DISTANCE_ONE as f32).min(20.0))
                };
                let sum: f64 = rows
                    .iter()
                    .map(|row| {
                        columns
                            .iter()
                            .map(|column| distance(row + column))
                            .sum::<f64>()
                    })
                    .sum();
                self.bytes[y * width + x] = (sum * (1.0 / 9.0)) as f32 as u8;
            }
        }
    }

    /// Writes a function of every three by three bytes to `shaded`.
    fn neighbourhoods(&mut self, function: impl Fn([u8; 9]) -> u8) {
        let Size { height, width } = self.size;
        for y in 0..height {
            let rows = Border::Reflect101.three(y, height).map(|row| row * width);
            for x in 0..width {
                let columns = Border::Reflect101.three(x, width);
                let around =
                    std::array::from_fn(|index| self.bytes[rows[index / 3] + columns[index % 3]]);
                self.shaded[y * width + x] = function(around);
            }
        }
    }
}

/// Histogram equalisation: the lowest value present becomes 0.
fn equalise(bytes: &mut [u8]) {
    let mut counts = [0u32; 256];
    for &byte in &*bytes {
        counts[usize::from(byte)] += 1;
    }
    let lowest = counts.iter().position(|&count| count > 0).unwrap_or(0);
    let above = bytes.len() as u32 - counts[lowest];
    if above == 0 {
        return;
    }
    let scale = 255.0 / above as f32;
    let mut sum = 0;
    let mut table = [0; 256];
    for value in lowest + 1..256 {
        sum += counts[value];
        table[value] = (sum as f32 * scale).round_ties_even() as u8;
    }
    for byte in bytes {
        *byte = table[usize::from(*byte)];
    }
}
