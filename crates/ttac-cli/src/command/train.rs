//! `ttac train`: trains a network on labelled images.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::bail;
use serde_json::{Value, json};
use ttac::backbone::{Architecture, InputForm, Network};
use ttac::burn::tensor::Device;
use ttac::checkpoint::{
    Checkpoint, FORMAT, Header, InputContract, Objective, Provenance, fingerprint,
};
use ttac::data::{Dataset, DatasetExt, OpenOptions, Part, Split, default_root};
use ttac::train::{Ended, EpochReport, Ranks, StepReport, TrainConfig, Trainer, Watch};
use ttac::write_atomically;

use super::{architecture, command_line, normalisation, print, program};
use crate::args::{Keep, Options, Train};
use crate::job::Job;
use crate::progress::{Progress, Unit, say};
use crate::{device, interrupt};

/// The number of outputs of a projection head that is added to a network.
const PROJECTION: usize = 128;

/// The number of images on which mean and deviation are measured.
const MEASURED_IMAGES: usize = 10_000;

pub fn run(args: &Train, options: &Options) -> anyhow::Result<()> {
    let job = Job::start(args.mpi)?;
    let ended = train(args, options, &job);
    job.end(ended)
}

fn train(args: &Train, options: &Options, job: &Job) -> anyhow::Result<()> {
    let device = device::parse(&options.device)?;
    let from = args.from.as_ref();
    let from = from
        .map(|path| Checkpoint::load(path, &device))
        .transpose()?;
    let from = from.as_ref();
    let config = config(args, takes_clouds(args, from)?);
    config.validate()?;
    let data = open(args, from)?;
    let architecture = network_for(args, from, data.classes().len())?;
    let run = Run {
        args,
        from,
        config,
        data,
        architecture,
        files: Files::of(&args.out),
        device,
    };
    let mut trainer = run.trainer()?;
    let header = run.header(&trainer);
    run.train(&mut trainer, &header, job)?;
    // The first process writes for all of them.
    if job.rank() > 0 {
        return Ok(());
    }
    if args.keep == Keep::Last {
        save(&run.files.model, &header, trainer.network())?;
    }
    let (result, text) = run.summary(&trainer)?;
    print(options.json, &result, &text)
}

/// A training run as it was asked for.
struct Run<'a> {
    args: &'a Train,
    /// The checkpoint that the run starts from.
    from: Option<&'a Checkpoint>,
    config: TrainConfig,
    data: Box<dyn Dataset>,
    architecture: Architecture,
    files: Files,
    device: Device,
}

impl Run<'_> {
    /// Starts the run, or resumes the one in the folder.
    fn trainer(&self) -> anyhow::Result<Trainer> {
        let data = self.data.as_ref();
        let state = &self.files.state;
        if self.args.resume {
            let trainer =
                Trainer::resume(state, &self.config, &self.architecture, data, &self.device);
            return Ok(trainer?);
        }
        if state.exists() {
            bail!(
                "there is a run in `{}`; continue it with `--resume`, or choose another folder",
                self.args.out.display()
            );
        }
        Ok(Trainer::new(
            self.config.clone(),
            self.architecture.clone(),
            self.from.map(|checkpoint| &checkpoint.network),
            input(self.args, self.from, &self.architecture, data)?,
            data,
            &self.device,
        )?)
    }

    /// The header of the checkpoints that the run writes.
    fn header(&self, trainer: &Trainer) -> Header {
        let source = self.from.map(|source| {
            let digest = fingerprint(&source.header.architecture, &source.network);
            format!("started from fingerprint {digest}")
        });
        Header {
            format: FORMAT,
            architecture: self.architecture.clone(),
            classes: self.data.classes().to_vec(),
            input: trainer.input().clone(),
            augmentation: self.config.augmentation,
            objective: self.config.objective,
            provenance: Provenance {
                program: program(),
                command: command_line(),
                source,
            },
        }
    }

    /// Trains to the end. An error says if the run was stopped, or if its log could not be written.
    fn train(&self, trainer: &mut Trainer, header: &Header, job: &Job) -> anyhow::Result<()> {
        interrupt::listen();
        let config = &self.config;
        let steps = (self.data.len() - config.held_out) / config.batch_size * config.epochs;
        let total = steps * config.batch_size;
        let done = trainer.step() * config.batch_size;
        let mut watcher = TrainingWatcher {
            progress: Progress::new("train", total as u64, Unit::Images).at(done as u64),
            files: &self.files,
            header,
            config,
            images: steps / config.epochs * config.batch_size,
            log: kept_log(&self.files.log, trainer.log().len()),
            keep_best: self.args.keep == Keep::Best,
            problem: None,
        };
        let (data, state) = (self.data.as_ref(), &self.files.state);
        let every = self.args.save_every;
        let ended = if job.rank() == 0 {
            trainer.run_among(job, data, state, every, &mut watcher)?
        } else {
            trainer.run_among(job, data, state, every, &mut Silent)?
        };
        if let Some(problem) = watcher.problem.take() {
            return Err(problem);
        }
        if ended == Ended::Stopped {
            bail!(
                "stopped after step {} of {steps}; the same command with `--resume` continues",
                trainer.step()
            );
        }
        Ok(())
    }

    /// What is printed of a finished run, as JSON and as text.
    fn summary(&self, trainer: &Trainer) -> anyhow::Result<(Value, String)> {
        let last = trainer.log().last().map_or("{}", String::as_str);
        let last: Value = serde_json::from_str(last)?;
        let model = &self.files.model;
        let checkpoint = Checkpoint::load(model, &self.device)?;
        let digest = fingerprint(&checkpoint.header.architecture, &checkpoint.network);
        let name = self.architecture.name();
        let result = json!({
            "model": model,
            "log": self.files.log,
            "fingerprint": digest,
            "architecture": name,
            "config": self.config,
            "last_epoch": last,
        });
        let text = format!(
            "wrote {}: {name}, {} epochs, fingerprint {digest}",
            model.display(),
            self.config.epochs
        );
        Ok((result, text))
    }
}

/// The files that a run writes.
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

/// Tells whether the network takes clouds of points.
fn takes_clouds(args: &Train, from: Option<&Checkpoint>) -> anyhow::Result<bool> {
    let architecture = match (from, &args.arch) {
        (Some(source), _) => source.header.architecture.clone(),
        (None, Some(name)) => Architecture::by_name(name, 1)?,
        (None, None) => unreachable!("clap asks for one of them"),
    };
    Ok(matches!(architecture.input(), InputForm::Clouds { .. }))
}

/// The constants that were asked for; the objective and the kind of samples decide the rest.
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
        shards: args.shards,
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

/// Opens the training images that were asked for.
fn open(args: &Train, from: Option<&Checkpoint>) -> anyhow::Result<Box<dyn Dataset>> {
    let asked = match (from, &args.arch) {
        (Some(source), _) => super::for_model(&source.header),
        (None, Some(name)) => {
            let [size, _] = architecture(name, 1, &args.set)?.input().size();
            OpenOptions::new(size)
        }
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

/// The architecture that was asked for. The head that the objective needs is added where the
/// architecture can have one.
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
    let lacks = |field: &str| config.get(field).is_some_and(Value::is_null);
    if args.objective == Objective::Simclr && lacks("projection") {
        network = network.with_field("projection", &PROJECTION.to_string())?;
        say(&format!(
            "adding a projection head with {PROJECTION} outputs"
        ));
    }
    Ok(network)
}

/// The contract of the network's input: the checkpoint's, or one that is measured or named.
fn input(
    args: &Train,
    from: Option<&Checkpoint>,
    architecture: &Architecture,
    data: &dyn Dataset,
) -> anyhow::Result<InputContract> {
    if let Some(source) = from {
        return Ok(source.header.input.clone());
    }
    if let InputForm::Clouds { fewest, .. } = architecture.input() {
        let sample = data.batch(&[0])?.samples;
        let points = sample.as_clouds().map_or(fewest, |clouds| clouds.points);
        let contract = InputContract::Clouds { points, fewest };
        // Refuses images, and clouds that are too small, before anything is trained.
        contract.normalise(&sample, &Device::default())?;
        return Ok(contract);
    }
    let mut contract = InputContract::measured(data, MEASURED_IMAGES)?;
    if let (InputContract::Images { mean, std, .. }, Some(name)) = (&mut contract, &args.normalise)
    {
        (*mean, *std) = normalisation(name)?;
    }
    Ok(contract)
}

/// Writes a checkpoint.
fn save(path: &Path, header: &Header, network: Network) -> ttac::Result<()> {
    let checkpoint = Checkpoint {
        header: header.clone(),
        network,
    };
    checkpoint.save(path)
}

/// Reads the lines of a log that belong to the epochs of the resumed state.
fn kept_log(path: &Path, epochs: usize) -> String {
    let old = std::fs::read_to_string(path).unwrap_or_default();
    let lines = old.lines().take(epochs);
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Leaves it to the first process to say and write anything.
struct Silent;

impl Watch for Silent {
    fn step(&mut self, _: &StepReport) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn epoch(&mut self, _: &EpochReport, _: f64) {}
}

/// Shows progress, writes the log, keeps the best weights and stops the run on Ctrl-C.
struct TrainingWatcher<'a> {
    progress: Progress,
    files: &'a Files,
    header: &'a Header,
    config: &'a TrainConfig,
    images: usize,
    log: String,
    keep_best: bool,
    problem: Option<anyhow::Error>,
}

impl Watch for TrainingWatcher<'_> {
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
