//! The table of results and the protocol card of every row.

use std::fmt::Write as _;

use serde_json::Value;

use super::svg::escape;
use crate::experiment::Card;
use crate::report::CellRecord;
use crate::report::render::{COMPARISON_NOTE, comparison_fields};
use crate::report::table::{Row, RowSource, Table};

/// The most columns whose names are not turned.
const FEW_COLUMNS: usize = 6;

/// Writes the comparison of the rows and the table of all settings.
pub(super) fn tables(table: &Table) -> String {
    let mut text = String::new();
    if table.rows.iter().any(|row| row.against.is_some()) {
        text += &comparisons(table);
    }
    text += &settings(table);
    text += "<p class=\"note\">Error in percent; the lowest of each column is bold and underlined.";
    if table
        .rows
        .iter()
        .any(|row| row.source == RowSource::Published)
    {
        text += " Rows in italics are printed in the TTAC paper; their cards say what differs.";
    }
    text + "</p>\n"
}

/// Writes the mean of each measured row, and how it does against the best of the others.
fn comparisons(table: &Table) -> String {
    let mut text = start("Means and comparisons");
    for name in ["mean", "difference", "p"] {
        let _ = write!(text, "<th scope=\"col\">{name}</th>");
    }
    text += "<th scope=\"col\" class=\"words\">competitor</th>";
    text += "</tr></thead>\n<tbody>\n";
    let lowest = lowest(table, |row| row.mean);
    for (number, row) in table.rows.iter().enumerate() {
        let Some(against) = &row.against else {
            continue;
        };
        text += &row_head(number, row);
        text += &number_cell(row, row.mean, |mean| format!("{mean:.2}"), lowest);
        let [competitor, difference, p] = comparison_fields(Some(against)).map(|t| escape(&t));
        let _ = writeln!(
            text,
            "<td>{difference}</td><td>{p}</td><td class=\"words\">{competitor}</td></tr>"
        );
    }
    let note = escape(COMPARISON_NOTE);
    let _ = writeln!(
        text,
        "</tbody>\n</table>\n</div>\n<p class=\"note\">{note}</p>"
    );
    text
}

/// Writes the errors of every row in every setting.
fn settings(table: &Table) -> String {
    let mut text = start("Errors by setting");
    let turned = if table.columns.len() > FEW_COLUMNS {
        " class=\"turned\""
    } else {
        ""
    };
    for column in &table.columns {
        let column = escape(column);
        let _ = write!(text, "<th scope=\"col\"{turned}><span>{column}</span></th>");
    }
    text += "<th scope=\"col\">mean</th></tr></thead>\n<tbody>\n";
    let lowest_mean = lowest(table, |row| row.mean);
    let lowest: Vec<f64> = (0..table.columns.len())
        .map(|column| lowest(table, |row| row.cells[column].map(|spread| spread.mean)))
        .collect();
    for (number, row) in table.rows.iter().enumerate() {
        text += &row_head(number, row);
        for (spread, lowest) in row.cells.iter().zip(&lowest) {
            let mean = spread.map(|spread| spread.mean);
            let words = |_| spread.map_or(String::new(), |spread| spread.to_string());
            text += &number_cell(row, mean, words, *lowest);
        }
        text += &number_cell(row, row.mean, |mean| format!("{mean:.2}"), lowest_mean);
        text += "</tr>\n";
    }
    text + "</tbody>\n</table>\n</div>\n"
}

/// Opens a table up to the head of its first column; it scrolls on its own if it is too wide.
fn start(label: &str) -> String {
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\">\n<table>\n<thead><tr><th scope=\"col\">method</th>"
    )
}

/// Opens a row: its name with a link to its card.
fn row_head(number: usize, row: &Row) -> String {
    let class = match row.source {
        RowSource::Measured => "",
        RowSource::Published => " class=\"published\"",
    };
    let (name, number) = (escape(&row.name), number + 1);
    format!("<tr{class}><th scope=\"row\">{name} <a href=\"#card-{number}\">[{number}]</a></th>")
}

/// Writes a number; the lowest of a column is marked.
fn number_cell(
    row: &Row,
    value: Option<f64>,
    words: impl Fn(f64) -> String,
    lowest: f64,
) -> String {
    let Some(value) = value else {
        return "<td></td>".to_owned();
    };
    let is_best = row.source == RowSource::Measured && value == lowest;
    let class = if is_best { " class=\"best\"" } else { "" };
    format!("<td{class}>{}</td>", words(value))
}

/// Returns the lowest value of the measured rows.
fn lowest(table: &Table, value: impl Fn(&Row) -> Option<f64>) -> f64 {
    let measured = table
        .rows
        .iter()
        .filter(|row| row.source == RowSource::Measured);
    measured.filter_map(value).fold(f64::INFINITY, f64::min)
}

/// Writes a card for each row, folded to its first line.
pub(super) fn cards(table: &Table, cells: &[CellRecord]) -> String {
    let mut text = String::from("<p>Numbers with different cards are different experiments.</p>\n");
    for (number, row) in table.rows.iter().enumerate() {
        let number = number + 1;
        let (name, protocol) = (escape(&row.name), escape(&row.protocol));
        let summary = format!("<strong>{number}. {name}</strong>: {protocol}");
        let measured = cells
            .iter()
            .find(|cell| row.source == RowSource::Measured && cell.row == row.name);
        let _ = match measured {
            Some(cell) => writeln!(
                text,
                "<details id=\"card-{number}\"><summary>{summary}</summary>\n{}</details>",
                fields(&cell.record.card, &cell.command)
            ),
            None => writeln!(text, "<p id=\"card-{number}\">{summary}</p>"),
        };
    }
    text
}

/// Writes everything on a card. Fields that the settings of the row change are those of its first cell.
fn fields(card: &Card, command: &[String]) -> String {
    let card = serde_json::to_value(card).unwrap_or_default();
    let mut text = String::from("<dl>\n");
    for (name, value) in card.as_object().into_iter().flatten() {
        let value = match value {
            Value::String(words) => escape(words),
            Value::Object(_) => format!("<code>{}</code>", escape(&spaced(value))),
            value => escape(&value.to_string()),
        };
        let _ = writeln!(text, "<dt>{}</dt><dd>{value}</dd>", name.replace('_', " "));
    }
    if !command.is_empty() {
        let command = escape(&command.join(" "));
        let _ = writeln!(
            text,
            "<dt>command of the first cell</dt><dd><code>ttac adapt {command}</code></dd>"
        );
    }
    text + "</dl>\n"
}

/// Writes JSON with spaces at which lines can break.
fn spaced(value: &Value) -> String {
    value.to_string().replace(",\"", ", \"")
}
