//! Factorised covariances, with which linear systems are solved.

use std::sync::OnceLock;

use faer::{Mat, MatRef};

use super::linear::{
    add_outer_products, add_product, cholesky, inverse, lower_product, quotient_of_triangles,
    solve_lower, solve_upper, symmetrised, upper_product,
};
use super::{Covariance, TEMPLATE_DIVISOR};
use crate::{Error, Result};

/// How often a larger ridge is tried: from a thousandth of a template to a hundred templates.
const REPAIRS: i32 = 6;

/// A factorised covariance, and what had to be added to its diagonal.
#[derive(Clone, Debug)]
pub(super) struct Factorised {
    pub factor: Factor,
    /// The number that was added; zero if the covariance was positive definite as it came.
    pub ridge_added: f64,
}

/// A positive definite matrix `S`, ready to solve with.
#[derive(Clone, Debug)]
pub(super) enum Factor {
    /// A full matrix, `S = L L'`.
    Full {
        /// `L`, `[D, D]`, zero above the diagonal.
        lower: Mat<f64>,
        /// `S^-1`, which is computed when it is first asked for.
        inverse: OnceLock<Mat<f64>>,
    },
    /// The diagonal of `S`, `[D]`.
    Diagonal(Vec<f64>),
    /// A matrix of low rank with a ridge.
    LowRank(LowRank),
}

/// `S = F'F + ridge I`, solved by the Woodbury identity `S^-1 = (I - F' C^-1 F) / ridge` with
/// `C = ridge I + F F'`.
#[derive(Clone, Debug)]
pub(super) struct LowRank {
    /// `F'`, `[D, r]`.
    columns: Mat<f64>,
    /// The ridge, which is above zero.
    ridge: f64,
    /// The lower Cholesky factor of `C`, `[r, r]`.
    inner: Mat<f64>,
}

impl LowRank {
    /// Returns `F X`, `[r, b]`, for `X`, `[D, b]`.
    fn project(&self, x: &Mat<f64>) -> Mat<f64> {
        let mut small = Mat::zeros(self.columns.ncols(), x.ncols());
        add_product(small.as_mut(), self.columns.transpose(), x.as_ref(), 1.0);
        small
    }

    /// Returns `L^-1 F`, `[r, D]`, where `L` is the factor of `C`.
    fn whitened(&self) -> Mat<f64> {
        let mut small = self.columns.transpose().to_owned();
        solve_lower(self.inner.as_ref(), small.as_mut());
        small
    }
}

impl Factorised {
    /// Symmetrises a covariance and factorises it. If it is not positive definite, a ridge is added to
    /// the diagonal, from a thousandth of its template on and ten times more with every attempt;
    /// [`ridge_added`](Self::ridge_added) says how much. After the last attempt it is an error.
    pub fn new(covariance: &Covariance, dimension: usize) -> Result<Self> {
        let invalid = |problem| {
            Err(Error::Invalid {
                what: "covariance",
                problem,
            })
        };
        let variances = covariance.diagonal(dimension);
        if !variances.iter().all(|variance| variance.is_finite()) {
            return invalid("a variance is not finite".to_owned());
        }
        let largest = variances.into_iter().fold(0.0, f64::max);
        if largest == 0.0 {
            return invalid("no variance is above zero, and there is no template".to_owned());
        }
        let first = largest / TEMPLATE_DIVISOR * 1e-3;
        let ridges = (0..REPAIRS).map(|attempt| first * 10.0_f64.powi(attempt));
        let mut tried = 0.0;
        for ridge in std::iter::once(0.0).chain(ridges) {
            tried = ridge;
            if let Some(factor) = Factor::new(covariance, ridge, dimension, largest) {
                return Ok(Self {
                    factor,
                    ridge_added: ridge,
                });
            }
        }
        invalid(format!(
            "it is not positive definite, even with {tried:.3e} added to its diagonal (its \
             largest variance is {largest:.3e})"
        ))
    }
}

impl Factor {
    /// Factorises a covariance with `added` on its diagonal, if that is positive definite.
    fn new(covariance: &Covariance, added: f64, dimension: usize, largest: f64) -> Option<Self> {
        // Pivots below the rounding of the largest are rounding themselves.
        let floor = largest * dimension as f64 * f64::EPSILON;
        match covariance {
            Covariance::Full(matrix) => {
                let mut lower = symmetrised(matrix, dimension);
                for index in 0..dimension {
                    lower[(index, index)] += added;
                }
                Some(Self::Full {
                    lower: cholesky(lower, floor)?,
                    inverse: OnceLock::new(),
                })
            }
            Covariance::Diagonal(variances) => {
                let variances: Vec<f64> = variances.iter().map(|v| v + added).collect();
                let positive = variances.iter().all(|&variance| variance > 0.0);
                positive.then_some(Self::Diagonal(variances))
            }
            Covariance::LowRank { factors, ridge } => {
                let ridge = ridge + added;
                if ridge <= floor {
                    return None;
                }
                let rank = factors.len() / dimension;
                let columns = MatRef::from_column_major_slice(factors, dimension, rank).to_owned();
                let mut inner = Mat::zeros(rank, rank);
                add_outer_products(inner.as_mut(), columns.transpose(), 1.0);
                for index in 0..rank {
                    inner[(index, index)] += ridge;
                }
                Some(Self::LowRank(LowRank {
                    columns,
                    ridge,
                    inner: cholesky(inner, 0.0)?,
                }))
            }
        }
    }

    /// Solves `X <- S^-1 X` for `X`, `[D, b]`.
    pub fn solve(&self, x: &mut Mat<f64>) {
        match self {
            Self::Full { lower, .. } => solve_with(lower, x),
            Self::Diagonal(variances) => scale_rows(x, |row| 1.0 / variances[row]),
            Self::LowRank(low) => {
                let mut small = low.project(x);
                solve_with(&low.inner, &mut small);
                add_product(x.as_mut(), low.columns.as_ref(), small.as_ref(), -1.0);
                scale_rows(x, |_| 1.0 / low.ridge);
            }
        }
    }

    /// Returns `S X` for `X`, `[D, b]`.
    pub fn apply(&self, x: &Mat<f64>) -> Mat<f64> {
        match self {
            Self::Full { lower, .. } => {
                lower_product(lower.as_ref(), &upper_product(lower.as_ref(), x))
            }
            Self::Diagonal(variances) => {
                let mut product = x.clone();
                scale_rows(&mut product, |row| variances[row]);
                product
            }
            Self::LowRank(low) => {
                let small = low.project(x);
                let mut product = x.clone();
                scale_rows(&mut product, |_| low.ridge);
                add_product(product.as_mut(), low.columns.as_ref(), small.as_ref(), 1.0);
                product
            }
        }
    }

    /// Returns `ln det S`.
    pub fn log_determinant(&self) -> f64 {
        match self {
            Self::Full { lower, .. } => log_diagonal(lower),
            Self::Diagonal(variances) => variances.iter().map(|variance| variance.ln()).sum(),
            Self::LowRank(low) => {
                let free = low.columns.nrows() as f64 - low.columns.ncols() as f64;
                free * low.ridge.ln() + log_diagonal(&low.inner)
            }
        }
    }

    /// Returns `tr(S^-1 R)`, where `self` is `S` and `other` is `R`.
    pub fn trace_of_quotient(&self, other: &Self) -> f64 {
        match (self, other) {
            (Self::Diagonal(under), Self::Diagonal(over)) => over
                .iter()
                .zip(under)
                .map(|(over, under)| over / under)
                .sum(),
            (Self::Full { lower: under, .. }, Self::Full { lower: over, .. }) => {
                // |L_S^-1 L_R|^2
                quotient_of_triangles(under, over).squared_norm_l2()
            }
            (_, Self::LowRank(low)) => {
                let mut solved = low.columns.clone();
                self.solve(&mut solved);
                inner_product(&solved, &low.columns) + low.ridge * self.trace_of_inverse()
            }
            _ => {
                let dimension = self.dimension();
                let mut solved = other.apply(&Mat::identity(dimension, dimension));
                self.solve(&mut solved);
                (0..dimension).map(|index| solved[(index, index)]).sum()
            }
        }
    }

    /// Returns the diagonals of `S` and of `S^-1`, `[D]`.
    pub fn diagonals(&self) -> (Vec<f64>, Vec<f64>) {
        match self {
            Self::Full { lower, .. } => {
                let inverse = self.inverse();
                let indices = 0..lower.nrows();
                let of_inverse = indices.clone().map(|index| inverse[(index, index)]);
                let squared = |index| lower.row(index).squared_norm_l2();
                (indices.map(squared).collect(), of_inverse.collect())
            }
            Self::Diagonal(variances) => {
                let inverse = variances.iter().map(|variance| 1.0 / variance);
                (variances.clone(), inverse.collect())
            }
            Self::LowRank(low) => {
                let small = low.whitened();
                let indices = 0..low.columns.nrows();
                let entry = |index| low.ridge + low.columns.row(index).squared_norm_l2();
                let inverse = |index| (1.0 - small.col(index).squared_norm_l2()) / low.ridge;
                (
                    indices.clone().map(entry).collect(),
                    indices.map(inverse).collect(),
                )
            }
        }
    }

    /// Returns `L`, if `S` is full.
    pub fn lower(&self) -> Option<&Mat<f64>> {
        match self {
            Self::Full { lower, .. } => Some(lower),
            _ => None,
        }
    }

    /// Returns `S^-1`, `[D, D]`; it is kept if `S` is full.
    pub fn inverse(&self) -> Mat<f64> {
        if let Self::Full {
            lower,
            inverse: kept,
        } = self
        {
            return kept.get_or_init(|| inverse(lower)).clone();
        }
        let dimension = self.dimension();
        let mut inverse = Mat::identity(dimension, dimension);
        self.solve(&mut inverse);
        inverse
    }

    pub fn dimension(&self) -> usize {
        match self {
            Self::Full { lower, .. } => lower.nrows(),
            Self::Diagonal(variances) => variances.len(),
            Self::LowRank(low) => low.columns.nrows(),
        }
    }

    fn trace_of_inverse(&self) -> f64 {
        match self {
            Self::Full { lower, .. } => {
                let identity = Mat::identity(lower.nrows(), lower.nrows());
                quotient_of_triangles(lower, &identity).squared_norm_l2()
            }
            Self::Diagonal(variances) => variances.iter().map(|variance| 1.0 / variance).sum(),
            Self::LowRank(low) => {
                (low.columns.nrows() as f64 - low.whitened().squared_norm_l2()) / low.ridge
            }
        }
    }
}

/// Returns `sum_ij A_ij B_ij`.
fn inner_product(a: &Mat<f64>, b: &Mat<f64>) -> f64 {
    let columns = a.col_iter().zip(b.col_iter());
    columns
        .map(|(a, b)| a.iter().zip(b.iter()).map(|(a, b)| a * b).sum::<f64>())
        .sum()
}

fn solve_with(lower: &Mat<f64>, x: &mut Mat<f64>) {
    solve_lower(lower.as_ref(), x.as_mut());
    solve_upper(lower.as_ref(), x.as_mut());
}

fn scale_rows(x: &mut Mat<f64>, scale: impl Fn(usize) -> f64) {
    for column in 0..x.ncols() {
        for row in 0..x.nrows() {
            x[(row, column)] *= scale(row);
        }
    }
}

/// Returns `2 sum_i ln L_ii`.
fn log_diagonal(lower: &Mat<f64>) -> f64 {
    (0..lower.nrows())
        .map(|index| 2.0 * lower[(index, index)].ln())
        .sum()
}

#[cfg(test)]
mod tests;
