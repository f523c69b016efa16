//! Weight ensembling: after a step the trained parameters go a little way back, to the source or to a filtered average.

use serde::{Deserialize, Serialize};

use super::Learner;

/// Moves values by a share of the way to others.
pub(super) fn towards(values: &mut [f32], goal: &[f32], share: f64) {
    for (value, goal) in values.iter_mut().zip(goal) {
        let mixed = (1.0 - share) * f64::from(*value) + share * f64::from(*goal);
        *value = mixed as f32;
    }
}

/// Moves the trained parameters of a network by a share of the way to those of the source.
pub(super) fn towards_source(learner: &mut Learner, share: f64) {
    if share > 0.0 {
        let mut parameters = learner.parameters();
        towards(&mut parameters, &learner.source_parameters(), share);
        learner.set_parameters(&parameters);
    }
}

/// Constants of CMF's filter, whose average parameters the trained ones go back to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContinualFilter {
    /// The variance of a step of a network with `reference_parameters` trained parameters; it grows with their number.
    pub noise: f64,
    /// The number of trained parameters that `noise` is meant for.
    pub reference_parameters: f64,
    /// Share of the source in the average before each measurement.
    pub source_share: f64,
    /// The least share of the old average in the new one.
    pub least_memory: f64,
}

impl Default for ContinualFilter {
    fn default() -> Self {
        Self {
            noise: 0.005,
            reference_parameters: 38_400.0,
            source_share: 0.01,
            least_memory: 0.89,
        }
    }
}

/// From this share on the average does not follow at all.
const STILL: f64 = 0.9999;

impl ContinualFilter {
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, value) in [
            ("noise", self.noise),
            ("source_share", self.source_share),
            ("least_memory", self.least_memory),
        ] {
            if !(0.0..=1.0).contains(&value) {
                problems.push(format!("`filter.{name}` must be 0 to 1, found {value}"));
            }
        }
        if !(1.0..=1e12).contains(&self.reference_parameters) {
            problems.push(format!(
                "`filter.reference_parameters` must be 1 to 1e12, found {}",
                self.reference_parameters
            ));
        }
        problems
    }
}

/// A Kalman filter of one variance over all trained parameters (CMF, Lee and Chang, 2024).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct FilterState {
    /// The average parameters; none before the first step, when they are the source's.
    hidden: Option<Vec<f32>>,
    variance: f64,
}

impl FilterState {
    /// Returns the share of the old average in the new one, and takes note that another step was made. `noise` is the variance of a
    /// step.
    fn memory(&mut self, config: &ContinualFilter, noise: f64) -> f64 {
        self.variance = (1.0 - config.source_share).powi(2) * self.variance + noise;
        let memory = (1.0 - noise) / (self.variance + 1.0 - noise);
        let memory = memory.max(config.least_memory);
        let memory = if memory >= STILL { 1.0 } else { memory };
        self.variance *= memory;
        memory
    }

    /// Follows the trained parameters after a step, and moves them by a share of the way to the average.
    pub(super) fn filter(&mut self, config: &ContinualFilter, learner: &mut Learner, share: f64) {
        let source = learner.source_parameters();
        let mut parameters = learner.parameters();
        let noise = config.noise * parameters.len() as f64 / config.reference_parameters;
        let memory = self.memory(config, noise.min(1.0));
        let hidden = self.hidden.get_or_insert_with(|| source.clone());
        // Parameters of another network, which a session refuses before.
        hidden.resize(source.len(), 0.0);
        towards(hidden, &source, config.source_share);
        towards(hidden, &parameters, 1.0 - memory);
        towards(&mut parameters, hidden, share);
        learner.set_parameters(&parameters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_way() {
        let mut values = [1.0, -2.0];
        towards(&mut values, &[2.0, 0.0], 0.25);
        assert_eq!(values, [1.25, -1.5]);
    }

    #[test]
    fn the_filter_remembers_less_the_longer_it_runs() {
        let config = ContinualFilter::default();
        let mut state = FilterState::default();
        let mut memory = || state.memory(&config, 0.005);
        // The expected values have six decimals.
        for expected in [0.995, 0.990_172, 0.985_554] {
            assert!((memory() - expected).abs() < 1e-6);
        }
        let limit = (0..2000).map(|_| memory()).last().unwrap();
        assert!((limit - 0.939_991).abs() < 1e-6, "{limit}");
    }
}
