//! From records to tables and to a page.
//!
//! A [`Table`] has a row for each method and a column for each setting of the grid's axes; seeds are
//! averaged. What may not be compared is not put side by side: the cells of a row have to share a
//! protocol card but for what the axes change, and all rows the model and the samples of a column.
//! [`html::page`] shows the same and figures in one file.

pub mod html;
mod published;
mod significance;
mod table;
mod tsne;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use significance::{Comparison, Significance, Test, mcnemar, signed_rank};
pub use table::{Format, Row, Source, Spread, Table};

use crate::method::Preset;
use crate::protocol::{FeatureRecord, RunRecord};
use crate::stream::Domain;
use crate::{Error, Result};

/// One cell of a grid, as `ttac bench` writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellRecord {
    /// Name of the row.
    pub row: String,
    /// The values that differ from cell to cell of a row, e.g. `corruption` and `seed`.
    pub axes: BTreeMap<String, String>,
    /// The options of `ttac adapt`.
    pub command: Vec<String>,
    /// The result with its card.
    pub record: RunRecord,
    /// Features before and after, which have a file of their own beside the record's.
    #[serde(skip)]
    pub features: Option<FeatureRecord>,
}

impl From<RunRecord> for CellRecord {
    /// A record that `ttac adapt` wrote on its own: a row of its method and preset, in the column of its
    /// corruption.
    fn from(record: RunRecord) -> Self {
        let card = &record.card;
        let row = match card.preset {
            Preset::Recommended => card.method.clone(),
            Preset::Released => format!("{} released", card.method),
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

/// All cells in some folders, in the order of their file names: those of `ttac bench`, and records of
/// `ttac adapt --out`.
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
                "no cells in `{}`; `ttac bench` makes them, and `ttac adapt --out` single ones",
                names.join("`, `")
            ),
        });
    }
    Ok(cells)
}

fn load_cell(path: &Path) -> Result<CellRecord> {
    let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
    // A cell has a row; a record of `ttac adapt` has not.
    let parse = || {
        let value: serde_json::Value = serde_json::from_str(&text)?;
        match value.get("row") {
            Some(_) => serde_json::from_str(&text),
            None => serde_json::from_str::<RunRecord>(&text).map(CellRecord::from),
        }
    };
    let mut cell = parse().map_err(|e| Error::Format {
        path: path.to_owned(),
        expected: "a cell of `ttac bench` or a record of `ttac adapt`",
        problem: e.to_string(),
        hint: Some("half-written cells are made again by the same `ttac bench`; cells of another version have to be".to_owned()),
    })?;
    let features = FeatureRecord::path_beside(path);
    if features.exists() {
        cell.features = Some(FeatureRecord::load(&features)?);
    }
    Ok(cell)
}
