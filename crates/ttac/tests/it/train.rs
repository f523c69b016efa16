//! Training runs on a few embedded images.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use ttac::Error;
use ttac::backbone::Architecture;
use ttac::burn::tensor::Device;
use ttac::checkpoint::{InputContract, Objective, fingerprint};
use ttac::data::{Dataset, InMemory, Shapes10, Split};
use ttac::stats::{AnchorConfig, SourceLabels, collect};
use ttac::train::{Ended, EpochReport, StepReport, TrainConfig, Trainer, Watch};

/// Stops after a number of steps.
struct StopAfter(usize, Vec<f64>);

impl Watch for StopAfter {
    fn step(&mut self, report: &StepReport) -> ControlFlow<()> {
        self.1.push(report.loss);
        if report.step == self.0 {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn epoch(&mut self, _: &EpochReport, _: f64) {}
}

fn never() -> StopAfter {
    StopAfter(usize::MAX, Vec::new())
}

fn data() -> Shapes10 {
    Shapes10::new(Split::Train, 60, 0)
}

fn architecture(objective: Objective) -> Architecture {
    let (name, field, value) = match objective {
        Objective::Plain => ("resnet20-cifar", "width", "4"),
        Objective::Simclr => ("resnet20-cifar", "projection", "16"),
        Objective::Rotation => ("resnet26", "width", "8"),
    };
    let small = Architecture::by_name(name, 10).unwrap();
    let small = small.with_field("depth", "8").unwrap();
    small.with_field(field, value).unwrap()
}

fn config(objective: Objective) -> TrainConfig {
    TrainConfig {
        batch_size: 16,
        held_out: 10,
        ..TrainConfig::new(objective, 2)
    }
}

fn start(objective: Objective) -> Trainer {
    start_with(config(objective))
}

/// Starts a run with constants of its own, on the network of its objective.
fn start_with(config: TrainConfig) -> Trainer {
    let network = architecture(config.objective);
    try_start(config, network).unwrap()
}

fn try_start(config: TrainConfig, network: Architecture) -> Result<Trainer, Error> {
    let input = InputContract::measured(&data(), 100).unwrap();
    Trainer::new(config, network, None, input, &data(), &Device::flex())
}

/// A folder, and the file in it that the state of a run is saved to.
fn saved() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    (folder, path)
}

fn resume(path: &Path, config: &TrainConfig) -> Result<Trainer, Error> {
    let architecture = architecture(config.objective);
    Trainer::resume(path, config, &architecture, &data(), &Device::flex())
}

fn digest(trainer: &Trainer, objective: Objective) -> String {
    fingerprint(&architecture(objective), &trainer.network())
}

#[test]
fn stopped_anywhere_and_resumed_a_run_ends_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    for objective in [Objective::Plain, Objective::Simclr, Objective::Rotation] {
        let path = folder.path().join(format!("{objective:?}"));
        let mut whole = start(objective);
        let mut losses = never();
        assert_eq!(
            whole.run(&data(), &path, 100, &mut losses).unwrap(),
            Ended::Finished
        );
        assert_eq!(losses.1.len(), 6, "three steps in each of two epochs");
        // In the middle of an epoch, at its end, and at the end of all.
        for stop in [2, 3, 5] {
            let mut part = start(objective);
            let ended = part
                .run(&data(), &path, 100, &mut StopAfter(stop, vec![]))
                .unwrap();
            assert_eq!(ended, Ended::Stopped);
            let mut rest = resume(&path, &config(objective)).unwrap();
            assert_eq!(rest.step(), stop);
            rest.run(&data(), &path, 100, &mut never()).unwrap();
            assert_eq!(digest(&rest, objective), digest(&whole, objective));
            assert_eq!(rest.log(), whole.log());
        }
    }
}

#[test]
fn learning_lowers_the_loss_and_another_seed_gives_another_network() {
    let (_folder, path) = saved();
    let config = TrainConfig {
        epochs: 12,
        ..config(Objective::Plain)
    };
    let run = |config: TrainConfig| {
        let mut trainer = start_with(config);
        let mut losses = never();
        trainer.run(&data(), &path, 100, &mut losses).unwrap();
        (digest(&trainer, Objective::Plain), losses.1)
    };
    let (first, losses) = run(config.clone());
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let (early, late) = (mean(&losses[..6]), mean(&losses[30..]));
    assert!(
        late < early - 0.1,
        "loss {early} at first, {late} at the end"
    );
    assert_eq!(run(config.clone()).0, first);
    assert_ne!(run(TrainConfig { seed: 1, ..config }).0, first);
}

#[test]
fn a_run_is_not_resumed_with_other_constants() {
    let (_folder, path) = saved();
    let mut trainer = start(Objective::Plain);
    trainer
        .run(&data(), &path, 100, &mut StopAfter(1, vec![]))
        .unwrap();
    let other = TrainConfig {
        learning_rate: 0.2,
        ..config(Objective::Plain)
    };
    let error = resume(&path, &other).err().unwrap().to_string();
    assert!(error.contains("configuration of the run"), "{error}");
    assert!(error.contains("0.2"), "{error}");
    let fewer = Shapes10::new(Split::Train, 50, 0);
    let (config, network) = (config(Objective::Plain), architecture(Objective::Plain));
    let error = Trainer::resume(&path, &config, &network, &fewer, &Device::flex());
    let error = error.err().unwrap().to_string();
    assert!(error.contains("data set of the run"), "{error}");
}

#[test]
fn a_loss_that_is_no_number_stops_the_run_and_spares_what_was_saved() {
    let (_folder, path) = saved();
    let mut trainer = start_with(TrainConfig {
        learning_rate: 1e12,
        warm_up_epochs: 0.0,
        ..config(Objective::Plain)
    });
    trainer.save(&path).unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = trainer.run(&data(), &path, 100, &mut never()).unwrap_err();
    assert!(
        matches!(error, Error::Diverged { step: 2.., .. }),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("smaller learning rate"));
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn all_that_is_wrong_with_a_configuration_is_said_at_once() {
    let wrong = TrainConfig {
        epochs: 0,
        batch_size: 0,
        learning_rate: -1.0,
        momentum: 1.0,
        ..TrainConfig::new(Objective::Simclr, 1)
    };
    let error = wrong.validate().unwrap_err().to_string();
    for field in ["epochs", "batch_size", "learning_rate", "momentum"] {
        assert!(error.contains(field), "{field} in: {error}");
    }
}

#[test]
fn an_objective_without_its_head_says_so() {
    let plain = architecture(Objective::Plain);
    for (objective, word) in [
        (Objective::Simclr, "projection"),
        (Objective::Rotation, "rotation"),
    ] {
        let error = try_start(config(objective), plain.clone());
        let error = error.err().unwrap().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn what_learns_from_classes_refuses_samples_without_labels() {
    let samples = data().batch(&[0, 1, 2, 3]).unwrap().samples;
    let unlabelled = InMemory::new("found", ["a"; 0], samples, None).unwrap();
    let input = InputContract::measured(&unlabelled, 100).unwrap();
    let (architecture, device) = (architecture(Objective::Plain), Device::flex());
    let network = architecture.init(0, &device).unwrap();
    let config = config(Objective::Plain);
    let trained = Trainer::new(
        config,
        architecture,
        None,
        input.clone(),
        &unlabelled,
        &device,
    );
    let by_class = AnchorConfig {
        labels: SourceLabels::True,
        ..AnchorConfig::default()
    };
    let anchors = collect(
        &network,
        "",
        &input,
        &unlabelled,
        &by_class,
        &device,
        |_| {},
    );
    for error in [trained.err(), anchors.err()] {
        assert_eq!(
            error.unwrap().to_string(),
            "labels of `found`: expected the true class of every sample, found samples without labels"
        );
    }
}
