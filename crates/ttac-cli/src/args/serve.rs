//! Arguments of `serve`.

use std::net::IpAddr;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct Serve {
    /// What is served, and how
    #[arg(value_name = "CONFIG.toml")]
    pub config: PathBuf,

    /// Look at everything that the configuration names, say what a stream takes, and open no port
    #[arg(long)]
    pub check: bool,

    /// The address that ports are opened at
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<IpAddr>,

    /// The port of predictions over HTTP; 0 takes a free one
    #[arg(long, value_name = "PORT")]
    pub rest: Option<u16>,

    /// The port of administration, metrics and the page; 0 takes a free one
    #[arg(long, value_name = "PORT")]
    pub admin: Option<u16>,
}
