//! Arguments of the commands that read and write weights: `import`, `export` and `info`.

use std::path::PathBuf;

use clap::ValueEnum;
use ttac::checkpoint::{Augmentation, Objective};

use super::parse::json_value;

#[derive(Debug, clap::Args)]
pub struct Import {
    /// A network: `.pt2` of `torch.export.save`, or `.onnx`. Or weights alone: `.pt`, `.pth`, `.th`, `.safetensors`. Nothing in
    /// a file is executed
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The architecture of weights that come alone, e.g. `resnet20-cifar`; a wrong name lists the known ones
    #[arg(long, value_name = "NAME")]
    pub arch: Option<String>,

    /// Where to write the checkpoint
    #[arg(long, short, value_name = "FILE")]
    pub out: PathBuf,

    /// Pixel normalisation of the training: `imagenet`, `cifar10`, `cifar100`, `none`, or
    /// `MEAN,MEAN,MEAN/STD,STD,STD`. A wrong one silently costs accuracy, so there is no default
    #[arg(long, value_name = "NAME", alias = "normalize")]
    pub normalise: Option<String>,

    /// Where a network's features are taken: the name of a call's result, or of a module; default what its last linear layer reads
    #[arg(long, value_name = "NODE")]
    pub features: Option<String>,

    /// Compare with what PyTorch computed: safetensors with `x` and its scores, features or gradients; exit 1 if any is off by
    /// more than 1e-4
    #[arg(long, value_name = "FILE")]
    pub verify: Option<PathBuf>,

    /// Number of classes; default that of the network, or 10, or 1000 for the 224x224 architectures
    #[arg(long, value_name = "N", conflicts_with = "class_names")]
    pub classes: Option<usize>,

    /// Names of the classes: `cifar10`, a list `cat,dog,..`, or a file with a name at the start of each line
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

    /// Where to write
    #[arg(long, short, value_name = "FILE")]
    pub out: PathBuf,

    /// What to write: `state-dict`, safetensors that `load_state_dict` takes (the default), or `onnx`
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Option<ExportFormat>,

    /// Write a copy of this `.pt2`, which the network was imported from, with the checkpoint's weights in it
    #[arg(long, value_name = "NET.pt2")]
    pub like: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Safetensors with PyTorch's keys
    StateDict,
    /// ONNX of opset 17, from networks that were imported as graphs
    Onnx,
}

#[derive(Debug, clap::Args)]
pub struct Info {
    /// A ttac checkpoint, a network (`.pt2`, `.onnx`) or weights of another program
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// List every tensor
    #[arg(long)]
    pub tensors: bool,
}
