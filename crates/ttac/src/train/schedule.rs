//! Learning rates over time.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// How the learning rate falls after the warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Schedule {
    /// It does not.
    Constant {},
    /// Half a cosine, moving at every step, down to a share of the highest rate.
    Cosine {
        /// The share at the end.
        floor: f64,
    },
    /// By a factor at the start of given epochs, counted from zero.
    Step {
        /// The epochs.
        milestones: Vec<usize>,
        /// The factor.
        factor: f64,
    },
}

impl Schedule {
    pub(super) fn problems(&self, epochs: usize) -> Vec<String> {
        match self {
            Self::Constant {} => Vec::new(),
            Self::Cosine { floor } if (0.0..=1.0).contains(floor) => Vec::new(),
            Self::Cosine { floor } => vec![format!("`floor` must be 0 to 1, found {floor}")],
            Self::Step { milestones, factor } => {
                let mut problems = Vec::new();
                if !(factor.is_finite() && *factor > 0.0) {
                    problems.push(format!("`factor` must be positive, found {factor}"));
                }
                if let Some(late) = milestones.iter().find(|&&epoch| epoch >= epochs) {
                    problems.push(format!("milestone {late} is not below {epochs} epochs"));
                }
                problems
            }
        }
    }

    /// The share of the highest learning rate at a time, both in epochs; `epochs` is the end.
    ///
    /// ```
    /// use ttac::train::Schedule;
    ///
    /// let cosine = Schedule::Cosine { floor: 0.0 };
    /// assert_eq!(cosine.share(0.0, 0.0, 10.0), 1.0);
    /// assert!((cosine.share(5.0, 0.0, 10.0) - 0.5).abs() < 1e-12);
    /// // Two epochs of warm-up.
    /// assert_eq!(cosine.share(1.0, 2.0, 10.0), 0.5);
    /// ```
    pub fn share(&self, time: f64, warm_up: f64, epochs: f64) -> f64 {
        if time < warm_up {
            return time / warm_up;
        }
        match self {
            Self::Constant {} => 1.0,
            Self::Cosine { floor } => {
                let way = (time - warm_up) / (epochs - warm_up);
                floor + (1.0 - floor) * 0.5 * (1.0 + (PI * way).cos())
            }
            Self::Step { milestones, factor } => {
                let passed = milestones.iter().filter(|&&epoch| time >= epoch as f64);
                factor.powi(passed.count() as i32)
            }
        }
    }
}
