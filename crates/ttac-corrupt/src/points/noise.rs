//! Points that move or appear at random.

use super::Cloud;
use super::pose::norm;
use crate::random::Random;

/// Every coordinate + U(-c, c).
pub(super) fn uniform(mut cloud: Cloud, c: f64, random: &mut impl Random) -> Cloud {
    for value in cloud.as_flattened_mut() {
        *value += random.uniform(-c, c);
    }
    norm(cloud)
}

/// Every coordinate + N(0, c^2). The recipe cuts at the box instead of calling `norm`.
pub(super) fn gaussian(mut cloud: Cloud, c: f64, random: &mut impl Random) -> Cloud {
    for value in cloud.as_flattened_mut() {
        *value = (*value + c * random.normal()).clamp(-1.0, 1.0);
    }
    cloud
}

/// One more point for every `share` points, anywhere in the box.
pub(super) fn background(mut cloud: Cloud, share: usize, random: &mut impl Random) -> Cloud {
    for _ in 0..cloud.len() / share {
        cloud.push(std::array::from_fn(|_| random.uniform(-1.0, 1.0)));
    }
    norm(cloud)
}

/// One of `share` points moves by 0.1 one way or the other along every axis.
pub(super) fn impulse(mut cloud: Cloud, share: usize, random: &mut impl Random) -> Cloud {
    for index in choose(cloud.len(), cloud.len() / share, random) {
        for value in &mut cloud[index] {
            *value += 0.1 * sign(random);
        }
    }
    norm(cloud)
}

/// One of `share` points once more, + U(-.05, .05) in every coordinate.
pub(super) fn upsampling(mut cloud: Cloud, share: usize, random: &mut impl Random) -> Cloud {
    for index in choose(cloud.len(), cloud.len() / share, random) {
        cloud.push(cloud[index].map(|value| value + random.uniform(-0.05, 0.05)));
    }
    norm(cloud)
}

/// `count` different numbers below `limit`, in random order.
pub(super) fn choose(limit: usize, count: usize, random: &mut impl Random) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..limit).collect();
    for place in 0..count {
        numbers.swap(place, place + random.below(limit - place));
    }
    numbers.truncate(count);
    numbers
}

/// -1 or 1.
pub(super) fn sign(random: &mut impl Random) -> f64 {
    if random.unit() < 0.5 { -1.0 } else { 1.0 }
}
