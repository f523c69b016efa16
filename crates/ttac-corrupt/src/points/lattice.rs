//! Free-form deformation: a jelly around the cloud, pulled at 5 x 5 x 5 control points.

use super::Cloud;
use super::pose::norm;
use crate::random::Random;

/// Control points along an axis, from one side of the box to the other.
const SIDE: usize = 5;
const DEGREE: usize = SIDE - 1;
/// Length of the box, [-1, 1].
const BOX: f64 = 2.0;

/// `p + sum over (i, j, k) of B_i(u) B_j(v) B_k(w) d_ijk`, with Bernstein polynomials B of degree 4 and (u, v, w) the
/// place in the box. A displacement d has coordinates U(-c, c) in parts of the box. Points outside the box stay.
pub(super) fn free_form(mut cloud: Cloud, c: f64, random: &mut impl Random) -> Cloud {
    let mut displacements = [[0.0; 3]; SIDE * SIDE * SIDE];
    for value in displacements.as_flattened_mut() {
        *value = BOX * random.uniform(-c, c);
    }
    for point in &mut cloud {
        let inside = point.iter().all(|value| value.abs() <= 1.0);
        if inside {
            let [u, v, w] = point.map(|value| bernstein((value + 1.0) / BOX));
            for (index, displacement) in displacements.iter().enumerate() {
                let weight = u[index / (SIDE * SIDE)] * v[index / SIDE % SIDE] * w[index % SIDE];
                for axis in 0..3 {
                    point[axis] += weight * displacement[axis];
                }
            }
        }
    }
    norm(cloud)
}

/// The five Bernstein polynomials of degree 4 at t.
fn bernstein(t: f64) -> [f64; SIDE] {
    const BINOMIAL: [f64; SIDE] = [1.0, 4.0, 6.0, 4.0, 1.0];
    std::array::from_fn(|i| BINOMIAL[i] * t.powi(i as i32) * (1.0 - t).powi((DEGREE - i) as i32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Replay;

    #[test]
    fn polynomials_sum_to_one_and_no_displacement_is_the_identity() {
        for t in [0.0, 0.3, 0.5, 1.0] {
            assert!((bernstein(t).iter().sum::<f64>() - 1.0).abs() < 1e-14);
        }
        let cloud = vec![[-1.0, 0.5, 0.25], [1.0, -0.5, 0.0], [0.2, 0.3, -0.25]];
        let same = free_form(cloud.clone(), 0.0, &mut Replay::new(1));
        for (a, b) in cloud.as_flattened().iter().zip(same.as_flattened()) {
            assert!((a - b).abs() < 1e-12);
        }
    }
}
