//! Clouds varied at random, as DGCNN is trained.

use super::{Draw, below, uniform};
use crate::data::{Images, Samples};

/// Every axis scaled by U(2/3, 3/2) and shifted by U(-0.2, 0.2), then the points in random order.
///
/// # Panics
/// If the samples are no clouds.
pub(super) fn augment(samples: &Samples, draw: Draw) -> Images {
    let images = &samples.images;
    let mut values = images.to_clouds();
    let values = values
        .as_mut()
        .expect("`Augmentation::check` let clouds through only");
    let clouds = values.chunks_exact_mut(3 * images.height);
    for (&id, cloud) in samples.ids.iter().zip(clouds) {
        let rng = &mut draw.rng(id);
        let scale: [f32; 3] = std::array::from_fn(|_| uniform(2.0 / 3.0, 1.5, rng));
        let shift: [f32; 3] = std::array::from_fn(|_| uniform(-0.2, 0.2, rng));
        let points = cloud.as_chunks_mut::<3>().0;
        for point in points.iter_mut() {
            for axis in 0..3 {
                point[axis] = point[axis] * scale[axis] + shift[axis];
            }
        }
        for last in (1..points.len()).rev() {
            points.swap(last, below(last + 1, rng));
        }
    }
    Images::from_clouds(images.height, values)
}
