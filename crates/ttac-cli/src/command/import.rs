//! `ttac import`: makes a checkpoint of weights of another program.

use anyhow::bail;
use serde_json::json;
use ttac::backbone::{Architecture, InputForm, parameters};
use ttac::checkpoint::{
    Checkpoint, FORMAT, Header, InputContract, Provenance, fingerprint, import,
};
use ttac::data::CIFAR10_CLASSES;

use super::{architecture, normalisation, print, program};
use crate::args::{Import, Options};
use crate::device;
use crate::progress::say;

pub fn run(args: &Import, options: &Options) -> anyhow::Result<()> {
    let classes = class_names(args)?;
    let architecture = architecture(&args.arch, classes.len(), &args.set)?;
    let (mean, std) = normalisation(&args.normalise)?;
    let device = device::parse(&options.device)?;
    let (network, report) = import(&args.file, &architecture, args.allow_partial, &device)?;

    let input = match architecture.input() {
        InputForm::Clouds { points, fewest } => InputContract::Clouds {
            points: args.size.unwrap_or(points),
            fewest,
        },
        InputForm::Images { side, .. } => {
            let side = args.size.unwrap_or(side);
            InputContract::Images {
                height: side,
                width: side,
                mean,
                std,
            }
        }
    };
    let name = args.file.file_name().unwrap_or_default().to_string_lossy();
    let digest = blake3_of(&args.file)?;
    let checkpoint = Checkpoint {
        header: Header {
            format: FORMAT,
            architecture,
            classes,
            input,
            augmentation: args.augmentation,
            objective: args.objective,
            provenance: Provenance {
                program: program(),
                command: super::command_line(),
                source: Some(format!("{name} blake3:{digest}")),
            },
        },
        network,
    };
    checkpoint.save(&args.out)?;

    say(&format!("{}\n{report}", args.file.display()));
    let count: usize = parameters(&checkpoint.network)
        .iter()
        .map(|p| p.shape.iter().product::<usize>())
        .sum();
    let fingerprint = fingerprint(&checkpoint.header.architecture, &checkpoint.network);
    let result = json!({
        "path": args.out,
        "architecture": checkpoint.header.architecture.name(),
        "values": count,
        "fingerprint": fingerprint,
        "loaded": report.loaded,
        "missing": report.missing.iter().map(|(key, _)| key).collect::<Vec<_>>(),
        "unexpected": report.unexpected.iter().map(|(key, _)| key).collect::<Vec<_>>(),
    });
    let text = format!(
        "wrote {}: {}, {count} values, fingerprint {fingerprint}",
        args.out.display(),
        checkpoint.header.architecture.name()
    );
    print(options.json, &result, &text)
}

/// The names of the classes that were asked for, or made-up ones for their number.
fn class_names(args: &Import) -> anyhow::Result<Vec<String>> {
    if let Some(names) = &args.class_names {
        return Ok(match names.as_str() {
            "cifar10" => CIFAR10_CLASSES.map(str::to_owned).to_vec(),
            list => list.split(',').map(|name| name.trim().to_owned()).collect(),
        });
    }
    let count = match args.classes {
        Some(0) => bail!("`--classes 0`: expected at least one class"),
        Some(count) => count,
        // The architecture decides; its name is checked here, its configuration later.
        None => match Architecture::by_name(&args.arch, 1)?.input() {
            InputForm::Images { side: 224, .. } => 1000,
            _ => 10,
        },
    };
    Ok((0..count).map(|class| format!("class {class}")).collect())
}

/// Computes the digest of a file, read in pieces.
fn blake3_of(path: &std::path::Path) -> anyhow::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let file = std::fs::File::open(path).map_err(ttac::Error::io("read", path))?;
    hasher.update_reader(file)?;
    Ok(hasher.finalize().to_hex().to_string())
}
