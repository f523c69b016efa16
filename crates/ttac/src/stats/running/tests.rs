use proptest::prelude::*;
use rand::RngExt;

use super::*;
use crate::rng::seeded;
use crate::stats::Moments;
use crate::stats::cut::Cut;
use crate::stats::factor::Factorised;

const KINDS: [CovarianceKind; 2] = [CovarianceKind::Full, CovarianceKind::Diagonal];

fn rows(seed: u64, count: usize, dimension: usize) -> Vec<f32> {
    let mut random = seeded(seed, 0);
    let mut next = || random.random::<f32>() * 4.0 - 1.0;
    (0..count * dimension).map(|_| next()).collect()
}

fn far(dimension: usize, kind: CovarianceKind) -> Gaussian {
    let mean = vec![7.0; dimension];
    let covariance = Covariance::Diagonal(vec![3.0; dimension]);
    Gaussian::new(mean, covariance).unwrap().to_kind(kind)
}

fn close(found: &Gaussian, expected: &Gaussian, tolerance: f64) -> bool {
    let dimension = found.dimension();
    let covariances = [found, expected].map(|g| g.covariance().to_full(dimension));
    let means = found.mean().iter().zip(expected.mean());
    means
        .chain(covariances[0].iter().zip(&covariances[1]))
        .all(|(a, b)| (a - b).abs() < tolerance)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_split_without_a_clip_equals_the_whole(cut in Cut::any(1..6, 20)) {
        let dimension = cut.dimension;
        let all = rows(cut.seed, cut.count(), dimension);
        for kind in KINDS {
            let mut moments = Moments::new(dimension, kind);
            moments.update(&all);
            let mut running = RunningGaussian::new(&far(dimension, kind), None).unwrap();
            for part in cut.parts(&all) {
                running.commit(running.prepare(part, None).unwrap());
            }
            prop_assert_eq!(running.count(), moments.count() as f64);
            prop_assert!(close(running.gaussian(), &moments.gaussian().unwrap(), 1e-10));
        }
    }

    #[test]
    fn covariances_stay_positive_for_any_clip(
        seed in any::<u64>(),
        clip in 1.0_f64..20.0,
        sizes in prop::collection::vec(1_usize..30, 1..8),
    ) {
        let dimension = 4;
        let mut running =
            RunningGaussian::new(&far(dimension, CovarianceKind::Full), Some(clip)).unwrap();
        for (index, &size) in sizes.iter().enumerate() {
            let part = rows(seed.wrapping_add(index as u64), size, dimension);
            let update = running.prepare(&part, None).unwrap();
            prop_assert!(update.step * size as f64 <= 1.0 + 1e-15);
            prop_assert_eq!(update.bounded, update.count > clip && size as f64 > clip);
            running.commit(update);
            let raised = running.gaussian().clone().add_template(1e-9);
            let factorised = Factorised::new(raised.covariance(), dimension).unwrap();
            prop_assert_eq!(factorised.ridge_added, 0.0);
        }
    }
}

#[test]
fn the_first_rows_wipe_the_initial_values() {
    let part = rows(1, 49, 3); // 49 * (1/49) is not one in floating point
    for kind in KINDS {
        let after = |initial: &Gaussian| {
            let running = RunningGaussian::new(initial, Some(1280.0)).unwrap();
            running.prepare(&part, None).unwrap().gaussian
        };
        let zeros = after(&Gaussian::zeros(3, kind));
        let mut moments = Moments::new(3, kind);
        moments.update(&part);
        assert!(close(&zeros, &moments.gaussian().unwrap(), 1e-12));
        assert!(close(&zeros, &after(&far(3, kind)), 1e-12));
    }
}

#[test]
fn a_starting_count_is_a_prior() {
    let initial = far(1, CovarianceKind::Diagonal);
    let running = RunningGaussian::new(&initial, Some(64.0)).unwrap();
    let update = running.with_count(64.0).prepare(&[71.0], None).unwrap();
    assert_eq!((update.step, update.delta[0]), (1.0 / 64.0, 1.0));
    // V + a (D^2 - V) - delta^2
    let expected = 3.0 + (64.0 * 64.0 - 3.0) / 64.0 - 1.0;
    let Covariance::Diagonal(variance) = update.gaussian.covariance() else {
        panic!("it was diagonal")
    };
    assert!((variance[0] - expected).abs() < 1e-12);
}

#[test]
fn the_clip_starts_above_its_value_and_forgets_geometrically() {
    let mut running = RunningGaussian::new(&far(1, CovarianceKind::Full), Some(20.0)).unwrap();
    running.commit(running.prepare(&rows(2, 16, 1), None).unwrap());
    let at_clip = running.prepare(&[0.0; 4], None).unwrap();
    assert_eq!((at_clip.count, at_clip.step), (20.0, 1.0 / 20.0));
    running.commit(at_clip);
    for _ in 0..5 {
        let before = running.gaussian().mean()[0] - 5.0;
        let update = running.prepare(&[5.0; 4], None).unwrap();
        assert_eq!(update.step, 1.0 / 20.0);
        running.commit(update);
        let after = running.gaussian().mean()[0] - 5.0;
        assert!((after - (1.0 - 4.0 / 20.0) * before).abs() < 1e-12);
    }
}

#[test]
fn without_the_bound_a_covariance_turns_negative() {
    let (variance, clip, number) = (3.0, 2.0, 4.0);
    let initial = far(1, CovarianceKind::Diagonal);
    let running = RunningGaussian::new(&initial, Some(clip)).unwrap();
    let part = [7.0; 4]; // at the mean, so that every deviation and delta are zero
    let unbounded = variance + (0.0 - number * variance) / clip;
    assert!(unbounded < 0.0);
    let update = running.prepare(&part, None).unwrap();
    assert!(update.bounded);
    assert_eq!(
        update.gaussian.covariance(),
        &Covariance::Diagonal(vec![0.0])
    );
}

#[test]
fn weights_of_zero_and_one_choose_rows() {
    let part = rows(4, 6, 2);
    for kind in KINDS {
        let running = RunningGaussian::new(&far(2, kind), Some(5.0)).unwrap();
        let running = running.with_count(3.0);
        for soft_moment in [SoftMoment::Weighted, SoftMoment::Squared] {
            let running = running.clone().with_soft_moment(soft_moment);
            let weights = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0];
            let weighted = running.prepare(&part, Some(&weights)).unwrap();
            let chosen = running.prepare(&part[..6], None).unwrap();
            assert_eq!((weighted.step, weighted.count), (chosen.step, chosen.count));
            assert!(close(&weighted.gaussian, &chosen.gaussian, 1e-12));
            let nothing = running.prepare(&part, Some(&[0.0; 6])).unwrap();
            assert_eq!((nothing.step, &nothing.gaussian), (0.0, running.gaussian()));
        }
    }
}

#[test]
fn soft_weights_are_weights_unless_squared() {
    let running = RunningGaussian::new(&far(1, CovarianceKind::Diagonal), None).unwrap();
    let update = |soft_moment| {
        let running = running.clone().with_soft_moment(soft_moment);
        running
            .prepare(&[1.0, 5.0], Some(&[0.5, 0.25]))
            .unwrap()
            .gaussian
    };
    // Mean 7/3; (1/2 * 16/9 + 1/4 * 64/9) / (3/4) = 32/9.
    let expected = Gaussian::new(vec![7.0 / 3.0], Covariance::Diagonal(vec![32.0 / 9.0]));
    assert!(close(
        &update(SoftMoment::Weighted),
        &expected.unwrap(),
        1e-12
    ));
    // About the mean before, 7: (1/4 * 36 + 1/16 * 4) / (3/4) - (14/3)^2.
    let squared = 37.0 / 3.0 - 196.0 / 9.0;
    assert!(squared < 0.0);
    let expected = Gaussian::new(vec![7.0 / 3.0], Covariance::Diagonal(vec![squared]));
    assert!(close(
        &update(SoftMoment::Squared),
        &expected.unwrap(),
        1e-12
    ));
}

#[test]
fn state_is_saved_and_nonsense_refused() {
    let initial = far(2, CovarianceKind::Full);
    let mut running = RunningGaussian::new(&initial, Some(9.0)).unwrap();
    running.commit(running.prepare(&rows(5, 7, 2), None).unwrap());
    let text = serde_json::to_string(&running).unwrap();
    let read: RunningGaussian = serde_json::from_str(&text).unwrap();
    assert_eq!(read.count(), running.count());
    // Without its feature `float_roundtrip`, `serde_json` reads numbers to the last bit but one.
    assert!(close(read.gaussian(), running.gaussian(), 1e-15));
    assert!(RunningGaussian::new(&initial, Some(0.0)).is_err());
    assert!(running.prepare(&[1.0, f32::NAN], None).is_err());
}
