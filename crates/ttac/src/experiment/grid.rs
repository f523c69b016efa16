//! A table of experiments.
//!
//! A grid is a TOML file: `[grid]` has keys of a [`Spec`] that all rows share, each `[[row]]` its own. A list in
//! place of a value is an axis, and every combination of the axes is a cell. `stream` names a whole stream, whose corruptions, order, batch
//! size and resets stand in for keys that are not there.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use toml::{Table, Value};
use ttac_corrupt::Corruption;
use ttac_corrupt::points::PointCorruption;

use super::{FileDigests, Spec, StreamPreset};
use crate::{Error, Result};

/// A table of experiments.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    /// The cells, in the order of the rows.
    pub cells: Vec<Cell>,
}

/// One experiment of a grid.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The name of its row.
    pub row: String,
    /// The values that differ from cell to cell of a row, by key.
    pub axes: BTreeMap<String, String>,
    /// The experiment.
    pub spec: Spec,
}

/// The file, as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    grid: Table,
    /// Without any, the grid itself is a row.
    #[serde(default)]
    row: Vec<Table>,
}

impl Grid {
    /// Reads a grid; the error lists everything that is wrong with it.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_with(text, &Table::new())
    }

    /// Reads a grid whose shared keys are overwritten by some others.
    pub fn parse_with(text: &str, overwrite: &Table) -> Result<Self> {
        let mut written: Written = toml::from_str(text).map_err(|e| invalid(e.to_string()))?;
        written.grid.extend(overwrite.clone());
        let mut problems = Vec::new();
        let mut cells = Vec::new();
        if written.row.is_empty() && !written.grid.is_empty() {
            written.row.push(Table::new());
        }
        for (number, row) in written.row.into_iter().enumerate() {
            let mut keys = written.grid.clone();
            keys.extend(row);
            match row_cells(number, keys) {
                Ok(found) => cells.extend(found),
                Err(found) => problems.extend(found),
            }
        }
        problems.dedup();
        if !problems.is_empty() {
            return Err(invalid(problems.join("\n")));
        }
        if cells.is_empty() {
            let problem = "there is neither a `[grid]` nor a `[[row]]`, so there is nothing to run";
            return Err(invalid(problem.to_owned()));
        }
        Ok(Self { cells })
    }
}

fn invalid(problem: String) -> Error {
    Error::Invalid {
        what: "grid",
        problem,
    }
}

/// Makes the cells of a row, or lists what is wrong with it.
fn row_cells(number: usize, mut keys: Table) -> Result<Vec<Cell>, Vec<String>> {
    let mut problems = Vec::new();
    let name = keys.remove("name");
    let name = name.or_else(|| keys.get("method").cloned());
    let name = name.as_ref().and_then(Value::as_str).map(str::to_owned);
    let name = name.unwrap_or_else(|| {
        let number = (number + 1).to_string();
        problems.push(format!(
            "row `{number}` has neither a `name` nor a single `method`"
        ));
        number
    });
    let known = Spec::keys();
    for key in keys
        .keys()
        .filter(|key| *key != STREAM && !known.contains(key))
    {
        let advice = Spec::advise(key);
        problems.push(format!("row `{name}`: unknown option `{key}`; {advice}"));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut cells = Vec::new();
    for (mut values, axes) in combinations(&keys) {
        let spec = expand_stream(&mut values).and_then(|()| {
            let spec = Value::Table(values).try_into::<Spec>();
            spec.map_err(|error| error.message().to_owned())
        });
        match spec {
            Ok(spec) => cells.push(Cell {
                row: name.clone(),
                axes,
                spec,
            }),
            Err(problem) => problems.push(format!("row `{name}`: {problem}")),
        }
    }
    for missing in ["model", "data"] {
        if !keys.contains_key(missing) {
            problems.push(format!("row `{name}` has no `{missing}`"));
        }
    }
    if problems.is_empty() {
        Ok(cells)
    } else {
        problems.dedup();
        Err(problems)
    }
}

/// The key that names a whole stream.
const STREAM: &str = "stream";

/// Puts what a stream's name stands for in its place. Keys that are there stay.
fn expand_stream(values: &mut Table) -> Result<(), String> {
    let Some(name) = values.remove(STREAM) else {
        return Ok(());
    };
    let name = name.as_str().ok_or("`stream` has to be a name")?;
    let stream = StreamPreset::by_name(name).map_err(|error| error.to_string())?;
    let reset = Value::try_from(stream.reset).map_err(|error| error.to_string())?;
    if !values.contains_key("corruption") {
        let severity = i64::from(stream.severity());
        values.entry("severity").or_insert(severity.into());
    }
    for (key, value) in [
        ("corruption", stream.corruption.into()),
        ("order", stream.order.into()),
        ("batch-size", (stream.batch_size as i64).into()),
        ("reset", reset),
    ] {
        values.entry(key).or_insert(value);
    }
    Ok(())
}

/// Combines the values of keys that are lists in all ways; the second part has the value of each list.
fn combinations(keys: &Table) -> Vec<(Table, BTreeMap<String, String>)> {
    let mut all = vec![(Table::new(), BTreeMap::new())];
    for (key, value) in keys {
        let (values, is_axis) = match value {
            Value::Array(values) => (values.clone(), true),
            Value::String(name) if key == "corruption" && is_group(name) => (group(name), true),
            value => (vec![value.clone()], false),
        };
        let extend = |(table, axes): &(Table, BTreeMap<String, String>)| {
            let longer = values.iter().map(|value| {
                let (mut table, mut axes) = (table.clone(), axes.clone());
                table.insert(key.clone(), value.clone());
                if is_axis {
                    axes.insert(key.clone(), plain(value));
                }
                (table, axes)
            });
            longer.collect::<Vec<_>>()
        };
        all = all.iter().flat_map(extend).collect();
    }
    all
}

/// Writes a value as it stands in titles and tables.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Names that stand for several corruptions.
const GROUPS: [&str; 4] = ["all", "held-out", "clouds", "clouds-without-meshes"];

fn is_group(name: &str) -> bool {
    GROUPS.contains(&name)
}

/// Returns the corruptions that results are reported on, or those that constants are chosen on; of clouds all
/// fifteen, or those that need points alone.
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

impl Cell {
    /// Names the cell: its row and the values of its axes.
    pub fn title(&self) -> String {
        let words: Vec<&str> = std::iter::once(&self.row)
            .chain(self.axes.values())
            .map(String::as_str)
            .collect();
        words.join(" ")
    }

    /// Names the cell's file: its title and a digest of all that goes into its result, so that a changed
    /// configuration, model or program never meets an old cell.
    pub fn file_name(&self, digests: &mut FileDigests) -> Result<PathBuf> {
        let digest = digests.of_spec(&self.spec)?.to_hex();
        let fits = |c: char| c.is_ascii_alphanumeric() || "+-_.".contains(c);
        let title = self.title();
        let readable = title.chars().map(|c| if fits(c) { c } else { '-' });
        let readable: String = readable.collect();
        Ok(PathBuf::from(format!("{readable}.{}.json", &digest[..12])))
    }
}
