//! Tests that say whether a difference could be chance.

use serde::Serialize;

/// How likely a difference as large as the one found is by chance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Significance {
    /// The test that was made.
    pub test: SignificanceTest,
    /// The two-sided p-value.
    pub p: f64,
}

/// A test for paired results; all are exact and two-sided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SignificanceTest {
    /// Wilcoxon's signed-rank test over pairs of cells.
    SignedRank,
    /// McNemar's test over the images of one pair of cells.
    Mcnemar,
}

impl SignificanceTest {
    /// Names the test as a text would.
    pub fn name(self) -> &'static str {
        match self {
            Self::SignedRank => "Wilcoxon signed-rank test",
            Self::Mcnemar => "McNemar's test",
        }
    }
}

/// Returns the two-sided p-value of Wilcoxon's exact signed-rank test.
///
/// Differences of zero are left out, and differences of equal size share their mean rank. Under the
/// hypothesis every difference could as well have the other sign, so the distribution of the rank sum
/// is counted over all choices of signs.
pub fn signed_rank(differences: &[f64]) -> f64 {
    let mut sizes: Vec<(f64, bool)> = differences
        .iter()
        .filter(|difference| **difference != 0.0)
        .map(|difference| (difference.abs(), *difference > 0.0))
        .collect();
    sizes.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Twice the ranks, which are whole numbers even for ties.
    let mut ranks: Vec<usize> = Vec::with_capacity(sizes.len());
    for tie in sizes.chunk_by(|a, b| a.0 == b.0) {
        let before = ranks.len();
        ranks.extend(std::iter::repeat_n(2 * before + 1 + tie.len(), tie.len()));
    }
    let positive = ranks
        .iter()
        .zip(&sizes)
        .filter(|(_, (_, positive))| *positive);
    let positive: usize = positive.map(|(rank, _)| rank).sum();
    let total: usize = ranks.iter().sum();
    // Probabilities of all rank sums.
    let mut chances = vec![0.0_f64; total + 1];
    chances[0] = 1.0;
    for rank in &ranks {
        for sum in (0..=total).rev() {
            let with = sum.checked_sub(*rank).map_or(0.0, |rest| chances[rest]);
            chances[sum] = 0.5 * (chances[sum] + with);
        }
    }
    let tail: f64 = chances[..=positive.min(total - positive)].iter().sum();
    (2.0 * tail).min(1.0)
}

/// Returns the two-sided p-value of McNemar's exact test.
///
/// `only_first` images were right in the first run alone and `only_second` in the second alone. Under
/// the hypothesis each of them could as well have been right in the other run.
pub fn mcnemar(only_first: usize, only_second: usize) -> f64 {
    let count = only_first + only_second;
    let mut log_chance = -(count as f64) * std::f64::consts::LN_2;
    let mut tail = 0.0;
    for k in 0..=only_first.min(only_second) {
        if k > 0 {
            log_chance += ((count + 1 - k) as f64 / k as f64).ln();
        }
        tail += log_chance.exp();
    }
    (2.0 * tail).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_ranks_are_those_counted_by_hand() {
        // All of one sign: two of the 2^n choices of signs are as extreme.
        assert_eq!(signed_rank(&[1.0, 2.0, 3.0, 4.0, 5.0]), 2.0 / 32.0);
        assert_eq!(
            signed_rank(&[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]),
            2.0 / 64.0
        );
        // Negative rank sum 5; of 32 subsets of ranks 10 have a sum of at most 5.
        assert_eq!(signed_rank(&[1.0, 2.0, 3.0, 4.0, -5.0]), 20.0 / 32.0);
        // Ranks 2, 2, 2, 4.5, 4.5; the empty set and three of a single 2 are as extreme.
        assert_eq!(signed_rank(&[1.0, 1.0, -1.0, 2.0, 2.0]), 8.0 / 32.0);
        // A zero says nothing.
        assert_eq!(signed_rank(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), 2.0 / 32.0);
        assert_eq!(signed_rank(&[0.0, 0.0]), 1.0);
        // Fifteen corruptions that agree.
        let agreeing: Vec<f64> = (1..=15).map(f64::from).collect();
        assert_eq!(signed_rank(&agreeing), 2.0 / 32768.0);
    }

    #[test]
    fn mcnemar_is_the_binomial_tail() {
        // 2 (1 + 10) / 2^10.
        assert!((mcnemar(1, 9) - 22.0 / 1024.0).abs() < 1e-15);
        assert_eq!(mcnemar(9, 1), mcnemar(1, 9));
        assert_eq!(mcnemar(0, 0), 1.0);
        assert_eq!(mcnemar(5, 5), 1.0);
        // Large counts neither overflow nor vanish.
        let p = mcnemar(4800, 5200);
        assert!((6e-5..7e-5).contains(&p), "{p}");
    }
}
