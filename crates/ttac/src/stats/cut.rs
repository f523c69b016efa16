//! Ways to cut a sample into parts, for tests that the parts together give what the whole gives.

use std::ops::Range;

use proptest::prelude::*;

/// Parts of a sample, `[n, dimension]`, by their numbers of rows.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    /// The seed of the sample.
    pub seed: u64,
    /// How many numbers a row has.
    pub dimension: usize,
    /// Rows of each part. Some parts are empty; the last has one row, so that there is a sample at all.
    sizes: Vec<usize>,
}

impl Cut {
    /// Draws a cut into two to six parts of fewer than `bound` rows.
    pub fn any(dimensions: Range<usize>, bound: usize) -> impl Strategy<Value = Self> {
        let sizes = prop::collection::vec(0..bound, 1..6);
        let drawn = (any::<u64>(), dimensions, sizes);
        drawn.prop_map(|(seed, dimension, mut sizes)| {
            sizes.push(1);
            Self {
                seed,
                dimension,
                sizes,
            }
        })
    }

    /// Counts the rows of all parts.
    pub fn count(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// Cuts the rows of a sample.
    pub fn parts<'a>(&self, mut rows: &'a [f32]) -> Vec<&'a [f32]> {
        let part = |&size: &usize| rows.split_off(..size * self.dimension).unwrap();
        self.sizes.iter().map(part).collect()
    }
}
