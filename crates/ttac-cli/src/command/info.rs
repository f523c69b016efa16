//! `ttac info`: says what a file contains.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use serde_json::{Value, json};
use ttac::Error;
use ttac::archive::{self, Kind};
use ttac::backbone::{Architecture, parameters};
use ttac::checkpoint::{Checkpoint, Header, InputContract, fingerprint, foreign_tensors};
use ttac::graph::{Graph, TensorKind};

use super::print;
use crate::args::{Info, Options};
use crate::device;

pub fn run(args: &Info, options: &Options) -> anyhow::Result<()> {
    if ttac::graph::is_program(&args.file) {
        return describe_program(args, options);
    }
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
        line("configuration", &configuration(&header.architecture)?),
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

/// Describes the configuration of a network: as JSON or, where that would fill the screen, by its operations.
fn configuration(architecture: &Architecture) -> anyhow::Result<String> {
    match architecture {
        Architecture::Graph(config) => Ok(operations(&config.graph)),
        other => Ok(serde_json::to_string(other)?),
    }
}

/// Counts the operations of a graph: `53 conv2d, 52 batch-norm, ..`, the most frequent first.
fn operations(graph: &Graph) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for node in &graph.nodes {
        *counts.entry(node.op.name()).or_default() += 1;
    }
    listed(counts)
}

fn listed(counts: BTreeMap<&str, usize>) -> String {
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
    let counts = counts.iter().map(|(name, count)| format!("{count} {name}"));
    counts.collect::<Vec<_>>().join(", ")
}

/// Prints what a network of another framework consists of, and whether it can be imported.
fn describe_program(args: &Info, options: &Options) -> anyhow::Result<()> {
    let program = ttac::graph::read(&args.file)?;
    let missing = ttac::graph::survey(&program);
    let lowered = ttac::graph::lower(&program, None);
    let mut calls: BTreeMap<&str, usize> = BTreeMap::new();
    for call in &program.calls {
        *calls.entry(&call.target).or_default() += 1;
    }
    let tensors: Vec<_> = program.tensors.values().collect();
    let values: usize = tensors
        .iter()
        .map(|one| one.shape.iter().product::<usize>())
        .sum();
    let mut result = json!({
        "kind": "network",
        "calls": calls,
        "tensors": tensors.len(),
        "values": values,
        "unsupported": missing,
    });
    let mut text = line("network", &args.file.display());
    text += &line("tensors", &format!("{}, {values} values", tensors.len()));
    text += &line("calls", &listed(calls));
    match &lowered {
        Ok(found) => {
            let graph = &found.graph;
            let [height, width] = graph.image_size();
            let kind = |kind| {
                graph
                    .tensors
                    .iter()
                    .filter(|info| info.kind == kind)
                    .count()
            };
            let norms = format!(
                "{} scales and shifts, {} running statistics",
                kind(TensorKind::Affine),
                kind(TensorKind::Running)
            );
            let head = match graph.head.len() {
                0 => "no linear layer: methods that need a classifier refuse it".to_owned(),
                count => format!("{count} linear"),
            };
            text += &line("operations", &operations(graph));
            text += &line("images", &format!("{height} x {width}"));
            text += &line("norms", &norms);
            text += &line("features", &graph.num_features());
            text += &line("classes", &graph.num_classes());
            text += &line("head", &head);
            for note in &found.notes {
                text += &line("note", note);
            }
            result["images"] = json!([height, width]);
            result["features"] = graph.num_features().into();
            result["classes"] = graph.num_classes().into();
            result["head"] = graph.head.len().into();
            result["notes"] = json!(found.notes);
            text += "`ttac import` makes a checkpoint of it";
        }
        Err(error) => {
            for (target, count, at) in &missing {
                text += &line("unsupported", &format!("{count} {target}, first in `{at}`"));
            }
            result["problem"] = error.to_string().into();
            text += &line("problem", error);
        }
    }
    if args.tensors {
        result["keys"] = tensors
            .iter()
            .map(|one| json!({ "key": one.key, "shape": one.shape }))
            .collect();
        for one in tensors {
            let listed = format!("{} {:?}", one.key, one.shape);
            write!(text, "\n{}", line("tensor", &listed).trim_end())?;
        }
    }
    print(options.json, &result, text.trim_end())
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
