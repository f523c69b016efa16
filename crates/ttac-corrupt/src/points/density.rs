//! Holes, thin places and dense places.

use super::noise::choose;
use super::{Cloud, Point};
use crate::random::Random;

/// Points that go with every hole.
pub(super) const HOLE: usize = 30;
/// Points of a place that becomes thin or dense.
pub(super) const PLACE: usize = 100;
/// How many of them go where it becomes thin.
pub(super) const THINNED: usize = 75;

/// `holes` times, the [`HOLE`] points nearest to a random one go, itself included.
pub(super) fn cutout(mut cloud: Cloud, holes: usize, random: &mut impl Random) -> Cloud {
    for _ in 0..holes {
        let gone = nearest(&cloud, HOLE, random);
        remove(&mut cloud, &gone);
    }
    cloud
}

/// `places` times, of the [`PLACE`] points nearest to a random one [`THINNED`] go.
pub(super) fn decrease(mut cloud: Cloud, places: usize, random: &mut impl Random) -> Cloud {
    for _ in 0..places {
        let place = nearest(&cloud, PLACE, random);
        let gone = choose(PLACE, THINNED, random);
        let gone: Vec<usize> = gone.into_iter().map(|index| place[index]).collect();
        remove(&mut cloud, &gone);
    }
    cloud
}

/// `places` times, the [`PLACE`] points nearest to a random one move to the output, which is filled up to `total` by
/// points of the rest, drawn with replacement.
pub(super) fn increase(
    mut cloud: Cloud,
    places: usize,
    total: usize,
    random: &mut impl Random,
) -> Cloud {
    let mut dense = Vec::with_capacity(total);
    for _ in 0..places {
        let place = nearest(&cloud, PLACE, random);
        dense.extend(place.iter().map(|&index| cloud[index]));
        remove(&mut cloud, &place);
    }
    while dense.len() < total {
        dense.push(cloud[random.below(cloud.len())]);
    }
    dense
}

/// The `count` points nearest to a random point, nearest first. Of two that are equally far the first is nearer.
fn nearest(cloud: &[Point], count: usize, random: &mut impl Random) -> Vec<usize> {
    let centre = cloud[random.below(cloud.len())];
    let distance = |point: &Point| {
        let [x, y, z] = std::array::from_fn(|axis| point[axis] - centre[axis]);
        x * x + y * y + z * z
    };
    let mut far: Vec<(f64, usize)> = cloud.iter().map(distance).zip(0..).collect();
    let order = |a: &(f64, usize), b: &(f64, usize)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
    far.select_nth_unstable_by(count - 1, order);
    far.truncate(count);
    far.sort_unstable_by(order);
    far.into_iter().map(|(_, index)| index).collect()
}

/// Takes points out; the others keep their order.
fn remove(cloud: &mut Cloud, gone: &[usize]) {
    let mut keep = vec![true; cloud.len()];
    for &index in gone {
        keep[index] = false;
    }
    let mut keep = keep.into_iter();
    cloud.retain(|_| keep.next().expect("one answer for every point"));
}
