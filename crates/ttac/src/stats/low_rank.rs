//! Covariances by their largest directions.

use faer::{MatRef, Side};

use super::{Covariance, Gaussian};
use crate::{Error, Result};

impl Gaussian {
    /// The same mean with the `rank` largest directions of the covariance; the other variances are
    /// replaced by their mean, as a ridge in all directions, which keeps the trace.
    pub fn to_low_rank(&self, rank: usize) -> Result<Self> {
        let dimension = self.dimension();
        let rank = rank.min(dimension);
        let full = self.covariance().to_full(dimension);
        let matrix = MatRef::from_row_major_slice(&full, dimension, dimension);
        let eigen = matrix
            .self_adjoint_eigen(Side::Lower)
            .map_err(|e| Error::Invalid {
                what: "covariance",
                problem: format!("its directions cannot be found ({e:?})"),
            })?;
        // Ascending.
        let values: Vec<f64> = eigen.S().column_vector().iter().copied().collect();
        let small = dimension - rank;
        let ridge = match small {
            0 => 0.0,
            _ => values[..small].iter().sum::<f64>().max(0.0) / small as f64,
        };
        let vectors = eigen.U();
        let mut factors = Vec::with_capacity(rank * dimension);
        for index in (small..dimension).rev() {
            let length = (values[index] - ridge).max(0.0).sqrt();
            factors.extend(vectors.col(index).iter().map(|value| length * value));
        }
        Self::new(self.mean().to_vec(), Covariance::LowRank { factors, ridge })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_directions_are_the_covariance_and_fewer_keep_the_trace() {
        let rows: Vec<Vec<f64>> = (0..7)
            .map(|i| (0..5).map(|j| ((i * 5 + j * j) as f64).sin()).collect())
            .collect();
        let mut full = vec![0.0; 25];
        for row in &rows {
            for i in 0..5 {
                for j in 0..5 {
                    full[i * 5 + j] += row[i] * row[j];
                }
            }
        }
        let gaussian = Gaussian::new(vec![0.0; 5], Covariance::Full(full.clone())).unwrap();
        let all = gaussian.to_low_rank(5).unwrap().covariance().to_full(5);
        for (a, b) in all.iter().zip(&full) {
            assert!((a - b).abs() < 1e-9, "{a} and {b}");
        }
        let trace = |matrix: &[f64]| (0..5).map(|i| matrix[i * 6]).sum::<f64>();
        let two = gaussian.to_low_rank(2).unwrap().covariance().to_full(5);
        assert!((trace(&two) - trace(&full)).abs() < 1e-9);
    }
}
