//! `shapes10`: ten shapes drawn by code, any number of them, no download.
//!
//! An image is 32 x 32 RGB: a shape in a random pose, colour and texture, before a textured background
//! with clutter, partly covered. Sample `i` of a split is a function of seed, split and `i` alone, so
//! sets of different sizes share their beginnings and samples can be made in any order. Every ten
//! samples in a row hold every class once.
//!
//! Drawing uses `+ - * /`, `sqrt` and `floor` in `f32`, which are exact to the last bit everywhere:
//! the set is the same on every machine.

mod drawing;
mod paint;
mod shape;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::{Batch, Dataset, Images, SampleId, SetInfo, Split};
use crate::Result;
use crate::rng::Purpose;

/// Names of the ten classes, in the order of the labels.
pub const SHAPES10_CLASSES: [&str; 10] = [
    "disk", "ring", "square", "triangle", "star", "cross", "crescent", "heart", "arrow", "spiral",
];

const SIDE: usize = 32;
const BYTES: usize = SIDE * SIDE * 3;
const CLASSES: usize = SHAPES10_CLASSES.len();

/// A split of `shapes10`. Takes no memory: samples are drawn when asked for.
#[derive(Clone, Debug)]
pub struct Shapes10 {
    info: SetInfo,
    split: Split,
    seed: u64,
}

impl Shapes10 {
    /// Describes the first `count` samples of a split.
    pub fn new(split: Split, count: usize, seed: u64) -> Self {
        let info = SetInfo::new("shapes10", count, SHAPES10_CLASSES);
        Self { info, split, seed }
    }

    /// Describes a split in its usual size, with seed 0.
    pub fn standard(split: Split) -> Self {
        Self::new(split, split.of(50_000, 10_000), 0)
    }

    /// Returns the class of a sample: one of a random order of all classes for every ten samples.
    pub fn label(&self, id: SampleId) -> usize {
        let (block, place) = (id / CLASSES as u64, id as usize % CLASSES);
        let mut dice = Dice::new(self.seed, self.split, *b"labels..", block);
        let mut order: [usize; CLASSES] = std::array::from_fn(|class| class);
        for last in (1..CLASSES).rev() {
            order.swap(last, dice.below(last as u32 + 1) as usize);
        }
        order[place]
    }

    /// Draws a sample, `[32, 32, 3]`.
    fn draw(&self, id: SampleId, label: usize, pixels: &mut [u8]) {
        let mut dice = Dice::new(self.seed, self.split, *b"drawings", id);
        drawing::draw(label, &mut dice, pixels);
    }
}

impl Dataset for Shapes10 {
    fn info(&self) -> &SetInfo {
        &self.info
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let mut pixels = vec![0; ids.len() * BYTES];
        let mut labels = vec![0; ids.len()];
        let count = self.info.len;
        ids.par_iter()
            .zip(pixels.par_chunks_exact_mut(BYTES))
            .zip(&mut labels)
            .for_each(|((&id, pixels), label)| {
                assert!((id as usize) < count, "{id} of {count} samples");
                *label = self.label(id);
                self.draw(id, *label, pixels);
            });
        let images = Images {
            height: SIDE,
            width: SIDE,
            pixels,
        };
        Ok(Batch {
            ids: ids.to_vec(),
            samples: images.into(),
            labels: Some(labels),
        })
    }

    fn labels(&self) -> Result<Option<Vec<usize>>> {
        let ids = 0..self.info.len as SampleId;
        Ok(Some(ids.map(|id| self.label(id)).collect()))
    }
}

/// The random numbers of one sample.
struct Dice(ChaCha8Rng);

impl Dice {
    fn new(seed: u64, split: Split, purpose: [u8; 8], index: u64) -> Self {
        let purpose = Purpose::new(*b"ttac shapes10 1.........")
            .with(15, [split as u8])
            .with(16, purpose);
        Self(purpose.stream(seed, index))
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
