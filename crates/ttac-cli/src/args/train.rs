//! Arguments of `train`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::ValueEnum;
use ttac::checkpoint::{Augmentation, Objective};
use ttac::train::{Rotations, Rule, Schedule};

use super::parse::{json_value, schedule};

#[derive(Debug, clap::Args)]
pub struct Train {
    /// The data set, whose training images are used: see `ttac eval --help`
    #[arg(long, value_name = "NAME")]
    pub data: String,

    /// Where the data lies; default `$TTAC_DATA/NAME`, else the user's cache folder
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Only the first N training images
    #[arg(long, value_name = "N")]
    pub subset: Option<NonZeroUsize>,

    /// The architecture, e.g. `resnet20-cifar`; with `--from` that of the checkpoint
    #[arg(long, value_name = "NAME", required_unless_present = "from")]
    pub arch: Option<String>,

    /// Change a field of the architecture, e.g. `--set width=8`
    #[arg(long, value_name = "FIELD=VALUE")]
    pub set: Vec<String>,

    /// Start from a checkpoint's weights; a head that it lacks is added and starts at random
    #[arg(long, value_name = "FILE", conflicts_with = "arch")]
    pub from: Option<PathBuf>,

    /// What to minimise: `plain`, `simclr` (with a contrastive loss), `rotation` (with a rotation head)
    #[arg(long, value_name = "KIND", default_value = "plain", value_parser = json_value::<Objective>)]
    pub objective: Objective,

    /// Folder for the run: `model.safetensors`, `log.jsonl`, and `training.safetensors` to resume from
    #[arg(long, short, value_name = "DIR")]
    pub out: PathBuf,

    /// Continue the run in the folder; the other arguments have to be those it was started with
    #[arg(long)]
    pub resume: bool,

    /// Passes over the training images
    #[arg(long, value_name = "N", default_value = "30")]
    pub epochs: usize,

    /// Images in a step; default 128, or 256 for `simclr`, or 32 for clouds
    #[arg(long, value_name = "N")]
    pub batch_size: Option<usize>,

    /// The highest learning rate; default 0.1, or 0.001 for clouds
    #[arg(long, value_name = "RATE")]
    pub learning_rate: Option<f64>,

    /// Epochs over which the learning rate rises from zero; default 1, or 0 for clouds
    #[arg(long, value_name = "EPOCHS")]
    pub warm_up: Option<f64>,

    /// How the learning rate falls: `cosine`, `constant`, `step:E,E,..` to divide it by ten at the
    /// start of those epochs, `plateau` to halve it after ten epochs without progress; default
    /// `cosine`, or `plateau` for clouds
    #[arg(long, value_name = "KIND", value_parser = schedule)]
    pub schedule: Option<Schedule>,

    /// What the parameters move by: `sgd` or `adam`; default `sgd`, or `adam` for clouds
    #[arg(long, value_name = "RULE", value_parser = json_value::<Rule>)]
    pub rule: Option<Rule>,

    /// Share of the old direction that SGD keeps
    #[arg(long, value_name = "SHARE", default_value = "0.9")]
    pub momentum: f32,

    /// Pull of all parameters towards zero; default 5e-4, or 1e-4 for `simclr` and for clouds
    #[arg(long, value_name = "RATE")]
    pub weight_decay: Option<f32>,

    /// Share of a label's weight that is spread over all classes; default 0, or 0.2 over the other
    /// classes for clouds
    #[arg(long, value_name = "SHARE")]
    pub label_smoothing: Option<f32>,

    /// How images are varied: `none`, `pad-crop-flip`, `resized-crop-flip`; always `simclr` for the
    /// objective of that name; clouds: `scale-shift`
    #[arg(long, value_name = "KIND", value_parser = json_value::<Augmentation>)]
    pub augmentation: Option<Augmentation>,

    /// Which turned images the rotation head sees: `all` four of each, or one at `random`
    #[arg(long, value_name = "KIND", default_value = "all", value_parser = json_value::<Rotations>)]
    pub rotations: Rotations,

    /// Pixel normalisation: as for `ttac import`; default measured on the training images, or that
    /// of the `--from` checkpoint
    #[arg(
        long,
        value_name = "NAME",
        alias = "normalize",
        conflicts_with = "from"
    )]
    pub normalise: Option<String>,

    /// Training images that are kept back to measure the error on after every epoch; default 1000,
    /// or 500 for clouds
    #[arg(long, value_name = "N")]
    pub held_out: Option<usize>,

    /// Which epoch's weights become the model
    #[arg(long, value_enum, default_value = "last")]
    pub keep: Keep,

    /// Into how many parts a batch is cut, each with norm statistics of its own; several processes share
    /// them, and the result depends on the parts, not on the processes
    #[arg(long, value_name = "N", default_value = "1")]
    pub shards: usize,

    /// Be one of several processes that `mpirun` or `srun` started, which train together
    #[arg(long)]
    pub mpi: bool,

    /// Steps between two saves of the state to resume from; it is also saved after every epoch
    #[arg(long, value_name = "STEPS", default_value = "200")]
    pub save_every: usize,

    /// Seed of everything random
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Keep {
    /// The last one's
    Last,
    /// Those with the least error on the held-out images
    Best,
}
