//! `ttac anchors`

use std::time::Instant;

use serde_json::json;
use ttac::backbone::Backbone;
use ttac::checkpoint::{Augmentation, Checkpoint, fingerprint};
use ttac::data::Part;
use ttac::stats::{AnchorConfig, CovarianceKind, SourceStatistics, collect};

use super::{check_classes, for_model, open, print};
use crate::args::{Anchors, Options, Source};
use crate::device;
use crate::progress::{Progress, Unit, say};

/// File sizes above which diagonal covariances are suggested.
const LARGE: u64 = 2 << 30;

pub fn run(args: &Anchors, options: &Options) -> anyhow::Result<()> {
    let device = device::parse(&options.device)?;
    let checkpoint = Checkpoint::load(&args.model, &device)?;
    let header = &checkpoint.header;
    let network = &checkpoint.network;
    let (classes, features) = (network.num_classes(), network.num_features());
    let bytes = SourceStatistics::estimated_bytes(classes, features, args.class_covariance);
    // While they are collected, sums are doubles.
    let memory = 2 * bytes;
    let size = format!(
        "{classes} classes of {features} features: about {} in the file, {} of memory besides the model",
        human(bytes),
        human(memory)
    );
    if args.estimate {
        let advice = if bytes > LARGE && args.class_covariance == CovarianceKind::Full {
            let diagonal =
                SourceStatistics::estimated_bytes(classes, features, CovarianceKind::Diagonal);
            format!(
                "; `--class-covariance diagonal` would take {}",
                human(diagonal)
            )
        } else {
            String::new()
        };
        let result = json!({ "file_bytes": bytes, "memory_bytes": memory });
        return print(options.json, &result, &format!("{size}{advice}"));
    }
    let source = Source {
        data: args.data.clone(),
        root: args.root.clone(),
        split: args.split,
    };
    let mut data = open(&source, &for_model(header))?;
    check_classes(&args.model, header, data.as_ref())?;
    if let Some(count) = args.subset {
        data = Box::new(Part::first(data, count.get()));
    }
    let transform = args.transform.unwrap_or(match header.augmentation {
        Augmentation::Unknown => {
            say("how this model's training images were varied is not recorded; taking them as they are");
            Augmentation::None
        }
        known => known,
    });
    let config = AnchorConfig {
        transform,
        labels: args.labels,
        class_covariance: args.class_covariance,
        rank: args.rank,
        alignment_batch: args.alignment_batch,
        batch_size: args.batch_size.get(),
        seed: args.seed,
    };
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

fn human(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}
