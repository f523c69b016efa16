//! A page with tables, protocol cards and figures, in a single file.
//!
//! The page needs no network, no script and no font of its own. It follows the reader's choice of light
//! or dark, fits a phone, and never tells two things apart by colour alone. A figure that the records
//! have no data for is replaced by a sentence that says what would bring it.

mod bars;
mod cards;
mod confusion;
mod lines;
mod scatter;
mod svg;

use std::fmt::Write as _;

use super::render::p_text;
use super::table::{Row, RowSource, Table, class_names, column_of};
use super::{CellRecord, SignificanceTest, tsne};
use crate::protocol::FeatureRecord;
use bars::Bar;
use lines::{Line, Measure};
use scatter::Point;
use svg::escape;

const STYLE: &str = include_str!("style.css");

/// The most points in a picture of features; more would cover each other.
const MOST_POINTS: usize = 500;

const ERROR: Measure = Measure {
    title: "cumulative error",
    y_label: "error over all samples so far, %",
    value: |point| Some(point.cumulative_error_percent),
    from_zero: false,
};

const ACCEPTED: Measure = Measure {
    title: "accepted pseudo-labels",
    y_label: "accepted of the samples asked, %",
    value: |point| point.accepted_share.map(|share| 100.0 * share),
    from_zero: false,
};

const DISTANCE: Measure = Measure {
    title: "distance to the anchors",
    y_label: "mean distance of class means from their anchors",
    value: |point| point.anchor_distance,
    from_zero: true,
};

/// Writes the page of a table and the cells it was made of.
pub fn page(title: &str, cells: &[CellRecord], table: &Table) -> String {
    let contents = Contents { cells, table };
    let sections = [
        ("results", "Results", contents.results()),
        (
            "cumulative-error",
            "Error as the stream goes by",
            contents.cumulative_error(),
        ),
        ("bars", "Error by setting", contents.bars()),
        ("confusion", "What is taken for what", contents.confusion()),
        ("anchors", "Clusters and their anchors", contents.anchors()),
        ("accepted", "Accepted pseudo-labels", contents.accepted()),
        ("cost", "Cost against error", contents.cost()),
        ("tsne", "Features before and after", contents.clusters()),
        ("cards", "Protocol cards", contents.cards()),
    ];
    let mut body = String::new();
    let mut links = String::new();
    for (id, heading, content) in sections {
        let _ = writeln!(links, "<li><a href=\"#{id}\">{heading}</a></li>");
        let _ = writeln!(
            body,
            "<section id=\"{id}\">\n<h2>{heading}</h2>\n{content}</section>"
        );
    }
    let title = escape(title);
    let summary = contents.summary();
    let program = cells
        .first()
        .map_or("", |cell| cell.record.card.program.as_str());
    let program = escape(program);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n{summary}<nav aria-label=\"Sections\"><ul>\n{links}</ul></nav>\n</header>\n<main>\n{body}</main>\n<footer class=\"note\"><p>Made by {program} from the records of {} runs.</p></footer>\n</body>\n</html>\n",
        cells.len()
    )
}

/// What the page is about; each function writes a section.
struct Contents<'a> {
    cells: &'a [CellRecord],
    table: &'a Table,
}

impl Contents<'_> {
    /// Iterates over the measured rows, each with the number of its colour and mark.
    fn rows(&self) -> impl Iterator<Item = (usize, &Row)> {
        let rows = self.table.rows.iter();
        rows.filter(|row| row.source == RowSource::Measured)
            .enumerate()
    }

    fn cells_of(&self, row: &Row) -> impl Iterator<Item = &CellRecord> {
        self.cells.iter().filter(|cell| cell.row == row.name)
    }

    /// Counts methods, settings and runs, and names the best row.
    fn summary(&self) -> String {
        let mut samples: Vec<usize> = self.cells.iter().map(|cell| cell.record.samples).collect();
        samples.sort_unstable();
        let range = match (samples.first(), samples.last()) {
            (Some(least), Some(most)) if least != most => format!("{least} to {most}"),
            (Some(all), _) => all.to_string(),
            (None, _) => "no".to_owned(),
        };
        let (methods, settings) = (self.rows().count(), self.table.columns.len());
        let mut text = format!(
            "<p>{} in {}, {} of {range} samples each.</p>\n",
            count(methods, "method"),
            count(settings, "setting"),
            count(self.cells.len(), "run"),
        );
        let Some((best, mean)) = self.table.best().and_then(|row| Some((row, row.mean?))) else {
            return text;
        };
        let _ = write!(
            text,
            "<p><strong>{}</strong> has the lowest mean error, {mean:.2} %",
            escape(&best.name)
        );
        if let Some(against) = &best.against {
            let _ = write!(
                text,
                ", {:.2} points below {}",
                -against.difference,
                escape(&against.competitor)
            );
            match against.significance {
                Some(found) => {
                    let _ = write!(
                        text,
                        " (p = {}, {} over {})",
                        p_text(found.p),
                        found.test.name(),
                        match found.test {
                            SignificanceTest::SignedRank => count(against.pairs, "pair"),
                            SignificanceTest::Mcnemar => "the images".to_owned(),
                        }
                    );
                }
                None => text += " (too few pairs for a test)",
            }
        }
        text += ".</p>\n";
        text
    }

    fn results(&self) -> String {
        cards::tables(self.table)
    }

    fn cards(&self) -> String {
        cards::cards(self.table, self.cells)
    }

    /// Makes a line for each row that has values: the mean over its cells, in one column or in all.
    fn lines(&self, measure: &Measure, column: Option<&str>) -> Vec<Line> {
        let line = |(series, row): (usize, &Row)| {
            let cells = || {
                let cells = self.cells_of(row);
                cells.filter(|cell| column.is_none_or(|column| column_of(cell) == column))
            };
            let curves = cells().map(|cell| lines::points(&cell.record.curve, measure));
            let curves: Vec<_> = curves.filter(|points| points.len() > 1).collect();
            let gates = cells().map(|cell| lines::gate(&cell.record.curve));
            let gates: Vec<_> = gates.filter(|points| !points.is_empty()).collect();
            (!curves.is_empty()).then(|| Line {
                series,
                name: row.name.clone(),
                points: lines::mean_of(&curves),
                open: lines::mean_of(&gates),
            })
        };
        self.rows().filter_map(line).collect()
    }

    fn cumulative_error(&self) -> String {
        let lines = self.lines(&ERROR, None);
        if lines.is_empty() {
            return absent("Runs of a single batch have no curve; smaller batches give one.");
        }
        let settings = count(self.table.columns.len(), "setting");
        let mut text = figure(
            "cumulative-error",
            &wide(&lines::chart(&lines, &ERROR)),
            &format!(
                "Error over all samples so far, mean over {settings}. Falling lines learn; lines that turn up forget.{}",
                if lines.iter().any(|line| !line.open.is_empty()) {
                    " Bars at the top show where gates were open, so that the method learned and answered; elsewhere the source did."
                } else {
                    ""
                }
            ),
        );
        if self.table.columns.len() > 1 {
            let charts = self.table.columns.iter().map(|column| {
                let lines = self.lines(&ERROR, Some(column));
                panel(column, &lines::small_chart(&lines, &ERROR, column))
            });
            text += &figure(
                "cumulative-error-by-setting",
                &(lines::legend(&lines) + &panels("panels small", charts)),
                "The same for each setting, each on its own scale.",
            );
        }
        text
    }

    fn bars(&self) -> String {
        let all = self.rows().flat_map(|(_, row)| row.cells.iter().flatten());
        let largest = all
            .map(|spread| spread.mean + spread.deviation)
            .fold(0.0, f64::max);
        let charts = self
            .table
            .columns
            .iter()
            .enumerate()
            .map(|(index, column)| {
                let bars = self.rows().filter_map(|(series, row)| {
                    let spread = row.cells[index]?;
                    Some(Bar {
                        series,
                        name: row.name.clone(),
                        value: spread.mean,
                        deviation: (spread.count > 1).then_some(spread.deviation),
                    })
                });
                let bars: Vec<Bar> = bars.collect();
                panel(
                    column,
                    &bars::bars(&bars, &format!("error: {column}"), largest),
                )
            });
        figure(
            "bars",
            &panels("panels", charts),
            "Error in percent, on one scale. Whiskers are one standard deviation over seeds.",
        )
    }

    fn confusion(&self) -> String {
        let classes = class_names(self.cells);
        if classes.len() > confusion::MOST_CLASSES {
            return absent(&format!(
                "A matrix of {} classes would not be readable; the records hold the counts.",
                classes.len()
            ));
        }
        let matrices = self.rows().map(|(_, row)| {
            let mut sum = vec![vec![0; classes.len()]; classes.len()];
            for cell in self.cells_of(row) {
                for (sums, counts) in sum.iter_mut().zip(&cell.record.confusion) {
                    for (sum, count) in sums.iter_mut().zip(counts) {
                        *sum += count;
                    }
                }
            }
            let title = format!("confusion matrix: {}", row.name);
            panel(&row.name, &confusion::matrix(&sum, &classes, &title))
        });
        figure(
            "confusion",
            &panels("panels", matrices),
            "True class by row, predicted class by column, over all settings; numbers are percent of the true class, from one half on.",
        )
    }

    fn anchors(&self) -> String {
        self.curves(
            "anchors",
            &DISTANCE,
            "Euclidean distance of the running mean of each class to the mean of its anchor, averaged over the classes met so far, after each batch. Methods without clusters have none.",
            "No record has distances to anchors: methods of the family of `ttac` keep them, in records made by this version.",
        )
    }

    fn accepted(&self) -> String {
        self.curves(
            "accepted",
            &ACCEPTED,
            "Share of the samples whose pseudo-label was trusted, batch by batch, mean over the settings.",
            "No method here chooses pseudo-labels; `ttac`, `shot` and their relatives do.",
        )
    }

    /// Draws a line for each row, or says why there is none.
    fn curves(&self, name: &str, measure: &Measure, caption: &str, without: &str) -> String {
        let lines = self.lines(measure, None);
        if lines.is_empty() {
            return absent(without);
        }
        figure(name, &wide(&lines::chart(&lines, measure)), caption)
    }

    /// Draws the time of each row against its error.
    fn cost(&self) -> String {
        let points = self.rows().map(|(series, row)| {
            let records = || self.cells_of(row).map(|cell| &cell.record);
            let seconds: f64 = records()
                .map(|record| record.learning_seconds + record.predicting_seconds)
                .sum();
            let samples: usize = records().map(|record| record.samples).sum();
            let errors: Vec<f64> = row
                .cells
                .iter()
                .flatten()
                .map(|spread| spread.mean)
                .collect();
            Point {
                series,
                name: row.name.clone(),
                x: 1000.0 * seconds / samples.max(1) as f64,
                y: errors.iter().sum::<f64>() / errors.len().max(1) as f64,
            }
        });
        let points: Vec<Point> = points.collect();
        let chart = scatter::named_points(
            &points,
            "cost against error",
            "milliseconds per sample",
            "mean error, %",
        );
        figure(
            "cost",
            &wide(&chart),
            "Time for learning and predicting on the machine that made the records, whatever else it did then, against the mean error. Low and left is good.",
        )
    }

    /// Draws the features of one setting by t-SNE: the source's, then each method's.
    fn clusters(&self) -> String {
        let of_column = |column: &str| -> Vec<(&str, &FeatureRecord)> {
            let first = |(_, row)| {
                let mut cells = self.cells_of(row).filter(|cell| column_of(cell) == column);
                cells.find_map(|cell| Some((cell.row.as_str(), cell.features.as_ref()?)))
            };
            self.rows().filter_map(first).collect()
        };
        let mut columns = self.table.columns.iter();
        let Some(column) = columns.find(|column| !of_column(column).is_empty()) else {
            return absent(
                "No features were kept: a run or a grid with the option `features`, for example 300, keeps those of so many samples.",
            );
        };
        let mut pictures = Vec::new();
        let mut source: Option<(&[f32], Vec<[f64; 2]>)> = None;
        for (row, features) in of_column(column) {
            let count = features.labels.len().min(MOST_POINTS);
            let (labels, dimension) = (&features.labels[..count], features.dimension);
            let before = &features.before[..count * dimension];
            let after = &features.after[..count * dimension];
            if source.as_ref().is_none_or(|(known, _)| *known != before) {
                let places = tsne::embed(before, dimension, None);
                let title = format!("t-SNE before adaptation, {column}");
                let picture = scatter::letters(&places, labels, &title);
                pictures.push(panel("before: the source network", &picture));
                source = Some((before, places));
            }
            if after == before {
                continue; // The method does not change the network.
            }
            let start = source.as_ref().map(|(_, places)| places.as_slice());
            let places = tsne::embed(after, dimension, start);
            let title = format!("t-SNE after {row}, {column}");
            let picture = scatter::letters(&places, labels, &title);
            pictures.push(panel(&format!("after: {row}"), &picture));
        }
        figure(
            "tsne",
            &(scatter::letter_legend(&class_names(self.cells))
                + &panels("panels", pictures.into_iter())),
            &format!(
                "Features of samples spread over the stream, {}, by t-SNE (perplexity 30, started from the source's picture). Letters and colours are the true classes, which no method has seen.",
                escape(column)
            ),
        )
    }
}

/// Writes a number with its noun, in the plural where that is due.
fn count(number: usize, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// Writes the sentence that stands in the place of a figure; words in backticks are shown as code.
fn absent(sentence: &str) -> String {
    let mut text = String::new();
    for (index, part) in escape(sentence).split('`').enumerate() {
        if index % 2 == 0 {
            text += part;
        } else {
            let _ = write!(text, "<code>{part}</code>");
        }
    }
    format!("<p class=\"absent\">{text}</p>\n")
}

/// Writes a figure with its caption.
fn figure(name: &str, content: &str, caption: &str) -> String {
    format!(
        "<figure data-figure=\"{name}\">\n{content}\n<figcaption>{caption}</figcaption>\n</figure>\n"
    )
}

/// Writes a chart with its title, as one of several.
fn panel(title: &str, content: &str) -> String {
    format!(
        "<div class=\"panel\"><h4>{}</h4>\n{content}</div>\n",
        escape(title)
    )
}

/// Puts charts beside each other.
fn panels(class: &str, all: impl Iterator<Item = String>) -> String {
    let all: String = all.collect();
    format!("<div class=\"{class}\">\n{all}</div>")
}

/// Writes a chart that stands alone.
fn wide(chart: &str) -> String {
    format!("<div class=\"panel wide\">{chart}</div>")
}
