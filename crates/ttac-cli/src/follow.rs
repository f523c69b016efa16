//! What is written down while a run goes on: the live line, the log, predictions, saved states.

use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use ttac::experiment::{Card, Experiment};
use ttac::method::Learned;
use ttac::protocol::{Recorder, Sink, StepRecord};
use ttac::{Error, SessionState, write_atomically};

use crate::args::Adapt;
use crate::command::adapt::save_state;
use crate::interrupt;
use crate::progress::{Progress, Unit, say};

/// Follows a run of `ttac adapt`.
pub struct Journal<'a> {
    args: &'a Adapt,
    card: &'a Card,
    experiment: &'a Experiment,
    classes: Vec<String>,
    labelled: bool,
    progress: Progress,
    recorder: Recorder,
    log: Option<std::fs::File>,
    predictions: String,
    stopped: bool,
}

impl<'a> Journal<'a> {
    pub fn new(args: &'a Adapt, experiment: &'a Experiment) -> Self {
        let samples = experiment.plan.samples();
        let named = experiment.domains[0].info().sample_name(0).is_some();
        let classes = experiment.classes();
        Self {
            args,
            card: &experiment.card,
            experiment,
            labelled: experiment.is_labelled(),
            progress: Progress::new("adapt", samples as u64, Unit::Images),
            recorder: Recorder::new(&classes),
            classes,
            log: None,
            predictions: format!(
                "domain,id,predicted,class,confidence{}\n",
                if named { ",file" } else { "" }
            ),
            stopped: false,
        }
    }

    /// Takes up what an interrupted run had written.
    pub fn resume(&mut self, recorder: Recorder) -> ttac::Result<()> {
        self.progress.advance(recorder.samples() as u64);
        if let Some(path) = &self.args.log {
            let log = first_lines(path, recorder.batches()).unwrap_or_default();
            write_atomically(path, log.as_bytes())?;
            let file = std::fs::OpenOptions::new().append(true).open(path);
            self.log = Some(file.map_err(Error::io("write", path))?);
        }
        let path = self.args.predictions.as_deref();
        let predictions = path.and_then(|path| first_lines(path, recorder.samples() + 1));
        if let Some(predictions) = predictions {
            self.predictions = predictions;
        }
        self.recorder = recorder;
        Ok(())
    }

    /// Writes what was predicted; returns the record and whether somebody asked to stop.
    pub fn finish(self) -> ttac::Result<(Recorder, bool)> {
        if let Some(path) = &self.args.predictions {
            write_atomically(path, self.predictions.as_bytes())?;
        }
        Ok((self.recorder, self.stopped))
    }

    /// Adds a line for each sample.
    fn write_predictions(&mut self, record: &StepRecord) {
        let predicted = record.predicted.iter().zip(&record.confidence);
        for (arrival, (class, confidence)) in record.arrivals.iter().zip(predicted) {
            let (domain, id) = (arrival.domain, arrival.id);
            let name = self.classes.get(*class).map_or("", String::as_str);
            let _ = write!(
                self.predictions,
                "{domain},{id},{class},{},{confidence:.6}",
                quoted(name)
            );
            let info = self.experiment.domains[domain].info();
            if let Some(file) = info.sample_name(id) {
                let _ = write!(self.predictions, ",{}", quoted(file));
            }
            self.predictions.push('\n');
        }
    }

    /// Adds a line of JSON to the log, which is opened at the first.
    fn write_log(&mut self, record: &StepRecord) -> ttac::Result<()> {
        let Some(path) = &self.args.log else {
            return Ok(());
        };
        let learned = &record.learned;
        let losses = learned.losses.iter().copied();
        let line = json!({
            "batch": record.batch,
            "visit": record.visit,
            "samples": record.predicted.len(),
            "wrong": record.wrong(),
            "cumulative_error_percent": self.recorder.error_percent(),
            "updates": learned.updates,
            "accepted": learned.accepted,
            "considered": learned.considered,
            "losses": losses.collect::<std::collections::BTreeMap<_, _>>(),
            "late": record.late,
            "learning_seconds": record.learning_seconds,
            "predicting_seconds": record.predicting_seconds,
            "warnings": record.warnings,
        });
        if self.log.is_none() {
            write_atomically(path, b"")?;
            let file = std::fs::OpenOptions::new().append(true).open(path);
            self.log = Some(file.map_err(Error::io("write", path))?);
        }
        let file = self.log.as_mut().expect("it was just opened");
        // One call for a whole line, so that a reader sees no half of one.
        let written = file.write_all(format!("{line}\n").as_bytes());
        written.map_err(Error::io("write", path))
    }
}

/// Reads the first lines of a file that an interrupted run left.
fn first_lines(path: &Path, count: usize) -> Option<String> {
    let old = std::fs::read_to_string(path).ok()?;
    let lines = old.lines().take(count);
    Some(lines.flat_map(|line| [line, "\n"]).collect())
}

/// Quotes text as a field of a CSV file.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Lists the loss terms in a row.
fn losses(learned: &Learned) -> String {
    let mut text = String::new();
    for (name, value) in &learned.losses {
        let _ = write!(text, ", {name} {value:.3}");
    }
    text
}

impl Sink for Journal<'_> {
    fn step(&mut self, record: &StepRecord) -> ttac::Result<ControlFlow<()>> {
        let _ = self.recorder.step(record)?;
        self.write_predictions(record);
        let learned = &record.learned;
        let accepted = if learned.considered > 0 {
            let share = 100.0 * learned.accepted as f64 / learned.considered as f64;
            format!(", accepted {share:.0} %")
        } else {
            String::new()
        };
        let error = self.recorder.error_percent().filter(|_| self.labelled);
        let error = error.map_or("no labels".to_owned(), |e| format!("error {e:.2} %"));
        let losses = losses(learned);
        self.progress.note(format!("{error}{accepted}{losses}"));
        self.progress.advance(record.predicted.len() as u64);
        self.write_log(record)?;
        if interrupt::asked() {
            self.stopped = true;
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    }

    fn save(&mut self, state: &dyn Fn() -> ttac::Result<SessionState>) -> ttac::Result<()> {
        let Some(path) = &self.args.checkpoint else {
            return Ok(());
        };
        let every = self.args.checkpoint_every.get();
        if !self.recorder.batches().is_multiple_of(every) {
            return Ok(());
        }
        // The state counts on the predictions that were made before it, so they are written first.
        if let Some(predictions) = &self.args.predictions {
            write_atomically(predictions, self.predictions.as_bytes())?;
        }
        save_state(path, state()?, &self.recorder, self.card)
    }

    fn epoch(&mut self, epoch: usize, learned: &Learned, error_percent: Option<f64>) {
        let error = error_percent.map_or(String::new(), |error| format!(", error {error:.2} %"));
        let losses = losses(learned);
        self.progress.line(&format!("epoch {epoch}{losses}{error}"));
    }
}

/// Records a cell of a grid, and stops when somebody asks to.
pub struct CellJournal<'a> {
    pub recorder: Recorder,
    pub stopped: bool,
    keeper: Option<Keeper<'a>>,
    /// When it was kept last.
    kept: Instant,
}

/// Who keeps what a long cell has come to.
pub struct Keeper<'a> {
    /// How often that is kept.
    pub every: Duration,
    /// Keeps the session and the record so far. A failure is said, and the cell goes on.
    pub keep: &'a dyn Fn(SessionState, &Recorder) -> anyhow::Result<()>,
    /// Hears how many samples were predicted.
    pub hear: &'a dyn Fn(usize),
}

impl<'a> CellJournal<'a> {
    pub fn new(recorder: Recorder, keeper: Option<Keeper<'a>>) -> Self {
        Self {
            recorder,
            stopped: false,
            keeper,
            kept: Instant::now(),
        }
    }
}

impl Sink for CellJournal<'_> {
    fn step(&mut self, record: &StepRecord) -> ttac::Result<ControlFlow<()>> {
        let flow = self.recorder.step(record)?;
        if let Some(keeper) = &self.keeper {
            (keeper.hear)(self.recorder.samples());
        }
        self.stopped = interrupt::asked();
        Ok(if self.stopped {
            ControlFlow::Break(())
        } else {
            flow
        })
    }

    fn save(&mut self, state: &dyn Fn() -> ttac::Result<SessionState>) -> ttac::Result<()> {
        let Some(keeper) = &self.keeper else {
            return Ok(());
        };
        if self.kept.elapsed() >= keeper.every {
            if let Err(error) = (keeper.keep)(state()?, &self.recorder) {
                say(&format!("a checkpoint could not be stored: {error:#}"));
            }
            self.kept = Instant::now();
        }
        Ok(())
    }
}
