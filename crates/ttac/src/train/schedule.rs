//! Learning rates over time.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// How the learning rate falls after the warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Schedule {
    /// The learning rate does not fall.
    Constant {},
    /// The learning rate follows half a cosine, step by step, down to a share of the highest rate.
    Cosine {
        /// The share of the highest rate at the end.
        floor: f64,
    },
    /// The learning rate is multiplied by a factor at the start of given epochs.
    Step {
        /// The epochs at whose start it is multiplied, counted from zero.
        milestones: Vec<usize>,
        /// The factor, for example 0.1.
        factor: f64,
    },
    /// The learning rate is multiplied by a factor when the mean training loss has not fallen for some
    /// epochs, as PyTorch's `ReduceLROnPlateau` does it. An epoch is better than the best before if its
    /// loss is below that by one in ten thousand.
    Plateau {
        /// The factor, for example 0.5.
        factor: f64,
        /// The number of epochs without a better loss that are let pass.
        patience: usize,
        /// The least share of the highest rate.
        floor: f64,
    },
}

impl Schedule {
    /// The schedule of DGCNN: halved after ten epochs without progress, down to a hundredth.
    pub const PLATEAU: Self = Self::Plateau {
        factor: 0.5,
        patience: 10,
        floor: 0.01,
    };

    /// Returns the share of the learning rate that [`Plateau`](Self::Plateau) leaves after epochs with
    /// these mean losses; one for the other schedules.
    ///
    /// ```
    /// use ttac::train::Schedule;
    ///
    /// let losses = [2.0, 1.0, 1.0, 1.5];
    /// let schedule = |patience| Schedule::Plateau { factor: 0.5, patience, floor: 0.01 };
    /// assert_eq!(schedule(1).share_after(&losses), 0.5);
    /// assert_eq!(schedule(2).share_after(&losses), 1.0);
    /// ```
    pub fn share_after(&self, losses: &[f64]) -> f64 {
        let Self::Plateau {
            factor,
            patience,
            floor,
        } = self
        else {
            return 1.0;
        };
        let (mut share, mut best, mut waited) = (1.0, f64::INFINITY, 0);
        for &loss in losses {
            if loss < best * (1.0 - 1e-4) {
                (best, waited) = (loss, 0);
            } else {
                waited += 1;
            }
            if waited > *patience {
                share = f64::max(share * factor, *floor);
                waited = 0;
            }
        }
        share
    }

    /// Lists what is wrong with the schedule for a run of so many epochs.
    pub(super) fn problems(&self, epochs: usize) -> Vec<String> {
        match self {
            Self::Constant {} => Vec::new(),
            Self::Cosine { floor } if (0.0..=1.0).contains(floor) => Vec::new(),
            Self::Cosine { floor } => vec![format!("`floor` must be 0 to 1, found {floor}")],
            Self::Plateau { factor, floor, .. } => {
                let fits = |x: f64| (0.0..=1.0).contains(&x);
                let pairs = [("factor", *factor), ("floor", *floor)];
                let wrong = pairs.into_iter().filter(|(_, value)| !fits(*value));
                wrong
                    .map(|(name, value)| format!("`{name}` must be 0 to 1, found {value}"))
                    .collect()
            }
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

    /// Returns the share of the highest learning rate at a time. All times are in epochs, and `epochs`
    /// is the end of the run.
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
            Self::Constant {} | Self::Plateau { .. } => 1.0,
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
