//! Arguments of `serve` and `state`.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

#[derive(Debug, clap::Args)]
pub struct Serve {
    /// What is served, and how
    #[arg(
        value_name = "CONFIG.toml",
        required_unless_present = "demo",
        conflicts_with = "demo"
    )]
    pub config: Option<PathBuf>,

    /// Serve the shipped network without a file, and send it a stream that drifts: clean pictures, dim ones, clean ones
    #[arg(long)]
    pub demo: bool,

    /// Pictures that the demo's camera takes in a second
    #[arg(
        long,
        value_name = "PICTURES",
        default_value = "100",
        requires = "demo"
    )]
    pub rate: NonZeroU32,

    /// Look at everything that the configuration names, say what a stream takes, and open no port
    #[arg(long)]
    pub check: bool,

    /// The folder that streams are stored in; without one the demo forgets them at its end
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// The address that ports are opened at
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<IpAddr>,

    /// The port of predictions over HTTP; 0 takes a free one
    #[arg(long, value_name = "PORT")]
    pub rest: Option<u16>,

    /// The port of predictions over gRPC; 0 takes a free one
    #[arg(long, value_name = "PORT")]
    pub grpc: Option<u16>,

    /// The port of administration, metrics and the page; 0 takes a free one
    #[arg(long, value_name = "PORT")]
    pub admin: Option<u16>,

    /// How standard error is written
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// How much is written there; `info` by default, and `warn` in the demo, which speaks for itself
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<LogLevel>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line for each thing that happens
    Text,
    /// An object for each
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Faults of the service
    Error,
    /// Alarms as well
    Warn,
    /// Modes, health, snapshots, the beginning and the end as well
    Info,
    /// Every learn batch as well
    Debug,
}

#[derive(Debug, clap::Args)]
pub struct State {
    /// The folder that `[state]` of a service names
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,

    #[command(subcommand)]
    pub what: Option<StateCommand>,
}

#[derive(Debug, Subcommand)]
pub enum StateCommand {
    /// Say what is wrong with the stored streams; exit 1 if anything is
    Verify,
    /// Learn from what the logs have beyond the newest snapshots, and say what the streams come to; nothing is written
    Replay {
        #[command(flatten)]
        by: By,

        /// One stream; all of them if not given
        #[arg(value_name = "STREAM")]
        stream: Option<String>,
    },
    /// Write what answers for a stream as a ttac checkpoint
    Export {
        #[command(flatten)]
        by: By,

        /// The stream
        #[arg(value_name = "STREAM")]
        stream: String,

        /// Where to write
        #[arg(value_name = "OUT")]
        out: PathBuf,
    },
}

/// What streams were learned with.
#[derive(Debug, clap::Args)]
pub struct By {
    /// The configuration that the streams were stored with
    #[arg(long, value_name = "CONFIG.toml")]
    pub config: PathBuf,

    /// The model, where streams of several have one name
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
}
