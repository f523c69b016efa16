//! `ttac info`

use std::fmt::Write;

use serde_json::{Value, json};
use ttac::Error;
use ttac::archive::{self, Kind};
use ttac::backbone::parameters;
use ttac::checkpoint::{Checkpoint, InputKind, fingerprint, foreign_tensors};

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
        Err(error @ Error::Format { .. }) => match foreign_tensors(&args.file) {
            Ok(tensors) => describe_foreign(args, options, &tensors),
            Err(_) => Err(error.into()),
        },
        Err(error) => Err(error.into()),
    }
}

fn describe(args: &Info, options: &Options, checkpoint: &Checkpoint) -> anyhow::Result<()> {
    let header = &checkpoint.header;
    let tensors = parameters(&checkpoint.network);
    let count: usize = tensors
        .iter()
        .map(|p| p.shape.iter().product::<usize>())
        .sum();
    let fingerprint = fingerprint(&header.architecture, &checkpoint.network);
    let listed = || {
        tensors
            .iter()
            .map(|p| json!({ "key": p.key, "shape": p.shape }))
    };
    let mut result = json!({
        "kind": "checkpoint",
        "name": header.architecture.name(),
        "header": header,
        "values": count,
        "fingerprint": fingerprint,
    });
    if args.tensors {
        result["tensors"] = listed().collect();
    }

    let input = &header.input;
    let mut text = String::new();
    let mut line = |name: &str, value: String| writeln!(text, "{name:<14}{value}");
    line("checkpoint", args.file.display().to_string())?;
    line(
        "architecture",
        format!("{}, {count} values", header.architecture.name()),
    )?;
    line(
        "configuration",
        serde_json::to_string(&header.architecture)?,
    )?;
    line(
        "classes",
        format!("{}: {}", header.classes.len(), shortened(&header.classes)),
    )?;
    match input.kind {
        InputKind::Image => line(
            "images",
            format!(
                "{} x {}, mean {:?}, std {:?}",
                input.height, input.width, input.mean, input.std
            ),
        )?,
        InputKind::Points { fewest } => line(
            "clouds",
            format!("{} points, at least {fewest}", input.height),
        )?,
    }
    line("objective", name_of(&header.objective))?;
    line("augmentation", name_of(&header.augmentation))?;
    line("fingerprint", fingerprint)?;
    line("written by", header.provenance.program.clone())?;
    line("command", header.provenance.command.clone())?;
    if let Some(source) = &header.provenance.source {
        line("from", source.clone())?;
    }
    if args.tensors {
        for parameter in &tensors {
            line("tensor", format!("{} {:?}", parameter.key, parameter.shape))?;
        }
    }
    print(options.json, &result, text.trim_end())
}

/// Anchors, and states of training runs and methods: the header and the arrays.
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
        // What is long is for programs.
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

/// The name of an enum's value, as in files and arguments.
fn name_of(value: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

fn shortened(names: &[String]) -> String {
    if names.len() <= 12 {
        return names.join(", ");
    }
    format!("{}, .. {}", names[..10].join(", "), names[names.len() - 1])
}
