//! Tables of errors, and how they are made of cells.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use ttac_corrupt::points::PointCorruption;

use super::CellRecord;
use super::comparable::check;
use super::comparison::{Comparison, compare};
use super::describe::describe;
use crate::{Error, Result};

/// A table of errors in percent, with a row for each method and a column for each setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// The names of the settings, for example corruptions.
    pub columns: Vec<String>,
    /// The rows, the best measured one last; published rows follow.
    pub rows: Vec<Row>,
}

/// A row of a [`Table`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The name of the row, which is that of its method unless the grid gave another.
    pub name: String,
    /// The errors in each column; absent where a setting was not run.
    pub cells: Vec<Option<Spread>>,
    /// The mean over the columns, if none is absent.
    pub mean: Option<f64>,
    /// The protocol in words, for the footnote.
    pub protocol: String,
    /// Whether the numbers were measured or printed in the paper.
    pub source: RowSource,
    /// The comparison with the best of the other measured rows.
    pub against: Option<Comparison>,
}

/// Where the numbers of a row come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowSource {
    /// They come from records.
    Measured,
    /// The TTAC paper printed them.
    Published,
}

/// The mean and the spread of one setting's errors over seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The mean of the errors.
    pub mean: f64,
    /// Their standard deviation, divided by one less than their number; zero for a single seed.
    pub deviation: f64,
    /// The number of seeds.
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
    /// Makes a table of cells. The error says which of them may not be compared, and why.
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
                source: RowSource::Measured,
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

    /// Makes a table with the classes as columns: the error of each class over all settings of a seed.
    /// The mean is that of the classes, whatever their sizes, as is usual for VisDA-C. Rows are not
    /// compared.
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
            let own = cells.iter().filter(|cell| cell.row == row.name);
            row.cells = errors_by_class(own, columns.len());
            row.mean = mean_of(&row.cells);
            row.against = None;
        }
        sort(&mut rows);
        Ok(Self { columns, rows })
    }

    /// Drops the columns of the settings and keeps the means.
    pub fn means_alone(mut self) -> Self {
        self.columns.clear();
        for row in &mut self.rows {
            row.cells.clear();
        }
        self
    }

    /// Returns the measured row with the lowest mean.
    pub fn best(&self) -> Option<&Row> {
        best_of(
            self.rows
                .iter()
                .filter(|row| row.source == RowSource::Measured),
        )
    }
}

/// Returns the error of each class over all settings of a seed; absent for a class without samples.
fn errors_by_class<'a>(
    cells: impl Iterator<Item = &'a CellRecord>,
    classes: usize,
) -> Vec<Option<Spread>> {
    // Mistakes and samples of every class.
    let mut by_seed: BTreeMap<Option<&String>, Vec<(usize, usize)>> = BTreeMap::new();
    for cell in cells {
        let place = by_seed.entry(cell.axes.get("seed"));
        let counts = place.or_insert_with(|| vec![(0, 0); classes]);
        for (class, (seen, counts)) in cell.record.confusion.iter().zip(counts).enumerate() {
            counts.0 += seen.iter().sum::<usize>() - seen[class];
            counts.1 += seen.iter().sum::<usize>();
        }
    }
    let spread = |class: usize| {
        let counts = by_seed.values().map(|counts| counts[class]);
        let errors: Vec<f64> = counts
            .filter(|(_, samples)| *samples > 0)
            .map(|(wrong, samples)| 100.0 * wrong as f64 / samples as f64)
            .collect();
        (!errors.is_empty()).then(|| Spread::of(&errors))
    };
    (0..classes).map(spread).collect()
}

/// Averages the columns, if none is absent.
fn mean_of(cells: &[Option<Spread>]) -> Option<f64> {
    let means: Vec<f64> = cells
        .iter()
        .map(|cell| cell.map(|cell| cell.mean))
        .collect::<Option<_>>()?;
    Some(means.iter().sum::<f64>() / means.len() as f64)
}

/// Sorts rows by falling error, so that the best comes last; rows with gaps have no mean and follow it.
fn sort(rows: &mut [Row]) {
    rows.sort_by(|a, b| {
        let mean = |row: &Row| row.mean.unwrap_or(f64::NEG_INFINITY);
        mean(b).total_cmp(&mean(a))
    });
}

/// Returns the names of the classes, or their numbers where records have none.
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

/// Returns the row with the lowest mean.
pub(super) fn best_of<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<&'a Row> {
    let whole = rows.filter_map(|row| Some((row.mean?, row)));
    let best = whole.min_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, row)| row)
}

/// Ranks the column of a cell, so that corruptions stand in their usual order.
pub(super) fn place_of(cell: &CellRecord) -> usize {
    let images = ttac_corrupt::Corruption::ALL.iter().map(|one| one.name());
    let clouds = PointCorruption::ALL.iter().map(|one| one.name());
    let name = cell.axes.get("corruption");
    let place = name.and_then(|name| images.chain(clouds).position(|known| known == name));
    place.unwrap_or(usize::MAX)
}

/// Names the setting of a cell, which is all its axes except the seed.
pub(super) fn column_of(cell: &CellRecord) -> String {
    let axes = cell.axes.iter().filter(|(name, _)| *name != "seed");
    let values: Vec<&str> = axes.map(|(_, value)| value.as_str()).collect();
    if values.is_empty() {
        return "error".to_owned();
    }
    values.join(" ")
}
