//! `solids10`: clouds of points on ten solids, any number of them, no download.
//!
//! A sample is a solid with random proportions, turned about the vertical by any angle and leaning a little, and points
//! spread evenly over its surface. Its mesh can be had too, so that all corruptions of clouds are possible. Sample `i` of a
//! split is a function of seed, split and `i` alone; every ten samples in a row hold every class once.
//!
//! As in ModelNet40, meshes stand on the xy plane, and in clouds y is up; a cloud's mean is the origin and its farthest
//! point has distance one.

mod solid;

use rayon::prelude::*;
use ttac_corrupt::points::Mesh;

use super::dice::Dice;
use super::{Batch, Dataset, Images, SampleId, Samples, Split, clouds};
use crate::Result;

/// Names of the ten classes, in the order of the labels.
pub const SOLIDS10_CLASSES: [&str; 10] = [
    "ball",
    "box",
    "cylinder",
    "cone",
    "torus",
    "pyramid",
    "capsule",
    "star",
    "stairs",
    "hourglass",
];

const CLASSES: usize = SOLIDS10_CLASSES.len();

/// A split of `solids10`. Takes no memory: samples are made when asked for.
///
/// ```
/// use ttac::data::{Dataset, Solids10, Split};
///
/// # fn main() -> ttac::Result<()> {
/// let batch = Solids10::new(Split::Test, 20, 0).batch(&[3, 1, 4])?;
/// let clouds = batch.samples.images.to_clouds().unwrap();
/// assert_eq!(clouds.len(), 3 * 1024 * 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solids10 {
    split: Split,
    count: usize,
    points: usize,
    seed: u64,
}

impl Solids10 {
    /// Samples of the training split where nobody asks for another number.
    pub const TRAIN: usize = 5_000;
    /// Samples of the test split where nobody asks for another number.
    pub const TEST: usize = 1_000;
    /// Points of a cloud where nobody asks for another number.
    pub const POINTS: usize = 1_024;

    /// The first `count` samples of a split.
    pub fn new(split: Split, count: usize, seed: u64) -> Self {
        Self {
            split,
            count,
            points: Self::POINTS,
            seed,
        }
    }

    /// The split in its usual size, seed 0.
    pub fn standard(split: Split) -> Self {
        let count = match split {
            Split::Train => Self::TRAIN,
            Split::Test => Self::TEST,
        };
        Self::new(split, count, 0)
    }

    /// The same with another number of points in a cloud. The first points are the same but for the scale.
    pub fn with_points(mut self, points: usize) -> Self {
        self.points = points;
        self
    }

    /// The class of a sample: one of a random order of all classes for every ten samples.
    pub fn label(&self, id: SampleId) -> usize {
        let (block, place) = (id / CLASSES as u64, id as usize % CLASSES);
        let mut dice = self.dice(*b"labels..", block);
        let mut order: [usize; CLASSES] = std::array::from_fn(|class| class);
        for last in (1..CLASSES).rev() {
            order.swap(last, dice.below(last + 1));
        }
        order[place]
    }

    /// The surface of a sample.
    pub fn mesh(&self, id: SampleId) -> Mesh {
        assert!((id as usize) < self.count, "{id} of {} samples", self.count);
        solid::mesh(self.label(id), &mut self.dice(*b"surfaces", id))
    }

    /// Points of a sample, `[points, 3]`.
    fn cloud(&self, id: SampleId) -> Vec<f32> {
        let mesh = self.mesh(id);
        let mut cloud = solid::sample(&mesh, self.points, &mut self.dice(*b"points..", id));
        clouds::to_unit_ball(&mut cloud);
        cloud
    }

    fn dice(&self, purpose: [u8; 8], index: u64) -> Dice {
        let mut key = *b"ttac solids10 1.........";
        key[15] = match self.split {
            Split::Train => 0,
            Split::Test => 1,
        };
        key[16..].copy_from_slice(&purpose);
        Dice::new(&key, self.seed, index)
    }
}

impl Dataset for Solids10 {
    fn name(&self) -> &'static str {
        "solids10"
    }

    fn len(&self) -> usize {
        self.count
    }

    fn classes(&self) -> Vec<String> {
        SOLIDS10_CLASSES.map(str::to_owned).to_vec()
    }

    fn labels(&self) -> Result<Vec<usize>> {
        let ids = 0..self.count as SampleId;
        Ok(ids.map(|id| self.label(id)).collect())
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let clouds: Vec<Vec<f32>> = ids.par_iter().map(|&id| self.cloud(id)).collect();
        Ok(Batch {
            samples: Samples {
                ids: ids.to_vec(),
                images: Images::from_clouds(self.points, &clouds.concat()),
            },
            labels: ids.iter().map(|&id| self.label(id)).collect(),
        })
    }

    fn meshes(&self, ids: &[SampleId]) -> Option<Vec<Mesh>> {
        Some(ids.par_iter().map(|&id| self.mesh(id)).collect())
    }
}
