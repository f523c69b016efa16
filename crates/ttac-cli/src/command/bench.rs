//! `ttac bench`: a grid of adaptations.
//!
//! A cell of the grid is a command line of `ttac adapt`. Its file is named by the row, the values of
//! the axes and a digest of everything that went in, so a changed configuration, model or program
//! never meets an old cell.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args as _, Parser};
use indicatif::HumanDuration;
use serde::Deserialize;
use serde_json::json;
use toml::Value;
use ttac::burn::tensor::Device;
use ttac::protocol::{
    FeatureRecord, Passes, Recorder, RunRecord, Runner, Selection, Sink, StepRecord,
};
use ttac::report::CellRecord;
use ttac::stream::{Choose, Order};
use ttac::{Error, nearest, write_atomically};
use ttac_corrupt::Corruption;
use ttac_corrupt::points::PointCorruption;

use super::experiment::{Experiment, constants};
use super::{print, program, resident_megabytes};
use crate::args::{Adapt, Bench, Options};
use crate::progress::{Progress, Unit, say};
use crate::{device, interrupt};

/// Options of `adapt` that belong to the grid and not to a cell.
const NOT_IN_CELLS: [&str; 8] = [
    "out",
    "log",
    "predictions",
    "save-model",
    "checkpoint",
    "checkpoint-every",
    "resume",
    "help",
];

/// The file, as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Options of all rows.
    #[serde(default)]
    pub grid: toml::Table,
    /// Without any, the grid itself is a row.
    #[serde(default)]
    row: Vec<toml::Table>,
}

/// The cells of a configuration and where they are written.
pub struct Grid {
    cells: Vec<Cell>,
    /// The file of every cell.
    places: Vec<PathBuf>,
}

/// One cell of the grid.
#[derive(Debug)]
struct Cell {
    row: String,
    /// The values that differ from cell to cell of a row.
    axes: BTreeMap<String, String>,
    arguments: Vec<String>,
    adapt: Adapt,
}

pub fn run(args: &Bench, options: &Options) -> anyhow::Result<()> {
    let device = device::parse(&options.device)?;
    let text = std::fs::read_to_string(&args.config).map_err(Error::io("read", &args.config))?;
    let stem = args.config.file_stem().unwrap_or_default();
    let out = args.out.clone();
    let out = out.unwrap_or_else(|| Path::new("results").join(stem));
    let grid = toml::from_str(&text)
        .map_err(anyhow::Error::from)
        .and_then(|config| Grid::new(&config, &out))
        .with_context(|| format!("`{}`", args.config.display()))?;
    let mine = grid.part(args.shard.unwrap_or((1, 1)));
    if args.dry_run {
        return grid.describe(options, &mine, &device);
    }
    let run_now = grid.run("bench", &mine, &device)?;
    let result = json!({
        "folder": out,
        "cells": mine.len(),
        "run_now": run_now,
    });
    let text = format!(
        "{} cells in {}, {run_now} of them run now",
        mine.len(),
        out.display(),
    );
    print(options.json, &result, &text)
}

impl Grid {
    /// All cells of a configuration, in the order of its rows, to be written into a folder.
    pub fn new(config: &Config, folder: &Path) -> anyhow::Result<Self> {
        let cells = cells(config)?;
        let mut digests = Digests::default();
        let places = cells
            .iter()
            .map(|cell| Ok(folder.join(cell.file_name(&mut digests)?)))
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { cells, places })
    }

    /// The cells of one of several disjoint parts, counted from one.
    pub fn part(&self, (part, parts): (usize, usize)) -> Vec<usize> {
        let all = 0..self.cells.len();
        all.filter(|i| i % parts == part - 1).collect()
    }

    /// Those of some cells that are not there yet.
    fn left(&self, mine: &[usize]) -> Vec<usize> {
        let left = mine.iter().copied();
        left.filter(|&i| !is_whole(&self.places[i])).collect()
    }

    /// Runs what is left of some cells, after a check of all of them, and returns how many it ran.
    pub fn run(
        &self,
        what: &'static str,
        mine: &[usize],
        device: &Device,
    ) -> anyhow::Result<usize> {
        let left = self.left(mine);
        self.check(&left, device)?;
        interrupt::listen();
        let mut progress = Progress::new(what, mine.len() as u64, Unit::Cells)
            .at((mine.len() - left.len()) as u64);
        for &index in &left {
            let cell = &self.cells[index];
            progress.note(cell.title());
            let experiment = Experiment::new(&cell.adapt, device)?;
            let Some((record, features)) = execute(&experiment, device)? else {
                bail!("stopped; the same command continues with the cells that are left");
            };
            progress.line(&format!(
                "{}: error {:.2} %",
                cell.title(),
                record.error_percent
            ));
            let whole = CellRecord {
                row: cell.row.clone(),
                axes: cell.axes.clone(),
                command: cell.arguments.clone(),
                record,
                features: None,
            };
            // First, so that a cell that is there is whole.
            if let Some(features) = features {
                features.save(&FeatureRecord::path_beside(&self.places[index]))?;
            }
            let json = serde_json::to_string(&whole)?;
            write_atomically(&self.places[index], format!("{json}\n").as_bytes())?;
            progress.advance(1);
        }
        Ok(left.len())
    }

    /// What would go wrong, row by row, before anything is run.
    fn check(&self, left: &[usize], device: &Device) -> anyhow::Result<()> {
        let mut problems: Vec<String> = Vec::new();
        let mut checked: Vec<&str> = Vec::new();
        for cell in left.iter().map(|&index| &self.cells[index]) {
            if checked.contains(&cell.row.as_str()) {
                continue;
            }
            checked.push(&cell.row);
            match Experiment::new(&cell.adapt, device) {
                Ok(experiment) if experiment.is_labelled() => {}
                Ok(_) => problems.push(format!(
                    "row `{}`: the images have no labels, so there is no error to compare",
                    cell.row
                )),
                Err(error) => problems.push(format!("row `{}`: {error:#}", cell.row)),
            }
        }
        if problems.is_empty() {
            return Ok(());
        }
        bail!("{}", problems.join("\n"))
    }

    /// Checks and lists some cells.
    fn describe(&self, options: &Options, mine: &[usize], device: &Device) -> anyhow::Result<()> {
        let left = self.left(mine);
        self.check(&left, device)?;
        let titles: Vec<String> = mine.iter().map(|&i| self.cells[i].title()).collect();
        let seconds = self.estimated_seconds(&left, device)?;
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

    /// What some cells will take, if each takes as long as the first of its row.
    fn estimated_seconds(&self, left: &[usize], device: &Device) -> anyhow::Result<f64> {
        let mut rows: BTreeMap<&str, (&Cell, usize)> = BTreeMap::new();
        for cell in left.iter().map(|&index| &self.cells[index]) {
            rows.entry(&cell.row).or_insert((cell, 0)).1 += 1;
        }
        let mut total = 0.0;
        for (cell, count) in rows.into_values() {
            total += count as f64 * cell.estimated_seconds(device)?;
        }
        Ok(total)
    }
}

/// All cells of a configuration, in the order of its rows.
fn cells(config: &Config) -> anyhow::Result<Vec<Cell>> {
    let mut problems = Vec::new();
    let mut cells = Vec::new();
    let grid_alone = [toml::Table::new()];
    let rows = match config.row.as_slice() {
        [] if !config.grid.is_empty() => grid_alone.as_slice(),
        rows => rows,
    };
    for (number, row) in rows.iter().enumerate() {
        let mut options = config.grid.clone();
        options.extend(row.clone());
        let name = options.remove("name");
        let Some(Value::String(name)) = name.or_else(|| options.get("method").cloned()) else {
            let number = (number + 1).to_string();
            problems.push(format!(
                "row `{number}` has neither a `name` nor a single `method`"
            ));
            problems.extend(unknown_keys(&number, &options));
            continue;
        };
        problems.extend(unknown_keys(&name, &options));
        for assignment in assignments(&options) {
            match Cell::new(&name, assignment) {
                Ok(cell) => cells.push(cell),
                Err(problem) => problems.push(format!("row `{name}`: {problem:#}")),
            }
        }
    }
    problems.dedup();
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    if cells.is_empty() {
        bail!("there is neither a `[grid]` nor a `[[row]]`, so there is nothing to run");
    }
    Ok(cells)
}

/// Keys that are no options of a cell.
fn unknown_keys(row: &str, options: &toml::Table) -> Vec<String> {
    let command = Adapt::augment_args(clap::Command::new("adapt"));
    let known: Vec<String> = command
        .get_arguments()
        .filter_map(|argument| argument.get_long().map(str::to_owned))
        .filter(|name| !NOT_IN_CELLS.contains(&name.as_str()))
        .collect();
    let unknown = options.keys().filter(|key| !known.contains(key));
    unknown
        .map(|key| {
            let advice = match nearest(key, known.iter().map(String::as_str)) {
                Some(name) => format!("did you mean `{name}`?"),
                None => "see `ttac adapt --help`".to_owned(),
            };
            format!("row `{row}`: unknown option `{key}`; {advice}")
        })
        .collect()
}

/// All combinations of the values of options that are lists.
fn assignments(options: &toml::Table) -> Vec<Vec<(String, Value, bool)>> {
    let mut all: Vec<Vec<(String, Value, bool)>> = vec![Vec::new()];
    for (key, value) in options {
        let (values, is_axis) = match value {
            Value::Array(values) if key != "set" => (values.clone(), true),
            Value::String(name) if key == "corruption" && is_group(name) => (group(name), true),
            value => (vec![value.clone()], false),
        };
        let extend = |start: &Vec<(String, Value, bool)>| {
            let longer = values.iter().map(|value| {
                let mut longer = start.clone();
                longer.push((key.clone(), value.clone(), is_axis));
                longer
            });
            longer.collect::<Vec<_>>()
        };
        all = all.iter().flat_map(extend).collect();
    }
    all
}

/// Names that stand for several corruptions.
const GROUPS: [&str; 4] = ["all", "held-out", "clouds", "clouds-without-meshes"];

fn is_group(name: &str) -> bool {
    GROUPS.contains(&name)
}

/// The corruptions that results are reported on, or those that constants are chosen on; of clouds
/// all fifteen, or those that need points alone.
fn group(name: &str) -> Vec<Value> {
    let of_images = |members: &[Corruption]| members.iter().map(|one| one.name()).collect();
    let of_clouds = PointCorruption::ALL.into_iter();
    let names: Vec<&str> = match name {
        "clouds" => of_clouds.map(PointCorruption::name).collect(),
        "clouds-without-meshes" => of_clouds
            .filter(|one| !one.needs_meshes())
            .map(PointCorruption::name)
            .collect(),
        "held-out" => of_images(&Corruption::HELD_OUT),
        _ => of_images(&Corruption::STANDARD),
    };
    names.into_iter().map(Value::from).collect()
}

/// So that a cell is parsed like a command line.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct AdaptLine {
    #[command(flatten)]
    adapt: Adapt,
}

impl Cell {
    fn new(row: &str, assignment: Vec<(String, Value, bool)>) -> anyhow::Result<Self> {
        let mut axes = BTreeMap::new();
        let mut arguments = Vec::new();
        for (key, value, is_axis) in assignment {
            let flag = format!("--{key}");
            match value {
                Value::Boolean(true) => arguments.push(flag),
                Value::Boolean(false) => {}
                Value::Table(fields) if key == "set" => {
                    for (field, value) in fields {
                        arguments.extend([flag.clone(), format!("{field}={}", plain(&value)?)]);
                    }
                }
                value => {
                    let text = plain(&value)?;
                    if is_axis {
                        axes.insert(key, text.clone());
                    }
                    arguments.extend([flag, text]);
                }
            }
        }
        let line = AdaptLine::try_parse_from(&arguments);
        let adapt = line
            .map_err(|e| anyhow::anyhow!("{}", e.to_string().trim()))?
            .adapt;
        Ok(Self {
            row: row.to_owned(),
            axes,
            arguments,
            adapt,
        })
    }

    /// What it will take, by two batches without queue: a queue and many passes are the same work more
    /// often.
    fn estimated_seconds(&self, device: &Device) -> anyhow::Result<f64> {
        let whole = Experiment::new(&self.adapt, device)?;
        let batch_size = self.adapt.batch_size.get();
        let one_pass = if self.adapt.protocol.starts_with('y') {
            "y-o"
        } else {
            "n-o"
        };
        let sizes = whole.domains.iter().map(|data| data.len());
        let most = self.adapt.subset.map_or(usize::MAX, NonZeroUsize::get);
        let count = sizes.fold(most.min(2 * batch_size), usize::min);
        let short = Adapt {
            protocol: one_pass.to_owned(),
            no_queue: true,
            epochs: None,
            oracle: false,
            features: None,
            order: Order::default(),
            subset: NonZeroUsize::new(count),
            choose: Choose::Random,
            ..self.adapt.clone()
        };
        let short = Experiment::new(&short, device)?;
        let Some((record, _)) = execute(&short, device)? else {
            bail!("stopped");
        };
        let samples = whole.plan.samples();
        let learned = whole.protocol.samples_learned(samples, batch_size);
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

    fn title(&self) -> String {
        let words: Vec<&str> = std::iter::once(&self.row)
            .chain(self.axes.values())
            .map(String::as_str)
            .collect();
        words.join(" ")
    }

    /// The row, the values of the axes, and a digest of all that goes in.
    fn file_name(&self, digests: &mut Digests) -> anyhow::Result<PathBuf> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(program().as_bytes());
        for argument in &self.arguments {
            hasher.update(argument.as_bytes());
            hasher.update(b"\0");
        }
        // A preset may change from program to program. A method that is unknown is named by the check.
        if let Ok(constants) = constants(&self.adapt) {
            hasher.update(&serde_json::to_vec(&constants)?);
        }
        let files = [Some(&self.adapt.model), self.adapt.anchors.as_ref()];
        for file in files.into_iter().flatten() {
            hasher.update(digests.of(file)?.as_bytes());
        }
        let digest = hasher.finalize().to_hex();
        let readable = |text: &str| -> String {
            let fit = |c: char| c.is_ascii_alphanumeric() || "+-_.".contains(c);
            text.chars().map(|c| if fit(c) { c } else { '-' }).collect()
        };
        Ok(PathBuf::from(format!(
            "{}.{}.json",
            readable(&self.title()),
            &digest[..12]
        )))
    }
}

/// A scalar as it is typed on a command line.
fn plain(value: &Value) -> anyhow::Result<String> {
    Ok(match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(switch) => switch.to_string(),
        other => bail!("`{other}` is neither a number nor a word"),
    })
}

/// Digests of files, each read once.
#[derive(Default)]
struct Digests(BTreeMap<PathBuf, blake3::Hash>);

impl Digests {
    fn of(&mut self, path: &Path) -> anyhow::Result<blake3::Hash> {
        if let Some(digest) = self.0.get(path) {
            return Ok(*digest);
        }
        let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
        let digest = blake3::hash(&bytes);
        self.0.insert(path.to_owned(), digest);
        Ok(digest)
    }
}

/// Whether a cell is there and can be read; half a cell is run again.
fn is_whole(path: &Path) -> bool {
    let text = std::fs::read_to_string(path);
    text.is_ok_and(|text| serde_json::from_str::<CellRecord>(&text).is_ok())
}

/// The record of a cell and the features that were asked for; none if somebody asked to stop.
fn execute(
    experiment: &Experiment,
    device: &Device,
) -> anyhow::Result<Option<(RunRecord, Option<FeatureRecord>)>> {
    let stream = experiment.stream(device);
    let mut method = experiment.method()?;
    let mut follower = Follower {
        recorder: Recorder::new(&experiment.classes()),
        stopped: false,
    };
    Runner::new(&experiment.protocol, &stream)?.run(method.as_mut(), &mut follower)?;
    if follower.stopped {
        return Ok(None);
    }
    let features = experiment.features(method.as_ref(), device)?;
    let record = follower.recorder.finish(experiment.card.clone());
    for warning in record.warnings.iter().take(3) {
        say(&format!("warning: {warning}"));
    }
    Ok(Some((record, features)))
}

struct Follower {
    recorder: Recorder,
    stopped: bool,
}

impl Sink for Follower {
    fn step(&mut self, record: &StepRecord) -> ttac::Result<ControlFlow<()>> {
        self.stopped = interrupt::asked();
        if self.stopped {
            return Ok(ControlFlow::Break(()));
        }
        self.recorder.step(record)
    }
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
                    let text = std::fs::read_to_string(&path).unwrap();
                    let config: Config = toml::from_str(&text).unwrap();
                    if let Err(problem) = cells(&config) {
                        panic!("{}: {problem:#}", path.display());
                    }
                    found += 1;
                }
            }
        }
        assert!(found > 20, "{found} configurations");
    }
}
