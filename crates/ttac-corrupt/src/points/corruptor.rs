use rayon::prelude::*;

use super::kernel::{Kernel, view};
use super::noise::choose;
use super::{Cloud, Mesh, Point, PointCorruption};
use crate::random::Stream;
use crate::{Error, Severity};

/// Clouds that all have the same number of points.
#[derive(Clone, Debug, PartialEq)]
pub struct Clouds {
    /// The number of points in a cloud.
    pub points: usize,
    /// The coordinates, `[count, points, 3]`.
    pub values: Vec<f32>,
}

impl Clouds {
    /// Returns the number of clouds.
    pub fn count(&self) -> usize {
        self.each().len()
    }

    /// Iterates over the clouds, each `[points, 3]`.
    pub fn each(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact((3 * self.points).max(1))
    }
}

/// Corrupts clouds, reproducibly.
///
/// The cloud at position `i` of a set draws its random numbers from a stream of its own, made of the seed, the
/// corruption, the severity and `i`. Neither the number of threads nor the way a set is cut into calls changes a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointCorruptor {
    seed: u64,
    points: usize,
}

// Where streams of clouds begin among those of images, and streams of choices of points among those of clouds.
const CLOUDS: u8 = 128;
const CHOICES: u8 = 192;

impl PointCorruptor {
    /// Makes a corruptor with a seed that starts from 1,024 points.
    pub fn new(seed: u64) -> Self {
        Self { seed, points: 1024 }
    }

    /// Starts from another number of points.
    ///
    /// # Panics
    /// If it is zero.
    #[must_use]
    pub fn with_points(mut self, points: usize) -> Self {
        assert!(points > 0, "a cloud of no points");
        self.points = points;
        self
    }

    /// Returns the seed of all streams.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the number of points that a corruption starts from.
    pub fn points(&self) -> usize {
        self.points
    }

    /// Corrupts clouds, `[count, points, 3]`, which should lie in the unit ball. `indices` has the position of each in
    /// its set.
    ///
    /// Of clouds with more points than [`points`](Self::points) so many are taken, at the same places of every cloud;
    /// only `density_inc` makes use of all. The result may have more or fewer points, see the
    /// [table](super#): all its clouds have equally many.
    ///
    /// # Panics
    /// If there are not as many indices as clouds.
    pub fn apply(
        &self,
        corruption: PointCorruption,
        severity: Severity,
        clouds: &[f32],
        points: usize,
        indices: &[u64],
    ) -> Result<Clouds, Error> {
        let kernel = Kernel::new(corruption, severity).ok_or(Error::NeedsMeshes { corruption })?;
        if points == 0 || !clouds.len().is_multiple_of(3 * points) {
            return Err(Error::CloudLength {
                found: clouds.len(),
                points,
            });
        }
        assert_eq!(
            clouds.len(),
            3 * points * indices.len(),
            "clouds and indices"
        );
        let needed = self.points.max(kernel.fewest());
        if points < needed {
            return Err(Error::TooFewPoints {
                corruption,
                needed,
                found: points,
            });
        }
        let clouds: Vec<&[[f32; 3]]> = clouds
            .chunks_exact(3 * points)
            .map(|cloud| cloud.as_chunks().0)
            .collect();
        for (cloud, &index) in clouds.iter().zip(indices) {
            check(cloud, index)?;
        }
        let slots = (points > self.points && !kernel.takes_all()).then(|| {
            let kind = CHOICES + corruption as u8;
            let mut random = Stream::keyed(self.seed, kind, severity, 0);
            let mut slots = choose(points, self.points, &mut random);
            slots.sort_unstable();
            slots
        });
        let corrupted: Vec<Vec<f32>> = clouds
            .par_iter()
            .zip(indices)
            .map(|(cloud, &index)| {
                let cloud: Cloud = match &slots {
                    Some(slots) => slots
                        .iter()
                        .map(|&slot| cloud[slot].map(f64::from))
                        .collect(),
                    None => cloud.iter().map(|point| point.map(f64::from)).collect(),
                };
                let mut random = self.stream(corruption, severity, index);
                narrow(&kernel.apply(cloud, self.points, &mut random))
            })
            .collect();
        Ok(gather(&corrupted))
    }

    /// Makes clouds of what occlusion or LiDAR leave of meshes, `points` points each for occlusion and three quarters of
    /// that for LiDAR. `indices` has the position of each mesh in its set. The severity is a side to look from.
    ///
    /// Meshes that cannot be rendered are all named in the error.
    ///
    /// # Panics
    /// If there are not as many indices as meshes.
    pub fn apply_to_meshes(
        &self,
        corruption: PointCorruption,
        severity: Severity,
        meshes: &[Mesh],
        indices: &[u64],
    ) -> Result<Clouds, Error> {
        if !corruption.needs_meshes() {
            return Err(Error::NeedsPoints { corruption });
        }
        assert_eq!(meshes.len(), indices.len(), "meshes and indices");
        let seen: Vec<_> = meshes
            .par_iter()
            .zip(indices)
            .map(|(mesh, &index)| {
                let mut random = self.stream(corruption, severity, index);
                view(corruption, severity, mesh, self.points, &mut random)
                    .map(|cloud| narrow(&cloud))
                    .map_err(|problem| (index, problem))
            })
            .collect();
        let mut problems = Vec::new();
        let mut clouds = Vec::with_capacity(seen.len());
        for result in seen {
            match result {
                Ok(cloud) => clouds.push(cloud),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() {
            Ok(gather(&clouds))
        } else {
            Err(Error::Meshes {
                total: meshes.len(),
                problems,
            })
        }
    }

    fn stream(&self, corruption: PointCorruption, severity: Severity, index: u64) -> Stream {
        Stream::keyed(self.seed, CLOUDS + corruption as u8, severity, index)
    }
}

fn check(cloud: &[[f32; 3]], index: u64) -> Result<(), Error> {
    let wild = |point: &[f32; 3]| point.iter().any(|value| !value.is_finite());
    if let Some(point) = cloud.iter().position(wild) {
        return Err(Error::PointNotFinite {
            cloud: index,
            point,
        });
    }
    if cloud.iter().all(|point| *point == cloud[0]) {
        return Err(Error::PointsAllEqual { cloud: index });
    }
    Ok(())
}

fn narrow(cloud: &[Point]) -> Vec<f32> {
    cloud
        .as_flattened()
        .iter()
        .map(|&value| value as f32)
        .collect()
}

fn gather(clouds: &[Vec<f32>]) -> Clouds {
    let points = clouds.first().map_or(0, |cloud| cloud.len() / 3);
    assert!(
        clouds.iter().all(|cloud| cloud.len() == 3 * points),
        "clouds of one size"
    );
    Clouds {
        points,
        values: clouds.concat(),
    }
}
