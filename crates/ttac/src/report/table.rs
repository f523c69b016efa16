//! Rows, columns, means.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde::Serialize;
use serde_json::Value;
use ttac_corrupt::points::PointCorruption;

use super::CellRecord;
use super::significance::{Comparison, FEWEST_PAIRS, Significance, Test, mcnemar, signed_rank};
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
    /// Whether it was measured or printed somewhere.
    pub source: Source,
    /// Against the best of the other measured rows.
    pub against: Option<Comparison>,
}

/// Where the numbers of a row come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// From records.
    Measured,
    /// From the TTAC paper.
    Published,
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
    pub(super) fn of(values: &[f64]) -> Self {
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

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(f, "{:.2}", self.mean),
            _ => write!(f, "{:.2} ± {:.2}", self.mean, self.deviation),
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
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for cell in cells {
            places.entry(column_of(cell)).or_insert(place_of(cell));
        }
        columns.sort_by_key(|column| places[column]);
        let rows = rows.into_iter().map(|name| {
            let found = |column: &String| values.get(&(name, column.clone()));
            let spreads: Vec<Option<Spread>> = columns
                .iter()
                .map(|column| found(column).map(|values| Spread::of(values)))
                .collect();
            let first = cells.iter().find(|cell| cell.row == name);
            Row {
                name: name.to_owned(),
                mean: mean_of(&spreads),
                cells: spreads,
                protocol: first.map_or(String::new(), |cell| describe(&cell.record)),
                source: Source::Measured,
                against: None,
            }
        });
        let mut rows: Vec<Row> = rows.collect();
        sort(&mut rows);
        let comparisons: Vec<_> = rows.iter().map(|row| compare(row, &rows, cells)).collect();
        for (row, against) in rows.iter_mut().zip(comparisons) {
            row.against = against;
        }
        Ok(Self { columns, rows })
    }

    /// A table with the classes as columns: the error of each over all settings of a seed, and as mean
    /// that of the classes, whatever their sizes, as is usual for VisDA-C. Rows are not compared.
    pub fn by_class(cells: &[CellRecord]) -> Result<Self> {
        let by_setting = Self::new(cells)?;
        let columns = class_names(cells);
        let other = cells
            .iter()
            .find(|cell| cell.record.confusion.len() != columns.len());
        if let Some(cell) = other {
            return Err(Error::Mismatch {
                what: format!("classes of row `{}`", cell.row),
                expected: format!("{} as elsewhere", columns.len()),
                found: cell.record.confusion.len().to_string(),
            });
        }
        let mut rows = by_setting.rows;
        for row in &mut rows {
            let mut by_seed: BTreeMap<Option<&String>, Vec<(usize, usize)>> = BTreeMap::new();
            for cell in cells.iter().filter(|cell| cell.row == row.name) {
                let place = by_seed.entry(cell.axes.get("seed"));
                let counts = place.or_insert_with(|| vec![(0, 0); columns.len()]);
                for (class, (seen, counts)) in cell.record.confusion.iter().zip(counts).enumerate()
                {
                    counts.0 += seen.iter().sum::<usize>() - seen[class];
                    counts.1 += seen.iter().sum::<usize>();
                }
            }
            let errors = |class: usize| -> Vec<f64> {
                let counts = by_seed.values().map(|counts| counts[class]);
                let counts = counts.filter(|(_, samples)| *samples > 0);
                let errors = counts.map(|(wrong, samples)| 100.0 * wrong as f64 / samples as f64);
                errors.collect()
            };
            let errors: Vec<Vec<f64>> = (0..columns.len()).map(errors).collect();
            row.cells = errors
                .iter()
                .map(|errors| (!errors.is_empty()).then(|| Spread::of(errors)))
                .collect();
            row.mean = mean_of(&row.cells);
            row.against = None;
        }
        sort(&mut rows);
        Ok(Self { columns, rows })
    }

    /// The same without a column for every setting.
    pub fn means_alone(mut self) -> Self {
        self.columns.clear();
        for row in &mut self.rows {
            row.cells.clear();
        }
        self
    }

    /// The measured row with the lowest mean.
    pub fn best(&self) -> Option<&Row> {
        best_of(
            self.rows
                .iter()
                .filter(|row| row.source == Source::Measured),
        )
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
        let compared = self.rows.iter().any(|row| row.against.is_some());
        let head = ["method".to_owned()].into_iter();
        let head = head.chain(self.columns.clone()).chain(["mean".to_owned()]);
        let mut head: Vec<String> = head.collect();
        if compared {
            head.extend(["competitor", "difference", "p"].map(str::to_owned));
        }
        let width = head.len();
        line(head);
        if format == Format::Markdown {
            line(vec!["---".to_owned(); width]);
        }
        for (number, row) in self.rows.iter().enumerate() {
            let name = match format {
                Format::Markdown => format!("{} [{}]", row.name, number + 1),
                Format::Csv | Format::Latex => row.name.clone(),
            };
            let cells = row.cells.iter();
            let cells = cells.map(|cell| cell.map_or(String::new(), |spread| spread.to_string()));
            let mean = row.mean.map_or(String::new(), |mean| format!("{mean:.2}"));
            let mut fields: Vec<String> = [name].into_iter().chain(cells).chain([mean]).collect();
            if compared {
                fields.extend(comparison_fields(row.against.as_ref()));
            }
            line(fields);
        }
        match format {
            Format::Csv => {}
            Format::Latex => {
                let columns = "r".repeat(width - 1);
                text = format!("\\begin{{tabular}}{{l{columns}}}\n{text}\\end{{tabular}}\n");
                text = text.replace('_', "\\_").replace('±', "$\\pm$");
            }
            Format::Markdown => {
                text += "\nError in percent.";
                if compared {
                    text += " ";
                    text += COMPARISON_NOTE;
                }
                text += "\n\n";
                for (number, row) in self.rows.iter().enumerate() {
                    let _ = writeln!(text, "{}. {}", number + 1, row.protocol);
                }
            }
        }
        text
    }
}

/// The mean over the columns, if all are there.
fn mean_of(cells: &[Option<Spread>]) -> Option<f64> {
    let means: Vec<f64> = cells
        .iter()
        .map(|cell| cell.map(|cell| cell.mean))
        .collect::<Option<_>>()?;
    Some(means.iter().sum::<f64>() / means.len() as f64)
}

/// The best last, and after it what has gaps.
fn sort(rows: &mut [Row]) {
    rows.sort_by(|a, b| {
        let mean = |row: &Row| row.mean.unwrap_or(f64::NEG_INFINITY);
        mean(b).total_cmp(&mean(a))
    });
}

/// Names of the classes, or their numbers where records have none.
pub(super) fn class_names(cells: &[CellRecord]) -> Vec<String> {
    let mut named = cells.iter().map(|cell| &cell.record.classes);
    if let Some(names) = named.find(|names| !names.is_empty()) {
        return names.clone();
    }
    let classes = cells.iter().map(|cell| cell.record.confusion.len()).max();
    (0..classes.unwrap_or(0))
        .map(|class| format!("class {class}"))
        .collect()
}

/// What the columns of comparisons mean.
pub(super) const COMPARISON_NOTE: &str = "Difference: percentage points against the best other row, the competitor, over cells of the same setting and seed. p: two-sided, by the exact Wilcoxon signed-rank test over these pairs; of a single pair, by McNemar's exact test over its images; none for two to four pairs. Not corrected for the number of rows.";

/// Competitor, difference and p of a row, as text.
pub(super) fn comparison_fields(against: Option<&Comparison>) -> [String; 3] {
    let Some(against) = against else {
        return Default::default();
    };
    let p = against.significance.map(|found| p_text(found.p));
    [
        against.competitor.clone(),
        format!("{:+.2}", against.difference),
        p.unwrap_or_default(),
    ]
}

/// A p-value with as many digits as it has use for.
pub(super) fn p_text(p: f64) -> String {
    if p >= 0.001 {
        format!("{p:.3}")
    } else {
        format!("{p:.0e}")
    }
}

fn best_of<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<&'a Row> {
    let whole = rows.filter_map(|row| Some((row.mean?, row)));
    let best = whole.min_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, row)| row)
}

/// A row against the best of the others.
fn compare(row: &Row, rows: &[Row], cells: &[CellRecord]) -> Option<Comparison> {
    let competitor = best_of(rows.iter().filter(|other| other.name != row.name))?;
    let place = |cell: &CellRecord| (column_of(cell), cell.axes.get("seed").cloned());
    let theirs: BTreeMap<_, &RunRecord> = cells
        .iter()
        .filter(|cell| cell.row == competitor.name)
        .map(|cell| (place(cell), &cell.record))
        .collect();
    let pairs: Vec<(&RunRecord, &RunRecord)> = cells
        .iter()
        .filter(|cell| cell.row == row.name)
        .filter_map(|cell| Some((&cell.record, *theirs.get(&place(cell))?)))
        .collect();
    let differences: Vec<f64> = pairs
        .iter()
        .map(|(ours, theirs)| ours.error_percent - theirs.error_percent)
        .collect();
    let significance = match pairs[..] {
        [] => return None,
        [(ours, theirs)] => by_images(ours, theirs),
        _ if differences.len() >= FEWEST_PAIRS => Some(Significance {
            test: Test::SignedRank,
            p: signed_rank(&differences),
        }),
        _ => None,
    };
    Some(Comparison {
        competitor: competitor.name.clone(),
        pairs: pairs.len(),
        difference: differences.iter().sum::<f64>() / differences.len() as f64,
        significance,
    })
}

/// McNemar's test of two runs, if both say which images they got right and the images are the same.
fn by_images(ours: &RunRecord, theirs: &RunRecord) -> Option<Significance> {
    if ours.card.plan != theirs.card.plan {
        return None;
    }
    let (ours, theirs) = (ours.right()?, theirs.right()?);
    let only = |first: &[bool], second: &[bool]| {
        let pairs = first.iter().zip(second);
        pairs.filter(|(first, second)| **first && !**second).count()
    };
    Some(Significance {
        test: Test::Mcnemar,
        p: mcnemar(only(&ours, &theirs), only(&theirs, &ours)),
    })
}

/// Where the column of a cell belongs: corruptions in their usual order.
fn place_of(cell: &CellRecord) -> usize {
    let images = ttac_corrupt::Corruption::ALL.iter().map(|one| one.name());
    let clouds = PointCorruption::ALL.iter().map(|one| one.name());
    let name = cell.axes.get("corruption");
    let place = name.and_then(|name| images.chain(clouds).position(|known| known == name));
    place.unwrap_or(usize::MAX)
}

/// The setting of a cell: its axes but for the seed.
pub(super) fn column_of(cell: &CellRecord) -> String {
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
    let changes = match card.changes() {
        changes if changes.is_empty() => String::new(),
        changes => format!(" with `{}`", changes.join("`, `")),
    };
    format!(
        "{} ({preset}{changes}), {}, {learning}, {order}, batches of {}{anchors}; {} trained {objective}, fingerprint {}{oracle}",
        card.method, card.family, card.stream.batch_size, card.architecture, card.model
    )
}

/// The name of an enum's value, as in files.
pub(super) fn name(value: &impl Serialize) -> String {
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
