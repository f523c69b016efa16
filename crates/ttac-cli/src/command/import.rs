//! `ttac import`: makes a checkpoint of a network or of weights of another program.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::json;
use ttac::backbone::{Architecture, InputForm, Network, parameters};
use ttac::checkpoint::{
    Checkpoint, Difference, FORMAT, Header, ImportedGraph, InputContract, LoadReport, Provenance,
    fingerprint, import, import_graph, verify,
};
use ttac::data::CIFAR10_CLASSES;

use super::{architecture, normalisation, print, program};
use crate::args::{Import, Options};
use crate::device;
use crate::progress::say;

/// The largest difference from PyTorch's numbers, relative to the largest value, that is taken for rounding: a wrong padding, norm or
/// order of axes is off by a hundred times as much at least, and single precision by a tenth of it at most.
const BOUND: f64 = 1e-4;

/// What was read, before it is written.
struct Imported {
    architecture: Architecture,
    network: Network,
    classes: Vec<String>,
    normalise: ([f32; 3], [f32; 3]),
    /// What became of the keys of a file of weights.
    report: Option<LoadReport>,
}

pub fn run(args: &Import, options: &Options) -> anyhow::Result<()> {
    let device = device::parse(&options.device)?;
    let imported = if ttac::graph::is_program(&args.file) {
        of_graph(
            args,
            import_graph(&args.file, args.features.as_deref(), &device)?,
        )?
    } else {
        of_weights(args, &device)?
    };
    let (mean, std) = imported.normalise;
    let input = match imported.architecture.input() {
        InputForm::Clouds { points, fewest } => InputContract::Clouds {
            points: args.size.unwrap_or(points),
            fewest,
        },
        InputForm::Images { size, .. } => {
            let [height, width] = args.size.map_or(size, |side| [side; 2]);
            InputContract::Images {
                height,
                width,
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
            architecture: imported.architecture,
            classes: imported.classes,
            input,
            augmentation: args.augmentation,
            objective: args.objective,
            provenance: Provenance {
                program: program(),
                command: super::command_line(),
                source: Some(format!("{name} blake3:{digest}")),
            },
        },
        network: imported.network,
    };
    checkpoint.save(&args.out)?;
    if let Some(report) = &imported.report {
        say(&format!("{}\n{report}", args.file.display()));
    }
    let differences = match &args.verify {
        Some(file) => verify(&checkpoint.network, file)?,
        None => Vec::new(),
    };
    announce(
        args,
        options,
        &checkpoint,
        imported.report.as_ref(),
        &differences,
    )
}

/// Prints what was written, and how far it is from PyTorch's numbers.
fn announce(
    args: &Import,
    options: &Options,
    checkpoint: &Checkpoint,
    report: Option<&LoadReport>,
    differences: &[Difference],
) -> anyhow::Result<()> {
    let name = checkpoint.header.architecture.name();
    let count: usize = parameters(&checkpoint.network)
        .iter()
        .map(|p| p.shape.iter().product::<usize>())
        .sum();
    let fingerprint = fingerprint(&checkpoint.header.architecture, &checkpoint.network);
    let mut result = json!({
        "path": args.out,
        "architecture": name,
        "values": count,
        "fingerprint": fingerprint,
    });
    if let Some(report) = report {
        let keys = |list: &[(String, Vec<usize>)]| -> Vec<String> {
            list.iter().map(|(key, _)| key.clone()).collect()
        };
        result["loaded"] = report.loaded.into();
        result["missing"] = keys(&report.missing).into();
        result["unexpected"] = keys(&report.unexpected).into();
    }
    let out = args.out.display();
    let mut text = format!("wrote {out}: {name}, {count} values, fingerprint {fingerprint}");
    let worst = differences
        .iter()
        .max_by(|a, b| a.relative.total_cmp(&b.relative));
    if let Some(worst) = worst {
        let table = differences.iter();
        result["differences"] = table
            .map(|one| (one.name.clone(), json!(one.relative)))
            .collect::<serde_json::Map<_, _>>()
            .into();
        result["largest_difference"] = json!(worst.relative);
        for one in differences {
            write!(text, "\n{:<12.1e}{}", one.relative, one.name)?;
        }
        write!(
            text,
            "\nlargest difference over largest value: {:.1e} in {}",
            worst.relative, worst.name
        )?;
    }
    print(options.json, &result, &text)?;
    match worst {
        Some(worst) if worst.relative > BOUND => Err(ttac::Error::Missed {
            what: format!("`{}` and PyTorch's", worst.name),
            bound: format!("a relative difference of at most {BOUND:.0e}"),
            found: format!("{:.1e}", worst.relative),
        }
        .into()),
        _ => Ok(()),
    }
}

/// Takes a network that came as a graph: it knows its classes, and perhaps its normalisation.
fn of_graph(args: &Import, graph: ImportedGraph) -> anyhow::Result<Imported> {
    if args.arch.is_some() || !args.set.is_empty() || args.allow_partial {
        bail!(
            "`{}` describes its network: `--arch`, `--set` and `--allow-partial` are for files of weights alone",
            args.file.display()
        );
    }
    for note in &graph.notes {
        say(&format!("note: {note}"));
    }
    let normalise = match &args.normalise {
        Some(text) => normalisation(text)?,
        None if graph.normalises_inside => normalisation("none")?,
        None => bail!(
            "`--normalise` is missing: `imagenet`, `cifar10`, `cifar100`, `none`, or MEAN,MEAN,MEAN/STD,STD,STD. \
             The file does not say how images were normalised, and a wrong guess silently costs accuracy"
        ),
    };
    if graph.normalises_inside && normalise != normalisation("none")? {
        say(
            "note: the network normalises its images itself, and `--normalise` does it once more; is `none` meant?",
        );
    }
    let classes = class_names(args, graph.architecture.num_classes())?;
    Ok(Imported {
        architecture: graph.architecture,
        network: graph.network,
        classes,
        normalise,
        report: None,
    })
}

/// Reads weights into the architecture that was named.
fn of_weights(args: &Import, device: &ttac::burn::tensor::Device) -> anyhow::Result<Imported> {
    let Some(arch) = &args.arch else {
        bail!(
            "`{}` holds weights without a network: `--arch NAME` names it, or export the whole network by `torch.export.save` to a `.pt2` file",
            args.file.display()
        );
    };
    if args.features.is_some() {
        bail!("`--features` is for networks that come as `.pt2` or `.onnx`");
    }
    let Some(normalise) = &args.normalise else {
        bail!(
            "`--normalise` is missing: `imagenet`, `cifar10`, `cifar100`, `none`, or MEAN,MEAN,MEAN/STD,STD,STD"
        );
    };
    // The architecture decides; its name is checked here, its configuration later.
    let usual = match Architecture::by_name(arch, 1)?.input() {
        InputForm::Images {
            size: [224, 224], ..
        } => 1000,
        _ => 10,
    };
    let classes = class_names(args, args.classes.unwrap_or(usual))?;
    let normalise = normalisation(normalise)?;
    let architecture = architecture(arch, classes.len(), &args.set)?;
    let (network, report) = import(&args.file, &architecture, args.allow_partial, device)?;
    Ok(Imported {
        architecture,
        network,
        classes,
        normalise,
        report: Some(report),
    })
}

/// The names of the classes that were asked for, or made-up ones for their number.
fn class_names(args: &Import, count: usize) -> anyhow::Result<Vec<String>> {
    let Some(names) = &args.class_names else {
        return match args.classes {
            Some(0) => bail!("`--classes 0`: expected at least one class"),
            Some(asked) if asked != count => {
                bail!("`--classes {asked}`: the network tells {count} classes apart")
            }
            _ => Ok((0..count).map(|class| format!("class {class}")).collect()),
        };
    };
    let found: Vec<String> = match names.as_str() {
        "cifar10" => CIFAR10_CLASSES.map(str::to_owned).to_vec(),
        path if Path::new(path).is_file() => {
            let text =
                std::fs::read_to_string(path).with_context(|| format!("cannot read `{path}`"))?;
            let words = text
                .lines()
                .filter_map(|line| line.split_whitespace().next());
            words.map(str::to_owned).collect()
        }
        list => list.split(',').map(|name| name.trim().to_owned()).collect(),
    };
    // Weights take as many classes as are named; a graph has its own number.
    if args.arch.is_none() && found.len() != count {
        bail!(
            "`--class-names` names {} classes, and the network tells {count} apart",
            found.len()
        );
    }
    Ok(found)
}

/// Computes the digest of a file, read in pieces.
fn blake3_of(path: &Path) -> anyhow::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let file = std::fs::File::open(path).map_err(ttac::Error::io("read", path))?;
    hasher.update_reader(file)?;
    Ok(hasher.finalize().to_hex().to_string())
}
