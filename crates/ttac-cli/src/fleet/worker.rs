//! A worker: takes work, does it, stores the result, says so.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::bail;
use ttac::burn::tensor::Device;
use ttac::experiment::{Cell, Experiment};
use ttac::protocol::{Passes, Recorder, run as show};
use ttac::report::CellRecord;
use ttac::{Session, SessionState};
use ttac_fleet::{Delivery, Queue, Store};

use super::results::{self, Replace};
use super::task::{Inputs, Task, Work};
use super::tries::{MOST_TRIES, Note, forget, list_as_failed, tries};
use super::{About, worker_name};
use crate::follow::{CellJournal, Keeper};
use crate::interrupt;
use crate::progress::say;

/// How long one call waits for work.
const WAIT: Duration = Duration::from_secs(2);

/// What a worker is told on its command line.
pub struct Options {
    pub until_empty: bool,
    pub checkpoint_every: Duration,
}

pub struct Worker<'a> {
    store: Store,
    queue: Queue,
    name: String,
    options: Options,
    device: &'a Device,
    inputs: Inputs,
    /// What is said to whoever asks how far it has come.
    said: Arc<Mutex<String>>,
    done: usize,
}

/// How an attempt at a piece of work ended, if it did not fail.
enum Outcome {
    /// The result is in the store.
    Stored(String),
    /// Somebody asked to stop; what it has come to is in the store.
    Stopped,
}

impl<'a> Worker<'a> {
    /// Reaches the store and the queue that belongs to it.
    pub fn new(
        queue: &str,
        store: &str,
        options: Options,
        device: &'a Device,
    ) -> anyhow::Result<Self> {
        let store = Store::open(store)?;
        let about = About::expect(&store)?;
        Ok(Self {
            queue: Queue::connect(queue, &about.queue)?,
            store,
            name: worker_name(),
            options,
            device,
            inputs: Inputs::default(),
            said: Arc::new(Mutex::new("waits for work".to_owned())),
            done: 0,
        })
    }

    /// Works until somebody asks to stop, or until no work is left, and returns how much was done.
    pub fn run(mut self) -> anyhow::Result<usize> {
        interrupt::listen();
        let voice = self.queue.announce(&self.name, Arc::clone(&self.said))?;
        say(&format!(
            "worker {} waits for work of {}",
            self.name, self.store
        ));
        let ended = self.work();
        voice.end();
        self.queue.leave(&self.name);
        ended?;
        Ok(self.done)
    }

    fn work(&mut self) -> anyhow::Result<()> {
        while !interrupt::asked() {
            match patiently(|| self.queue.take(WAIT))? {
                Some(delivery) => self.handle(&delivery)?,
                None if self.options.until_empty => {
                    let left = patiently(|| self.queue.counts())?;
                    if left.waiting + left.taken == 0 {
                        return Ok(());
                    }
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Does a piece of work that was taken. Only what ends the worker is an error.
    fn handle(&mut self, delivery: &Delivery) -> anyhow::Result<()> {
        let task = match Task::parse(delivery.payload()) {
            Ok(task) => task,
            Err(error) => {
                // Somebody else may be able to.
                let _ = delivery.give_back(Duration::from_secs(1));
                return Err(error);
            }
        };
        let lease = delivery.keep();
        if patiently(|| self.store.has(&task.name))? {
            // A worker stored it and died, or lost its connection, before it could say so.
            return answer(|| delivery.done());
        }
        if delivery.taken() > 1 {
            let tried = patiently(|| tries(&self.store, &task.digest))?;
            if tried.len() >= MOST_TRIES {
                return self.give_up(delivery, &task);
            }
        }
        let mut note =
            patiently(|| Note::begin(&self.store, &task.digest, &self.name, delivery.taken()))?;
        self.say(task.title.clone());
        let outcome = self.attempt(&task);
        self.say("waits for work".to_owned());
        match outcome {
            Ok(Outcome::Stored(message)) => {
                self.done += 1;
                say(&format!("{}: {message}", task.title));
                if delivery.taken() > 1 {
                    patiently(|| forget(&self.store, &task.digest))?;
                    patiently(|| self.store.remove(&checkpoint(&task.digest)))?;
                }
                patiently(|| note.remove(&self.store))?;
                answer(|| delivery.done())?;
            }
            Ok(Outcome::Stopped) => {
                patiently(|| note.remove(&self.store))?;
                answer(|| delivery.give_back(Duration::ZERO))?;
            }
            Err(error) if error.downcast_ref::<ttac_fleet::Error>().is_some() => return Err(error),
            Err(error) => {
                say(&format!("{} failed: {error:#}", task.title));
                let problem = format!("{error:#}");
                patiently(|| note.fail(&self.store, &problem))?;
                if patiently(|| tries(&self.store, &task.digest))?.len() >= MOST_TRIES {
                    self.give_up(delivery, &task)?;
                } else {
                    answer(|| delivery.give_back(Duration::from_secs(1)))?;
                }
            }
        }
        lease.end();
        Ok(())
    }

    /// Lists a piece of work as failed, and takes it out of the queue.
    fn give_up(&self, delivery: &Delivery, task: &Task) -> anyhow::Result<()> {
        let tried = patiently(|| tries(&self.store, &task.digest))?;
        let failed = patiently(|| list_as_failed(&self.store, &task.digest, &task.title, &tried))?;
        say(&format!(
            "{} is given up after {} tries: {}",
            failed.title, failed.tries, failed.problem
        ));
        answer(|| delivery.give_up())
    }

    fn attempt(&mut self, task: &Task) -> anyhow::Result<Outcome> {
        match &task.work {
            Work::Cell { row, axes, spec } => {
                let mut here = (**spec).clone();
                for (path, digest) in &task.inputs {
                    let found = self.inputs.find(&self.store, path, digest)?;
                    if here.model == *path {
                        here.model.clone_from(&found);
                    }
                    if here.anchors.as_ref() == Some(path) {
                        here.anchors = Some(found);
                    }
                }
                let mut experiment = Experiment::open(&here, self.device)?;
                if !experiment.is_labelled() {
                    bail!("the images have no labels, so there is no error to compare");
                }
                // The card is that of a run on one machine, wherever the files lie here.
                experiment.card.spec = Some((**spec).clone());
                let cell = Cell {
                    row: row.clone(),
                    axes: axes.clone(),
                    spec: (**spec).clone(),
                };
                self.adapt(task, &cell, &experiment)
            }
            Work::Anchors(chunk) => {
                let mut here = chunk.clone();
                if let Some(digest) = task.inputs.get(&chunk.model) {
                    here.model = self.inputs.find(&self.store, &chunk.model, digest)?;
                }
                let bytes = here.features(self.device)?;
                patiently(|| self.store.create(&task.name, &bytes))?;
                Ok(Outcome::Stored(format!(
                    "{} bytes of features",
                    bytes.len()
                )))
            }
        }
    }

    fn adapt(&self, task: &Task, cell: &Cell, experiment: &Experiment) -> anyhow::Result<Outcome> {
        let mut session = experiment.session()?;
        let mut recorder = Recorder::new(&experiment.classes());
        // Many passes tell of their steps at the end, and begin anew.
        let can_resume = experiment.protocol.passes == Passes::One;
        let kept = patiently(|| self.store.get(&checkpoint(&task.digest)))?;
        if let Some(bytes) = kept.filter(|_| can_resume) {
            match resumed(&bytes, &mut session, experiment) {
                Ok(found) => recorder = found,
                Err(error) => say(&format!("{} starts again: {error:#}", task.title)),
            }
        }
        let samples = experiment.plan.samples();
        let keeper = Keeper {
            every: self.options.checkpoint_every,
            keep: &|state, recorder| self.checkpoint(task, state, recorder, experiment),
            hear: &|count| {
                self.say(format!(
                    "{}, {} %",
                    task.title,
                    100 * count / samples.max(1)
                ));
            },
        };
        let mut journal = CellJournal::new(recorder, can_resume.then_some(keeper));
        show(&mut session, &experiment.stream(), &mut journal)?;
        if journal.stopped {
            if can_resume {
                let (state, recorder) = (session.state()?, journal.recorder);
                self.checkpoint(task, state, &recorder, experiment)?;
            }
            return Ok(Outcome::Stopped);
        }
        let features = experiment.features(&session)?;
        let record = journal.recorder.finish(experiment.card.clone())?;
        let message = format!("error {:.2} %", record.error_percent);
        let whole = CellRecord::new(&cell.row, &cell.axes, record);
        loop {
            let written = results::write(
                &self.store,
                &task.name,
                &whole,
                features.as_ref(),
                Replace::No,
            );
            match written {
                Err(error) if is_away(&error) && !interrupt::asked() => {
                    say(&format!(
                        "{error:#}; waiting for it with the result of {}",
                        task.title
                    ));
                    std::thread::sleep(Duration::from_secs(2));
                }
                other => break other?,
            }
        }
        Ok(Outcome::Stored(message))
    }

    /// Stores what long work has come to, and forgets tries that did not come so far.
    fn checkpoint(
        &self,
        task: &Task,
        mut state: SessionState,
        recorder: &Recorder,
        experiment: &Experiment,
    ) -> anyhow::Result<()> {
        state.attach("recorder", recorder);
        state.attach("card", &experiment.card);
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("checkpoint");
        state.save(&file)?;
        self.store
            .put(&checkpoint(&task.digest), &std::fs::read(&file)?)?;
        forget(&self.store, &task.digest)?;
        Ok(())
    }

    /// Says what this worker does, to whoever asks.
    fn say(&self, text: String) {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

/// Takes up a run from its checkpoint.
fn resumed(
    bytes: &[u8],
    session: &mut Session,
    experiment: &Experiment,
) -> anyhow::Result<Recorder> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("checkpoint");
    std::fs::write(&file, bytes)?;
    let state = SessionState::load(&file)?;
    let card: ttac::experiment::Card = state.attached("card")?;
    if card != experiment.card {
        bail!("the checkpoint is of another run");
    }
    session.restore(&state)?;
    Ok(state.attached("recorder")?)
}

fn checkpoint(digest: &str) -> String {
    format!("fleet/checkpoints/{digest}")
}

/// Whether an error says that a store or a queue is away for the moment.
pub fn is_away(error: &anyhow::Error) -> bool {
    let ours = error.downcast_ref::<ttac_fleet::Error>();
    ours.is_some_and(ttac_fleet::Error::is_away)
}

/// Tries again for as long as nobody answers and nobody asks to stop.
pub fn patiently<T>(mut call: impl FnMut() -> ttac_fleet::Result<T>) -> ttac_fleet::Result<T> {
    let mut said: Option<Instant> = None;
    loop {
        match call() {
            Err(error) if error.is_away() && !interrupt::asked() => {
                if said.is_none_or(|at| at.elapsed() > Duration::from_secs(30)) {
                    say(&format!("{error}; trying again"));
                    said = Some(Instant::now());
                }
                std::thread::sleep(Duration::from_millis(500));
            }
            other => return other,
        }
    }
}

/// Answers for a piece of work. If the broker stays away it gives the work out once more, and the next worker finds the result.
fn answer(call: impl Fn() -> ttac_fleet::Result<()>) -> anyhow::Result<()> {
    match call() {
        Err(error) if error.is_away() => {
            say(&format!("{error}; the work will be given out again"));
            Ok(())
        }
        other => Ok(other?),
    }
}
