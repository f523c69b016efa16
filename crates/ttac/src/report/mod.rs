//! From records to tables.
//!
//! A [`Table`] has a row for each method and a column for each setting of the grid's axes; seeds are
//! averaged. What may not be compared is not put side by side: the cells of a row have to share a
//! protocol card but for what the axes change, and all rows the model and the samples of a column.

mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use table::{Format, Table};

use crate::protocol::{FeatureRecord, RunRecord};
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

/// All cells in some folders, in the order of their file names.
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
                "no cells in `{}`; `ttac bench` makes them",
                names.join("`, `")
            ),
        });
    }
    Ok(cells)
}

fn load_cell(path: &Path) -> Result<CellRecord> {
    let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
    serde_json::from_str(&text).map_err(|e| Error::Format {
        path: path.to_owned(),
        expected: "a cell of `ttac bench`",
        problem: e.to_string(),
        hint: Some("half-written cells are made again by the same `ttac bench`; cells of another version have to be".to_owned()),
    })
}
