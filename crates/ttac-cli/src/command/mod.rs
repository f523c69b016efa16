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

use serde::Serialize;

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
