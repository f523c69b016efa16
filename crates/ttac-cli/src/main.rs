//! The command `ttac`. This crate is glue: arguments, progress, tables, exit codes.
//!
//! Results go to standard output, everything else to standard error. Exit status: 0 done, 1 a stated
//! bound was missed, 2 error.

#![forbid(unsafe_code)]

mod args;
mod command;
mod device;
mod fleet;
mod follow;
mod hints;
mod interrupt;
mod job;
mod logs;
mod progress;
mod sheet;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    ttac::kernels::keep_freed_memory();
    let args = Args::parse();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        // `ttac ... | head` is no failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::from(if is_missed_bound(&error) { 1 } else { 2 })
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    let options = args.options;
    if let Some(threads) = options.threads {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads.get())
            .build_global()?;
    }
    match args.command {
        Command::Demo(args) => command::demo::run(&args, &options),
        Command::Fetch(args) => command::fetch::run(&args, &options),
        Command::Import(args) => command::import::run(&args, &options),
        Command::Export(args) => command::export::run(&args, &options),
        Command::Info(args) => command::info::run(&args, &options),
        Command::Eval(args) => command::eval::run(&args, &options),
        Command::Train(args) => command::train::run(&args, &options),
        Command::Anchors(args) => command::anchors::run(&args, &options),
        Command::Adapt(args) => command::adapt::run(&args, &options),
        Command::Bench(args) => command::bench::run(&args, &options),
        Command::Work(args) => command::work::run(&args, &options),
        Command::Report(args) => command::report::run(&args, &options),
        Command::Serve(args) => command::serve::run(&args, &options),
        Command::State(args) => command::state::run(&args, &options),
        Command::Streams => command::streams::run(&options),
        Command::Corrupt(args) => command::corrupt::run(&args, &options),
        Command::Speed(args) => command::speed::run(&args, &options),
        Command::Completions(args) => command::completions::run(&args),
    }
}

#[expect(clippy::print_stderr, reason = "this is where errors are shown")]
fn report(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
    let hint = error.chain().find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<ttac::Error>() {
            return hints::hint(error).or_else(|| error.hint());
        }
        if let Some(error) = cause.downcast_ref::<ttac_fleet::Error>() {
            return error.hint().map(str::to_owned);
        }
        if let Some(error) = cause.downcast_ref::<ttac_serve::Error>() {
            return error.hint();
        }
        cause.downcast_ref::<ttac_corrupt::Error>()?.hint()
    });
    if let Some(hint) = hint {
        eprintln!("\nhint: {hint}");
    }
}

/// Whether the run did what it was asked to, and stopped at a bound that was stated.
fn is_missed_bound(error: &anyhow::Error) -> bool {
    let ours = error.downcast_ref::<ttac::Error>();
    matches!(
        ours,
        Some(ttac::Error::Stopped { .. } | ttac::Error::Missed { .. })
    )
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
