//! The shares of the classes among recent samples, and what they say about the next ones.
//!
//! A classifier has learned how often each class comes, and expects the same of the stream. Where classes come in runs that is wrong for
//! a while: among the last pictures there were mostly cats, so a picture that is either a cat or a dog is a cat. [`RecentShares`] estimates
//! the shares `q` of the last samples from their probabilities `p` by expectation maximisation (Saerens, Latinne and Decaestecker, 2002),
//!
//! ```text
//! r_ik = p_ik q_k / u_k / sum_j p_ij q_j / u_j          q_k = (sum_i r_ik + K u_k) / (n + K)
//! ```
//!
//! with the *usual* shares `u`, and adds `T ln(q_k / u_k)` to the scores, `T` the temperature of the probabilities.
//!
//! What keeps it from harm is `u`. Under a shift a network prefers some classes without any run of them, and to believe it would make
//! that worse. So `u` is not what the source had but a long average of the network's own probabilities, which starts at the source's
//! shares: a preference that stays is usual, and changes nothing. Nothing is changed either before a whole window was answered, nor while
//! the mean of the recent probabilities, which is `q` after the first round, is near `u`: `KL(q, u)` is below a tenth by chance.
//!
//! Nothing is learned from corrected scores. A network that learns from them comes to prefer the classes that it was told are frequent, and
//! where shifts come and go it ends with a few classes for everything.
//!
//! Where classes come in runs, the nearest samples of a batch have the same class, and after the correction answers can be moved to agree
//! with those of their neighbours ([`Agreement`], LAME). On a stream whose classes are mixed that makes them worse, so it is done only
//! while `KL(q, u)` is not small, and as far as the correction is.

use std::collections::VecDeque;

use burn::tensor::{Tensor, activation::softmax};
use serde::{Deserialize, Serialize};

use crate::agreement::Agreement;
use crate::archive::{Array, Arrays};
use crate::{Error, Result};

/// Rounds of expectation maximisation. The shares of a run settle within ten.
const ROUNDS: usize = 20;

/// The least weight of the source in the long average, in samples. Without it a class that never comes would weigh nothing after some
/// millions of samples, and nothing can be compared with nothing.
const LEAST_WEIGHT: f64 = 1e-3;

/// How recent shares are estimated and used. The constants were chosen with a ResNet-20 on the four held-out corruptions of CIFAR-10, each alone and
/// one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharesConfig {
    /// How many samples are recent. A batch that is larger counts as a whole.
    pub window: usize,
    /// After how many samples the usual shares forget.
    pub memory: f64,
    /// What scores are divided by, because networks are too sure of themselves under a shift.
    pub temperature: f64,
    /// Below this divergence of the recent mean from the usual shares, in nats, nothing is changed.
    pub least: f64,
    /// From this divergence on scores are changed fully; in between, in proportion.
    pub full: f64,
    /// How answers are moved to agree with those of similar samples of their batch after that; none for not at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreement: Option<Agreement>,
}

impl Default for SharesConfig {
    fn default() -> Self {
        Self {
            window: 64,
            memory: 2560.0,
            temperature: 2.0,
            least: 0.2,
            full: 0.4,
            agreement: None,
        }
    }
}

impl SharesConfig {
    /// Checks the numbers; the error lists everything that is wrong with them.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        if !(1..=1_000_000).contains(&self.window) {
            problems.push(format!(
                "`window` must be 1 to 1000000, found {}",
                self.window
            ));
        }
        if !(self.memory >= self.window as f64 && self.memory <= 1e9) {
            problems.push(format!(
                "`memory` must be at least the window and at most 1e9, found {}",
                self.memory
            ));
        }
        if !(self.temperature > 0.0 && self.temperature <= 100.0) {
            problems.push(format!(
                "`temperature` must be above 0 and at most 100, found {}",
                self.temperature
            ));
        }
        if !(self.least >= 0.0 && self.least < self.full && self.full.is_finite()) {
            problems.push(format!(
                "`least` must be at least 0 and below `full`, found {} and {}",
                self.least, self.full
            ));
        }
        problems.extend(self.agreement.iter().flat_map(Agreement::problems));
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "recent shares",
            problem: problems.join("; "),
        })
    }
}

/// Follows the shares of the classes in a stream and corrects scores by them.
#[derive(Clone, Debug, PartialEq)]
pub struct RecentShares {
    config: SharesConfig,
    /// The shares at the start, `[classes]`.
    source: Vec<f64>,
    state: State,
}

/// What was seen so far.
#[derive(Clone, Debug, PartialEq)]
struct State {
    /// The probabilities of the newest samples, oldest first, `[samples, classes]`.
    recent: VecDeque<f32>,
    /// The weight of every class in the long average, `[classes]`.
    usual: Vec<f64>,
    /// How many samples were answered.
    samples: u64,
}

impl RecentShares {
    /// Starts with the classes' counts in the source, or with equal shares where nothing is known about it.
    pub fn new(config: SharesConfig, num_classes: usize, counts: Option<&[u64]>) -> Self {
        let counts = counts.filter(|counts| counts.len() == num_classes);
        // One more for each class, so that none is impossible.
        let count = |class: usize| counts.map_or(1.0, |counts| counts[class] as f64 + 1.0);
        let all: f64 = (0..num_classes).map(count).sum();
        let source: Vec<f64> = (0..num_classes).map(|class| count(class) / all).collect();
        Self {
            config,
            state: State::new(&config, &source),
            source,
        }
    }

    /// Returns what the shares of the remembered samples add to the score of each class, if anything.
    pub(crate) fn terms(&self) -> Option<Vec<f32>> {
        self.correction(&[]).map(|(terms, _)| terms)
    }

    /// Whether answers may be moved to agree with those of similar samples of their batch.
    pub(crate) fn compares(&self) -> bool {
        self.config.agreement.is_some()
    }

    /// Whether the answers of samples with these scores, `[batch, classes]`, are moved to agree with those of similar samples.
    pub(crate) fn agrees(&self, scores: &Tensor<2>) -> bool {
        let probabilities = || self.probabilities(scores);
        self.config.agreement.is_some() && self.correction(&probabilities()).is_some()
    }

    /// Corrects scores, and where there are features, `[batch, D]`, moves them to agree with those of similar samples, as far as
    /// the configuration says.
    pub(crate) fn finish(
        &self,
        scores: Tensor<2>,
        features: impl FnOnce() -> Option<Tensor<2>>,
    ) -> Tensor<2> {
        let probabilities = self.probabilities(&scores);
        let Some((terms, strength)) = self.correction(&probabilities) else {
            return scores;
        };
        let terms = Tensor::<1>::from_floats(terms.as_slice(), &scores.device());
        let corrected = scores + terms.unsqueeze();
        let Some(agreement) = self.config.agreement else {
            return corrected;
        };
        match features() {
            Some(features) => agreement.apply(corrected, &features, strength),
            None => corrected,
        }
    }

    /// Finishes the scores of answered samples, `[batch, classes]`, and remembers them.
    pub fn answer(&mut self, scores: Tensor<2>, features: Option<Tensor<2>>) -> Tensor<2> {
        let probabilities = self.probabilities(&scores);
        let finished = self.finish(scores, || features);
        self.remember(&probabilities);
        finished
    }

    /// Goes back to the start.
    pub fn reset(&mut self) {
        self.state = State::new(&self.config, &self.source);
    }

    /// Adds what was seen to arrays.
    pub fn save(&self, arrays: &mut Arrays) {
        let State {
            recent,
            usual,
            samples,
        } = &self.state;
        let recent: Vec<f32> = recent.iter().copied().collect();
        arrays.insert("shares.recent", Array::F32(vec![recent.len()], recent));
        arrays.insert("shares.usual", Array::F64(vec![usual.len()], usual.clone()));
        arrays.insert("shares.samples", Array::U64(vec![*samples]));
    }

    /// Takes back what [`save`](Self::save) added; on an error nothing has changed.
    pub fn load(&mut self, arrays: &mut Arrays) -> Result<()> {
        let invalid = |problem: &str| Error::Invalid {
            what: "saved shares of classes",
            problem: problem.to_owned(),
        };
        let usual = arrays.f64("shares.usual", self.source.len())?;
        let Some(Array::F32(_, recent)) = arrays.0.remove("shares.recent") else {
            return Err(invalid("there are no recent probabilities"));
        };
        let Some(Array::U64(samples)) = arrays.0.remove("shares.samples") else {
            return Err(invalid("there is no number of samples"));
        };
        let positive = usual.iter().all(|value| value.is_finite() && *value > 0.0);
        let probable = recent.iter().all(|value| (0.0..=1.0).contains(value));
        if !positive || !probable || !recent.len().is_multiple_of(self.source.len()) {
            return Err(invalid("some are no probabilities"));
        }
        self.state = State {
            recent: recent.into(),
            usual,
            samples: samples.first().copied().unwrap_or_default(),
        };
        Ok(())
    }

    /// Reads the probabilities of scores at the temperature, `[batch, classes]`, row-major.
    fn probabilities(&self, scores: &Tensor<2>) -> Vec<f32> {
        let probabilities = softmax(scores.clone() / self.config.temperature, 1).to_data();
        probabilities.try_to_vec().expect("scores are f32")
    }

    /// Returns what the shares of the remembered samples and of `new` ones add to the score of each class, if anything, and how far
    /// answers are changed, above 0 to 1.
    fn correction(&self, new: &[f32]) -> Option<(Vec<f32>, f64)> {
        let classes = self.source.len();
        if self.state.samples < self.config.window as u64 || !is_finite(new) {
            return None;
        }
        let kept = (self.config.window * classes).saturating_sub(new.len());
        let old = self.state.recent.len().saturating_sub(kept);
        let recent: Vec<f32> = self.state.recent.range(old..).copied().collect();
        let all: f64 = self.state.usual.iter().sum();
        let usual: Vec<f64> = self.state.usual.iter().map(|one| one / all).collect();
        let mut ratios = vec![1.0; classes];
        let mut strength = 0.0;
        for round in 0..ROUNDS {
            // The usual shares count like one sample of each class.
            let mut sums: Vec<f64> = usual.iter().map(|share| share * classes as f64).collect();
            let samples = recent.chunks_exact(classes);
            for row in samples.chain(new.chunks_exact(classes)) {
                let products = row.iter().zip(&ratios);
                let total: f64 = products.map(|(&p, ratio)| f64::from(p) * ratio).sum();
                for ((sum, &p), ratio) in sums.iter_mut().zip(row).zip(&ratios) {
                    *sum += f64::from(p) * ratio / total;
                }
            }
            let total: f64 = sums.iter().sum();
            for ((ratio, sum), share) in ratios.iter_mut().zip(sums).zip(&usual) {
                *ratio = sum / total / share;
            }
            if round == 0 {
                let parts = ratios.iter().zip(&usual);
                let divergence: f64 = parts.map(|(ratio, share)| share * ratio * ratio.ln()).sum();
                let SharesConfig { least, full, .. } = self.config;
                strength = ((divergence - least) / (full - least)).clamp(0.0, 1.0);
                if strength.is_nan() || strength <= 0.0 {
                    return None;
                }
            }
        }
        let weight = strength * self.config.temperature;
        let terms = ratios.iter().map(|ratio| (weight * ratio.ln()) as f32);
        Some((terms.collect(), strength))
    }

    /// Remembers the probabilities of answered samples. Those that are not numbers are left out.
    fn remember(&mut self, probabilities: &[f32]) {
        let classes = self.source.len();
        let State {
            recent,
            usual,
            samples,
        } = &mut self.state;
        for row in probabilities.chunks_exact(classes) {
            if !is_finite(row) {
                continue;
            }
            let weight: f64 = usual.iter().sum();
            let kept = ((self.config.memory - 1.0) / weight).min(1.0);
            for ((sum, &p), share) in usual.iter_mut().zip(row).zip(&self.source) {
                *sum = (*sum * kept + f64::from(p)).max(LEAST_WEIGHT * share);
            }
            recent.extend(row);
            *samples += 1;
        }
        let over = recent.len().saturating_sub(self.config.window * classes);
        recent.drain(..over);
    }
}

impl State {
    /// The source counts like an eighth of a window. Were it more, a network that prefers some classes from the start, as one without batch
    /// norms does under a shift, would be believed until its preference has become usual.
    fn new(config: &SharesConfig, source: &[f64]) -> Self {
        let weight = config.window as f64 / 8.0;
        Self {
            recent: VecDeque::new(),
            usual: source.iter().map(|share| share * weight).collect(),
            samples: 0,
        }
    }
}

fn is_finite(values: &[f32]) -> bool {
    values.iter().all(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    const CLASSES: usize = 4;

    /// Scores of samples that are clearly of a class, or that are torn between two.
    fn scores(samples: &[(usize, Option<usize>)]) -> Tensor<2> {
        let mut values = vec![0.0_f32; samples.len() * CLASSES];
        for (row, &(class, other)) in values.chunks_exact_mut(CLASSES).zip(samples) {
            row[class] = 8.0;
            if let Some(other) = other {
                row[other] = 8.5;
            }
        }
        let data = TensorData::new(values, [samples.len(), CLASSES]);
        Tensor::from_data(data, &Device::flex())
    }

    fn shares() -> RecentShares {
        let config = SharesConfig {
            window: 32,
            memory: 320.0,
            ..SharesConfig::default()
        };
        RecentShares::new(config, CLASSES, None)
    }

    fn values(scores: &Tensor<2>) -> Vec<f32> {
        scores.to_data().try_to_vec().unwrap()
    }

    /// All classes in turn.
    fn mixed(count: usize) -> Vec<(usize, Option<usize>)> {
        (0..count).map(|sample| (sample % CLASSES, None)).collect()
    }

    #[test]
    fn a_mixed_stream_is_left_alone() {
        let mut shares = shares();
        for _ in 0..20 {
            let batch = scores(&mixed(16));
            assert_eq!(values(&shares.answer(batch.clone(), None)), values(&batch));
        }
    }

    #[test]
    fn a_run_decides_what_is_in_doubt() {
        let mut shares = shares();
        shares.answer(scores(&mixed(64)), None);
        let doubted = |sample: usize| (2, sample.is_multiple_of(4).then_some(1));
        let run: Vec<_> = (0..32).map(doubted).collect();
        let answered = values(&shares.answer(scores(&run), None));
        for row in answered.chunks_exact(CLASSES) {
            assert_eq!(crate::best(row).0, 2);
        }
    }

    #[test]
    fn nothing_is_changed_before_a_window_was_seen() {
        let mut shares = shares();
        let run = scores(&[(2, None); 16]);
        assert_eq!(values(&shares.answer(run.clone(), None)), values(&run));
    }

    #[test]
    fn a_preference_that_stays_becomes_usual() {
        let mut shares = shares();
        // Half of the answers are class 0, whatever comes.
        let preferring: Vec<_> = (0..32)
            .map(|sample| {
                if sample % 2 == 0 {
                    (0, None)
                } else {
                    (sample % CLASSES, None)
                }
            })
            .collect();
        for _ in 0..20 {
            shares.answer(scores(&preferring), None);
        }
        let batch = scores(&preferring);
        assert_eq!(
            values(&shares.finish(batch.clone(), || None)),
            values(&batch)
        );
    }

    #[test]
    fn it_goes_on_from_a_file_and_back_to_the_start() {
        let mut shares = shares();
        let fresh = shares.clone();
        shares.answer(scores(&mixed(64)), None);
        shares.answer(scores(&[(3, None); 8]), None);
        let mut arrays = Arrays::default();
        shares.save(&mut arrays);
        let mut loaded = fresh.clone();
        loaded.load(&mut arrays).unwrap();
        assert_eq!(loaded, shares);
        shares.reset();
        assert_eq!(shares, fresh);
        assert!(shares.load(&mut Arrays::default()).is_err());
        assert_eq!(shares, fresh);
    }

    #[test]
    fn a_class_that_never_comes_is_not_forgotten() {
        let mut shares = shares();
        // The probability of class 3 is exactly zero.
        let mut batch = values(&scores(&mixed(999)));
        for row in batch.chunks_exact_mut(CLASSES) {
            row[0] += 1.0;
            row[3] = -1e6;
        }
        let batch = TensorData::new(batch, [999, CLASSES]);
        let batch: Tensor<2> = Tensor::from_data(batch, &Device::flex());
        // With a memory of 320 samples its weight would be zero after 240,000.
        for _ in 0..260 {
            shares.answer(batch.clone(), None);
        }
        let run = values(&shares.answer(scores(&[(3, Some(1)); 32]), None));
        for row in run.chunks_exact(CLASSES) {
            assert!(row.iter().all(|score| score.is_finite()));
            assert_eq!(crate::best(row).0, 3);
        }
    }

    #[test]
    fn what_is_not_a_number_is_not_remembered() {
        let mut shares = shares();
        shares.answer(scores(&mixed(64)), None);
        let before = shares.clone();
        shares.answer(scores(&[(0, None)]) * f32::NAN, None);
        assert_eq!(shares, before);
    }

    #[test]
    fn answers_agree_with_their_neighbours_in_a_run_alone() {
        let mut shares = shares();
        shares.config.agreement = Some(Agreement {
            neighbours: 3,
            ..Agreement::default()
        });
        let alike = |count: usize| {
            let data = TensorData::new(vec![1.0_f32; 2 * count], [count, 2]);
            Tensor::<2>::from_data(data, &Device::flex())
        };
        for _ in 0..4 {
            let batch = scores(&mixed(16));
            assert!(!shares.agrees(&batch));
            let answered = shares.answer(batch.clone(), Some(alike(16)));
            assert_eq!(values(&answered), values(&batch));
        }
        // The second of four is doubtful, and would be of class 1 by its score alone.
        let mut run = values(&scores(&[(2, None); 32]));
        run[CLASSES..2 * CLASSES].copy_from_slice(&[0.0, 40.0, 32.5, 0.0]);
        let run = Tensor::<2>::from_data(TensorData::new(run, [32, CLASSES]), &Device::flex());
        assert!(shares.agrees(&run));
        let class = |answer: &Tensor<2>| crate::best(&values(answer)[CLASSES..2 * CLASSES]).0;
        assert_eq!(class(&shares.finish(run.clone(), || None)), 1);
        let moved = shares.finish(run, || Some(alike(32)));
        assert_eq!(class(&moved), 2);
    }

    #[test]
    fn bad_constants_are_all_named() {
        let config = SharesConfig {
            window: 0,
            temperature: 0.0,
            least: 1.0,
            ..SharesConfig::default()
        };
        let message = config.validate().unwrap_err().to_string();
        for name in ["window", "temperature", "least"] {
            assert!(message.contains(name), "{message}");
        }
    }
}
