//! Divergences of Gaussians, with gradients in closed form.

use faer::{Mat, MatRef};
use serde::{Deserialize, Serialize};

use super::factor::{Factor, Factorised};
use super::linear::{add_outer_products, add_product, mirror, quotient_of_triangles, solve_upper};
use super::{Covariance, Gaussian, Update};
use crate::{Error, Result};

/// Which Kullback-Leibler divergence of source `s` and target `t` is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KlDirection {
    /// The sum `J = KL(s || t) + KL(t || s)`, not halved, as in the released code.
    #[default]
    Symmetric,
    /// `KL(s || t)`, as in the paper.
    SourceToTarget,
    /// `KL(t || s)`, the other direction.
    TargetToSource,
}

/// The measure of how far two Gaussians are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// A Kullback-Leibler divergence.
    Kl(KlDirection),
    /// `|mu_t - mu_s|^2 + |S_t - S_s|_F^2`, the alternative the paper compares with. If both
    /// covariances are diagonal, the norm is over the diagonal.
    L2,
}

impl Default for Measure {
    fn default() -> Self {
        Self::Kl(KlDirection::default())
    }
}

/// A source Gaussian, prepared to be compared with many target Gaussians.
#[derive(Clone, Debug)]
pub struct Anchor {
    mean: Vec<f64>,
    prepared: Prepared,
}

#[derive(Clone, Debug)]
enum Prepared {
    Kl(KlDirection, Factorised),
    L2(Covariance),
}

impl Anchor {
    /// Factorises the covariance, template included, once. A low-rank one is never written out.
    pub fn new(source: &Gaussian, measure: Measure) -> Result<Self> {
        let prepared = match measure {
            Measure::Kl(direction) => {
                let factorised = Factorised::new(source.covariance(), source.dimension())?;
                Prepared::Kl(direction, factorised)
            }
            Measure::L2 => Prepared::L2(source.covariance().clone()),
        };
        Ok(Self {
            mean: source.mean().to_vec(),
            prepared,
        })
    }

    /// Returns the mean, `[D]`.
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// Returns the number of features, `D`.
    pub fn dimension(&self) -> usize {
        self.mean.len()
    }

    /// Returns what was added to the diagonal of the covariance to make it positive definite; zero
    /// unless the covariance was degenerate.
    pub fn ridge_added(&self) -> f64 {
        match &self.prepared {
            Prepared::Kl(_, factorised) => factorised.ridge_added,
            Prepared::L2(_) => 0.0,
        }
    }

    /// Compares the anchor with `target`, template included. The kinds of the covariances may differ:
    /// the target's says what moves, so that a diagonal one is only pulled along its diagonal. Two
    /// diagonals take `O(D)`.
    pub fn divergence(&self, target: &Gaussian) -> Result<Divergence<'_>> {
        let dimension = self.dimension();
        if target.dimension() != dimension {
            let (what, found) = ("features of source and target", target.dimension());
            return Err(Error::mismatch(what, dimension, found));
        }
        let diagonal = matches!(target.covariance(), Covariance::Diagonal(_));
        let difference: Vec<f64> = target
            .mean()
            .iter()
            .zip(&self.mean)
            .map(|(target, source)| target - source)
            .collect();
        let mut ridge_added = 0.0;
        let kind = match &self.prepared {
            Prepared::Kl(direction, source) => {
                let target = Factorised::new(target.covariance(), dimension)?;
                ridge_added = target.ridge_added;
                let solved = |factor: &Factor| {
                    let mut column =
                        MatRef::from_column_major_slice(&difference, dimension, 1).to_owned();
                    factor.solve(&mut column);
                    column.col(0).iter().copied().collect()
                };
                Kind::Kl(Kl {
                    direction: *direction,
                    by_source: solved(&source.factor),
                    by_target: solved(&target.factor),
                    source: &source.factor,
                    target: target.factor,
                })
            }
            Prepared::L2(source) => Kind::L2(covariance_difference(
                target.covariance(),
                source,
                dimension,
            )),
        };
        Ok(Divergence {
            mean: target.mean().to_vec(),
            difference,
            diagonal,
            kind,
            ridge_added,
        })
    }
}

/// A divergence at one target Gaussian: its value and its gradients `g = dJ/dmu_t` and
/// `G = dJ/dS_t`, which pull the features of a minibatch by `dJ/df_i = a [g + 2 G (f_i - mu_t)]`.
#[derive(Clone, Debug)]
pub struct Divergence<'a> {
    mean: Vec<f64>,
    difference: Vec<f64>,
    /// Whether the target's covariance is diagonal.
    diagonal: bool,
    kind: Kind<'a>,
    ridge_added: f64,
}

#[derive(Clone, Debug)]
enum Kind<'a> {
    Kl(Kl<'a>),
    /// `S_t - S_s`.
    L2(Covariance),
}

#[derive(Clone, Debug)]
struct Kl<'a> {
    direction: KlDirection,
    source: &'a Factor,
    target: Factor,
    /// `A d`.
    by_source: Vec<f64>,
    /// `B d`.
    by_target: Vec<f64>,
}

impl Divergence<'_> {
    /// Returns how far apart the Gaussians are. The gradients do not need it, and for full covariances
    /// it takes about as long as they do, so ask for it only where it is logged.
    pub fn value(&self) -> f64 {
        match &self.kind {
            Kind::Kl(kl) => kl.value(&self.difference),
            Kind::L2(covariance) => {
                let (Covariance::Full(values) | Covariance::Diagonal(values)) = covariance else {
                    unreachable!("differences are full or diagonal")
                };
                dot(&self.difference, &self.difference) + dot(values, values)
            }
        }
    }

    /// Returns `g`, `[D]`, the gradient by the target's mean.
    pub fn mean_gradient(&self) -> Vec<f64> {
        match &self.kind {
            Kind::Kl(kl) => match kl.direction {
                KlDirection::Symmetric => {
                    let pairs = kl.by_source.iter().zip(&kl.by_target);
                    pairs.map(|(source, target)| source + target).collect()
                }
                KlDirection::SourceToTarget => kl.by_target.clone(),
                KlDirection::TargetToSource => kl.by_source.clone(),
            },
            Kind::L2(_) => self.difference.iter().map(|d| 2.0 * d).collect(),
        }
    }

    /// Returns what was added to the target's diagonal to make it positive definite; zero unless the
    /// covariance was degenerate. Value and gradients are those of the raised covariance.
    pub fn ridge_added(&self) -> f64 {
        self.ridge_added
    }

    /// Returns `dJ/df_i = step [g + 2 G (f_i - mu_t)]` for `rows`, `[b, D]`, that all moved the
    /// statistics by `step`.
    pub fn gradient_rows(&self, rows: &[f32], step: f64) -> Vec<f32> {
        let dimension = self.mean.len();
        let mut directions = Vec::with_capacity(rows.len());
        for row in rows.chunks_exact(dimension) {
            let pairs = row.iter().zip(&self.mean);
            directions.extend(pairs.map(|(&f, mean)| step * (f64::from(f) - mean)));
        }
        self.rows_along(directions, &vec![step; rows.len() / dimension])
    }

    /// Does what [`gradient_rows`](Self::gradient_rows) does for the `rows` and weights that `update`
    /// was prepared from: with `m` the mean before it, `dJ/df_i = first_i g + 2 G (second_i (f_i - m) -
    /// first_i delta)`, where `first_i = a w_i` and `second_i` is the same or, squared, `a w_i^2`. The
    /// weights are constants.
    pub fn gradient_rows_of(&self, update: &Update, rows: &[f32]) -> Vec<f32> {
        let (directions, first) = update.directions(rows);
        self.rows_along(directions, &first)
    }

    /// Does what [`gradient_rows_of`](Self::gradient_rows_of) does where `update` moved a part of the target, which is a
    /// [`mixture`](super::mixture): a part with the share `s`, whose mean is `offset` away from that of the mixture, moves the mixture's
    /// mean by `s` times its own way, and its covariance by `s` times what it moves its own and by the way of its mean,
    /// `dJ/df_i = s [first_i g + 2 G (u_i + first_i offset)]`.
    pub fn gradient_rows_through(
        &self,
        update: &Update,
        rows: &[f32],
        share: f64,
        offset: &[f64],
    ) -> Vec<f32> {
        let (mut directions, mut first) = update.directions(rows);
        for (row, first) in directions.chunks_exact_mut(offset.len()).zip(&mut first) {
            for (value, offset) in row.iter_mut().zip(offset) {
                *value = share * (*value + *first * offset);
            }
            *first *= share;
        }
        self.rows_along(directions, &first)
    }

    /// Returns `first_i g + 2 G u_i` for directions `u`, `[b, D]`.
    fn rows_along(&self, directions: Vec<f64>, first: &[f64]) -> Vec<f32> {
        let dimension = self.mean.len();
        assert_eq!(
            directions.len(),
            first.len() * dimension,
            "rows and steps differ"
        );
        let gradient = self.mean_gradient();
        let pulled = self.twice_covariance_gradient(directions);
        let mut rows = Vec::with_capacity(pulled.len());
        for (row, first) in pulled.chunks_exact(dimension).zip(first) {
            let pairs = row.iter().zip(&gradient);
            rows.extend(pairs.map(|(value, g)| (first * g + value) as f32));
        }
        rows
    }

    /// Returns `2 G u_i` for every row `u_i` of `directions`, `[b, D]`. Of a diagonal target, `G` is
    /// diagonal too.
    pub fn twice_covariance_gradient(&self, directions: Vec<f64>) -> Vec<f64> {
        let dimension = self.mean.len();
        let count = directions.len() / dimension;
        match &self.kind {
            Kind::Kl(kl) => kl.twice_covariance_gradient(directions, count),
            Kind::L2(covariance) if self.diagonal => {
                let differences = covariance.diagonal(dimension).into_iter();
                let scale: Vec<f64> = differences.map(|v| 4.0 * v).collect();
                scaled(directions, &scale)
            }
            Kind::L2(covariance) => {
                let matrix = covariance.to_full(dimension);
                let matrix = MatRef::from_row_major_slice(&matrix, dimension, dimension);
                let columns = MatRef::from_column_major_slice(&directions, dimension, count);
                product(matrix, columns, 4.0)
            }
        }
    }
}

impl Kl<'_> {
    fn value(&self, difference: &[f64]) -> f64 {
        let dimension = difference.len() as f64;
        let log_ratio = || self.target.log_determinant() - self.source.log_determinant();
        // tr(B S_s) + d'B d - D
        let towards_target = || {
            self.target.trace_of_quotient(self.source) + dot(difference, &self.by_target)
                - dimension
        };
        // tr(A S_t) + d'A d - D
        let towards_source = || {
            self.source.trace_of_quotient(&self.target) + dot(difference, &self.by_source)
                - dimension
        };
        0.5 * match self.direction {
            // The logarithms of the determinants cancel.
            KlDirection::Symmetric => towards_target() + towards_source(),
            KlDirection::SourceToTarget => towards_target() + log_ratio(),
            KlDirection::TargetToSource => towards_source() - log_ratio(),
        }
    }

    /// Returns `2 G u_i`, where `2 G` is `A - B S_s B - (B d)(B d)'` for both directions together, `B` in
    /// place of `A` for source to target, and `A - B` for target to source.
    fn twice_covariance_gradient(&self, directions: Vec<f64>, count: usize) -> Vec<f64> {
        if let Factor::Diagonal(target) = &self.target {
            return scaled(directions, &self.twice_diagonal(target));
        }
        let dimension = self.by_target.len();
        let columns = MatRef::from_column_major_slice(&directions, dimension, count);
        if let (Some(source), Some(target)) = (self.source.lower(), self.target.lower()) {
            // Forming G takes 3 D^3 and applying it 2 b D^2; solving takes 8 b D^2.
            if 2 * count >= dimension {
                return product(self.twice_full(source, target).as_ref(), columns, 1.0);
            }
        }
        let columns = columns.to_owned();
        let solved = |factor: &Factor, columns: &Mat<f64>| {
            let mut solved = columns.clone();
            factor.solve(&mut solved);
            solved
        };
        let by_target = solved(&self.target, &columns);
        let mut pulled = match self.direction {
            KlDirection::TargetToSource => {
                return flat(&(solved(self.source, &columns) - by_target));
            }
            KlDirection::Symmetric => solved(self.source, &columns),
            KlDirection::SourceToTarget => by_target.clone(),
        };
        pulled -= solved(&self.target, &self.source.apply(&by_target));
        for column in 0..count {
            let along: f64 = (0..dimension)
                .map(|row| self.by_target[row] * columns[(row, column)])
                .sum();
            for row in 0..dimension {
                pulled[(row, column)] -= self.by_target[row] * along;
            }
        }
        flat(&pulled)
    }

    /// Returns the diagonal of `2 G`, `[D]`, for a diagonal target.
    fn twice_diagonal(&self, target: &[f64]) -> Vec<f64> {
        let (variances, inverses) = self.source.diagonals();
        let entry = |index: usize| {
            let (a, b) = (inverses[index], 1.0 / target[index]);
            let moved = b * variances[index] * b + self.by_target[index] * self.by_target[index];
            match self.direction {
                KlDirection::Symmetric => a - moved,
                KlDirection::SourceToTarget => b - moved,
                KlDirection::TargetToSource => a - b,
            }
        };
        (0..target.len()).map(entry).collect()
    }

    /// Returns `2 G`, `[D, D]`.
    fn twice_full(&self, source: &Mat<f64>, target: &Mat<f64>) -> Mat<f64> {
        let mut twice = match self.direction {
            KlDirection::Symmetric => self.source.inverse(),
            KlDirection::SourceToTarget => self.target.inverse(),
            KlDirection::TargetToSource => {
                return self.source.inverse() - self.target.inverse();
            }
        };
        // B S_s B = N N' with N = B L_s.
        let mut spread = quotient_of_triangles(target, source);
        solve_upper(target.as_ref(), spread.as_mut());
        let along = MatRef::from_column_major_slice(&self.by_target, source.nrows(), 1);
        for factor in [spread.as_ref(), along] {
            add_outer_products(twice.as_mut(), factor, -1.0);
        }
        mirror(twice.as_mut());
        twice
    }
}

fn covariance_difference(target: &Covariance, source: &Covariance, dimension: usize) -> Covariance {
    let minus = |mut target: Vec<f64>, source: &[f64]| {
        target.iter_mut().zip(source).for_each(|(t, s)| *t -= s);
        target
    };
    match (target, source) {
        (Covariance::Diagonal(target), Covariance::Diagonal(source)) => {
            Covariance::Diagonal(minus(target.clone(), source))
        }
        _ => Covariance::Full(minus(target.to_full(dimension), &source.to_full(dimension))),
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Multiplies every row by `scale`, element by element.
fn scaled(mut rows: Vec<f64>, scale: &[f64]) -> Vec<f64> {
    for row in rows.chunks_exact_mut(scale.len()) {
        row.iter_mut().zip(scale).for_each(|(value, s)| *value *= s);
    }
    rows
}

/// Returns `scale M X`, column after column.
fn product(matrix: MatRef<'_, f64>, columns: MatRef<'_, f64>, scale: f64) -> Vec<f64> {
    let mut product = Mat::zeros(columns.nrows(), columns.ncols());
    add_product(product.as_mut(), matrix, columns, scale);
    flat(&product)
}

/// Column after column.
fn flat(matrix: &Mat<f64>) -> Vec<f64> {
    matrix.col_iter().flat_map(|c| c.iter().copied()).collect()
}

#[cfg(test)]
mod tests;
