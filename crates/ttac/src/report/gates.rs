//! When gates opened and closed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::CellRecord;
use super::table::{column_of, place_of};
use crate::protocol::GateRecord;

/// What the gates did, with a row for each setting and a column for each row of the grid that had a gate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GateTable {
    /// The names of the grid's rows that had a gate.
    pub methods: Vec<String>,
    /// The settings, in the order of the table of errors.
    pub settings: Vec<GateSetting>,
}

/// What the gates did in one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GateSetting {
    /// The name of the setting.
    pub name: String,
    /// The gate of each method, one for each seed.
    pub gates: Vec<Vec<GateRecord>>,
}

impl GateTable {
    /// Collects the gates of cells; `None` if none of them had one.
    pub fn new(cells: &[CellRecord]) -> Option<Self> {
        let mut methods: Vec<&str> = Vec::new();
        let mut settings: Vec<(usize, String)> = Vec::new();
        let mut gates: BTreeMap<(String, &str), Vec<GateRecord>> = BTreeMap::new();
        for cell in cells {
            let Some(gate) = &cell.record.gate else {
                continue;
            };
            let name = column_of(cell);
            if !methods.contains(&cell.row.as_str()) {
                methods.push(&cell.row);
            }
            if !settings.iter().any(|(_, known)| *known == name) {
                settings.push((place_of(cell), name.clone()));
            }
            gates
                .entry((name, &cell.row))
                .or_default()
                .push(gate.clone());
        }
        settings.sort_by_key(|(place, _)| *place);
        let settings = settings.into_iter().map(|(_, name)| GateSetting {
            gates: methods
                .iter()
                .map(|method| gates.remove(&(name.clone(), *method)).unwrap_or_default())
                .collect(),
            name,
        });
        let settings: Vec<GateSetting> = settings.collect();
        (!methods.is_empty()).then(|| Self {
            methods: methods.iter().map(|&name| name.to_owned()).collect(),
            settings,
        })
    }

    /// Writes the table as Markdown. A gate of one seed is the samples at which it was open, those of several seeds are counted.
    pub fn markdown(&self) -> String {
        let mut text = format!("| gate of | {} |\n", self.methods.join(" | "));
        let _ = writeln!(text, "| --- |{}", " --- |".repeat(self.methods.len()));
        for setting in &self.settings {
            let gates = setting.gates.iter().map(|gates| in_words(gates));
            let gates: Vec<String> = gates.collect();
            let _ = writeln!(text, "| {} | {} |", setting.name, gates.join(" | "));
        }
        text + "\nThe sample at which a gate opened, and the one at which it closed again; of several seeds, how many opened, and the median of their first samples.\n"
    }
}

/// Says when the gates of one setting were open.
fn in_words(gates: &[GateRecord]) -> String {
    match gates {
        [] => String::new(),
        [gate] => {
            let mut closed = gate.closed.iter();
            let open = gate.opened.iter().map(|opened| match closed.next() {
                Some(closed) => format!("{opened} to {closed}"),
                None => opened.to_string(),
            });
            let open: Vec<String> = open.collect();
            if open.is_empty() {
                "never".to_owned()
            } else {
                open.join(", ")
            }
        }
        gates => {
            let first = gates.iter().filter_map(|gate| gate.opened.first().copied());
            let mut first: Vec<usize> = first.collect();
            first.sort_unstable();
            let of = format!("{} of {}", first.len(), gates.len());
            match first.get(first.len() / 2) {
                Some(median) => format!("{of}, at {median}"),
                None => of,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(opened: &[usize], closed: &[usize]) -> GateRecord {
        GateRecord {
            opened: opened.to_vec(),
            closed: closed.to_vec(),
            answered_by_source: 0,
        }
    }

    #[test]
    fn a_gate_is_told_by_the_samples_at_which_it_was_open() {
        assert_eq!(in_words(&[gate(&[], &[])]), "never");
        assert_eq!(in_words(&[gate(&[55], &[])]), "55");
        let there_and_back = gate(&[35, 900], &[300]);
        assert_eq!(in_words(&[there_and_back]), "35 to 300, 900");
    }

    #[test]
    fn gates_of_several_seeds_are_counted() {
        assert_eq!(in_words(&[gate(&[], &[]), gate(&[], &[])]), "0 of 2");
        let gates = [gate(&[70], &[]), gate(&[], &[]), gate(&[50, 400], &[300])];
        assert_eq!(in_words(&gates), "2 of 3, at 70");
    }
}
