//! Tests of the gate with simulated images.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::tests::{ROUNDING, watch};
use super::*;

/// Simulated images, and a source of more.
struct Simulation {
    classes: usize,
    rng: ChaCha8Rng,
    logits: Vec<f32>,
    labels: Vec<usize>,
}

impl Simulation {
    /// Draws images of all classes in turn.
    fn new(classes: usize, images: usize, shift: f32, spread: f32, seed: u64) -> Self {
        let mut simulation = Self {
            classes,
            rng: ChaCha8Rng::seed_from_u64(seed),
            logits: Vec::new(),
            labels: Vec::new(),
        };
        for image in 0..images {
            simulation.draw(image % classes, shift, spread);
        }
        simulation
    }

    /// Draws an image. The logit of the predicted class has a deviation of 2, and `shift` lowers it by deviations. Its
    /// mean differs between classes by up to `spread` deviations. One image in twenty is taken for another class, with
    /// a lower logit.
    fn draw(&mut self, label: usize, shift: f32, spread: f32) {
        let wrong = self.below(20) == 0;
        let predicted =
            (label + usize::from(wrong) * (1 + self.below(self.classes - 1))) % self.classes;
        let start = self.logits.len();
        let noise = self.rng.next_u64();
        let others = (0..self.classes as u64).map(|class| {
            let bits = noise
                .wrapping_add(class)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15);
            -6.0 + (bits >> 40) as f32 / (1 << 24) as f32
        });
        self.logits.extend(others);
        let mean = 10.0 + 2.0 * spread * label as f32 / self.classes as f32
            - 2.0 * f32::from(u8::from(wrong));
        self.logits[start + predicted] = mean + 2.0 * (self.normal() - shift);
        self.labels.push(label);
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.rng.next_u64() % limit as u64) as usize
    }

    /// Draws from nearly the standard normal distribution: twelve uniform numbers have the variance one.
    fn normal(&mut self) -> f32 {
        let uniform = |_| (self.rng.next_u32() >> 8) as f32 / (1 << 24) as f32;
        (0..12).map(uniform).sum::<f32>() - 6.0
    }

    fn calibration(&self) -> Calibration {
        let labels = Some(&self.labels[..]);
        Calibration::new(
            CalibrationImages::HeldOut,
            &self.logits,
            self.classes,
            labels,
        )
        .unwrap()
    }

    fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.logits.chunks_exact(self.classes)
    }

    /// The logits in another order of images.
    fn ordered(&self, order: &[usize]) -> Vec<f32> {
        let row = |&image: &usize| &self.logits[image * self.classes..][..self.classes];
        order.iter().flat_map(row).copied().collect()
    }

    fn shuffled(&mut self) -> Vec<f32> {
        let mut order: Vec<usize> = (0..self.labels.len()).collect();
        for last in (1..order.len()).rev() {
            let other = self.below(last + 1);
            order.swap(last, other);
        }
        self.ordered(&order)
    }

    fn sorted(&self) -> Vec<f32> {
        let mut order: Vec<usize> = (0..self.labels.len()).collect();
        order.sort_by_key(|&image| self.labels[image]);
        self.ordered(&order)
    }
}

/// Watches a stream from a closed or open gate, and returns the image of the first switch.
fn first_switch(calibration: &Calibration, logits: &[f32], start: GateStart) -> Option<usize> {
    let config = GateConfig {
        start,
        ..GateConfig::default()
    };
    let mut state = GateState::new(&config);
    let classes = calibration.counts.len();
    logits.chunks_exact(classes).position(|row| {
        watch(&mut state, &config, calibration, row, classes).open != (start == GateStart::Open)
    })
}

#[test]
fn the_limit_is_the_highest_bound_of_a_group() {
    let simulation = Simulation::new(10, 2_000, 0.0, 1.0, 1);
    let calibration = simulation.calibration();
    calibration.validate().unwrap();
    let measure = &calibration.measures[0];
    assert_eq!(measure.groups.len(), 10);
    let mut highest = 0.0_f64;
    for (class, group) in measure.groups.iter().enumerate() {
        let rows = simulation
            .rows()
            .zip(&simulation.labels)
            .filter(|(_, label)| **label == class);
        let payoffs: Vec<f64> = rows.map(|(row, _)| measure.payoff(row)).collect();
        let mean = payoffs.iter().sum::<f64>() / 200.0;
        let variance = payoffs
            .iter()
            .map(|payoff| (payoff - mean).powi(2))
            .sum::<f64>()
            / 199.0;
        assert!((group.mean - mean).abs() < ROUNDING);
        assert!((group.standard_error - (variance / 200.0).sqrt()).abs() < ROUNDING);
        highest = highest.max(mean + 2.0 * (variance / 200.0).sqrt());
    }
    assert!((measure.limit - highest).abs() < ROUNDING);
    assert!(
        calibration.warnings().is_empty(),
        "{:?}",
        calibration.warnings()
    );

    let varied = CalibrationImages::TrainingVaried;
    let weak = Calibration::new(varied, &simulation.logits, 10, None).unwrap();
    let predicted = weak.measures[0]
        .groups
        .iter()
        .map(|group| group.mean + 2.0 * group.standard_error);
    assert!(
        (weak.measures[0].limit - predicted.fold(0.0, f64::max) - 0.1).abs() < ROUNDING,
        "0.05 twice"
    );
    let said = weak.warnings().join("\n");
    assert!(
        said.contains("no labels") && said.contains("training images varied"),
        "{said}"
    );
}

#[test]
fn many_scores_are_thinned_evenly() {
    let calibration = Simulation::new(2, 12_000, 0.0, 0.0, 2).calibration();
    let measure = &calibration.measures[0];
    assert_eq!(measure.pooled.len(), 10_000);
    assert!(measure.scores.iter().all(|scores| scores.len() == 1_000));
    assert_eq!(calibration.counts.iter().sum::<u64>(), 12_000);
    calibration.validate().unwrap();
    // The mean of the square of a uniform number is 1/3, and thinning moves a position by at most 1/1,000.
    let mean = measure.groups.iter().map(|group| group.mean).sum::<f64>() / 2.0;
    assert!((mean - 1.0 / 3.0).abs() < 2e-3, "{mean}");
}

#[test]
fn a_hundred_rare_classes_leave_a_useful_limit() {
    // The mean payoff is 1/3 and its deviation within a class 0.3. Two standard errors of the 20 scores that a class is
    // compared with are 0.13. The rest is what the uncertain difference between classes adds: 0.47 in all, and 0.48 in
    // the highest of 400 simulations.
    for seed in 0..20 {
        let alike = Simulation::new(100, 2_000, 0.0, 0.0, 20 + seed).calibration();
        assert_eq!(alike.pooled_classes().len(), 100);
        assert!(alike.limit() < 0.5, "seed {seed}: {}", alike.limit());
    }
}

#[test]
fn clean_streams_raise_no_alarm_in_any_order_of_classes() {
    for (classes, spread) in [(10, 1.0), (100, 0.0), (100, 1.0)] {
        for seed in 0..20 {
            let calibration =
                Simulation::new(classes, 2_000, 0.0, spread, 100 + seed).calibration();
            let mut stream = Simulation::new(classes, 8_000, 0.0, spread, 200 + seed);
            for logits in [stream.shuffled(), stream.sorted()] {
                let alarm = first_switch(&calibration, &logits, GateStart::Closed);
                assert_eq!(alarm, None, "{classes} classes, seed {seed}");
            }
        }
    }
}

#[test]
fn a_shift_is_seen_within_200_images() {
    for (classes, shift) in [(10, 1.0), (10, 2.0), (100, 2.0)] {
        for seed in 0..20 {
            let calibration = Simulation::new(classes, 2_000, 0.0, 0.5, 300 + seed).calibration();
            let logits = Simulation::new(classes, 200, shift, 0.5, 400 + seed).shuffled();
            let alarm = first_switch(&calibration, &logits, GateStart::Closed);
            assert!(
                alarm.is_some(),
                "{classes} classes, shift {shift}, seed {seed}: limit {}",
                calibration.limit()
            );
        }
    }
}

#[test]
fn the_way_back_closes_on_clean_images_only() {
    for seed in 0..20 {
        let calibration = Simulation::new(10, 2_000, 0.0, 1.0, 500 + seed).calibration();
        // An open gate looks at every eighth image at first.
        let clean = Simulation::new(10, 12_000, 0.0, 1.0, 600 + seed).shuffled();
        assert!(
            first_switch(&calibration, &clean, GateStart::Open).is_some(),
            "seed {seed}"
        );
        let shifted = Simulation::new(10, 3_000, 1.0, 1.0, 700 + seed).shuffled();
        assert_eq!(
            first_switch(&calibration, &shifted, GateStart::Open),
            None,
            "seed {seed}"
        );
    }
}

#[test]
fn a_verdict_names_the_images_of_the_switches() {
    let calibration = Simulation::new(10, 2_000, 0.0, 0.0, 4).calibration();
    let shifted = Simulation::new(10, 500, 2.0, 0.0, 5).logits;
    let clean = Simulation::new(10, 3_000, 0.0, 0.0, 6).logits;
    let opened = first_switch(&calibration, &shifted, GateStart::Closed).unwrap();
    let config = GateConfig::default();
    let mut state = GateState::new(&config);
    let verdict = watch(
        &mut state,
        &config,
        &calibration,
        &[shifted, clean].concat(),
        10,
    );
    assert_eq!((verdict.open, verdict.opened), (false, Some(opened)));
    let closed = verdict.closed.unwrap();
    assert!(closed > 500, "{closed}");
    assert_eq!(state.images(), 3_500);
    assert_eq!(state.images_closed(), 3_500 - (closed - opened) as u64);
}

#[test]
fn repeated_images_bet_once() {
    let (config, calibration) = (
        GateConfig::default(),
        Simulation::new(10, 2_000, 0.0, 0.0, 7).calibration(),
    );
    assert!(calibration.nearness > 0.0);
    let stream = Simulation::new(10, 400, 0.0, 0.0, 8);
    let repeat = |times: usize, jitter: f32| {
        let mut state = GateState::new(&config);
        for row in stream.rows() {
            for time in 0..times {
                let row: Vec<f32> = row
                    .iter()
                    .map(|logit| logit + jitter * time as f32)
                    .collect();
                watch(&mut state, &config, &calibration, &row, 10);
            }
        }
        assert_eq!(state.images(), 400 * times as u64);
        let mut saved = serde_json::to_value(&state).unwrap();
        for counter in ["images", "closed"] {
            saved.as_object_mut().unwrap().remove(counter);
        }
        saved
    };
    assert_eq!(repeat(5, 0.0), repeat(1, 0.0));
    assert_eq!(
        repeat(5, calibration.nearness as f32 / 20.0),
        repeat(1, 0.0)
    );
}

#[test]
fn batches_and_saving_change_nothing() {
    let calibration = Simulation::new(10, 2_000, 0.0, 0.0, 9).calibration();
    let shifted = Simulation::new(10, 300, 2.0, 0.0, 10).logits;
    let logits = [shifted, Simulation::new(10, 1_500, 0.0, 0.0, 11).logits].concat();
    let config = GateConfig::default();
    let states = [1, 7, 256].map(|batch| {
        let mut state = GateState::new(&config);
        for part in logits.chunks(batch * 10) {
            watch(&mut state, &config, &calibration, part, 10);
            let json = serde_json::to_string(&state).unwrap();
            assert_eq!(serde_json::from_str::<GateState>(&json).unwrap(), state);
        }
        state
    });
    assert!(
        states[0].images_closed() < 1_800,
        "the gate was open for a while"
    );
    assert_eq!(states[0], states[1]);
    assert_eq!(states[0], states[2]);
    let json = serde_json::to_value(&states[0]).unwrap();
    for (key, value) in [
        ("surprise", 1.into()),
        ("images", 0.into()),
        ("shift_bits", vec![u64::MAX; 4].into()),
    ] {
        let mut wrong: serde_json::Value = json.clone();
        wrong[key] = value;
        assert!(serde_json::from_value::<GateState>(wrong).is_err(), "{key}");
    }
}

#[test]
fn images_the_network_was_trained_on_are_suspected() {
    let training = Simulation::new(10, 10_000, 0.0, 1.0, 12).logits;
    let again = Simulation::new(10, 2_000, 0.0, 1.0, 13).logits;
    let unseen = Simulation::new(10, 2_000, 0.4, 1.0, 14).logits;
    assert!(looks_trained_on(&again, &training, 10));
    assert!(
        !looks_trained_on(&unseen, &training, 10),
        "a share of about 0.1"
    );
    assert!(
        !looks_trained_on(&again[..1_990], &training, 10),
        "199 images are too few"
    );
    assert!(!looks_trained_on(&again, &training, 0));
}
