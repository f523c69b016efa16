//! Clouds varied at random, as DGCNN is trained.

use super::{Draw, uniform};
use crate::data::{Clouds, SampleId};
use crate::rng::shuffle;

/// Every axis scaled by U(2/3, 3/2) and shifted by U(-0.2, 0.2), then the points in random order.
pub(super) fn augment(ids: &[SampleId], clouds: &Clouds, draw: Draw) -> Clouds {
    let mut varied = clouds.clone();
    let each = varied.values.chunks_exact_mut((3 * clouds.points).max(1));
    for (&id, cloud) in ids.iter().zip(each) {
        let rng = &mut draw.rng(id);
        let scale: [f32; 3] = std::array::from_fn(|_| uniform(2.0 / 3.0, 1.5, rng));
        let shift: [f32; 3] = std::array::from_fn(|_| uniform(-0.2, 0.2, rng));
        let points = cloud.as_chunks_mut::<3>().0;
        for point in points.iter_mut() {
            for axis in 0..3 {
                point[axis] = point[axis] * scale[axis] + shift[axis];
            }
        }
        shuffle(points, rng);
    }
    varied
}
