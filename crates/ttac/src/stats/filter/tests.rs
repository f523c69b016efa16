use super::*;

fn filter(change: impl FnOnce(&mut FilterConfig)) -> PseudoLabelFilter {
    let mut config = FilterConfig::default();
    change(&mut config);
    PseudoLabelFilter::new(config, 2).unwrap()
}

/// Sees sample 0 with a posterior for class 0.
fn see(filter: &mut PseudoLabelFilter, first: f32) -> Option<usize> {
    let observation = filter.observe(&[0], &[first, 1.0 - first]).unwrap();
    observation.accepted_labels()[0]
}

#[test]
fn the_first_visit_passes_and_only_a_larger_drop_fails() {
    for (drop, label) in [(0.0011, None), (0.0009, Some(0)), (-0.05, Some(0))] {
        let mut filter = filter(|_| {});
        assert_eq!(see(&mut filter, 0.95), Some(0));
        assert_eq!(see(&mut filter, 0.95 - drop), label, "{drop}");
    }
}

#[test]
fn a_drop_by_exactly_the_threshold_fails() {
    let mut filter = filter(|config| config.temporal_threshold = -0.03125);
    see(&mut filter, 0.96875);
    assert_eq!(see(&mut filter, 0.9375), None);
}

#[test]
fn confidence_of_exactly_the_threshold_fails() {
    let mut filter = filter(|config| config.posterior_threshold = 0.75);
    let observation = filter
        .observe(&[0, 1], &[0.75, 0.25, 0.751, 0.249])
        .unwrap();
    assert_eq!(observation.accepted, [false, true]);
    let counts = observation.counts;
    assert_eq!((counts.accepted, counts.rejected_by_confidence), (1, 1));
}

#[test]
fn the_rejected_stay_out_for_four_more_epochs() {
    let mut filter = filter(|_| {});
    see(&mut filter, 0.99);
    assert_eq!(see(&mut filter, 0.97), None);
    assert_eq!(see(&mut filter, 0.99), None, "the rest of the epoch");
    for epoch in 1..=4 {
        filter.recover();
        assert_eq!(see(&mut filter, 0.99), None, "epoch {epoch}");
    }
    filter.recover();
    assert_eq!(see(&mut filter, 0.99), Some(0));
}

#[test]
fn another_rejection_starts_again() {
    let mut filter = filter(|_| {});
    see(&mut filter, 0.99);
    see(&mut filter, 0.97);
    for _ in 0..3 {
        filter.recover();
    }
    see(&mut filter, 0.95);
    for _ in 0..4 {
        filter.recover();
        assert_eq!(see(&mut filter, 0.99), None);
    }
    filter.recover();
    assert_eq!(see(&mut filter, 0.99), Some(0));
}

#[test]
fn without_stickiness_only_the_visit_is_lost() {
    let mut filter = filter(|config| config.sticky = false);
    see(&mut filter, 0.99);
    assert_eq!(see(&mut filter, 0.97), None);
    assert_eq!(see(&mut filter, 0.98), Some(0));
}

#[test]
fn averages_are_copied_where_zero_and_else_mixed() {
    let mut filter = filter(|_| {});
    filter.observe(&[3], &[1.0, 0.0]).unwrap();
    assert_eq!(filter.average(3).unwrap(), [1.0, 0.0]);
    filter.observe(&[3], &[0.75, 0.25]).unwrap();
    assert_eq!(filter.average(3).unwrap(), [0.1 + 0.9 * 0.75, 0.25]);
    filter.observe(&[3], &[0.5, 0.5]).unwrap();
    let expected = [0.1 * (0.1 + 0.9 * 0.75) + 0.9 * 0.5, 0.1 * 0.25 + 0.9 * 0.5];
    assert_eq!(filter.average(3).unwrap(), expected);
    assert_eq!(filter.average(4), None);
}

#[test]
fn the_label_comes_from_where_it_was_asked_for() {
    for (label_source, label) in [(LabelSource::Average, 0), (LabelSource::Posterior, 1)] {
        let mut filter = filter(|config| {
            config.label_source = label_source;
            config.mode = FilterMode::None;
        });
        see(&mut filter, 0.9);
        // Averages 0.522 and 0.478.
        assert_eq!(see(&mut filter, 0.48), Some(label));
    }
}

#[test]
fn modes_leave_tests_out() {
    let accepted = |mode| {
        let mut filter = filter(|config| config.mode = mode);
        filter.observe(&[0, 1], &[0.99, 0.01, 0.6, 0.4]).unwrap();
        let observation = filter.observe(&[0, 1], &[0.95, 0.05, 0.6, 0.4]).unwrap();
        let counts = observation.counts;
        let all = counts.accepted + counts.rejected_by_time + counts.rejected_by_confidence;
        assert_eq!(all, 2);
        observation.accepted
    };
    assert_eq!(accepted(FilterMode::Full), [false, false]);
    assert_eq!(accepted(FilterMode::Temporal), [false, true]);
    assert_eq!(accepted(FilterMode::Confidence), [true, false]);
    assert_eq!(accepted(FilterMode::None), [true, true]);
}

#[test]
fn the_forgotten_are_new_unless_kept() {
    for (eviction, left) in [(Eviction::Forget, 1), (Eviction::Keep, 2)] {
        let mut filter = filter(|config| config.eviction = eviction);
        filter.observe(&[0, 9], &[0.99, 0.01, 0.99, 0.01]).unwrap();
        filter.forget(&[0, 100]);
        assert_eq!(filter.len(), left);
        let label = (eviction == Eviction::Forget).then_some(0);
        assert_eq!(see(&mut filter, 0.95), label);
    }
}

#[test]
fn state_is_saved() {
    let mut filter = filter(|_| {});
    see(&mut filter, 0.99);
    see(&mut filter, 0.333);
    let text = serde_json::to_string(&filter).unwrap();
    assert_eq!(
        serde_json::from_str::<PseudoLabelFilter>(&text).unwrap(),
        filter
    );
}

#[test]
fn what_is_not_finite_leaves_no_trace() {
    let mut filter = filter(|_| {});
    let error = filter
        .observe(&[4, 5], &[0.9, 0.1, f32::NAN, 0.1])
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid posteriors: those of sample 5 are not finite"
    );
    assert!(filter.is_empty());
}

#[test]
fn every_wrong_threshold_is_listed() {
    let config = FilterConfig {
        posterior_threshold: 1.5,
        average_weight: f64::NAN,
        ..FilterConfig::default()
    };
    let problem = config.validate().unwrap_err().to_string();
    assert!(problem.contains("posterior_threshold"));
    assert!(problem.contains("average_weight"));
    assert!(!problem.contains("temporal_threshold"));
}
