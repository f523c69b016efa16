//! Late labels: evidence that one lane is better than the other, and the answers that labels belong to.

use std::collections::{HashMap, VecDeque};

/// How many answers are remembered for labels to come.
const REMEMBERED: usize = 100_000;

/// From this evidence on a lane counts as better.
pub const ENOUGH: f64 = 20.0;

/// Returns the evidence that right answers of the first lane among disagreements are no luck: `a` times it was right and the other wrong,
/// `b` times the reverse.
///
/// It mixes the likelihood ratios `p^a (1 - p)^b / 2^-(a + b)` evenly over p in (1/2, 1], which gives
///
/// ```text
/// E = 2^(a+b+1) B(a+1, b+1) (1 - I_{1/2}(a+1, b+1))
/// ```
///
/// If the first lane is not better, the chance that E ever reaches 20 is at most 1 in 20, however often one looks and whatever the weights
/// do meanwhile. With whole numbers the incomplete beta function is a binomial sum, and E is a sum of ratios of binomial coefficients,
/// `sum_{k <= a} C(n, k) / C(n, a) / (b + 1)` with `n = a + b + 1`.
pub fn evidence(a: u64, b: u64) -> f64 {
    let n = a + b + 1;
    let (mut term, mut sum) = (1.0_f64, 0.0_f64);
    for k in (0..=a).rev() {
        sum += term;
        // C(n, k - 1) / C(n, k)
        term *= k as f64 / (n - k + 1) as f64;
        // Terms grow up to the middle and shrink below it for good.
        if !sum.is_finite() || (term < sum * 1e-18 && 2 * k < n) {
            break;
        }
    }
    (sum / (b + 1) as f64).min(f64::MAX)
}

/// What late labels have shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// The adapted lane was right and the source wrong.
    pub adapted: u64,
    /// The reverse.
    pub source: u64,
    /// All labels that belonged to a known answer.
    pub matched: u64,
}

impl Labels {
    /// Returns the evidence that the adapted lane is better.
    pub fn for_adapted(&self) -> f64 {
        evidence(self.adapted, self.source)
    }

    /// Returns the evidence that the source is better.
    pub fn for_source(&self) -> f64 {
        evidence(self.source, self.adapted)
    }
}

/// The classes that an image was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// By the adapted weights, if they were asked.
    pub adapted: Option<usize>,
    /// By the source, if it was asked.
    pub source: Option<usize>,
}

/// The newest answers, by the id of their request.
#[derive(Default)]
pub struct Ring {
    order: VecDeque<(u64, String)>,
    answers: HashMap<String, (u64, Vec<Given>)>,
    images: usize,
    added: u64,
}

impl Ring {
    /// Remembers the answers to a request. A later request of the same id takes the place of an earlier one.
    pub fn remember(&mut self, id: &str, given: Vec<Given>) {
        self.added += 1;
        self.images += given.len();
        self.order.push_back((self.added, id.to_owned()));
        if let Some((_, before)) = self.answers.insert(id.to_owned(), (self.added, given)) {
            self.images -= before.len();
        }
        while self.images > REMEMBERED || self.order.len() > REMEMBERED {
            let Some((number, id)) = self.order.pop_front() else {
                break;
            };
            // The id may have come again since.
            if self
                .answers
                .get(&id)
                .is_some_and(|(newest, _)| *newest == number)
                && let Some((_, old)) = self.answers.remove(&id)
            {
                self.images -= old.len();
            }
        }
    }

    /// Adds what the other weights say to a remembered request.
    pub fn complete(&mut self, id: &str, classes: &[usize], adapted: bool) {
        let Some((_, given)) = self.answers.get_mut(id) else {
            return;
        };
        for (given, &class) in given.iter_mut().zip(classes) {
            let place = if adapted {
                &mut given.adapted
            } else {
                &mut given.source
            };
            *place = Some(class);
        }
    }

    /// Takes out what an image was given, so that no label counts twice.
    pub fn take(&mut self, id: &str, index: usize) -> Option<Given> {
        let (_, given) = self.answers.get_mut(id)?;
        let given = given.get_mut(index)?;
        let known = given.adapted.is_some() || given.source.is_some();
        known.then(|| std::mem::take(given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `2 2^(a+b) integral of p^a (1 - p)^b over 1/2 to 1`, by Simpson's rule.
    fn integrated(a: u64, b: u64) -> f64 {
        let steps = 20_000;
        let width = 0.5 / steps as f64;
        let value = |step: usize| {
            let p = 0.5 + width * step as f64;
            2.0 * (2.0 * p).powf(a as f64) * (2.0 * (1.0 - p)).powf(b as f64)
        };
        let inner: f64 = (1..steps)
            .map(|s| value(s) * if s % 2 == 1 { 4.0 } else { 2.0 })
            .sum();
        (value(0) + inner + value(steps)) * width / 3.0
    }

    #[test]
    fn evidence_is_the_integral_that_it_stands_for() {
        for (a, b) in [
            (0, 0),
            (1, 0),
            (0, 1),
            (5, 2),
            (2, 5),
            (40, 20),
            (20, 40),
            (150, 90),
        ] {
            let (found, expected) = (evidence(a, b), integrated(a, b));
            let apart = (found - expected).abs() / expected;
            assert!(apart < 1e-9, "{a}, {b}: {found} and {expected}");
        }
        assert_eq!(evidence(0, 0), 1.0);
        assert!(evidence(100_000, 0) > 1e300, "and it is a number");
        assert!(evidence(100_000, 0).is_finite());
        assert!(evidence(0, 100_000) < 1e-4);
    }

    #[test]
    fn it_grows_with_right_answers_alone() {
        assert!(evidence(8, 0) > ENOUGH && evidence(5, 0) < ENOUGH);
        for n in 0..200 {
            assert!(evidence(n, n) <= 1.0);
            assert!(evidence(n + 1, n) > evidence(n, n));
            assert!(evidence(n, n + 1) < evidence(n, n));
        }
    }

    #[test]
    fn the_ring_remembers_the_newest_answers_and_each_label_counts_once() {
        let mut ring = Ring::default();
        let given = |class| Given {
            adapted: Some(class),
            source: None,
        };
        ring.remember("a", vec![given(1), given(2)]);
        ring.complete("a", &[3, 4], false);
        let both = Given {
            adapted: Some(2),
            source: Some(4),
        };
        assert_eq!(ring.take("a", 1), Some(both));
        assert_eq!(ring.take("a", 1), None);
        assert_eq!((ring.take("a", 2), ring.take("b", 0)), (None, None));
        ring.remember("a", vec![given(5)]);
        assert_eq!(ring.take("a", 0), Some(given(5)));
        for number in 0..REMEMBERED {
            ring.remember(&number.to_string(), vec![given(0)]);
        }
        assert_eq!(ring.images, REMEMBERED);
        assert!(!ring.answers.contains_key("a"));
        assert_eq!(ring.take("5", 0), Some(given(0)));
    }
}
