//! Rows, columns, means.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use super::CellRecord;
use crate::protocol::{Passes, Prediction, RunRecord};
use crate::{Error, Result};

/// How a table is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// With protocol cards as footnotes.
    #[default]
    Markdown,
    /// Values alone.
    Csv,
    /// A `tabular`.
    Latex,
}

/// Errors in percent by method and setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// Settings, e.g. corruptions.
    pub columns: Vec<String>,
    /// Methods.
    pub rows: Vec<Row>,
}

/// One method.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Mean and standard deviation over seeds of each column, and the number of seeds.
    pub cells: Vec<Option<Spread>>,
    /// Mean over the columns, if all are there.
    pub mean: Option<f64>,
    /// Its protocol in words.
    pub protocol: String,
}

/// Values over seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation (with one less than their number); zero for one.
    pub deviation: f64,
    /// How many.
    pub count: usize,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = match count {
            1 => 0.0,
            _ => (squares / (count - 1) as f64).sqrt(),
        };
        Self {
            mean,
            deviation,
            count,
        }
    }
}

impl Table {
    /// A table of cells; an error says which of them may not be compared, and why.
    pub fn new(cells: &[CellRecord]) -> Result<Self> {
        let mut rows: Vec<&str> = Vec::new();
        let mut columns: Vec<String> = Vec::new();
        let mut values: BTreeMap<(&str, String), Vec<f64>> = BTreeMap::new();
        for cell in cells {
            let column = column_of(cell);
            if !rows.contains(&cell.row.as_str()) {
                rows.push(&cell.row);
            }
            if !columns.contains(&column) {
                columns.push(column.clone());
            }
            let place = values.entry((&cell.row, column)).or_default();
            place.push(cell.record.error_percent);
        }
        check(cells)?;
        let rows = rows.into_iter().map(|name| {
            let found = |column: &String| values.get(&(name, column.clone()));
            let spreads: Vec<Option<Spread>> = columns
                .iter()
                .map(|column| found(column).map(|values| Spread::of(values)))
                .collect();
            let whole: Option<Vec<f64>> = spreads.iter().map(|s| s.map(|s| s.mean)).collect();
            let first = cells.iter().find(|cell| cell.row == name);
            Row {
                name: name.to_owned(),
                mean: whole.map(|means| means.iter().sum::<f64>() / means.len() as f64),
                cells: spreads,
                protocol: first.map_or(String::new(), |cell| describe(&cell.record)),
            }
        });
        Ok(Self {
            rows: rows.collect(),
            columns,
        })
    }

    /// The table as text.
    pub fn render(&self, format: Format) -> String {
        let (start, between, end) = match format {
            Format::Markdown => ("| ", " | ", " |\n"),
            Format::Csv => ("", ",", "\n"),
            Format::Latex => ("", " & ", " \\\\\n"),
        };
        let mut text = String::new();
        let mut line = |cells: Vec<String>| {
            let _ = write!(text, "{start}{}{end}", cells.join(between));
        };
        let head = ["method".to_owned()].into_iter();
        let head = head.chain(self.columns.clone()).chain(["mean".to_owned()]);
        line(head.collect());
        if format == Format::Markdown {
            let rules = vec!["---"; self.columns.len() + 2];
            line(rules.into_iter().map(str::to_owned).collect());
        }
        for (number, row) in self.rows.iter().enumerate() {
            let name = match format {
                Format::Markdown => format!("{} [{}]", row.name, number + 1),
                Format::Csv | Format::Latex => row.name.clone(),
            };
            let cells = row.cells.iter().map(|cell| match cell {
                None => String::new(),
                Some(spread) if spread.count == 1 => format!("{:.2}", spread.mean),
                Some(spread) => format!("{:.2} ± {:.2}", spread.mean, spread.deviation),
            });
            let mean = row.mean.map_or(String::new(), |mean| format!("{mean:.2}"));
            line([name].into_iter().chain(cells).chain([mean]).collect());
        }
        match format {
            Format::Csv => {}
            Format::Latex => {
                let columns = "r".repeat(self.columns.len() + 1);
                text = format!("\\begin{{tabular}}{{l{columns}}}\n{text}\\end{{tabular}}\n");
                text = text.replace('_', "\\_").replace('±', "$\\pm$");
            }
            Format::Markdown => {
                text += "\nError in percent.\n\n";
                for (number, row) in self.rows.iter().enumerate() {
                    let _ = writeln!(text, "{}. {}", number + 1, row.protocol);
                }
            }
        }
        text
    }
}

/// The setting of a cell: its axes but for the seed.
fn column_of(cell: &CellRecord) -> String {
    let axes = cell.axes.iter().filter(|(name, _)| *name != "seed");
    let values: Vec<&str> = axes.map(|(_, value)| value.as_str()).collect();
    if values.is_empty() {
        return "error".to_owned();
    }
    values.join(" ")
}

/// The protocol in words.
fn describe(record: &RunRecord) -> String {
    let card = &record.card;
    let protocol = &card.protocol;
    let learning = match (protocol.passes, protocol.queue) {
        (Passes::Many { epochs, .. }, _) => format!("{epochs} passes"),
        (Passes::One, None) => "no queue".to_owned(),
        (Passes::One, Some(queue)) => {
            format!("queue {}, {} epochs", queue.capacity, queue.epochs)
        }
    };
    let order = match protocol.prediction {
        Prediction::AdaptFirst => "adapt-first",
        Prediction::PredictFirst => "predict-first",
    };
    let (preset, objective) = (name(&card.preset), name(&card.source_objective));
    let anchors = card.anchors.as_ref().map_or(String::new(), |anchors| {
        let transform = name(&anchors.transform);
        format!(", anchors of {} images with {transform}", anchors.samples)
    });
    let oracle = if card.oracle {
        ", chosen by test labels (an oracle)"
    } else {
        ""
    };
    format!(
        "{} ({preset}), {}, {learning}, {order}, batches of {}{anchors}; {} trained {objective}, fingerprint {}{oracle}",
        card.method, card.family, card.stream.batch_size, card.architecture, card.model
    )
}

/// The name of an enum's value, as in files.
fn name(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

/// Everything that forbids a comparison.
fn check(cells: &[CellRecord]) -> Result<()> {
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

/// The part of a card that no axis changes.
fn fixed_part(cell: &CellRecord) -> Value {
    let mut card = serde_json::to_value(&cell.record.card).unwrap_or_default();
    if let Some(fields) = card.as_object_mut() {
        for field in ["stream", "corruptions", "plan", "skipped"] {
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
        ];
        if axes.iter().any(|axis| !by_grid.contains(&axis.as_str())) {
            // An axis is a constant or a part of the protocol: the columns say which.
            fields.remove("constants");
            fields.remove("protocol");
        }
    }
    card
}
