//! One file per command.

pub mod adapt;
pub mod anchors;
pub mod bench;
pub mod completions;
pub mod corrupt;
pub mod demo;
pub mod eval;
pub mod export;
pub mod fetch;
pub mod import;
pub mod info;
mod plan;
pub mod report;
pub mod serve;
pub mod speed;
pub mod state;
pub mod streams;
pub mod train;
pub mod work;

use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use serde::Serialize;
use ttac::backbone::Architecture;
use ttac::checkpoint::{Header, InputContract};
use ttac::data::{Dataset, DatasetExt, OpenOptions, default_root};

use crate::args::{Corrupted, Source};

/// Reads the resident memory of this process, now (`VmRSS:`) or at most (`VmHWM:`), where the system tells.
fn resident_megabytes(field: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes / 1024.0)
}

/// Builds the architecture of a name, changed by `--set FIELD=VALUE` arguments.
fn architecture(name: &str, num_classes: usize, set: &[String]) -> anyhow::Result<Architecture> {
    with_fields(Architecture::by_name(name, num_classes)?, set)
}

/// Changes an architecture by `--set FIELD=VALUE` arguments.
fn with_fields(mut architecture: Architecture, set: &[String]) -> anyhow::Result<Architecture> {
    for assignment in set {
        let Some((field, value)) = assignment.split_once('=') else {
            bail!("`--set {assignment}`: expected FIELD=VALUE");
        };
        architecture = architecture.with_field(field, value)?;
    }
    Ok(architecture)
}

/// Opens the data set that was asked for, from `--root` or its usual place.
fn open(source: &Source, options: &OpenOptions) -> anyhow::Result<Box<dyn Dataset>> {
    let root = source.root.clone();
    let root = root.unwrap_or_else(|| default_root().join(&source.data));
    Ok(ttac::data::open(
        &source.data,
        &root,
        source.split,
        options,
    )?)
}

/// Says how to open a data set under one corruption, or under none, for a model.
fn open_options(corrupted: &Corrupted, corruption: Option<&str>, model: &Header) -> OpenOptions {
    OpenOptions {
        corruption: corruption.map(str::to_owned),
        severity: corrupted.severity,
        corruption_seed: corrupted.corruption_seed,
        frost_textures: corrupted.frost_textures(),
        ..for_model(model)
    }
}

/// Says how to open a data set for a model.
fn for_model(model: &Header) -> OpenOptions {
    OpenOptions::for_input(&model.input).with_classes(&model.classes)
}

/// Refuses to score a model on classes of other things, or on none.
fn check_classes(model: &Path, header: &Header, data: &dyn Dataset) -> anyhow::Result<()> {
    data.check_labelled()?;
    Ok(ttac::experiment::check_classes(model, header, data)?)
}

/// Finds mean and standard deviation of a normalisation by name, or spelled out.
fn normalisation(text: &str) -> anyhow::Result<([f32; 3], [f32; 3])> {
    let known = InputContract::NORMALISATIONS;
    if let Some((_, mean, std)) = known.iter().find(|(name, ..)| *name == text) {
        return Ok((*mean, *std));
    }
    let three = |text: &str| -> Option<[f32; 3]> {
        let numbers: Result<Vec<f32>, _> = text.split(',').map(|n| n.trim().parse()).collect();
        numbers.ok()?.try_into().ok()
    };
    let parsed = text
        .split_once('/')
        .and_then(|(mean, std)| Some((three(mean)?, three(std)?)));
    parsed.with_context(|| {
        let names = known.map(|(name, ..)| name).join("`, `");
        format!("`--normalise {text}`: expected `{names}`, or three means, `/`, three deviations")
    })
}

/// Names this program and its version, for what it writes.
fn program() -> String {
    ttac::experiment::PROGRAM.to_owned()
}

/// Returns the command as it was typed, with the program's bare name.
fn command_line() -> String {
    let arguments = std::env::args().skip(1);
    std::iter::once("ttac".to_owned())
        .chain(arguments)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Prints a result on standard output: as JSON, or as lines of text.
fn print(json: bool, result: &impl Serialize, text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, result)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{text}")?;
    }
    Ok(())
}
