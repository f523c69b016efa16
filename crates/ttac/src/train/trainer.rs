//! The trainer, which loops over steps and epochs.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use serde::Serialize;

use super::loader::{Division, Loader, Prepared};
use super::objective::{objective, right};
use super::ranks::{self, Alone, Ranks, add_in_order, own_shards};
use super::state::{Tally, TrainingHeader};
use super::{Rule, TrainConfig};
use crate::backbone::{
    Adaptable, Architecture, Backbone, Network, NormMode, load_tensors, tensors,
};
use crate::checkpoint::{InputContract, Objective};
use crate::data::{Dataset, DatasetExt, SampleId, rotate};
use crate::optim::{Optimiser, OptimiserConfig};
use crate::{Error, Result};

/// The number of prepared batches that wait for their step.
const PREPARED_BATCHES: usize = 3;

/// The number of held-out images in a forward pass, which has no influence on the result.
const EVALUATION_BATCH: usize = 250;

/// What a training step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// The number of steps that are done.
    pub step: usize,
    /// The number of steps in the run.
    pub steps: usize,
    /// The epoch, counted from zero.
    pub epoch: usize,
    /// The loss of this batch.
    pub loss: f64,
    /// The error on the augmented images of this epoch so far, in percent.
    pub error_percent: f64,
}

/// What an epoch of training did; it becomes a line of the log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EpochReport {
    /// The epoch, counted from one.
    pub epoch: usize,
    /// The learning rate of the step after the epoch.
    pub learning_rate: f64,
    /// The mean loss over the steps.
    pub loss: f64,
    /// The mean of the self-supervised loss, for joint objectives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auxiliary_loss: Option<f64>,
    /// The error on the augmented training images while the network learned from them, in percent.
    pub train_error_percent: f64,
    /// The error on the held-out training images, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out_error_percent: Option<f64>,
    /// The error of the rotation head on all four rotations of the held-out images, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation_error_percent: Option<f64>,
}

/// Receives reports of a training run, and can stop it.
pub trait Watch {
    /// Receives the report of every step; `Break` stops the run.
    fn step(&mut self, report: &StepReport) -> ControlFlow<()>;

    /// Receives the report of every epoch, with its time in seconds since its start or the last
    /// resumption.
    fn epoch(&mut self, report: &EpochReport, seconds: f64);

    /// Receives the network after every epoch that is the best so far on the held-out images.
    fn best(&mut self, _report: &EpochReport, _network: &Network) -> Result<()> {
        Ok(())
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All epochs are done.
    Finished,
    /// [`Watch::step`] stopped it; the state is saved.
    Stopped,
}

/// Runs a training; the [module](super) says how.
pub struct Trainer {
    state: TrainingHeader,
    /// The network, which is absent only during a step.
    network: Option<Network>,
    optimiser: Optimiser,
    device: Device,
}

impl Trainer {
    /// Starts a run. Weights come from `from` where it has a tensor of the same key and shape, and are
    /// random elsewhere.
    pub fn new(
        config: TrainConfig,
        architecture: Architecture,
        from: Option<&Network>,
        input: InputContract,
        data: &dyn Dataset,
        device: &Device,
    ) -> Result<Self> {
        config.validate()?;
        data.check_labelled()?;
        let mut network = architecture.init(config.seed, device)?;
        if let Some(source) = from {
            network = load_tensors(network, &tensors(source));
        }
        check_heads(&network, &architecture, config.objective)?;
        config.augmentation.check(&input)?;
        Ok(Self {
            optimiser: optimiser(&config),
            network: Some(network.trainable(Adaptable::All)),
            device: device.clone(),
            state: TrainingHeader::new(config, architecture, input, describe(data)),
        })
    }

    /// Continues the run whose state was saved in a file. Configuration, architecture and data must be
    /// those that it was started with.
    pub fn resume(
        path: &Path,
        config: &TrainConfig,
        architecture: &Architecture,
        data: &dyn Dataset,
        device: &Device,
    ) -> Result<Self> {
        data.check_labelled()?;
        let mut optimiser = optimiser(config);
        let check = |state: &TrainingHeader| {
            let pairs = [
                ("configuration", json(&state.config), json(config)),
                (
                    "architecture",
                    json(&state.architecture),
                    json(architecture),
                ),
                ("data set", json(&state.data), json(&describe(data))),
            ];
            for (what, saved, asked) in pairs {
                if saved != asked {
                    return Err(Error::Mismatch {
                        what: format!("{what} of the run in `{}`", path.display()),
                        expected: saved,
                        found: asked,
                    });
                }
            }
            architecture.blank(device)
        };
        let (state, network) = TrainingHeader::load(path, check, &mut optimiser)?;
        Ok(Self {
            state,
            network: Some(network.trainable(Adaptable::All)),
            optimiser,
            device: device.clone(),
        })
    }

    /// Returns the network as it is now, without gradients.
    pub fn network(&self) -> Network {
        self.learning().valid()
    }

    /// Returns the network as it is now, with gradients.
    fn learning(&self) -> &Network {
        self.network.as_ref().expect("the network is put back")
    }

    /// Returns the contract that the network's input fulfils.
    pub fn input(&self) -> &InputContract {
        &self.state.input
    }

    /// Returns the number of steps that are done.
    pub fn step(&self) -> usize {
        self.state.step
    }

    /// Returns the log so far: an [`EpochReport`] as a line of JSON for every epoch.
    pub fn log(&self) -> &[String] {
        &self.state.log
    }

    /// Runs to the end, or until the watch stops it. The state is saved to `path` every `save_every`
    /// steps, after every epoch, and when it is stopped.
    pub fn run(
        &mut self,
        data: &dyn Dataset,
        path: &Path,
        save_every: usize,
        watch: &mut dyn Watch,
    ) -> Result<Ended> {
        self.run_among(&Alone, data, path, save_every, watch)
    }

    /// Runs in the same way as one of several processes, each of which calls this with the same arguments. They share the
    /// [shards](TrainConfig::shards) of every batch. The first one saves the state, and its watch alone can stop the run.
    pub fn run_among(
        &mut self,
        ranks: &dyn Ranks,
        data: &dyn Dataset,
        path: &Path,
        save_every: usize,
        watch: &mut dyn Watch,
    ) -> Result<Ended> {
        let config = self.state.config.clone();
        ranks::check(ranks, config.shards)?;
        let input = self.state.input.clone();
        let division = Division::new(data.len(), &config)?;
        let steps = division.steps(&config) * config.epochs;
        let device = self.device.clone();
        let loader = Loader {
            config: &config,
            data,
            division: &division,
            input: &input,
            device: &device,
            shards: own_shards(ranks, config.shards),
        };
        let first = self.state.step;
        std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel(PREPARED_BATCHES);
            scope.spawn(move || loader.run(first, &sender));
            let mut start = Instant::now();
            for prepared in receiver {
                let report = self.learn(ranks, prepared?, &division, steps)?;
                let epoch_over = report.step.is_multiple_of(division.steps(&config));
                if epoch_over {
                    self.end_epoch(data, &division, start.elapsed().as_secs_f64(), watch)?;
                    start = Instant::now();
                }
                let stopped = ranks::agree(ranks, watch.step(&report).is_break())?;
                let due = epoch_over || stopped || report.step.is_multiple_of(save_every.max(1));
                if due && ranks.rank() == 0 {
                    self.save(path)?;
                }
                if stopped && report.step < steps {
                    return Ok(Ended::Stopped);
                }
            }
            Ok(Ended::Finished)
        })
    }

    /// Saves the state, for [`resume`](Self::resume).
    pub fn save(&self, path: &Path) -> Result<()> {
        self.state.save(path, &self.network(), &self.optimiser)
    }

    /// Takes one step on the prepared shards of a batch.
    fn learn(
        &mut self,
        ranks: &dyn Ranks,
        prepared: Vec<Prepared>,
        division: &Division,
        steps: usize,
    ) -> Result<StepReport> {
        let Step {
            loss,
            auxiliary,
            right,
            gradients,
        } = self.descend(ranks, prepared)?;
        let epoch = self.state.step / division.steps(&self.state.config);
        if !loss.is_finite() {
            return Err(Error::Diverged {
                step: self.state.step + 1,
                epoch: epoch + 1,
                loss,
                learning_rate: self.learning_rate(division),
            });
        }
        let rate = self.learning_rate(division);
        // Taken and not cloned: weights that nobody else holds are updated where they are.
        let network = self.network.take().expect("the network is put back");
        let network = self.optimiser.step_along(rate, network, gradients);
        self.network = Some(ranks::share_buffers(ranks, network)?);
        self.state.step += 1;
        self.state.tally.add(loss, auxiliary, right);
        Ok(StepReport {
            step: self.state.step,
            steps,
            epoch,
            loss,
            error_percent: self.state.tally.error_percent(),
        })
    }

    /// Computes the gradient of a batch: of its only shard, or of this process's shards and with the others the mean over all.
    fn descend(&self, ranks: &dyn Ranks, prepared: Vec<Prepared>) -> Result<Step> {
        let shards = self.state.config.shards;
        let own = own_shards(ranks, shards);
        let mut first = None;
        let mut parts = Vec::with_capacity(own.len());
        for (shard, prepared) in own.into_iter().zip(prepared) {
            // A copy takes the running statistics of the other shards with it when it goes.
            let copy = (shard > 0).then(|| self.learning().clone());
            let network = copy.as_ref().unwrap_or(self.learning());
            let step = Step::new(network, prepared, &self.state.config);
            if shards == 1 {
                return Ok(step);
            }
            let mut numbers = ranks::flattened(network, &step.gradients);
            numbers.extend([
                step.loss as f32,
                step.auxiliary as f32,
                step.right.0 as f32,
                step.right.1 as f32,
            ]);
            parts.push(numbers);
            first.get_or_insert(step);
        }
        let mut sums = add_in_order(ranks, shards, parts)?;
        let counts = sums.split_off(sums.len() - 4);
        let step = first.expect("every process has a shard");
        Ok(Step {
            loss: f64::from(counts[0]) / shards as f64,
            auxiliary: f64::from(counts[1]) / shards as f64,
            right: (counts[2] as usize, counts[3] as usize),
            gradients: ranks::unflattened(
                self.learning(),
                step.gradients,
                &sums,
                1.0 / shards as f32,
            ),
        })
    }

    /// Returns the learning rate of the next step.
    fn learning_rate(&self, division: &Division) -> f64 {
        let config = &self.state.config;
        // The first step is one step into the warm-up: a rate of zero would waste it.
        let time = (self.state.step + 1) as f64 / division.steps(config) as f64;
        let end = config.epochs as f64;
        let time = time.min(end);
        let share = config.schedule.share(time, config.warm_up_epochs, end);
        let losses: Vec<f64> = numbers(&self.state.log, "loss").collect();
        config.learning_rate * share * config.schedule.share_after(&losses)
    }

    /// Measures the error on the held-out images, writes the epoch to the log and reports it.
    fn end_epoch(
        &mut self,
        data: &dyn Dataset,
        division: &Division,
        seconds: f64,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let tally = std::mem::take(&mut self.state.tally);
        let Held { error, rotation } = self.evaluate(data, &division.held_out)?;
        let config = &self.state.config;
        let joint = config.objective != Objective::Plain;
        let report = EpochReport {
            epoch: self.state.step / division.steps(config),
            learning_rate: self.learning_rate(division),
            loss: Tally::mean_loss(&tally),
            auxiliary_loss: joint.then(|| tally.mean_auxiliary()),
            train_error_percent: tally.error_percent(),
            held_out_error_percent: error,
            rotation_error_percent: rotation,
        };
        let line = serde_json::to_string(&report).expect("a report is plain JSON");
        let best_before =
            numbers(&self.state.log, "held_out_error_percent").fold(f64::INFINITY, f64::min);
        if report
            .held_out_error_percent
            .is_none_or(|error| error < best_before)
        {
            watch.best(&report, &self.network())?;
        }
        self.state.log.push(line);
        watch.epoch(&report, seconds);
        Ok(())
    }

    /// Measures the errors on the held-out images.
    fn evaluate(&self, data: &dyn Dataset, ids: &[SampleId]) -> Result<Held> {
        if ids.is_empty() {
            return Ok(Held {
                error: None,
                rotation: None,
            });
        }
        let network = self.network();
        let rotates = self.state.config.objective == Objective::Rotation;
        let (mut rightly, mut turned_rightly) = (0, 0);
        for ids in ids.chunks(EVALUATION_BATCH) {
            let batch = data.batch(ids)?;
            let normalised = self.state.input.normalise(&batch.samples, &self.device)?;
            let scores = network.forward(normalised, NormMode::Running);
            rightly += right(&scores, batch.known_labels(data.name())?).0;
            for quarter in (0..4_u8).filter(|_| rotates) {
                let turned = rotate(batch.samples.as_images()?, &vec![quarter; ids.len()]);
                let turned = self.state.input.normalise(&turned.into(), &self.device)?;
                let scores = network.rotation(turned, NormMode::Running);
                let scores = scores.expect("checked when the run was made");
                turned_rightly += right(&scores, &vec![usize::from(quarter); ids.len()]).0;
            }
        }
        let percent = |right: usize, all: usize| 100.0 * (1.0 - right as f64 / all as f64);
        Ok(Held {
            error: Some(percent(rightly, ids.len())),
            rotation: rotates.then(|| percent(turned_rightly, 4 * ids.len())),
        })
    }
}

/// What one backward pass found.
struct Step {
    loss: f64,
    auxiliary: f64,
    /// How many images were classified rightly, and how many there were.
    right: (usize, usize),
    gradients: GradientsParams,
}

impl Step {
    fn new(network: &Network, prepared: Prepared, config: &TrainConfig) -> Self {
        let prepared = Prepared {
            images: Tensor::from_inner(prepared.images),
            turned: prepared
                .turned
                .map(|(images, turns)| (Tensor::from_inner(images), turns)),
            ..prepared
        };
        let made = objective(network, prepared, config);
        Self {
            loss: scalar(&made.loss),
            auxiliary: made.auxiliary.as_ref().map_or(0.0, scalar),
            right: made.right,
            gradients: GradientsParams::from_grads(made.loss.backward(), network),
        }
    }
}

/// Errors on the held-out images, in percent.
struct Held {
    error: Option<f64>,
    rotation: Option<f64>,
}

/// Reads a number from every line of a log that has it.
fn numbers<'a>(log: &'a [String], field: &'a str) -> impl Iterator<Item = f64> + 'a {
    log.iter().filter_map(move |line| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        line[field].as_f64()
    })
}

fn optimiser(config: &TrainConfig) -> Optimiser {
    let weight_decay = config.weight_decay;
    match config.rule {
        Rule::Sgd => OptimiserConfig::Sgd {
            momentum: config.momentum,
            weight_decay,
        },
        Rule::Adam => OptimiserConfig::Adam {
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-8,
            weight_decay,
        },
    }
    .init()
}

fn describe(data: &dyn Dataset) -> (String, usize) {
    (data.name().to_owned(), data.len())
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("configurations are plain JSON")
}

fn scalar(loss: &Tensor<1>) -> f64 {
    f64::from(loss.to_data().as_slice::<f32>().expect("losses are f32")[0])
}

/// Refuses a network without the head that the objective needs.
fn check_heads(network: &Network, architecture: &Architecture, objective: Objective) -> Result<()> {
    let problem = match objective {
        Objective::Simclr if !network.has_projection() => {
            "`simclr` needs a projection head: set the field `projection`, for example to 128"
        }
        Objective::Rotation if !network.has_rotation() => {
            "`rotation` needs a rotation head, which `resnet26` has"
        }
        _ => return Ok(()),
    };
    Err(Error::Invalid {
        what: "objective",
        problem: format!("{problem}; this is `{}`", architecture.name()),
    })
}
