//! One file per command.

pub mod completions;
pub mod corrupt;
pub mod eval;
pub mod export;
pub mod fetch;
pub mod import;
pub mod info;
pub mod speed;

use std::io::Write;

use anyhow::bail;
use serde::Serialize;
use ttac::backbone::Architecture;
use ttac::data::{Dataset, OpenOptions, default_root};

use crate::args::Source;

/// The architecture of a name, changed by `--set FIELD=VALUE` arguments.
fn architecture(name: &str, num_classes: usize, set: &[String]) -> anyhow::Result<Architecture> {
    let mut architecture = Architecture::by_name(name, num_classes)?;
    for assignment in set {
        let Some((field, value)) = assignment.split_once('=') else {
            bail!("`--set {assignment}`: expected FIELD=VALUE");
        };
        architecture = architecture.with_field(field, value)?;
    }
    Ok(architecture)
}

/// The data set that was asked for, from `--root` or its usual place.
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
