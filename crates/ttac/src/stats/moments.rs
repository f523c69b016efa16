//! Moments of rows in one pass.

use faer::{Mat, MatMut, MatRef};

use super::linear::{add_outer_products, mirror};
use super::{Covariance, CovarianceKind, Gaussian};
use crate::{Error, Result};

/// The number of rows that are widened to `f64` at a time, to bound the memory.
const CHUNK: usize = 1024;

/// Collects count, sum and second moments of rows in one pass.
///
/// Everything is summed relative to a shift `c` near the data, so that the covariance
/// `Q/n - (s/n)(s/n)'` of `s = sum_i (x_i - c)` and `Q = sum_i (x_i - c)(x_i - c)'` is not the
/// small difference of two large numbers.
#[derive(Clone, Debug)]
pub struct Moments {
    dimension: usize,
    count: u64,
    shift: Option<Vec<f64>>,
    sum: Vec<f64>,
    second: Second,
}

#[derive(Clone, Debug)]
enum Second {
    /// `[D, D]`, the lower triangle.
    Full(Mat<f64>),
    /// `[D]`.
    Diagonal(Vec<f64>),
}

impl Moments {
    /// Starts without rows. The mean of the first rows becomes the shift.
    pub fn new(dimension: usize, kind: CovarianceKind) -> Self {
        assert!(dimension > 0, "moments of no features");
        Self {
            dimension,
            count: 0,
            shift: None,
            sum: vec![0.0; dimension],
            second: match kind {
                CovarianceKind::Full => Second::Full(Mat::zeros(dimension, dimension)),
                CovarianceKind::Diagonal => Second::Diagonal(vec![0.0; dimension]),
            },
        }
    }

    /// Sums relative to a point, `[D]`, that should lie near the data.
    pub fn with_shift(mut self, shift: Vec<f64>) -> Self {
        assert_eq!(shift.len(), self.dimension, "shift and features differ");
        assert_eq!(self.count, 0, "rows were summed with another shift");
        self.shift = Some(shift);
        self
    }

    /// Adds `rows`, `[n, D]`.
    pub fn update(&mut self, rows: &[f32]) {
        let dimension = self.dimension;
        assert!(
            rows.len().is_multiple_of(dimension),
            "{} numbers are no rows of {dimension}",
            rows.len()
        );
        if rows.is_empty() {
            return;
        }
        let shift = self.shift.get_or_insert_with(|| {
            let first = &rows[..rows.len().min(CHUNK * dimension)];
            mean_of_rows(first, dimension)
        });
        for chunk in rows.chunks(CHUNK * dimension) {
            let mut shifted = Vec::with_capacity(chunk.len());
            for row in chunk.chunks_exact(dimension) {
                shifted.extend(row.iter().zip(&*shift).map(|(&x, c)| f64::from(x) - c));
            }
            for row in shifted.chunks_exact(dimension) {
                for (sum, value) in self.sum.iter_mut().zip(row) {
                    *sum += value;
                }
            }
            match &mut self.second {
                Second::Full(lower) => {
                    add_outer_products(lower.as_mut(), columns_of(&shifted, dimension), 1.0);
                }
                Second::Diagonal(squares) => {
                    for row in shifted.chunks_exact(dimension) {
                        for (square, value) in squares.iter_mut().zip(row) {
                            *square += value * value;
                        }
                    }
                }
            }
        }
        self.count += (rows.len() / dimension) as u64;
    }

    /// Adds everything `other` has seen. With `e` from our shift to the other one,
    /// `s <- s + s_o + n_o e` and `Q <- Q + Q_o + s_o e' + e s_o' + n_o e e'`.
    pub fn merge(&mut self, other: &Self) {
        assert_eq!(
            self.dimension, other.dimension,
            "numbers of features differ"
        );
        let Some(theirs) = &other.shift else {
            return;
        };
        let ours = self.shift.get_or_insert_with(|| theirs.clone());
        let between: Vec<f64> = theirs.iter().zip(&*ours).map(|(t, o)| t - o).collect();
        let count = other.count as f64;
        match (&mut self.second, &other.second) {
            (Second::Full(lower), Second::Full(added)) => {
                for column in 0..self.dimension {
                    for row in column..self.dimension {
                        lower[(row, column)] += added[(row, column)]
                            + other.sum[row] * between[column]
                            + between[row] * other.sum[column]
                            + count * between[row] * between[column];
                    }
                }
            }
            (Second::Diagonal(squares), Second::Diagonal(added)) => {
                for index in 0..self.dimension {
                    let apart = between[index];
                    squares[index] +=
                        added[index] + (2.0 * other.sum[index] + count * apart) * apart;
                }
            }
            _ => panic!("full and diagonal moments do not merge"),
        }
        for index in 0..self.dimension {
            self.sum[index] += other.sum[index] + count * between[index];
        }
        self.count += other.count;
    }

    /// Returns how many rows were seen.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the mean, `[D]`; zero if no row was seen.
    pub fn mean(&self) -> Vec<f64> {
        let mut mean = self.mean_from_shift();
        if let Some(shift) = &self.shift {
            mean.iter_mut().zip(shift).for_each(|(m, c)| *m += c);
        }
        mean
    }

    /// Returns the biased covariance, divided by the count as in the released code; zero if no row was
    /// seen.
    pub fn covariance(&self) -> Covariance {
        let mean = self.mean_from_shift();
        let count = self.count.max(1) as f64;
        match &self.second {
            Second::Full(lower) => {
                let dimension = self.dimension;
                let mut matrix = vec![0.0; dimension * dimension];
                for (column, entries) in matrix.chunks_exact_mut(dimension).enumerate() {
                    for row in column..dimension {
                        entries[row] = lower[(row, column)] / count - mean[row] * mean[column];
                    }
                }
                mirror(MatMut::from_column_major_slice_mut(
                    &mut matrix,
                    dimension,
                    dimension,
                ));
                Covariance::Full(matrix)
            }
            Second::Diagonal(squares) => {
                let pairs = squares.iter().zip(&mean);
                Covariance::Diagonal(pairs.map(|(q, m)| q / count - m * m).collect())
            }
        }
    }

    /// Returns the mean and the biased covariance. No row, or one that is not finite, is an error.
    pub fn gaussian(&self) -> Result<Gaussian> {
        if self.count == 0 {
            return Err(Error::Invalid {
                what: "statistics",
                problem: "there are no samples".to_owned(),
            });
        }
        Gaussian::new(self.mean(), self.covariance())
    }

    fn mean_from_shift(&self) -> Vec<f64> {
        let count = self.count.max(1) as f64;
        self.sum.iter().map(|sum| sum / count).collect()
    }
}

/// Views rows, `[n, D]`, as the columns of a matrix, `[D, n]`.
pub(super) fn columns_of(rows: &[f64], dimension: usize) -> MatRef<'_, f64> {
    MatRef::from_column_major_slice(rows, dimension, rows.len() / dimension)
}

/// Averages rows, `[n, D]`, of which there is at least one.
fn mean_of_rows(rows: &[f32], dimension: usize) -> Vec<f64> {
    let mut mean = vec![0.0; dimension];
    for row in rows.chunks_exact(dimension) {
        for (sum, &value) in mean.iter_mut().zip(row) {
            *sum += f64::from(value);
        }
    }
    let count = (rows.len() / dimension) as f64;
    for sum in &mut mean {
        *sum /= count;
    }
    mean
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::RngExt;

    use super::*;
    use crate::rng::seeded;
    use crate::stats::CovarianceKind::{Diagonal, Full};
    use crate::stats::cut::Cut;

    fn two_pass(rows: &[f32], dimension: usize) -> (Vec<f64>, Vec<f64>) {
        let mean = mean_of_rows(rows, dimension);
        let count = (rows.len() / dimension) as f64;
        let mut covariance = vec![0.0; dimension * dimension];
        for row in rows.chunks_exact(dimension) {
            for i in 0..dimension {
                for j in 0..dimension {
                    let product = (f64::from(row[i]) - mean[i]) * (f64::from(row[j]) - mean[j]);
                    covariance[i * dimension + j] += product / count;
                }
            }
        }
        (mean, covariance)
    }

    fn rows(seed: u64, count: usize, dimension: usize, offset: f32) -> Vec<f32> {
        let mut random = seeded(seed, 0);
        let mut next = || offset + random.random::<f32>() * 3.5 - 1.75;
        (0..count * dimension).map(|_| next()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn any_split_and_merge_equals_two_passes(
            cut in Cut::any(1..9, 30),
            offset in prop::sample::select(vec![0.0_f32, 1000.0, -3.0]),
            given_shift in any::<bool>(),
        ) {
            let (dimension, count) = (cut.dimension, cut.count());
            let all = rows(cut.seed, count, dimension, offset);
            let (mean, covariance) = two_pass(&all, dimension);
            for kind in [Full, Diagonal] {
                let empty = Moments::new(dimension, kind);
                let mut merged = empty.clone();
                let mut straight = if given_shift {
                    empty.clone().with_shift(vec![f64::from(offset); dimension])
                } else {
                    empty.clone()
                };
                for part in cut.parts(&all) {
                    straight.update(part);
                    let mut own = empty.clone();
                    own.update(part);
                    merged.merge(&own);
                }
                for moments in [merged, straight] {
                    prop_assert_eq!(moments.count(), count as u64);
                    for (found, expected) in moments.mean().iter().zip(&mean) {
                        prop_assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0));
                    }
                    let found = moments.covariance().to_full(dimension);
                    for index in 0..found.len() {
                        let diagonal = index % (dimension + 1) == 0;
                        let expected =
                            if kind == Full || diagonal { covariance[index] } else { 0.0 };
                        // The entries are of order one.
                        let apart = (found[index] - expected).abs();
                        prop_assert!(apart <= 1e-6, "{kind:?} {index}: {apart:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_number_of_threads_and_chunks_does_not_show() {
        let dimension = 520;
        let all = rows(3, CHUNK + 100, dimension, 2.0);
        let with_threads = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            pool.build().unwrap().install(|| {
                let mut moments = Moments::new(dimension, Full);
                moments.update(&all);
                moments.covariance()
            })
        };
        let one = with_threads(1);
        assert_eq!(one, with_threads(2));
        assert_eq!(one, with_threads(3));
    }

    #[test]
    fn nothing_is_no_gaussian() {
        let mut moments = Moments::new(2, Full);
        assert_eq!(moments.mean(), [0.0, 0.0]);
        assert!(moments.gaussian().is_err());
        moments.update(&[1.0, 2.0]);
        let gaussian = moments.gaussian().unwrap();
        assert_eq!(gaussian.mean(), [1.0, 2.0]);
        assert_eq!(gaussian.covariance(), &Covariance::Full(vec![0.0; 4]));
        moments.update(&[f32::NAN, 2.0]);
        assert!(moments.gaussian().is_err());
    }
}
