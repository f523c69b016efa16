//! Clouds of points as samples.
//!
//! A batch travels as bytes from its reader to the [`InputContract`](crate::checkpoint::InputContract) of a model, through
//! queues and mixtures that never look inside. A cloud's bytes are its points, one to a row: three `f32`, lowest byte
//! first, are the twelve bytes of four columns of RGB.

use super::{Images, SampleId};
use crate::{Error, Result};

impl Images {
    /// Columns of a cloud's row. No picture is so narrow.
    pub const CLOUD_WIDTH: usize = 4;

    /// Clouds of `points` points, `[count, points, 3]`.
    ///
    /// # Panics
    /// If the values are not whole clouds.
    pub fn from_clouds(points: usize, values: &[f32]) -> Self {
        let count = values.len();
        assert!(
            points > 0 && count.is_multiple_of(3 * points),
            "{count} values for clouds of {points} points"
        );
        Self {
            height: points,
            width: Self::CLOUD_WIDTH,
            pixels: values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
        }
    }

    /// The coordinates `[count, height, 3]`, if these are clouds.
    pub fn to_clouds(&self) -> Option<Vec<f32>> {
        let numbers = self.pixels.as_chunks::<4>().0;
        (self.width == Self::CLOUD_WIDTH).then(|| {
            numbers
                .iter()
                .map(|&bytes| f32::from_le_bytes(bytes))
                .collect()
        })
    }

    /// What there is of each sample, in words.
    pub fn describe(&self) -> String {
        let Self { height, width, .. } = self;
        match *width {
            Self::CLOUD_WIDTH => format!("clouds of {height} points"),
            _ => format!("images of {height} x {width} pixels"),
        }
    }

    /// Adds samples of the same kind and size.
    pub fn append(&mut self, more: Self) -> Result<()> {
        if (self.height, self.width) != (more.height, more.width) {
            return Err(Error::Mismatch {
                what: "sizes of samples in one batch".to_owned(),
                expected: self.describe(),
                found: more.describe(),
            });
        }
        self.pixels.extend(more.pixels);
        Ok(())
    }
}

/// What is wrong with a cloud of which nothing can be learned, if anything is.
pub(super) fn problem(cloud: &[f32]) -> Option<String> {
    if let Some(at) = cloud.iter().position(|value| !value.is_finite()) {
        return Some(format!(
            "its point {} has a coordinate {}",
            at / 3,
            cloud[at]
        ));
    }
    let mut points = cloud.chunks_exact(3);
    let first = points.next()?;
    points
        .all(|point| point == first)
        .then(|| "all its points are equal".to_owned())
}

/// Moves the mean of the points to the origin and the farthest of them to distance one.
pub(super) fn to_unit_ball(cloud: &mut [f32]) {
    let count = (cloud.len() / 3) as f64;
    let mean: [f64; 3] = std::array::from_fn(|axis| {
        let along = cloud.iter().skip(axis).step_by(3);
        along.map(|&value| f64::from(value)).sum::<f64>() / count
    });
    let mut farthest = 0.0_f64;
    for point in cloud.chunks_exact_mut(3) {
        let mut square = 0.0;
        for axis in 0..3 {
            let value = f64::from(point[axis]) - mean[axis];
            point[axis] = value as f32;
            square += value * value;
        }
        farthest = farthest.max(square);
    }
    let scale = 1.0 / farthest.sqrt();
    for value in cloud {
        *value = (f64::from(*value) * scale) as f32;
    }
}

/// The values of some clouds, `[ids, points, 3]`, from an array of all.
///
/// # Panics
/// If an id is none.
pub(super) fn gather(values: &[f32], points: usize, ids: &[SampleId]) -> Vec<f32> {
    let length = 3 * points;
    ids.iter()
        .flat_map(|&id| &values[id as usize * length..][..length])
        .copied()
        .collect()
}
