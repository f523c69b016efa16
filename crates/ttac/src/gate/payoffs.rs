//! Mean payoffs of the classes, and of groups of rare classes.

use serde::{Deserialize, Serialize};

/// A class with fewer images than this shares its mean payoff with others.
pub(super) const FEWEST_OF_GROUP: usize = 50;

/// The payoffs of a class, or of several classes that have too few images each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PayoffGroup {
    /// The classes of the group.
    pub classes: Vec<usize>,
    /// How many images the group has.
    pub samples: u64,
    /// The mean payoff of its images.
    pub mean: f64,
    /// The standard error of the mean, `sqrt(sum (g - mean)^2 / (n - 1) / n)`.
    pub standard_error: f64,
}

/// Groups classes, whose payoffs are given, so that each group has enough images.
pub(super) fn groups(payoffs: &[Vec<f64>]) -> Vec<PayoffGroup> {
    let present = (0..payoffs.len()).filter(|&class| !payoffs[class].is_empty());
    let (large, mut small): (Vec<usize>, Vec<usize>) =
        present.partition(|&class| payoffs[class].len() >= FEWEST_OF_GROUP);
    let by_mean = |a: &usize, b: &usize| mean(&payoffs[*a]).total_cmp(&mean(&payoffs[*b]));
    small.sort_by(by_mean);
    let (mut shared, mut joined, mut count) = (Vec::new(), Vec::new(), 0);
    for class in small {
        joined.push(class);
        count += payoffs[class].len();
        if count >= FEWEST_OF_GROUP {
            shared.push(std::mem::take(&mut joined));
            count = 0;
        }
    }
    let mut members: Vec<Vec<usize>> = large.iter().map(|&class| vec![class]).collect();
    let last = match shared.last_mut() {
        Some(group) => Some(group),
        None => members.iter_mut().max_by(|a, b| by_mean(&a[0], &b[0])),
    };
    if let Some(group) = last {
        group.append(&mut joined);
    }
    members.append(&mut shared);
    let group = |classes: Vec<usize>| {
        let payoffs: Vec<f64> = classes
            .iter()
            .flat_map(|&class| payoffs[class].clone())
            .collect();
        let (count, mean) = (payoffs.len() as f64, mean(&payoffs));
        let squares: f64 = payoffs.iter().map(|payoff| (payoff - mean).powi(2)).sum();
        PayoffGroup {
            classes,
            samples: payoffs.len() as u64,
            mean,
            standard_error: (squares / (count - 1.0) / count).sqrt(),
        }
    };
    members.into_iter().map(group).collect()
}

/// Returns the mean of numbers.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
