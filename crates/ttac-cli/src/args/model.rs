//! Arguments of the commands that read and write weights: `import`, `export` and `info`.

use std::path::PathBuf;

use ttac::checkpoint::{Augmentation, Objective};

use super::parse::json_value;

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
