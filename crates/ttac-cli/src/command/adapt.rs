//! `ttac adapt`

use std::fmt::Write as _;

use anyhow::bail;
use serde_json::{Value, json};
use ttac::checkpoint::Checkpoint;
use ttac::experiment::{Card, Experiment, Spec};
use ttac::protocol::{FeatureRecord, Passes, Prediction, Recorder, RunRecord, run as show};
use ttac::{Session, SessionState, write_atomically};

use super::print;
use crate::args::{Adapt, Options};
use crate::follow::Journal;
use crate::progress::say;
use crate::{device, interrupt};

pub fn run(args: &Adapt, options: &Options) -> anyhow::Result<()> {
    let device = device::parse(&options.device)?;
    if args.features.is_some() && args.out.is_none() {
        bail!("`--features` are kept beside a record: give `--out FILE` too");
    }
    let spec = Spec::try_from(args)?;
    let experiment = Experiment::open(&spec, &device)?;
    check_labels(args, &experiment)?;
    for warning in &experiment.warnings {
        say(&format!("warning: {warning}"));
    }
    if experiment.lacks_gate()? {
        say(
            "`ttac anchors --calibrate SPLIT|DIR` makes anchors with a calibration and with reference moments of the norms",
        );
    }
    say_queue(&experiment);
    let mut session = experiment.session()?;
    let mut journal = Journal::new(args, &experiment);
    if args.resume {
        let path = args.checkpoint.as_ref().expect("clap asks for it");
        let state = SessionState::load(path)?;
        check_card(args, &state, &experiment.card)?;
        session.restore(&state)?;
        journal.resume(state.attached("recorder")?)?;
    }
    interrupt::listen();
    let shown = show(&mut session, &experiment.stream(), &mut journal);
    // What was predicted until then is kept, whatever ended the run.
    let (recorder, stopped) = journal.finish()?;
    shown?;
    if stopped {
        let hint = match &args.checkpoint {
            Some(path) => {
                save(path, &session, &recorder, &experiment.card)?;
                "the same command with `--resume` continues"
            }
            None => "with `--checkpoint FILE` it could be continued",
        };
        bail!(
            "stopped after {} of {} samples; {hint}",
            recorder.samples(),
            experiment.plan.samples()
        );
    }
    write_results(args, options, &experiment, &session, recorder)
}

/// Refuses what cannot be done without labels, before anything is run.
fn check_labels(args: &Adapt, experiment: &Experiment) -> anyhow::Result<()> {
    let asked = args.out.is_some() || args.oracle || experiment.plan.config.order.needs_labels();
    if !experiment.is_labelled() && asked {
        bail!(
            "these images have no labels: there is no error to write with `--out`, no best epoch for `--oracle`, no class for `--order correlated`; `--predictions FILE` writes what was predicted"
        );
    }
    Ok(())
}

/// Says how much memory the queue will take.
fn say_queue(experiment: &Experiment) {
    let Some(queue) = experiment.protocol.queue else {
        return;
    };
    let sample = experiment.model.input.sample_bytes();
    let bytes = queue.capacity * (sample + 4 * experiment.model.classes.len());
    let size = indicatif::HumanBytes(bytes as u64);
    say(&format!(
        "a queue of {} samples takes {size} of memory",
        queue.capacity
    ));
}

/// Refuses a saved run that was made with something else.
fn check_card(args: &Adapt, state: &SessionState, card: &Card) -> anyhow::Result<()> {
    let saved: Card = state.attached("card")?;
    if saved == *card {
        return Ok(());
    }
    let path = args.checkpoint.as_deref().unwrap_or("".as_ref());
    Err(ttac::Error::Mismatch {
        what: format!("run saved in `{}`", path.display()),
        expected: serde_json::to_string(&saved)?,
        found: serde_json::to_string(card)?,
    }
    .into())
}

/// Saves a session with what belongs to its run.
pub fn save(
    path: &std::path::Path,
    session: &Session,
    recorder: &Recorder,
    card: &Card,
) -> ttac::Result<()> {
    save_state(path, session.state()?, recorder, card)
}

/// Saves a session's state with what belongs to its run.
pub fn save_state(
    path: &std::path::Path,
    mut state: SessionState,
    recorder: &Recorder,
    card: &Card,
) -> ttac::Result<()> {
    state.attach("recorder", recorder);
    state.attach("card", card);
    state.save(path)
}

/// Writes the files that were asked for, and prints the result.
fn write_results(
    args: &Adapt,
    options: &Options,
    experiment: &Experiment,
    session: &Session,
    recorder: Recorder,
) -> anyhow::Result<()> {
    if let Some(path) = &args.save_model {
        let adapted = Checkpoint {
            header: experiment.header.clone(),
            network: session.model().network,
        };
        adapted.save(path)?;
    }
    let card = experiment.card.clone();
    let (mut result, counted) = if experiment.is_labelled() {
        let record: RunRecord = recorder.finish(card)?;
        if let Some(path) = &args.out {
            if let Some(features) = experiment.features(session)? {
                features.save(&FeatureRecord::path_beside(path))?;
            }
            let json = serde_json::to_string(&record)?;
            write_atomically(path, format!("{json}\n").as_bytes())?;
        }
        let counted = format!(
            "error {:.2} % ({} of {} wrong)",
            record.error_percent, record.wrong, record.samples
        );
        (serde_json::to_value(&record)?, counted)
    } else {
        let record = recorder.finish_unscored(card);
        let samples = record.samples;
        let counted = format!("predicted {samples} images, whose labels are unknown");
        let mut result = serde_json::to_value(&record)?;
        for field in UNKNOWN_WITHOUT_LABELS {
            result[field] = Value::Null;
        }
        (result, counted)
    };
    let number = |field: &str| result[field].as_f64().unwrap_or_default();
    let seconds = number("learning_seconds") + number("predicting_seconds");
    result["seconds"] = json!(seconds);
    let text = summary(&counted, &experiment.card, &result);
    print(options.json, &result, &text)
}

/// What the JSON of a labelled run says about errors, and that of an unlabelled one leaves `null`.
const UNKNOWN_WITHOUT_LABELS: [&str; 6] = [
    "error_percent",
    "wrong",
    "class_error_percent",
    "visit_error_percent",
    "confusion",
    "curve",
];

/// Puts a result into words.
fn summary(counted: &str, card: &Card, result: &Value) -> String {
    let number = |field: &str| result[field].as_f64().unwrap_or_default();
    let (samples, updates, seconds) = (number("samples"), number("updates"), number("seconds"));
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
    let mut text = format!(
        "{counted}, {} {}, {queue}, {order}, {updates} updates, {seconds:.1} s, {:.0} images/s",
        card.method,
        card.family,
        samples / seconds
    );
    if let Some(gate) = result.get("gate").filter(|gate| !gate.is_null()) {
        text += "\n";
        text += &gate_in_words(gate, samples);
    }
    if card.oracle {
        text += "\nchosen by test labels: an oracle, not a result";
    }
    let warnings: Vec<&str> = result["warnings"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for warning in warnings.iter().take(5) {
        let _ = write!(text, "\nwarning: {warning}");
    }
    if warnings.len() > 5 {
        let _ = write!(text, "\nand {} more warnings", warnings.len() - 5);
    }
    text
}

/// Says when a gate was open, and who answered.
fn gate_in_words(gate: &Value, samples: f64) -> String {
    let count = |field: &str| gate[field].as_array().map_or(0, Vec::len);
    let (opened, closed) = (count("opened"), count("closed"));
    let answered = &gate["answered_by_source"];
    let first = &gate["opened"][0];
    match (opened, closed) {
        (0, 0) if answered.as_f64() == Some(samples) => {
            format!(
                "the gate stayed closed: the source answered all {samples} images, and nothing was learned"
            )
        }
        (0, 0) => "the gate was open from the start to the end".to_owned(),
        (0, _) => format!(
            "the gate was open from the start to image {}; the source answered {answered} of {samples} images",
            gate["closed"][0]
        ),
        (1, 0) => format!(
            "the gate opened at image {first} and stayed open; the source answered {answered} of {samples} images"
        ),
        (1, 1) => format!(
            "the gate was open from image {first} to {}; the source answered {answered} of {samples} images",
            gate["closed"][0]
        ),
        _ => format!(
            "the gate opened {opened} times, first at image {first}, and closed {closed} times; the source answered {answered} of {samples} images"
        ),
    }
}
