//! Covariances reduced to their largest directions.

use faer::diag::Diag;
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::evd::{ComputeEigenvectors, self_adjoint_evd, self_adjoint_evd_scratch};
use faer::{Mat, MatRef, Par, Spec};

use super::{Covariance, Gaussian};
use crate::{Error, Result};

impl Gaussian {
    /// Keeps the mean and the `rank` largest directions of the covariance. The other variances are
    /// replaced by their mean, as a ridge in all directions, which keeps the trace.
    pub fn to_low_rank(&self, rank: usize) -> Result<Self> {
        let dimension = self.dimension();
        let rank = rank.min(dimension);
        let full = self.covariance().to_full(dimension);
        let matrix = MatRef::from_row_major_slice(&full, dimension, dimension);
        // One thread: faer's parallel decomposition depends on how many there are.
        let par = Par::Seq;
        let (mut values, mut vectors) = (Diag::zeros(dimension), Mat::zeros(dimension, dimension));
        let vectors_wanted = ComputeEigenvectors::Yes;
        let scratch =
            self_adjoint_evd_scratch::<f64>(dimension, vectors_wanted, par, Spec::default());
        self_adjoint_evd(
            matrix,
            values.as_mut(),
            Some(vectors.as_mut()),
            par,
            MemStack::new(&mut MemBuffer::new(scratch)),
            Spec::default(),
        )
        .map_err(|e| Error::Invalid {
            what: "covariance",
            problem: format!("its directions cannot be found ({e:?})"),
        })?;
        // faer sorts them in ascending order.
        let values: Vec<f64> = values.column_vector().iter().copied().collect();
        let small = dimension - rank;
        let ridge = match small {
            0 => 0.0,
            _ => values[..small].iter().sum::<f64>().max(0.0) / small as f64,
        };
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
