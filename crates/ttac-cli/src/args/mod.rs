//! The arguments of every command, as clap parses them. Each file holds a group of commands.

mod adapt;
mod anchors;
mod data;
mod eval;
mod fleet;
mod model;
mod parse;
mod report;
mod serve;
mod source;
mod speed;
mod train;

use std::num::NonZeroUsize;

use clap::{Parser, Subcommand};

pub use adapt::{Adapt, Bench, Demo};
pub use anchors::Anchors;
pub use data::{Corrupt, Fetch, Layout, Via};
pub use eval::Eval;
pub use fleet::Worker;
pub use model::{Export, ExportFormat, Import, Info};
pub use report::{Report, TableFormat};
pub use serve::{By, LogFormat, LogLevel, Serve, State, StateCommand};
pub use source::{Corrupted, Source};
pub use speed::{Speed, Work};
pub use train::{Keep, Train};

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
    /// Turn a network or weights of PyTorch or another program into a ttac checkpoint
    Import(Import),
    /// Write a checkpoint for PyTorch: its weights, the `.pt2` it came from with new weights, or ONNX
    Export(Export),
    /// Say what a checkpoint, a network or a file of weights contains
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
    /// Work on cells that `bench --queue` submitted, on any number of machines
    Work(Worker),
    /// Make a table of what `bench` wrote, with protocols as footnotes, or a page with figures
    Report(Report),
    /// Answer requests over HTTP, learn from them beside that, and publish what guards let through
    Serve(Serve),
    /// List, verify, replay or export the streams that a service has stored
    State(State),
    /// List the streams that have a name, and draw them
    Streams,
    /// Write a data set under corruptions, as arrays or pictures
    Corrupt(Corrupt),
    /// Time forward passes and training steps of an architecture on this machine
    Speed(Speed),
    /// Print a completion script for a shell
    Completions(Completions),
}

#[derive(Debug, clap::Args)]
pub struct Completions {
    /// Which shell
    pub shell: clap_complete::Shell,
}
