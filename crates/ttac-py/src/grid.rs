//! Grids of experiments, as Python sees them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;
use ttac::burn::tensor::Device;
use ttac::experiment::{Cell, Experiment, FileDigests, Grid};
use ttac::protocol::{Recorder, RunRecord, Sink, StepRecord, run};
use ttac::report::CellRecord;
use ttac::write_atomically;

use crate::errors::{check_signals, compute, invalid, raise};
use crate::plain::to_json;

/// Records a run, and ends it when a signal arrives.
struct Listening {
    recorder: Recorder,
    raised: Option<PyErr>,
}

impl Sink for Listening {
    fn step(&mut self, record: &StepRecord) -> ttac::Result<ControlFlow<()>> {
        if let Err(exception) = check_signals() {
            self.raised = Some(exception);
            return Ok(ControlFlow::Break(()));
        }
        self.recorder.step(record)
    }
}

/// Runs every cell of a grid, and returns a dictionary for each. `grid` is TOML, or a dictionary with `grid` and `row`.
///
/// With `out`, cells are kept in this folder as `ttac bench` keeps them, and those that are there already are not run again.
#[pyfunction]
#[pyo3(signature = (grid, out=None))]
pub fn run_grid<'py>(
    grid: &Bound<'py, PyAny>,
    out: Option<PathBuf>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let py = grid.py();
    let text = match grid.extract::<String>() {
        Ok(text) => text,
        Err(_) => toml_of(to_json(grid)?)?,
    };
    let done = compute(py, || {
        let grid = Grid::parse(&text).map_err(raise)?;
        let mut digests = FileDigests::default();
        let mut done = Vec::new();
        for cell in grid.cells {
            let place = match &out {
                Some(folder) => Some(folder.join(cell.file_name(&mut digests).map_err(raise)?)),
                None => None,
            };
            let record = match place.as_deref().map(CellRecord::load) {
                Some(Ok(kept)) => kept.record,
                _ => execute(&cell, place.as_deref())?,
            };
            done.push((cell, record));
        }
        Ok(done)
    })?;
    done.iter()
        .map(|(cell, record)| row(py, cell, record))
        .collect()
}

/// Writes a dictionary as TOML, which has no word for nothing.
fn toml_of(grid: Value) -> PyResult<String> {
    let table = toml::Table::try_from(without_nulls(grid));
    let table = table.map_err(|error| invalid(format!("`grid`: {error}")))?;
    toml::to_string(&table).map_err(|error| invalid(format!("`grid`: {error}")))
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect(),
        Value::Array(values) => values.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

/// Runs a cell, and keeps its record if there is a place for it.
fn execute(cell: &Cell, place: Option<&Path>) -> PyResult<RunRecord> {
    let named = |error: ttac::Error| {
        let error = raise(error);
        Python::attach(|py| invalid(format!("row `{}`: {}", cell.row, error.value(py))))
    };
    let experiment = Experiment::open(&cell.spec, &Device::flex()).map_err(named)?;
    if !experiment.is_labelled() {
        return Err(invalid(format!(
            "row `{}`: the images have no labels, so there is no error to compare",
            cell.row
        )));
    }
    let mut session = experiment.session().map_err(named)?;
    let mut sink = Listening {
        recorder: Recorder::new(&experiment.classes()),
        raised: None,
    };
    let shown = run(&mut session, &experiment.stream(), &mut sink);
    if let Some(exception) = sink.raised {
        return Err(exception);
    }
    shown.map_err(named)?;
    let record = sink
        .recorder
        .finish(experiment.card.clone())
        .map_err(named)?;
    if let Some(place) = place {
        let whole = CellRecord::new(&cell.row, &cell.axes, record.clone());
        let text = serde_json::to_string(&whole).map_err(|error| invalid(error.to_string()))?;
        write_atomically(place, format!("{text}\n").as_bytes()).map_err(raise)?;
    }
    Ok(record)
}

/// Makes the row of a table: what the cell is, then what came out.
fn row<'py>(py: Python<'py>, cell: &Cell, record: &RunRecord) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("row", &cell.row)?;
    row.set_item("method", &cell.spec.method)?;
    row.set_item("data", &cell.spec.data)?;
    for (axis, value) in &cell.axes {
        row.set_item(axis, value)?;
    }
    row.set_item("error_percent", record.error_percent)?;
    row.set_item("wrong", record.wrong)?;
    row.set_item("samples", record.samples)?;
    row.set_item("updates", record.updates)?;
    row.set_item("learning_seconds", record.learning_seconds)?;
    row.set_item("predicting_seconds", record.predicting_seconds)?;
    row.set_item("warnings", &record.warnings)?;
    Ok(row)
}
