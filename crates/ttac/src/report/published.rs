//! The errors that the paper printed, to stand beside those that were measured.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;

use super::CellRecord;
use super::table::{Row, RowSource, Spread, Table, column_of};
use crate::stream::Domains;

/// The CIFAR10-C numbers of the TTAC paper.
const PUBLISHED: &str = include_str!("published.json");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    /// Our name of the backbone; `backbone` is the paper's.
    architecture: String,
    backbone: String,
    data: Vec<String>,
    severity: u8,
    /// Images of each corruption.
    samples: usize,
    rows: Vec<PublishedRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedRow {
    name: String,
    /// The methods that are the same as this row's, by our names.
    methods: Vec<String>,
    /// The protocol's letters; absent where nothing is adapted.
    #[serde(default)]
    family: Option<String>,
    /// Whether samples were kept in a queue, in one pass.
    #[serde(default)]
    queue: Option<bool>,
    /// The error of each corruption; often only some are printed.
    errors: BTreeMap<String, f64>,
    /// The mean over all fifteen corruptions.
    #[serde(default)]
    mean: Option<f64>,
    /// The table of the paper that has the row.
    table: String,
}

impl Table {
    /// Adds the rows that the TTAC paper printed for the same data, methods and protocol letters.
    ///
    /// `cells` are those the table was made of. The protocol of an added row says what else differs:
    /// backbone, queue or number of images.
    ///
    /// # Panics
    /// Never: the numbers come with the crate.
    pub fn with_published(mut self, cells: &[CellRecord]) -> Self {
        let published: Published = serde_json::from_str(PUBLISHED).expect("checked by a test");
        let corruptions = self.corruptions(cells, &published);
        if corruptions.iter().all(Option::is_none) {
            return self;
        }
        let all = published.rows.iter().map(|row| row.errors.len()).max();
        let whole = corruptions.iter().flatten().count() == all.unwrap_or(0)
            && corruptions.len() == all.unwrap_or(0);
        for row in &published.rows {
            let Some(ours) = cells.iter().find(|cell| row.is_like(cell)) else {
                continue;
            };
            let errors = corruptions.iter().map(|corruption| {
                let error = row.errors.get(corruption.as_ref()?)?;
                Some(Spread::of(&[*error]))
            });
            let errors: Vec<Option<Spread>> = errors.collect();
            let mean = row.mean.filter(|_| whole);
            if mean.is_none() && errors.iter().all(Option::is_none) {
                continue;
            }
            self.rows.push(Row {
                name: format!("{} (paper)", row.name),
                cells: errors,
                mean,
                protocol: row.describe(&published, ours),
                source: RowSource::Published,
                against: None,
            });
        }
        self
    }

    /// Returns the corruption of each column for which the paper has the same data and severity.
    fn corruptions(&self, cells: &[CellRecord], published: &Published) -> Vec<Option<String>> {
        let of_column = |column: &String| {
            let cell = cells.iter().find(|cell| column_of(cell) == *column)?;
            let Domains::One { domain } = &cell.record.card.stream.domains else {
                return None;
            };
            let same = published.data.contains(&domain.data)
                && domain.severity == Some(published.severity);
            domain.corruption.clone().filter(|_| same)
        };
        self.columns.iter().map(of_column).collect()
    }
}

impl PublishedRow {
    /// Tells whether a cell has the same method and the same protocol letters.
    fn is_like(&self, cell: &CellRecord) -> bool {
        let card = &cell.record.card;
        let family = self.family.as_ref();
        self.methods.contains(&card.method)
            && family.is_none_or(|family| *family == card.family.to_string())
    }

    /// Says where the row was printed, and what differs from ours.
    fn describe(&self, published: &Published, ours: &CellRecord) -> String {
        let card = &ours.record.card;
        let mut text = format!("published by Su, Xu and Jia (2022), {}", self.table);
        if let Some(family) = &self.family {
            let _ = write!(text, "; {family}");
        }
        match self.queue {
            Some(true) => text += ", queue 4096, 4 epochs",
            Some(false) => text += ", no queue",
            None => {}
        }
        if self
            .queue
            .is_some_and(|queue| queue != card.protocol.queue.is_some())
        {
            text += " (unlike ours)";
        }
        let _ = write!(text, "; {}", published.backbone);
        if card.architecture != published.architecture {
            let _ = write!(text, ", another backbone than our {}", card.architecture);
        }
        let (samples, found) = (published.samples, ours.record.samples);
        if samples != found {
            let _ = write!(text, "; {samples} images, unlike our {found}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::method_names;

    #[test]
    fn printed_means_are_those_of_the_printed_errors() {
        let published: Published = serde_json::from_str(PUBLISHED).unwrap();
        assert_eq!(published.rows.len(), 24);
        let mut whole = 0;
        for row in &published.rows {
            for method in &row.methods {
                assert!(
                    method_names().iter().any(|(name, _)| name == method),
                    "{method}"
                );
            }
            if row.errors.len() == 15 {
                let mean = row.errors.values().sum::<f64>() / 15.0;
                let printed = row.mean.unwrap();
                assert!(
                    (mean - printed).abs() < 0.011,
                    "{}: {mean} {printed}",
                    row.name
                );
                whole += 1;
            }
        }
        assert_eq!(whole, 8);
    }
}
