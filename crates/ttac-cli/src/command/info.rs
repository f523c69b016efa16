//! `ttac info`: says what a file contains.

use std::fmt::{Display, Write};

use serde_json::{Value, json};
use ttac::Error;
use ttac::archive::{self, Kind};
use ttac::backbone::parameters;
use ttac::checkpoint::{Checkpoint, Header, InputContract, fingerprint, foreign_tensors};

use super::print;
use crate::args::{Info, Options};
use crate::device;

pub fn run(args: &Info, options: &Options) -> anyhow::Result<()> {
    let bytes = std::fs::read(&args.file).map_err(Error::io("read", &args.file))?;
    if let Some(kind) = archive::kind_of(&bytes) {
        return describe_archive(args, options, kind, &bytes);
    }
    match Checkpoint::load(&args.file, &device::parse(&options.device)?) {
        Ok(checkpoint) => describe(args, options, &checkpoint),
        // Not ours, but perhaps somebody's weights: show what an import would find.
        Err(error @ (Error::Foreign { .. } | Error::Format { .. })) => {
            match foreign_tensors(&args.file) {
                Ok(tensors) => describe_foreign(args, options, &tensors),
                Err(_) => Err(error.into()),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Prints what a checkpoint says of itself.
fn describe(args: &Info, options: &Options, checkpoint: &Checkpoint) -> anyhow::Result<()> {
    let header = &checkpoint.header;
    let tensors = parameters(&checkpoint.network);
    let count: usize = tensors
        .iter()
        .map(|p| p.shape.iter().product::<usize>())
        .sum();
    let fingerprint = fingerprint(&header.architecture, &checkpoint.network);
    let mut result = json!({
        "kind": "checkpoint",
        "name": header.architecture.name(),
        "header": header,
        "values": count,
        "fingerprint": fingerprint,
    });
    let mut text = lines_of(header, count, &fingerprint)?;
    text.insert_str(0, &line("checkpoint", &args.file.display()));
    if args.tensors {
        let listed = tensors.iter();
        result["tensors"] = listed
            .map(|p| json!({ "key": p.key, "shape": p.shape }))
            .collect();
        for parameter in &tensors {
            let tensor = format!("{} {:?}", parameter.key, parameter.shape);
            text += &line("tensor", &tensor);
        }
    }
    print(options.json, &result, text.trim_end())
}

/// Describes the header of a checkpoint, line by line.
fn lines_of(header: &Header, values: usize, fingerprint: &str) -> anyhow::Result<String> {
    let name = header.architecture.name();
    let classes = format!("{}: {}", header.classes.len(), shortened(&header.classes));
    let samples = match &header.input {
        InputContract::Images {
            height,
            width,
            mean,
            std,
        } => line(
            "images",
            &format!("{height} x {width}, mean {mean:?}, std {std:?}"),
        ),
        InputContract::Clouds { points, fewest } => {
            line("clouds", &format!("{points} points, at least {fewest}"))
        }
    };
    let provenance = &header.provenance;
    let from = provenance.source.as_ref();
    Ok([
        line("architecture", &format!("{name}, {values} values")),
        line(
            "configuration",
            &serde_json::to_string(&header.architecture)?,
        ),
        line("classes", &classes),
        samples,
        line("objective", &name_of(&header.objective)),
        line("augmentation", &name_of(&header.augmentation)),
        line("fingerprint", &fingerprint),
        line("written by", &provenance.program),
        line("command", &provenance.command),
        from.map_or(String::new(), |source| line("from", source)),
    ]
    .concat())
}

/// Writes a name and what it stands for.
fn line(name: &str, value: &dyn Display) -> String {
    format!("{name:<14}{value}\n")
}

/// Prints the header and the arrays of anchors, and of states of training runs and methods.
fn describe_archive(
    args: &Info,
    options: &Options,
    kind: Kind,
    bytes: &[u8],
) -> anyhow::Result<()> {
    let (header, arrays): (Value, _) = archive::from_bytes(&args.file, kind, bytes)?;
    let shapes: Vec<(&String, Vec<usize>)> = arrays
        .0
        .iter()
        .map(|(name, array)| (name, array.shape()))
        .collect();
    let result = json!({ "kind": kind.name(), "header": header, "arrays": shapes });
    let mut text = format!("{} in {}", kind.description(), args.file.display());
    for (name, value) in header.as_object().into_iter().flatten() {
        // Long values would fill the screen; `--json` has them for programs.
        let value = value.to_string();
        let value = if value.len() > 300 {
            "(long; see `--json`)"
        } else {
            &value
        };
        write!(text, "\n{name:<20}{value}")?;
    }
    if args.tensors {
        for (name, shape) in &shapes {
            write!(text, "\narray               {name} {shape:?}")?;
        }
    }
    print(options.json, &result, &text)
}

/// Prints the tensors of weights that another program wrote.
fn describe_foreign(
    args: &Info,
    options: &Options,
    tensors: &[(String, Vec<usize>)],
) -> anyhow::Result<()> {
    let count: usize = tensors
        .iter()
        .map(|(_, shape)| shape.iter().product::<usize>())
        .sum();
    let listed = tensors
        .iter()
        .map(|(key, shape)| json!({ "key": key, "shape": shape }));
    let result = json!({
        "kind": "weights",
        "values": count,
        "tensors": listed.collect::<Vec<_>>(),
    });
    let mut text = format!(
        "weights of another program in {}: {} tensors, {count} values; `ttac import` makes a checkpoint of them",
        args.file.display(),
        tensors.len()
    );
    for (key, shape) in tensors {
        write!(text, "\ntensor        {key} {shape:?}")?;
    }
    print(options.json, &result, &text)
}

/// Names the value of an enum as files and arguments spell it.
fn name_of(value: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

/// Lists names, with a gap where there are many.
fn shortened(names: &[String]) -> String {
    if names.len() <= 12 {
        return names.join(", ");
    }
    format!("{}, .. {}", names[..10].join(", "), names[names.len() - 1])
}
