//! Gaussians and their covariances.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The number by which the released code divides the largest entry of a covariance to get its template.
pub const TEMPLATE_DIVISOR: f64 = 30.0;

/// How much of a covariance is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CovarianceKind {
    /// The whole matrix is kept, `D x D`.
    #[default]
    Full,
    /// Only the variances are kept, `D`, which is what ImageNet's thousand classes can afford.
    Diagonal,
}

/// The covariance of `D` features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Covariance {
    /// A symmetric matrix, `[D, D]`.
    Full(Vec<f64>),
    /// The variances, `[D]`; all other entries are zero.
    Diagonal(Vec<f64>),
    /// The matrix `F'F + ridge I`.
    LowRank {
        /// `F`, `[r, D]`, row by row.
        factors: Vec<f64>,
        /// The number that is added to the diagonal.
        ridge: f64,
    },
}

impl Covariance {
    /// Adds `template` to the diagonal.
    pub fn add_template(&mut self, template: f64) {
        match self {
            Self::Full(matrix) => {
                let dimension = matrix.len().isqrt();
                let diagonal = matrix.iter_mut().step_by(dimension + 1);
                diagonal.for_each(|variance| *variance += template);
            }
            Self::Diagonal(variances) => variances.iter_mut().for_each(|v| *v += template),
            Self::LowRank { ridge, .. } => *ridge += template,
        }
    }

    /// Returns the variances, `[D]`.
    pub fn diagonal(&self, dimension: usize) -> Vec<f64> {
        match self {
            Self::Full(matrix) => matrix.iter().step_by(dimension + 1).copied().collect(),
            Self::Diagonal(variances) => variances.clone(),
            Self::LowRank { factors, ridge } => {
                let mut variances = vec![*ridge; dimension];
                for factor in factors.chunks_exact(dimension) {
                    for (variance, value) in variances.iter_mut().zip(factor) {
                        *variance += value * value;
                    }
                }
                variances
            }
        }
    }

    /// Writes the whole matrix out, `[D, D]`.
    pub fn to_full(&self, dimension: usize) -> Vec<f64> {
        match self {
            Self::Full(matrix) => matrix.clone(),
            Self::Diagonal(variances) => {
                let mut matrix = vec![0.0; dimension * dimension];
                for (index, &variance) in variances.iter().enumerate() {
                    matrix[index * (dimension + 1)] = variance;
                }
                matrix
            }
            Self::LowRank { factors, ridge } => {
                let mut matrix = vec![0.0; dimension * dimension];
                for factor in factors.chunks_exact(dimension) {
                    for (row, &left) in matrix.chunks_exact_mut(dimension).zip(factor) {
                        for (entry, &right) in row.iter_mut().zip(factor) {
                            *entry += left * right;
                        }
                    }
                }
                let mut full = Self::Full(matrix);
                full.add_template(*ridge);
                full.to_full(dimension)
            }
        }
    }

    fn values(&self) -> impl Iterator<Item = &f64> {
        let (values, ridge) = match self {
            Self::Full(values) | Self::Diagonal(values) => (values, None),
            Self::LowRank { factors, ridge } => (factors, Some(ridge)),
        };
        values.iter().chain(ridge)
    }
}

/// A mean and a covariance of the same features, all of them finite numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Parts")]
pub struct Gaussian {
    mean: Vec<f64>,
    covariance: Covariance,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parts {
    mean: Vec<f64>,
    covariance: Covariance,
}

impl TryFrom<Parts> for Gaussian {
    type Error = Error;

    fn try_from(parts: Parts) -> Result<Self> {
        Self::new(parts.mean, parts.covariance)
    }
}

impl Gaussian {
    /// Makes a Gaussian of a mean, `[D]`, and its covariance, whose shape and numbers are checked.
    /// Whether the covariance is positive definite shows when it is used.
    pub fn new(mean: Vec<f64>, covariance: Covariance) -> Result<Self> {
        let dimension = mean.len();
        let (fits, expected, found) = match &covariance {
            Covariance::Full(matrix) => {
                let expected = dimension * dimension;
                (matrix.len() == expected, expected, matrix.len())
            }
            Covariance::Diagonal(variances) => {
                (variances.len() == dimension, dimension, variances.len())
            }
            Covariance::LowRank { factors, .. } => {
                let whole = dimension > 0 && factors.len().is_multiple_of(dimension);
                (whole, dimension, factors.len())
            }
        };
        if !fits || dimension == 0 {
            return Err(Error::Mismatch {
                what: format!("covariance of {dimension} features"),
                expected: match covariance {
                    Covariance::LowRank { .. } => format!("a multiple of {expected} numbers"),
                    _ => format!("{expected} numbers"),
                },
                found: format!("{found}"),
            });
        }
        let values = mean.iter().chain(covariance.values());
        let wrong = values.filter(|value| !value.is_finite()).count();
        if wrong > 0 {
            return Err(Error::Invalid {
                what: "statistics",
                problem: format!("{wrong} of the numbers are not finite"),
            });
        }
        Ok(Self { mean, covariance })
    }

    /// Makes a Gaussian whose mean and covariance are zero.
    pub fn zeros(dimension: usize, kind: CovarianceKind) -> Self {
        assert!(dimension > 0, "a Gaussian of no features");
        Self {
            mean: vec![0.0; dimension],
            covariance: match kind {
                CovarianceKind::Full => Covariance::Full(vec![0.0; dimension * dimension]),
                CovarianceKind::Diagonal => Covariance::Diagonal(vec![0.0; dimension]),
            },
        }
    }

    /// Makes a Gaussian without checks, for results that have the right shape by construction and may
    /// have overflowed.
    pub(super) fn unchecked(mean: Vec<f64>, covariance: Covariance) -> Self {
        Self { mean, covariance }
    }

    /// Returns the number of features, `D`.
    pub fn dimension(&self) -> usize {
        self.mean.len()
    }

    /// Returns the mean, `[D]`.
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// Returns the covariance.
    pub fn covariance(&self) -> &Covariance {
        &self.covariance
    }

    /// Returns the regulariser that the released code adds to covariances before they are compared:
    /// the largest entry over `divisor`, by default [`TEMPLATE_DIVISOR`]. The largest entry of a
    /// covariance lies on its diagonal.
    pub fn template(&self, divisor: f64) -> f64 {
        let variances = self.covariance.diagonal(self.dimension());
        variances.into_iter().fold(0.0, f64::max) / divisor
    }

    /// Adds `template` to the diagonal of the covariance.
    pub fn add_template(mut self, template: f64) -> Self {
        self.covariance.add_template(template);
        self
    }

    /// Copies the Gaussian with as much of the covariance as `kind` says.
    pub fn to_kind(&self, kind: CovarianceKind) -> Self {
        let dimension = self.dimension();
        let covariance = match kind {
            CovarianceKind::Full => Covariance::Full(self.covariance.to_full(dimension)),
            CovarianceKind::Diagonal => Covariance::Diagonal(self.covariance.diagonal(dimension)),
        };
        Self::unchecked(self.mean.clone(), covariance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn low_rank() -> Gaussian {
        let factors = vec![1.0, 2.0, 0.0, 0.0, -1.0, 3.0];
        Gaussian::new(
            vec![0.0; 3],
            Covariance::LowRank {
                factors,
                ridge: 0.5,
            },
        )
        .unwrap()
    }

    #[test]
    fn low_rank_is_the_full_matrix_it_stands_for() {
        let full = low_rank().to_kind(CovarianceKind::Full);
        let expected = vec![1.5, 2.0, 0.0, 2.0, 5.5, -3.0, 0.0, -3.0, 9.5];
        assert_eq!(full.covariance(), &Covariance::Full(expected));
        let diagonal = Covariance::Diagonal(vec![1.5, 5.5, 9.5]);
        assert_eq!(
            low_rank().to_kind(CovarianceKind::Diagonal).covariance(),
            &diagonal
        );
        assert_eq!(
            full.to_kind(CovarianceKind::Diagonal).covariance(),
            &diagonal
        );
    }

    #[test]
    fn the_template_goes_on_the_diagonal_of_every_kind() {
        let base = low_rank();
        let added = base.clone().add_template(0.25);
        for kind in [CovarianceKind::Full, CovarianceKind::Diagonal] {
            assert_eq!(added.to_kind(kind), base.to_kind(kind).add_template(0.25));
        }
        assert_eq!(base.template(TEMPLATE_DIVISOR), 9.5 / 30.0);
    }

    #[test]
    fn shapes_and_numbers_are_checked_also_when_read() {
        let wrong = Gaussian::new(vec![0.0; 3], Covariance::Full(vec![0.0; 6])).unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "covariance of 3 features: expected 9 numbers, found 6"
        );
        let infinite = Covariance::Diagonal(vec![1.0, f64::INFINITY]);
        assert!(Gaussian::new(vec![0.0; 2], infinite).is_err());
        let text = serde_json::to_string(&low_rank()).unwrap();
        assert_eq!(serde_json::from_str::<Gaussian>(&text).unwrap(), low_rank());
        let text = r#"{"mean":[0.0,0.0],"covariance":{"diagonal":[1.0]}}"#;
        assert!(serde_json::from_str::<Gaussian>(text).is_err());
    }
}
