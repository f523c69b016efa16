//! `ttac train`

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::bail;
use serde_json::json;
use ttac::backbone::{Architecture, Network};
use ttac::burn::tensor::Device;
use ttac::checkpoint::{
    Checkpoint, FORMAT, Header, InputContract, Objective, Provenance, fingerprint,
};
use ttac::data::{Dataset, OpenOptions, Part, Split, default_root};
use ttac::train::{Ended, EpochReport, StepReport, TrainConfig, Trainer, Watch};
use ttac::write_atomically;

use super::{architecture, command_line, normalisation, print, program};
use crate::args::{Keep, Options, Train};
use crate::progress::{Progress, Unit, say};
use crate::{device, interrupt};

/// Outputs of a projection head that is added to a network.
const PROJECTION: usize = 128;

/// Images that mean and deviation are measured on.
const MEASURED_IMAGES: usize = 10_000;

pub fn run(args: &Train, options: &Options) -> anyhow::Result<()> {
    let device = device::parse(&options.device)?;
    let from = match &args.from {
        Some(path) => Some(Checkpoint::load(path, &device)?),
        None => None,
    };
    let config = config(args, takes_clouds(args, from.as_ref())?);
    config.validate()?;
    let data = open(args, from.as_ref())?;
    let classes = data.classes();
    let architecture = network_for(args, from.as_ref(), classes.len())?;
    let files = Files::of(&args.out);
    let mut trainer = if args.resume {
        Trainer::resume(&files.state, &config, &architecture, data.as_ref(), &device)?
    } else {
        if files.state.exists() {
            bail!(
                "there is a run in `{}`; continue it with `--resume`, or choose another folder",
                args.out.display()
            );
        }
        let input = input(args, from.as_ref(), &architecture, data.as_ref())?;
        fresh(
            &config,
            &architecture,
            from.as_ref(),
            input,
            data.as_ref(),
            &device,
        )?
    };
    let header = Header {
        format: FORMAT,
        architecture,
        classes,
        input: trainer.input().clone(),
        augmentation: config.augmentation,
        objective: config.objective,
        provenance: Provenance {
            program: program(),
            command: command_line(),
            source: from.as_ref().map(|source| {
                let digest = fingerprint(&source.header.architecture, &source.network);
                format!("started from fingerprint {digest}")
            }),
        },
    };

    interrupt::listen();
    let steps = (data.len() - config.held_out) / config.batch_size * config.epochs;
    let total = steps * config.batch_size;
    let done = trainer.step() * config.batch_size;
    let progress = Progress::new("train", total as u64, Unit::Images).at(done as u64);
    let mut watch = Follower {
        progress,
        files: &files,
        header: &header,
        config: &config,
        images: steps / config.epochs * config.batch_size,
        log: kept_log(&files.log, trainer.log().len()),
        keep_best: args.keep == Keep::Best,
        problem: None,
    };
    let ended = trainer.run(data.as_ref(), &files.state, args.save_every, &mut watch)?;
    if let Some(problem) = watch.problem.take() {
        return Err(problem);
    }
    drop(watch);
    if ended == Ended::Stopped {
        bail!(
            "stopped after step {} of {steps}; the same command with `--resume` continues",
            trainer.step()
        );
    }
    if args.keep == Keep::Last {
        save(&files.model, &header, trainer.network())?;
    }
    let last = trainer.log().last().map_or("{}", String::as_str);
    let last: serde_json::Value = serde_json::from_str(last)?;
    let checkpoint = Checkpoint::load(&files.model, &device)?;
    let digest = fingerprint(&checkpoint.header.architecture, &checkpoint.network);
    let result = json!({
        "model": files.model,
        "log": files.log,
        "fingerprint": digest,
        "architecture": header.architecture.name(),
        "config": config,
        "last_epoch": last,
    });
    let text = format!(
        "wrote {}: {}, {} epochs, fingerprint {digest}",
        files.model.display(),
        header.architecture.name(),
        config.epochs
    );
    print(options.json, &result, &text)
}

/// The files of a run.
struct Files {
    model: PathBuf,
    state: PathBuf,
    log: PathBuf,
}

impl Files {
    fn of(folder: &Path) -> Self {
        Self {
            model: folder.join("model.safetensors"),
            state: folder.join("training.safetensors"),
            log: folder.join("log.jsonl"),
        }
    }
}

/// Whether the network looks at clouds of points.
fn takes_clouds(args: &Train, from: Option<&Checkpoint>) -> anyhow::Result<bool> {
    let architecture = match (from, &args.arch) {
        (Some(source), _) => source.header.architecture.clone(),
        (None, Some(name)) => Architecture::by_name(name, 1)?,
        (None, None) => unreachable!("clap asks for one of them"),
    };
    Ok(architecture.fewest_points().is_some())
}

fn config(args: &Train, clouds: bool) -> TrainConfig {
    let defaults = if clouds {
        TrainConfig::clouds(args.epochs)
    } else {
        TrainConfig::new(args.objective, args.epochs)
    };
    TrainConfig {
        objective: args.objective,
        epochs: args.epochs,
        batch_size: args.batch_size.unwrap_or(defaults.batch_size),
        learning_rate: args.learning_rate.unwrap_or(defaults.learning_rate),
        warm_up_epochs: args.warm_up.unwrap_or(defaults.warm_up_epochs),
        schedule: args.schedule.clone().unwrap_or(defaults.schedule),
        rule: args.rule.unwrap_or(defaults.rule),
        momentum: args.momentum,
        weight_decay: args.weight_decay.unwrap_or(defaults.weight_decay),
        label_smoothing: args.label_smoothing.unwrap_or(defaults.label_smoothing),
        smooth_others: defaults.smooth_others,
        augmentation: args.augmentation.unwrap_or(defaults.augmentation),
        rotations: args.rotations,
        held_out: args.held_out.unwrap_or(defaults.held_out),
        seed: args.seed,
    }
}

fn open(args: &Train, from: Option<&Checkpoint>) -> anyhow::Result<Box<dyn Dataset>> {
    let asked = match (from, &args.arch) {
        (Some(source), _) => super::for_model(&source.header),
        (None, Some(name)) => OpenOptions::new(architecture(name, 1, &args.set)?.image_size()),
        (None, None) => unreachable!("clap asks for one of them"),
    };
    let root = args.root.clone();
    let root = root.unwrap_or_else(|| default_root().join(&args.data));
    let mut data = ttac::data::open(&args.data, &root, Split::Train, &asked)?;
    if let Some(count) = args.subset {
        data = Box::new(Part::first(data, count.get()));
    }
    if let Some(source) = from {
        super::check_classes(
            &args.from.clone().unwrap_or_default(),
            &source.header,
            data.as_ref(),
        )?;
    }
    Ok(data)
}

/// The architecture, with the head that the objective needs where it can have one.
fn network_for(
    args: &Train,
    from: Option<&Checkpoint>,
    num_classes: usize,
) -> anyhow::Result<Architecture> {
    let mut network = match (from, &args.arch) {
        (Some(source), _) => {
            let named = source.header.architecture.clone();
            super::with_fields(named, &args.set)?
        }
        (None, Some(name)) => architecture(name, num_classes, &args.set)?,
        (None, None) => unreachable!("clap asks for one of them"),
    };
    let config = serde_json::to_value(&network)?;
    let lacks = |field: &str| config.get(field).is_some_and(serde_json::Value::is_null);
    if args.objective == Objective::Simclr && lacks("projection") {
        network = network.with_field("projection", &PROJECTION.to_string())?;
        say(&format!(
            "adding a projection head with {PROJECTION} outputs"
        ));
    }
    Ok(network)
}

fn input(
    args: &Train,
    from: Option<&Checkpoint>,
    architecture: &Architecture,
    data: &dyn Dataset,
) -> anyhow::Result<InputContract> {
    if let Some(source) = from {
        return Ok(source.header.input.clone());
    }
    if let Some(fewest) = architecture.fewest_points() {
        let sample = data.batch(&[0])?.samples.images;
        let contract = InputContract::points(sample.height, fewest);
        // Refuses images, and clouds that are too small, before anything is trained.
        contract.normalise(&sample, &Device::default())?;
        return Ok(contract);
    }
    let measured = InputContract::measured(data, MEASURED_IMAGES)?;
    Ok(match &args.normalise {
        None => measured,
        Some(name) => {
            let (mean, std) = normalisation(name)?;
            InputContract {
                mean,
                std,
                ..measured
            }
        }
    })
}

fn fresh(
    config: &TrainConfig,
    architecture: &Architecture,
    from: Option<&Checkpoint>,
    input: InputContract,
    data: &dyn Dataset,
    device: &Device,
) -> anyhow::Result<Trainer> {
    let source = from.map(|checkpoint| &checkpoint.network);
    Ok(Trainer::new(
        config.clone(),
        architecture.clone(),
        source,
        input,
        data,
        device,
    )?)
}

fn save(path: &Path, header: &Header, network: Network) -> ttac::Result<()> {
    let checkpoint = Checkpoint {
        header: header.clone(),
        network,
    };
    checkpoint.save(path)
}

/// The lines of a log that belong to the epochs of the resumed state.
fn kept_log(path: &Path, epochs: usize) -> String {
    let old = std::fs::read_to_string(path).unwrap_or_default();
    let lines = old.lines().take(epochs);
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Progress, log and best weights.
struct Follower<'a> {
    progress: Progress,
    files: &'a Files,
    header: &'a Header,
    config: &'a TrainConfig,
    images: usize,
    log: String,
    keep_best: bool,
    problem: Option<anyhow::Error>,
}

impl Watch for Follower<'_> {
    fn step(&mut self, report: &StepReport) -> ControlFlow<()> {
        self.progress.note(format!(
            "epoch {}/{} loss {:.3} error {:.2} %",
            report.epoch + 1,
            self.config.epochs,
            report.loss,
            report.error_percent
        ));
        self.progress.advance(self.config.batch_size as u64);
        if interrupt::asked() || self.problem.is_some() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn epoch(&mut self, report: &EpochReport, seconds: f64) {
        let speed = self.images as f64 / seconds;
        let held_out = report
            .held_out_error_percent
            .map_or(String::new(), |error| format!(", held out {error:.2} %"));
        let rotation = report
            .rotation_error_percent
            .map_or(String::new(), |error| format!(", rotation {error:.2} %"));
        self.progress.line(&format!(
            "epoch {}/{}: loss {:.4}, error {:.2} %{held_out}{rotation}, {seconds:.0} s, {speed:.0} images/s",
            report.epoch, self.config.epochs, report.loss, report.train_error_percent
        ));
        let mut line = serde_json::to_value(report).unwrap_or_default();
        line["seconds"] = json!((seconds * 10.0).round() / 10.0);
        line["images_per_second"] = json!(speed.round());
        let _ = writeln!(self.log, "{line}");
        if let Err(error) = write_atomically(&self.files.log, self.log.as_bytes()) {
            self.problem = Some(error.into());
        }
    }

    fn best(&mut self, _: &EpochReport, network: &Network) -> ttac::Result<()> {
        if self.keep_best {
            save(&self.files.model, self.header, network.clone())?;
        }
        Ok(())
    }
}
