//! `ttac bench`: a grid of adaptations.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::HumanDuration;
use serde_json::json;
use ttac::Error;
use ttac::burn::module::Module;
use ttac::burn::tensor::Device;
use ttac::experiment::{Cell, Experiment, FileDigests, Grid, Spec};
use ttac::protocol::{FeatureRecord, Passes, Recorder, RunRecord, Selection, run as show};
use ttac::report::CellRecord;
use ttac::stream::{Choose, Order};
use ttac_fleet::Store;

use super::plan::{Plan, PlannedRow};
use super::{print, resident_megabytes};
use crate::args::{Bench, Options};
use crate::fleet::results::{self, Replace};
use crate::fleet::status;
use crate::fleet::submit;
use crate::follow::CellJournal;
use crate::progress::{Progress, Unit, say};
use crate::{device, interrupt};

pub fn run(args: &Bench, options: &Options) -> anyhow::Result<()> {
    let device = device::parse(&options.device)?;
    let stem = args.config.file_stem().unwrap_or_default();
    let out = args.out.clone();
    let out = out.unwrap_or_else(|| Path::new("results").join(stem));
    let grid = read(&args.config).with_context(|| format!("`{}`", args.config.display()))?;
    let store = match &args.fleet.store {
        Some(address) => Store::open(address)?,
        None => Store::folder(&out),
    };
    let bench = Runs::new(grid, store)?;
    if args.fleet.store.is_some() && !args.fleet.extend {
        submit::check_others(bench.store(), bench.names())?;
    }
    if let Some(queue) = &args.fleet.queue {
        return bench.by_workers(args, queue, options, &device);
    }
    let mine = bench.part(args.shard.unwrap_or((1, 1)));
    if args.dry_run {
        return bench.describe(args, options, &mine, &device);
    }
    let run_now = bench.run("bench", &mine, &device)?;
    let folder = bench.store.to_string();
    let result = json!({
        "folder": folder,
        "cells": mine.len(),
        "run_now": run_now,
    });
    let text = format!(
        "{} cells in {folder}, {run_now} of them run now",
        mine.len()
    );
    print(options.json, &result, &text)
}

/// Reads a grid, or the record of a result, which is run again as a grid of one cell.
fn read(path: &Path) -> anyhow::Result<Grid> {
    if path.extension().is_none_or(|extension| extension != "json") {
        let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
        return Ok(Grid::parse(&text)?);
    }
    let CellRecord {
        row, axes, record, ..
    } = CellRecord::load(path)?;
    let spec = record.card.spec;
    let spec = spec.context("its card has no specification: it was made by an older version")?;
    let cells = vec![Cell { row, axes, spec }];
    Ok(Grid { cells })
}

/// The cells of a grid and where they are written.
pub struct Runs {
    cells: Vec<Cell>,
    /// The name of every cell's result.
    names: Vec<String>,
    /// The digest of everything that goes into it.
    digests: Vec<String>,
    store: Store,
}

impl Runs {
    /// Names the result of every cell, in a store.
    pub fn new(grid: Grid, store: Store) -> anyhow::Result<Self> {
        let mut files = FileDigests::default();
        let (mut names, mut digests) = (Vec::new(), Vec::new());
        for cell in &grid.cells {
            names.push(cell.file_name(&mut files)?.to_string_lossy().into_owned());
            digests.push(files.of_spec(&cell.spec)?.to_hex().to_string());
        }
        Ok(Self {
            cells: grid.cells,
            names,
            digests,
            store,
        })
    }

    /// Returns where results are kept.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the names of all results.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns a cell, the name of its result and its digest.
    pub fn cell(&self, index: usize) -> (&Cell, &str, &str) {
        (&self.cells[index], &self.names[index], &self.digests[index])
    }

    /// Chooses the cells of one of several disjoint parts, counted from one.
    pub fn part(&self, (part, parts): (usize, usize)) -> Vec<usize> {
        let all = 0..self.cells.len();
        all.filter(|i| i % parts == part - 1).collect()
    }

    /// Chooses those of some cells that are not there yet. Half a cell is run again.
    fn left(&self, mine: &[usize]) -> anyhow::Result<Vec<usize>> {
        let there = results::there(&self.store, &self.names)?;
        let left = mine.iter().copied();
        Ok(left.filter(|index| !there.contains(index)).collect())
    }

    /// Has the cells run by workers: submits what is left, or says how far they have come.
    fn by_workers(
        &self,
        args: &Bench,
        address: &str,
        options: &Options,
        device: &Device,
    ) -> anyhow::Result<()> {
        if args.fleet.status {
            let status = status::now(self, address)?;
            return print(options.json, &status.to_json(), &status.to_text());
        }
        let all = self.part((1, 1));
        let left = self.left(&all)?;
        let costs = self.check(&left, device)?;
        let cost = |index: &usize| costs[self.cells[*index].row.as_str()];
        // Those that take longest come first, so that none of them is left for the end.
        let mut left = left;
        left.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
        let submitted = submit::submit(self, &left, address, &args.fleet.settings())?;
        let text = format!(
            "{} cells in {}: {} submitted now, {} before, {} done",
            all.len(),
            self.store,
            submitted.now,
            submitted.before,
            all.len() - left.len()
        );
        if args.fleet.wait {
            say(&text);
            let queue = status::queue_of(self, address)?;
            let status = status::wait(self, &queue)?;
            print(options.json, &status.to_json(), &status.to_text())?;
            if !status.failed.is_empty() {
                bail!(
                    "{} cells failed; the same command submits them again",
                    status.failed.len()
                );
            }
            return Ok(());
        }
        let result = json!({
            "store": self.store.to_string(),
            "cells": all.len(),
            "submitted": submitted.now,
            "submitted_before": submitted.before,
            "done": all.len() - left.len(),
        });
        print(options.json, &result, &text)
    }

    /// Runs what is left of some cells, after a check of all of them, and returns how many it ran.
    pub fn run(
        &self,
        what: &'static str,
        mine: &[usize],
        device: &Device,
    ) -> anyhow::Result<usize> {
        let left = self.left(mine)?;
        self.check(&left, device)?;
        interrupt::listen();
        let mut progress = Progress::new(what, mine.len() as u64, Unit::Cells)
            .at((mine.len() - left.len()) as u64);
        for &index in &left {
            let cell = &self.cells[index];
            progress.note(cell.title());
            let experiment = Experiment::open(&cell.spec, device)?;
            let Some((record, features)) = execute(&experiment)? else {
                bail!("stopped; the same command continues with the cells that are left");
            };
            progress.line(&format!(
                "{}: error {:.2} %",
                cell.title(),
                record.error_percent
            ));
            let whole = CellRecord::new(&cell.row, &cell.axes, record);
            results::write(
                &self.store,
                &self.names[index],
                &whole,
                features.as_ref(),
                Replace::Yes,
            )?;
            progress.advance(1);
        }
        Ok(left.len())
    }

    /// Says what would go wrong, row by row, before anything is run. Returns for each row how much one of its cells has to do, in no unit:
    /// the samples that are learned from, times the weights of the network.
    fn check(&self, left: &[usize], device: &Device) -> anyhow::Result<BTreeMap<&str, f64>> {
        let mut problems: Vec<String> = Vec::new();
        let mut costs = BTreeMap::new();
        for cell in left.iter().map(|&index| &self.cells[index]) {
            if costs.contains_key(cell.row.as_str()) {
                continue;
            }
            costs.insert(cell.row.as_str(), 0.0);
            match Experiment::open(&cell.spec, device) {
                Ok(experiment) if experiment.is_labelled() => {
                    let samples = experiment.plan.samples();
                    let learned = experiment
                        .protocol
                        .samples_learned(samples, cell.spec.batch_size);
                    let weights = experiment.model.network.num_params();
                    costs.insert(
                        cell.row.as_str(),
                        (samples + learned) as f64 * weights as f64,
                    );
                }
                Ok(_) => problems.push(format!(
                    "row `{}`: the images have no labels, so there is no error to compare",
                    cell.row
                )),
                Err(error) => problems.push(format!("row `{}`: {error:#}", cell.row)),
            }
        }
        if problems.is_empty() {
            return Ok(costs);
        }
        bail!("{}", problems.join("\n"))
    }

    /// Checks and lists some cells.
    fn describe(
        &self,
        args: &Bench,
        options: &Options,
        mine: &[usize],
        device: &Device,
    ) -> anyhow::Result<()> {
        let left = self.left(mine)?;
        self.check(&left, device)?;
        let rows = self.estimated_rows(&left, device)?;
        if args.plan {
            let plan = Plan::new(rows, &args.machines, args.price);
            return print(options.json, &plan, &plan.to_text());
        }
        let titles: Vec<String> = mine.iter().map(|&i| self.cells[i].title()).collect();
        let each = rows.iter().map(|row| row.cells as f64 * row.seconds_each);
        let seconds: f64 = each.sum();
        let megabytes = resident_megabytes("VmHWM:").filter(|_| !left.is_empty());
        let result = json!({
            "cells": titles,
            "left": left.len(),
            "estimated_seconds": seconds,
            "estimated_megabytes": megabytes,
        });
        let memory = megabytes.map_or(String::new(), |mb| format!(" and {mb:.0} MB of memory"));
        let outlook = if left.is_empty() {
            "none left".to_owned()
        } else {
            let time = HumanDuration(Duration::try_from_secs_f64(seconds).unwrap_or_default());
            format!(
                "{} left: about {time}{memory}, by two batches of each row",
                left.len()
            )
        };
        let text = format!("{}\n{} cells, {outlook}", titles.join("\n"), mine.len());
        print(options.json, &result, &text)
    }

    /// Estimates what some cells will take, if each takes as long as the first of its row.
    fn estimated_rows(&self, left: &[usize], device: &Device) -> anyhow::Result<Vec<PlannedRow>> {
        let mut rows: BTreeMap<&str, (&Cell, usize)> = BTreeMap::new();
        for cell in left.iter().map(|&index| &self.cells[index]) {
            rows.entry(&cell.row).or_insert((cell, 0)).1 += 1;
        }
        let rows = rows.into_iter().map(|(row, (cell, cells))| {
            Ok(PlannedRow {
                row: row.to_owned(),
                cells,
                seconds_each: estimate(&cell.spec, device)?,
            })
        });
        rows.collect()
    }
}

/// Estimates the seconds of an experiment by two batches without a queue: a queue and many passes are the same
/// work more often.
fn estimate(spec: &Spec, device: &Device) -> anyhow::Result<f64> {
    let whole = Experiment::open(spec, device)?;
    let sizes = whole.domains.iter().map(|data| data.info().len);
    let most = spec.subset.unwrap_or(usize::MAX);
    let count = sizes.fold(most.min(2 * spec.batch_size), usize::min);
    let short = Spec {
        protocol: spec.protocol.with_one_pass(),
        no_queue: true,
        epochs: None,
        oracle: false,
        features: None,
        order: Order::default(),
        subset: Some(count),
        choose: Choose::Random,
        ..spec.clone()
    };
    let short = Experiment::open(&short, device)?;
    let Some((record, _)) = execute(&short)? else {
        bail!("stopped");
    };
    let samples = whole.plan.samples();
    let learned = whole.protocol.samples_learned(samples, spec.batch_size);
    let predicted = match whole.protocol.passes {
        Passes::Many {
            epochs,
            selection: Selection::OracleBest,
        } => epochs * samples,
        _ => samples,
    };
    let learning = record.learning_seconds * learned as f64;
    let predicting = record.predicting_seconds * predicted as f64;
    Ok((learning + predicting) / short.plan.samples() as f64)
}

/// Runs an experiment; returns its record and the features that were asked for, or nothing if somebody asked to stop.
fn execute(experiment: &Experiment) -> anyhow::Result<Option<(RunRecord, Option<FeatureRecord>)>> {
    let mut session = experiment.session()?;
    let mut journal = CellJournal::new(Recorder::new(&experiment.classes()), None);
    show(&mut session, &experiment.stream(), &mut journal)?;
    if journal.stopped {
        return Ok(None);
    }
    let features = experiment.features(&session)?;
    let record = journal.recorder.finish(experiment.card.clone())?;
    for warning in record.warnings.iter().take(3) {
        say(&format!("warning: {warning}"));
    }
    Ok(Some((record, features)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every file under `configs/` is a grid; models and data are not needed for that.
    #[test]
    fn the_configurations_are_grids() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
        let mut found = 0;
        for folder in [root.clone(), root.join("small"), root.join("paper")] {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                if path
                    .extension()
                    .is_some_and(|extension| extension == "toml")
                {
                    let grid = read(&path);
                    let grid = grid.unwrap_or_else(|e| panic!("{}: {e:#}", path.display()));
                    for cell in grid.cells {
                        let method = cell.spec.method_spec();
                        method.unwrap_or_else(|e| panic!("{}: {e:#}", path.display()));
                    }
                    found += 1;
                }
            }
        }
        assert!(found > 20, "{found} configurations");
    }
}
