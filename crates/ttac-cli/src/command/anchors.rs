//! `ttac anchors`: takes the statistics of a model's source features.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::{Value, json};
use ttac::Error;
use ttac::backbone::{Backbone, NormMode};
use ttac::burn::tensor::Device;
use ttac::checkpoint::{Checkpoint, Header, fingerprint};
use ttac::data::{Dataset, DatasetExt, OpenOptions, Part, Split};
use ttac::gate::{Calibration, looks_trained_on};
use ttac::norms::NormReference;
use ttac::stats::{
    AnchorChunks, AnchorConfig, CovarianceKind, SourceStatistics, calibrate, collect_with,
};
use ttac_fleet::QueueSettings;

use super::{check_classes, for_model, open, print};
use crate::args::{Anchors, Options, Source};
use crate::device;
use crate::fleet::anchors::Elsewhere;
use crate::fleet::task::Chunk;
use crate::interrupt;
use crate::progress::{Progress, Unit, say};

/// The size of a file above which diagonal covariances are suggested.
const LARGE: u64 = 2 << 30;

pub fn run(args: &Anchors, options: &Options) -> anyhow::Result<()> {
    let device = device::parse(&options.device)?;
    let checkpoint = Checkpoint::load(&args.model, &device)?;
    let (header, network) = (&checkpoint.header, &checkpoint.network);
    let (classes, features) = (network.num_classes(), network.num_features());
    if args.estimate {
        let (result, text) = estimate(classes, features, args.class_covariance);
        return print(options.json, &result, &text);
    }
    let data = images(args, header)?;
    let config = config(args);
    let digest = fingerprint(&header.architecture, network);
    let start = Instant::now();
    let elsewhere = elsewhere(args, &config, network, data.as_ref())?;
    let mut progress = Progress::new("anchors", data.len() as u64, Unit::Images);
    let mut problem = None;
    let collected = collect_with(
        network,
        &digest,
        &header.input,
        data.as_ref(),
        &config,
        &device,
        |images| progress.advance(images as u64),
        |chunk| {
            let Some(elsewhere) = &elsewhere else {
                return Ok(None);
            };
            elsewhere.wait(chunk).map(Some).map_err(|error| {
                problem = Some(error);
                Error::Invalid {
                    what: "chunk",
                    problem: "it is not there".to_owned(),
                }
            })
        },
    );
    drop(progress);
    if let Some(problem) = problem {
        return Err(problem);
    }
    let mut statistics = collected?;
    if let Some(held_out) = &args.calibrate {
        let held_out = held_out_images(args, held_out, header)?;
        let count = held_out.len() as u64;
        let mut progress = Progress::new("calibration", count, Unit::Images);
        let advance = |images| progress.advance(images as u64);
        let size = config.batch_size;
        let (input, held_out) = (&header.input, held_out.as_ref());
        let (found, scores) = calibrate(network, input, held_out, size, &device, advance)?;
        drop(progress);
        if args.split == Split::Train {
            warn_if_trained_on(&scores, data.as_ref(), &checkpoint, &config, &device)?;
        }
        statistics.calibration = Some(found);
    }
    for warning in statistics
        .calibration
        .iter()
        .flat_map(Calibration::warnings)
    {
        say(&format!("warning: {warning}"));
    }
    let norms = statistics.norms.as_ref();
    if norms.is_some_and(|norms| norms.images < NormReference::FEWEST_IMAGES) {
        say(&format!(
            "warning: reference moments of the norms from fewer than {} images are noisy",
            NormReference::FEWEST_IMAGES
        ));
    }
    let seconds = start.elapsed().as_secs_f64();
    let out = args.out.as_ref().expect("clap asks for it");
    statistics.save(out)?;
    if let Some(elsewhere) = &elsewhere {
        elsewhere.remove()?;
    }
    let written = std::fs::metadata(out).map_or(0, |file| file.len());
    let result = json!({
        "path": out,
        "bytes": written,
        "seconds": seconds,
        "samples": data.len(),
        "class_counts": statistics.counts,
        "origin": statistics.origin,
        "reference_images": norms.map(|norms| norms.images),
        "importance_images": statistics.importance.as_ref().map(|found| found.images),
        "norm_offsets": norms.map(|norms| norms.offsets(network)),
        "calibration": statistics.calibration.as_ref().map(|found| json!({
            "data": found.data,
            "images": found.images,
            "samples": found.samples,
            "limits": found.measures.iter().map(|one| json!({"score": one.score, "limit": one.limit})).collect::<Vec<_>>(),
        })),
        "template": statistics.global.template(ttac::stats::TEMPLATE_DIVISOR),
    });
    let gate = statistics
        .calibration
        .as_ref()
        .map_or_else(String::new, |found| {
            let limits = found.measures.iter().map(|one| format!("{:.3}", one.limit));
            format!(
                "\nthe gate is calibrated by {} images of {} ({}), limits {}",
                found.samples,
                found.data,
                found.images.describe(),
                limits.collect::<Vec<_>>().join(" and ")
            )
        });
    let text = format!(
        "wrote {}: {classes} classes of {features} features from {} images, {}, {seconds:.1} s, {:.0} images/s{gate}",
        out.display(),
        data.len(),
        human(written),
        data.len() as f64 / seconds
    );
    print(options.json, &result, &text)
}

/// Submits the chunks that workers compute, if there are any workers.
fn elsewhere(
    args: &Anchors,
    config: &AnchorConfig,
    network: &impl Backbone,
    data: &dyn Dataset,
) -> anyhow::Result<Option<Elsewhere>> {
    let (Some(queue), Some(store)) = (&args.queue, &args.store) else {
        return Ok(None);
    };
    interrupt::listen();
    let like = Chunk {
        model: args.model.clone(),
        data: args.data.clone(),
        root: args.root.clone(),
        split: args.split,
        subset: args.subset,
        transform: config.transform,
        batch_size: config.batch_size,
        seed: config.seed,
        index: 0,
    };
    let chunks = AnchorChunks::new(data, config);
    let first = chunks.first_elsewhere(network, config).min(chunks.count());
    let settings = QueueSettings {
        patience: Duration::from_secs(args.ack_wait.get()),
        ..QueueSettings::default()
    };
    let to = (queue.as_str(), store.as_str());
    Ok(Some(Elsewhere::submit(
        to,
        &settings,
        &like,
        first..chunks.count(),
    )?))
}

/// Estimates the file and the memory that anchors take, as JSON and as text.
fn estimate(classes: usize, features: usize, kind: CovarianceKind) -> (Value, String) {
    let bytes = SourceStatistics::estimated_bytes(classes, features, kind);
    // While they are collected, sums are doubles.
    let memory = 2 * bytes;
    let mut text = format!(
        "{classes} classes of {features} features: about {} in the file, {} of memory besides the model",
        human(bytes),
        human(memory)
    );
    if bytes > LARGE && kind == CovarianceKind::Full {
        let diagonal =
            SourceStatistics::estimated_bytes(classes, features, CovarianceKind::Diagonal);
        text += "; `--class-covariance diagonal` would take ";
        text += &human(diagonal);
    }
    let result = json!({ "file_bytes": bytes, "memory_bytes": memory });
    (result, text)
}

/// Opens the source images of a model.
fn images(args: &Anchors, header: &Header) -> anyhow::Result<Box<dyn Dataset>> {
    let source = Source {
        data: args.data.clone(),
        root: args.root.clone(),
        split: args.split,
    };
    let data = open(&source, &for_model(header))?;
    check_classes(&args.model, header, data.as_ref())?;
    Ok(match args.subset {
        Some(count) => Box::new(Part::first(data, count.get())),
        None => data,
    })
}

/// Opens the images that the gate is calibrated by: the last ones of a split, or of a folder.
fn held_out_images(
    args: &Anchors,
    held_out: &str,
    header: &Header,
) -> anyhow::Result<Box<dyn Dataset>> {
    let count = args.calibration_images.get();
    let (root, split) = match held_out.parse::<Split>() {
        Ok(split) if split == args.split => bail!(
            "`--calibrate {held_out}`: the anchors are made of these images; give another split, or a folder of images that the network was not trained on"
        ),
        Ok(split) => (args.root.clone(), split),
        Err(_) if Path::new(held_out).is_dir() => (Some(held_out.into()), Split::Test),
        Err(_) => bail!("`--calibrate {held_out}`: expected `train`, `test` or a folder"),
    };
    let source = Source {
        data: args.data.clone(),
        root,
        split,
    };
    let unlabelled = OpenOptions {
        unlabelled: true,
        ..for_model(header)
    };
    let data = open(&source, &unlabelled)?;
    if data.is_labelled() {
        check_classes(&args.model, header, data.as_ref())?;
    }
    Ok(Box::new(if source.root == args.root {
        Part::last(data, count)
    } else {
        Part::spread(data, count)
    }))
}

/// Warns if images that are said to be held out look like those the network was trained on.
fn warn_if_trained_on(
    held_out: &[f32],
    source: &dyn Dataset,
    checkpoint: &Checkpoint,
    config: &AnchorConfig,
    device: &Device,
) -> anyhow::Result<()> {
    let network = &checkpoint.network;
    let count = source.len().min(8000) as u64;
    let ids: Vec<u64> = (0..count).collect();
    let mut scores: Vec<f32> = Vec::new();
    for ids in ids.chunks(config.batch_size) {
        let batch = source.batch(ids)?;
        let images = checkpoint.header.input.normalise(&batch.samples, device)?;
        let found = network.forward(images, NormMode::Running).to_data();
        scores.extend(found.try_to_vec::<f32>()?);
    }
    if looks_trained_on(held_out, &scores, network.num_classes()) {
        say(
            "note: the network is as sure of the calibration images as of its training images. That is so where it generalises without a gap; if it was trained on them, the gate will raise false alarms",
        );
    }
    Ok(())
}

/// The constants that were asked for.
fn config(args: &Anchors) -> AnchorConfig {
    AnchorConfig {
        transform: args.transform,
        labels: args.labels,
        class_covariance: args.class_covariance,
        rank: args.rank,
        alignment_batch: args.alignment_batch,
        batch_size: args.batch_size.get(),
        seed: args.seed,
        reference_images: args.reference_images,
        importance_images: args.importance_images,
        ..AnchorConfig::default()
    }
}

fn human(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}
