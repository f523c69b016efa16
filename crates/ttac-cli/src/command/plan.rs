//! What a grid costs: cells times measured seconds, over machines, at a price.

use std::fmt::Write as _;

use serde::Serialize;

const HOUR: f64 = 3600.0;

/// A row of a grid, with what one of its cells takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedRow {
    pub row: String,
    pub cells: usize,
    pub seconds_each: f64,
}

/// How long a number of machines takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Time {
    pub machines: usize,
    pub hours: f64,
}

/// What a grid costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    pub rows: Vec<PlannedRow>,
    /// The hours of all machines together.
    pub machine_hours: f64,
    pub times: Vec<Time>,
    /// The price of a machine for an hour, and of everything; workers end when nothing is left, so the number of machines does not change
    /// it.
    pub price_per_hour: Option<f64>,
    pub price: Option<f64>,
}

impl Plan {
    /// Plans rows over machines as fast as this one.
    pub fn new(rows: Vec<PlannedRow>, machines: &[usize], price_per_hour: Option<f64>) -> Self {
        let cells = rows.iter();
        let cells = cells.flat_map(|row| std::iter::repeat_n(row.seconds_each, row.cells));
        let mut cells: Vec<f64> = cells.collect();
        cells.sort_by(|a, b| b.total_cmp(a));
        let machine_hours = cells.iter().sum::<f64>() / HOUR;
        let time = |&machines: &usize| Time {
            machines,
            hours: longest_of(&cells, machines) / HOUR,
        };
        Self {
            times: machines.iter().map(time).collect(),
            machine_hours,
            price_per_hour,
            price: price_per_hour.map(|price| price * machine_hours),
            rows,
        }
    }

    pub fn to_text(&self) -> String {
        let mut text = "| row | cells | seconds each | hours |\n|---|--:|--:|--:|".to_owned();
        for PlannedRow {
            row,
            cells,
            seconds_each,
        } in &self.rows
        {
            let hours = *cells as f64 * seconds_each / HOUR;
            let _ = write!(
                text,
                "\n| {row} | {cells} | {seconds_each:.1} | {hours:.2} |"
            );
        }
        text += "\n\n| machines | hours |\n|--:|--:|";
        for Time { machines, hours } in &self.times {
            let _ = write!(text, "\n| {machines} | {hours:.2} |");
        }
        let _ = write!(
            text,
            "\n\n{:.2} hours of machines like this one",
            self.machine_hours
        );
        if let (Some(each), Some(all)) = (self.price_per_hour, self.price) {
            let _ = write!(text, ", {all:.2} at {each} an hour");
        }
        text
    }
}

/// Gives cells, the longest first, to whichever machine is free first, and returns when the last is done, in seconds.
fn longest_of(cells: &[f64], machines: usize) -> f64 {
    let mut busy = vec![0.0_f64; machines.max(1)];
    for seconds in cells {
        let free = busy.iter_mut().min_by(|a, b| a.total_cmp(b));
        *free.expect("there is a machine") += seconds;
    }
    busy.into_iter().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_share_the_cells_and_the_price_stays() {
        let row = |row: &str, cells, seconds_each| PlannedRow {
            row: row.to_owned(),
            cells,
            seconds_each,
        };
        let rows = vec![row("short", 4, 900.0), row("long", 1, 3600.0)];
        let plan = Plan::new(rows, &[1, 2, 9], Some(0.5));
        assert_eq!(plan.machine_hours, 2.0);
        assert_eq!(plan.price, Some(1.0));
        let hours: Vec<f64> = plan.times.iter().map(|time| time.hours).collect();
        // No number of machines is faster than the longest cell.
        assert_eq!(hours, [2.0, 1.0, 1.0]);
        let text = plan.to_text();
        assert!(text.contains("| short | 4 | 900.0 | 1.00 |"), "{text}");
        assert!(
            text.ends_with("2.00 hours of machines like this one, 1.00 at 0.5 an hour"),
            "{text}"
        );
    }
}
