//! How far all workers have come.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::bail;
use serde_json::{Value, json};
use ttac_fleet::{Counts, Queue};

use super::tries::{Failed, failure_of, failures};
use super::{About, results};
use crate::command::bench::Runs;
use crate::interrupt;
use crate::progress::{Progress, Unit, say};

/// How many times silence is not believed.
const SILENCES: usize = 5;

/// The state of a grid that workers work on.
pub struct Status {
    pub cells: usize,
    pub done: usize,
    pub counts: Counts,
    pub failed: Vec<Failed>,
    /// What each worker said last.
    pub workers: Vec<(String, String)>,
}

impl Status {
    /// Asks the store and the queue.
    pub fn ask(runs: &Runs, queue: &Queue) -> anyhow::Result<Self> {
        let names = runs.names();
        let done = results::there(runs.store(), names)?;
        let ours: BTreeSet<&str> = (0..names.len()).map(|index| runs.cell(index).2).collect();
        let mut failed = Vec::new();
        for digest in failures(runs.store())? {
            if ours.contains(digest.as_str()) {
                failed.extend(failure_of(runs.store(), &digest)?);
            }
        }
        Ok(Self {
            cells: names.len(),
            done: done.len(),
            counts: queue.counts()?,
            failed,
            workers: queue.voiced()?,
        })
    }

    /// Whether nobody works on any cell any more.
    pub fn is_over(&self) -> bool {
        self.done + self.failed.len() >= self.cells
    }

    pub fn to_json(&self) -> Value {
        json!({
            "cells": self.cells,
            "done": self.done,
            "waiting": self.counts.waiting,
            "taken": self.counts.taken,
            "failed": self.failed,
            "workers": self.workers.iter().map(|(name, said)| json!({ "name": name, "says": said })).collect::<Vec<_>>(),
        })
    }

    pub fn to_text(&self) -> String {
        let Counts { waiting, taken } = self.counts;
        let mut text = format!(
            "{} of {} cells done, {waiting} waiting, {taken} taken, {} failed; {} workers",
            self.done,
            self.cells,
            self.failed.len(),
            self.workers.len()
        );
        for (name, said) in &self.workers {
            let _ = write!(text, "\nworker {name}: {said}");
        }
        for failed in &self.failed {
            let Failed {
                title,
                tries,
                problem,
            } = failed;
            let _ = write!(text, "\nfailed {tries} times: {title}: {problem}");
        }
        text
    }
}

/// Finds the queue of a store to which something was submitted.
pub fn queue_of(runs: &Runs, address: &str) -> anyhow::Result<Queue> {
    let about = About::expect(runs.store())?;
    Ok(Queue::connect(address, &about.queue)?)
}

/// Asks once, for a user who waits for the answer. Brokers that elect a leader are silent for some seconds, so silence is believed
/// only when it lasts.
pub fn now(runs: &Runs, address: &str) -> anyhow::Result<Status> {
    let mut silences = 0;
    loop {
        let status = queue_of(runs, address).and_then(|queue| Status::ask(runs, &queue));
        match status {
            Err(error) if super::worker::is_away(&error) && silences < SILENCES => {
                silences += 1;
                std::thread::sleep(Duration::from_secs(1));
            }
            status => return status,
        }
    }
}

/// Shows how far the workers have come, until every cell is done or has failed.
pub fn wait(runs: &Runs, queue: &Queue) -> anyhow::Result<Status> {
    interrupt::listen();
    let total = runs.names().len();
    let mut progress = Progress::new("bench", total as u64, Unit::Cells);
    let mut shown = 0;
    let mut is_away = false;
    loop {
        match Status::ask(runs, queue) {
            Ok(status) => {
                progress.advance(status.done.saturating_sub(shown) as u64);
                shown = status.done.max(shown);
                let said = status
                    .workers
                    .iter()
                    .map(|(name, said)| format!("{name}: {said}"));
                progress.note(said.collect::<Vec<_>>().join("\n"));
                is_away = false;
                if status.is_over() {
                    return Ok(status);
                }
            }
            Err(error) if super::worker::is_away(&error) => {
                if !is_away {
                    progress.line(&format!("{error:#}; waiting for it"));
                }
                is_away = true;
            }
            Err(error) => return Err(error),
        }
        std::thread::sleep(Duration::from_secs(1));
        if interrupt::asked() {
            say("the workers go on; the same command shows them again");
            bail!("stopped with {shown} of {total} cells done");
        }
    }
}
