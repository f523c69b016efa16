//! Gaussians that follow a stream.

use faer::MatMut;
use serde::{Deserialize, Serialize};

use super::linear::{add_outer_products, mirror};
use super::moments::columns_of;
use super::{Covariance, CovarianceKind, Gaussian};
use crate::{Error, Result};

/// How the weights of soft assignment enter the second moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SoftMoment {
    /// The second moment is `sum_i w_i D_i D_i'`.
    #[default]
    Weighted,
    /// The second moment is `sum_i w_i^2 D_i D_i'`, as in the released code, which multiplies the
    /// deviations by the weights before it squares them. The covariance may become indefinite.
    Squared,
}

impl SoftMoment {
    fn power(self, weight: f64) -> f64 {
        match self {
            Self::Weighted => weight,
            Self::Squared => weight * weight,
        }
    }
}

/// A Gaussian that follows a stream of features and forgets what lies far back.
///
/// `docs/methods.md` explains the formulas under "Running Gaussians". With `b` rows `f_i` of weights `w_i` (one unless given), `W = sum_i w_i`, deviations
/// `D_i = f_i - m` from the mean before, and the clip `N`:
///
/// ```text
/// n     <- n + W
/// a      = 1/N if n > N, else 1/n; at most 1/W
/// delta  = a sum_i w_i D_i
/// m     <- m + delta
/// V     <- V + a (sum_i w_i D_i D_i' - W V) - delta delta'
/// ```
///
/// The first rows replace the initial values altogether unless a [count](Self::with_count) lends
/// those weight. `n` counts visits, not samples, and is never clipped itself. The bound `1/W` keeps
/// `V` positive semi-definite where one minibatch has more rows than the clip allows; the released
/// code does not have it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunningGaussian {
    count: f64,
    clip: Option<f64>,
    soft_moment: SoftMoment,
    current: Gaussian,
}

/// The [`RunningGaussian`] after a minibatch, to be used in a loss and then
/// [committed](RunningGaussian::commit).
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The step size `a`.
    pub step: f64,
    /// The count with the minibatch.
    pub count: f64,
    /// The difference from the mean before to the mean after, `[D]`.
    pub delta: Vec<f64>,
    /// The mean and covariance after the minibatch, without a template.
    pub gaussian: Gaussian,
    /// Whether the step size was bounded by `1/W`.
    pub bounded: bool,
    weights: Option<Vec<f32>>,
    soft_moment: SoftMoment,
}

impl RunningGaussian {
    /// Starts at `initial` with a count of zero. `clip` is the largest number of visits that still
    /// lowers the step; without it, every visit counts alike for ever.
    pub fn new(initial: &Gaussian, clip: Option<f64>) -> Result<Self> {
        if clip.is_some_and(|clip| !(clip.is_finite() && clip > 0.0)) {
            return Err(Error::Invalid {
                what: "clip of running statistics",
                problem: format!("expected a number above zero, found {clip:?}"),
            });
        }
        let kind = match initial.covariance() {
            Covariance::Diagonal(_) => CovarianceKind::Diagonal,
            Covariance::Full(_) | Covariance::LowRank { .. } => CovarianceKind::Full,
        };
        Ok(Self {
            count: 0.0,
            clip,
            soft_moment: SoftMoment::default(),
            current: initial.to_kind(kind),
        })
    }

    /// Lets the initial values weigh as much as `count` visits, as a prior. ImageNet without a
    /// queue starts its classes at the clip.
    pub fn with_count(mut self, count: f64) -> Self {
        assert!(count >= 0.0 && count.is_finite(), "a count of {count}");
        self.count = count;
        self
    }

    /// Chooses how the weights of soft assignment enter the second moment.
    pub fn with_soft_moment(mut self, soft_moment: SoftMoment) -> Self {
        self.soft_moment = soft_moment;
        self
    }

    /// Returns how many visits, or how much weight, there were so far.
    pub fn count(&self) -> f64 {
        self.count
    }

    /// Returns the mean and covariance so far, without a template.
    pub fn gaussian(&self) -> &Gaussian {
        &self.current
    }

    /// Computes the state after `rows`, `[b, D]`, with `weights`, `[b]`, and leaves the present one
    /// alone. No rows, or none with weight, change nothing: the step is zero. Rows that are not finite
    /// are an error.
    pub fn prepare(&self, rows: &[f32], weights: Option<&[f32]>) -> Result<Update> {
        let dimension = self.current.dimension();
        let number = rows.len() / dimension;
        assert_eq!(rows.len(), number * dimension, "no rows of {dimension}");
        if let Some(weights) = weights {
            assert_eq!(weights.len(), number, "weights and rows differ");
        }
        let total = weights.map_or(number as f64, |w| w.iter().map(|&w| f64::from(w)).sum());
        let unchanged = |gaussian| Update {
            step: 0.0,
            count: self.count + total,
            delta: vec![0.0; dimension],
            gaussian,
            bounded: false,
            weights: weights.map(<[f32]>::to_vec),
            soft_moment: self.soft_moment,
        };
        if total <= 0.0 {
            return Ok(unchanged(self.current.clone()));
        }
        // The covariance is filled in below; a full one is too large to be copied for nothing.
        let placeholder = Covariance::Diagonal(Vec::new());
        let mut update = unchanged(Gaussian::unchecked(Vec::new(), placeholder));
        let clipped = self.clip.filter(|&clip| update.count > clip);
        let window = clipped.unwrap_or(update.count);
        update.bounded = total > window;
        let window = window.max(total);
        update.step = 1.0 / window;
        // This is 1 - a W, and exactly zero where nothing of the past may stay.
        let kept = (window - total) / window;

        let (deviations, first) = update.deviations(rows, self.current.mean());
        for (row, step) in deviations.chunks_exact(dimension).zip(&first) {
            for (delta, deviation) in update.delta.iter_mut().zip(row) {
                *delta += step * deviation;
            }
        }
        let pairs = self.current.mean().iter().zip(&update.delta);
        let mean = pairs.map(|(mean, delta)| mean + delta).collect();
        let covariance = self.covariance_after(kept, &update, deviations);
        update.gaussian = Gaussian::new(mean, covariance)?;
        Ok(update)
    }

    /// Makes an update the state. It must come from [`prepare`](Self::prepare) of this state; that
    /// cannot be checked here.
    pub fn commit(&mut self, update: Update) {
        self.count = update.count;
        self.current = update.gaussian;
    }

    /// Returns `kept V + a sum_i D_i D_i' - delta delta'`, with the weights.
    fn covariance_after(&self, kept: f64, update: &Update, mut deviations: Vec<f64>) -> Covariance {
        let dimension = self.current.dimension();
        for (index, row) in deviations.chunks_exact_mut(dimension).enumerate() {
            let scale = (update.step * update.soft_moment.power(update.weight(index))).sqrt();
            for value in row {
                *value *= scale;
            }
        }
        let delta = &update.delta;
        match self.current.covariance() {
            Covariance::Diagonal(variances) => {
                let mut squares = vec![0.0; dimension];
                for row in deviations.chunks_exact(dimension) {
                    for (square, value) in squares.iter_mut().zip(row) {
                        *square += value * value;
                    }
                }
                let entry = |i: usize| kept * variances[i] + squares[i] - delta[i] * delta[i];
                Covariance::Diagonal((0..dimension).map(entry).collect())
            }
            Covariance::Full(matrix) => {
                let mut after = vec![0.0; dimension * dimension];
                let columns = MatMut::from_column_major_slice_mut(&mut after, dimension, dimension);
                add_outer_products(columns, columns_of(&deviations, dimension), 1.0);
                for j in 0..dimension {
                    let column = j * dimension..(j + 1) * dimension;
                    let (after, before) = (&mut after[column.clone()], &matrix[column]);
                    for i in j..dimension {
                        after[i] += kept * before[i] - delta[i] * delta[j];
                    }
                }
                mirror(MatMut::from_column_major_slice_mut(
                    &mut after, dimension, dimension,
                ));
                Covariance::Full(after)
            }
            Covariance::LowRank { .. } => unreachable!("running statistics are full or diagonal"),
        }
    }
}

impl Update {
    fn weight(&self, index: usize) -> f64 {
        self.weights.as_ref().map_or(1.0, |w| f64::from(w[index]))
    }

    /// Returns `f_i - m`, `[b, D]`, and `a w_i`, `[b]`.
    fn deviations(&self, rows: &[f32], mean: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let mut deviations = Vec::with_capacity(rows.len());
        for row in rows.chunks_exact(mean.len()) {
            deviations.extend(row.iter().zip(mean).map(|(&f, m)| f64::from(f) - m));
        }
        let number = rows.len() / mean.len();
        let first = (0..number).map(|index| self.step * self.weight(index));
        (deviations, first.collect())
    }

    /// Returns `u_i = second_i (f_i - m) - first_i delta`, `[b, D]`, along which the covariance moves
    /// with every row, and `first_i`, `[b]`, by which the mean moves.
    pub(super) fn directions(&self, rows: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let after = self.gaussian.mean().iter().zip(&self.delta);
        let before: Vec<f64> = after.map(|(mean, delta)| mean - delta).collect();
        let (mut directions, first) = self.deviations(rows, &before);
        for (index, row) in directions.chunks_exact_mut(before.len()).enumerate() {
            let second = self.step * self.soft_moment.power(self.weight(index));
            for (value, delta) in row.iter_mut().zip(&self.delta) {
                *value = second * *value - first[index] * delta;
            }
        }
        (directions, first)
    }
}

#[cfg(test)]
mod tests;
