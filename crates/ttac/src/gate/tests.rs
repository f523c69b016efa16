//! Tests of the gate with numbers computed by hand.

use super::*;

/// Hand-computed numbers take a handful of operations, each with a relative error of 1e-16.
pub(super) const ROUNDING: f64 = 1e-12;

/// A logit so low that its exponential is exactly zero next to the others of these tests.
const NEVER: f32 = -1000.0;

/// A calibration of two classes with the scores 1 to 20 and 30, 40; the second class has too few of its own.
fn small() -> Calibration {
    let scores: Vec<f32> = (1..=20_u8).map(f32::from).collect();
    Calibration {
        data: String::new(),
        images: CalibrationImages::HeldOut,
        samples: 22,
        labelled: true,
        scores: vec![scores.clone(), vec![30.0, 40.0]],
        counts: vec![20, 2],
        pooled: [scores, vec![30.0, 40.0]].concat(),
        groups: Vec::new(),
        limit: 0.4,
        nearness: 0.01,
    }
}

#[test]
fn the_energy_is_the_negative_logarithm_of_the_sum_of_exponentials() {
    assert!(
        (energy(&[0.0, 0.0]) + 2.0_f32.ln()).abs() < 1e-6,
        "one rounding of an f32"
    );
    assert_eq!(energy(&[1000.0, NEVER]), -1000.0, "no overflow");
    assert_eq!(
        energy(&[-1000.0, -1000.0]),
        1000.0 - 2.0_f64.ln() as f32,
        "no underflow"
    );
}

#[test]
fn payoffs_are_squared_positions_among_the_scores_of_the_predicted_class() {
    let calibration = small();
    let near = |logits: [f32; 2], position: f64| {
        let found = calibration.payoff(&logits);
        assert!(
            (found - position * position).abs() < ROUNDING,
            "{logits:?}: {found}"
        );
    };
    near([-3.5, NEVER], 7.0 / 2.0 / 21.0); // three scores are below 3.5, and three at most 3.5
    near([-3.0, NEVER], 6.0 / 2.0 / 21.0); // two scores are below 3, and three at most 3
    near([-0.5, NEVER], 1.0 / 2.0 / 21.0);
    near([-99.0, NEVER], 41.0 / 2.0 / 21.0);
    near([NEVER, -35.0], 43.0 / 2.0 / 23.0); // the second class is compared with all 22 scores
    assert_eq!(calibration.payoff(&[f32::NAN, 0.0]), 1.0);
    assert_eq!(calibration.payoff(&[f32::INFINITY, 0.0]), 1.0);
    let mut tied = calibration.clone();
    tied.scores[0] = vec![5.0; 20];
    assert_eq!(
        tied.payoff(&[-5.0, NEVER]),
        0.25,
        "among equals the position is the middle"
    );
}

#[test]
fn evidence_is_the_product_of_the_bets() {
    let (config, calibration) = (GateConfig::default(), small());
    let (high, low) = (
        calibration.payoff(&[-99.0, NEVER]),
        calibration.payoff(&[-3.5, NEVER]),
    );
    let expect = |open: bool, factor: &dyn Fn(f64, f64) -> f64| {
        let start = if open {
            GateStart::Open
        } else {
            GateStart::Closed
        };
        let mut state = GateState::new(&GateConfig { start, ..config });
        state.observe(&config, &calibration, &[-99.0, NEVER, -3.5, NEVER], 2);
        let games =
            [0.2, 0.4, 0.6, 0.8].map(|share| (factor(share, high) + 1.0) * factor(share, low));
        let expected = games.iter().sum::<f64>() / 4.0;
        assert!(
            (state.evidence() - expected).abs() < ROUNDING,
            "{} {expected}",
            state.evidence()
        );
    };
    expect(false, &|share, payoff| 1.0 + share / 0.4 * (payoff - 0.4));
    expect(true, &|share, payoff| 1.0 + share / 0.6 * (0.4 - payoff));
}

#[test]
fn rare_classes_share_groups() {
    // Class 0 has 100 images, classes 1 to 4 have 20 each, class 5 has none. The energies of a class are equal, and
    // those of class 1 are the highest, so its mean payoff is too.
    let mut labels = vec![0; 100];
    labels.extend((0..80).map(|image| 1 + image % 4));
    let row = |label: &usize| [-(10.0 - *label as f32), NEVER, NEVER, NEVER, NEVER, NEVER];
    let logits: Vec<f32> = labels.iter().flat_map(row).collect();
    let held_out = CalibrationImages::HeldOut;
    let calibration = Calibration::new(held_out, &logits, 6, Some(&labels)).unwrap();
    let members: Vec<&[usize]> = calibration
        .groups
        .iter()
        .map(|group| &group.classes[..])
        .collect();
    assert_eq!(
        members,
        [&[0][..], &[4, 3, 2, 1][..]],
        "the remainder joins the last group"
    );
    assert_eq!(calibration.groups[1].samples, 80);
    assert_eq!(calibration.pooled_classes(), [1, 2, 3, 4]);
    let said = calibration.warnings().join("\n");
    assert!(
        said.contains(": 1, 2, 3, 4\n") && said.contains("no calibration image"),
        "{said}"
    );

    let lone = Calibration::new(
        held_out,
        &logits[..6 * 105],
        6,
        Some(&[&[0; 100][..], &[1; 5]].concat()),
    );
    assert_eq!(
        lone.unwrap().groups[0].classes,
        [0, 1],
        "too few for a group of their own"
    );
}

#[test]
fn one_image_forever_bets_once() {
    let config = GateConfig::default();
    let mut state = GateState::new(&config);
    let exact = Calibration {
        nearness: 0.0,
        ..small()
    };
    state.observe(&config, &exact, &[-99.0, NEVER].repeat(10_000), 2);
    assert_eq!((state.bets(), state.is_open()), (1, false));
    assert_eq!(state.images(), 10_000);
    let verdict = state.observe(&config, &exact, &[f32::NAN, 0.0].repeat(100), 2);
    assert!(
        verdict.open && state.bets() == 101,
        "what is not finite bets each time"
    );
}

#[test]
fn impossible_settings_are_all_named() {
    GateConfig::default().validate().unwrap();
    let json = r#"{"start": "open", "alarm": 99, "back": 9}"#;
    let wrong: GateConfig = serde_json::from_str(json).unwrap();
    let error = wrong.validate().unwrap_err().to_string();
    assert_eq!(
        error,
        "invalid gate: `alarm` must be 100 to 1e30, found 99; `back` must be 10 to 1e30, found 9"
    );
    let unending = GateConfig {
        alarm: f64::INFINITY,
        back: f64::NAN,
        ..wrong
    };
    let error = unending.validate().unwrap_err().to_string();
    assert!(
        error.contains("found inf") && error.contains("found NaN"),
        "{error}"
    );
    assert!(serde_json::from_str::<GateConfig>(r#"{"alarms": 1e6}"#).is_err());
}

#[test]
fn what_makes_no_calibration_is_refused() {
    let good = vec![1.0; 200];
    let mut infinite = good.clone();
    infinite[7] = f32::INFINITY;
    let refused = |logits: &[f32], classes: usize, labels: Option<&[usize]>, expected: &str| {
        let error =
            Calibration::new(CalibrationImages::HeldOut, logits, classes, labels).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    };
    refused(&good, 1, None, "at least 2 classes, found 1");
    refused(&good, 3, None, "rows of 3 logits, found 200 numbers");
    refused(&good[2..], 2, None, "at least 100 images, found 99");
    refused(&infinite, 2, None, "found inf in class 1 of image 3");
    refused(
        &good,
        2,
        Some(&[0; 99]),
        "expected 100 labels, one for each image, found 99",
    );
    refused(
        &good,
        2,
        Some(&[2; 100]),
        "labels below 2, found 2 at image 0",
    );
    let wrong = Calibration {
        limit: 0.0,
        nearness: f64::NAN,
        counts: vec![21, 2],
        ..small()
    };
    let error = wrong.validate().unwrap_err().to_string();
    for part in ["limit", "nearness", "class 0"] {
        assert!(error.contains(part), "{error}");
    }
}
