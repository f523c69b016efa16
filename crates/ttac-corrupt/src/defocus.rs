use std::ops::{Add, AddAssign, Mul};
use std::sync::Arc;

use crate::corruptor::Kernel;
use crate::pixel::Border;
use crate::random::Random;
use crate::size::Size;
use crate::wide::wide;

/// The precision of the sums. Double is the recipe's; single is twice as fast and serves the large disks.
pub(crate) trait Real:
    Copy + Send + Sync + From<f32> + Into<f64> + Add<Output = Self> + Mul<Output = Self> + AddAssign
{
    /// Added before truncation, towards the side on which the kernel's sum misses one: that side decides where flat
    /// areas end up, and the step must outweigh the rounding of the sums.
    const BIAS: f32;
}

impl Real for f32 {
    const BIAS: f32 = 1e-3;
}

impl Real for f64 {
    const BIAS: f32 = 0.0;
}

/// Correlation with a disk whose rim is softened by a small Gaussian.
#[derive(Clone)]
pub(crate) struct Defocus<T> {
    /// One quadrant [reach + 1, reach + 1] of the kernel, which is symmetric in both axes.
    quadrant: Arc<[T]>,
    reach: usize,
    bias: f32,
    size: Size,
    padded: Vec<T>,
    folded: Vec<T>,
    row: Vec<T>,
}

impl<T: Real> Defocus<T> {
    pub(crate) fn new(radius: f64, alias_sigma: f64, size: Size) -> Self {
        let disk = Disk::new(radius, alias_sigma);
        let total: f64 = disk.weights.iter().map(|&weight| f64::from(weight)).sum();
        let bias = if total >= 1.0 { T::BIAS } else { -T::BIAS };
        let reach = disk.used_reach();
        let quadrant = (0..=reach)
            .flat_map(|down| (0..=reach).map(move |across| (down, across)))
            .map(|(down, across)| T::from(disk.at(down, across)))
            .collect();
        let (padded, folded, row) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            quadrant,
            reach,
            bias,
            size,
            padded,
            folded,
            row,
        }
    }

    /// Copies the image into `padded`, with mirrored columns on both sides.
    fn pad(&mut self, image: &[u8]) {
        let width = self.size.width;
        let (stride, pad) = (3 * width, 3 * self.reach);
        let padded_stride = stride + 2 * pad;
        self.padded
            .resize(self.size.height * padded_stride, T::from(0.0));
        let padded = self.padded.chunks_exact_mut(padded_stride);
        for (row, padded) in image.chunks_exact(stride).zip(padded) {
            for (padded, &value) in padded[pad..].iter_mut().zip(row) {
                *padded = T::from(f32::from(value));
            }
            for step in 1..=self.reach {
                let left = pad + 3 * Border::Reflect101.index(-(step as isize), width);
                let right = pad + 3 * Border::Reflect101.index((width - 1 + step) as isize, width);
                padded.copy_within(left..left + 3, pad - 3 * step);
                padded.copy_within(right..right + 3, pad + stride + 3 * step - 3);
            }
        }
    }
}

impl<T: Real> Kernel for Defocus<T> {
    fn apply(&mut self, image: &mut [u8], _: &mut impl Random) {
        self.pad(image);
        let Size { height, width } = self.size;
        let (stride, pad) = (3 * width, 3 * self.reach);
        let padded_stride = stride + 2 * pad;
        self.folded.resize(padded_stride, T::from(0.0));
        self.row.resize(stride, T::from(0.0));
        for (y, out) in image.chunks_exact_mut(stride).enumerate() {
            self.row.fill(T::from(self.bias));
            for down in 0..=self.reach {
                let source = |offset: isize| {
                    let row = Border::Reflect101.index(y as isize + offset, height);
                    &self.padded[row * padded_stride..][..padded_stride]
                };
                if down == 0 {
                    self.folded.copy_from_slice(source(0));
                } else {
                    let (above, below) = (source(-(down as isize)), source(down as isize));
                    for ((folded, &above), &below) in self.folded.iter_mut().zip(above).zip(below) {
                        *folded = above + below;
                    }
                }
                let weights = &self.quadrant[down * (self.reach + 1)..][..=self.reach];
                wide(
                    #[inline(always)]
                    || add_symmetric(&mut self.row, &self.folded, pad, weights),
                );
            }
            for (out, &value) in out.iter_mut().zip(&self.row) {
                // Conversion to a byte truncates and clips.
                *out = value.into() as u8;
            }
        }
    }
}

/// Adds the correlation of `line`, which has `pad` values on either side, with symmetric weights to `sums`.
#[inline(always)]
fn add_symmetric<T: Real>(sums: &mut [T], line: &[T], pad: usize, weights: &[T]) {
    let length = sums.len();
    let from = |start: usize| &line[start..start + length];
    let used = weights
        .iter()
        .rposition(|&weight| weight.into() != 0.0)
        .map_or(0, |last| last + 1);
    if used == 0 {
        return;
    }
    for (sum, &value) in sums.iter_mut().zip(from(pad)) {
        *sum += weights[0] * value;
    }
    let mut distance = 1;
    // Two distances at a time halve the traffic of the sums.
    while distance + 1 < used {
        let (near, far) = (weights[distance], weights[distance + 1]);
        let (a, b) = (from(pad - 3 * distance), from(pad + 3 * distance));
        let (c, d) = (from(pad - 3 * distance - 3), from(pad + 3 * distance + 3));
        for ((((sum, &a), &b), &c), &d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *sum += near * (a + b) + far * (c + d);
        }
        distance += 2;
    }
    if distance < used {
        let (a, b) = (from(pad - 3 * distance), from(pad + 3 * distance));
        for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
            *sum += weights[distance] * (a + b);
        }
    }
}

/// The kernel [2 reach + 1, 2 reach + 1], in the single precision and order of operations of the recipe's library.
struct Disk {
    reach: usize,
    weights: Vec<f32>,
}

impl Disk {
    fn new(radius: f64, alias_sigma: f64) -> Self {
        let (reach, aperture) = if radius <= 8.0 {
            (8, 3)
        } else {
            (radius as usize, 5)
        };
        let side = 2 * reach + 1;
        let square = |index: usize| (index as f64 - reach as f64).powi(2);
        let inside = |index: usize| square(index / side) + square(index % side) <= radius * radius;
        let mut weights: Vec<f32> = (0..side * side)
            .map(|index| f32::from(u8::from(inside(index))))
            .collect();
        let area: f32 = weights.iter().sum();
        for weight in &mut weights {
            *weight /= area;
        }
        for (down, across) in [(0, 1), (1, 0)] {
            soften(
                &mut weights,
                side,
                aperture / 2,
                alias_sigma,
                (down, across),
            );
        }
        // What is left of a very narrow Gaussian is far too small to matter and slow to compute with.
        for weight in weights.iter_mut().filter(|weight| **weight < 1e-12) {
            *weight = 0.0;
        }
        Self { reach, weights }
    }

    /// The weight at an offset from the centre.
    fn at(&self, down: usize, across: usize) -> f32 {
        self.weights[(self.reach + down) * (2 * self.reach + 1) + self.reach + across]
    }

    /// The largest offset with a weight.
    fn used_reach(&self) -> usize {
        let used = |&offset: &usize| (0..=self.reach).any(|across| self.at(offset, across) != 0.0);
        (0..=self.reach).rev().find(used).unwrap_or(0)
    }
}

/// A Gaussian of 2 half + 1 weights along one axis.
fn soften(
    weights: &mut [f32],
    side: usize,
    half: usize,
    sigma: f64,
    (down, across): (isize, isize),
) {
    let shape: Vec<f64> = (0..=half)
        .map(|i| (-((i * i) as f64) / (2.0 * sigma * sigma)).exp())
        .collect();
    let total = shape[0] + 2.0 * shape[1..].iter().sum::<f64>();
    let gaussian: Vec<f32> = shape.iter().map(|weight| (weight / total) as f32).collect();
    let source = weights.to_vec();
    for (index, weight) in weights.iter_mut().enumerate() {
        let at = |step: isize| {
            let row = Border::Reflect101.index((index / side) as isize + step * down, side);
            let column = Border::Reflect101.index((index % side) as isize + step * across, side);
            source[row * side + column]
        };
        *weight = (1..=half).fold(at(0) * gaussian[0], |sum, i| {
            (at(-(i as isize)) + at(i as isize)).mul_add(gaussian[i], sum)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_disks_are_a_pixel_a_plus_and_a_block() {
        let weights_above = |radius: f64, sigma: f64, least: f32| {
            Disk::new(radius, sigma)
                .weights
                .iter()
                .filter(|&&weight| weight > least)
                .count()
        };
        assert_eq!(weights_above(0.5, 0.01, 0.0), 1);
        assert_eq!(weights_above(1.0, 0.2, 0.1), 5);
        assert_eq!(weights_above(1.5, 0.1, 0.1), 9);
    }

    #[test]
    fn both_precisions_agree() {
        let size = Size::new(24, 20).unwrap();
        let image: Vec<u8> = (0..size.bytes())
            .map(|index| (index * 37 % 256) as u8)
            .collect();
        let mut random = crate::replay::Replay::new(0);
        let (mut single, mut double) = (image.clone(), image);
        Defocus::<f32>::new(3.0, 0.1, size).apply(&mut single, &mut random);
        Defocus::<f64>::new(3.0, 0.1, size).apply(&mut double, &mut random);
        assert!(single.iter().zip(&double).all(|(a, b)| a.abs_diff(*b) <= 1));
    }
}
