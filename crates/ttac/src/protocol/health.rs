//! Noticing when adaptation goes wrong.

use serde::{Deserialize, Serialize};

/// What happens when it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuardAction {
    /// It is written down.
    #[default]
    Warn,
    /// The run stops.
    Stop,
    /// The method goes back to the source and goes on from there.
    Reset,
}

/// Bounds, and what happens beyond them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Guard {
    /// What happens. A loss or weight that is not finite is never just a warning: the method is reset.
    pub action: GuardAction,
    /// Least entropy of the classes predicted in a batch, as a share of `ln K`. Only batches with at
    /// least four samples per class are judged.
    pub entropy_floor: f64,
    /// Largest distance of the parameters from the source, relative to their length.
    pub drift_limit: f64,
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            action: GuardAction::Warn,
            entropy_floor: 0.3,
            drift_limit: 1.0,
        }
    }
}

impl Guard {
    /// Whether too few classes are predicted: a word on it if so.
    pub(super) fn collapse(&self, predicted: &[usize], classes: usize) -> Option<String> {
        if predicted.len() < 4 * classes || classes < 2 {
            return None;
        }
        let mut counts = vec![0_usize; classes];
        for &class in predicted {
            counts[class] += 1;
        }
        let n = predicted.len() as f64;
        let entropy: f64 = counts
            .iter()
            .filter(|&&count| count > 0)
            .map(|&count| -(count as f64 / n) * (count as f64 / n).ln())
            .sum();
        let share = entropy / (classes as f64).ln();
        let used = counts.iter().filter(|&&count| count > 0).count();
        (share < self.entropy_floor)
            .then(|| format!("predictions fell to {used} of {classes} classes (entropy {share:.2} of its largest)"))
    }

    /// Whether the parameters are too far away.
    pub(super) fn drifted(&self, drift: f64) -> Option<String> {
        (drift > self.drift_limit)
            .then(|| format!("parameters are {drift:.2} of their length away from the source"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_large_batch_of_few_classes_is_a_collapse() {
        let guard = Guard::default();
        let balanced: Vec<usize> = (0..100).map(|i| i % 10).collect();
        assert_eq!(guard.collapse(&balanced, 10), None);
        assert!(guard.collapse(&[3; 100], 10).is_some());
        assert_eq!(guard.collapse(&[3; 30], 10), None, "too few to judge");
    }
}
