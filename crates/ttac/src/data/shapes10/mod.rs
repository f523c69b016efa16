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
    fn name(&self) -> &'static str {
        "shapes10"
    }

    fn len(&self) -> usize {
        self.count
    }

    fn classes(&self) -> Vec<String> {
        SHAPES10_CLASSES.map(str::to_owned).to_vec()
    }

    fn labels(&self) -> Result<Vec<usize>> {
        Ok((0..self.count as SampleId)
            .map(|id| self.label(id))
            .collect())
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
    fn new(seed: u64, split: Split, purpose: [u8; 8], index: u64) -> Self {
        let mut key = *b"ttac shapes10 1.................";
        key[15] = match split {
            Split::Train => 0,
            Split::Test => 1,
        };
        key[16..24].copy_from_slice(&purpose);
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
