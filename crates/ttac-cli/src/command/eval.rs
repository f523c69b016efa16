//! `ttac eval`

use std::fmt::Write;
use std::time::Instant;

use serde_json::json;
use ttac::checkpoint::Checkpoint;
use ttac::data::{DatasetExt, SampleId};
use ttac::{Model, Session, write_atomically};

use super::{check_classes, open, open_options, print};
use crate::args::{Corrupted, Eval, Options};
use crate::device;
use crate::progress::{Progress, Unit};

pub fn run(args: &Eval, options: &Options) -> anyhow::Result<()> {
    let device = device::parse(&options.device)?;
    let checkpoint = Checkpoint::load(&args.model, &device)?;
    let model = Model::from(&checkpoint);
    let header = &checkpoint.header;
    let Corrupted {
        corruption,
        severity,
        ..
    } = &args.corrupted;
    let asked = open_options(&args.corrupted, corruption.as_deref(), header)
        .with_skip_bad(args.skip_bad)
        .with_refuse_grey(args.refuse_grey);
    let data = open(&args.source, &asked)?;
    check_classes(&args.model, header, data.as_ref())?;
    let session = Session::builder(&model).method("test").build()?;
    let total = args.subset.map_or(data.len(), |n| n.get().min(data.len()));
    let mut progress = Progress::new("eval", total as u64, Unit::Images);
    let mut table = String::from("id,label,predicted,confidence\n");
    let mut wrong = 0;
    let start = Instant::now();
    let ids: Vec<SampleId> = (0..total as SampleId).collect();
    for ids in ids.chunks(args.batch_size.get()) {
        let batch = data.batch(ids)?;
        let answer = session.predict(&batch.samples)?;
        let predicted = answer.classes.iter().zip(answer.confidence());
        let labels = batch.known_labels(data.name())?;
        for (((predicted, confidence), label), id) in predicted.zip(labels).zip(ids) {
            wrong += usize::from(predicted != label);
            writeln!(table, "{id},{label},{predicted},{confidence:.6}")?;
        }
        progress.advance(ids.len() as u64);
    }
    let seconds = start.elapsed().as_secs_f64();
    drop(progress);
    if let Some(path) = &args.predictions {
        write_atomically(path, table.as_bytes())?;
    }

    let error_percent = 100.0 * wrong as f64 / total as f64;
    let images_per_second = total as f64 / seconds;
    let result = json!({
        "error_percent": error_percent,
        "wrong": wrong,
        "samples": total,
        "seconds": seconds,
        "images_per_second": images_per_second,
        "model": args.model,
        "architecture": header.architecture.name(),
        "fingerprint": model.fingerprint,
        "card": {
            "method": "test",
            "adapts": false,
            "norm": "running",
            "source_objective": header.objective,
            "data": data.name(),
            "split": args.source.split.to_string(),
            "corruption": corruption,
            "made": data.info().corruption,
            "severity": severity,
            "skipped": data.info().skipped,
            "subset": args.subset,
        },
    });
    let corrupted = match (corruption, severity) {
        (Some(corruption), Some(severity)) => format!(" {corruption} {severity}"),
        _ => String::new(),
    };
    let skipped = match data.info().skipped {
        0 => String::new(),
        skipped => format!(", {skipped} left out"),
    };
    let text = format!(
        "error {error_percent:.2} % ({wrong} of {total} wrong{skipped}) on {} {}{corrupted}, {seconds:.1} s, {images_per_second:.0} images/s",
        data.name(),
        args.source.split
    );
    print(options.json, &result, &text)
}
