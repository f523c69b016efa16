//! Which results may stand in one table.

use std::collections::BTreeMap;

use serde_json::Value;

use super::CellRecord;
use super::table::column_of;
use crate::{Error, Result};

/// Refuses cells that may not be compared; the error lists every reason.
pub(super) fn check(cells: &[CellRecord]) -> Result<()> {
    let mut problems: Vec<String> = Vec::new();
    let mut by_row: BTreeMap<&str, Value> = BTreeMap::new();
    let mut by_column: BTreeMap<(String, String), (usize, &str)> = BTreeMap::new();
    for cell in cells {
        let fixed = fixed_part(cell);
        let known = by_row.entry(&cell.row).or_insert_with(|| fixed.clone());
        for (field, value) in fixed.as_object().into_iter().flatten() {
            if known[field] != *value {
                let row = &cell.row;
                problems.push(format!(
                    "row `{row}`: its cells differ in `{field}`: {} and {value}",
                    known[field]
                ));
            }
        }
        let seed = cell.axes.get("seed").cloned().unwrap_or_default();
        let samples = (cell.record.samples, cell.record.card.model.as_str());
        let place = (column_of(cell), seed);
        let known = *by_column.entry(place.clone()).or_insert(samples);
        if known != samples {
            problems.push(format!(
                "column `{}`: row `{}` has {} samples and model {}, another row {} and {}",
                place.0, cell.row, samples.0, samples.1, known.0, known.1
            ));
        }
    }
    problems.sort();
    problems.dedup();
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "comparison",
        problem: problems.join("\n"),
    })
}

/// Takes from a card what the axes of the grid do not change.
fn fixed_part(cell: &CellRecord) -> Value {
    let mut card = serde_json::to_value(&cell.record.card).unwrap_or_default();
    if let Some(fields) = card.as_object_mut() {
        // The specification says where files lie; what it means is in the other fields.
        for field in ["stream", "corruptions", "plan", "skipped", "spec"] {
            fields.remove(field);
        }
        // Seeds are averaged; other axes are columns of their own.
        if let Some(protocol) = fields.get_mut("protocol").and_then(Value::as_object_mut) {
            protocol.remove("seed");
        }
        let axes: Vec<&String> = cell.axes.keys().collect();
        let by_grid = [
            "corruption",
            "severity",
            "seed",
            "corruption-seed",
            "subset",
            "domains",
        ];
        if axes.iter().any(|axis| !by_grid.contains(&axis.as_str())) {
            // An axis is a constant or a part of the protocol: the columns say which.
            fields.remove("constants");
            fields.remove("protocol");
        }
    }
    card
}
