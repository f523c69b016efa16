//! What readers of clouds have in common.

use rayon::prelude::*;

use super::{Batch, Clouds, SampleId};
use crate::Result;

/// Makes or reads the clouds of a batch, on all threads.
pub(super) fn batch(
    ids: &[SampleId],
    points: usize,
    cloud: impl Fn(SampleId) -> Result<Vec<f32>> + Sync,
    label: impl Fn(SampleId) -> usize,
) -> Result<Batch> {
    let clouds: Vec<Vec<f32>> = (ids.par_iter())
        .map(|&id| cloud(id))
        .collect::<Result<_>>()?;
    let values = clouds.concat();
    Ok(Batch {
        ids: ids.to_vec(),
        samples: Clouds { points, values }.into(),
        labels: Some(ids.iter().map(|&id| label(id)).collect()),
    })
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
