//! Tables and a page of figures, made of the records of runs.
//!
//! A [`Table`] has a row for each method and a column for each setting of the grid's axes; seeds are
//! averaged. Results that may not be compared are refused: the cells of a row must share a protocol
//! card except for what the axes change, and all rows must share the model and the samples of a
//! column. [`html::page`] shows the table and figures in one file.

mod comparable;
mod comparison;
mod describe;
mod gates;
pub mod html;
mod published;
mod render;
mod significance;
mod table;
mod tsne;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use comparison::Comparison;
pub use gates::{GateSetting, GateTable};
pub use render::{Format, csv_field};
pub use significance::{Significance, SignificanceTest, mcnemar, signed_rank};
pub use table::{Row, RowSource, Spread, Table};

use crate::method::Preset;
use crate::method::entry::adapts;
use crate::protocol::{FeatureRecord, RunRecord};
use crate::stream::Domain;
use crate::{Error, Result};

/// One cell of a grid: a run, its place in the table and the options that made it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellRecord {
    /// The name of the row that the cell belongs to.
    pub row: String,
    /// The values that differ from cell to cell of a row, for example `corruption` and `seed`.
    pub axes: BTreeMap<String, String>,
    /// The options of the command that made the cell, in records of older versions; newer ones have the
    /// specification in their card.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The result of the run with its protocol card.
    pub record: RunRecord,
    /// The features before and after adaptation, which have a file of their own beside the record's.
    #[serde(skip)]
    pub features: Option<FeatureRecord>,
}

impl CellRecord {
    /// Makes the cell of a run.
    pub fn new(row: &str, axes: &BTreeMap<String, String>, record: RunRecord) -> Self {
        Self {
            row: row.to_owned(),
            axes: axes.clone(),
            command: Vec::new(),
            record,
            features: None,
        }
    }

    /// Reads a cell, or the record of a single run as a cell, with its features if there are any.
    pub fn load(path: &Path) -> Result<Self> {
        load_cell(path)
    }
}

impl From<RunRecord> for CellRecord {
    /// Makes a cell of a record that was written on its own. The row is its method and preset, the column
    /// its corruption.
    fn from(record: RunRecord) -> Self {
        let card = &record.card;
        let row = match card.preset {
            Preset::Recommended => card.method.clone(),
            _ if !adapts(&card.method) => card.method.clone(),
            Preset::Released => format!("{} released", card.method),
            Preset::Earlier => format!("{} recommended-0.1", card.method),
        };
        let mut axes = BTreeMap::from([("seed".to_owned(), card.stream.seed.to_string())]);
        let domains = card.stream.domains.list();
        let mut insert = |axis: &str, value: String| axes.insert(axis.to_owned(), value);
        if let [
            Domain {
                corruption: Some(name),
                severity: Some(severity),
                ..
            },
        ] = &domains[..]
        {
            insert("corruption", name.clone());
            insert("severity", severity.to_string());
        } else {
            let names: Vec<String> = domains.iter().map(Domain::to_string).collect();
            insert("domains", names.join(", "));
        }
        Self {
            row,
            axes,
            command: Vec::new(),
            record,
            features: None,
        }
    }
}

/// Reads all cells and all single records in some folders, in the order of their file names.
pub fn load(folders: &[PathBuf]) -> Result<Vec<CellRecord>> {
    let mut cells = Vec::new();
    for folder in folders {
        let entries = std::fs::read_dir(folder).map_err(Error::io("read", folder))?;
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(Error::io("read", folder))?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                files.push(path);
            }
        }
        files.sort();
        for file in files {
            cells.push(load_cell(&file)?);
        }
    }
    if cells.is_empty() {
        let names: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
        return Err(Error::Invalid {
            what: "results",
            problem: format!(
                "no cells of a grid and no records of runs in `{}`",
                names.join("`, `")
            ),
        });
    }
    Ok(cells)
}

fn load_cell(path: &Path) -> Result<CellRecord> {
    let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
    // A cell has a row; a single record has none.
    let parse = || {
        let value: serde_json::Value = serde_json::from_str(&text)?;
        match value.get("row") {
            Some(_) => serde_json::from_str(&text),
            None => serde_json::from_str::<RunRecord>(&text).map(CellRecord::from),
        }
    };
    let mut cell = parse().map_err(|e| Error::Format {
        path: path.to_owned(),
        expected: "a cell of a grid or a record of a run",
        problem: e.to_string(),
        hint: Some(
            "run the same experiment again: cells that are half written or of another version have to be made again"
                .to_owned(),
        ),
    })?;
    let features = FeatureRecord::path_beside(path);
    if features.exists() {
        cell.features = Some(FeatureRecord::load(&features)?);
    }
    Ok(cell)
}
