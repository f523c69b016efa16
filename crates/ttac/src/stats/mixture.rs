//! One Gaussian for several, by the law of total covariance.

use faer::{Mat, MatMut};

use super::linear::{add_outer_products, mirror};
use super::{Covariance, Gaussian};
use crate::Result;

/// Returns the Gaussian with the mean and the covariance of a mixture: with shares `s_k` that add up to one,
///
/// ```text
/// m = sum_k s_k m_k        S = sum_k s_k (S_k + (m_k - m)(m_k - m)')
/// ```
///
/// # Panics
/// If there are no parts, or their dimensions differ.
pub fn mixture(parts: &[(&Gaussian, f64)]) -> Result<Gaussian> {
    let dimension = parts[0].0.dimension();
    let mut mean = vec![0.0; dimension];
    for (part, share) in parts {
        assert_eq!(part.dimension(), dimension, "parts of a mixture differ");
        for (sum, value) in mean.iter_mut().zip(part.mean()) {
            *sum += share * value;
        }
    }
    let mut covariance = vec![0.0; dimension * dimension];
    for (part, share) in parts {
        match part.covariance() {
            Covariance::Diagonal(variances) => {
                for (index, variance) in variances.iter().enumerate() {
                    covariance[index * dimension + index] += share * variance;
                }
            }
            other => {
                let full = other.to_full(dimension);
                for (sum, value) in covariance.iter_mut().zip(full) {
                    *sum += share * value;
                }
            }
        }
    }
    let offsets = Mat::from_fn(dimension, parts.len(), |row, part| {
        let (gaussian, share) = parts[part];
        share.sqrt() * (gaussian.mean()[row] - mean[row])
    });
    let mut columns = MatMut::from_column_major_slice_mut(&mut covariance, dimension, dimension);
    add_outer_products(columns.as_mut(), offsets.as_ref(), 1.0);
    mirror(columns);
    Gaussian::new(mean, Covariance::Full(covariance))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Anchor, KlDirection, Measure, RunningGaussian};

    #[test]
    fn the_gradient_through_a_part_is_that_of_finite_differences() {
        let gaussian = |mean: [f64; 2], entries: [f64; 4]| {
            Gaussian::new(mean.to_vec(), Covariance::Full(entries.to_vec())).unwrap()
        };
        let other = gaussian([-1.0, 0.5], [0.8, 0.1, 0.1, 0.6]);
        let source = gaussian([0.2, 0.1], [1.5, 0.3, 0.3, 1.1]);
        let anchor = Anchor::new(&source, Measure::Kl(KlDirection::Symmetric)).unwrap();
        let own = gaussian([1.0, -0.3], [0.9, -0.2, -0.2, 0.7]);
        let running = RunningGaussian::new(&own, Some(10.0))
            .unwrap()
            .with_count(6.0);
        let shares = [0.3, 0.7];
        let rows = [1.5_f32, 0.25, 0.5, -1.0, 2.0, 0.75];
        let value = |rows: &[f32]| {
            let update = running.prepare(rows, None).unwrap();
            let target = mixture(&[(&update.gaussian, shares[0]), (&other, shares[1])]).unwrap();
            anchor.divergence(&target).unwrap().value()
        };
        let update = running.prepare(&rows, None).unwrap();
        let target = mixture(&[(&update.gaussian, shares[0]), (&other, shares[1])]).unwrap();
        let pairs = update.gaussian.mean().iter().zip(target.mean());
        let offset: Vec<f64> = pairs.map(|(own, all)| own - all).collect();
        let divergence = anchor.divergence(&target).unwrap();
        let found = divergence.gradient_rows_through(&update, &rows, shares[0], &offset);
        for index in 0..rows.len() {
            // A power of two, which single precision adds exactly here.
            let step = 1.0 / 1024.0;
            let moved = |by: f32| {
                let mut rows = rows;
                rows[index] += by;
                value(&rows)
            };
            let expected = (moved(step) - moved(-step)) / (2.0 * f64::from(step));
            // The error of central differences is the third derivative times a millionth.
            let difference = (f64::from(found[index]) - expected).abs();
            assert!(difference < 1e-5, "{index}: {} {expected}", found[index]);
        }
    }

    #[test]
    fn a_mixture_has_the_moments_of_its_parts_together() {
        // Two points in two dimensions are one part, three others another.
        let points: [&[[f64; 2]]; 2] = [
            &[[0.0, 1.0], [2.0, 5.0]],
            &[[3.0, -1.0], [4.0, 0.0], [8.0, 2.5]],
        ];
        let moments = |points: &[[f64; 2]]| {
            let n = points.len() as f64;
            let mean = [0, 1].map(|i| points.iter().map(|p| p[i]).sum::<f64>() / n);
            let entry = |i: usize, j: usize| {
                let products = points.iter().map(|p| (p[i] - mean[i]) * (p[j] - mean[j]));
                products.sum::<f64>() / n
            };
            let covariance = vec![entry(0, 0), entry(0, 1), entry(1, 0), entry(1, 1)];
            Gaussian::new(mean.to_vec(), Covariance::Full(covariance)).unwrap()
        };
        let parts = points.map(moments);
        let found = mixture(&[(&parts[0], 0.4), (&parts[1], 0.6)]).unwrap();
        let expected = moments(&points.concat());
        let pairs = |gaussian: &Gaussian| {
            let Covariance::Full(values) = gaussian.covariance().clone() else {
                unreachable!("it was made full")
            };
            [gaussian.mean().to_vec(), values].concat()
        };
        for (found, expected) in pairs(&found).iter().zip(pairs(&expected)) {
            // A few roundings of numbers below ten, in double precision.
            assert!((found - expected).abs() < 1e-13, "{found} {expected}");
        }
    }
}
