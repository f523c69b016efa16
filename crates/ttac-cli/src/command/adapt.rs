//! `ttac adapt`

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::bail;
use serde::{Deserialize, Serialize};
use serde_json::json;
use ttac::archive::{self, Arrays, Kind};
use ttac::backbone::load_tensors;
use ttac::checkpoint::Checkpoint;
use ttac::data::Dataset;
use ttac::method::{Learned, Method};
use ttac::protocol::{
    Card, FeatureRecord, Passes, Prediction, Recorder, RunRecord, Runner, Sink, StepRecord,
};
use ttac::{Error, write_atomically};

use super::experiment::Experiment;
use super::print;
use crate::args::{Adapt, Options};
use crate::progress::{Progress, Unit, say};
use crate::{device, interrupt};

pub fn run(args: &Adapt, options: &Options) -> anyhow::Result<()> {
    let device = device::parse(&options.device)?;
    if args.features.is_some() && args.out.is_none() {
        bail!("`--features` are kept beside a record: give `--out FILE` too");
    }
    let experiment = Experiment::new(args, &device)?;
    let labelled = experiment.is_labelled();
    if !labelled && (args.out.is_some() || args.oracle || args.order.needs_labels()) {
        bail!(
            "these images have no labels: there is no error to write with `--out`, no best epoch for `--oracle`, no class for `--order correlated`; `--predictions FILE` writes what was predicted"
        );
    }
    let Experiment {
        checkpoint,
        protocol,
        plan,
        card,
        ..
    } = &experiment;
    let header = &checkpoint.header;
    let mut method = experiment.method()?;
    let stream = experiment.stream(&device);
    if let Some(queue) = protocol.queue {
        let image = header.input.height * header.input.width * 3;
        let bytes = (queue.capacity * (image + 4 * header.classes.len())) as u64;
        let size = indicatif::HumanBytes(bytes);
        say(&format!(
            "a queue of {} samples takes {size} of memory",
            queue.capacity
        ));
    }

    let mut follower = Follower::new(args, &experiment);
    let mut runner = Runner::new(protocol, &stream)?;
    if args.resume {
        let path = args.checkpoint.as_ref().expect("clap asks for it");
        let recorder = restore(path, card, method.as_mut())?;
        runner = runner.skip_to(recorder.batches())?;
        follower.start_from(recorder);
    }
    interrupt::listen();
    runner.run(method.as_mut(), &mut follower)?;
    let stopped = follower.stopped;
    let (recorder, predictions) = follower.into_parts();
    if stopped {
        let hint = match &args.checkpoint {
            Some(path) => {
                save(path, card, method.as_ref(), &recorder)?;
                "the same command with `--resume` continues"
            }
            None => "with `--checkpoint FILE` it could be continued",
        };
        bail!(
            "stopped after {} of {} samples; {hint}",
            recorder.samples(),
            plan.samples()
        );
    }
    if let Some(path) = &args.predictions {
        write_atomically(path, predictions.as_bytes())?;
    }
    if let Some(path) = &args.save_model {
        let adapted = Checkpoint {
            header: header.clone(),
            network: load_tensors(checkpoint.network.clone(), &method.weights()),
        };
        adapted.save(path)?;
    }
    let record = recorder.finish(card.clone());
    if let (Some(path), Some(features)) =
        (&args.out, experiment.features(method.as_ref(), &device)?)
    {
        features.save(&FeatureRecord::path_beside(path))?;
    }
    if let Some(path) = &args.out {
        write_atomically(
            path,
            format!("{}\n", serde_json::to_string(&record)?).as_bytes(),
        )?;
    }
    let mut result = serde_json::to_value(&record)?;
    let seconds = record.learning_seconds + record.predicting_seconds;
    result["seconds"] = json!(seconds);
    if !labelled {
        for field in UNKNOWN_WITHOUT_LABELS {
            result[field] = serde_json::Value::Null;
        }
    }
    print(options.json, &result, &summary(&record, seconds, labelled))
}

/// What a record says about errors.
const UNKNOWN_WITHOUT_LABELS: [&str; 6] = [
    "error_percent",
    "wrong",
    "class_error_percent",
    "visit_error_percent",
    "confusion",
    "curve",
];

fn summary(record: &RunRecord, seconds: f64, labelled: bool) -> String {
    let card = &record.card;
    let queue = match card.protocol.queue {
        Some(queue) => format!("queue {} x {} epochs", queue.capacity, queue.epochs),
        None => match card.protocol.passes {
            Passes::One => "no queue".to_owned(),
            Passes::Many { epochs, .. } => format!("{epochs} passes"),
        },
    };
    let order = match card.protocol.prediction {
        Prediction::AdaptFirst => "adapt-first",
        Prediction::PredictFirst => "predict-first",
    };
    let result = if labelled {
        format!(
            "error {:.2} % ({} of {} wrong)",
            record.error_percent, record.wrong, record.samples
        )
    } else {
        format!(
            "predicted {} images, whose labels are unknown",
            record.samples
        )
    };
    let mut text = format!(
        "{result}, {} {}, {queue}, {order}, {} updates, {seconds:.1} s, {:.0} images/s",
        card.method,
        card.family,
        record.updates,
        record.samples as f64 / seconds
    );
    if card.oracle {
        text += "\nchosen by test labels: an oracle, not a result";
    }
    for warning in record.warnings.iter().take(5) {
        let _ = write!(text, "\nwarning: {warning}");
    }
    if record.warnings.len() > 5 {
        let _ = write!(text, "\nand {} more warnings", record.warnings.len() - 5);
    }
    text
}

// ----------------------------------------------------------------------------------------- state

/// What is saved beside the method.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    card: Card,
    /// As text: JSON within JSON keeps the floats' digits.
    recorder: String,
}

fn save(path: &Path, card: &Card, method: &dyn Method, recorder: &Recorder) -> ttac::Result<()> {
    let mut arrays = Arrays::default();
    method.save(&mut arrays)?;
    let saved = Saved {
        card: card.clone(),
        recorder: serde_json::to_string(recorder).expect("a recorder is plain JSON"),
    };
    archive::save(path, Kind::Method, &saved, &arrays)
}

fn restore(path: &Path, card: &Card, method: &mut dyn Method) -> anyhow::Result<Recorder> {
    let (saved, mut arrays): (Saved, _) = archive::load(path, Kind::Method)?;
    if saved.card != *card {
        return Err(Error::Mismatch {
            what: format!("run saved in `{}`", path.display()),
            expected: serde_json::to_string(&saved.card)?,
            found: serde_json::to_string(card)?,
        }
        .into());
    }
    method.load(&mut arrays)?;
    Ok(serde_json::from_str(&saved.recorder)?)
}

// --------------------------------------------------------------------------------------- progress

/// The live line, the log, predictions and saved states.
struct Follower<'a> {
    args: &'a Adapt,
    card: &'a Card,
    domains: &'a [Box<dyn Dataset>],
    classes: Vec<String>,
    labelled: bool,
    progress: Progress,
    recorder: Recorder,
    log: String,
    predictions: String,
    stopped: bool,
}

impl<'a> Follower<'a> {
    fn new(args: &'a Adapt, experiment: &'a Experiment) -> Self {
        let samples = experiment.plan.samples();
        let named = experiment.domains[0].sample_name(0).is_some();
        Self {
            args,
            card: &experiment.card,
            domains: &experiment.domains,
            labelled: experiment.is_labelled(),
            progress: Progress::new("adapt", samples as u64, Unit::Images),
            recorder: Recorder::new(&experiment.classes()),
            classes: experiment.classes(),
            log: String::new(),
            predictions: format!(
                "domain,id,predicted,class,confidence{}\n",
                if named { ",file" } else { "" }
            ),
            stopped: false,
        }
    }

    /// Takes up what an interrupted run had written.
    fn start_from(&mut self, recorder: Recorder) {
        self.progress.advance(recorder.samples() as u64);
        let lines = |path: &Option<std::path::PathBuf>, count: usize| -> Option<String> {
            let old = std::fs::read_to_string(path.as_ref()?).ok()?;
            Some(
                old.lines()
                    .take(count)
                    .flat_map(|line| [line, "\n"])
                    .collect(),
            )
        };
        if let Some(log) = lines(&self.args.log, recorder.batches()) {
            self.log = log;
        }
        if let Some(predictions) = lines(&self.args.predictions, recorder.samples() + 1) {
            self.predictions = predictions;
        }
        self.recorder = recorder;
    }

    fn into_parts(self) -> (Recorder, String) {
        (self.recorder, self.predictions)
    }
}

/// Text as a field of a CSV file.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// The loss terms in a row.
fn losses(learned: &Learned) -> String {
    let mut text = String::new();
    for (name, value) in &learned.losses {
        let _ = write!(text, ", {name} {value:.3}");
    }
    text
}

impl Sink for Follower<'_> {
    fn step(&mut self, record: &StepRecord) -> ttac::Result<ControlFlow<()>> {
        let _ = self.recorder.step(record)?;
        for ((arrival, class), confidence) in record
            .arrivals
            .iter()
            .zip(&record.predicted)
            .zip(&record.confidence)
        {
            let (domain, id) = (arrival.domain, arrival.id);
            let name = self
                .classes
                .get(*class)
                .map_or(String::new(), |c| quoted(c));
            let _ = write!(
                self.predictions,
                "{domain},{id},{class},{name},{confidence:.6}"
            );
            if let Some(file) = self.domains[domain].sample_name(id) {
                let _ = write!(self.predictions, ",{}", quoted(&file));
            }
            self.predictions.push('\n');
        }
        let learned = &record.learned;
        let accepted = if learned.considered > 0 {
            format!(
                ", accepted {:.0} %",
                100.0 * learned.accepted as f64 / learned.considered as f64
            )
        } else {
            String::new()
        };
        let losses = losses(learned);
        let error_percent = self.labelled.then(|| self.recorder.error_percent());
        let error = error_percent.map_or("no labels".to_owned(), |e| format!("error {e:.2} %"));
        self.progress.note(format!("{error}{accepted}{losses}"));
        self.progress.advance(record.labels.len() as u64);
        if let Some(path) = &self.args.log {
            let line = json!({
                "batch": record.batch,
                "visit": record.visit,
                "samples": record.labels.len(),
                "wrong": self.labelled.then(|| record.wrong()),
                "cumulative_error_percent": error_percent,
                "updates": learned.updates,
                "accepted": learned.accepted,
                "considered": learned.considered,
                "losses": learned.losses.iter().copied().collect::<std::collections::BTreeMap<_, _>>(),
                "late": record.late,
                "learning_seconds": record.learning_seconds,
                "predicting_seconds": record.predicting_seconds,
                "warnings": record.warnings,
            });
            let _ = writeln!(self.log, "{line}");
            write_atomically(path, self.log.as_bytes())?;
        }
        if interrupt::asked() {
            self.stopped = true;
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    }

    fn save(&mut self, method: &dyn Method) -> ttac::Result<()> {
        let Some(path) = &self.args.checkpoint else {
            return Ok(());
        };
        if !self
            .recorder
            .batches()
            .is_multiple_of(self.args.checkpoint_every.get())
        {
            return Ok(());
        }
        // What the state counts on is written first.
        if let Some(predictions) = &self.args.predictions {
            write_atomically(predictions, self.predictions.as_bytes())?;
        }
        save(path, self.card, method, &self.recorder)
    }

    fn epoch(&mut self, epoch: usize, learned: &Learned, error_percent: Option<f64>) {
        let error = error_percent.map_or(String::new(), |error| format!(", error {error:.2} %"));
        let losses = losses(learned);
        self.progress.line(&format!("epoch {epoch}{losses}{error}"));
    }
}
