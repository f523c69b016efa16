//! `solids10`: clouds of points on ten solids, any number of them, no download.
//!
//! A sample is a solid with random proportions, turned about the vertical by any angle and leaning a little, and points
//! spread evenly over its surface. Its mesh can be had too, so that all corruptions of clouds are possible. Sample `i` of a
//! split is a function of seed, split and `i` alone; every ten samples in a row hold every class once.
//!
//! As in ModelNet40, meshes stand on the xy plane, and in clouds y is up; a cloud's mean is the origin and its farthest
//! point has distance one.

mod solid;

use std::sync::Arc;

use rayon::prelude::*;
use ttac_corrupt::points::Mesh;

use super::dice::Dice;
use super::{Batch, Dataset, SampleId, SetInfo, Split, clouds};
use crate::Result;
use crate::rng::Purpose;

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
/// let clouds = batch.samples.into_clouds()?;
/// assert_eq!((clouds.count(), clouds.points), (3, 1024));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Solids10 {
    info: SetInfo,
    recipe: Recipe,
    points: usize,
}

impl Solids10 {
    /// Points of a cloud where nobody asks for another number.
    pub const POINTS: usize = 1_024;

    /// Describes the first `count` samples of a split.
    pub fn new(split: Split, count: usize, seed: u64) -> Self {
        let recipe = Recipe { split, count, seed };
        let meshes = move |ids: &[SampleId]| ids.par_iter().map(|&id| recipe.mesh(id)).collect();
        Self {
            info: SetInfo {
                meshes: Some(Arc::new(meshes)),
                ..SetInfo::new("solids10", count, SOLIDS10_CLASSES)
            },
            recipe,
            points: Self::POINTS,
        }
    }

    /// Describes a split in its usual size, with seed 0.
    pub fn standard(split: Split) -> Self {
        Self::new(split, split.of(5_000, 1_000), 0)
    }

    /// Changes the number of points in a cloud. The first points are the same but for the scale.
    pub fn with_points(mut self, points: usize) -> Self {
        self.points = points;
        self
    }

    /// Returns the class of a sample: one of a random order of all classes for every ten samples.
    pub fn label(&self, id: SampleId) -> usize {
        self.recipe.label(id)
    }

    /// Returns the surface of a sample.
    pub fn mesh(&self, id: SampleId) -> Mesh {
        self.recipe.mesh(id)
    }
}

impl Dataset for Solids10 {
    fn info(&self) -> &SetInfo {
        &self.info
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        let (recipe, points) = (self.recipe, self.points);
        let cloud = |id| Ok(recipe.cloud(id, points));
        clouds::batch(ids, points, cloud, |id| recipe.label(id))
    }

    fn labels(&self) -> Result<Option<Vec<usize>>> {
        let ids = 0..self.info.len as SampleId;
        Ok(Some(ids.map(|id| self.label(id)).collect()))
    }
}

/// What the solids of a set depend on.
#[derive(Clone, Copy, Debug)]
struct Recipe {
    split: Split,
    count: usize,
    seed: u64,
}

impl Recipe {
    fn label(self, id: SampleId) -> usize {
        let (block, place) = (id / CLASSES as u64, id as usize % CLASSES);
        let mut dice = self.dice(*b"labels..", block);
        let mut order: [usize; CLASSES] = std::array::from_fn(|class| class);
        dice.shuffle(&mut order);
        order[place]
    }

    fn mesh(self, id: SampleId) -> Mesh {
        assert!((id as usize) < self.count, "{id} of {} samples", self.count);
        solid::mesh(self.label(id), &mut self.dice(*b"surfaces", id))
    }

    /// Points of a sample, `[points, 3]`.
    fn cloud(self, id: SampleId, points: usize) -> Vec<f32> {
        let mut dice = self.dice(*b"points..", id);
        let mut cloud = solid::sample(&self.mesh(id), points, &mut dice);
        clouds::to_unit_ball(&mut cloud);
        cloud
    }

    fn dice(self, purpose: [u8; 8], index: u64) -> Dice {
        let purpose = Purpose::new(*b"ttac solids10 1.........")
            .with(15, [self.split as u8])
            .with(16, purpose);
        Dice::new(purpose, self.seed, index)
    }
}
