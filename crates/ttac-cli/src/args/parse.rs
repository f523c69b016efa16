//! Parsers of arguments that are more than a number or a path.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use ttac::stream::Order;
use ttac::train::Schedule;

/// Parses a value by its name in JSON, so that arguments and files spell alike.
pub fn json_value<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|e| e.to_string())
}

/// Parses a path that may be empty, as an environment variable may be.
pub fn any_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// Parses how the learning rate falls, for example `step:30,60`.
pub fn schedule(text: &str) -> Result<Schedule, String> {
    if let Some(epochs) = text.strip_prefix("step:") {
        let milestones: Result<Vec<usize>, _> = epochs.split(',').map(str::parse).collect();
        let milestones = milestones.map_err(|e| format!("`{epochs}`: {e}"))?;
        return Ok(Schedule::Step {
            milestones,
            factor: 0.1,
        });
    }
    match text {
        "cosine" => Ok(Schedule::Cosine { floor: 1e-3 }),
        "constant" => Ok(Schedule::Constant {}),
        "plateau" => Ok(Schedule::PLATEAU),
        _ => Err("expected `cosine`, `constant`, `plateau` or `step:E,E,..`".to_owned()),
    }
}

/// Parses an order of arrival, for example `correlated:0.5`.
pub fn order(text: &str) -> Result<Order, String> {
    text.parse().map_err(|error: ttac::Error| error.to_string())
}

/// Parses `I/N`, the I-th of N parts, with I from 1 to N.
pub fn shard(text: &str) -> Result<(usize, usize), String> {
    let parts = text
        .split_once('/')
        .and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    match parts {
        Some((part, parts)) if (1..=parts).contains(&part) => Ok((part, parts)),
        _ => Err("expected I/N with I from 1 to N".to_owned()),
    }
}

/// Parses a number of machines, of which there is a list.
pub fn machines(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=100_000) => Ok(count),
        _ => Err("expected 1 to 100000".to_owned()),
    }
}
