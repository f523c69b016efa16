//! `ttac completions`: prints a completion script for a shell.

use clap::CommandFactory;

use crate::args::{Args, Completions};

pub fn run(args: &Completions) -> anyhow::Result<()> {
    let mut command = Args::command();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "ttac", &mut script);
    std::io::Write::write_all(&mut std::io::stdout().lock(), &script)?;
    Ok(())
}
