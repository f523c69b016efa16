use rand::RngExt;

use super::*;
use crate::rng::seeded;

const DIMENSION: usize = 7;

fn kinds(seed: u64) -> [Covariance; 3] {
    let mut random = seeded(seed, 0);
    let mut numbers = |count| -> Vec<f64> {
        (0..count)
            .map(|_| random.random::<f64>() * 2.0 - 1.0)
            .collect()
    };
    let low_rank = |factors, ridge| Covariance::LowRank { factors, ridge };
    let whole = low_rank(numbers(9 * DIMENSION), 0.1).to_full(DIMENSION);
    let variances = numbers(DIMENSION).iter().map(|v| v * v + 0.2).collect();
    [
        Covariance::Full(whole),
        Covariance::Diagonal(variances),
        low_rank(numbers(3 * DIMENSION), 0.3),
    ]
}

fn factor(covariance: &Covariance) -> Factor {
    let factorised = Factorised::new(covariance, DIMENSION).unwrap();
    assert_eq!(factorised.ridge_added, 0.0);
    factorised.factor
}

fn full(covariance: &Covariance) -> Factor {
    factor(&Covariance::Full(covariance.to_full(DIMENSION)))
}

#[test]
fn applying_and_solving_agree_with_the_matrix() {
    for covariance in kinds(1) {
        let factor = factor(&covariance);
        let matrix = covariance.to_full(DIMENSION);
        let matrix = MatRef::from_row_major_slice(&matrix, DIMENSION, DIMENSION);
        let applied = factor.apply(&Mat::identity(DIMENSION, DIMENSION));
        assert!((&applied - matrix).norm_max() < 1e-13);
        let mut identity = applied;
        factor.solve(&mut identity);
        let expected = Mat::<f64>::identity(DIMENSION, DIMENSION);
        assert!((identity - &expected).norm_max() < 1e-12);
        assert!((factor.inverse() * matrix - expected).norm_max() < 1e-12);
    }
}

#[test]
fn every_kind_gives_the_numbers_of_the_full_matrix() {
    for ours in kinds(2) {
        let factor_of_ours = factor(&ours);
        let (variances, inverses) = factor_of_ours.diagonals();
        let (expected_variances, expected_inverses) = full(&ours).diagonals();
        for index in 0..DIMENSION {
            assert!((variances[index] - expected_variances[index]).abs() < 1e-12);
            assert!((inverses[index] - expected_inverses[index]).abs() < 1e-12);
        }
        let expected = full(&ours).log_determinant();
        assert!((factor_of_ours.log_determinant() - expected).abs() < 1e-12);
        for theirs in kinds(3) {
            let found = factor_of_ours.trace_of_quotient(&factor(&theirs));
            let product =
                full(&ours).inverse() * full(&theirs).apply(&Mat::identity(DIMENSION, DIMENSION));
            let expected: f64 = (0..DIMENSION).map(|i| product[(i, i)]).sum();
            assert!((found - expected).abs() < 1e-11 * expected);
        }
    }
}

#[test]
fn the_indefinite_is_repaired_and_says_so() {
    // Eigenvalues 3 + 1e-3 and -1 + 1e-3, so more than 0.999 must be added.
    let indefinite = Covariance::Full(vec![1.001, 2.0, 2.0, 1.001]);
    let repaired = Factorised::new(&indefinite, 2).unwrap();
    let first = 1.001 / TEMPLATE_DIVISOR * 1e-3;
    assert!((repaired.ridge_added - first * 1e5).abs() < 1e-12);
    let diagonal = Factorised::new(&Covariance::Diagonal(vec![3.0, -5e-5]), 2).unwrap();
    assert!((diagonal.ridge_added - 1e-4).abs() < 1e-15);
    let low_rank = Covariance::LowRank {
        factors: vec![1.0, 1.0],
        ridge: 0.0,
    };
    assert!(Factorised::new(&low_rank, 2).unwrap().ridge_added > 0.0);
}

#[test]
fn asymmetry_is_averaged_first() {
    let inverse = |matrix| {
        let factorised = Factorised::new(&Covariance::Full(matrix), 2).unwrap();
        factorised.factor.inverse()
    };
    let skewed = inverse(vec![2.0, 0.5, 0.1, 2.0]);
    let even = inverse(vec![2.0, 0.3, 0.3, 2.0]);
    assert!((skewed - even).norm_max() < 1e-15);
}

#[test]
fn the_hopeless_is_an_error() {
    let text = |matrix| {
        let error = Factorised::new(&Covariance::Full(matrix), 2).unwrap_err();
        error.to_string()
    };
    let hopeless = text(vec![1.0, 0.0, 0.0, -1000.0]);
    assert_eq!(
        hopeless,
        "invalid covariance: it is not positive definite, even with 3.333e0 added to its \
         diagonal (its largest variance is 1.000e0)"
    );
    assert!(text(vec![0.0; 4]).contains("no variance is above zero"));
    assert!(text(vec![f64::NAN; 4]).contains("not finite"));
}
