//! Tests of the gate with numbers computed by hand.

use super::payoffs::groups;
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
        counts: vec![20, 2],
        measures: vec![Measure {
            score: Score::Energy,
            scores: vec![scores.clone(), vec![30.0, 40.0]],
            pooled: [scores, vec![30.0, 40.0]].concat(),
            groups: Vec::new(),
            limit: 0.4,
        }],
        entropies: Vec::new(),
        nearness: 0.01,
    }
}

/// Shows a gate the logits of a batch, rows of `classes`.
pub(super) fn watch(
    state: &mut GateState,
    config: &GateConfig,
    calibration: &Calibration,
    logits: &[f32],
    classes: usize,
) -> Verdict {
    let row = |image: usize| logits[image * classes..][..classes].to_vec();
    state.observe(config, calibration, logits.len() / classes, row)
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
fn the_doubt_is_the_logarithm_of_the_odds_against_the_predicted_class() {
    assert_eq!(doubt(&[3.0, 1.0]), -2.0);
    // Two others as likely as each other, and together twice as likely as one.
    let found = doubt(&[1.0, 5.0, 1.0]);
    assert!(
        (found - (2.0_f32.ln() - 4.0)).abs() < 1e-6,
        "one rounding of an f32: {found}"
    );
    assert_eq!(doubt(&[1000.0, -1000.0]), -2000.0, "no underflow");
    assert_eq!(doubt(&[2.0, 2.0]), 0.0);
}

#[test]
fn a_gate_opens_by_either_score_and_closes_by_both() {
    let energy = small();
    let second = |limit| Measure {
        limit,
        ..energy.measures[0].clone()
    };
    let config = GateConfig {
        alarm: 100.0,
        back: 100.0,
        ..GateConfig::default()
    };
    let calibration = |limit| Calibration {
        nearness: 0.0,
        measures: vec![energy.measures[0].clone(), second(limit)],
        ..energy.clone()
    };
    let stream = |score: f32, images: usize| -> Vec<f32> {
        // Images that are almost equal would bet once.
        let rows = (0..images).map(|image| [-score - image as f32 * 1e-3, NEVER]);
        rows.flatten().collect()
    };
    // The position of 12.5 is 12.5 / 21, its payoff 0.354: below the one limit and above the other.
    let mut state = GateState::new(&config);
    let both = calibration(0.2);
    watch(&mut state, &config, &both, &stream(12.5, 300), 2);
    assert!(state.is_open(), "one score is enough to open");
    watch(&mut state, &config, &both, &stream(12.5, 300), 2);
    assert!(state.is_open(), "one score is not enough to close");
    watch(&mut state, &config, &both, &stream(2.5, 300), 2);
    assert!(!state.is_open(), "both scores are");
}

#[test]
fn a_network_that_is_surer_than_on_its_own_images_opens_the_gate() {
    // The largest logit lies between 0 and 20 on source images, and is 19 to 21 on those of the stream.
    let rows = |from: f32, width: f32| -> Vec<f32> {
        let logits = |image: usize| from + width * (image * 37 % 101) as f32 / 101.0;
        (0..400)
            .flat_map(|image| {
                [(image % 2) as f32, 1.0 - (image % 2) as f32].map(|own| logits(image) + own * 3.0)
            })
            .collect()
    };
    let opens = |images| {
        let source = rows(0.0, 20.0);
        let calibration = Calibration {
            nearness: 0.0,
            ..Calibration::new(images, &source, 2, None).unwrap()
        };
        let config = GateConfig::default();
        let mut state = GateState::new(&config);
        assert!(!watch(&mut state, &config, &calibration, &source, 2).open);
        watch(&mut state, &config, &calibration, &rows(19.0, 2.0), 2).open
    };
    assert!(opens(CalibrationImages::HeldOut));
    // Images as they are make a network surer than varied ones, so that this is no sign of a shift.
    assert!(!opens(CalibrationImages::TrainingVaried));
}

#[test]
fn payoffs_are_squared_positions_among_the_scores_of_the_predicted_class() {
    let [calibration] = &small().measures[..] else {
        unreachable!()
    };
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
        calibration.measures[0].payoff(&[-99.0, NEVER]),
        calibration.measures[0].payoff(&[-3.5, NEVER]),
    );
    let expect = |open: bool, factor: &dyn Fn(f64, f64) -> f64| {
        let start = if open {
            GateStart::Open
        } else {
            GateStart::Closed
        };
        let mut state = GateState::new(&GateConfig { start, ..config });
        for row in [[-99.0, NEVER], [-3.5, NEVER]] {
            // An open gate looks at every eighth image only.
            let row = if open { row.repeat(8) } else { row.to_vec() };
            watch(&mut state, &config, &calibration, &row, 2);
        }
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
fn rare_classes_borrow_from_each_other() {
    // Class 0 has 50 images. Class 1 has 30 of mean 0.3, class 2 has 30 of mean 0.5, and class 3 has none.
    let pairs = |low: f64, high: f64, count: usize| [low, high].repeat(count);
    let payoffs = [
        pairs(0.0, 0.2, 25),
        pairs(0.2, 0.4, 15),
        pairs(0.4, 0.6, 15),
        Vec::new(),
    ];
    let found = groups(&payoffs, &[50, 30, 20, 110]);
    let s2 = 60.0 * 0.1_f64.powi(2) / 58.0;
    let t2 = (60.0 * 0.1_f64.powi(2) - s2) / 30.0 + s2 * 2.0_f64.sqrt() / 30.0;
    let vm = s2 / 60.0 + t2 / 2.0;
    let b = t2 / (t2 + s2 / 30.0);
    let own = b * s2 / 30.0 + (1.0 - b).powi(2) * vm;
    let expected = [
        (50, 0.1, 50.0 * 0.1_f64.powi(2) / 49.0 / 50.0, false),
        (30, 0.4 - 0.1 * b, own + s2 / 30.0, true),
        (30, 0.4 + 0.1 * b, own + s2 / 20.0, true),
        (0, 0.4, t2 + vm + s2 / 110.0, true),
    ];
    assert_eq!(found.len(), 4);
    for (class, (group, expected)) in found.iter().zip(expected).enumerate() {
        let (samples, mean, variance, shrunk) = expected;
        assert_eq!(group.classes, [class]);
        assert_eq!((group.samples, group.shrunk), (samples, shrunk));
        assert!((group.mean - mean).abs() < ROUNDING, "{group:?}");
        assert!(
            (group.standard_error.powi(2) - variance).abs() < ROUNDING,
            "{group:?}"
        );
    }
}

#[test]
fn rare_classes_of_one_image_or_of_equal_payoffs_have_finite_means() {
    let single: Vec<Vec<f64>> = (0..60_u8)
        .map(|class| vec![f64::from(class) / 60.0])
        .collect();
    for group in groups(&single, &[60; 60]) {
        // The standard deviation of evenly spaced payoffs is 0.29, and nothing says that the classes differ: `t2` is
        // its second term, 0.29^2 sqrt(118) / 59, or 0.12^2. So a class is moved most of the way to the mean.
        assert!((group.mean - 0.5).abs() < 0.1, "{group:?}");
        assert!((0.05..0.2).contains(&group.standard_error), "{group:?}");
    }
    for group in groups(&vec![vec![0.25; 30]; 2], &[60; 2]) {
        assert_eq!((group.mean, group.standard_error), (0.25, 0.0));
    }
}

#[test]
fn rare_classes_are_named() {
    // Class 0 has 100 images, classes 1 to 4 have 20 each, class 5 has none.
    let mut labels = vec![0; 100];
    labels.extend((0..80).map(|image| 1 + image % 4));
    let row = |label: &usize| [-(10.0 - *label as f32), NEVER, NEVER, NEVER, NEVER, NEVER];
    let logits: Vec<f32> = labels.iter().flat_map(row).collect();
    let held_out = CalibrationImages::HeldOut;
    let calibration = Calibration::new(held_out, &logits, 6, Some(&labels)).unwrap();
    assert_eq!(calibration.pooled_classes(), [1, 2, 3, 4, 5]);
    let said = calibration.warnings().join("\n");
    assert!(
        said.contains("with the help of the others") && said.contains(": 1, 2, 3, 4, 5"),
        "{said}"
    );

    // Five images are too few to say anything about the rare classes, so they join the group of the largest mean.
    let labels = [&[0; 100][..], &[1; 5]].concat();
    let few = Calibration::new(held_out, &logits[..6 * 105], 6, Some(&labels)).unwrap();
    for measure in &few.measures {
        assert_eq!(measure.groups.len(), 1);
        let group = &measure.groups[0];
        assert_eq!(group.classes, [0, 1]);
        assert_eq!((group.samples, group.shrunk), (105, false));
    }
    assert_eq!(few.pooled_classes(), [0, 1]);
    let said = few.warnings().join("\n");
    assert!(
        said.contains(": 0, 1\n") && said.contains("no calibration image"),
        "{said}"
    );

    let json = r#"{"classes": [0], "samples": 50, "mean": 0.3, "standard_error": 0.1}"#;
    let unmarked: PayoffGroup = serde_json::from_str(json).unwrap();
    assert!(!unmarked.shrunk);
}

#[test]
fn one_image_forever_bets_once() {
    let config = GateConfig::default();
    let mut state = GateState::new(&config);
    let exact = Calibration {
        nearness: 0.0,
        ..small()
    };
    watch(
        &mut state,
        &config,
        &exact,
        &[-99.0, NEVER].repeat(10_000),
        2,
    );
    assert_eq!((state.bets(), state.is_open()), (1, false));
    assert_eq!(state.images(), 10_000);
    let verdict = watch(&mut state, &config, &exact, &[f32::NAN, 0.0].repeat(100), 2);
    let opened = verdict.opened.expect("what is not finite bets each time");
    // Once it is open, the gate looks at every eighth image: at those whose number is a multiple of eight.
    let looked = (10_000 + opened + 1..10_100).filter(|image| image % 8 == 0);
    assert_eq!(state.bets() as usize, 1 + opened + 1 + looked.count());
}

#[test]
fn an_open_gate_that_is_about_to_close_looks_at_every_image() {
    let config = GateConfig {
        start: GateStart::Open,
        ..GateConfig::default()
    };
    let (mut state, calibration) = (GateState::new(&config), small());
    let (mut seldom, mut always) = (0, 0);
    for image in 0..10_000_u64 {
        let half_way = state.evidence() >= config.back.sqrt();
        let mut looked = false;
        // Rows that differ, so that each bets, and that fit the source.
        let score = if image % 16 < 8 { -3.5 } else { -2.5 };
        let verdict = state.observe(&config, &calibration, 1, |_| {
            looked = true;
            vec![score + 0.01 * (image % 5) as f32, NEVER]
        });
        assert_eq!(looked, half_way || image % 8 == 0, "image {image}");
        *(if half_way { &mut always } else { &mut seldom }) += 1;
        if !verdict.open {
            break;
        }
    }
    assert!(
        !state.is_open() && seldom > 8 && always > 1,
        "{seldom} {always}"
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
    let mut wrong = Calibration {
        nearness: f64::NAN,
        counts: vec![21, 2],
        ..small()
    };
    wrong.measures[0].limit = 0.0;
    let error = wrong.validate().unwrap_err().to_string();
    for part in ["limit", "nearness", "class 0"] {
        assert!(error.contains(part), "{error}");
    }
}
