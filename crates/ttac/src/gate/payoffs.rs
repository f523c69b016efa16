//! Mean payoffs of the classes, where rare classes borrow from each other.
//!
//! The mean payoff of a class with fewer than 50 images is uncertain, and the largest of many uncertain means is far
//! too high. So the means of rare classes are moved towards the mean of all rare classes: empirical-Bayes shrinkage.
//! Let `n_y` be the number of images of the rare class `y`, `m_y` the mean of their payoffs, `n` the number of images
//! of all `k` rare classes, and `m` the mean of all their payoffs. With
//!
//! ```text
//! s2 = sum_y sum_{g of y} (g - m_y)^2 / (n - k)                                 the variance within classes
//! d  = n - sum_y n_y^2 / n
//! t2 = max(0, (sum_y n_y (m_y - m)^2 - (k - 1) s2) / d) + s2 sqrt(2 (k - 1)) / d    the variance between classes
//! vm = s2 / n + t2 sum_y n_y^2 / n^2                                            the variance of m
//! b  = t2 / (t2 + s2 / n_y)
//! ```
//!
//! the class has
//!
//! ```text
//! mean           = m + b (m_y - m)
//! standard_error = sqrt(b s2 / n_y + (1 - b)^2 vm + s2 / l_y)
//! ```
//!
//! A class without images has `b = 0` and the standard error `sqrt(t2 + vm + s2 / l_y)`.
//!
//! The first term of `t2` is the moment estimator of `DerSimonian` and Laird (1986). It is often zero although the
//! classes differ, so the second term adds its standard error, which is that of classes without a difference. Without
//! this, 16 of 100 sorted clean streams raised an alarm in a simulation of 100 little different classes with 10 images
//! each; with it, none did.
//!
//! `l_y` is the number of scores that images of the predicted class `y` are compared with. These scores are those of
//! the same images, so that about half of them are above the middle, whatever the scores are: the payoffs of the
//! calibration cannot tell that a list of scores is too low as a whole. Payoffs of new images can. Given a list of
//! `l` scores, their mean has the variance `s2 / l`, up to terms in `1 / l^2`. Without this, 16 to 23 of 100 sorted
//! clean streams raised an alarm in a simulation of 100 alike or little different classes with 20 images each; with
//! both terms, at most 1 did.

use serde::{Deserialize, Serialize};

/// The mean payoff of a class with fewer images than this is estimated with the help of other classes.
pub(super) const FEWEST_OF_GROUP: usize = 50;

/// The mean payoff of a class, or of several classes together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PayoffGroup {
    /// The classes of the group.
    pub classes: Vec<usize>,
    /// How many images the group has.
    pub samples: u64,
    /// The mean payoff of its images; if `shrunk`, moved towards the mean of all rare classes.
    pub mean: f64,
    /// The standard error of the mean, `sqrt(sum (g - mean)^2 / (n - 1) / n)`; if `shrunk`, that of the moved mean.
    pub standard_error: f64,
    /// Whether this is a single class with so few images that its mean was moved towards that of other such classes.
    #[serde(default)]
    pub shrunk: bool,
}

/// Estimates the mean payoff of each class from the payoffs of its images.
///
/// A class of at least 50 images is a group as it is. If the others have 50 images together, each of them is a group
/// with a shrunk mean, also if it has no image; `lists` has the number of scores that images of each predicted class
/// are compared with. If they have fewer, they join the group of the largest mean, except for classes without images,
/// which have no group then.
pub(super) fn groups(payoffs: &[Vec<f64>], lists: &[usize]) -> Vec<PayoffGroup> {
    let (large, rare): (Vec<usize>, Vec<usize>) =
        (0..payoffs.len()).partition(|&class| payoffs[class].len() >= FEWEST_OF_GROUP);
    let mut members: Vec<Vec<usize>> = large.into_iter().map(|class| vec![class]).collect();
    let images: usize = rare.iter().map(|&class| payoffs[class].len()).sum();
    let shrunk = if images >= FEWEST_OF_GROUP {
        shrunk(payoffs, lists, &rare)
    } else {
        let highest = members
            .iter_mut()
            .max_by(|a, b| mean(&payoffs[a[0]]).total_cmp(&mean(&payoffs[b[0]])));
        if let Some(group) = highest {
            group.extend(rare.iter().filter(|&&class| !payoffs[class].is_empty()));
        }
        Vec::new()
    };
    let whole = members.into_iter().map(|classes| {
        let own = classes.iter().flat_map(|&class| payoffs[class].clone());
        let own: Vec<f64> = own.collect();
        let (count, mean) = (own.len() as f64, mean(&own));
        PayoffGroup {
            classes,
            samples: own.len() as u64,
            mean,
            standard_error: (squares(&own, mean) / (count - 1.0) / count).sqrt(),
            shrunk: false,
        }
    });
    whole.chain(shrunk).collect()
}

/// Estimates the mean payoffs of rare classes, which have at least 50 images together, by the formulas above. If fewer
/// than 50 images are left after one of each class, `s2` is the variance of all payoffs instead, which is higher.
fn shrunk(payoffs: &[Vec<f64>], lists: &[usize], rare: &[usize]) -> Vec<PayoffGroup> {
    let present: Vec<&[f64]> = rare
        .iter()
        .map(|&class| &payoffs[class][..])
        .filter(|own| !own.is_empty())
        .collect();
    let all = present.concat();
    let (n, k, m) = (all.len() as f64, present.len() as f64, mean(&all));
    let s2 = if all.len() - present.len() >= FEWEST_OF_GROUP {
        let within = present.iter().map(|own| squares(own, mean(own)));
        within.sum::<f64>() / (n - k)
    } else {
        squares(&all, m) / (n - 1.0)
    };
    let between = present
        .iter()
        .map(|own| own.len() as f64 * (mean(own) - m).powi(2));
    let sizes = present.iter().map(|own| (own.len() as f64).powi(2));
    let sizes = sizes.sum::<f64>() / n;
    let d = n - sizes;
    let moment = (between.sum::<f64>() - (k - 1.0) * s2) / d;
    let t2 = moment.max(0.0) + s2 * (2.0 * (k - 1.0)).sqrt() / d;
    let vm = s2 / n + t2 * sizes / n;
    let group = |&class: &usize| {
        let own = &payoffs[class];
        let (shift, variance) = if own.is_empty() {
            (0.0, t2 + vm)
        } else {
            let sampling = s2 / own.len() as f64;
            // Payoffs that are all equal have no variance at all, and nothing to shrink.
            let b = if t2 > 0.0 { t2 / (t2 + sampling) } else { 0.0 };
            (b * (mean(own) - m), b * sampling + (1.0 - b).powi(2) * vm)
        };
        PayoffGroup {
            classes: vec![class],
            samples: own.len() as u64,
            mean: m + shift,
            standard_error: (variance + s2 / lists[class] as f64).sqrt(),
            shrunk: true,
        }
    };
    rare.iter().map(group).collect()
}

/// Returns the mean of numbers.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the sum of the squared distances of numbers from their mean.
fn squares(values: &[f64], mean: f64) -> f64 {
    values.iter().map(|value| (value - mean).powi(2)).sum()
}
