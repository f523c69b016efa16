//! Arguments of `speed`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::ValueEnum;
use ttac::kernels::{Algorithm, Implementation};
use ttac::stats::CovarianceKind;

use super::parse::json_value;

#[derive(Debug, clap::Args)]
pub struct Speed {
    /// The architecture, e.g. `resnet20-cifar`
    #[arg(
        long,
        value_name = "NAME",
        required_unless_present = "model",
        conflicts_with = "model"
    )]
    pub arch: Option<String>,

    /// A checkpoint instead of an architecture; its weights are used
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,

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
