use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Error, Result, best};

/// The trust of a sample that may be used. A rejected one falls to zero and gains one per epoch; in
/// the released code trust is a float that gains 0.2.
const FULL_TRUST: u8 = 5;

/// Which tests a sample must pass before its pseudo-label enters the class statistics.
///
/// The option `posterior` of the released code is none of these: it is soft assignment, see
/// [`responsibilities`](super::responsibilities).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilterMode {
    /// The sample must be consistent over time and confident.
    #[default]
    Full,
    /// The sample must be consistent over time.
    Temporal,
    /// The sample must be confident.
    Confidence,
    /// Every sample passes.
    None,
}

/// Where a pseudo-label comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LabelSource {
    /// The class with the largest averaged posterior, as in the released code.
    #[default]
    Average,
    /// The class with the largest posterior of this visit, as in the paper. The averaged posterior of
    /// that class must pass the threshold.
    Posterior,
}

/// What becomes of a sample that is [forgotten](PseudoLabelFilter::forget).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// It is dropped, which bounds the memory on an endless stream. No result changes unless a
    /// sample that left the queue arrives once more.
    #[default]
    Forget,
    /// It is kept, as in the released code, which knows its samples beforehand.
    Keep,
}

/// The thresholds and variants of the [`PseudoLabelFilter`]. The default is what the released code
/// uses for CIFAR.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FilterConfig {
    /// Which tests a sample must pass.
    pub mode: FilterMode,
    /// `tau_TC`, a negative number: a posterior may fall short of its average by no more than this.
    pub temporal_threshold: f64,
    /// `tau_PP`: the averaged posterior must be above this.
    pub posterior_threshold: f64,
    /// `xi`: how much the newest posterior weighs in the average.
    pub average_weight: f64,
    /// Whether a sample that failed the temporal test stays out for the rest of the epoch and the
    /// four after it, as in the released code, or only for the visit, as in the paper.
    pub sticky: bool,
    /// Where pseudo-labels come from.
    pub label_source: LabelSource,
    /// What becomes of samples that leave the queue.
    pub eviction: Eviction,
}

impl Default for FilterConfig {
    fn default() -> Self {
        Self {
            mode: FilterMode::Full,
            temporal_threshold: -0.001,
            posterior_threshold: 0.9,
            average_weight: 0.9,
            sticky: true,
            label_source: LabelSource::Average,
            eviction: Eviction::Forget,
        }
    }
}

impl FilterConfig {
    /// Checks that every value is in its range; the error lists all that are not.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        let mut check = |name: &str, value: f64, lowest: f64, highest: f64| {
            if !(lowest..=highest).contains(&value) {
                problems.push(format!(
                    "expected `{name}` from {lowest} to {highest}, found {value}"
                ));
            }
        };
        check("temporal_threshold", self.temporal_threshold, -1.0, 1.0);
        check("posterior_threshold", self.posterior_threshold, 0.0, 1.0);
        check("average_weight", self.average_weight, 0.0, 1.0);
        Error::invalid_if_any("pseudo-label filter", &problems)
    }
}

/// Decides which samples carry their pseudo-label, and remembers their posteriors.
///
/// `docs/methods.md` derives the tests under "Pseudo-label filter". For a sample with posterior `P` and averaged posterior `E`, zero before its first visit:
///
/// 1. With `k = argmax P`, the temporal test is `P_k > E_k + tau_TC`. A sample that fails it loses its
///    trust. Passing it later does not return the trust; [`recover`](Self::recover) does, in five steps.
/// 2. `E <- (1 - xi) E + xi P`, element by element, and `E <- P` where `E` is exactly zero.
/// 3. The pseudo-label is `argmax E`, and it is accepted if the trust is whole and
///    `max E > tau_PP`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PseudoLabelFilter {
    config: FilterConfig,
    classes: usize,
    samples: BTreeMap<u64, Memory>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    /// `[K]`.
    average: Vec<f32>,
    trust: u8,
}

/// How many samples passed, and what stopped the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterCounts {
    /// Samples that passed every test.
    pub accepted: usize,
    /// Samples that were inconsistent over time, confident or not.
    pub rejected_by_time: usize,
    /// Samples that were consistent and not confident.
    pub rejected_by_confidence: usize,
}

/// What the filter decided about a minibatch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// The pseudo-label of every sample, accepted or not, `[b]`.
    pub labels: Vec<usize>,
    /// Whether each pseudo-label may be used, `[b]`.
    pub accepted: Vec<bool>,
    /// How many samples passed, and what stopped the others.
    pub counts: FilterCounts,
}

impl Observation {
    /// Returns the pseudo-labels that may be used, `[b]`, and nothing for the other samples.
    pub fn accepted_labels(&self) -> Vec<Option<usize>> {
        let pairs = self.labels.iter().zip(&self.accepted);
        pairs
            .map(|(&label, accepted)| accepted.then_some(label))
            .collect()
    }
}

impl PseudoLabelFilter {
    /// Makes a filter that knows no sample yet.
    pub fn new(config: FilterConfig, classes: usize) -> Result<Self> {
        config.validate()?;
        if classes == 0 {
            return Err(Error::Invalid {
                what: "pseudo-label filter",
                problem: "there are no classes".to_owned(),
            });
        }
        Ok(Self {
            config,
            classes,
            samples: BTreeMap::new(),
        })
    }

    /// Returns the configuration that the filter was made with.
    pub fn config(&self) -> &FilterConfig {
        &self.config
    }

    /// Returns how many samples the filter remembers.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Tells whether the filter remembers no sample.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Returns the averaged posterior of a sample, `[K]`, if it is remembered.
    pub fn average(&self, id: u64) -> Option<&[f32]> {
        self.samples
            .get(&id)
            .map(|memory| memory.average.as_slice())
    }

    /// Visits samples with their `posteriors`, `[b, K]`, and decides about each. Posteriors that are
    /// not finite are an error, and then nothing is remembered of any sample of the batch.
    pub fn observe(&mut self, ids: &[u64], posteriors: &[f32]) -> Result<Observation> {
        assert_eq!(
            posteriors.len(),
            ids.len() * self.classes,
            "expected {} posteriors for each of {} samples",
            self.classes,
            ids.len()
        );
        if let Some(position) = posteriors.iter().position(|value| !value.is_finite()) {
            let sample = ids[position / self.classes];
            return Err(Error::Invalid {
                what: "posteriors",
                problem: format!("those of sample {sample} are not finite"),
            });
        }
        let mut observation = Observation::default();
        for (&id, posterior) in ids.iter().zip(posteriors.chunks_exact(self.classes)) {
            let (label, in_time, confident) = self.visit(id, posterior);
            let counts = &mut observation.counts;
            let count = match (in_time, confident) {
                (true, true) => &mut counts.accepted,
                (true, false) => &mut counts.rejected_by_confidence,
                (false, _) => &mut counts.rejected_by_time,
            };
            *count += 1;
            observation.labels.push(label);
            observation.accepted.push(in_time && confident);
        }
        Ok(observation)
    }

    /// Returns the pseudo-label of one sample, whether it passes the temporal test, and whether it is
    /// confident.
    fn visit(&mut self, id: u64, posterior: &[f32]) -> (usize, bool, bool) {
        let config = &self.config;
        let memory = self.samples.entry(id).or_insert_with(|| Memory {
            average: vec![0.0; posterior.len()],
            trust: FULL_TRUST,
        });
        let (strongest, _) = best(posterior);
        let allowed = memory.average[strongest] + config.temporal_threshold as f32;
        let passed = posterior[strongest] > allowed;
        if !passed {
            memory.trust = 0;
        }
        // The complement is taken before rounding: 0.1, not what 0.9 in `f32` leaves of one.
        let newest = config.average_weight as f32;
        let older = (1.0 - config.average_weight) as f32;
        for (average, &value) in memory.average.iter_mut().zip(posterior) {
            *average = if *average == 0.0 {
                value
            } else {
                older * *average + newest * value
            };
        }
        let label = match config.label_source {
            LabelSource::Average => best(&memory.average).0,
            LabelSource::Posterior => strongest,
        };
        let confident = memory.average[label] > config.posterior_threshold as f32;
        let in_time = if config.sticky {
            memory.trust == FULL_TRUST
        } else {
            passed
        };
        match config.mode {
            FilterMode::Full => (label, in_time, confident),
            FilterMode::Temporal => (label, in_time, true),
            FilterMode::Confidence => (label, true, confident),
            FilterMode::None => (label, true, true),
        }
    }

    /// Returns a fifth of the trust to every sample that lost it. Call this at the start of every
    /// epoch that takes gradient steps.
    pub fn recover(&mut self) {
        for memory in self.samples.values_mut() {
            memory.trust = (memory.trust + 1).min(FULL_TRUST);
        }
    }

    /// Drops samples that left the queue, unless the configuration says [`Eviction::Keep`].
    pub fn forget(&mut self, ids: &[u64]) {
        if self.config.eviction == Eviction::Forget {
            for id in ids {
                self.samples.remove(id);
            }
        }
    }
}

#[cfg(test)]
mod tests;
