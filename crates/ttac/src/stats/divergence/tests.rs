use rand::RngExt;

use super::*;
use crate::rng::seeded;
use crate::stats::{CovarianceKind, RunningGaussian, SoftMoment};

const DIMENSION: usize = 6;
const MEASURES: [Measure; 4] = [
    Measure::Kl(KlDirection::Symmetric),
    Measure::Kl(KlDirection::SourceToTarget),
    Measure::Kl(KlDirection::TargetToSource),
    Measure::L2,
];

/// Full, diagonal and low-rank.
fn gaussians(seed: u64, dimension: usize) -> [Gaussian; 3] {
    let mut random = seeded(seed, 0);
    let mut numbers = |count| -> Vec<f64> {
        let next = || random.random::<f64>() * 2.0 - 1.0;
        std::iter::repeat_with(next).take(count).collect()
    };
    let low_rank = |factors, ridge| Covariance::LowRank { factors, ridge };
    let whole = low_rank(numbers((dimension + 3) * dimension), 0.2).to_full(dimension);
    let variances = numbers(dimension).iter().map(|v| v * v + 0.3).collect();
    let covariances = [
        Covariance::Full(whole),
        Covariance::Diagonal(variances),
        low_rank(numbers(2 * dimension), 0.4),
    ];
    covariances.map(|covariance| Gaussian::new(numbers(dimension), covariance).unwrap())
}

/// Multiples of 2^-10, so that the steps of a difference quotient are exact in `f32`.
fn rows(seed: u64, count: usize, dimension: usize) -> Vec<f32> {
    let mut random = seeded(seed, 0);
    let mut next = || random.random_range(-2048_i16..2048) as f32 / 1024.0;
    (0..count * dimension).map(|_| next()).collect()
}

fn value(source: &Gaussian, target: &Gaussian, measure: Measure) -> f64 {
    let anchor = Anchor::new(source, measure).unwrap();
    let divergence = anchor.divergence(target).unwrap();
    assert_eq!((anchor.ridge_added(), divergence.ridge_added()), (0.0, 0.0));
    divergence.value()
}

/// Inverse and logarithm of the determinant by elimination, for positive definite matrices.
fn invert(mut matrix: Vec<f64>, n: usize) -> (Vec<f64>, f64) {
    let mut inverse = Covariance::Diagonal(vec![1.0; n]).to_full(n);
    let mut log_determinant = 0.0;
    for pivot in 0..n {
        let scale = matrix[pivot * n + pivot];
        log_determinant += scale.ln();
        for j in 0..n {
            matrix[pivot * n + j] /= scale;
            inverse[pivot * n + j] /= scale;
        }
        for row in (0..n).filter(|&row| row != pivot) {
            let factor = matrix[row * n + pivot];
            for j in 0..n {
                matrix[row * n + j] -= factor * matrix[pivot * n + j];
                inverse[row * n + j] -= factor * inverse[pivot * n + j];
            }
        }
    }
    (inverse, log_determinant)
}

/// `KL(p || q)` by the book.
fn kullback_leibler(p: &Gaussian, q: &Gaussian) -> f64 {
    let n = p.dimension();
    let [p_matrix, q_matrix] = [p, q].map(|g| g.covariance().to_full(n));
    let log_p = invert(p_matrix.clone(), n).1;
    let (inverse, log_q) = invert(q_matrix, n);
    let trace = dot(&inverse, &p_matrix);
    let mut distance = 0.0;
    for i in 0..n {
        for j in 0..n {
            let product = (q.mean()[i] - p.mean()[i]) * (q.mean()[j] - p.mean()[j]);
            distance += product * inverse[i * n + j];
        }
    }
    0.5 * (trace + distance - n as f64 + log_q - log_p)
}

#[test]
fn equals_are_at_distance_zero_and_do_not_pull() {
    for gaussian in gaussians(1, DIMENSION) {
        for measure in MEASURES {
            assert!(value(&gaussian, &gaussian, measure).abs() < 1e-12);
            let anchor = Anchor::new(&gaussian, measure).unwrap();
            let divergence = anchor.divergence(&gaussian).unwrap();
            for count in [1, 2, 20] {
                let pulls = divergence.gradient_rows(&rows(2, count, DIMENSION), 1.0);
                assert!(pulls.iter().all(|pull| pull.abs() < 1e-12));
            }
        }
    }
}

#[test]
fn every_pair_of_kinds_equals_the_sum_of_two_divergences_by_the_book() {
    for source in gaussians(3, DIMENSION) {
        for target in gaussians(4, DIMENSION) {
            let kl = |direction| value(&source, &target, Measure::Kl(direction));
            let forth = kullback_leibler(&source, &target);
            let back = kullback_leibler(&target, &source);
            assert!(forth > 0.0 && back > 0.0);
            assert!((kl(KlDirection::SourceToTarget) - forth).abs() < 1e-10 * forth);
            assert!((kl(KlDirection::TargetToSource) - back).abs() < 1e-10 * back);
            let both = kl(KlDirection::Symmetric);
            assert!((both - forth - back).abs() < 1e-10 * both);
            let swapped = value(&target, &source, Measure::default());
            assert!((both - swapped).abs() < 1e-10 * both);
        }
    }
}

#[test]
fn l2_is_the_sum_of_squares() {
    let covariance = |values| Covariance::Full(values);
    let source = Gaussian::new(vec![1.0, 0.0], covariance(vec![2.0, 0.5, 0.5, 1.0])).unwrap();
    let target = Gaussian::new(vec![0.0, 2.0], covariance(vec![3.0, 0.0, 0.0, 1.0])).unwrap();
    assert_eq!(value(&source, &target, Measure::L2), 5.0 + 1.0 + 0.5);
    let [source, target] = [source, target].map(|g| g.to_kind(CovarianceKind::Diagonal));
    assert_eq!(value(&source, &target, Measure::L2), 5.0 + 1.0);
}

/// The covariances of a source-free run are all `tau I`.
#[test]
fn equal_spheres_are_apart_by_the_squared_distance_of_their_means() {
    let sphere =
        |mean: [f64; 2]| Gaussian::new(mean.to_vec(), Covariance::Diagonal(vec![0.25; 2])).unwrap();
    let (source, target) = (sphere([1.0, 2.0]), sphere([0.0, 4.0]));
    assert_eq!(value(&source, &target, Measure::default()), 5.0 / 0.25);
}

#[test]
fn two_diagonals_follow_their_closed_form() {
    let [source, target] = [5, 6].map(|seed| gaussians(seed, DIMENSION)[1].clone());
    let anchor = Anchor::new(&source, Measure::default()).unwrap();
    let divergence = anchor.divergence(&target).unwrap();
    let found = divergence.twice_covariance_gradient(vec![1.0; DIMENSION]);
    let [s, t] = [&source, &target].map(|g| g.covariance().diagonal(DIMENSION));
    let mut expected_value = 0.0;
    for j in 0..DIMENSION {
        let squared = (target.mean()[j] - source.mean()[j]).powi(2);
        let sides = s[j] / t[j] + t[j] / s[j] - 2.0;
        expected_value += 0.5 * (sides + squared * (1.0 / s[j] + 1.0 / t[j]));
        let expected = 1.0 / s[j] - (s[j] + squared) / (t[j] * t[j]);
        assert!((found[j] - expected).abs() < 1e-12);
    }
    assert!((divergence.value() - expected_value).abs() < 1e-12);
}

/// Solving per sample, forming the gradient and writing the low rank out give the same rows.
#[test]
fn every_way_to_the_rows_leads_to_the_same() {
    let few = rows(7, 2, DIMENSION);
    let mut many = few.clone();
    many.extend(rows(8, 30, DIMENSION));
    for measure in MEASURES {
        for source in gaussians(9, DIMENSION) {
            let target_kinds = gaussians(10, DIMENSION);
            for target in &target_kinds {
                let expand = |gaussian: &Gaussian| gaussian.to_kind(CovarianceKind::Full);
                let anchor = Anchor::new(&expand(&source), measure).unwrap();
                let expanded = anchor.divergence(&expand(target)).unwrap();
                let formed = expanded.gradient_rows(&many, 0.1);
                let solved = expanded.gradient_rows(&few, 0.1);
                let anchor = Anchor::new(&source, measure).unwrap();
                let as_given = anchor.divergence(target).unwrap().gradient_rows(&few, 0.1);
                // Only its diagonal pulls a diagonal.
                let diagonal = matches!(target.covariance(), Covariance::Diagonal(_));
                for index in 0..few.len() {
                    let tolerance = 1e-5 * (1.0 + formed[index].abs());
                    assert!((formed[index] - solved[index]).abs() < tolerance);
                    assert!(diagonal || (formed[index] - as_given[index]).abs() < tolerance);
                }
            }
        }
    }
}

/// Largest difference between the rows and central differences of the value, over the largest
/// entry.
fn gradient_error(
    running: &RunningGaussian,
    weights: Option<&[f32]>,
    anchor: &Anchor,
    features: &[f32],
) -> f64 {
    const STEP: f32 = 1.0 / 256.0;
    let prepare = |features: &[f32]| {
        let update = running.prepare(features, weights).unwrap();
        let target = update.gaussian.clone().add_template(0.1);
        (update, target)
    };
    let (update, target) = prepare(features);
    let divergence = anchor.divergence(&target).unwrap();
    assert_eq!(divergence.ridge_added(), 0.0);
    let found = divergence.gradient_rows_of(&update, features);
    if weights.is_none() {
        let plain = divergence.gradient_rows(features, update.step);
        let apart = plain.iter().zip(&found).map(|(a, b)| (a - b).abs());
        assert!(apart.fold(0.0, f32::max) < 1e-5);
    }
    let (mut error, mut largest) = (0.0_f64, 0.0_f64);
    for index in 0..features.len() {
        let at = |steps: f32| {
            let mut moved = features.to_vec();
            moved[index] += steps * STEP;
            anchor.divergence(&prepare(&moved).1).unwrap().value()
        };
        // Five points: the error falls with the fourth power of the step.
        let slope = (8.0 * (at(1.0) - at(-1.0)) - (at(2.0) - at(-2.0))) / (12.0 * f64::from(STEP));
        error = error.max((slope - f64::from(found[index])).abs());
        largest = largest.max(slope.abs());
    }
    assert!(largest > 1e-3, "nothing to compare");
    error / largest
}

#[test]
fn gradient_rows_are_the_slopes_of_the_value() {
    // Few samples solve, many form the gradient; the count decides whether the clip of 12 acts.
    for (samples, count) in [(2, 3.0), (2, 40.0), (8, 0.0), (8, 40.0), (20, 40.0)] {
        let features = rows(11, samples, DIMENSION);
        for measure in MEASURES {
            for source in gaussians(12, DIMENSION) {
                let anchor = Anchor::new(&source, measure).unwrap();
                for initial in &gaussians(13, DIMENSION)[..2] {
                    let running = RunningGaussian::new(initial, Some(12.0)).unwrap();
                    let running = running.with_count(count);
                    let error = gradient_error(&running, None, &anchor, &features);
                    assert!(error < 1e-6, "{measure:?}, {samples} samples: {error:e}");
                }
            }
        }
    }
}

#[test]
fn soft_weights_enter_the_gradient() {
    let features = rows(14, 4, DIMENSION);
    let weights = [0.75, 0.25, 1.0, 0.0];
    for soft_moment in [SoftMoment::Weighted, SoftMoment::Squared] {
        for measure in MEASURES {
            let [source, ..] = gaussians(15, DIMENSION);
            let anchor = Anchor::new(&source, measure).unwrap();
            for initial in &gaussians(16, DIMENSION)[..2] {
                let running = RunningGaussian::new(initial, Some(12.0)).unwrap();
                let running = running.with_count(9.0).with_soft_moment(soft_moment);
                let error = gradient_error(&running, Some(&weights), &anchor, &features);
                assert!(error < 1e-6, "{measure:?}, {soft_moment:?}: {error:e}");
            }
        }
    }
}

#[test]
fn the_number_of_threads_does_not_show() {
    // Above the size from which threads are used.
    let dimension = 520;
    let [source, _, low_rank] = gaussians(17, dimension);
    let with_threads = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        pool.build().unwrap().install(|| {
            let mut results = Vec::new();
            for source in [&source, &low_rank] {
                for count in [20, 300] {
                    let features = rows(18, count, dimension);
                    let running = RunningGaussian::new(source, Some(64.0)).unwrap();
                    let update = running.with_count(64.0).prepare(&features, None).unwrap();
                    let anchor = Anchor::new(source, Measure::default()).unwrap();
                    let target = update.gaussian.clone().add_template(0.1);
                    let divergence = anchor.divergence(&target).unwrap();
                    let pulls = divergence.gradient_rows_of(&update, &features);
                    results.push((divergence.value().to_bits(), pulls));
                }
            }
            results
        })
    };
    let one = with_threads(1);
    assert!(one == with_threads(2));
    assert!(one == with_threads(3));
}

#[test]
fn a_degenerate_target_is_raised_and_reported() {
    let [source, ..] = gaussians(19, DIMENSION);
    let anchor = Anchor::new(&source, Measure::default()).unwrap();
    let mut variances = vec![1.0; DIMENSION];
    variances[2] = 0.0;
    let flat = Gaussian::new(vec![0.0; DIMENSION], Covariance::Diagonal(variances)).unwrap();
    for target in [flat.to_kind(CovarianceKind::Full), flat] {
        let divergence = anchor.divergence(&target).unwrap();
        assert!((divergence.ridge_added() - 1e-3 / 30.0).abs() < 1e-12);
        assert!(divergence.value().is_finite());
    }
}

#[test]
fn other_features_do_not_belong_to_an_anchor() {
    let [source, ..] = gaussians(20, 3);
    let [target, ..] = gaussians(20, 4);
    let anchor = Anchor::new(&source, Measure::default()).unwrap();
    let error = anchor.divergence(&target).unwrap_err();
    assert_eq!(
        error.to_string(),
        "features of source and target: expected 3, found 4"
    );
}

#[test]
fn prepared_statistics_cross_threads() {
    fn crosses<T: Send + Sync>() {}
    crosses::<Anchor>();
    crosses::<Divergence<'_>>();
}
