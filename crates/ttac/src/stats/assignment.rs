//! Soft assignment of features to classes.

use faer::Mat;

use super::Gaussian;
use super::factor::Factorised;
use crate::{Error, Result};

/// Returns how much of every row belongs to each of `K` Gaussians of equal weight.
///
/// For `rows`, `[b, D]`, the result is `[K, b]`:
/// `w_ki = N(f_i; mu_k, S_k) / sum_j N(f_i; mu_j, S_j)`. The covariances must have their template
/// already.
pub fn responsibilities(gaussians: &[Gaussian], rows: &[f32]) -> Result<Vec<f32>> {
    let Some(dimension) = gaussians.first().map(Gaussian::dimension) else {
        return Ok(Vec::new());
    };
    assert!(
        rows.len().is_multiple_of(dimension),
        "{} numbers are no rows of {dimension}",
        rows.len()
    );
    let count = rows.len() / dimension;
    let mut logarithms = Vec::with_capacity(gaussians.len() * count);
    for gaussian in gaussians {
        if gaussian.dimension() != dimension {
            let found = gaussian.dimension();
            return Err(Error::mismatch(
                "features of the Gaussians",
                dimension,
                found,
            ));
        }
        logarithms.extend(log_densities(gaussian, rows, count)?);
    }
    let mut weights = vec![0.0; logarithms.len()];
    for sample in 0..count {
        let of_sample = || logarithms.iter().skip(sample).step_by(count);
        let largest = of_sample().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = of_sample().map(|value| (value - largest).exp()).sum();
        for (class, value) in of_sample().enumerate() {
            weights[class * count + sample] = ((value - largest).exp() / sum) as f32;
        }
    }
    Ok(weights)
}

/// Returns `ln N(f_i; mu, S)` of every row, without the constant `-D/2 ln 2 pi`.
fn log_densities(gaussian: &Gaussian, rows: &[f32], count: usize) -> Result<Vec<f64>> {
    let dimension = gaussian.dimension();
    let factor = Factorised::new(gaussian.covariance(), dimension)?.factor;
    let deviations = Mat::from_fn(dimension, count, |row, column| {
        f64::from(rows[column * dimension + row]) - gaussian.mean()[row]
    });
    let mut solved = deviations.clone();
    factor.solve(&mut solved);
    let determinant = factor.log_determinant();
    let mahalanobis = |column: usize| -> f64 {
        let pairs = deviations.col(column).iter().zip(solved.col(column).iter());
        pairs.map(|(a, b)| a * b).sum()
    };
    Ok((0..count)
        .map(|column| -0.5 * (mahalanobis(column) + determinant))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Covariance;

    fn gaussian(mean: &[f64], variance: f64) -> Gaussian {
        let variances = vec![variance; mean.len()];
        Gaussian::new(mean.to_vec(), Covariance::Diagonal(variances)).unwrap()
    }

    #[test]
    fn densities_share_every_sample() {
        let gaussians = [gaussian(&[0.0, 0.0], 1.0), gaussian(&[2.0, 1.0], 4.0)];
        let rows = [0.5, -0.5, 3.0, 1.0, 1.0, 0.5];
        let weights = responsibilities(&gaussians, &rows).unwrap();
        for (sample, row) in rows.chunks_exact(2).enumerate() {
            let [x, y] = [f64::from(row[0]), f64::from(row[1])];
            let first = (-0.5 * (x * x + y * y)).exp();
            let second = (-0.125 * ((x - 2.0).powi(2) + (y - 1.0).powi(2))).exp() / 4.0;
            let expected = first / (first + second);
            assert!((f64::from(weights[sample]) - expected).abs() < 1e-7);
            assert!((weights[sample] + weights[3 + sample] - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn far_from_everything_is_still_shared() {
        let gaussians = [gaussian(&[0.0], 1e-3), gaussian(&[1.0], 1e-3)];
        let weights = responsibilities(&gaussians, &[1000.0, 0.5]).unwrap();
        assert_eq!(weights[..1], [0.0]);
        assert_eq!(weights[2..3], [1.0]);
        assert_eq!([weights[1], weights[3]], [0.5, 0.5]);
    }

    #[test]
    fn nothing_to_share_among_and_unlike_dimensions() {
        assert!(responsibilities(&[], &[]).unwrap().is_empty());
        let unlike = [gaussian(&[0.0], 1.0), gaussian(&[0.0, 0.0], 1.0)];
        assert!(responsibilities(&unlike, &[1.0]).is_err());
    }
}
