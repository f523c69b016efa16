//! `ttac anchors`: takes the statistics of a model's source features.

use std::time::Instant;

use serde_json::{Value, json};
use ttac::backbone::Backbone;
use ttac::checkpoint::{Augmentation, Checkpoint, Header, fingerprint};
use ttac::data::{Dataset, DatasetExt, Part};
use ttac::stats::{AnchorConfig, CovarianceKind, SourceStatistics, collect};

use super::{check_classes, for_model, open, print};
use crate::args::{Anchors, Options, Source};
use crate::device;
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
    let config = config(args, header.augmentation);
    let digest = fingerprint(&header.architecture, network);
    let start = Instant::now();
    let mut progress = Progress::new("anchors", data.len() as u64, Unit::Images);
    let statistics = collect(
        network,
        &digest,
        &header.input,
        data.as_ref(),
        &config,
        &device,
        |images| progress.advance(images as u64),
    )?;
    drop(progress);
    let seconds = start.elapsed().as_secs_f64();
    let out = args.out.as_ref().expect("clap asks for it");
    statistics.save(out)?;
    let written = std::fs::metadata(out).map_or(0, |file| file.len());
    let result = json!({
        "path": out,
        "bytes": written,
        "seconds": seconds,
        "samples": data.len(),
        "class_counts": statistics.counts,
        "origin": statistics.origin,
        "template": statistics.global.template(ttac::stats::TEMPLATE_DIVISOR),
    });
    let text = format!(
        "wrote {}: {classes} classes of {features} features from {} images, {}, {seconds:.1} s, {:.0} images/s",
        out.display(),
        data.len(),
        human(written),
        data.len() as f64 / seconds
    );
    print(options.json, &result, &text)
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

/// The constants that were asked for. Images are varied as in training unless told otherwise.
fn config(args: &Anchors, trained_with: Augmentation) -> AnchorConfig {
    let transform = args.transform.unwrap_or(match trained_with {
        Augmentation::Unknown => {
            say("how this model's training images were varied is not recorded; taking them as they are");
            Augmentation::None
        }
        known => known,
    });
    AnchorConfig {
        transform,
        labels: args.labels,
        class_covariance: args.class_covariance,
        rank: args.rank,
        alignment_batch: args.alignment_batch,
        batch_size: args.batch_size.get(),
        seed: args.seed,
    }
}

fn human(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}
