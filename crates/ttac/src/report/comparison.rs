//! Rows against each other.

use std::collections::BTreeMap;

use serde::Serialize;

use super::CellRecord;
use super::significance::{Significance, SignificanceTest, mcnemar, signed_rank};
use super::table::{Row, best_of, column_of};
use crate::protocol::RunRecord;

/// The least number of pairs that is tested: five that all agree give p = 0.0625 at best.
const FEWEST_PAIRS: usize = 5;

/// How a row does against its competitor, the best of the other rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The name of the competitor.
    pub competitor: String,
    /// How many cells of the same setting and seed both rows have.
    pub pairs: usize,
    /// Mean difference of the errors over these pairs, in percentage points; below zero where this
    /// row is better.
    pub difference: f64,
    /// Whether the difference could be chance; absent where no test applies.
    pub significance: Option<Significance>,
}

/// Compares a row with the best of the others, over the cells that both have.
pub(super) fn compare(row: &Row, rows: &[Row], cells: &[CellRecord]) -> Option<Comparison> {
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
            test: SignificanceTest::SignedRank,
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

/// Makes McNemar's test of two runs, if both say which images they got right and saw the same ones.
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
        test: SignificanceTest::Mcnemar,
        p: mcnemar(only(&ours, &theirs), only(&theirs, &ours)),
    })
}
